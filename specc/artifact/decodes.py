"""The settings that a model which decodes by itself says of itself."""

SCALARS = (
    "max_tokens",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
)
"""Settings that it takes as inputs."""

FIXED = (
    "strategy",
    "start",
    "stop",
    "pad",
    "beams",
    "n_best",
    "length_penalty",
    "early_stopping",
    "suppress",
    "begin_suppress",
    "min_tokens",
    "min_length",
    "no_repeat",
    "banned",
    "renormalize",
    "begin",
    "last_token",
)
"""Settings that such a model was compiled with."""

TOLD = (*FIXED, *SCALARS, "stop_strings", "max_length")
"""Settings that it says of itself: what is not fixed is its default."""

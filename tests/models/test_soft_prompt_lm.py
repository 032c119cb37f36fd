"""`soft_prompt_lm` agrees with the paper's equations in NumPy: a decoder with a learned prefix."""

import numpy as np
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    decoder_layers,
    layer_norm,
    linear,
    sample_sentences,
)
from support.small_configs import SMALL_CONFIGS


def model(w: Arrays, ids: Array, keep: Array) -> Arrays:
    prompt = w["prompt"][0]
    x = np.concatenate([prompt, w["embed.weight"][ids[keep]]])
    x = x + w["position_embed.weight"][: len(x)]
    x = decoder_layers(w, "layers.", x, 2, np.tri(len(x), dtype=bool))
    return {"logits": linear(w, "output", layer_norm(w, "norm", x[len(prompt) :]))}


def test_the_spec_agrees_with_the_equations() -> None:
    texts = sample_sentences(np.random.default_rng(0), 17, (6, 1, 4))
    rows = [{"ids": ids, "keep": np.ones(len(ids), bool)} for ids in texts]
    padded = {"ids": (0,), "keep": (0,)}
    assert_matches_equations(
        "soft_prompt_lm", model, rows, padded, **SMALL_CONFIGS["soft_prompt_lm"]
    )

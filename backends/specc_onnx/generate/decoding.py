"""What the caller of a model that decodes itself gives at run time, by name."""

from specc.ir.derived import Decoding

MAX_TOKENS = "max_tokens"
"""i64[]: how many tokens are made at most; an input of every model that decodes."""

SEED = "seed"
"""i64[]: what the draws of a model that samples are made from; not negative."""

PENALTY = "repetition_penalty"
"""f32[]: 1 changes nothing; more makes tokens that were there before less likely."""

KNOBS = {"temperature": "f32", "top_k": "i64", "top_p": "f32", "min_p": "f32"}
"""The scalars a model that samples takes. 0 (`top_k`, `min_p`) and 1 (`temperature`,
`top_p`) change nothing.
"""

NOWHERE = -1
"""What stands for a token where the model gives no number: no token of any model. Its
log-probability is NaN.
"""


def scalars_of(decoding: Decoding) -> dict[str, str]:
    """The scalar inputs of the model and their element types, in order."""
    scalars = {MAX_TOKENS: "i64"}
    if decoding.strategy == "sample":
        scalars |= {SEED: "i64", **KNOBS}
    if decoding.penalized:
        scalars[PENALTY] = "f32"
    return scalars

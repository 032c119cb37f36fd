"""`sparsemax_lm` agrees with its equations in NumPy, sparsemax by bisection; generated tokens equal
those of full forward passes.
"""

import math

import numpy as np
import pytest
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    layer_norm,
    linear,
    sample_sentences,
    softmax,
)

SIZE = {"vocab": 17, "context": 9, "d": 12, "hidden": 20, "heads": 3, "layers": 2}


def sparsemax(z: Array) -> Array:
    """arXiv:1602.02068, eq. 2: [z - tau]+ with tau such that the weights sum to 1."""
    low, high = z.max() - 1, z.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(z - tau, 0).sum() > 1 else (low, tau)
    made: Array = np.maximum(z - low, 0)
    return made


def attention(w: Arrays, name: str, x: Array, normalize: str) -> Array:
    q, k, v = (
        np.split(linear(w, f"{name}.{part}", x), SIZE["heads"], axis=1)
        for part in ("query", "key", "value")
    )
    weigh = {"sparsemax": sparsemax, "softmax": softmax}[normalize]
    made = [
        np.stack(
            [
                weigh(q[h][i] @ k[h][: i + 1].T / math.sqrt(q[h].shape[1])) @ v[h][: i + 1]
                for i in range(len(x))
            ]
        )
        for h in range(SIZE["heads"])
    ]
    return linear(w, f"{name}.out", np.concatenate(made, axis=1))


def gelu(x: Array) -> Array:
    made: Array = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return made


@pytest.mark.parametrize("normalize", ["sparsemax", "softmax"])
def test_the_spec_agrees_with_the_equations(normalize: str) -> None:
    def model(w: Arrays, ids: Array, keep: Array) -> Arrays:
        x = w["embed.weight"][ids] + w["position_embed.weight"][: len(ids)]
        for n in range(SIZE["layers"]):
            name = f"layers.{n}"
            h = layer_norm(w, f"{name}.norm1", x)
            x = x + attention(w, f"{name}.attention", h, normalize)
            h = gelu(linear(w, f"{name}.linear1", layer_norm(w, f"{name}.norm2", x)))
            x = x + linear(w, f"{name}.linear2", h)
        return {"logits": linear(w, "output", layer_norm(w, "norm", x))}

    texts = sample_sentences(np.random.default_rng(0), 17, (7, 1, 4))
    rows = [{"ids": ids, "keep": np.ones(len(ids), bool)} for ids in texts]
    padded = {"ids": (0,), "keep": (0,)}
    assert_matches_equations("sparsemax_lm", model, rows, padded, normalize=normalize, **SIZE)

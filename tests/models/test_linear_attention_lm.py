"""`linear_attention_lm` agrees with the paper's eq. 8 in NumPy, a sum over all keys for each query."""

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
)


def attention(w: Arrays, name: str, x: Array, heads: int) -> Array:
    """Eq. 8 without running sums."""
    q, k, v = (
        np.split(linear(w, f"{name}.{part}", x), heads, axis=1)
        for part in ("query", "key", "value")
    )
    made = []
    for head in range(heads):
        rows = []
        for i in range(len(x)):
            shares = np.array([phi(q[head][i]) @ phi(k[head][j]) for j in range(i + 1)])
            rows.append(shares @ v[head][: i + 1] / (shares.sum() + 1e-6))
        made.append(np.stack(rows))
    return linear(w, f"{name}.out", np.concatenate(made, axis=1))


def phi(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1


def gelu(x: Array) -> Array:
    made: Array = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return made


def model(w: Arrays, ids: Array, heads: int) -> Arrays:
    x = w["embed.weight"][ids] + w["position_embed.weight"][: len(ids)]
    n = 0
    while (name := f"layers.{n}") + ".linear1.weight" in w:
        x = layer_norm(w, f"{name}.norm1", x + attention(w, f"{name}.attention", x, heads))
        h = linear(w, f"{name}.linear2", gelu(linear(w, f"{name}.linear1", x)))
        x = layer_norm(w, f"{name}.norm2", x + h)
        n += 1
    return {"logits": linear(w, "output", layer_norm(w, "norm", x))}


@pytest.mark.parametrize(("heads", "layers"), [(1, 1), (4, 2)])
def test_the_spec_agrees_with_the_equations(heads: int, layers: int) -> None:
    texts = sample_sentences(np.random.default_rng(0), 17, (7, 1, 4))
    rows = [{"ids": ids, "keep": np.ones(len(ids), bool)} for ids in texts]
    size = {"vocab": 17, "context": 9, "d": 12, "hidden": 20, "heads": heads, "layers": layers}

    def of(w: Arrays, ids: Array, keep: Array) -> Arrays:
        return model(w, ids[keep], heads)

    assert_matches_equations("linear_attention_lm", of, rows, {"ids": (0,), "keep": (0,)}, **size)

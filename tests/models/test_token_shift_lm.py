"""`token_shift_lm` agrees with the papers' equations in NumPy, with a window shorter than the
sequence.
"""

import numpy as np
import pytest
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    layer_norm,
    linear,
    relu,
    sample_sentences,
    softmax,
)


def shift_tokens(share: Array, x: Array) -> Array:
    """RWKV's eq. 11 without its matrix, with a zero vector before the first position."""
    return np.stack(
        [
            share * x[t] + (1 - share) * (x[t - 1] if t else np.zeros_like(x[t]))
            for t in range(len(x))
        ]
    )


def attention(w: Arrays, name: str, x: Array, heads: int, kv_heads: int, back: int) -> Array:
    """A query of head h attends to the last `back` keys of key head h // (heads / kv_heads)."""
    parts = (("q", heads), ("k", kv_heads), ("v", kv_heads))
    q, k, v = (
        np.split(linear(w, f"{name}.{p}_proj", shift_tokens(w[f"{name}.{p}_share"], x)), n, 1)
        for p, n in parts
    )
    made = np.zeros_like(x)
    width = x.shape[1] // heads
    for head in range(heads):
        group = head // (heads // kv_heads)
        for t in range(len(x)):
            seen = slice(max(0, t - back + 1), t + 1)
            weights = softmax(k[group][seen] @ q[head][t] / np.sqrt(width))
            made[t, head * width : (head + 1) * width] = weights @ v[group][seen]
    return linear(w, f"{name}.out_proj", made)


def model(w: Arrays, ids: Array, heads: int, kv_heads: int, back: int) -> Arrays:
    x = w["embed.weight"][ids]
    n = 0
    while (name := f"layers.{n}") + ".ln1.weight" in w:
        h = layer_norm(w, f"{name}.ln1", x)
        x = x + attention(w, f"{name}.attention", h, heads, kv_heads, back)
        h = shift_tokens(w[f"{name}.mlp.share"], layer_norm(w, f"{name}.ln2", x))
        x = x + linear(w, f"{name}.mlp.fc2", relu(linear(w, f"{name}.mlp.fc1", h)) ** 2)
        n += 1
    return {"logits": linear(w, "output", layer_norm(w, "norm", x))}


@pytest.mark.parametrize(("kv_heads", "back"), [(4, 3), (2, 1), (1, 20)])
def test_the_spec_agrees_with_the_equations(kv_heads: int, back: int) -> None:
    texts = sample_sentences(np.random.default_rng(0), 17, (8, 1, 4))
    rows = [{"ids": ids, "keep": np.ones(len(ids), bool)} for ids in texts]
    size = {
        "vocab": 17,
        "d": 16,
        "hidden": 20,
        "heads": 4,
        "kv_heads": kv_heads,
        "layers": 2,
        "window": back,
    }

    def of(w: Arrays, ids: Array, keep: Array) -> Arrays:
        return model(w, ids[keep], 4, kv_heads, back)

    assert_matches_equations("token_shift_lm", of, rows, {"ids": (0,), "keep": (0,)}, **size)

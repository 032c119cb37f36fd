"""`decomposable` agrees with the equations of the paper's sec. 3 in NumPy, with and without
intra-sentence attention.
"""

from functools import partial

import numpy as np
import pytest
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    linear,
    relu,
    sample_sentences,
    softmax,
)

FARTHEST = 2


def mlp(w: Arrays, name: str, x: Array) -> Array:
    return relu(linear(w, f"{name}.2", relu(linear(w, f"{name}.0", x))))


def embed(w: Arrays, inside: bool, ids: Array) -> Array:
    """Sec. 3.4: concatenate each token with its attention result; distances above FARTHEST share a
    bias.
    """
    a = w["embedding.weight"][ids] @ w["projection.weight"].T
    if not inside:
        return a
    f = mlp(w, "F_intra", a)
    rows = []
    for i in range(len(a)):
        away = np.clip(i - np.arange(len(a)), -FARTHEST, FARTHEST)
        rows.append(softmax(f @ f[i] + w["distance.weight"][away + FARTHEST, 0]) @ a)
    return np.concatenate([a, np.stack(rows)], axis=1)


def decomposable(
    inside: bool, w: Arrays, a: Array, a_keep: Array, b: Array, b_keep: Array
) -> Arrays:
    """Eq. 1 to 6: attend, compare, aggregate."""
    x, y = embed(w, inside, a), embed(w, inside, b)
    e = mlp(w, "F", x) @ mlp(w, "F", y).T
    over_b = np.stack([softmax(row) for row in e])
    over_a = np.stack([softmax(column) for column in e.T])
    v1 = mlp(w, "G", np.concatenate([x, over_b @ y], axis=1)).sum(0)
    v2 = mlp(w, "G", np.concatenate([y, over_a @ x], axis=1)).sum(0)
    return {
        "logits": linear(w, "output", mlp(w, "H", np.concatenate([v1, v2]))),
        "alignment": over_b,
    }


@pytest.mark.parametrize("inside", [True, False])
def test_the_spec_agrees_with_the_equations(inside: bool) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"a": a, "a_keep": np.ones(len(a), bool), "b": b, "b_keep": np.ones(len(b), bool)}
        for a, b in zip(
            sample_sentences(rng, 11, (6, 1, 4)), sample_sentences(rng, 11, (3, 5, 1)), strict=True
        )
    ]
    padded = dict.fromkeys(rows[0], (0,))
    size = {
        "vocab": 11,
        "embed_dim": 5,
        "hidden": 6,
        "max_distance": FARTHEST,
        "intra_attention": inside,
    }
    assert_matches_equations("decomposable", partial(decomposable, inside), rows, padded, **size)

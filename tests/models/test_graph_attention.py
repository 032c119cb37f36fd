"""`graph_attention` agrees with the paper's eq. 1 to 6 in NumPy."""

import numpy as np
import pytest
from support.paper_equations import Array, Arrays, assert_matches_equations, softmax


def compute_heads(w: Arrays, name: str, x: Array, edges: Array) -> tuple[list[Array], list[Array]]:
    """Eq. 1 to 4 before the nonlinearity: the new nodes and weights of each head."""
    a_i, a_j = w[f"{name}.a.a_i"][:, 0, 0], w[f"{name}.a.a_j"][:, 0, 0]
    made, weights = [], []
    for matrix, one, other in zip(np.split(w[f"{name}.W.weight"], len(a_i)), a_i, a_j, strict=True):
        h = x @ matrix.T
        a = np.concatenate([one, other])
        alpha = np.zeros((len(x), len(x)))
        for i in range(len(x)):
            near = [j for j in range(len(x)) if edges[i, j] or i == j]
            e = np.array([a @ np.concatenate([h[i], h[j]]) for j in near])
            alpha[i, near] = softmax(np.where(e > 0, e, 0.2 * e))
        made.append(alpha @ h)
        weights.append(alpha)
    return made, weights


def graph_attention(w: Arrays, x: Array, edges: Array) -> Arrays:
    """Eq. 5 with an ELU after all layers except the last, eq. 6 without the final softmax in the
    last.
    """
    n = 0
    while f"layers.{n}.W.weight" in w:
        x = np.concatenate(compute_heads(w, f"layers.{n}", x, edges)[0], axis=1)
        x = np.where(x > 0, x, np.expm1(x))
        n += 1
    made, weights = compute_heads(w, "output", x, edges)
    return {"logits": np.mean(made, axis=0), "weights": np.stack(weights)}


@pytest.mark.parametrize(("layers", "last_heads"), [(1, 2), (2, 1), (3, 3)])
def test_the_spec_agrees_with_the_equations(layers: int, last_heads: int) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"x": rng.standard_normal((n, 5)).astype(np.float32), "edges": rng.random((n, n)) < 0.4}
        for n in (6, 1, 3)
    ]
    size = {
        "inputs": 5,
        "hidden": 3,
        "classes": 4,
        "heads": 2,
        "last_heads": last_heads,
        "layers": layers,
    }
    assert_matches_equations(
        "graph_attention", graph_attention, rows, {"x": (0,), "edges": (0, 1)}, **size
    )

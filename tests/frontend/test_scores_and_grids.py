"""Scores, biases and masks as grids: what the definitions of the standard library compute."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

Array = NDArray[Any]
RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 5, 4))

SPEC = """
specc 1
model grids
dims batch, q, k
graph f(x: float[batch, q, 4], y: float[batch, k, 4], keep: keep[batch, k]) -> (grid: {type}) {{
  return {expr}
}}
"""


def computed(
    directory: Path, expr: str, type: str = "float[batch, q, k]", **weights: Array
) -> Array:
    path = directory / "grids.specc"
    path.write_text(SPEC.format(expr=expr, type=type))
    graph = elaborate_spec(open_spec(str(path))).graph
    assert set(graph.parameters) == {name.replace("__", ".") for name in weights}
    keep = np.arange(5) < np.array([[5], [2]])
    numbers = {name.replace("__", "."): w for name, w in weights.items()}
    return specc_numpy.evaluate_graph(graph, {"x": Q, "y": K, "keep": keep}, numbers)["grid"]


def pairs(score: Any) -> Array:
    """Return the score of two vectors for every query and key."""
    return np.array(
        [[[score(q, k) for k in keys] for q in queries] for queries, keys in zip(Q, K, strict=True)]
    )


W, U, V = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 4)), RNG.normal(size=(1, 6))
SCORES: dict[str, tuple[Any, dict[str, Array]]] = {
    "dot": (lambda q, k: q @ k, {}),
    "scaled_dot": (lambda q, k: q @ k / 2, {}),
    "general": (lambda q, k: q @ W[:4] @ k, {"W__weight": W[:4]}),
    "additive(6)": (
        lambda q, k: V[0] @ np.tanh(W @ q + U @ k),
        {"W__weight": W, "U__weight": U, "v__weight": V},
    ),
    "cosine": (lambda q, k: q @ k / (np.linalg.norm(q) * np.linalg.norm(k) + 1e-8), {}),
    "gaussian": (lambda q, k: -0.5 * ((0.7 * (q - k)) ** 2).sum(), {"w": np.array([0.7])}),
}


@pytest.mark.parametrize("name", SCORES)
def test_score_grid_of_all_queries_and_keys(name: str, tmp_path: Path) -> None:
    formula, weights = SCORES[name]
    given = {f"a__{k}": v for k, v in weights.items()}
    np.testing.assert_allclose(
        computed(tmp_path, f"grid({name}, x, y) @ a", **given), pairs(formula), rtol=1e-10
    )


def test_location_score_depends_only_on_the_query(tmp_path: Path) -> None:
    wide = RNG.normal(size=(8, 4))
    found = computed(tmp_path, "grid(location(8), x, y) @ a", a__W__weight=wide)
    np.testing.assert_allclose(found, (Q @ wide.T)[..., :5], rtol=1e-12)


def test_builtin_score_equals_its_definition(tmp_path: Path) -> None:
    made = "float[batch, q, 4]"
    found = computed(tmp_path, "attend_by(dot, x, y, y, mask=visible(keep))", made)
    expected = computed(tmp_path, "attend(x, y, y, mask=visible(keep), scale=1.0)", made)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_function_of_three_tensors_is_not_a_score(tmp_path: Path) -> None:
    with pytest.raises(SpeccError) as failed:
        computed(tmp_path, "attend_by(where, x, y, y, mask=all)", "float[batch, q, 4]")
    assert failed.value.diagnostics[0].code == "E0203"


def test_mask_as_grid(tmp_path: Path) -> None:
    found = computed(tmp_path, "grid(causal & visible(keep), x, y)", "bool[batch, 1, q, k]")
    kept = (np.arange(5) < np.array([[5], [2]]))[:, None, None]
    np.testing.assert_array_equal(found, kept & (np.arange(5) <= np.arange(3)[:, None]))


def test_alibi_slope_per_head(tmp_path: Path) -> None:
    found = computed(tmp_path, "grid(alibi(4), x, y)", "float[1, 4, q, k]")
    slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    distance = np.abs(np.arange(5) - np.arange(3)[:, None])
    np.testing.assert_allclose(found[0], -slopes[:, None, None] * distance, rtol=1e-12)


def test_alibi_by_position_ids(tmp_path: Path) -> None:
    found = computed(
        tmp_path, "grid(alibi(1, position_ids=positions(keep)), y, y)", "float[batch, 1, k, k]"
    )
    # padded positions do not count
    at = np.array([[0, 1, 2, 3, 4], [0, 1, 1, 1, 1]])
    np.testing.assert_allclose(
        found[:, 0], -(2.0**-8) * np.abs(at[:, None] - at[:, :, None]), rtol=1e-12
    )


def test_distances_are_clipped_at_the_maximum(tmp_path: Path) -> None:
    table = np.arange(5.0)[:, None]
    found = computed(
        tmp_path, "grid(relative_position_bias(2), x, y) @ t", "float[1, 1, q, k]", t__weight=table
    )
    np.testing.assert_array_equal(found[0, 0], [[2, 1, 0, 0, 0], [3, 2, 1, 0, 0], [4, 3, 2, 1, 0]])


def test_unidirectional_t5_buckets(tmp_path: Path) -> None:
    table = np.arange(8.0)[:, None]
    bias = "t5_relative_position_bias(1, bidirectional=false, buckets=8, max_distance=16)"
    found = computed(tmp_path, f"grid({bias}, y, y) @ t", "float[1, 1, k, k]", t__weight=table)
    assert found[0, 0, 4].tolist() == [4, 3, 2, 1, 0]
    assert found[0, 0, 0].tolist() == [0, 0, 0, 0, 0]  # keys ahead are at distance 0

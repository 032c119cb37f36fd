"""Cost against length: curves that are what the formulas say."""

import pytest

from specc.driver.spec_loader import elaborate_spec, open_spec
from specc.ir.graph import Graph
from specc.visualize.cost_plot import COMPARED_WINDOW, MAX_LENGTH, MIN_LENGTH, compute_cost_curves

ATTENTION = """specc 1
model m
dims batch, n
graph g(ids: int[batch, n]) -> (y: float[batch, n, 8]) {
  x = embedding(ids, size=11, dim=8) @ table
  return attention(x, heads=2, mask=MASK) @ look
}
"""


def graph_of(text: str, tmp_path) -> Graph:
    path = tmp_path / "m.specc"
    path.write_text(text)
    return elaborate_spec(open_spec(str(path))).graph


def curves(graph: Graph) -> dict[str, dict[int, float]]:
    cost = compute_cost_curves(graph)
    assert cost is not None
    return {c.name: dict(zip(cost.lengths, c.values, strict=True)) for c in cost.curves}


def test_attention_is_the_square_of_the_length(tmp_path) -> None:
    """n² · 2d multiply-adds of scores and of values; 4 d² n of projections (Vaswani et al.,
    2017, table 1).
    """
    found = curves(graph_of(ATTENTION.replace("MASK", "all"), tmp_path))
    for n, value in found["attention"].items():
        assert value == n * n * 2 * 8
        assert found["without attention"][n] == 4 * 8 * 8 * n
        assert found["total"][n] == value + 4 * 8 * 8 * n
        less = n * min(n, COMPARED_WINDOW) * 2 * 8 + 4 * 8 * 8 * n
        assert found[f"with a window of {COMPARED_WINDOW}"][n] == pytest.approx(less)
    assert set(found["attention"]) == {2**p for p in range(6, 15)}


def test_a_window_of_the_model_is_drawn_against_none(tmp_path) -> None:
    found = curves(graph_of(ATTENTION.replace("MASK", "causal & window(32)"), tmp_path))
    whole, done = found["full forward"], found["total"]
    assert whole[MAX_LENGTH] == MAX_LENGTH * MAX_LENGTH * 2 * 8 + 4 * 8 * 8 * MAX_LENGTH
    assert done[MAX_LENGTH] < whole[MAX_LENGTH] / 50
    assert f"with a window of {COMPARED_WINDOW}" not in found
    # from some length on it grows as the length does
    assert done[MAX_LENGTH] / done[MAX_LENGTH // 2] == pytest.approx(2, rel=0.01)
    assert all(done[n] <= whole[n] for n in done)


def test_lengths_end_where_the_model_does() -> None:
    cost = compute_cost_curves(elaborate_spec(open_spec("gpt2")).graph)
    assert cost is not None
    assert cost.lengths[0] == MIN_LENGTH
    assert cost.lengths[-1] == 1024
    assert cost.limit_reason.startswith("seq is at most 1024")


def test_without_a_length_there_is_nothing_to_draw() -> None:
    assert compute_cost_curves(elaborate_spec(open_spec("digits")).graph) is None

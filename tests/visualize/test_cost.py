"""Cost by sequence length: curves equal the formulas."""

import pytest

from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
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


def elaborate_text(text: str, tmp_path) -> Graph:
    path = tmp_path / "m.specc"
    path.write_text(text)
    return elaborate_spec(open_spec(str(path))).graph


def compute_curves(graph: Graph) -> dict[str, dict[int, float]]:
    cost = compute_cost_curves(graph)
    assert cost is not None
    return {c.name: dict(zip(cost.lengths, c.values, strict=True)) for c in cost.curves}


def test_attention_cost_is_quadratic(tmp_path) -> None:
    """n² · 2d multiply-adds for scores and values, 4 d² n for projections (Vaswani et al., 2017,
    table 1)."""
    found = compute_curves(elaborate_text(ATTENTION.replace("MASK", "all"), tmp_path))
    for n, value in found["attention"].items():
        assert value == n * n * 2 * 8
        assert found["without attention"][n] == 4 * 8 * 8 * n
        assert found["total"][n] == value + 4 * 8 * 8 * n
        less = n * min(n, COMPARED_WINDOW) * 2 * 8 + 4 * 8 * 8 * n
        assert found[f"with a window of {COMPARED_WINDOW}"][n] == pytest.approx(less)
    assert set(found["attention"]) == {2**p for p in range(6, 15)}


def test_sliding_window_curve(tmp_path) -> None:
    found = compute_curves(
        elaborate_text(ATTENTION.replace("MASK", "causal & window(32)"), tmp_path)
    )
    whole, done = found["full forward"], found["total"]
    assert whole[MAX_LENGTH] == MAX_LENGTH * MAX_LENGTH * 2 * 8 + 4 * 8 * 8 * MAX_LENGTH
    assert done[MAX_LENGTH] < whole[MAX_LENGTH] / 50
    assert f"with a window of {COMPARED_WINDOW}" not in found
    # linear above the window
    assert done[MAX_LENGTH] / done[MAX_LENGTH // 2] == pytest.approx(2, rel=0.01)
    assert all(done[n] <= whole[n] for n in done)


def test_curve_ends_at_the_maximum_length() -> None:
    cost = compute_cost_curves(elaborate_spec(open_spec("gpt2")).graph)
    assert cost is not None
    assert cost.lengths[0] == MIN_LENGTH
    assert cost.lengths[-1] == 1024
    assert cost.limit_reason.startswith("seq is at most 1024")


def test_model_without_a_dynamic_length() -> None:
    assert compute_cost_curves(elaborate_spec(open_spec("digits")).graph) is None

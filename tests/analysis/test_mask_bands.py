"""Band of a mask: the interval of `q - k` in which it can be true."""

from collections.abc import Callable

import pytest

from specc.analysis import attention_matrices, mask_bands
from specc.analysis.attention_matrices import make_attention_matrix
from specc.analysis.mask_bands import find_band_interval, find_mask_band
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Input, Value
from specc.ir.types import Type

T = Dim.symbol("seq")


class GridBuilder:
    """A builder with grid indices `i` and `j` and functions of them."""

    def __init__(self) -> None:
        self.build = GraphBuilder()
        x = self.build.add_input("x", Input(Type.of("f32", T, 4)))
        self.keep = self.build.add_op(
            ops.Insert(0), self.build.add_input("keep", Input(Type.of("bool", T)))
        )
        extent = self.build.add_op(ops.Extent(0), x)
        self.i, self.j = (
            self.build.add_op(ops.Insert(1), extent),
            self.build.add_op(ops.Insert(0), extent),
        )

    def number(self, n: float) -> Value:
        return self.build.add_op(ops.Constant(n, "i64" if isinstance(n, int) else "f64"))

    def compare(self, fn: str, a: Value, b: Value) -> Value:
        return self.build.add_op(ops.Compare(fn), a, b)

    def arith(self, fn: str, a: Value, b: Value | int) -> Value:
        return self.build.add_op(ops.Arith(fn), a, self.number(b) if isinstance(b, int) else b)

    def causal(self) -> Value:
        return self.compare("le", self.j, self.i)

    def apart(self) -> Value:
        return self.arith("sub", self.i, self.j)


MASKS: dict[str, Callable[[GridBuilder], Value]] = {
    "[0, ∞]": lambda r: r.causal(),
    "[1, ∞]": lambda r: r.compare("gt", r.i, r.j),
    "[-∞, ∞]": lambda r: r.keep,
    "[0, 3]": lambda r: r.build.add_op(
        ops.And(), r.causal(), r.compare("lt", r.apart(), r.number(4))
    ),
    "[-2, 2]": lambda r: r.compare(
        "le", r.build.add_op(ops.Pointwise("abs"), r.apart()), r.number(2)
    ),
    "[0, 0]": lambda r: r.compare("eq", r.i, r.j),
    "[-3, 3]": lambda r: r.compare("eq", r.arith("floordiv", r.i, 4), r.arith("floordiv", r.j, 4)),
    "[-∞, -1]": lambda r: r.build.add_op(ops.Not(), r.causal()),
    "[1, 2]": lambda r: r.build.add_op(
        ops.Not(),
        r.build.add_op(
            ops.Or(), r.compare("ge", r.j, r.i), r.compare("gt", r.apart(), r.number(2))
        ),
    ),
    "[5, ∞]": lambda r: r.compare(
        "ge", r.arith("mul", r.i, 2), r.arith("add", r.arith("mul", r.j, 2), 9)
    ),
    "nothing": lambda r: r.build.add_op(ops.And(), r.causal(), r.compare("gt", r.j, r.i)),
}


@pytest.mark.parametrize("expected", MASKS)
def test_mask_bands(expected: str) -> None:
    rows = GridBuilder()
    assert str(find_band_interval(MASKS[expected](rows), 0, 1)) == expected


def test_bands_through_insert_and_transpose() -> None:
    rows = GridBuilder()
    mask = rows.build.add_op(ops.Insert(0), rows.causal())
    assert str(find_band_interval(mask, 1, 2)) == "[0, ∞]"
    turned = rows.build.add_op(ops.Transpose((1, 0)), rows.causal())
    assert str(find_band_interval(turned, 0, 1)) == "[-∞, 0]"
    assert str(find_band_interval(turned, 1, 0)) == "[0, ∞]"


def test_attention_weights_have_the_band_of_their_mask() -> None:
    rows = GridBuilder()
    scores = rows.build.add_op(ops.Cast("f32"), rows.apart())
    weights = rows.build.add_op(ops.MaskedSoftmax(), scores, rows.causal())
    assert str(find_band_interval(weights, 0, 1)) == "[0, ∞]"
    assert (
        str(find_band_interval(rows.build.add_op(ops.Arith("mul"), scores, weights), 0, 1))
        == "[0, ∞]"
    )
    assert (
        str(find_band_interval(rows.build.add_op(ops.Arith("add"), scores, weights), 0, 1))
        == "[-∞, ∞]"
    )


def test_unbounded_bands() -> None:
    rows = GridBuilder()
    half = rows.compare("le", rows.build.add_op(ops.Cast("f64"), rows.apart()), rows.number(0.5))
    assert str(find_band_interval(half, 0, 1)) == "[-∞, ∞]"


def test_shared_nodes_are_analyzed_once() -> None:
    """Each of 300 `and` nodes reads the previous one twice."""
    rows = GridBuilder()
    mask = rows.causal()
    for _ in range(300):
        late = rows.build.add_op(ops.Or(), mask, rows.build.add_op(ops.Not(), mask))
        mask = rows.build.add_op(ops.And(), late, mask)
    assert str(find_band_interval(mask, 0, 1)) == "[0, ∞]"


def test_nested_where_takes_linear_time() -> None:
    """A binary search, whose interval ends read the previous ones twice."""
    rows = GridBuilder()
    seen = rows.causal()
    low: Value = rows.build.add_op(ops.Cast("f64"), rows.apart())
    high = rows.arith("mul", low, rows.number(2.0))
    for _ in range(200):
        middle = rows.arith("add", low, high)
        above = rows.compare("ge", middle, rows.number(1.0))
        low, high = (
            rows.build.add_op(ops.Where(), above, middle, low),
            rows.build.add_op(ops.Where(), above, high, middle),
        )
    gate = rows.build.add_op(ops.Where(), seen, low, rows.number(0.0))
    budget = attention_matrices.TraversalBudget()
    grid = make_attention_matrix(gate, 0, 1)
    assert str(find_mask_band(gate, 0, 1).interval) == "[0, ∞]"
    assert not find_mask_band(gate, 0, 1).is_budget_exhausted
    search = mask_bands._BandSearch(budget)
    search.find_true_interval(grid, False)
    assert attention_matrices.MAX_TRAVERSAL_STEPS - budget.remaining_steps < 5_000


def test_search_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = GridBuilder()
    mask = rows.causal()
    for width in range(400):
        near = rows.compare("lt", rows.apart(), rows.number(width))
        mask = rows.build.add_op(ops.And(), mask, near)
    assert not find_mask_band(mask, 0, 1).is_budget_exhausted
    find_mask_band.cache_clear()
    monkeypatch.setattr(attention_matrices.TraversalBudget.__init__, "__defaults__", (100,))
    found = find_mask_band(mask, 0, 1)
    find_mask_band.cache_clear()
    assert found.is_budget_exhausted
    assert found.interval.low == -float("inf")

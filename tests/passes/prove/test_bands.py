"""Masks collapse to an interval of `q - k`."""

from collections.abc import Callable

import pytest

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Input, Value
from specc.ir.types import Type
from specc.passes.prove.bands import band

T = Dim.symbol("seq")


class Rows:
    """A builder with `i`, `j` and a few ways to combine them."""

    def __init__(self) -> None:
        self.build = Builder()
        x = self.build.input("x", Input(Type.of("f32", T, 4)))
        self.keep = self.build.one(
            ops.Insert(0), self.build.input("keep", Input(Type.of("bool", T)))
        )
        extent = self.build.one(ops.Extent(0), x)
        self.i, self.j = (
            self.build.one(ops.Insert(1), extent),
            self.build.one(ops.Insert(0), extent),
        )

    def number(self, n: float) -> Value:
        return self.build.one(ops.Constant(n, "i64" if isinstance(n, int) else "f64"))

    def compare(self, fn: str, a: Value, b: Value) -> Value:
        return self.build.one(ops.Compare(fn), a, b)

    def arith(self, fn: str, a: Value, b: Value | int) -> Value:
        return self.build.one(
            ops.Arith(fn), a, self.number(b) if isinstance(b, int) else b
        )

    def causal(self) -> Value:
        return self.compare("le", self.j, self.i)

    def apart(self) -> Value:
        return self.arith("sub", self.i, self.j)


MASKS: dict[str, Callable[[Rows], Value]] = {
    "[0, ∞]": lambda r: r.causal(),
    "[1, ∞]": lambda r: r.compare("gt", r.i, r.j),
    "[-∞, ∞]": lambda r: r.keep,
    "[0, 3]": lambda r: r.build.one(
        ops.And(), r.causal(), r.compare("lt", r.apart(), r.number(4))
    ),
    "[-2, 2]": lambda r: r.compare(
        "le", r.build.one(ops.Pointwise("abs"), r.apart()), r.number(2)
    ),
    "[0, 0]": lambda r: r.compare("eq", r.i, r.j),
    "[-3, 3]": lambda r: r.compare(
        "eq", r.arith("floordiv", r.i, 4), r.arith("floordiv", r.j, 4)
    ),
    "[-∞, -1]": lambda r: r.build.one(ops.Not(), r.causal()),
    "[1, 2]": lambda r: r.build.one(
        ops.Not(),
        r.build.one(
            ops.Or(), r.compare("ge", r.j, r.i), r.compare("gt", r.apart(), r.number(2))
        ),
    ),
    "[5, ∞]": lambda r: r.compare(
        "ge", r.arith("mul", r.i, 2), r.arith("add", r.arith("mul", r.j, 2), 9)
    ),
    "nothing": lambda r: r.build.one(ops.And(), r.causal(), r.compare("gt", r.j, r.i)),
}


@pytest.mark.parametrize("expected", MASKS)
def test_the_band_of_a_mask(expected: str) -> None:
    rows = Rows()
    assert str(band(MASKS[expected](rows), 0, 1)) == expected


def test_it_is_seen_through_new_axes_and_reordered_ones() -> None:
    rows = Rows()
    mask = rows.build.one(ops.Insert(0), rows.causal())
    assert str(band(mask, 1, 2)) == "[0, ∞]"
    turned = rows.build.one(ops.Transpose((1, 0)), rows.causal())
    assert str(band(turned, 0, 1)) == "[-∞, 0]"
    assert str(band(turned, 1, 0)) == "[0, ∞]"


def test_weights_have_the_band_of_their_mask() -> None:
    rows = Rows()
    scores = rows.build.one(ops.Cast("f32"), rows.apart())
    weights = rows.build.one(ops.MaskedSoftmax(), scores, rows.causal())
    assert str(band(weights, 0, 1)) == "[0, ∞]"
    assert (
        str(band(rows.build.one(ops.Arith("mul"), scores, weights), 0, 1)) == "[0, ∞]"
    )
    assert (
        str(band(rows.build.one(ops.Arith("add"), scores, weights), 0, 1)) == "[-∞, ∞]"
    )


def test_data_and_fractions_prove_nothing() -> None:
    rows = Rows()
    half = rows.compare(
        "le", rows.build.one(ops.Cast("f64"), rows.apart()), rows.number(0.5)
    )
    assert str(band(half, 0, 1)) == "[-∞, ∞]"


def test_a_deep_mask_is_given_up_not_followed_for_ever() -> None:
    rows = Rows()
    mask = rows.causal()
    for _ in range(300):
        mask = rows.build.one(ops.And(), mask, rows.build.one(ops.Not(), mask))
    assert band(mask, 0, 1).lo <= 0

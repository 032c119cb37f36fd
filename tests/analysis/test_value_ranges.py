"""Extremes are found of each value once: residual paths part and meet again at every
layer, so that walking every path would take time without end.
"""

from math import inf

from specc.analysis.value_ranges import find_value_range
from specc.ir import ops
from specc.ir.graph import Builder, Input
from specc.ir.types import Type


def test_paths_that_part_and_meet() -> None:
    """A hundred sums of a value and itself: 2^100 paths, of none of which the least is
    below zero.
    """
    b = Builder()
    x = b.one(ops.Pointwise("abs"), b.input("x", Input(Type.of("f32", 3))))
    for _ in range(100):
        x = b.one(ops.Arith("add"), x, b.one(ops.Arith("mul"), x, x))
    assert find_value_range(x) == (0.0, inf)

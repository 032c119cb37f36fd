"""Constants of a grid, and whether an infinite one can stand at some key and not at others."""

from collections.abc import Generator
from math import isinf

from specc.ir import ops
from specc.ir.graph import Value
from specc.passes.prove.grids import Grid, aligned, through
from specc.passes.prove.once import Budget, answered
from specc.passes.prove.products import factors_of
from specc.passes.prove.seen import number_or_infinity

MOST_GRIDS = 5_000
"""How many values are looked at for one answer."""


def everywhere(value: Value) -> float | None:
    """The number, or the truth, that a value is at every row."""
    if value.type.dtype != "bool":
        return number_or_infinity(value)
    while value.node and value.node.op.view and value.node.first:
        value = value.node.first
    match value.node and value.node.op:
        case ops.Constant(value=truth):
            return float(truth)
    return None


def finite(grid: Grid) -> bool:
    """Whether no infinity that was written down can stand at some key and not at others."""
    return answered(grid, _finite, {}, Budget(MOST_GRIDS), False)


def _finite(grid: Grid) -> Generator[Grid, bool, bool]:
    node = grid.value.node
    if grid.key is None or node is None:
        return True
    if (inner := through(grid)) is not None:
        return (yield inner)
    if (factors := factors_of(grid)) is not None:
        return (yield from _every(factors))
    match node.op:
        case ops.Pointwise(fn="exp" | "sigmoid" | "tanh"):
            return True
        case ops.Pointwise() | ops.Arith() | ops.Where() | ops.Cast() | ops.Concat():
            # An infinity written down may be taken at some keys alone.
            operands = [a for a in node.args if a]
            if any(isinf(everywhere(a) or 0.0) for a in operands):
                return False
            return (yield from _every([aligned(grid, a) for a in operands]))
        case ops.CumSum() | ops.Sort() | ops.Gather() | ops.Reduce() | ops.Delay():
            return not any(_infinite(a) for a in node.args)
    return True


def _every(grids: list[Grid]) -> Generator[Grid, bool, bool]:
    """Whether all of them are finite."""
    for grid in grids:
        if not (yield grid):
            return False
    return True


def _infinite(value: Value | None) -> bool:
    """Whether a value is made, at first sight, with an infinity that was written down."""
    todo, seen = [value], set()
    while todo:
        here = todo.pop()
        if here is None or here.node is None or here in seen:
            continue
        if not here.type.dtype.startswith(("f", "bf")):
            continue  # neither row numbers nor truths are infinite
        seen.add(here)
        match here.node.op:
            case ops.Constant(value=number) if isinf(number):
                return True
            case ops.Compare() | ops.Softmax() | ops.MaskedSoftmax():
                continue
        if len(seen) > MOST_GRIDS:
            return True
        todo += here.node.args
    return False

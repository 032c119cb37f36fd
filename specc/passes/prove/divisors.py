"""Which grids may be no number: zero times that is no number, so that it hides nothing."""

from collections.abc import Generator

from specc.ir import ops
from specc.passes.prove.extremes import extremes
from specc.passes.prove.grids import Grid, aligned, through
from specc.passes.prove.products import factors_of


def breaks(grid: Grid) -> Generator[Grid, bool, bool]:
    """Whether it divides by what may be zero at some key."""
    node = grid.value.node
    if node is None:
        return False
    if (inner := through(grid)) is not None:
        return (yield inner)
    operands = factors_of(grid)
    if operands is None:
        operands = [aligned(grid, a) for a in node.args if a]
    match node.op:
        case ops.Arith(fn="div" | "floordiv" | "mod") if may_be_zero(operands[1]):
            return True
        case ops.Pointwise(fn="log" | "reciprocal") if may_be_zero(operands[0]):
            return True
        case ops.Pointwise(fn="log1p") if extremes(operands[0].value)[0] <= -1:
            return True
        case ops.Linear() | ops.MatMul() | ops.Einsum() | ops.Conv():
            for operand in operands:
                if (yield operand):
                    return True
        case ops.Arith() | ops.Pointwise() | ops.Where() | ops.Cast() | ops.Concat():
            for operand in operands:
                if (yield operand):
                    return True
    return False


def may_be_zero(grid: Grid) -> bool:
    """Whether a divisor varies from key to key and is not seen to stay away from zero."""
    inner: Grid | None = grid
    while inner is not None:
        if inner.key is None:
            return False
        grid, inner = inner, through(inner)
    match grid.value.node and grid.value.node.op:
        case ops.Constant(value=value):
            return not value
        case ops.Pointwise(fn="exp" | "sigmoid" | "softplus"):
            return False
    return True

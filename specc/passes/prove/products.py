"""The factors of a sum of products, seen as grids.

On entry: a value seen as a grid over the rows of a query and of a key. On leaving: its
factors with the same two axes, where a node multiplies them and sums over other axes, as
`einsum("b h i j, h g -> b g i j", w, mix)` does over heads. Where one factor is zero for
a pair of query and key, so is the result, unless another is infinite or NaN.
"""

from specc.ir import ops
from specc.ir.graph import Node
from specc.ir.interval import SAME
from specc.ir.op import Op
from specc.ir.reach import known
from specc.passes.prove.grids import Grid

MULTIPLYING: tuple[type[Op], ...] = (ops.Einsum, ops.Linear, ops.MatMul, ops.Conv)


def factors_of(grid: Grid) -> list[Grid] | None:
    """Return the factors of a grid; None if it is no sum of products, a bias is added, or
    a factor is read at other rows of the query or the key.
    """
    node = grid.value.node
    if node is None or not isinstance(node.op, MULTIPLYING):
        return None
    op = node.op
    if _is_biased(node):
        return None
    given = tuple(a.type if a else None for a in node.args)
    axes: list[dict[int, int]] = [{} for _ in node.args]
    for link in known(op, given, op.infer(*given)):
        if link.kind in ("same", "window", "strided") and link.result_axis is not None:
            if link.reach == SAME and link.kind != "strided":
                axes[link.operand][link.result_axis] = link.operand_axis
            elif link.result_axis in (grid.query, grid.key):
                return None
    return [
        grid.at(factor, at.get(_axis(grid.query)), at.get(_axis(grid.key)))
        for factor, at in zip(node.args, axes, strict=True)
        if factor is not None
    ]


def _is_biased(node: Node) -> bool:
    """Whether a bias is added, which is not zero where the factors are."""
    op = node.op
    return isinstance(op, ops.Linear | ops.Conv) and op.bias(node) is not None


def _axis(axis: int | None) -> int:
    return -1 if axis is None else axis

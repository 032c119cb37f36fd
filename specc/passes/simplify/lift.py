"""One op for every row of a loop at once: the same op with one more axis in its
operands.

    y: f[b, o] = linear(x: f[b, i], w)      for each of t rows
    →  y: f[b, t, o] = linear(x: f[b, t, i], w)

Operands that do not change from row to row keep their shape where broadcasting allows
it, and are repeated where it does not.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Value
from specc.ir.op import Op

ELEMENTWISE = (
    ops.Pointwise,
    ops.Arith,
    ops.Compare,
    ops.And,
    ops.Or,
    ops.Not,
    ops.Where,
    ops.Cast,
)
LEADING = (ops.Linear, ops.Embedding, ops.LayerNorm, ops.RMSNorm, ops.OneHot)
"""Ops whose first operand is `*s …` and whose other operands are weights."""

ALONG = (
    ops.Softmax,
    ops.Slice,
    ops.Stride,
    ops.Roll,
    ops.Index,
    ops.Reduce,
    ops.ArgMax,
    ops.Squeeze,
    ops.Expand,
    ops.Split,
    ops.Merge,
)
"""Ops of one operand with an attribute `axis`."""


def liftable(
    op: Op, args: Sequence[Value | None], moving: Sequence[bool], axis: int
) -> bool:
    """Whether `lift` can put a new axis at `axis` of the operands that move and of the result."""
    there = [(a, m) for a, m in zip(args, moving, strict=True) if a is not None]
    if any(a.type.rank < axis for a, m in there if m):
        return False
    match op:
        case ops.Insert(axis=at) | ops.Concat(axis=at):
            return at >= axis
        case ops.Transpose(order=order):
            # What stands before the rows must stay there.
            return order[:axis] == tuple(range(axis))
    if isinstance(op, ALONG):
        # Axes from `axis` on move by one; what works before them would meet the rows.
        return op.axis >= axis
    if isinstance(op, LEADING):
        return _leads(op, args, moving, axis)
    if isinstance(op, ELEMENTWISE):
        # An operand that moves and has fewer axes is aligned from the right: its rows
        # would meet another axis.
        rank = max(a.type.rank for a, _ in there)
        return all(a.type.rank == rank for a, m in there if m)
    return False


def _leads(
    op: Op, args: Sequence[Value | None], moving: Sequence[bool], axis: int
) -> bool:
    """Whether the rows can be one more leading axis of the first operand: weights that
    change from row to row could not be broadcast, and the features must stay last.
    """
    x, alone = args[0], moving[0] and not any(moving[1:])
    return alone and x is not None and x.type.rank > _tail(op) + axis - 1


def _tail(op: Op) -> int:
    """How many axes of the first operand are not leading ones."""
    return 0 if isinstance(op, ops.Embedding | ops.OneHot) else 1


def _lifted_concat(
    b: Builder,
    op: ops.Concat,
    args: Sequence[Value | None],
    moving: Sequence[bool],
    axis: int,
    length: Dim,
) -> Value:
    """A join for all rows. Joining does not broadcast, so a part that is the same for
    all of them is written out for each.
    """
    rows = [
        a if m else _repeated(b, a, axis, length)
        for a, m in zip(args, moving, strict=True)
        if a
    ]
    return b.one(replace(op, axis=op.axis + 1), *rows)


def _aligned(
    b: Builder, args: Sequence[Value | None], moving: Sequence[bool], axis: int
) -> list[Value | None]:
    """The operands of an elementwise op, those that do not move shaped to meet each row."""
    # The rank without the rows, which those that move have already.
    rank = max(a.type.rank - m for a, m in zip(args, moving, strict=True) if a)
    return [
        a if m or a is None else _beside(b, a, rank, axis)
        for a, m in zip(args, moving, strict=True)
    ]


def lift(
    b: Builder,
    op: Op,
    args: Sequence[Value | None],
    moving: Sequence[bool],
    axis: int,
    length: Dim,
) -> Value:
    """The result of `op` for all rows; operands that move have their rows along `axis` already."""
    assert not isinstance(op, ops.Scan)
    if isinstance(op, ops.Concat):
        return _lifted_concat(b, op, args, moving, axis, length)
    if isinstance(op, ops.Transpose):
        # `liftable` has seen that the axes before the rows keep their places.
        order = (*range(axis + 1), *(n + 1 for n in op.order[axis:]))
        return b.one(ops.Transpose(order), *args)
    if isinstance(op, (ops.Insert, *ALONG)):
        return b.one(_shifted(op), *args)
    if isinstance(op, LEADING):
        return b.one(op, *args)
    return b.one(op, *_aligned(b, args, moving, axis))


def _shifted(op: Any) -> Op:
    made: Op = replace(op, axis=op.axis + 1)
    return made


def _beside(b: Builder, fixed: Value, rank: int, axis: int) -> Value:
    """A fixed operand of an elementwise op, with an axis of 1 where the rows of the others are."""
    # With fewer axes than the rows stand before, broadcasting from the right does it:
    # [o] beside [b, t, o].
    at = axis - (rank - fixed.type.rank)
    return b.one(ops.Insert(at), fixed) if at > 0 else fixed


def _repeated(b: Builder, fixed: Value, axis: int, length: Dim) -> Value:
    return b.one(ops.Expand(axis, length), b.one(ops.Insert(axis), fixed))

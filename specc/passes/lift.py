"""One op for every row of a loop at once: the same op with one more axis in its operands.

    y: f[b, o] = linear(x: f[b, i], w)      for each of t rows
    →  y: f[b, t, o] = linear(x: f[b, t, i], w)

Operands that do not change from row to row keep their shape where broadcasting allows it, and are repeated where
it does not.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Value
from specc.ir.op import Op

ELEMENTWISE = (ops.Pointwise, ops.Arith, ops.Compare, ops.And, ops.Or, ops.Not, ops.Where, ops.Cast)
LEADING = (ops.Linear, ops.Embedding, ops.LayerNorm, ops.RMSNorm, ops.OneHot)
"""Ops whose first operand is `*s …` and whose other operands are weights."""

ALONG = (ops.Softmax, ops.Slice, ops.Index, ops.Reduce, ops.ArgMax, ops.Squeeze, ops.Expand, ops.Split, ops.Merge)
"""Ops of one operand with an attribute `axis`."""


def liftable(op: Op, args: Sequence[Value | None], moving: Sequence[bool], axis: int) -> bool:
    """Whether `lift` can put a new axis at `axis` of the operands that move and of the result."""
    given = [(a, m) for a, m in zip(args, moving, strict=True) if a is not None]
    if any(a.type.rank < axis for a, m in given if m):
        return False
    match op:
        case ops.Insert(axis=at) | ops.Softmax(axis=at) | ops.Slice(axis=at) | ops.Index(axis=at):
            return at >= axis
        case ops.Reduce(axis=at) | ops.ArgMax(axis=at) | ops.Squeeze(axis=at) | ops.Expand(axis=at):
            return at >= axis
        case ops.Split(axis=at) | ops.Merge(axis=at) | ops.Concat(axis=at):
            return at >= axis
        case ops.Transpose(order=order):
            return order[:axis] == tuple(range(axis))
        case _ if isinstance(op, LEADING):
            return (
                moving[0] and not any(moving[1:]) and args[0] is not None and args[0].type.rank > _tail(op) + axis - 1
            )
    if not isinstance(op, ELEMENTWISE):
        return False
    rank = max(a.type.rank for a, _ in given)
    return all(a.type.rank == rank for a, m in given if m)


def _tail(op: Op) -> int:
    """How many axes of the first operand are not leading ones."""
    return 0 if isinstance(op, ops.Embedding | ops.OneHot) else 1


def lift(b: Builder, op: Op, args: Sequence[Value | None], moving: Sequence[bool], axis: int, length: Dim) -> Value:
    """The result of `op` for all rows; operands that move have their rows along `axis` already."""
    assert not isinstance(op, ops.Scan)
    if isinstance(op, ops.Concat):
        rows = [a if m else _repeated(b, a, axis, length) for a, m in zip(args, moving, strict=True) if a]
        return b.one(replace(op, axis=op.axis + 1), *rows)
    if isinstance(op, ops.Transpose):
        order = (*range(axis + 1), *(n + 1 for n in op.order[axis:]))
        return b.one(ops.Transpose(order), *args)
    if isinstance(op, (ops.Insert, *ALONG)):
        return b.one(_shifted(op), *args)
    if isinstance(op, LEADING):
        return b.one(op, *args)
    rank = max(a.type.rank - m for a, m in zip(args, moving, strict=True) if a)
    fitted = [a if m or a is None else _beside(b, a, rank, axis) for a, m in zip(args, moving, strict=True)]
    return b.one(op, *fitted)


def _shifted(op: Any) -> Op:
    made: Op = replace(op, axis=op.axis + 1)
    return made


def _beside(b: Builder, fixed: Value, rank: int, axis: int) -> Value:
    """A fixed operand of an elementwise op, with an axis of 1 where the rows of the others are."""
    at = axis - (rank - fixed.type.rank)
    return b.one(ops.Insert(at), fixed) if at > 0 else fixed


def _repeated(b: Builder, fixed: Value, axis: int, length: Dim) -> Value:
    return b.one(ops.Expand(axis, length), b.one(ops.Insert(axis), fixed))

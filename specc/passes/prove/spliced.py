"""Rows that are put together or taken apart along an axis that grows: which of them keep
their times.

    concat(memory, x)     row `t` of `x` is its row `t`: the head grew
    pad(x, before=2)      and so it did here
    concat(x, memory)     the rows of `memory` move with every new row
    x[s:] of `h + g`      row `t` stays row `t`, as long as `s <= h`
    x[a:b] of `h + g`     reads rows of the head alone where `b <= h`: nothing that moves
    x[h:h+1] of `h + g`   the first row of all: no row of time 0 and above is before it
"""

from typing import TypeAlias

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node
from specc.ir.heads import Clock
from specc.ir.interval import EMPTY, PAST, SAME, Interval
from specc.ir.link import Link

Reads: TypeAlias = tuple[int | None, Interval]
"""The axis of the result that rows are read along, and how far."""

HEAD: Reads = (None, EMPTY)
"""Of what moves no row is read."""

FIRST: Reads = (None, PAST)
"""The first row is read, which is behind no other: it may meet all of them."""


def spliced(node: Node, link: Link, clock: Clock) -> Reads | None:
    """How the rows of a time axis are read by an op that joins or picks rows by number;
    None where it is no such op, or its rows are no longer those of the axis.
    """
    operand = node.args[link.operand]
    if operand is None:
        return None
    length = operand.type.shape[link.operand_axis]
    head = clock.head(length)
    match node.op:
        case _ if head is None:
            return None
        case ops.Concat(axis=axis) if axis == link.operand_axis:
            behind = node.args[link.operand + 1 :]
            empty = all(a and a.type.shape[axis] == 0 for a in behind)
            return (axis, SAME) if empty else None
        case ops.Pad(axis=axis, after=after, mode="constant") if (
            axis == link.operand_axis
        ):
            return (axis, SAME) if after == 0 else None
        case ops.Slice(axis=axis) | ops.Index(axis=axis) if axis == link.operand_axis:
            return _picked(node, length, head, clock)
    return None


def _picked(node: Node, length: Dim, head: Dim, clock: Clock) -> Reads | None:
    """What is read of rows that are picked by number, of `length` behind a head."""
    if from_head(node, clock):
        return HEAD
    if is_first(node, clock):
        return FIRST
    match node.op:
        case ops.Slice(axis=axis, start=start, stop=stop) if stop == length:
            return (axis, SAME) if clock.sure(head - start) else None
    return None


def is_first(node: Node, clock: Clock) -> bool:
    """Whether a node picks the first of the rows that grow, of what has no other time axis."""
    x = node.first
    match node.op:
        case ops.Slice(axis=axis, start=at, stop=stop) if stop == at + 1:
            pass
        case ops.Index(axis=axis, at=at):
            pass
        case _:
            return False
    if x is None or clock.head(x.type.shape[axis]) != at:
        return False
    return sum(clock.head(d) is not None for d in x.type.shape) == 1


def from_head(node: Node, clock: Clock) -> bool:
    """Whether a node picks rows of a head out of what grows."""
    x = node.first
    match node.op:
        case ops.Slice(axis=axis, stop=end):
            pass
        case ops.Index(axis=axis, at=at):
            end = at + 1
        case _:
            return False
    head = clock.head(x.type.shape[axis]) if x is not None else None
    return head is not None and clock.sure(head - end)

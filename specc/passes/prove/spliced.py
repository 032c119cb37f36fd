"""Rows that are put together or taken apart along an axis that grows: which of them keep
their times.

    concat(memory, x)     row `t` of `x` is its row `t`: the head grew
    pad(x, before=2)      and so it did here
    concat(x, memory)     the rows of `memory` move with every new row
    x[s:] of `h + g`      row `t` stays row `t`, as long as `s <= h`
    x[a:b] of `h + g`     reads rows of the head alone where `b <= h`: nothing that moves
"""

from typing import TypeAlias

from specc.ir import ops
from specc.ir.graph import Node
from specc.ir.heads import Clock
from specc.ir.interval import EMPTY, SAME, Interval
from specc.ir.link import Link

Reads: TypeAlias = tuple[int | None, Interval]
"""The axis of the result that rows are read along, and how far."""

HEAD: Reads = (None, EMPTY)
"""Of what moves no row is read."""


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
        case ops.Slice(axis=axis, start=start, stop=stop) if axis == link.operand_axis:
            if clock.sure(head - stop):
                return HEAD
            whole = stop == length and clock.sure(head - start)
            return (axis, SAME) if whole else None
        case ops.Index(axis=axis, at=at) if axis == link.operand_axis:
            return HEAD if clock.sure(head - at - 1) else None
    return None


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

"""Rows that are made of several: windows that move by a stride along an axis that grows.

A window that moves by 3 makes a row of the chunks of 3 rows that it ends in. Row `t`
stands at the *last* row of its chunk, `3 t + 2`: when the chunk is there, so is the row.

    rows that come in     0  1  2 | 3  4  5 | 6  7  8
    rows behind           0       | 1       | 2
    row 1 may read        x  x  x   x  x  x

What is read is counted from there, so that a row that reads none behind its chunk has an
interval that begins at 0 or above, as everywhere.
"""

from specc.ir.graph import Node
from specc.ir.heads import Clock
from specc.ir.interval import ALL
from specc.ir.link import Link
from specc.passes.prove.spliced import Reads


def ahead_of(node: Node, link: Link, clock: Clock) -> int | None:
    """How many rows an operand has before those that row 0 of the result stands for;
    None where its rows do not become whole chunks of the result's.
    """
    operand = node.args[link.operand]
    if operand is None or link.result_axis is None:
        return None
    types = node.op.infer(*(a.type if a else None for a in node.args))
    made = clock.track(types[link.result].shape[link.result_axis])
    read = clock.track(operand.type.shape[link.operand_axis])
    if made is None or read is None or read.rate != made.rate * link.stride:
        return None
    # Rows that a window reads before it begins to make some are not of this kind.
    return read.head.number if made.head == 0 else None


def strided(node: Node, link: Link, clock: Clock) -> Reads:
    """The result's axis, and which rows its row `t` reads, counted from the last row of
    its chunk; everything where its rows are no chunks.
    """
    head = ahead_of(node, link, clock)
    if head is None:
        return None, ALL
    return link.result_axis, link.reach.moved(head + link.stride - 1)

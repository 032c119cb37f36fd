"""Row numbers that count padding: how far they may be used before a result changes with the padding.

A row number grows by one with every padded row before it. Differences of two are the same however much padding
there is; so are weights of a softmax over rows whose scores all grow by the same amount, as ALiBi's do when it
is written as `slope * j`. Everything else that a row number goes into shows how much padding there was.
"""

from collections.abc import Sequence
from typing import Literal

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node

Count = Literal["", "even", "uneven"]
"""What padding adds to a value: nothing; the same at all rows of the padded axis; or not the same."""


def either(one: Count, other: Count) -> Count:
    """What padding adds to a value that is one or the other, or the sum of both."""
    if not one or not other:
        return one or other
    return "even" if one == other == "even" else "uneven"


def count_of(node: Node, counts: Sequence[Count], length: Dim) -> Count:
    """What padding adds to a result, from what it adds to the operands."""
    both = counts[0] and counts[1] if len(counts) > 1 else ""
    match node.op:
        case ops.Arith(fn="sub"):
            return "" if both else counts[0] or counts[1]
        case ops.Arith(fn="add"):
            return either(counts[0], counts[1])
        case ops.Arith(fn="mul"):
            factor = node.args[0 if counts[1] else 1]
            varies = factor is not None and length in factor.type.shape
            return "uneven" if both or (any(counts) and varies) else counts[0] or counts[1]
        case ops.Arith() | ops.Where():
            return "uneven" if any(counts) else ""
        case ops.Cast() | ops.Pointwise(fn="neg"):
            return counts[0]
    return next((c for c in counts if c), "") if node.op.view else ""


def shows(node: Node, counts: Sequence[Count], length: Dim) -> bool:
    """Whether an op that is given row numbers uses them for more than differences."""
    if not any(counts):
        return False
    match node.op:
        case ops.Compare():
            return not all(counts)
        case ops.RopeAngles() | ops.Extent() | ops.Cast() | ops.Where() | ops.Pointwise(fn="neg"):
            return False
        case ops.Arith(fn="add" | "sub" | "mul"):
            return False
        case ops.Attend() | ops.MaskedSoftmax() | ops.Hard() | ops.Softmax():
            return not _moves_all_alike(node, counts, length)
    return not node.op.view


def _moves_all_alike(node: Node, counts: Sequence[Count], length: Dim) -> bool:
    """Whether padding adds the same to every score of a softmax over the padded axis, and to nothing else."""
    scores, keys, fixed = 0, node.args[0], None
    match node.op:
        case ops.Softmax(axis=axis):
            pass
        case ops.Attend():
            scores, keys, axis = 4, node.args[1], 2
            fixed = node.args[5] if len(node.args) > 5 else None  # a sink's score stays where it is
        case _:
            axis = -1
    alone = not any(c for n, c in enumerate(counts) if n != scores)
    over = keys is not None and keys.type.shape[axis] == length
    return alone and over and fixed is None and counts[scores] == "even"

"""Windows, slices, delays and added positions along a padded axis.

An axis holds positions that are always valid, then those of a padded sequence, then more that
are always valid. A window across their borders gives the same result in a padded batch as alone
if padded positions and those added next to them hold the same constant (`PaddingFacts.fill`):
padding then only makes a constant run longer.
"""

from collections.abc import Iterator
from math import inf, nan

from specc.analysis.grid_constants import find_uniform_value
from specc.analysis.padded_link import PaddedRead
from specc.ir import ops
from specc.ir.graph import Node
from specc.ir.interval import SAME_POSITION


def can_keep_padding_facts(reading: PaddedRead) -> bool:
    """Return True if the facts of padded positions of the operand hold for those of the result."""
    if reading.link.kind == "same":
        return True
    match reading.node.op:
        case ops.KeepRows():
            return True
        case ops.Stride():
            return is_slice_to_end(reading.node)
        case ops.Slice():
            # What is dropped at the side of padding is padding there, and
            # otherwise positions that exist.
            return all(over <= 0 for over in _dropped_positions(reading))
        case ops.Pad() | ops.Concat():
            return reading.link.kind == "strided"
    return False


def is_window_unaffected(reading: PaddedRead) -> bool:
    """Return True if an op with a result of the same length gives the same values with padding,
    including those at the ends of the axis.
    """
    if reading.link.reach == SAME_POSITION:
        return True
    match reading.node.op:
        case ops.Delay(first=first):
            # Before the first row that exists a delay reads padding or `first`,
            # which must not differ.
            return reading.fill == float(first)
        case ops.CumSum():
            return reading.zero
    return not reading.apart and _is_same_at_ends(reading)


def _is_same_at_ends(reading: PaddedRead) -> bool:
    """Return True if a window over padded positions gives the same as at the end of the axis."""
    match reading.node.op:
        case ops.Conv() | ops.AveragePool(counted=True):
            return reading.fill == 0
        case ops.MaxPool(dilation=dilation) if reading.apart:
            return reading.fill == -inf and max(dilation) == 1
        case ops.MaxPool(dilation=dilation) if max(dilation) == 1:
            # A window of a row that exists holds one that does.
            return reading.link.operand_axis in reading.read.floor
    return False


def is_shift_unaffected(reading: PaddedRead) -> bool:
    """Return True if a window, slice or pad whose result has another length is unaffected by
    padding.
    """
    op = reading.node.op
    if reading.shifted or reading.into_apart:
        return False
    if isinstance(op, ops.Slice):
        return reading.fill is not None or _is_one_sided_slice(reading)
    if reading.apart and reading.fill is None:
        return False
    match op:
        case ops.KeepRows():
            return not reading.apart or reading.fill == 0
        case ops.Stride(start=start):
            # The first rows are others where padding stands before them.
            first = start == 0 or not reading.may_be_left
            return is_slice_to_end(reading.node) and first
        case ops.Conv() | ops.MaxPool() | ops.AveragePool():
            return not _is_reading_ends(reading, op) or _is_same_at_ends(reading)
    return isinstance(op, ops.Pad | ops.Concat) and _is_fill_matching(reading)


def _is_one_sided_slice(reading: PaddedRead) -> bool:
    """Return True if a slice keeps no always-valid position on the far side of the padding."""
    dropped = _dropped_positions(reading, inf)
    return not reading.apart or all(over >= 0 for over in dropped)


def _is_reading_ends(reading: PaddedRead, op: ops.Sliding) -> bool:
    """Return True if windows reach over an end of the axis that may be padded."""
    n = reading.link.operand_axis - len(op.kernel)
    over = reading.may_be_right and op.ends[n] > 0
    return over or (reading.may_be_left and op.before[n] > 0)


def _is_fill_matching(reading: PaddedRead) -> bool:
    """Return True if positions added next to padding hold the same constant as the padding."""
    op, place = reading.node.op, reading.link.operand
    added: list[float | None] = []
    if isinstance(op, ops.Pad):
        ends = ((reading.may_be_left, op.before), (reading.may_be_right, op.after))
        added += [float(op.value) for may_be, count in ends if may_be and count != 0]
    else:
        before, after = reading.node.args[:place], reading.node.args[place + 1 :]
        parts = before * reading.may_be_left + after * reading.may_be_right
        added += [find_uniform_value(a) for a in parts if a]
    return all(n is not None and n == reading.fill for n in added)


def _dropped_positions(reading: PaddedRead, otherwise: float = 0) -> Iterator[float]:
    """Yield for each side of padding how many positions more a slice drops there
    than always exist; `otherwise` for a side without padding.
    """
    op = reading.node.op
    assert isinstance(op, ops.Slice), "only a slice drops positions"
    dropped = (op.start, reading.read_length - op.stop)
    for n, side in enumerate(("left", "right")):
        here, always = dropped[n].number, reading.ends[n]
        if reading.side not in (side, "any"):
            yield otherwise
        else:
            yield nan if here is None or always is None else here - always


def is_slice_to_end(node: Node) -> bool:
    """Return True if a strided slice goes to the end of the axis: then its positions correspond to
    those of windows with that stride.
    """
    op, x = node.op, node.first
    return isinstance(op, ops.Stride) and x is not None and op.stop == x.type.shape[op.axis]

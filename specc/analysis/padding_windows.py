"""Prove that padded positions do not affect windows (convolution, pooling), slices and `pad`.

An axis consists of always-valid positions, the positions of a padded sequence, and further
always-valid positions. A window across their borders has the same result with and without padding
if padded positions and the positions added next to them hold the same constant
(`PaddingFacts.fill_constants`).
"""

from collections.abc import Iterator
from math import inf, nan

from specc.analysis.padding_facts import PaddedRead
from specc.analysis.value_ranges import find_uniform_value
from specc.ir import ops
from specc.ir.graph import Node
from specc.ir.types import SAME_POSITION


def can_keep_padding_facts(read: PaddedRead) -> bool:
    """Return True if properties at padding hold for the result's padded positions, too."""
    if read.dependence.kind == "same":
        return True
    match read.op:
        case ops.DownsamplePaddingMask() | ops.Flip() | ops.Roll():
            return True
        case ops.StridedSlice():
            return is_slice_to_end(read.node)
        case ops.Slice():
            # On the padded side, the slice drops padding, or valid positions of a sequence without
            # padding.
            return all(excess <= 0 for excess in _iterate_dropped_counts(read))
        case ops.Pad() | ops.Concat():
            return read.dependence.kind == "strided"
        case ops.Conv() | ops.AveragePool() | ops.CumSum() | ops.Delay():
            return read.dependence.kind == "window" and _is_reading_only_padding(read)
    return False


def find_kept_sides(read: PaddedRead) -> frozenset[str]:
    """Return the sides, `left` and `right`, on which a slice drops no more than always-valid
    positions, so that padding on this side stays padding.
    """
    dropped = zip(("left", "right"), _iterate_dropped_counts(read), strict=True)
    return frozenset(side for side, excess in dropped if excess <= 0)


def _is_reading_only_padding(read: PaddedRead) -> bool:
    """Return True if padded positions of a window's result depend only on padded positions."""
    is_sorted = read.axis in read.read_facts.sorted_axes  # then padded positions come last
    is_first = read.is_padding_first and not is_sorted
    reads_only_before = is_first and read.dependence.min_offset >= 0
    reads_only_after = read.is_padding_last and read.dependence.max_offset <= 0
    return (reads_only_before or reads_only_after) and not read.is_merged


def is_window_unaffected(read: PaddedRead) -> bool:
    """Return True if padding does not affect a window op that preserves the size of the axis,
    including its results at both ends of the axis.
    """
    if read.dependence.offsets == SAME_POSITION:
        return True
    match read.op:
        case ops.Delay(fill_value=fill_value):
            # Before the first valid position, a delay reads padding or its `first` value, so both
            # must be equal.
            return read.fill_constant == float(fill_value)
        case ops.CumSum():
            return read.is_zero
    return not read.has_interior_padding and _is_same_at_ends(read)


def _is_same_at_ends(read: PaddedRead) -> bool:
    """Return True if a window over padding has the result of a window beyond the end."""
    match read.op:
        case ops.Conv() | ops.ConvTranspose() | ops.AveragePool(count_include_pad=True):
            return read.fill_constant == 0
        case ops.MaxPool(dilation=dilation) if read.has_interior_padding:
            return read.fill_constant == -inf and max(dilation) == 1
        case ops.MaxPool(dilation=dilation) if max(dilation) == 1:
            # A window that produces a valid output position contains a valid input position.
            return read.axis in read.read_facts.minimum_pad_axes
    return False


def is_shift_unaffected(read: PaddedRead) -> bool:
    """Return True if padding does not affect an op that changes the size of the axis."""
    op = read.op
    if read.is_shifted or read.has_interior_result_padding:
        return False
    if isinstance(op, ops.Slice):
        return read.fill_constant is not None or _is_one_sided_slice(read)
    if read.has_interior_padding and read.fill_constant is None:
        return False
    match op:
        case ops.DownsamplePaddingMask():
            return not read.has_interior_padding or read.fill_constant == 0
        case ops.StridedSlice(start=start):
            # Left padding changes which positions a strided slice selects.
            is_first = start.number in range(read.dependence.stride)
            return is_slice_to_end(read.node) and (is_first or not read.may_be_left_padded)
        case ops.Conv() | ops.ConvTranspose() | ops.MaxPool() | ops.AveragePool():
            return not _is_reading_ends(read, op) or _is_same_at_ends(read)
    return isinstance(op, ops.Pad | ops.Concat) and _is_fill_matching(read)


def _is_one_sided_slice(read: PaddedRead) -> bool:
    """Return True if a slice keeps no always-valid position after the padding."""
    dropped = _iterate_dropped_counts(read, inf)
    return not read.has_interior_padding or all(excess >= 0 for excess in dropped)


def _is_reading_ends(read: PaddedRead, op: ops.SlidingWindowOp | ops.ConvTranspose) -> bool:
    """Return True if windows extend beyond an end of the axis that may be padded."""
    if isinstance(op, ops.ConvTranspose):
        return _is_transposed_conv_reading_ends(read, op)
    dim = read.axis - len(op.kernel)
    reads_right_end = read.may_be_right_padded and op.end_padding[dim] > 0
    return reads_right_end or (read.may_be_left_padded and op.padding_before[dim] > 0)


def _is_transposed_conv_reading_ends(read: PaddedRead, op: ops.ConvTranspose) -> bool:
    """Return True if positions of a transposed convolution, without its padding, also read
    positions beyond an end of the axis that may be padded.
    """
    dim = read.axis - len(op.kernel)
    span = op.dilation[dim] * (op.kernel[dim] - 1)
    reads_right_end = read.may_be_right_padded and span - op.padding_after[dim] >= op.stride[dim]
    return reads_right_end or (
        read.may_be_left_padded and span - op.padding_before[dim] >= op.stride[dim]
    )


def _is_fill_matching(read: PaddedRead) -> bool:
    """Return True if positions added next to padding hold the same constant as the padding."""
    op, operand = read.op, read.dependence.operand
    added_constants: list[float | None] = []
    if isinstance(op, ops.Pad) and op.mode != "constant":
        # Copies at the end of an axis are reported where an op reads them (`find_rolled_axes`).
        return op.mode == "edge" or not is_copying_padding(read, op)
    if isinstance(op, ops.Pad):
        left_end = (read.may_be_left_padded, op.padding_before)
        ends = (left_end, (read.may_be_right_padded, op.padding_after))
        added_constants += [float(op.value) for is_padded, n in ends if is_padded and n != 0]
    else:
        before, after = read.node.args[:operand], read.node.args[operand + 1 :]
        parts = before * read.may_be_left_padded + after * read.may_be_right_padded
        added_constants += [find_uniform_value(a) for a in parts if a]
    return all(n is not None and n == read.fill_constant for n in added_constants)


def is_copying_padding(read: PaddedRead, op: ops.Pad) -> bool:
    """Return True if `pad` repeats positions at an end of the axis that may be padded."""
    copies_first = read.may_be_left_padded and op.padding_before != 0
    return copies_first or (read.may_be_right_padded and op.padding_after != 0)


def _iterate_dropped_counts(read: PaddedRead, default: float = 0) -> Iterator[float]:
    """For each padded side, yield the number of dropped positions minus the number of always-valid
    positions on this side; yield `default` for a side without padding.
    """
    op = read.op
    assert isinstance(op, ops.Slice), "only a slice drops positions"
    dropped = (op.start, read.read_length - op.stop)
    for n, side in enumerate(("left", "right")):
        dropped_count, valid_count = dropped[n].number, read.valid_end_counts[n]
        if read.padding_side not in (side, "any"):
            yield default
        else:
            yield (
                nan if dropped_count is None or valid_count is None else dropped_count - valid_count
            )


def is_slice_to_end(node: Node) -> bool:
    """Return True if a strided slice extends to the end of the axis; its positions then correspond
    to the positions of windows with this stride.
    """
    op, x = node.op, node.first_operand
    return isinstance(op, ops.StridedSlice) and x is not None and op.stop == x.shape[op.axis]

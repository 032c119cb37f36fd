"""Prove that an op is safe, i.e. that padded positions do not affect the op.

An op is safe if its operands hold neutral values at padded positions: zeros, or mask fill values
for a maximum or softmax. An op is also safe if a mask excludes padded positions, or if padded
positions are outside the receptive field of the op. `padding_order_and_windows` contains the proofs
for windows and slices.
"""

from math import inf

from specc.analysis.padding_facts import PaddedRead
from specc.analysis.padding_loops import is_loop_state_padding_invariant
from specc.analysis.padding_order_and_windows import (
    is_gather_in_sort_order,
    is_last_sorted_position_read,
    is_padding_sorted_first,
    is_padding_sorted_last,
    is_resize_padding_invariant,
    is_window_padding_invariant,
)
from specc.analysis.padding_zeros import has_recurrent_padding_mask, is_padding_ignored_by_softmax
from specc.analysis.time_dataflow import resolve_time_dependence
from specc.analysis.value_ranges import find_value_range
from specc.ir import ops
from specc.ir.types import FULL_INTERVAL, Interval


def is_unaffected_by_padding(read: PaddedRead) -> bool:
    """Return True if valid positions do not depend on padded positions through `read`."""
    is_sorted = not read.is_padding_last and read.axis in read.read_facts.sorted_axes
    if _is_state_unaffected(read, is_sorted=is_sorted):
        return True
    if read.is_merged and read.dependence.kind not in ("same", "extent"):
        return _is_merged_read_neutral(read)
    if is_sorted:
        return _is_sort_order_safe(read)
    match read.dependence.kind:
        case "same" | "extent":
            # An op that is elementwise along the axis does not move padded positions. An op that
            # depends only on the axis size reads no position.
            return True
        case "newest" | "window" if _is_loop_skipping_padding(read) or _is_padding_outside_reads(
            read
        ):
            return True
        case "window":
            return is_window_padding_invariant(read)
        case "newest":
            return _is_last_rank(read)
        case "strided":
            return is_resize_padding_invariant(read)
        case "band":
            return _is_masked_at_padding(read)
    return _is_neutral_full_read(read) or _is_padding_after_reads(read)


def _is_last_rank(read: PaddedRead) -> bool:
    """Return True if an op reads only the last position after a sort, which is a valid position."""
    return is_last_sorted_position_read(read.node, read.read_facts.rolled_axes.get(read.axis))


def _is_merged_read_neutral(read: PaddedRead) -> bool:
    """Return True if padding between valid positions does not affect an op, because the op does not
    depend on the distances between valid positions.
    """
    if isinstance(read.op, ops.CumSum):
        return read.is_padding_zero
    if read.dependence.kind == "band":
        has_all_distances = resolve_time_dependence(read.node, read.dependence)[1] == FULL_INTERVAL
        return has_all_distances and _is_masked_at_padding(read)
    summing = ops.Reduce | ops.Softmax | ops.Einsum | ops.MatMul
    is_order_independent = isinstance(read.op, summing) or (
        isinstance(read.op, ops.TopK) and read.dependence.result == 0
    )
    return is_order_independent and _is_neutral_full_read(read)


def _is_padding_outside_reads(read: PaddedRead) -> bool:
    """Return True if an op reads no padded position. With left padding, the op must read only the
    current and later positions. With right padding, it must read only the current and earlier
    positions.
    """
    dependence = read.dependence
    is_left = read.padding_side == "left" and dependence.max_offset == 0
    return is_left if dependence.kind == "newest" else _is_padding_outside(read, dependence.offsets)


def _is_padding_outside(read: PaddedRead, interval: Interval) -> bool:
    """Return True if `interval` contains no offset from a valid position to a padded position."""
    after_reads, before_reads = interval.low >= 0, interval.high <= 0
    return (read.is_padding_last and after_reads) or (read.is_padding_first and before_reads)


def _is_sort_order_safe(read: PaddedRead) -> bool:
    """Return True if padding does not affect an op along a sorted axis with padding last."""
    if read.dependence.kind in ("same", "extent") or isinstance(read.op, ops.CumSum):
        return True
    match read.op:
        case ops.Slice(start=start, stop=stop) | ops.Index(start=start, stop=stop):
            # the op reads valid elements, or the constant that padded positions hold
            return start.number is not None and stop.number is not None
    return isinstance(read.op, ops.Reduce | ops.Sort) and _is_neutral_full_read(read)


def _is_padding_after_reads(read: PaddedRead) -> bool:
    """Return True if right padding comes after every position that is read. For example, a valid
    query of causal self-attention reads no later keys.
    """
    result_axis, interval = resolve_time_dependence(read.node, read.dependence)
    # a gather selects positions by index
    if not read.is_padding_last or result_axis is None or isinstance(read.op, ops.Gather):
        return False
    if isinstance(read.op, ops.Einsum | ops.MatMul) and not all(
        r.is_finite for r in read.operand_facts
    ):
        return False
    is_axis_removed = isinstance(read.op, ops.Reduce | ops.ArgMax) and result_axis >= read.axis
    shape = read.node.get_operand(read.dependence.operand).shape
    return interval.low >= 0 and shape[result_axis + is_axis_removed] == read.read_length


def _is_loop_skipping_padding(read: PaddedRead) -> bool:
    """Return True if a loop skips padded positions because its mask implies the padding mask."""
    op = read.op
    return isinstance(op, ops.Scan) and op.has_mask and 1 in read.operand_facts[0].zero_pad_axes


def _is_state_unaffected(read: PaddedRead, *, is_sorted: bool) -> bool:
    """Return True if padding does not change the state of a recurrent layer or loop. If the values
    are sorted (`is_sorted`), their positions do not match those of the mask.
    """
    skipped = has_recurrent_padding_mask(read.node, read.operand_facts)
    is_kept = skipped or _is_state_zero(read) or is_loop_state_padding_invariant(read)
    return is_kept and not is_sorted


def _is_state_zero(read: PaddedRead) -> bool:
    """Return True if the state of a layer without bias remains zero over leading padding."""
    op = read.op
    if (
        not isinstance(op, ops.RecurrentLayer)
        or not read.is_padding_zero
        or read.has_middle_padding
    ):
        return False
    nonzero_operands = [*op.initial_states, op.input_bias, op.recurrent_bias]
    keeps_zero = read.op.get_attributes().get("activation") != "sigmoid"
    is_before_valid = read.padding_side == ("right" if op.reverse else "left")
    is_final_state = read.dependence.result > 0  # the final state depends on padding on both sides
    return (
        keeps_zero
        and (is_before_valid or not is_final_state)
        and not any(o(read.node) for o in nonzero_operands)
    )


def _is_masked_at_padding(read: PaddedRead) -> bool:
    """Return True if the mask is false, or attention weights or values are zero, at padded keys."""
    _, interval = resolve_time_dependence(read.node, read.dependence)
    # Values at masked keys must be finite, because zero times NaN is NaN. Normalizers ignore scores
    # where the mask is false.
    is_sound = isinstance(read.op, ops.MaskedWeights) or read.is_padding_finite
    is_outside = _is_padding_outside(read, interval) and _have_same_positions(read)
    masks = read.dependence.masks
    if is_outside or any(m.key_axis in read.operand_facts[m.operand].zero_pad_axes for m in masks):
        return is_sound
    key_axis = read.node.get_operand().rank - 1
    if isinstance(read.op, ops.MaskedSoftmax) and (
        read.operand_facts[0].constants.get(key_axis) == -inf
    ):
        return True  # the scores are mask fill values at padded keys
    if isinstance(read.op, ops.WeightedSum | ops.MatMul | ops.Einsum):
        return _is_zero_product(read)
    return False


def _have_same_positions(read: PaddedRead) -> bool:
    """Return True if queries and keys are positions of one axis. Keys before a valid query are then
    valid.
    """
    result_axis = read.dependence.result_axis
    result_type = read.node.infer_types()[read.dependence.result]
    return result_axis is not None and result_type.shape[result_axis] == read.read_length


def _is_zero_product(read: PaddedRead) -> bool:
    """Return True if one factor of a contraction is zero at padded positions and the others are
    finite.
    """
    zero_operands = {
        o
        for o, axes in enumerate(_find_summed_axes(read))
        if read.operand_facts[o].zero_pad_axes & axes
    }
    other_facts = [r for o, r in enumerate(read.operand_facts) if o not in zero_operands]
    return bool(zero_operands) and all(r.is_finite for r in other_facts)


def _find_summed_axes(read: PaddedRead) -> list[set[int]]:
    """Return the axes of each operand over which a contraction sums."""
    match read.op:
        case ops.WeightedSum() | ops.MatMul():
            # A MatMul of [… m k] and [… k n] sums over the last axis of the first operand and the
            # second-to-last axis of the second operand.
            left, right = (a.rank for a in read.node.operands)
            return [{left - 1}, {right - 2}]
        case ops.Einsum(equation):
            terms = [labels.split() for labels in equation.split("->")[0].split(",")]
            label = terms[read.dependence.operand][read.axis]
            return [
                {n for n, axis_label in enumerate(labels) if axis_label == label}
                for labels in terms
            ]
    return []


def _is_neutral_reduction(read: PaddedRead, function_name: str) -> bool:
    """Return True if the values at padded positions have no effect on a reduction."""
    if read.axis in read.read_facts.repeated_axes and function_name in ("max", "min", "any", "all"):
        return True
    match function_name:
        case "sum" | "any":
            return read.is_padding_zero
        case "max":
            return read.read_facts.is_ignored_by_max(read.axis) or _is_padding_constant_extreme(
                read, -inf
            )
        case "min":
            return _is_padding_constant_extreme(read, inf)
        case "all":
            return read.padding_constant == 1
    return False


def _is_padding_constant_extreme(read: PaddedRead, sign: float) -> bool:
    """Return True if the constant at padded positions is a lower bound (negative `sign`) or an
    upper bound (positive `sign`) of all values of the operand.
    """
    minimum, maximum = find_value_range(read.node.args[read.dependence.operand])
    constant, axis = read.padding_constant, read.axis
    if constant is None or axis in (
        read.read_facts.minimum_pad_axes if sign < 0 else read.read_facts.maximum_pad_axes
    ):
        return constant is not None
    return constant <= minimum if sign < 0 else constant >= maximum


def _is_neutral_full_read(read: PaddedRead) -> bool:
    """Return True if padding does not change an op that reads all positions of the axis."""
    facts, axis = read.read_facts, read.axis
    match read.op:
        case ops.Reduce(function_name):
            return _is_neutral_reduction(read, function_name)
        case ops.Softmax():
            # If no key is visible, all scores are mask fill values and the softmax is 1/n, where n
            # includes padding.
            return is_padding_ignored_by_softmax(read.node, facts, axis)
        case ops.ArgMax():
            # With right padding, the first of several equal elements is valid.
            if read.is_padding_last:
                return _is_neutral_reduction(read, "max")
            return facts.is_ignored_by_max(axis) and axis in facts.finite_pad_axes
        case ops.Gather():
            return read.operand_facts[1].is_valid_index or is_gather_in_sort_order(
                read.node, read.operand_facts
            )
        case ops.Einsum() | ops.MatMul():
            return _is_zero_product(read)
    return _is_neutral_move(read)


def _is_sort_neutral(read: PaddedRead) -> bool:
    """Return True if padding does not affect the result of a sort. This is the case if padding is
    sorted last, or if padding is sorted first and the result contains values instead of indices.
    """
    if is_padding_sorted_last(read.node, read.read_facts):
        return True
    return read.dependence.result == 0 and is_padding_sorted_first(read.node, read.read_facts)


def _is_fill_before_fixed_end(read: PaddedRead, op: ops.Pad) -> bool:
    """Return True if `pad` to a fixed length appends the constant that padded positions hold."""
    lengths = (op.padding_before, read.node.infer_types()[0].shape[op.axis])
    is_fixed = op.mode == "constant" and all(n.number is not None for n in lengths)
    return is_fixed and read.is_padding_last and read.fill_constant == float(op.value)


def _is_neutral_move(read: PaddedRead) -> bool:
    """Return True if padding does not change an op that moves or selects positions."""
    facts, axis = read.read_facts, read.axis
    match read.op:
        case ops.Sort(sort_axis):
            return sort_axis == axis and _is_sort_neutral(read)
        case ops.TopK(k=k, largest=largest):
            # If fewer valid positions exist than are selected, the remaining selected positions
            # hold the padding constant. With right padding, their indices follow the valid indices.
            is_known = read.dependence.result == 0 or read.is_padding_last
            lowest = -inf if largest else inf
            return k.number is not None and is_known and _is_padding_constant_extreme(read, lowest)
        case ops.Pad():
            return _is_fill_before_fixed_end(read, read.op)
        case ops.Flip() | ops.Roll():
            is_only_padded = read.valid_end_counts == (0, 0) and not read.is_merged
            return is_only_padded and axis not in facts.sorted_axes
        case ops.Index(index=index):
            # With right padding, position 0 is valid.
            is_first = read.padding_side == "right" and index.number == 0
            return is_first or _is_last_rank(read)
    return False

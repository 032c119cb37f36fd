"""Prove that an op is safe, i.e. that padded positions do not affect the op.

An op is safe if its operands hold neutral values at padded positions: zeros, or masked fill values
for a maximum or softmax. An op is also safe if a mask excludes padded positions, or if padded
positions are outside the receptive field of the op. `padding_order_and_windows` contains the proofs
for windows and slices.
"""

from math import inf

from specc.analysis.padding_facts import PaddedUse
from specc.analysis.padding_loops import is_loop_state_padding_invariant
from specc.analysis.padding_order_and_windows import (
    gathers_by_argsort,
    is_resize_padding_invariant,
    is_window_padding_invariant,
    reads_last_sorted_position,
    sorts_padding_first,
    sorts_padding_last,
)
from specc.analysis.padding_zeros import has_recurrent_padding_mask, is_padding_ignored_by_softmax
from specc.analysis.time_dataflow import resolve_time_dependence
from specc.analysis.value_ranges import find_value_range
from specc.ir import ops
from specc.ir.types import FULL_INTERVAL, Interval


def is_unaffected_by_padding(use: PaddedUse) -> bool:
    """Return True if valid positions do not depend on padded positions through `use`."""
    is_sorted = not use.is_right_padded and use.axis in use.facts.sorted_axes
    if _is_state_unaffected(use, is_sorted=is_sorted):
        return True
    if use.is_merged and use.dependence.kind not in ("same", "extent"):
        return _is_merged_use_neutral(use)
    if is_sorted:
        return _is_sort_order_safe(use)
    match use.dependence.kind:
        case "same" | "extent":
            # An op that is elementwise along the axis does not move padded positions. An op that
            # depends only on the size of the axis reads no position.
            return True
        case "newest" | "window" if _is_loop_skipping_padding(use) or _is_padding_outside_reads(
            use
        ):
            return True
        case "window":
            return is_window_padding_invariant(use)
        case "newest":
            return _is_last_rank(use)
        case "strided":
            return is_resize_padding_invariant(use)
        case "band":
            return _is_masked_at_padding(use)
    return _is_neutral_full_use(use) or _is_padding_after_reads(use)


def _is_last_rank(use: PaddedUse) -> bool:
    """Return True if an op reads only the last position of a sorted axis, and it is valid."""
    return reads_last_sorted_position(use.node, use.facts.rolled_axes.get(use.axis))


def _is_merged_use_neutral(use: PaddedUse) -> bool:
    """Return True if padding between valid positions does not affect an op, because the op does not
    depend on the distances between valid positions.
    """
    if isinstance(use.op, ops.CumSum):
        return use.is_zero_padded
    if use.dependence.kind == "band":
        has_all_distances = resolve_time_dependence(use.node, use.dependence)[1] == FULL_INTERVAL
        return has_all_distances and _is_masked_at_padding(use)
    summing = ops.Reduce | ops.Softmax | ops.Einsum | ops.MatMul
    is_order_independent = isinstance(use.op, summing) or (
        isinstance(use.op, ops.TopK) and use.dependence.result == 0
    )
    return is_order_independent and _is_neutral_full_use(use)


def _is_padding_outside_reads(use: PaddedUse) -> bool:
    """Return True if an op reads no padded positions. With left padding, the op must read only the
    current and later positions. With right padding, the op must read only the current and earlier
    positions.
    """
    dependence = use.dependence
    is_left = use.padding_side == "left" and dependence.max_offset == 0
    return is_left if dependence.kind == "newest" else _is_padding_outside(use, dependence.offsets)


def _is_padding_outside(use: PaddedUse, interval: Interval) -> bool:
    """Return True if `interval` contains no offset from a valid position to a padded position."""
    after_reads, before_reads = interval.low >= 0, interval.high <= 0
    return (use.is_right_padded and after_reads) or (use.is_left_padded and before_reads)


def _is_sort_order_safe(use: PaddedUse) -> bool:
    """Return True if padding does not affect an op along a sorted axis whose padding is last."""
    if use.dependence.kind in ("same", "extent") or isinstance(use.op, ops.CumSum):
        return True
    match use.op:
        case ops.Slice(start=start, stop=stop) | ops.Index(start=start, stop=stop):
            # the op reads valid elements, or the constant that padded positions hold
            return start.number is not None and stop.number is not None
    return isinstance(use.op, ops.Reduce | ops.Sort) and _is_neutral_full_use(use)


def _is_padding_after_reads(use: PaddedUse) -> bool:
    """Return True if right padding comes after every position that is read. For example, a valid
    query of causal self-attention reads no later keys.
    """
    result_axis, interval = resolve_time_dependence(use.node, use.dependence)
    # a gather selects positions by index
    if not use.is_right_padded or result_axis is None or isinstance(use.op, ops.Gather):
        return False
    if isinstance(use.op, ops.Einsum | ops.MatMul) and not all(
        r.is_finite for r in use.operand_facts
    ):
        return False
    is_axis_removed = isinstance(use.op, ops.Reduce | ops.ArgMax) and result_axis >= use.axis
    shape = use.node.get_operand(use.dependence.operand).shape
    return interval.low >= 0 and shape[result_axis + is_axis_removed] == use.axis_size


def _is_loop_skipping_padding(use: PaddedUse) -> bool:
    """Return True if a loop skips padded positions because its mask implies the padding mask."""
    op = use.op
    return isinstance(op, ops.Scan) and op.has_mask and 1 in use.operand_facts[0].zero_pad_axes


def _is_state_unaffected(use: PaddedUse, *, is_sorted: bool) -> bool:
    """Return True if padding does not affect the state of a recurrent layer or of a loop. If the
    values are sorted (`is_sorted`), their positions do not match those of the mask.
    """
    skipped = has_recurrent_padding_mask(use.node, use.operand_facts)
    is_kept = skipped or _is_state_zero(use) or is_loop_state_padding_invariant(use)
    return is_kept and not is_sorted


def _is_state_zero(use: PaddedUse) -> bool:
    """Return True if the state of a bias-free recurrent layer stays zero over leading padding."""
    op = use.op
    if not isinstance(op, ops.RecurrentLayer) or not use.is_zero_padded or use.has_interior_padding:
        return False
    nonzero_operands = [*op.initial_states, op.input_bias, op.recurrent_bias]
    keeps_zero = use.op.get_attributes().get("activation") != "sigmoid"
    is_before_valid = use.padding_side == ("right" if op.reverse else "left")
    is_final_state = use.dependence.result > 0  # padding on both sides affects the final state
    return (
        keeps_zero
        and (is_before_valid or not is_final_state)
        and not any(o(use.node) for o in nonzero_operands)
    )


def _is_masked_at_padding(use: PaddedUse) -> bool:
    """Return True if the mask is false, or attention weights or values are zero, at padded keys."""
    _, interval = resolve_time_dependence(use.node, use.dependence)
    # Values at masked keys must be finite, because zero times NaN is NaN. Normalizers ignore scores
    # where the mask is false.
    is_sound = isinstance(use.op, ops.AttentionNormalizer) or use.is_padding_finite
    is_outside = _is_padding_outside(use, interval) and _have_same_positions(use)
    masks = use.dependence.masks
    if is_outside or any(m.key_axis in use.operand_facts[m.operand].zero_pad_axes for m in masks):
        return is_sound
    key_axis = use.node.get_operand().rank - 1
    if isinstance(use.op, ops.MaskedSoftmax) and (
        use.operand_facts[0].padding_values.get(key_axis) == -inf
    ):
        return True  # the scores are masked fill values at padded keys
    if isinstance(use.op, ops.WeightedSum | ops.MatMul | ops.Einsum):
        return _is_zero_product(use)
    return False


def _have_same_positions(use: PaddedUse) -> bool:
    """Return True if queries and keys are positions of one axis. In this case, all keys before a
    valid query are valid.
    """
    result_axis = use.dependence.result_axis
    result_type = use.node.infer_types()[use.dependence.result]
    return result_axis is not None and result_type.shape[result_axis] == use.axis_size


def _is_zero_product(use: PaddedUse) -> bool:
    """Return True if one factor of a contraction is zero at padded positions and the others are
    finite.
    """
    zero_operands = {
        o
        for o, axes in enumerate(_find_summed_axes(use))
        if use.operand_facts[o].zero_pad_axes & axes
    }
    other_facts = [r for o, r in enumerate(use.operand_facts) if o not in zero_operands]
    return bool(zero_operands) and all(r.is_finite for r in other_facts)


def _find_summed_axes(use: PaddedUse) -> list[set[int]]:
    """Return the axes of each operand that a contraction sums over."""
    match use.op:
        case ops.WeightedSum() | ops.MatMul():
            # A MatMul of [… m k] and [… k n] sums over the last axis of the first operand and the
            # second-to-last axis of the second operand.
            left, right = (a.rank for a in use.node.operands)
            return [{left - 1}, {right - 2}]
        case ops.Einsum(equation):
            terms = [labels.split() for labels in equation.split("->")[0].split(",")]
            label = terms[use.dependence.operand][use.axis]
            return [
                {n for n, axis_label in enumerate(labels) if axis_label == label}
                for labels in terms
            ]
    return []


def _is_neutral_reduction(use: PaddedUse, function_name: str) -> bool:
    """Return True if the values at padded positions have no effect on a reduction."""
    if use.axis in use.facts.repeated_axes and function_name in ("max", "min", "any", "all"):
        return True
    match function_name:
        case "sum" | "any":
            return use.is_zero_padded
        case "max":
            return use.facts.is_ignored_by_max(use.axis) or _is_padding_value_extreme(use, -inf)
        case "min":
            return _is_padding_value_extreme(use, inf)
        case "all":
            return use.padding_value == 1
    return False


def _is_padding_value_extreme(use: PaddedUse, sign: float) -> bool:
    """Return True if the constant at padded positions is a lower bound (negative `sign`) or an
    upper bound (positive `sign`) of all values of the operand.
    """
    minimum, maximum = find_value_range(use.node.args[use.dependence.operand])
    constant, axis = use.padding_value, use.axis
    if constant is None or axis in (
        use.facts.minimum_pad_axes if sign < 0 else use.facts.maximum_pad_axes
    ):
        return constant is not None
    return constant <= minimum if sign < 0 else constant >= maximum


def _is_neutral_full_use(use: PaddedUse) -> bool:
    """Return True if padding does not affect an op that reads all positions of the axis."""
    facts, axis = use.facts, use.axis
    match use.op:
        case ops.Reduce(function_name):
            return _is_neutral_reduction(use, function_name)
        case ops.Softmax():
            # If no key is visible, all scores are masked fill values and the softmax is 1/n, where
            # n includes padding.
            return is_padding_ignored_by_softmax(use.node, facts, axis)
        case ops.ArgMax():
            # With right padding, the first of several equal elements is valid.
            if use.is_right_padded:
                return _is_neutral_reduction(use, "max")
            return facts.is_ignored_by_max(axis) and axis in facts.finite_pad_axes
        case ops.Gather():
            return use.operand_facts[1].is_valid_index or gathers_by_argsort(
                use.node, use.operand_facts
            )
        case ops.Einsum() | ops.MatMul():
            return _is_zero_product(use)
    return _is_neutral_move(use)


def _is_sort_neutral(use: PaddedUse) -> bool:
    """Return True if padding does not affect the result of a sort. This is the case if padding is
    sorted last, or if padding is sorted first and the result contains values instead of indices.
    """
    if sorts_padding_last(use.node, use.facts):
        return True
    return use.dependence.result == 0 and sorts_padding_first(use.node, use.facts)


def _is_fill_before_fixed_end(use: PaddedUse, op: ops.Pad) -> bool:
    """Return True if `pad` to a fixed length appends the constant that padded positions hold."""
    lengths = (op.padding_before, use.node.infer_types()[0].shape[op.axis])
    is_fixed = op.mode == "constant" and all(n.number is not None for n in lengths)
    return is_fixed and use.is_right_padded and use.fill_value == float(op.value)


def _is_neutral_move(use: PaddedUse) -> bool:
    """Return True if padding does not affect an op that moves or selects positions."""
    facts, axis = use.facts, use.axis
    match use.op:
        case ops.Sort(sort_axis):
            return sort_axis == axis and _is_sort_neutral(use)
        case ops.TopK(k=k, largest=largest):
            # If there are fewer valid positions than the op selects, the remaining selected
            # positions hold the padding value. With right padding, their indices follow the valid
            # indices.
            is_known = use.dependence.result == 0 or use.is_right_padded
            lowest = -inf if largest else inf
            return k.number is not None and is_known and _is_padding_value_extreme(use, lowest)
        case ops.Pad():
            return _is_fill_before_fixed_end(use, use.op)
        case ops.Flip() | ops.Roll():
            is_only_padded = use.valid_end_counts == (0, 0) and not use.is_merged
            return is_only_padded and axis not in facts.sorted_axes
        case ops.Index(index=index):
            # With right padding, position 0 is valid.
            is_first = use.padding_side == "right" and index.number == 0
            return is_first or _is_last_rank(use)
    return False

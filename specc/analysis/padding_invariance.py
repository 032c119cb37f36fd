"""Prove that an op is unaffected by padded positions.

The values it reads there must be surely zero, or surely low for a maximum or softmax; or it must
not read them at all, because a mask hides them or because all of them lie on the side that it
does not read.

An axis holds positions that are always valid, then those of a padded sequence, then more that
are always valid. A window across their borders gives the same result in a padded batch as alone
if padded positions and those added next to them hold the same constant (`PaddingFacts.fill`):
padding then only makes a constant run longer.
"""

from collections.abc import Iterator
from math import inf, nan

from specc.analysis.padding_constants import get_number_sorted_last, is_gather_in_sort_order
from specc.analysis.padding_facts import PaddedRead
from specc.analysis.padding_values import is_padding_skipped, is_softmax_ignoring
from specc.analysis.time_dataflow import resolve_dependence
from specc.analysis.value_ranges import find_uniform_value, find_value_range
from specc.ir import ops
from specc.ir.graph import Node
from specc.ir.types import SAME_POSITION


def is_unaffected_by_padding(reading: PaddedRead) -> bool:
    """Return True if valid positions of the result do not depend on padded positions through this
    link.
    """
    ranked = not reading.after and reading.axis in reading.read.ranked
    if _is_state_unaffected(reading, ranked=ranked):
        return True
    if reading.merged and reading.link.kind not in ("same", "extent"):
        return _is_merged_read_neutral(reading)
    if ranked:
        return _is_rank_safe(reading)
    match reading.link.kind:
        case "same" | "extent":
            # Elementwise along the axis: padding stays where it is. An extent reads no position.
            return True
        case "newest" | "window" if _is_loop_skipping_padding(reading) or _is_padding_behind(
            reading
        ):
            return True
        case "window":
            return is_window_unaffected(reading)
        case "newest":
            return False
        case "strided":
            return is_shift_unaffected(reading)
        case "band":
            return _is_masked_at_padding(reading)
    return _is_neutral_full_read(reading) or _is_padding_after_reads(reading)


def _is_merged_read_neutral(reading: PaddedRead) -> bool:
    """Return True if a sum or reduction over batch and positions in one ignores padding."""
    if isinstance(reading.op, ops.CumSum):
        return reading.zero
    return isinstance(reading.op, ops.Reduce) and _is_neutral_full_read(reading)


def _is_padding_behind(reading: PaddedRead) -> bool:
    """Return True if padding lies outside of what is read: left of the newest position and of
    positions that only look ahead, or right of positions that only look back.
    """
    if reading.link.kind == "newest":
        return reading.side == "left" and reading.link.hi == 0
    return (reading.after and reading.link.lo >= 0) or (reading.first and reading.link.hi <= 0)


def _is_rank_safe(reading: PaddedRead) -> bool:
    """Return True if an op along ranks, where padded positions come last, does not read those."""
    if reading.link.kind in ("same", "extent") or isinstance(reading.op, ops.CumSum):
        return True
    match reading.op:
        case ops.Index(at=at):
            return at.number is not None  # a valid element, or the constant after those
        case ops.Slice(start=start, stop=stop):
            return start.number is not None and stop.number is not None
    return isinstance(reading.op, ops.Reduce | ops.Sort) and _is_neutral_full_read(reading)


def _is_padding_after_reads(reading: PaddedRead) -> bool:
    """Return True if right padding comes after every position that is read; in self-attention a
    valid query then reads earlier keys only.
    """
    to, reach = resolve_dependence(reading.node, reading.link)
    operand, key = reading.node.args[reading.link.operand], reading.axis
    if not reading.after or to is None or operand is None:
        return False
    if isinstance(reading.op, ops.Gather):
        return False  # its indices determine what it selects
    if isinstance(reading.op, ops.Einsum | ops.MatMul) and not all(
        r.is_finite for r in reading.given
    ):
        return False
    gone = isinstance(reading.op, ops.Reduce | ops.ArgMax) and to >= key
    shape = operand.shape
    return reach.lo >= 0 and shape[to + gone] == shape[key]


def _is_loop_skipping_padding(reading: PaddedRead) -> bool:
    """Return True if a loop skips every padded position: its mask implies the padding mask."""
    op = reading.op
    return isinstance(op, ops.Scan) and op.masked and 1 in reading.given[0].zero


def _is_state_unaffected(reading: PaddedRead, *, ranked: bool) -> bool:
    """Return True if padding does not change the state of a recurrent layer; the mask does not
    tell which positions in sorted order (`ranked`) are padded.
    """
    skipped = is_padding_skipped(reading.node, reading.given)
    return not ranked and (skipped or _is_state_zero(reading))


def _is_state_zero(reading: PaddedRead) -> bool:
    """Return True if a recurrent layer without bias still has its zero initial state after the
    padding that it reads: zeros, before all valid positions.
    """
    op = reading.op
    if not isinstance(op, ops.RecurrentLayer) or not reading.zero or reading.is_separated:
        return False
    given = [*op.initial_states, op.bias, op.state_bias]
    keeps_zero = reading.op.attributes().get("activation") != "sigmoid"
    only_before = reading.side == ("right" if op.reverse else "left")
    final = reading.link.result > 0  # the final state reads padding on both sides
    return keeps_zero and (only_before or not final) and not any(o(reading.node) for o in given)


def _is_masked_at_padding(reading: PaddedRead) -> bool:
    """Return True if a mask is false, or weights or values are zero, at padded keys."""
    _, reach = resolve_dependence(reading.node, reading.link)
    # A masked key has weight zero, and zero times NaN is NaN; normalizers ignore scores where the
    # mask is false.
    sound = isinstance(reading.op, ops.MaskedWeights) or reading.is_finite
    if reading.after and reach.lo >= 0 and _have_same_positions(reading):
        return sound
    if any(g.key in reading.given[g.operand].zero for g in reading.link.gates):
        return sound
    if isinstance(reading.op, ops.MaskedSoftmax) and _has_low_scores(reading):
        return True
    if isinstance(reading.op, ops.Weigh | ops.MatMul | ops.Einsum):
        return _is_zero_product(reading)
    return False


def _have_same_positions(reading: PaddedRead) -> bool:
    """Return True if queries and keys are positions of one axis; only then are keys before a valid
    query valid.
    """
    operand, to = reading.node.args[reading.link.operand], reading.link.result_axis
    if operand is None or to is None:
        return False
    types = reading.node.infer_types()
    made = types[reading.link.result].shape[to]
    return made == operand.shape[reading.axis]


def _has_low_scores(reading: PaddedRead) -> bool:
    """Return True if the scores of a masked softmax are -inf at padded keys."""
    scores = reading.node.first
    last = scores.rank - 1 if scores else 0
    return reading.given[0].held.get(last) == -inf


def _is_zero_product(reading: PaddedRead) -> bool:
    """Return True if one factor of a sum of products is zero at padded positions and the others
    are finite.
    """
    zero = {o for o, axes in enumerate(_find_summed_axes(reading)) if reading.given[o].zero & axes}
    others = [r for o, r in enumerate(reading.given) if o not in zero]
    return bool(zero) and all(r.is_finite for r in others)


def _find_summed_axes(reading: PaddedRead) -> list[set[int]]:
    """Return the summed axes of each operand of a sum of products."""
    match reading.op:
        case ops.Weigh() | ops.MatMul():
            # [… m k] by [… k n]: the last axis of one, the second-to-last of the other.
            left, right = (a.rank for a in reading.node.operands)
            return [{left - 1}, {right - 2}]
        case ops.Einsum(equation):
            terms = [t.split() for t in equation.split("->")[0].split(",")]
            name = terms[reading.link.operand][reading.axis]
            return [{n for n, x in enumerate(t) if x == name} for t in terms]
    return []


def _is_neutral_reduction(reading: PaddedRead, fn: str) -> bool:
    """Return True if the values at padded positions have no effect on a reduction."""
    match fn:
        case "sum" | "any":
            return reading.zero
        case "max":
            return reading.read.is_ignored_by_max(reading.axis) or _is_held_last(reading, -inf)
        case "min":
            return _is_held_last(reading, inf)
        case "all":
            return reading.padded_value == 1
    return False


def _is_held_last(reading: PaddedRead, end: float) -> bool:
    """Return True if the constant at padded positions is not above any other value, or not below
    any if `end` is positive.
    """
    least, most = find_value_range(reading.node.args[reading.link.operand])
    held, axis = reading.padded_value, reading.axis
    if held is None or axis in (reading.read.floor if end < 0 else reading.read.ceiling):
        return held is not None
    return held <= least if end < 0 else held >= most


def _is_neutral_full_read(reading: PaddedRead) -> bool:
    """Return True if padding does not change an op that reads the whole axis."""
    rows, axis = reading.read, reading.axis
    match reading.op:
        case ops.Reduce(fn):
            return _is_neutral_reduction(reading, fn)
        case ops.Softmax():
            # If no key is visible, a softmax over low scores is 1/n, and n counts padding.
            return is_softmax_ignoring(reading.node, rows, axis)
        case ops.ArgMax():
            # The first of equal elements is selected, which with right padding is valid.
            first = reading.after or axis in rows.finite_axes
            return rows.is_ignored_by_max(axis) and first
        case ops.Gather():
            return reading.given[1].points or is_gather_in_sort_order(reading.node, reading.given)
        case ops.Einsum() | ops.MatMul():
            return _is_zero_product(reading)
    return _is_neutral_move(reading)


def _is_neutral_move(reading: PaddedRead) -> bool:
    """Return True if padding does not change an op that moves or selects positions of the axis."""
    rows, axis = reading.read, reading.axis
    match reading.op:
        case ops.Sort(along):
            return along == axis and get_number_sorted_last(reading.node, rows) is not None
        case ops.TopK(k=k, largest=largest):
            # If fewer valid positions exist than are selected, the others hold that constant.
            values = reading.link.result == 0 and k.number is not None
            return values and _is_held_last(reading, -inf if largest else inf)
        case ops.Flip() | ops.Roll():
            return reading.ends == (0, 0) and not reading.merged and axis not in rows.ranked
        case ops.Index(at=at):
            # Position 0 is valid with right padding.
            return reading.side == "right" and at.number == 0
    return False


def can_keep_padding_facts(reading: PaddedRead) -> bool:
    """Return True if the facts of padded positions of the operand hold for those of the result."""
    if reading.link.kind == "same":
        return True
    match reading.op:
        case ops.KeepRows() | ops.Flip() | ops.Roll():
            return True
        case ops.Stride():
            return is_slice_to_end(reading.node)
        case ops.Slice():
            # What is dropped on the side of padding is padding there, else valid positions.
            return all(over <= 0 for over in _dropped_positions(reading))
        case ops.Pad() | ops.Concat():
            return reading.link.kind == "strided"
        case ops.Conv() | ops.AveragePool() | ops.CumSum() | ops.Delay():
            return reading.link.kind == "window" and _is_padding_alone(reading)
    return False


def _is_padding_alone(reading: PaddedRead) -> bool:
    """Return True if padded positions of a window's result read padded positions only."""
    back, ahead = reading.first, reading.after
    here = (back and reading.link.lo >= 0) or (ahead and reading.link.hi <= 0)
    return here and not reading.merged


def is_window_unaffected(reading: PaddedRead) -> bool:
    """Return True if an op with a result of the same length gives the same values with padding,
    including those at the ends of the axis.
    """
    if reading.link.reach == SAME_POSITION:
        return True
    match reading.op:
        case ops.Delay(first=first):
            # Before the first valid position a delay reads padding or `first`, which must not
            # differ.
            return reading.fill == float(first)
        case ops.CumSum():
            return reading.zero
    return not reading.is_separated and _is_same_at_ends(reading)


def _is_same_at_ends(reading: PaddedRead) -> bool:
    """Return True if a window over padded positions gives the same as at the end of the axis."""
    match reading.op:
        case ops.Conv() | ops.AveragePool(counted=True):
            return reading.fill == 0
        case ops.MaxPool(dilation=dilation) if reading.is_separated:
            return reading.fill == -inf and max(dilation) == 1
        case ops.MaxPool(dilation=dilation) if max(dilation) == 1:
            # A window of a valid output position contains a valid input position.
            return reading.axis in reading.read.floor
    return False


def is_shift_unaffected(reading: PaddedRead) -> bool:
    """Return True if a window, slice or pad whose result has another length is unaffected by
    padding.
    """
    op = reading.op
    if reading.shifted or reading.leads_to_separated:
        return False
    if isinstance(op, ops.Slice):
        return reading.fill is not None or _is_one_sided_slice(reading)
    if reading.is_separated and reading.fill is None:
        return False
    match op:
        case ops.KeepRows():
            return not reading.is_separated or reading.fill == 0
        case ops.Stride(start=start):
            # The first positions differ with left padding.
            first = start == 0 or not reading.may_be_left
            return is_slice_to_end(reading.node) and first
        case ops.Conv() | ops.MaxPool() | ops.AveragePool():
            return not _is_reading_ends(reading, op) or _is_same_at_ends(reading)
    return isinstance(op, ops.Pad | ops.Concat) and _is_fill_matching(reading)


def _is_one_sided_slice(reading: PaddedRead) -> bool:
    """Return True if a slice keeps no always-valid position on the far side of the padding."""
    dropped = _dropped_positions(reading, inf)
    return not reading.is_separated or all(over >= 0 for over in dropped)


def _is_reading_ends(reading: PaddedRead, op: ops.Sliding) -> bool:
    """Return True if windows reach over an end of the axis that may be padded."""
    n = reading.axis - len(op.kernel)
    over = reading.may_be_right and op.end_padding[n] > 0
    return over or (reading.may_be_left and op.padding_before[n] > 0)


def _is_fill_matching(reading: PaddedRead) -> bool:
    """Return True if positions added next to padding hold the same constant as the padding."""
    op, place = reading.op, reading.link.operand
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
    op = reading.op
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
    return isinstance(op, ops.Stride) and x is not None and op.stop == x.shape[op.axis]

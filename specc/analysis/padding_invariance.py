"""Prove that an op is unaffected by padded positions.

The values it reads there must be surely zero, or surely low for a maximum or softmax; or it must
not read them at all, because a mask hides them or because all of them lie on the side that it
does not read.
"""

from math import inf

from specc.analysis.masked_values import is_sorted_last
from specc.analysis.padded_link import PaddedRead
from specc.analysis.padded_windows import is_shift_unaffected, is_window_unaffected
from specc.analysis.padding_constants import is_gather_in_sort_order
from specc.analysis.padding_values import is_padding_skipped
from specc.analysis.time_dataflow import resolve_dependence
from specc.ir import ops

MASKED_SOFTMAX_OPS = (ops.MaskedSoftmax, ops.Hard, ops.Share)
"""Ops with a mask whose result is weights: what they are given where the mask is false
is not looked at, not even to multiply it by zero.
"""


def is_unaffected_by_padding(reading: PaddedRead) -> bool:
    """Return True if valid positions of the result do not depend on padded positions through this
    link.
    """
    if is_padding_skipped(reading.node, reading.given):
        return True
    if reading.merged and reading.link.kind not in ("same", "extent"):
        return isinstance(reading.node.op, ops.Reduce) and _is_neutral_full_read(reading)
    if not reading.after and reading.link.operand_axis in reading.read.ranked:
        return _is_rank_safe(reading)
    match reading.link.kind:
        case "same" | "extent":
            # Row by row, what is padded stays where it is. An extent reads no row.
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


def _is_padding_behind(reading: PaddedRead) -> bool:
    """Return True if padding lies outside of what is read: left of the newest position, or right
    of positions that only look back.
    """
    if reading.link.kind == "newest":
        return reading.side == "left" and reading.link.hi == 0
    return reading.after and reading.link.lo >= 0


def _is_rank_safe(reading: PaddedRead) -> bool:
    """Return True if an op along ranks, where padded positions come last, does not read those."""
    if reading.link.kind in ("same", "extent") or isinstance(reading.node.op, ops.CumSum):
        return True
    return isinstance(reading.node.op, ops.Reduce | ops.Sort) and _is_neutral_full_read(reading)


def _is_padding_after_reads(reading: PaddedRead) -> bool:
    """Return True if right padding comes after every position that is read; in self-attention a
    valid query then reads earlier keys only.
    """
    to, reach = resolve_dependence(reading.node, reading.link)
    operand, key = reading.node.args[reading.link.operand], reading.link.operand_axis
    if not reading.after or to is None or operand is None:
        return False
    if isinstance(reading.node.op, ops.Gather):
        return False  # what it picks, its row numbers say
    if isinstance(reading.node.op, ops.Einsum | ops.MatMul) and not all(
        r.finite for r in reading.given
    ):
        return False
    gone = isinstance(reading.node.op, ops.Reduce | ops.ArgMax) and to >= key
    shape = operand.type.shape
    return reach.lo >= 0 and shape[to + gone] == shape[key]


def _is_loop_skipping_padding(reading: PaddedRead) -> bool:
    """Return True if a loop skips every padded position: its mask implies the padding mask."""
    op = reading.node.op
    return isinstance(op, ops.Scan) and op.masked and 1 in reading.given[0].zero


def _is_masked_at_padding(reading: PaddedRead) -> bool:
    """Through a mask that is false, or weights or values that are zero, at padded keys."""
    _, reach = resolve_dependence(reading.node, reading.link)
    # What a mask hides has weight zero, and zero times NaN is NaN.
    sound = isinstance(reading.node.op, MASKED_SOFTMAX_OPS) or reading.finite
    if reading.after and reach.lo >= 0 and _have_same_positions(reading):
        return sound
    if any(g.key in reading.given[g.operand].zero for g in reading.link.gates):
        return sound
    if isinstance(reading.node.op, ops.MaskedSoftmax) and _has_low_scores(reading):
        return True
    if isinstance(reading.node.op, ops.Weigh | ops.MatMul | ops.Einsum):
        return _is_zero_product(reading)
    return False


def _have_same_positions(reading: PaddedRead) -> bool:
    """Return True if queries and keys are positions of one axis; only then are keys before a valid
    query valid.
    """
    operand, to = reading.node.args[reading.link.operand], reading.link.result_axis
    if operand is None or to is None:
        return False
    types = reading.node.op.infer(*(a.type if a else None for a in reading.node.args))
    made = types[reading.link.result].shape[to]
    return made == operand.type.shape[reading.link.operand_axis]


def _has_low_scores(reading: PaddedRead) -> bool:
    """Return True if the scores of a masked softmax are -inf at padded keys."""
    scores = reading.node.first
    last = scores.type.rank - 1 if scores else 0
    return reading.given[0].held.get(last) == -inf


def _is_zero_product(reading: PaddedRead) -> bool:
    """Return True if one factor of a sum of products is zero at padded positions and the others
    are finite.
    """
    zero = {o for o, axes in enumerate(_find_summed_axes(reading)) if reading.given[o].zero & axes}
    others = [r for o, r in enumerate(reading.given) if o not in zero]
    return bool(zero) and all(r.finite for r in others)


def _find_summed_axes(reading: PaddedRead) -> list[set[int]]:
    """Return the summed axes of each operand of a sum of products."""
    match reading.node.op:
        case ops.Weigh() | ops.MatMul():
            # [… m k] by [… k n]: the last axis of one, the last but one of the other.
            left, right = (a.type.rank for a in reading.node.args if a)
            return [{left - 1}, {right - 2}]
        case ops.Einsum(equation=equation):
            terms = [t.split() for t in equation.split("->")[0].split(",")]
            name = terms[reading.link.operand][reading.link.operand_axis]
            return [{n for n, x in enumerate(t) if x == name} for t in terms]
    return []


def _is_neutral_reduction(reading: PaddedRead, fn: str) -> bool:
    """Return True if the values at padded positions have no effect on a reduction."""
    match fn:
        case "sum" | "any":
            return reading.zero
        case "max":
            return reading.read.covered(reading.link.operand_axis)
        case "min":
            return reading.held == inf
        case "all":
            return reading.held == 1
    return False


def _is_neutral_full_read(reading: PaddedRead) -> bool:
    """Through an op that reads every row of the axis."""
    rows, axis = reading.read, reading.link.operand_axis
    match reading.node.op:
        case ops.Reduce(fn=fn):
            return _is_neutral_reduction(reading, fn)
        case ops.Sort(axis=along):
            number = reading.held
            last = number is not None and is_sorted_last(reading.node, number)
            return last and along == axis
        case ops.Softmax():
            # Where no row is left, a softmax over low scores is 1/n, and n counts
            # padding.
            return axis in rows.low and axis in rows.peaks
        case ops.ArgMax():
            # Of equals it takes the first, which behind no padding exists.
            first = reading.after or axis in rows.peaks
            return rows.covered(axis) and first
        case ops.Gather():
            return reading.given[1].points or is_gather_in_sort_order(reading.node, reading.given)
        case ops.Index(at=at):
            # Row 0 exists if padding stands on the right.
            return reading.side == "right" and at.number == 0
        case ops.Einsum() | ops.MatMul():
            return _is_zero_product(reading)
    return False

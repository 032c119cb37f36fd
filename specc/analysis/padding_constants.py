"""Infer the constant held at padded positions, and axes in sorted order.

Input: a node, and the facts of its operands along a padded axis. Output: for each axis of a
result the constant at padded positions, if there is one: -inf after `where(keep, s, -inf)`, zero
after its exponential, whatever the valid positions hold.

In descending order -inf sorts last. So positions along a sorted axis are *ranks*: whichever side
was padded, padded elements have the last ranks, and a position id computed there counts none of
them. Ranks may only be combined with ranks, and with values computed from position ids and
constants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isinf

from specc.analysis.grid_constants import (
    EXACT_UNARY_FUNCTIONS,
    MaskedValues,
    combine_masked_values,
    intersect_masked_values,
    map_masked_values,
)
from specc.analysis.masked_values import compute_absorbed_result, is_sorted_last
from specc.analysis.padding_facts import PaddedResult, PaddingFacts
from specc.analysis.value_ranges import convert_number, find_uniform_value, find_value_range
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.interval import EMPTY_INTERVAL
from specc.ir.op_dependence import Dependence

MAX_POSITION_SEARCH_DEPTH = 20
"""Maximum depth of the search for position indices."""


def infer_padding_constants(standing: PaddedResult) -> Mapping[int, float]:
    """Return the constant at padded positions of a result, by axis."""
    found = {}
    for axis in standing.axes():
        number = _infer_number(standing, axis)
        if number is not None:
            found[axis] = number
    return found | _infer_axis_op_constants(standing)


def infer_fill_constants(standing: PaddedResult, found: Mapping[int, float]) -> Mapping[int, float]:
    """Return the number of each axis that stands at its padded positions and at those
    that `pad` or `concat` added beside them; `found` are the numbers at padded ones.
    """
    filled = {}
    for axis, number in found.items():
        if standing.value.type.shape[axis] not in standing.joined or _is_fill_number(
            standing, axis, number
        ):
            filled[axis] = number
    return filled


def _is_fill_number(standing: PaddedResult, axis: int, number: float) -> bool:
    """Return True if positions added next to padded ones hold the same constant."""
    match standing.node.op:
        case ops.Pad(axis=along, value=value) if along == axis:
            return float(value) == number and _get_fill_number(standing, 0, axis) == number
        case ops.Concat(axis=along) if along == axis:
            return all(
                (_get_fill_number(standing, n, axis) if there else find_uniform_value(a)) == number
                for n, (a, there) in enumerate(
                    zip(standing.node.args, standing.along(axis), strict=True)
                )
                if a
            )
    given = [replace(r, zero=frozenset(), held=r.fill) for r in standing.given]
    return _infer_number(replace(standing, given=given), axis) == number


def _get_fill_number(standing: PaddedResult, operand: int, axis: int) -> float | None:
    return standing.given[operand].fill.get(axis)


def _infer_axis_op_constants(standing: PaddedResult) -> dict[int, float]:
    """Return the constants at padded positions after an op that works along their axis."""
    node, given = standing.node, standing.given
    match node.op:
        case ops.Sort(axis=axis) if standing.value.index == 0:
            number = given[0].held.get(axis)
            if number is not None and is_sorted_last(node, number):
                return {axis: number}
        # padded positions come last, and an infinite sum stays infinite
        case ops.CumSum(axis=axis) if axis in given[0].ranked:
            number = given[0].held.get(axis, 0.0)
            return {axis: number} if isinf(number) else {}
        case ops.Gather(axis=axis) if is_gather_in_sort_order(node, given):
            return {axis: given[0].held[axis]}
        case ops.MaskedSoftmax():
            last = standing.value.type.rank - 1
            return {last: 0.0} if given[0].held.get(last) == -inf else {}
    return {}


def find_rank_axes(standing: PaddedResult) -> frozenset[int]:
    """Return the axes of a result whose positions are ranks (sorted order)."""
    node, given = standing.node, standing.given
    found = {
        k.result_axis
        for k in standing.keeps
        if k.result_axis is not None and k.operand_axis in given[k.operand].ranked
    }
    match node.op:
        case ops.Sort(axis=axis) if axis in standing.padded():
            found.add(axis)
        case ops.CumSum(axis=axis) if axis in given[0].ranked:
            found.add(axis)
        case ops.Extent(axis=axis) if axis in given[0].ranked:
            found.add(0)
        case ops.Gather(axis=axis) if is_gather_in_sort_order(node, given):
            found.add(axis)
    return frozenset(found)


def has_mixed_ranks(standing: PaddedResult) -> bool:
    """Return True if a result combines ranks with positions that are not ranks."""
    return any(
        not _is_rank_counting(standing, k)
        for k in standing.keeps
        if k.operand_axis not in standing.given[k.operand].ranked
        and _has_ranked_operand(standing, k.result_axis)
    )


def find_rank_counting_operands(standing: PaddedResult) -> set[int]:
    """Return the operands that are position indices combined with ranks: they count ranks."""
    return {
        k.operand
        for k in standing.keeps
        if _has_ranked_operand(standing, k.result_axis) and _is_rank_counting(standing, k)
    }


def _is_rank_counting(standing: PaddedResult, link: Dependence) -> bool:
    """Return True if an operand is position ids of one axis, which may also count ranks; next to
    query positions they count padding.
    """
    value = standing.node.args[link.operand]
    shape = value.type.shape if value else ()
    return is_built_from_positions(value) and sum(d in standing.lengths for d in shape) == 1


def _has_ranked_operand(standing: PaddedResult, axis: int | None) -> bool:
    """Return True if another operand has ranks along an axis of the result."""
    return any(
        k.result_axis == axis and k.operand_axis in standing.given[k.operand].ranked
        for k in standing.keeps
    )


def is_gather_in_sort_order(node: Node, given: Sequence[PaddingFacts]) -> bool:
    """Return True if a gather uses the indices of a sort that puts padded positions last, on a
    value that is constant there.
    """
    match node:
        case Node(ops.Gather(axis=axis), (_, Value(node=Node(ops.Sort()), index=1))):
            return axis in given[0].held and axis in given[1].ranked
    return False


def is_built_from_positions(value: Value | None, depth: int = 0) -> bool:
    """Return True if a value is computed from position ids and constants alone."""
    if value is None or value.node is None or depth > MAX_POSITION_SEARCH_DEPTH:
        return False
    op = value.node.op
    if isinstance(op, ops.Extent | ops.Range | ops.Constant):
        return True
    plain = isinstance(op, ops.Arith | ops.Compare | ops.Cast | ops.Pointwise | ops.And | ops.Or)
    return (plain or op.view) and all(
        is_built_from_positions(a, depth + 1) for a in value.node.args if a
    )


def _infer_number(standing: PaddedResult, axis: int) -> float | None:
    """Return the constant of an op at padded positions, or None."""
    node = standing.node
    numbers = [_get_operand_number(standing, n, axis) for n in range(len(node.args))]
    match node.op:
        case ops.Where() | ops.And() | ops.Or() | ops.Not():
            return _infer_selected_number(node, numbers)
        case ops.Pointwise(fn=fn):
            return _get_only_number(
                map_masked_values(EXACT_UNARY_FUNCTIONS.get(fn), _make_masked_values(numbers[0]))
            )
        case ops.Cast(to=to):
            return None if numbers[0] is None else convert_number(numbers[0], to)
        case ops.Compare(fn=fn):
            return _get_only_number(combine_masked_values(fn, *map(_make_masked_values, numbers)))
        case ops.Arith(fn=fn):
            return _infer_arithmetic_number(standing, fn, numbers, axis)
        case ops.Slice() | ops.Stride() | ops.Pad() | ops.Concat() | ops.Flip():
            return _infer_common_number(standing, numbers, axis)
    # A view keeps its operand's values; position indices that it creates are new.
    shows = node.op.view and not isinstance(node.op, ops.Extent)
    return next((n for n in numbers if n is not None), None) if shows else None


def _infer_common_number(
    standing: PaddedResult, numbers: list[float | None], axis: int
) -> float | None:
    """Return the constant shared by all operands that have padded positions, or None."""
    along = standing.along(axis)
    known = {n for n, there in zip(numbers, along, strict=True) if there}
    return known.pop() if len(known) == 1 else None


def _infer_selected_number(node: Node, numbers: list[float | None]) -> float | None:
    """Return the constant of a `where`, `and`, `or` or `not` at padded positions, or None."""
    first, *others = numbers
    match node.op:
        case ops.Not():
            return None if first is None else 1.0 - first
        case ops.Where() if first is not None:
            return others[0] if first else others[1]
        case ops.And() if 0.0 in numbers:
            return 0.0
        case ops.Or() if 1.0 in numbers:
            return 1.0
        case ops.Where():
            return others[0] if others[0] == others[1] else None
    return first if first == others[0] else None


def _infer_arithmetic_number(
    standing: PaddedResult, fn: str, numbers: list[float | None], axis: int
) -> float | None:
    """Return the constant of arithmetic on two constants, or on one that absorbs the other
    operand.
    """
    found = [combine_masked_values(fn, *map(_make_masked_values, numbers))]
    along = standing.along(axis)
    for here, there in ((0, 1), (1, 0)):
        number, rows = numbers[here], standing.given[there]
        tame = not along[there] or not (rows.broken or rows.infinite_signs)
        if number is not None and tame:
            least = find_value_range(standing.node.args[there])[0]
            made = compute_absorbed_result(fn, number, least, here == 1)
            found += [{made: EMPTY_INTERVAL}] if made is not None else []
    return _get_only_number(intersect_masked_values(found))


def _get_operand_number(standing: PaddedResult, operand: int, axis: int) -> float | None:
    """Return the constant of an operand where the result's `axis` is padded, or None."""
    rows = standing.given[operand]
    own = [k.operand_axis for k in standing.keeps if k.operand == operand and k.result_axis == axis]
    value = standing.node.args[operand]
    if not own:
        return find_uniform_value(value)
    return rows.at_padded(own[0])


def _make_masked_values(number: float | None) -> MaskedValues:
    return {} if number is None else {number: EMPTY_INTERVAL}


def _get_only_number(pairs: MaskedValues) -> float | None:
    return next(iter(pairs), None)

"""Infer constant values at padded positions.

The input is a node, and the properties of its operands along a padded axis. The output is the
constant at padded positions of each result axis, if a constant can be inferred. For example,
`w = where(keep, s, -inf)` is -inf and `exp(w)` is zero at padded positions, for any values at valid
positions.

A sort in descending order places -inf last. Positions along a sorted axis are *ranks* (sort
indices). Padded elements have the last ranks for both left and right padding, so position ids along
the sorted axis do not count padding. Ranks may be combined only with other ranks, and with values
computed from position ids and constants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isinf

from specc.analysis.masked_constants import fold_absorbing_constant
from specc.analysis.padding_facts import NO_PADDING_FACTS, PaddedOpResult
from specc.analysis.padding_order_and_windows import gathers_by_argsort, sorts_padding_last
from specc.analysis.query_key_products import (
    EXACT_UNARY_FUNCTIONS,
    MaskedConstants,
    intersect_masked_constants,
    propagate_constants_through_binary_op,
    propagate_constants_through_unary_op,
)
from specc.analysis.value_ranges import cast_number, find_splat_value, find_value_range
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.op import Op
from specc.ir.types import EMPTY_INTERVAL


def infer_padding_values(result: PaddedOpResult) -> Mapping[int, float]:
    """Return the constants that a result holds at padded positions, keyed by axis."""
    constants = {}
    for axis in result.find_inherited_padded_axes():
        number = _infer_number(result, axis)
        if number is not None:
            constants[axis] = number
    return constants | _infer_axis_op_constants(result)


def infer_fill_values(
    result: PaddedOpResult, padding_values: Mapping[int, float]
) -> Mapping[int, float]:
    """Return the entries of `padding_values` (the constants at padded positions, by axis) whose
    constant `pad` or `concat` also added next to the padding.
    """
    fill_values = {}
    for axis, number in padding_values.items():
        if result.value.shape[axis] not in result.concatenated_lengths or _is_fill_number(
            result, axis, number
        ):
            fill_values[axis] = number
    return fill_values


def _is_fill_number(result: PaddedOpResult, axis: int, number: float) -> bool:
    """Return True if the positions that `pad` or `concat` added next to padding hold `number`."""
    match result.op:
        case ops.Pad(axis=op_axis, value=value, mode=mode) if op_axis == axis:
            is_same = mode == "constant" and float(value) == number
            return is_same and result.operand_facts[0].fill_values.get(axis) == number
        case ops.Concat(op_axis) if op_axis == axis:
            padded = result.find_operands_with_axis(axis)
            facts = result.operand_facts
            return all(
                (facts[n].fill_values.get(axis) if n in padded else find_splat_value(a)) == number
                for n, a in enumerate(result.node.args)
            )
    operand_facts = [
        replace(r, zero_pad_axes=frozenset(), padding_values=r.fill_values)
        for r in result.operand_facts
    ]
    return _infer_number(replace(result, operand_facts=operand_facts), axis) == number


def _infer_axis_op_constants(result: PaddedOpResult) -> dict[int, float]:
    """Return the constants at padded positions of the result of an op along the padded axis."""
    node, operand_facts = result.node, result.operand_facts
    match node.op:
        case ops.Sort(axis) if result.value.index == 0:
            number = operand_facts[0].get_padding_value(axis)
            if number is not None and sorts_padding_last(node, operand_facts[0]):
                return {axis: number}
        # padded positions are last, and a cumulative sum of infinities remains infinite
        case ops.CumSum(axis) if axis in operand_facts[0].sorted_axes:
            number = operand_facts[0].padding_values.get(axis, 0.0)
            return {axis: number} if isinf(number) else {}
        case ops.Gather(axis) if gathers_by_argsort(node, operand_facts):
            return {axis: operand_facts[0].padding_values[axis]}
        case ops.MaskedSoftmax():
            key_axis = result.value.rank - 1
            return {key_axis: 0.0} if operand_facts[0].padding_values.get(key_axis) == -inf else {}
    return {}


def _infer_number(result: PaddedOpResult, axis: int) -> float | None:
    """Return the constant at padded positions of `axis` of an op's result, or None if unknown."""
    node = result.node
    numbers = [_get_operand_number(result, n, axis) for n in range(len(node.args))]
    match node.op:
        case ops.Where() | ops.And() | ops.Or():
            return _infer_selected_number(node, numbers)
        case ops.Pointwise("relu") if _has_sign(result, node.first_operand, axis, -1):
            return 0.0
        case ops.Arith("max" | "min") if _is_clamped_to_zero(result, numbers, axis):
            return 0.0
        case ops.Arith(function_name):
            return _infer_arithmetic_number(result, function_name, numbers, axis)
        case ops.Pad(axis=pad_axis, mode="constant", value=value) if pad_axis != axis:
            return numbers[0] if numbers[0] == float(value) else None
        case ops.Slice() | ops.StridedSlice() | ops.Pad() | ops.Concat() | ops.Flip() | ops.Roll():
            return _infer_common_number(result, numbers, axis)
        case ops.Resize() as op if not op.is_interpolating:
            return numbers[0]
    return fold_constants(node.op, numbers)


def fold_constants(op: Op, operands: Sequence[float | None]) -> float | None:
    """Apply an elementwise op to constants. Return None if the result is unknown or inexact."""
    first = next((n for n in operands if n is not None), None)
    match op:
        case ops.Pointwise(function_name):
            function = EXACT_UNARY_FUNCTIONS.get(function_name)
            return _get_only_number(
                propagate_constants_through_unary_op(function, _make_masked_constants(first))
            )
        case ops.Arith(function_name) | ops.Compare(function_name):
            return _get_only_number(
                propagate_constants_through_binary_op(
                    function_name, *map(_make_masked_constants, operands)
                )
            )
        case ops.Cast(to):
            return None if first is None else cast_number(first, to)
        case ops.Not():
            return None if first is None else 1.0 - first
    # The values of a view are those of its operand. `Extent` is excluded, because it returns new
    # values (position ids).
    return first if op.is_view and not isinstance(op, ops.Extent) else None


def _infer_common_number(
    result: PaddedOpResult, numbers: list[float | None], axis: int
) -> float | None:
    """Return the constant that all operands hold at padded positions, or None if they differ."""
    constants = {numbers[n] for n in result.find_operands_with_axis(axis)}
    return constants.pop() if len(constants) == 1 else None


def _infer_selected_number(node: Node, numbers: list[float | None]) -> float | None:
    """Return the constant of a `where`, `and` or `or` at padded positions, or None if unknown."""
    first, *others = numbers
    match node.op:
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
    result: PaddedOpResult, function_name: str, numbers: list[float | None], axis: int
) -> float | None:
    """Return the constant that an arithmetic op computes at padded positions, or None if unknown.
    The result is computed from two constants, or from one constant that absorbs the other operand.
    """
    constants = [
        propagate_constants_through_binary_op(function_name, *map(_make_masked_constants, numbers))
    ]
    padded_operands = result.find_operands_with_axis(axis)
    for operand, other in ((0, 1), (1, 0)):
        number, facts = numbers[operand], result.operand_facts[other]
        if number is not None and (facts.is_finite or other not in padded_operands):
            minimum = find_value_range(result.node.args[other])[0]
            absorbed = fold_absorbing_constant(function_name, number, minimum, operand == 1)
            constants += [{absorbed: EMPTY_INTERVAL}] if absorbed is not None else []
    return _get_only_number(intersect_masked_constants(constants))


def _is_clamped_to_zero(result: PaddedOpResult, numbers: Sequence[float | None], axis: int) -> bool:
    """Return True if the result of a maximum or minimum with zero is zero at padded positions of
    `axis`, because the other operand has no positive (maximum) or negative (minimum) values there.
    """
    sign = -1 if result.op == ops.Arith("max") else 1
    return any(
        numbers[n] == 0 and _has_sign(result, result.node.args[1 - n], axis, sign) for n in (0, 1)
    )


def _has_sign(result: PaddedOpResult, value: Value | None, axis: int, sign: int) -> bool:
    """Return True if an elementwise expression is not NaN and is at least 0 (`sign` 1) or at most 0
    (`sign` -1) at padded positions of `axis` of the result. Rounding does not change the sign of a
    sum or product.
    """
    if value is None:
        return False
    facts = result.known_facts.get(value, NO_PADDING_FACTS)
    if facts.can_be_nan:
        return False
    is_padded = value.rank == result.value.rank and value.shape[axis] == result.value.shape[axis]
    number = facts.get_padding_value(axis) if is_padded else None
    low, high = find_value_range(value) if number is None else (number, number)
    if low >= 0 if sign > 0 else high <= 0:
        return True
    return is_padded and _is_sign_of_operands(result, value.node, axis, sign)


def _is_sign_of_operands(result: PaddedOpResult, node: Node | None, axis: int, sign: int) -> bool:
    """Return True if operand signs imply that a sum, product or maximum has the sign `sign`."""

    def have_signs(*signs: int) -> bool:
        return node is not None and all(
            _has_sign(result, value, axis, s) for value, s in zip(node.args, signs, strict=True)
        )

    match node:
        case Node(ops.Arith("add" | "max" | "min")):
            return have_signs(sign, sign)
        case Node(ops.Arith("sub")):
            return have_signs(sign, -sign)
        case Node(ops.Arith("mul")):
            return have_signs(1, sign) or have_signs(-1, -sign)
        case Node(ops.Pointwise("neg")):
            return have_signs(-sign)
    return False


def _get_operand_number(result: PaddedOpResult, operand: int, axis: int) -> float | None:
    """Return the constant of an operand at padded positions of `axis` of the result, or None."""
    for k in result.dependences:
        if k.operand == operand and k.result_axis == axis:
            return result.operand_facts[operand].get_padding_value(k.operand_axis)
    return find_splat_value(result.node.args[operand])


def _make_masked_constants(number: float | None) -> MaskedConstants:
    return {} if number is None else {number: EMPTY_INTERVAL}


def _get_only_number(constants: MaskedConstants) -> float | None:
    return next(iter(constants), None)

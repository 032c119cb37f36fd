"""Find infinity and NaN at padded positions, because multiplication by zero does not remove them.

For every finite `x`, `x * keep` is zero at padded positions. However, zero times infinity is NaN,
and NaN propagates through sums. A quotient is assumed to be finite only if the bounds of the
divisor exclude zero. For example, a cumulative or windowed sum of `keep` is zero before the first
valid position.
"""

from math import isinf
from typing import TypeAlias

from specc.analysis.padding_facts import NO_PADDING_FACTS, PaddedOpResult
from specc.analysis.value_ranges import (
    ValueRange,
    find_constant_value,
    find_rational_constant,
    find_softmax_scores,
    find_value_range,
    skip_views,
)
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.op import Op

InfinitySigns: TypeAlias = frozenset[int]
"""The possible signs of infinite elements: 1, -1, both, or none."""
NO_SIGNS: InfinitySigns = frozenset()
BOTH_SIGNS: InfinitySigns = frozenset((1, -1))

BOUNDED_RESULT_OPS = (ops.Softmax, ops.MaskedSoftmax, ops.MaskedHardmax)
"""Ops whose results are always finite."""

INFINITY_PRESERVING_FUNCTIONS = ("ceil", "floor", "round")
"""Functions that map `inf` to `inf` and `-inf` to `-inf`."""
UNBOUNDED_ABOVE_FUNCTIONS = ("exp", "expm1", "relu", "relu2", "softplus", "sqrt", "log", "log1p")
"""`Pointwise` functions that are unbounded above and bounded below."""
GATED_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "silu")
"""Activations `x * gate(x)` whose gate tends to 0, so that `-inf * 0` is NaN."""

MOVING_OPS = (ops.Concat, ops.Pad, ops.Delay, ops.MaxPool, ops.Cast)
"""Ops, other than selections and views, whose results are elements of their operands."""

LOGARITHM_POLES = {"log": 0.0, "log1p": -1.0}
"""The argument at which each logarithm is -inf. For smaller arguments, the logarithm is NaN."""

QUOTIENT_FUNCTIONS = ("div", "floordiv", "mod")
"""Binary functions that may return infinity or NaN if the divisor is zero."""


def find_infinity_signs(result: PaddedOpResult) -> InfinitySigns:
    """Return the signs of infinity that elements of a result may have at padded positions."""
    operand_signs, node = [r.possible_infinity_signs for r in result.operand_facts], result.node
    if not _can_be_infinite(result.value):
        return NO_SIGNS
    if _is_masked_again(result):
        return operand_signs[2]
    match node.op:
        case ops.Constant(value):
            return frozenset((1 if value > 0 else -1,)) if isinf(value) else NO_SIGNS
        case ops.Pointwise(function_name):
            return _map_signs(function_name, operand_signs[0])
        case ops.Arith(function_name):
            return _combine_signs(function_name, *operand_signs)
        case ops.Where():
            return _drop_compared_signs(node, operand_signs[1]) | operand_signs[2]
    if isinstance(node.op, BOUNDED_RESULT_OPS):
        return NO_SIGNS
    return _combine_operand_signs(result, frozenset().union(*operand_signs))


def _combine_operand_signs(result: PaddedOpResult, signs: InfinitySigns) -> InfinitySigns:
    """Return the possible signs of infinite results, given the possible signs of infinite operands.
    Ops that move or sum elements preserve the signs.
    """
    node = result.node
    match node.op:
        case ops.Reduce("max", axis) if (
            axis in result.operand_facts[0].finite_pad_axes and not result.find_padded_axes()
        ):
            return signs - {-1}  # not -inf: at least one valid position is finite
    # Other ops, e.g. linear layers, may flip the sign.
    keeps_sign = _is_data_movement(node.op) or isinstance(node.op, ops.Reduce | ops.CumSum)
    return signs if keeps_sign or not signs else BOTH_SIGNS


def _drop_compared_signs(node: Node, signs: InfinitySigns) -> InfinitySigns:
    """Return the signs of the infinite `x` that `where(x > -inf, x, …)` selects."""
    condition, true_branch, _ = node.args
    match condition and condition.node:
        case Node(ops.Compare("gt" | "ne"), (left, right)) if left is true_branch:
            bound = find_constant_value(right)
            return signs - {-1} if bound is not None and bound < 0 and isinf(bound) else signs
    return signs


def _can_be_infinite(value: Value) -> bool:
    """Return True if the dtype of a value can represent infinity and NaN."""
    return value.dtype[0] not in "iu" and value.dtype != "bool"


def _combine_signs(function_name: str, left: InfinitySigns, right: InfinitySigns) -> InfinitySigns:
    """Return the signs of infinity that results of a binary function may have."""
    if function_name == "sub":
        return left | _negate_signs(right)
    if function_name == "add":
        return left | right
    if function_name == "div":
        return BOTH_SIGNS if left else NO_SIGNS  # a finite number divided by infinity is zero
    if function_name not in ("max", "min"):
        return BOTH_SIGNS if left or right else NO_SIGNS
    # The maximum of -inf and a finite number is finite.
    return left & right | (left | right) & {1 if function_name == "max" else -1}


def _negate_signs(signs: InfinitySigns) -> InfinitySigns:
    return frozenset(-s for s in signs)


def _map_signs(function_name: str, signs: InfinitySigns) -> InfinitySigns:
    """Return the signs of infinity that the result of a unary function may have."""
    if function_name == "neg":
        return _negate_signs(signs)
    if function_name == "abs":
        return frozenset((1,)) if signs else NO_SIGNS
    if function_name in INFINITY_PRESERVING_FUNCTIONS:
        return signs
    # All other functions are finite or, like sine and cosine, NaN for infinite arguments.
    is_unbounded = function_name in (*UNBOUNDED_ABOVE_FUNCTIONS, *GATED_ACTIVATIONS)
    return signs & {1} if is_unbounded else NO_SIGNS


def _can_map_to_nan(function_name: str, signs: InfinitySigns) -> bool:
    """Return True if a unary function may map an infinity with one of `signs` to NaN."""
    if function_name in ("sin", "cos"):
        return bool(signs)
    return -1 in signs and function_name in (*GATED_ACTIVATIONS, "sqrt", "log", "log1p")


def find_infinite_fill_mask(result: PaddedOpResult) -> Value | None:
    """Return the condition of the `where` that set masked scores to infinity. Return None if a
    result may have another source of infinity or NaN.
    """
    operand_facts, node = result.operand_facts, result.node
    match node:
        case Node(ops.Where(), (mask, _, fill)) if operand_facts[1].is_finite:
            if isinf(find_constant_value(fill) or 0.0):
                return mask
    masks = {r.infinity_mask for r in operand_facts if r.infinity_mask or not r.is_finite}
    if len(masks) != 1:
        return None
    if _can_be_undefined_at_padding(result):
        # A divisor computed from masked scores is zero if all scores are masked.
        undefined_facts = operand_facts[isinstance(node.op, ops.Arith) and node.op.fn != "pow"]
        return undefined_facts.infinity_mask
    return masks.pop()


def _is_masked_again(result: PaddedOpResult) -> bool:
    """Return True if a `where` replaces all non-finite values that an earlier mask inserted."""
    node, operand_facts = result.node, result.operand_facts
    return (
        isinstance(node.op, ops.Where)
        and operand_facts[1].infinity_mask is not None
        and _is_false_outside_mask(node.first_operand, operand_facts[1].infinity_mask)
        and not operand_facts[0].can_be_nan
    )


def _is_false_outside_mask(condition: Value | None, mask: Value) -> bool:
    """Return True if `condition` is false wherever `mask` is false."""
    match condition:
        case Value(node=Node(ops.And(), operands)):
            return mask is condition or mask in operands
    return mask is condition


def can_be_nan_at_padding(result: PaddedOpResult) -> bool:
    """Return True if a result may be NaN at padded positions: inf - inf, 0 * inf, invalid
    arguments.
    """
    operand_facts, node = result.operand_facts, result.node
    if not _can_be_infinite(result.value):
        return False
    if _is_masked_again(result):
        return operand_facts[2].can_be_nan
    match node.op:
        case ops.Where() if operand_facts[0].zero_pad_axes >= {
            k.result_axis for k in result.dependences
        }:
            # `where(keep, x, 0)` does not select `x` at padded positions.
            return operand_facts[2].can_be_nan
        case ops.Pointwise(function_name) if _can_map_to_nan(
            function_name, operand_facts[0].possible_infinity_signs
        ):
            return True
    if _can_be_undefined_at_padding(result) or any(r.can_be_nan for r in operand_facts):
        return True
    return not _is_nan_safe(result) and any(r.possible_infinity_signs for r in operand_facts)


def find_value_range_at_padding(result: PaddedOpResult, operand: int) -> ValueRange:
    """Return the minimum and maximum of an operand at padded positions."""
    value, facts = result.node.get_operand(operand), result.operand_facts[operand]
    axes = [n for n, d in enumerate(value.shape) if d in result.padded_lengths]
    numbers = [facts.get_padding_value(a) for a in axes]
    if numbers and None not in numbers:
        constants = [n for n in numbers if n is not None]
        return min(constants), max(constants)
    return find_value_range(value)


def _has_padding(result: PaddedOpResult, operand: int) -> bool:
    """Return True if an operand has padded positions that do not repeat a valid position."""
    return any(
        d in result.padded_lengths and n not in result.operand_facts[operand].repeated_axes
        for n, d in enumerate(result.node.get_operand(operand).shape)
    )


def find_edge_padded_axes(result: PaddedOpResult) -> frozenset[int]:
    """Return the axes along which padded positions repeat the last valid value, e.g. after
    `cumsum`.
    """
    node, operand_facts = result.node, result.operand_facts
    match node.op:
        case ops.CumSum(axis) if result.is_right_padded and axis in operand_facts[0].zero_pad_axes:
            return frozenset({axis})
    is_elementwise = node.op.is_elementwise or isinstance(node.op, ops.Linear | ops.Reduce)
    if not (node.op.is_view or is_elementwise):
        return frozenset()
    return frozenset(
        axis
        for axis in result.find_inherited_padded_axes()
        if result.find_operands_with_axis(axis)
        <= result.find_operands_with_fact("repeated_axes", axis)
    )


def can_be_zero_at_padding(result: PaddedOpResult, operand: int) -> bool:
    """Return True if an operand may be zero at a padded position."""
    return _has_padding(result, operand) and _can_be_zero(result, operand)


def _can_be_undefined_at_padding(result: PaddedOpResult) -> bool:
    """Return True if an op may divide by zero or have an invalid argument at padded positions."""
    node = result.node
    match node.op:
        case ops.Arith(function_name) if function_name in QUOTIENT_FUNCTIONS:
            return can_be_zero_at_padding(result, 1)
        case ops.Arith("pow"):
            return _can_power_be_undefined(result)
        case ops.Pointwise("reciprocal"):
            return can_be_zero_at_padding(result, 0)
        case ops.Pointwise("sqrt") if _has_padding(result, 0):
            return find_value_range_at_padding(result, 0)[0] < 0
        case ops.Pointwise(function_name) if function_name in LOGARITHM_POLES and _has_padding(
            result, 0
        ):
            has_pole = find_value_range_at_padding(result, 0)[0] <= LOGARITHM_POLES[function_name]
            return has_pole and not _is_softmax_denominator(result)
        case ops.LayerNorm(eps) | ops.RMSNorm(eps) | ops.GroupNorm(eps=eps):
            return eps == 0
    return False


def _is_softmax_denominator(result: PaddedOpResult) -> bool:
    """Return True for an operand `sum(exp(x - max(x)))`, which is at least 1, if padded `x` is
    finite.
    """
    match skip_views(result.node.first_operand):
        case Value(node=Node(ops.Reduce("sum", axis), (exponential,))):
            x = find_softmax_scores(exponential, axis)
            return x is not None and result.known_facts.get(x, NO_PADDING_FACTS).is_finite
    return False


def _can_power_be_undefined(result: PaddedOpResult) -> bool:
    """Return True if an exponentiation may be infinite or NaN at a padded position."""
    exponent = find_rational_constant(ops.Arith.right(result.node))
    if not (_has_padding(result, 0) or _has_padding(result, 1)):
        return False
    low, _ = find_value_range_at_padding(result, 0)
    if exponent is None:
        return low <= 0
    is_root_of_negative = exponent.denominator != 1 and low < 0
    return is_root_of_negative or (exponent < 0 and can_be_zero_at_padding(result, 0))


def _is_nan_safe(result: PaddedOpResult) -> bool:
    """Return True if infinite operands cannot cause NaN, as for `max` but not for `0 * inf`."""
    node, signs = result.node, [r.possible_infinity_signs for r in result.operand_facts]
    match node.op:
        case ops.Arith("max" | "min") | ops.Reduce("max" | "min"):
            return True
        case ops.Arith("add"):
            return not _can_have_opposite_signs(signs[0], signs[1])
        case ops.Arith("sub"):
            return not _can_have_opposite_signs(signs[0], _negate_signs(signs[1]))
        case ops.Arith("mul"):
            return not any(signs[n] and _can_be_zero(result, 1 - n) for n in range(2))
        case ops.Arith("div"):
            return not (signs[0] and signs[1])
        case ops.Reduce() | ops.CumSum():
            return len(signs[0]) == 1
        case ops.Where() | ops.Pointwise() | ops.MaskedSoftmax():
            return True
    return _is_data_movement(node.op)


def _is_data_movement(op: Op) -> bool:
    """Return True if the results of an op are elements of its operands."""
    is_nearest = isinstance(op, ops.Resize) and not op.is_interpolating
    return op.is_view or op.is_selection or is_nearest or isinstance(op, MOVING_OPS)


def _can_have_opposite_signs(left: InfinitySigns, right: InfinitySigns) -> bool:
    """Return True if adding infinities with the signs `left` and `right` may give `inf - inf`."""
    return bool((left and right) and len(left | right) > 1)


def _can_be_zero(result: PaddedOpResult, operand: int) -> bool:
    low, high = find_value_range_at_padding(result, operand)
    return low <= 0 <= high

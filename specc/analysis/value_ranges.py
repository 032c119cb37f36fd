"""Compute ranges and constants of values that are valid for all model inputs.

The range of a value consists of its minimum and its maximum. Unknown bounds are infinite. Softmax
weights are between 0 and 1, position ids are at least 0, and a position id plus one is at least 1.
NaN and integer overflow are ignored.

Constants are propagated through casts and views, because a masked fill value may be an operand of
`Cast`, `Expand` or `Unsqueeze`.
"""

import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from math import exp, inf, isfinite, isnan, log1p, sqrt, trunc
from typing import TypeAlias

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.op import Op
from specc.ir.types import FLOAT32_INTEGER_RANGES

ValueRange: TypeAlias = tuple[float, float]
"""The minimum and maximum over all elements of a value."""

UNBOUNDED_RANGE: ValueRange = (-inf, inf)
UNIT_RANGE: ValueRange = (0.0, 1.0)
NONNEGATIVE_RANGE: ValueRange = (0.0, inf)

FUNCTION_RANGES: Mapping[str, ValueRange] = {
    "abs": NONNEGATIVE_RANGE,
    "cos": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
    "exp": NONNEGATIVE_RANGE,
    "expm1": (-1.0, inf),
    "relu": NONNEGATIVE_RANGE,
    "relu2": NONNEGATIVE_RANGE,
    "sigmoid": UNIT_RANGE,
    "sign": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "softplus": NONNEGATIVE_RANGE,
    "sqrt": NONNEGATIVE_RANGE,
    "tanh": (-1.0, 1.0),
}
"""The range of each bounded `Pointwise` function over all arguments."""

COMPARISON_FUNCTIONS: Mapping[str, Callable[[float, float], bool]] = {
    f.__name__: f
    for f in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
} | {"same_group": lambda a, b: a == b > 0}

INCREASING_FUNCTIONS = ("sqrt", "exp", "softplus", "sigmoid")
"""Monotonically increasing functions."""

UNIT_RANGE_OPS = (ops.Softmax, ops.AttentionNormalizer, ops.OneHot)
INDEX_RESULT_OPS = (ops.Extent, ops.Range, ops.ArgMax, ops.Size)
COMPUTED_RANGE_OPS = (
    *(ops.Arith, ops.Pointwise, ops.Where, ops.Concat, ops.Cast),
    *(ops.Reduce, ops.CumSum, ops.AveragePool, ops.Delay),
    *(ops.Einsum, ops.MatMul, ops.WeightedSum),
)
"""Ops whose range is computed from the ranges of their operands."""

MAX_RANGE_VALUES = 5_000
"""Maximum number of values that one search visits. Beyond this limit, the range is unknown."""


def find_value_range(value: Value | None) -> ValueRange:
    """Return the range of `value` over all model inputs, which is infinite if `value` is None."""
    if value is None:
        return UNBOUNDED_RANGE
    # Each value is visited once, on an explicit stack, because residual connections double the
    # number of paths in each layer.
    known_ranges: dict[Value, ValueRange] = {}
    worklist = [value]
    while worklist:
        current = worklist[-1]
        missing = [a for a in _list_range_operands(current) if a not in known_ranges]
        if current in known_ranges or not missing or len(known_ranges) > MAX_RANGE_VALUES:
            known_ranges.setdefault(
                current, UNBOUNDED_RANGE if missing else _compute_range(current, known_ranges)
            )
            worklist.pop()
        else:
            worklist += missing
    return known_ranges[value]


def _list_range_operands(value: Value) -> list[Value]:
    """Return the operands whose ranges determine the range of a value."""
    node = value.node
    if node is None or value.dtype == "bool" or isinstance(node.op, INDEX_RESULT_OPS):
        return []
    if node.op.is_selection:
        # the second result of a selection contains indices, which do not depend on the values
        return [] if value.index else [node.get_operand()]
    is_bounding = node.op.is_view or isinstance(node.op, COMPUTED_RANGE_OPS)
    return [*node.operands] if is_bounding else []


def _compute_range(value: Value, known_ranges: Mapping[Value, ValueRange]) -> ValueRange:
    node = value.node
    if value.dtype == "bool" or isinstance(value.op, UNIT_RANGE_OPS):
        return UNIT_RANGE
    if node is None:
        return UNBOUNDED_RANGE
    if isinstance(node.op, INDEX_RESULT_OPS) or (node.op.is_selection and value.index):
        return NONNEGATIVE_RANGE  # indices are nonnegative
    operand_ranges = [known_ranges[a] for a in _list_range_operands(value)]
    return _compute_op_range(node, value, operand_ranges)


def _compute_op_range(node: Node, value: Value, operand_ranges: list[ValueRange]) -> ValueRange:
    """Compute the range of an op's result from the ranges of its operands."""
    if operand_ranges and (node.op.is_view or node.op.is_selection):
        return operand_ranges[0]
    match node.op:
        case ops.Constant(number):
            return float(number), float(number)
        case ops.Pointwise(function_name):
            return _bound_function(function_name, operand_ranges[0])
        case ops.Arith(function_name):
            return _compute_arithmetic_range(function_name, node, *operand_ranges)
        case ops.Where():
            return _merge_ranges([_refine_range(node, n, operand_ranges[n]) for n in (1, 2)])
        case ops.Einsum() | ops.MatMul() | ops.WeightedSum():
            return NONNEGATIVE_RANGE if min(operand_ranges)[0] >= 0 else UNBOUNDED_RANGE
        case ops.Concat() | ops.Cast():
            low, high = _merge_ranges(operand_ranges)
            return cast_number(low, value.dtype), cast_number(high, value.dtype)
        case ops.Attend() if value.index == node.op.weights_result:
            return UNIT_RANGE
        case ops.Reduce() | ops.CumSum() | ops.AveragePool():
            return _bound_reduction(node, operand_ranges[0])
        case ops.Delay(fill_value=first):
            return _merge_ranges([operand_ranges[0], (float(first), float(first))])
    return UNBOUNDED_RANGE


def _bound_reduction(node: Node, operand_range: ValueRange) -> ValueRange:
    """Compute the range of a reduction from the range of its operand."""
    x = node.get_operand()
    match node.op:
        case ops.Reduce("sum", axis) if is_max_subtracted_exp(x, axis):
            return 1.0, inf
        case ops.Reduce("mean") | ops.AveragePool():
            return _merge_ranges([operand_range, (0.0, 0.0)])  # the mean over an empty axis is zero
        case ops.Reduce("max" | "min", axis) if (x.shape[axis].number or 0) > 0:
            return operand_range
        case ops.Reduce("sum", axis) if (count := x.shape[axis].number) is not None:
            return _make_range(count * operand_range[0], count * operand_range[1])
        case ops.Reduce("sum") | ops.CumSum():
            # A sum of nonnegative elements is nonnegative.
            return NONNEGATIVE_RANGE if operand_range[0] >= 0 else UNBOUNDED_RANGE
    return UNBOUNDED_RANGE


def _bound_function(function_name: str, operand_range: ValueRange) -> ValueRange:
    """Compute the range of an elementwise function from the range of its argument."""
    if function_name == "neg":
        return -operand_range[1], -operand_range[0]
    if function_name in INCREASING_FUNCTIONS:
        return _bound_increasing(function_name, operand_range[0], FUNCTION_RANGES[function_name][1])
    if function_name == "abs" and operand_range[0] >= 0:
        return operand_range
    return FUNCTION_RANGES.get(function_name, UNBOUNDED_RANGE)


def _refine_range(node: Node, operand: int, operand_range: ValueRange) -> ValueRange:
    """Return the range of one branch of a `where` (operand 1 or 2). The condition narrows the range
    if it compares the branch with a constant. The branch may add a constant to the compared value:
    `where(x > 0, x + 1, …)`.
    """
    match node.args[0]:
        case Value(node=Node(ops.Compare("gt" | "ge"), (left, right))) if operand == 1:
            bound = find_constant_value(right)
        case _:
            return operand_range
    branch: Value | None = node.args[1]
    addend: float | None = 0.0
    match branch:
        case Value(node=Node(ops.Arith("add"), (a, b))) if a is left:
            branch, addend = a, find_constant_value(b)
    if branch is not left or bound is None or addend is None:
        return operand_range
    return max(operand_range[0], bound + addend), operand_range[1]


def _bound_increasing(function_name: str, low: float, high: float) -> ValueRange:
    """Return the range of an increasing function for arguments of at least `low`, where `high` is
    the upper bound of the function. For `low` below -80, the lower bound is 0, because the function
    may underflow in float32.
    """
    if function_name == "sqrt":
        return sqrt(low) if low > 0 else 0.0, high
    if low < -80:
        return 0.0, high
    power = exp(min(low, 80.0))
    return {"exp": power, "softplus": log1p(power)}.get(function_name, power / (1 + power)), high


def cast_number(number: float, dtype: str) -> float:
    """Return the value of a number after a `Cast`. A cast to an integer type truncates and clips
    numbers.
    """
    if dtype not in FLOAT32_INTEGER_RANGES:
        return float(number != 0) if dtype == "bool" else number
    minimum, maximum = FLOAT32_INTEGER_RANGES[dtype]
    return float(trunc(min(max(number, minimum), maximum)))


def _merge_ranges(ranges: list[ValueRange]) -> ValueRange:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _compute_arithmetic_range(
    function_name: str, node: Node, left: ValueRange, right: ValueRange
) -> ValueRange:
    """Return the range of an arithmetic op on two operands."""
    match function_name:
        case "mul" if node.args[0] is node.args[1]:
            return NONNEGATIVE_RANGE
        case "add":
            return _make_range(left[0] + right[0], left[1] + right[1])
        case "sub":
            return _make_range(left[0] - right[1], left[1] - right[0])
        case "mul" | "div" if _is_nonzero_constant(right):
            return _scale_range(function_name, left, right[0])
        case "mul" if _is_nonzero_constant(left):
            return _scale_range(function_name, right, left[0])
        case "mul" | "div" if left[0] >= 0 and right[0] >= 0:
            return (
                _make_range(left[0] * right[0], inf)
                if function_name == "mul"
                else NONNEGATIVE_RANGE
            )
        case "max" | "min":
            pick: Callable[[float, float], float] = max if function_name == "max" else min
            return pick(left[0], right[0]), pick(left[1], right[1])
        case "pow" if right[0] == right[1] and right[0] % 2 == 0:
            return NONNEGATIVE_RANGE
    return UNBOUNDED_RANGE


def _is_nonzero_constant(operand_range: ValueRange) -> bool:
    return (
        operand_range[0] == operand_range[1]
        and isfinite(operand_range[0])
        and operand_range[0] != 0
    )


def _scale_range(function_name: str, operand_range: ValueRange, factor: float) -> ValueRange:
    """Return the range of a product with a constant, or of a quotient with a constant divisor."""
    ends = [end * factor if function_name == "mul" else end / factor for end in operand_range]
    return min(ends), max(ends)


def _make_range(low: float, high: float) -> ValueRange:
    """Return a range in which a NaN bound (from inf - inf) is replaced by infinity."""
    return -inf if isnan(low) else low, inf if isnan(high) else high


def skip_views(value: Value | None, *skipped_ops: type[Op]) -> Value | None:
    """Return the value that `value` views: follow the first operand through views and through ops
    of the types `skipped_ops`. An `extent` computes new position ids and is not skipped.
    """
    while value and value.node and value.node.args:
        op = value.node.op
        if isinstance(op, ops.Extent) or not (op.is_view or isinstance(op, skipped_ops)):
            break
        value = value.node.first_operand
    return value


def find_op_behind_views(value: Value | None, *skipped_ops: type[Op]) -> Op | None:
    """Return the op whose result `value` is or views (see `skip_views`), or None."""
    inner = skip_views(value, *skipped_ops)
    return inner.op if inner else None


def find_rational_constant(value: Value | None) -> Fraction | None:
    """Return the finite constant to which all elements of a value are equal, or None."""
    number = find_constant_value(value)
    return None if number is None or not isfinite(number) else Fraction(number)


def find_constant_value(value: Value | None) -> float | None:
    """Return the (possibly infinite) constant to which all elements are equal, or None."""
    # `bool` is a subclass of `int` in Python
    return None if value is None or value.dtype == "bool" else find_splat_value(value)


def find_splat_value(value: Value | None) -> float | None:
    """Return the splat value of a constant tensor (True as 1), or None for other values."""
    casts: list[str] = []
    while (value := skip_views(value)) and isinstance(value.op, ops.Cast):
        casts.append(value.dtype)
        value = value.node.first_operand if value.node else None
    match value and value.node:
        case Node(ops.Constant(number)):
            return reduce(cast_number, reversed(casts), float(number))
        case Node(ops.Compare(fn), (left, right)):
            left_value, right_value = find_splat_value(left), find_splat_value(right)
            if left_value is not None and right_value is not None:
                truth = float(COMPARISON_FUNCTIONS[fn](left_value, right_value))
                return reduce(cast_number, reversed(casts), truth)
    return None


def is_zero_everywhere(value: Value | None) -> bool:
    """Return True if a value is constant zero or false."""
    match find_op_behind_views(value):
        case ops.Constant(number):
            return not number
    return False


def is_max_subtracted_exp(value: Value | None, axis: int) -> bool:
    """Return True for `exp(x - max(x))` along `axis`, whose sum is at least 1."""
    x, maximum = _split_exponential(value)
    return maximum is not None and maximum.node == Node(ops.Reduce("max", axis), (x,))


def find_softmax_scores(value: Value | None, axis: int) -> Value | None:
    """Return `x` if a value is `exp(x - max(x))` along `axis`. An infinite maximum may be replaced
    by another number. Return None for other values.
    """
    x, maximum = _split_exponential(value)
    match maximum and maximum.node:
        case Node(ops.Where(), (Value(node=Node(ops.Compare("lt"), (size, bound))), original, _)):
            is_absolute = size and size.node == Node(ops.Pointwise("abs"), (original,))
            if is_absolute and find_constant_value(bound) == inf:
                maximum = skip_views(original)
    is_maximum = maximum is not None and maximum.node == Node(ops.Reduce("max", axis), (x,))
    return x if is_maximum else None


def _split_exponential(value: Value | None) -> tuple[Value | None, Value | None]:
    """If `value` is `exp(x - y)`, return `x` and the value that `y` views, else (None, None)."""
    match value:
        case Value(node=Node(ops.Pointwise("exp"), (Value(node=Node(ops.Arith("sub"), (x, y))),))):
            return x, skip_views(y)
    return None, None

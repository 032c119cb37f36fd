"""Value ranges and constants that hold for all inputs.

Input: any value. Output: its minimum and maximum, infinite where unknown. Softmax weights lie
between 0 and 1, position ids are 0 and above, a position id plus one is 1 and above. NaN and
overflow of integers are not considered.

Masks are applied to scores by constants that were cast, expanded and given axes; the constant
is found behind such nodes.
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
"""Minimum and maximum."""

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
"""The range of `Pointwise` functions over all arguments."""

COMPARISON_FUNCTIONS: Mapping[str, Callable[[float, float], bool]] = {
    f.__name__: f
    for f in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
} | {"same_group": lambda a, b: a == b > 0}

INCREASING_FUNCTIONS = ("sqrt", "exp", "softplus", "sigmoid")
"""Monotonically increasing functions."""

UNIT_RANGE_OPS = (ops.Softmax, ops.MaskedWeights, ops.OneHot)
INDEX_RESULT_OPS = (ops.Extent, ops.Range, ops.ArgMax, ops.Size)
SELECTION_OPS = (
    *(ops.Slice, ops.Stride, ops.Index, ops.Last, ops.Flip, ops.Roll),
    *(ops.Gather, ops.Sort, ops.TopK),
)
"""Ops whose results are elements of their first operand."""

COMPUTED_RANGE_OPS = (
    *(ops.Arith, ops.Pointwise, ops.Where, ops.Concat, ops.Cast),
    *(ops.Reduce, ops.CumSum, ops.AveragePool, ops.Delay),
    *(ops.Einsum, ops.MatMul, ops.Weigh),
)
"""Ops whose range is computed from the ranges of their operands."""

MAX_RANGE_VALUES = 5_000
"""Maximum number of values that are analyzed; beyond it the range is unknown."""


def find_value_range(value: Value | None) -> ValueRange:
    """Return the minimum and maximum that any element can have."""
    if value is None:
        return UNBOUNDED_RANGE
    # Each value once, on an explicit stack: a residual stream is reached by twice as many paths
    # with each layer.
    known: dict[Value, ValueRange] = {}
    todo = [value]
    while todo:
        at = todo[-1]
        missing = [a for a in _list_range_operands(at) if a not in known]
        if at in known or not missing or len(known) > MAX_RANGE_VALUES:
            known.setdefault(at, UNBOUNDED_RANGE if missing else _compute_range(at, known))
            todo.pop()
        else:
            todo += missing
    return known[value]


def _list_range_operands(value: Value) -> list[Value]:
    """Return the operands that bound a value."""
    node = value.node
    if node is None or value.dtype == "bool" or isinstance(node.op, INDEX_RESULT_OPS):
        return []
    if isinstance(node.op, SELECTION_OPS):
        # the second result holds indices, whatever the first holds
        return [] if value.index or node.first is None else [node.first]
    tells = node.op.view or isinstance(node.op, COMPUTED_RANGE_OPS)
    return [*node.operands] if tells else []


def _compute_range(value: Value, known: Mapping[Value, ValueRange]) -> ValueRange:
    node = value.node
    if value.dtype == "bool" or (node and isinstance(node.op, UNIT_RANGE_OPS)):
        return UNIT_RANGE
    if node is None:
        return UNBOUNDED_RANGE
    picked = isinstance(node.op, SELECTION_OPS)
    if isinstance(node.op, INDEX_RESULT_OPS) or (picked and value.index):
        return NONNEGATIVE_RANGE  # indices, also the second result of selecting ops
    given = [known[a] for a in _list_range_operands(value)]
    return given[0] if picked else _compute_op_range(node, value, given)


def _compute_op_range(node: Node, value: Value, given: list[ValueRange]) -> ValueRange:
    """Return the range of an op's result from those of its operands."""
    if node.op.view and given:
        return given[0]
    match node.op:
        case ops.Constant(number):
            return float(number), float(number)
        case ops.Pointwise(fn):
            return _bound_function(fn, given[0])
        case ops.Arith(fn):
            return _compute_arithmetic_range(fn, node, *given)
        case ops.Where():
            return _merge_ranges([_refine_range(node, n, g) for n, g in enumerate(given) if n])
        case ops.Einsum() | ops.MatMul() | ops.Weigh():
            return NONNEGATIVE_RANGE if min(given)[0] >= 0 else UNBOUNDED_RANGE
        case ops.Concat() | ops.Cast():
            low, high = _merge_ranges(given)
            return convert_number(low, value.dtype), convert_number(high, value.dtype)
        case ops.Attend() if value.index == node.op.weights_result:
            return UNIT_RANGE
        case ops.Reduce() | ops.CumSum() | ops.AveragePool():
            return _bound_reduction(node, given[0])
        case ops.Delay(first=first):
            return _merge_ranges([given[0], (float(first), float(first))])
    return UNBOUNDED_RANGE


def _bound_reduction(node: Node, given: ValueRange) -> ValueRange:
    """Return the bounds of an op over several elements."""
    match node.op:
        case ops.Reduce("sum", axis) if is_max_subtracted_exp(node.first, axis):
            return 1.0, inf
        case ops.Reduce("mean") | ops.AveragePool():
            return _merge_ranges([given, (0.0, 0.0)])  # the mean over nothing is zero
        case ops.Reduce("max" | "min", axis) if node.first is not None:
            return given if (node.first.shape[axis].number or 0) > 0 else UNBOUNDED_RANGE
        case ops.Reduce("sum", axis) if (
            node.first is not None and (count := node.first.shape[axis].number) is not None
        ):
            return _make_range(count * given[0], count * given[1])
        case ops.Reduce("sum") | ops.CumSum():
            # A sum of nonnegative elements is nonnegative.
            return NONNEGATIVE_RANGE if given[0] >= 0 else UNBOUNDED_RANGE
    return UNBOUNDED_RANGE


def _bound_function(fn: str, given: ValueRange) -> ValueRange:
    """Return bounds of an elementwise function."""
    if fn == "neg":
        return -given[1], -given[0]
    if fn in INCREASING_FUNCTIONS:
        return _bound_increasing(fn, given[0], FUNCTION_RANGES[fn][1])
    if fn == "abs" and given[0] >= 0:
        return given
    return FUNCTION_RANGES.get(fn, UNBOUNDED_RANGE)


def _refine_range(node: Node, operand: int, given: ValueRange) -> ValueRange:
    """Bound one side of a `where` whose condition compares it with a constant, also after adding a
    constant: `where(x > 0, x + 1, …)`.
    """
    match node.args[0], node.args[operand]:
        case Value(node=Node(ops.Compare("gt" | "ge"), (left, right))), Value() as x:
            least = find_constant_value(right)
        case _:
            return given
    if least is None or operand != 1:
        return given
    if x is left:
        return max(given[0], least), given[1]
    match x.node:
        case Node(ops.Arith("add"), (a, b)) if a is left:
            added = find_constant_value(b)
            return given if added is None else (max(given[0], least + added), given[1])
    return given


def _bound_increasing(fn: str, low: float, high: float) -> ValueRange:
    """Return bounds of an increasing function. Below -80 the exponential underflows to 0 in
    float32.
    """
    if fn == "sqrt":
        return sqrt(low) if low > 0 else 0.0, high
    if low < -80:
        return 0.0, high
    power = exp(min(low, 80.0))
    return {"exp": power, "softplus": log1p(power)}.get(fn, power / (1 + power)), high


def convert_number(number: float, dtype: str) -> float:
    """Return what a `Cast` makes of a number: integers are truncated and clipped."""
    if dtype not in FLOAT32_INTEGER_RANGES:
        return float(number != 0) if dtype == "bool" else number
    least, most = FLOAT32_INTEGER_RANGES[dtype]
    return float(trunc(min(max(number, least), most)))


def _merge_ranges(given: list[ValueRange]) -> ValueRange:
    return min(low for low, _ in given), max(high for _, high in given)


def _compute_arithmetic_range(
    fn: str, node: Node, one: ValueRange, other: ValueRange
) -> ValueRange:
    """Return the range of arithmetic on two operands."""
    match fn:
        case "mul" if node.args[0] is node.args[1]:
            return NONNEGATIVE_RANGE
        case "add":
            return _make_range(one[0] + other[0], one[1] + other[1])
        case "sub":
            return _make_range(one[0] - other[1], one[1] - other[0])
        case "mul" | "div" if _is_nonzero_constant(other):
            return _scale_range(fn, one, other[0])
        case "mul" if _is_nonzero_constant(one):
            return _scale_range(fn, other, one[0])
        case "mul" | "div" if one[0] >= 0 and other[0] >= 0:
            return _make_range(one[0] * other[0], inf) if fn == "mul" else NONNEGATIVE_RANGE
        case "max" | "min":
            pick: Callable[[float, float], float] = max if fn == "max" else min
            return pick(one[0], other[0]), pick(one[1], other[1])
        case "pow" if other[0] == other[1] and other[0] % 2 == 0:
            return NONNEGATIVE_RANGE
    return UNBOUNDED_RANGE


def _is_nonzero_constant(given: ValueRange) -> bool:
    return given[0] == given[1] and isfinite(given[0]) and given[0] != 0


def _scale_range(fn: str, given: ValueRange, factor: float) -> ValueRange:
    """Return the range of a product with a constant, or of a quotient by one."""
    ends = [end * factor if fn == "mul" else end / factor for end in given]
    return min(ends), max(ends)


def _make_range(low: float, high: float) -> ValueRange:
    """Return a range; a NaN end, from infinity minus infinity, becomes infinite."""
    return -inf if isnan(low) else low, inf if isnan(high) else high


def skip_views(value: Value | None, *through: type[Op]) -> Value | None:
    """Return the value behind views, and behind ops `through` of one operand. An `extent`
    makes position ids of its own and is not passed.
    """
    while value and value.node and value.node.args:
        op = value.node.op
        if isinstance(op, ops.Extent) or not (op.view or isinstance(op, through)):
            break
        value = value.node.first
    return value


def get_viewed_op(value: Value | None, *through: type[Op]) -> Op | None:
    """Return the op that computes the value behind views (`skip_views`)."""
    inner = skip_views(value, *through)
    return inner.op if inner else None


def find_constant_fraction(value: Value | None) -> Fraction | None:
    """Return the finite constant that a value is everywhere, or None."""
    number = find_constant_value(value)
    return None if number is None or not isfinite(number) else Fraction(number)


def find_constant_value(value: Value | None) -> float | None:
    """Return the constant that a value is everywhere, infinity included, or None."""
    # True is a number in Python, but not a score.
    return None if value is None or value.dtype == "bool" else find_uniform_value(value)


def find_uniform_value(value: Value | None) -> float | None:
    """Return the number or truth value that a value has at every position, or None."""
    casts: list[str] = []
    while (value := skip_views(value)) and isinstance(value.op, ops.Cast):
        casts.append(value.dtype)
        value = value.node.first if value.node else None
    match value and value.node:
        case Node(ops.Constant(number)):
            return reduce(convert_number, reversed(casts), float(number))
        case Node(ops.Compare(fn), (left, right)):
            one, other = find_uniform_value(left), find_uniform_value(right)
            if one is not None and other is not None:
                truth = float(COMPARISON_FUNCTIONS[fn](one, other))
                return reduce(convert_number, reversed(casts), truth)
    return None


def is_zero_everywhere(value: Value | None) -> bool:
    """Return True if a value is constant zero or false."""
    match get_viewed_op(value):
        case ops.Constant(number):
            return not number
    return False


def is_max_subtracted_exp(value: Value | None, axis: int) -> bool:
    """Return True if a value is `exp(x - max(x))` along an axis: its maximum is one, so that its
    sum is never zero.
    """
    match value:
        case Value(
            node=Node(ops.Pointwise("exp"), (Value(node=Node(ops.Arith("sub"), (x, most))),))
        ):
            largest = skip_views(most)
            return largest is not None and largest.node == Node(ops.Reduce("max", axis), (x,))
    return False

"""Lower elementwise ops: functions, arithmetic, comparisons, logical ops and casts.

ONNX Runtime computes the integer operators `Pow`, `Min`, `Max` and `Sign` in floats or in 32 bits.
It crashes for `Mod` of the minimum integer by -1. Casts of out-of-range values differ between CPU
architectures. docs/language.md defines the expected results.
"""

import math
from collections.abc import Callable, Mapping

from specc.ir import ops
from specc.ir.types import FLOAT32_INTEGER_RANGES
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.indexing import is_nonnegative_value
from specc_onnx.lower.onnx_targets import FLOAT_DTYPES
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower

INTEGER_DTYPES = frozenset({"i64", "i32"})
"""Integer types that a graph may use for computations."""
EXACT_OPERATORS = {"add": "Add", "sub": "Sub", "mul": "Mul"}
"""The ONNX operators of functions that ONNX Runtime computes exactly for integers."""
FLOAT_OPERATORS = {**EXACT_OPERATORS, "div": "Div", "pow": "Pow", "min": "Min", "max": "Max"}
"""The ONNX operators of float functions that lower to a single operator."""
COMPARE_OPERATORS = {
    "eq": "Equal",
    "ne": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}

lower.add_rules(
    {
        ops.And: lambda op, g, left, right: left & right,
        ops.Or: lambda op, g, left, right: left | right,
        ops.Not: lambda op, g, x: ~x,
        ops.Where: lambda op, g, condition, x, y: condition.where(x, y),
    }
)


@lower
def arith(op: ops.Arith, g: Emitter, left: Tensor, right: Tensor) -> OnnxValue:
    """Lower a binary op to one ONNX operator if the semantics agree, else to several operators."""
    if left.dtype not in INTEGER_DTYPES:
        name = FLOAT_OPERATORS.get(op.fn)
        return left.apply_op(name, right) if name else emit_float_divmod(op.fn, left, right)
    if op.fn in EXACT_OPERATORS:
        return left.apply_op(EXACT_OPERATORS[op.fn], right)
    return INTEGER_RULES[op.fn](left, right)


def emit_integer_sign(x: Tensor) -> OnnxValue:
    """Emit the sign (-1, 0 or 1) of integers."""
    zero = x.g.emit_constant(0, x.dtype)
    return (zero < x).cast(x.dtype) - (x < zero).cast(x.dtype)


def emit_integer_mod(x: Tensor, y: Tensor) -> OnnxValue:
    """Emit the integer remainder `x % y`, which has the sign of `y` and is 0 if `y` is 0."""
    # If one factor is 0, the product still has the broadcast shape of the result, unlike a constant
    # 0.
    if find_scalar_constant(y) in (0, -1):
        return x * 0
    return x % _emit_safe_divisor(y)[0]


def emit_integer_floordiv(x: Tensor, y: Tensor) -> OnnxValue:
    """Emit the floor division `x // y` of integers, which is 0 if `y` is 0. `Div` truncates, so 1
    is subtracted where the remainder of `Div` differs from the result of `Mod`.
    """
    divisor_value = find_scalar_constant(y)
    # Division by 0 returns 0, and division by -1 returns the negated dividend. In both cases, the
    # result is a product.
    if divisor_value in (0, -1):
        return x * y
    divisor, is_special = _emit_safe_divisor(y)
    quotient = x / divisor
    # For nonnegative operands, truncation is equal to floor.
    if not _is_nonnegative_tensor(x) or not ((divisor_value or 0) > 0 or _is_nonnegative_tensor(y)):
        remainder = x - quotient * divisor
        if divisor_value is None:
            is_too_large = ~remainder.equals(x % divisor)
        else:
            # The quotient is too large if remainder and divisor have opposite signs.
            zero = x.g.emit_constant(0, x.dtype)
            is_too_large = remainder < zero if divisor_value > 0 else zero < remainder
        quotient = quotient - is_too_large.cast(x.dtype)
    return is_special.where(x * y, quotient) if is_special else quotient


def _emit_safe_divisor(y: Tensor) -> tuple[OnnxValue, OnnxValue | None]:
    """Emit the divisor `y` with 0 and -1 replaced by 1. Return the divisor and the mask of replaced
    elements. The mask is None if no element is replaced.
    """
    # Callers handle the constant divisors 0 and -1.
    if find_scalar_constant(y) is not None:
        return y, None
    is_special = y.equals(0)
    if not _is_nonnegative_tensor(y):
        is_special = is_special | y.equals(-1)
    return is_special.where(1, y), is_special


def emit_integer_power(x: Tensor, y: Tensor) -> OnnxValue:
    """Emit integer `x ** y` for a constant `y` by repeated squaring, because `Pow` uses floats."""
    exponent = find_scalar_constant(y)
    assert isinstance(exponent, int), "the exponent of an integer power is static"
    assert exponent >= 0, "the exponent of an integer power is not negative"
    one = x.g.emit_constant(1, x.dtype)
    if exponent == 0:
        return x * 0 + one
    product: OnnxValue | None = None
    power: OnnxValue = x
    while exponent:
        if exponent % 2:
            product = product * power if product else power
        exponent //= 2
        power = power * power if exponent else power
    return product or one


INTEGER_RULES: dict[str, Callable[[Tensor, Tensor], OnnxValue]] = {
    "min": lambda x, y: (y < x).where(y, x),
    "max": lambda x, y: (x < y).where(y, x),
    "mod": emit_integer_mod,
    "floordiv": emit_integer_floordiv,
    "pow": emit_integer_power,
}


def emit_float_divmod(fn: str, x: Tensor, y: Tensor) -> OnnxValue:
    """Emit `x // y` (if `fn` is "floordiv") or `x % y` ("mod") of floats. The remainder has the
    sign of `y`, and `x // 0` is `x / 0`.
    """
    zero = x.g.emit_constant(0, x.dtype)
    # `Mod` supports floats only with `fmod=1`, which is exact and has the sign of the dividend.
    remainder = x.apply_op("Mod", y, fmod=1)
    has_opposite_signs = remainder.apply_op("Sign") * y.apply_op("Sign") < zero
    if fn == "mod":
        return has_opposite_signs.where(remainder + y, remainder)
    # The difference of dividend and remainder is a multiple of the divisor, so the quotient of
    # `Div` has only a rounding error, which `Round` removes. `Floor(x / y)` would sometimes exceed
    # the correct result by 1.
    quotient = ((x - remainder) / y).round()
    quotient = quotient - has_opposite_signs.cast(x.dtype)
    # A nonzero constant divisor requires no `Where`.
    if find_scalar_constant(y):
        return quotient
    return y.equals(zero).where(x / y, quotient)


def find_scalar_constant(x: Tensor) -> int | float | None:
    """Return the value of a scalar constant, or None if `x` is not a constant."""
    node = x.value.node if x.value else None
    return node.op.value if node is not None and isinstance(node.op, ops.Constant) else None


def _is_nonnegative_tensor(x: Tensor) -> bool:
    return x.value is not None and is_nonnegative_value(x.value, x.g)


DIRECT_FUNCTIONS = (
    *("abs", "ceil", "cos", "erf", "exp", "floor", "log", "neg", "reciprocal", "relu", "round"),
    *("sign", "sin", "softplus", "sqrt", "tanh"),
)
"""Functions that lower to a single standard operator, such as `exp` to `Exp`."""

FLOAT32_ONLY_FUNCTIONS = frozenset({"erf", "gelu", "softplus"})
"""Functions for which ONNX Runtime has no f64 kernel. Their f64 operands are cast to f32."""


@lower
def pointwise(op: ops.Pointwise, g: Emitter, x: Tensor) -> OnnxValue:
    """Lower a unary function to an ONNX operator if one exists, otherwise to its formula."""
    if op.fn == "sign" and x.dtype in INTEGER_DTYPES:
        return emit_integer_sign(x)
    needs_f32 = x.dtype == "f64" and op.fn in FLOAT32_ONLY_FUNCTIONS
    operand = x.cast("f32" if needs_f32 else x.dtype)
    if op.fn in DIRECT_FUNCTIONS:
        result = operand.apply_op(op.fn.capitalize())
    else:
        result = FUNCTION_FORMULAS[op.fn](operand)
    return result.cast(x.dtype)


def emit_gelu(x: OnnxValue) -> OnnxValue:
    """Emit `x/2 · (1 + erf(x / √2))` (arXiv:1606.08415, sec. 2)."""
    if x.g.has_operator("Gelu"):
        return x.apply_op("Gelu")
    return x * ((x * math.sqrt(0.5)).apply_op("Erf") + 1.0) * 0.5


def emit_gelu_tanh(x: OnnxValue) -> OnnxValue:
    """Emit `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))` (arXiv:1606.08415, sec. 2)."""
    if x.g.has_operator("Gelu"):
        return x.apply_op("Gelu", approximate="tanh")
    argument = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * (argument.apply_op("Tanh") + 1.0) * 0.5


def emit_expm1(x: OnnxValue) -> OnnxValue:
    """Emit `exp(x) - 1`, accurate near 0: `(u - 1) · x / log(u)` with `u = exp(x)` (Higham,
    Accuracy and Stability of Numerical Algorithms, sec. 1.14.1).
    """
    u = x.exp()
    difference = u - 1.0
    near_zero = difference * (x / u.apply_op("Log"))
    return _emit_near_zero(x, u.equals(1.0).where(x, near_zero), difference)


def _emit_near_zero(
    x: OnnxValue, value_near_zero: OnnxValue, value_elsewhere: OnnxValue
) -> OnnxValue:
    """Emit `value_near_zero` where `|x| < 0.5`, and `value_elsewhere` elsewhere. For `|x| >= 0.5`,
    the direct formula is used. It has no cancellation, whereas `u` in the accurate formula may be
    infinite or 0.
    """
    is_near_zero = x.abs() < 0.5
    return is_near_zero.where(value_near_zero, value_elsewhere)


def emit_log1p(x: OnnxValue) -> OnnxValue:
    """Emit `log(1 + x)`, accurate near 0: `log(u) · x / (u - 1)` with `u = 1 + x`. The rounding
    errors of `u` cancel (`emit_expm1` cites the source).
    """
    u = x + 1.0
    log_u = u.apply_op("Log")
    near_zero = log_u * (x / (u - 1.0))
    return _emit_near_zero(x, u.equals(1.0).where(x, near_zero), log_u)


def emit_sigmoid(x: OnnxValue) -> OnnxValue:
    """Emit `Sigmoid`, or `1 / (1 + exp(-x))` if a small relative error is required."""
    if not x.g.context.needs_accurate_sigmoid:
        return x.apply_op("Sigmoid")
    return _emit_sigmoid_divisor(x).apply_op("Reciprocal")


def _emit_sigmoid_divisor(x: OnnxValue, alpha: float = 1.0) -> OnnxValue:
    """Emit `1 + exp(-slope · x)` with `Mul`, because CoreML does not support `Neg`."""
    return (x * -alpha).exp() + 1.0


def emit_silu(x: OnnxValue, alpha: float = 1.0) -> OnnxValue:
    """Emit `x · sigmoid(slope · x)` (arXiv:1702.03118; arXiv:1606.08415, sec. 2)."""
    if x.g.context.needs_accurate_sigmoid:
        return x / _emit_sigmoid_divisor(x, alpha)
    return x * (x if alpha == 1 else x * alpha).apply_op("Sigmoid")


FUNCTION_FORMULAS: Mapping[str, Callable[[OnnxValue], OnnxValue]] = {
    "gelu": emit_gelu,
    "gelu_tanh": emit_gelu_tanh,
    "quick_gelu": lambda x: emit_silu(x, alpha=1.702),
    "sigmoid": emit_sigmoid,
    "silu": emit_silu,
    # `max(x, 0)²` (arXiv:2109.08668, sec. 3)
    "relu2": lambda x: x.apply_op("Relu") * x.apply_op("Relu"),
    "expm1": emit_expm1,
    "log1p": emit_log1p,
}
"""Emitters of pointwise functions without an ONNX operator."""


@lower
def compare(op: ops.Compare, g: Emitter, left: Tensor, right: Tensor) -> OnnxValue:
    """Lower a comparison to one operator, or to several operators for `ne` and `same_group`."""
    if op.fn == "same_group":
        is_positive = left > 0
        return left.equals(right) & is_positive
    result = left.apply_op(COMPARE_OPERATORS[op.fn], right)
    return ~result if op.fn == "ne" else result


@lower
def cast(op: ops.Cast, g: Emitter, x: Tensor) -> OnnxValue:
    """Emit a `Cast` in which out-of-range floats saturate to the limits of integer types."""
    # a weight that is stored in the target type requires no cast
    stored_weight = g.values.narrow_weights.get(x.name)
    if stored_weight is not None and stored_weight.dtype == op.to:
        return stored_weight
    if op.to in INTEGER_DTYPES and x.dtype in FLOAT_DTYPES:
        return emit_float_to_integer(x, op.to)
    return x.cast(op.to)


def emit_float_to_integer(x: OnnxValue, dtype: str) -> OnnxValue:
    """Emit a cast that truncates towards zero. NaN becomes 0, and out-of-range values saturate."""
    lowest, highest = (x.g.emit_constant(limit, x.dtype) for limit in FLOAT32_INTEGER_RANGES[dtype])
    x_without_nan = x.apply_op("IsNaN").where(0, x)
    return x_without_nan.apply_op("Clip", lowest, highest).cast(dtype)

"""Lower pointwise functions, and arithmetic where ONNX differs from the IR.

ONNX Runtime computes integer `Pow`, `ReduceSum`, `Min`, `Max` and `Sign` in floats or 32 bits,
crashes for `Mod` of the minimum integer by -1, and casts out-of-range values differently on each
CPU architecture. docs/language.md defines the expected results.
"""

import math
from collections.abc import Callable, Mapping

from specc.ir import ops
from specc.ir.graph import Value
from specc.ir.types import FLOAT32_INTEGER_RANGES
from specc_onnx.lower.emitter import Emitter, Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import (
    VALUE_PRESERVING_OPS,
    emit_cast,
    emit_min_length_padding,
    emit_reduce,
    is_nonnegative_value,
    is_position_id_source,
)

INTEGER_DTYPES = frozenset({"i64", "i32"})
"""Integer types in which a graph may compute."""
EXACT_OPERATORS = {"add": "Add", "sub": "Sub", "mul": "Mul"}
"""The ONNX operators of functions that ONNX Runtime computes exactly for integers."""
FLOAT_OPERATORS = {**EXACT_OPERATORS, "div": "Div", "pow": "Pow", "min": "Min", "max": "Max"}
"""The ONNX operators of functions of floats that lower to a single operator."""


@lower
def arith(op: ops.Arith, g: Emitter, left: Tensor, right: Tensor) -> str:
    """Lower to one operator if ONNX has the same semantics, otherwise to several operators."""
    if left.dtype not in INTEGER_DTYPES:
        name = FLOAT_OPERATORS.get(op.fn)
        return (
            g.emit_node(name, left, right) if name else emit_float_division(g, op.fn, left, right)
        )
    if op.fn in EXACT_OPERATORS:
        return g.emit_node(EXACT_OPERATORS[op.fn], left, right)
    return INTEGER_RULES[op.fn](g, left, right)


def emit_integer_sign(g: Emitter, x: Tensor) -> str:
    """Emit the sign (-1, 0 or 1) of integers."""
    dtype = x.dtype
    zero = g.emit_constant(0, dtype)
    is_positive = emit_cast(g, g.emit_node("Less", zero, x), dtype)
    return g.emit_node("Sub", is_positive, emit_cast(g, g.emit_node("Less", x, zero), dtype))


def emit_integer_mod(g: Emitter, x: Tensor, y: Tensor) -> str:
    """Emit the integer remainder `x % y`, which has the sign of `y`; it is 0 if `y` is 0."""
    # A product with 0 has the broadcast shape of the result, unlike a constant 0.
    if find_tensor_constant(y) in (0, -1):
        return g.emit_node("Mul", x, g.emit_constant(0, x.dtype))
    return g.emit_node("Mod", x, _emit_safe_divisor(g, y)[0])


def emit_integer_floordiv(g: Emitter, x: Tensor, y: Tensor) -> str:
    """Emit the floor division `x // y` of integers, which is 0 if `y` is 0. `Div` truncates, so 1
    is subtracted where the remainder of `Div` differs from the result of `Mod`.
    """
    dtype, divisor_value = x.dtype, find_tensor_constant(y)
    # Division by 0 returns 0, and division by -1 returns the negation. Both results are emitted as
    # products.
    if divisor_value in (0, -1):
        return g.emit_node("Mul", x, y)
    divisor, is_special = _emit_safe_divisor(g, y)
    quotient = g.emit_node("Div", x, divisor)
    is_nonnegative = _is_nonnegative_tensor(g, x)
    # For nonnegative operands, truncation is equal to floor.
    if not (is_nonnegative and (divisor_value or 0) > 0) and not (
        is_nonnegative and _is_nonnegative_tensor(g, y)
    ):
        remainder = g.emit_node("Sub", x, g.emit_node("Mul", quotient, divisor))
        if divisor_value is not None:
            is_too_large = _emit_sign_difference(g, remainder, divisor_value, dtype)
        else:
            is_too_large = g.emit_node(
                "Not", g.emit_node("Equal", remainder, g.emit_node("Mod", x, divisor))
            )
        quotient = g.emit_node("Sub", quotient, emit_cast(g, is_too_large, dtype))
    return (
        g.emit_node("Where", is_special, g.emit_node("Mul", x, y), quotient)
        if is_special
        else quotient
    )


def _emit_sign_difference(g: Emitter, remainder: str, divisor_value: float, dtype: str) -> str:
    """Emit a mask that is true where a remainder and the constant divisor have opposite signs."""
    zero = g.emit_constant(0, dtype)
    return g.emit_node("Less", *((remainder, zero) if divisor_value > 0 else (zero, remainder)))


def _emit_safe_divisor(g: Emitter, y: Tensor) -> tuple[str, str]:
    """Emit the divisor `y` with 0 and -1 replaced by 1. Return the name of the divisor and the name
    of a mask of replaced elements, which is "" if no element is replaced.
    """
    # Callers handle the constant divisors 0 and -1.
    if find_tensor_constant(y) is not None:
        return y.name, ""
    dtype = y.dtype
    is_special = g.emit_node("Equal", y, g.emit_constant(0, dtype))
    if not _is_nonnegative_tensor(g, y):
        is_special = g.emit_node(
            "Or", is_special, g.emit_node("Equal", y, g.emit_constant(-1, dtype))
        )
    return g.emit_node("Where", is_special, g.emit_constant(1, dtype), y), is_special


def emit_integer_power(g: Emitter, x: Tensor, y: Tensor) -> str:
    """Emit integer `x ** y` for a constant `y` by repeated squaring: `Pow` computes in floats."""
    exponent = find_tensor_constant(y)
    assert isinstance(exponent, int), "the exponent of an integer is static"
    assert exponent >= 0, "the exponent of an integer is not negative"
    one = g.emit_constant(1, x.dtype)
    if exponent == 0:
        return g.emit_node("Add", g.emit_node("Mul", x, g.emit_constant(0, x.dtype)), one)
    product, power = "", x.name
    while exponent:
        if exponent % 2:
            product = g.emit_node("Mul", product, power) if product else power
        exponent //= 2
        power = g.emit_node("Mul", power, power) if exponent else power
    return product


INTEGER_RULES: dict[str, Callable[[Emitter, Tensor, Tensor], str]] = {
    "min": lambda g, x, y: g.emit_node("Where", g.emit_node("Less", y, x), y, x),
    "max": lambda g, x, y: g.emit_node("Where", g.emit_node("Less", x, y), y, x),
    "mod": emit_integer_mod,
    "floordiv": emit_integer_floordiv,
    "pow": emit_integer_power,
}


def emit_float_division(g: Emitter, fn: str, x: Tensor, y: Tensor) -> str:
    """Emit `x // y` (if `fn` is "floordiv") or `x % y` ("mod") of floats. The remainder has the
    sign of `y`, and `x // 0` is `x / 0`.
    """
    dtype = x.dtype
    zero = g.emit_constant(0, dtype)
    # `Mod` supports floats only with `fmod=1`, which is exact and has the sign of the dividend.
    remainder = g.emit_node("Mod", x, y, fmod=1)
    has_opposite_signs = g.emit_node(
        "Less", g.emit_node("Mul", g.emit_node("Sign", remainder), g.emit_node("Sign", y)), zero
    )
    if fn == "mod":
        return g.emit_node("Where", has_opposite_signs, g.emit_node("Add", remainder, y), remainder)
    # Dividend minus remainder is a multiple of the divisor, so the quotient of `Div` has only a
    # rounding error, which `Round` removes. `Floor(x / y)` would sometimes be one too large.
    quotient = g.emit_node("Round", g.emit_node("Div", g.emit_node("Sub", x, remainder), y))
    quotient = g.emit_node("Sub", quotient, emit_cast(g, has_opposite_signs, dtype))
    # A nonzero constant divisor needs no `Where`.
    if find_tensor_constant(y):
        return quotient
    return g.emit_node("Where", g.emit_node("Equal", y, zero), g.emit_node("Div", x, y), quotient)


def emit_float_to_integer(g: Emitter, x: str, source_dtype: str, dtype: str) -> str:
    """Emit a cast that truncates towards zero. NaN becomes 0, and out-of-range values saturate."""
    lowest, highest = (
        g.emit_constant(limit, source_dtype) for limit in FLOAT32_INTEGER_RANGES[dtype]
    )
    # Casts of out-of-range values differ between CPU architectures.
    x_without_nan = g.emit_node(
        "Where", g.emit_node("IsNaN", x), g.emit_constant(0, source_dtype), x
    )
    return emit_cast(g, g.emit_node("Clip", x_without_nan, lowest, highest), dtype)


def emit_integer_sum(g: Emitter, x: Tensor, axis: int) -> str:
    """Emit an exact sum of 64-bit integers along an axis; `ReduceSum` adds them as floats."""
    if x.value is not None and has_exact_float_sum(x.value):
        return emit_reduce(g, "ReduceSum", x, axis)
    # The sum is the last element of `CumSum`, which is exact for integers. A zero is appended to
    # the axis, because the axis may be empty.
    sums = g.emit_node("CumSum", emit_min_length_padding(g, x, axis), axis)
    return g.emit_node("Gather", sums, -1, axis=axis)


def has_exact_float_sum(value: Value) -> bool:
    """Return True if the elements of an integer tensor are position ids, indices or booleans cast
    to integers, whose sums along an axis are far below 2**53.
    """
    while value.node is not None:
        if is_position_id_source(value):
            return True
        if isinstance(value.node.op, ops.Cast):
            (operand,) = value.node.args
            return operand is not None and operand.type.dtype == "bool"
        operand = value.node.args[0] if isinstance(value.node.op, VALUE_PRESERVING_OPS) else None
        if operand is None:
            return False
        value = operand
    return False


def find_tensor_constant(x: Tensor) -> int | float | None:
    """Return the value of a scalar constant, or None if `x` is not a constant."""
    node = x.value.node if x.value else None
    return node.op.value if node is not None and isinstance(node.op, ops.Constant) else None


def _is_nonnegative_tensor(g: Emitter, x: Tensor) -> bool:
    return x.value is not None and is_nonnegative_value(x.value, g)


DIRECT_FUNCTIONS = (
    *("abs", "ceil", "cos", "erf", "exp", "floor", "log", "neg", "reciprocal", "relu", "round"),
    *("sign", "sin", "softplus", "sqrt", "tanh"),
)
"""Functions that lower to a single standard operator, such as `exp` to `Exp`."""

FLOAT32_ONLY_FUNCTIONS = frozenset({"erf", "gelu", "softplus"})
"""Functions without an f64 kernel in ONNX Runtime; f64 operands are cast to f32."""


@lower
def pointwise(op: ops.Pointwise, g: Emitter, x: Tensor) -> str:
    """Lower to a single operator if ONNX has the function, otherwise to the function's formula."""
    dtype = x.dtype
    if op.fn == "sign" and dtype in INTEGER_DTYPES:
        return emit_integer_sign(g, x)
    compute_dtype = "f32" if dtype == "f64" and op.fn in FLOAT32_ONLY_FUNCTIONS else dtype
    name = emit_cast(g, x, compute_dtype)
    if op.fn in DIRECT_FUNCTIONS:
        result = g.emit_node(op.fn.capitalize(), name)
    else:
        result = FUNCTION_FORMULAS[op.fn](
            g, name, lambda value: g.emit_constant(value, compute_dtype)
        )
    return emit_cast(g, result, dtype, source_dtype=compute_dtype)


ConstantEmitter = Callable[[float], str]
"""A function that emits a scalar constant in the compute type and returns its name."""


def emit_gelu(g: Emitter, x: str, emit_constant: ConstantEmitter) -> str:
    """Emit `x/2 · (1 + erf(x / √2))` (arXiv:1606.08415, sec. 2)."""
    if g.has_operator("Gelu"):
        return g.emit_node("Gelu", x)
    return _emit_gate(
        g,
        x,
        g.emit_node("Erf", g.emit_node("Mul", x, emit_constant(math.sqrt(0.5)))),
        emit_constant,
    )


def _emit_gate(g: Emitter, x: str, gate: str, emit_constant: ConstantEmitter) -> str:
    """Emit `x/2 · (1 + gate)`."""
    return g.emit_node(
        "Mul",
        g.emit_node("Mul", x, g.emit_node("Add", gate, emit_constant(1.0))),
        emit_constant(0.5),
    )


def emit_gelu_tanh(g: Emitter, x: str, emit_constant: ConstantEmitter) -> str:
    """Emit `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))` (arXiv:1606.08415, sec. 2)."""
    if g.has_operator("Gelu"):
        return g.emit_node("Gelu", x, approximate="tanh")
    cube = g.emit_node(
        "Mul", g.emit_node("Mul", g.emit_node("Mul", x, x), x), emit_constant(0.044715)
    )
    argument = g.emit_node(
        "Mul", g.emit_node("Add", x, cube), emit_constant(math.sqrt(2 / math.pi))
    )
    return _emit_gate(g, x, g.emit_node("Tanh", argument), emit_constant)


def emit_expm1(g: Emitter, x: str, emit_constant: ConstantEmitter) -> str:
    """Emit `exp(x) - 1`, accurate near 0: `(u - 1) · x / log(u)` with `u = exp(x)` (Higham,
    Accuracy and Stability of Numerical Algorithms, sec. 1.14.1).
    """
    one = emit_constant(1.0)
    exponential = g.emit_node("Exp", x)
    difference = g.emit_node("Sub", exponential, one)
    value_near_zero = g.emit_node(
        "Mul", difference, g.emit_node("Div", x, g.emit_node("Log", exponential))
    )
    return _emit_near_zero(
        g,
        x,
        g.emit_node("Where", g.emit_node("Equal", exponential, one), x, value_near_zero),
        difference,
        emit_constant,
    )


def _emit_near_zero(
    g: Emitter, x: str, value_near_zero: str, value_elsewhere: str, emit_constant: ConstantEmitter
) -> str:
    """Emit `value_near_zero` for `|x| < 0.5`, otherwise `value_elsewhere`. For `|x| >= 0.5`, the
    direct formula has no cancellation, whereas `u` in the accurate formula may be infinite or 0.
    """
    return g.emit_node(
        "Where",
        g.emit_node("Less", g.emit_node("Abs", x), emit_constant(0.5)),
        value_near_zero,
        value_elsewhere,
    )


def emit_log1p(g: Emitter, x: str, emit_constant: ConstantEmitter) -> str:
    """Emit `log(1 + x)`, accurate near 0: `log(u) · x / (u - 1)` with `u = 1 + x`, where the
    rounding errors of `u` cancel (see `emit_expm1` for the source).
    """
    one = emit_constant(1.0)
    u = g.emit_node("Add", x, one)
    log_u = g.emit_node("Log", u)
    value_near_zero = g.emit_node("Mul", log_u, g.emit_node("Div", x, g.emit_node("Sub", u, one)))
    return _emit_near_zero(
        g,
        x,
        g.emit_node("Where", g.emit_node("Equal", u, one), x, value_near_zero),
        log_u,
        emit_constant,
    )


def emit_sigmoid(g: Emitter, x: str, emit_constant: ConstantEmitter) -> str:
    """Emit `Sigmoid`, or `1 / (1 + exp(-x))` if the lowered node needs a small relative error."""
    if not g.site.needs_accurate_sigmoid:
        return g.emit_node("Sigmoid", x)
    return g.emit_node("Reciprocal", _emit_sigmoid_divisor(g, x, emit_constant))


def _emit_sigmoid_divisor(
    g: Emitter, x: str, emit_constant: ConstantEmitter, slope: float = 1.0
) -> str:
    """Emit `1 + exp(-slope · x)` with `Mul`, because CoreML does not support `Neg`."""
    exponential = g.emit_node("Exp", g.emit_node("Mul", x, emit_constant(-slope)))
    return g.emit_node("Add", exponential, emit_constant(1.0))


def emit_silu(g: Emitter, x: str, emit_constant: ConstantEmitter, slope: float = 1.0) -> str:
    """Emit `x · sigmoid(slope · x)` (arXiv:1702.03118; arXiv:1606.08415, sec. 2)."""
    if g.site.needs_accurate_sigmoid:
        return g.emit_node("Div", x, _emit_sigmoid_divisor(g, x, emit_constant, slope))
    scaled_x = x if slope == 1 else g.emit_node("Mul", x, emit_constant(slope))
    return g.emit_node("Mul", x, g.emit_node("Sigmoid", scaled_x))


FUNCTION_FORMULAS: Mapping[str, Callable[[Emitter, str, ConstantEmitter], str]] = {
    "gelu": emit_gelu,
    "gelu_tanh": emit_gelu_tanh,
    "quick_gelu": lambda g, x, emit_constant: emit_silu(g, x, emit_constant, slope=1.702),
    "sigmoid": emit_sigmoid,
    "silu": emit_silu,
    # `max(x, 0)²` (arXiv:2109.08668, sec. 3)
    "relu2": lambda g, x, emit_constant: g.emit_node("Mul", *[g.emit_node("Relu", x)] * 2),
    "expm1": emit_expm1,
    "log1p": emit_log1p,
}
"""Emitters of pointwise functions without an ONNX operator. An emitter takes the operand and a
function that emits constants of the compute type.
"""

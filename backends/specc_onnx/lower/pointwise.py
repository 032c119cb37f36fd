"""Lower functions of one number: a standard operator or a formula."""

import math
from collections.abc import Callable

from specc.ir import ops
from specc_onnx.lower.arithmetic import INTEGER_DTYPES, emit_integer_sign
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import emit_cast

DIRECT_OPERATORS = {
    "abs": "Abs",
    "ceil": "Ceil",
    "cos": "Cos",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "log": "Log",
    "neg": "Neg",
    "reciprocal": "Reciprocal",
    "relu": "Relu",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "softplus": "Softplus",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
}
"""Functions that are one standard operator."""

FLOAT32_ONLY_FUNCTIONS = frozenset({"erf", "gelu", "softplus"})
"""Functions without a double kernel in ONNX Runtime; a double goes through f32 there."""


@lower(ops.Pointwise)
def pointwise(op: ops.Pointwise, g: Emitter, x: Tensor) -> str:
    """One operator where there is one, else its formula."""
    dtype = x.type.dtype
    if op.fn == "sign" and dtype in INTEGER_DTYPES:
        return emit_integer_sign(g, x)
    inner = "f32" if dtype == "f64" and op.fn in FLOAT32_ONLY_FUNCTIONS else dtype
    name = emit_cast(g, x.name, dtype, inner)
    if op.fn in DIRECT_OPERATORS:
        result = g.node(DIRECT_OPERATORS[op.fn], name)
    else:
        result = FUNCTION_FORMULAS[op.fn](g, name, lambda value: g.constant(value, inner))
    return emit_cast(g, result, inner, dtype)


ConstantEmitter = Callable[[float], str]


def emit_gelu(g: Emitter, x: str, number: ConstantEmitter) -> str:
    """`x/2 · (1 + erf(x / √2))` (arXiv:1606.08415, sec. 2)."""
    if g.has("Gelu"):
        return g.node("Gelu", x)
    bell = g.node("Erf", g.node("Mul", x, number(math.sqrt(0.5))))
    twice = g.node("Mul", x, g.node("Add", bell, number(1.0)))
    return g.node("Mul", twice, number(0.5))


def emit_gelu_tanh(g: Emitter, x: str, number: ConstantEmitter) -> str:
    """`x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))` (arXiv:1606.08415, sec. 2)."""
    if g.has("Gelu"):
        return g.node("Gelu", x, approximate="tanh")
    cube = g.node("Mul", g.node("Mul", g.node("Mul", x, x), x), number(0.044715))
    inside = g.node("Mul", g.node("Add", x, cube), number(math.sqrt(2 / math.pi)))
    bell = g.node("Tanh", inside)
    twice = g.node("Mul", x, g.node("Add", bell, number(1.0)))
    return g.node("Mul", twice, number(0.5))


def emit_quick_gelu(g: Emitter, x: str, number: ConstantEmitter) -> str:
    """`x · sigmoid(1.702 x)` (arXiv:1606.08415, sec. 2)."""
    return g.node("Mul", x, g.node("Sigmoid", g.node("Mul", x, number(1.702))))


def emit_silu(g: Emitter, x: str, number: ConstantEmitter) -> str:
    """`x · sigmoid(x)`."""
    return g.node("Mul", x, g.node("Sigmoid", x))


def emit_relu2(g: Emitter, x: str, number: ConstantEmitter) -> str:
    """`max(x, 0)²` (arXiv:2109.08668, sec. 3)."""
    kept = g.node("Relu", x)
    return g.node("Mul", kept, kept)


def emit_expm1(g: Emitter, x: str, number: ConstantEmitter) -> str:
    """`exp(x) - 1`, accurate near 0: `(u - 1) · x / log(u)` with `u = exp(x)`, where the
    rounding errors of `u` cancel (Higham, Accuracy and Stability of Numerical
    Algorithms, sec. 1.14.1).
    """
    one = number(1.0)
    u = g.node("Exp", x)
    less = g.node("Sub", u, one)
    near = g.node("Mul", less, g.node("Div", x, g.node("Log", u)))
    near = g.node("Where", g.node("Equal", u, one), x, near)
    # away from 0 nothing cancels, and `exp` may be infinite or 0
    small = g.node("Less", g.node("Abs", x), number(0.5))
    return g.node("Where", small, near, less)


def emit_log1p(g: Emitter, x: str, number: ConstantEmitter) -> str:
    """`log(1 + x)`, accurate near 0: `log(u) · x / (u - 1)` with `u = 1 + x`, where the
    rounding errors of `u` cancel (same source as `emit_expm1`).
    """
    one = number(1.0)
    u = g.node("Add", x, one)
    far = g.node("Log", u)
    near = g.node("Mul", far, g.node("Div", x, g.node("Sub", u, one)))
    near = g.node("Where", g.node("Equal", u, one), x, near)
    # away from 0 nothing cancels, and `u` may be infinite or 0
    small = g.node("Less", g.node("Abs", x), number(0.5))
    return g.node("Where", small, near, far)


FUNCTION_FORMULAS: dict[str, Callable[[Emitter, str, ConstantEmitter], str]] = {
    "gelu": emit_gelu,
    "gelu_tanh": emit_gelu_tanh,
    "quick_gelu": emit_quick_gelu,
    "silu": emit_silu,
    "relu2": emit_relu2,
    "expm1": emit_expm1,
    "log1p": emit_log1p,
}

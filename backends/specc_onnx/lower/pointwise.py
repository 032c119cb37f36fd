"""Lowering of functions of one number: a standard operator, or the formula."""

import math
from collections.abc import Callable

from specc.ir import ops
from specc_onnx.lower.arithmetic import WHOLE, sign
from specc_onnx.lower.arrange import cast
from specc_onnx.lower.emitter import Emitter, Tensor
from specc_onnx.lower.table import lower

DIRECT = {
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

SINGLE_ONLY = frozenset({"erf", "gelu", "softplus"})
"""Functions without a double kernel in ONNX Runtime; a double goes through f32 there."""


@lower(ops.Pointwise)
def pointwise(op: ops.Pointwise, g: Emitter, x: Tensor) -> str:
    """One operator where there is one, else its formula."""
    dtype = x.type.dtype
    if op.fn == "sign" and dtype in WHOLE:
        return sign(g, x)
    inner = "f32" if dtype == "f64" and op.fn in SINGLE_ONLY else dtype
    name = cast(g, x.name, dtype, inner)
    if op.fn in DIRECT:
        result = g.node(DIRECT[op.fn], name)
    else:
        result = FORMULAS[op.fn](g, name, lambda value: g.constant(value, inner))
    return cast(g, result, inner, dtype)


Number = Callable[[float], str]


def gelu(g: Emitter, x: str, number: Number) -> str:
    """`x/2 · (1 + erf(x / √2))` (arXiv:1606.08415, sec. 2)."""
    if g.has("Gelu"):
        return g.node("Gelu", x)
    bell = g.node("Erf", g.node("Mul", x, number(math.sqrt(0.5))))
    twice = g.node("Mul", x, g.node("Add", bell, number(1.0)))
    return g.node("Mul", twice, number(0.5))


def gelu_tanh(g: Emitter, x: str, number: Number) -> str:
    """`x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))` (arXiv:1606.08415, sec. 2)."""
    if g.has("Gelu"):
        return g.node("Gelu", x, approximate="tanh")
    cube = g.node("Mul", g.node("Mul", g.node("Mul", x, x), x), number(0.044715))
    inside = g.node("Mul", g.node("Add", x, cube), number(math.sqrt(2 / math.pi)))
    bell = g.node("Tanh", inside)
    twice = g.node("Mul", x, g.node("Add", bell, number(1.0)))
    return g.node("Mul", twice, number(0.5))


def quick_gelu(g: Emitter, x: str, number: Number) -> str:
    """`x · sigmoid(1.702 x)` (arXiv:1606.08415, sec. 2)."""
    return g.node("Mul", x, g.node("Sigmoid", g.node("Mul", x, number(1.702))))


def silu(g: Emitter, x: str, number: Number) -> str:
    """`x · sigmoid(x)`."""
    return g.node("Mul", x, g.node("Sigmoid", x))


def relu2(g: Emitter, x: str, number: Number) -> str:
    """`max(x, 0)²` (arXiv:2109.08668, sec. 3)."""
    kept = g.node("Relu", x)
    return g.node("Mul", kept, kept)


def expm1(g: Emitter, x: str, number: Number) -> str:
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


def log1p(g: Emitter, x: str, number: Number) -> str:
    """`log(1 + x)`, accurate near 0: `log(u) · x / (u - 1)` with `u = 1 + x`, where the
    rounding errors of `u` cancel (same source as `expm1`).
    """
    one = number(1.0)
    u = g.node("Add", x, one)
    far = g.node("Log", u)
    near = g.node("Mul", far, g.node("Div", x, g.node("Sub", u, one)))
    near = g.node("Where", g.node("Equal", u, one), x, near)
    # away from 0 nothing cancels, and `u` may be infinite or 0
    small = g.node("Less", g.node("Abs", x), number(0.5))
    return g.node("Where", small, near, far)


FORMULAS: dict[str, Callable[[Emitter, str, Number], str]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": silu,
    "relu2": relu2,
    "expm1": expm1,
    "log1p": log1p,
}

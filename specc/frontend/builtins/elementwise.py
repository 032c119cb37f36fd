"""Built-in elementwise functions, conversions, and functions of compile-time values."""

import math
from collections.abc import Callable
from typing import Literal

from specc.frontend import runtime_scalars
from specc.frontend.builtins.registry import (
    BUILTINS,
    Builtin,
    BuiltinParameter,
    CallContext,
    register_builtin,
)
from specc.frontend.node_builder import try_fuse_log_sigmoid
from specc.frontend.operators import convert_operands, convert_to_tensor
from specc.frontend.parameter_kinds import ANY_KIND, Anything
from specc.frontend.runtime_scalars import (
    convert_to_float,
    get_static_float,
    is_integral,
    truncate_to_integer,
)
from specc.frontend.spec_values import (
    MISSING,
    EvalResult,
    Number,
    Record,
    RuntimeScalar,
    SpecValue,
    Tensor,
    describe_value,
)
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.ops.tensor import POINTWISE_FUNCTIONS

FUNCTION_DOCS = {
    "abs": "Return the absolute value of each element.",
    "ceil": "Round each element up to an integer.",
    "cos": "Return the cosine of each element, in radians.",
    "erf": "Return the error function of each element.",
    "exp": "Return e to the power of each element.",
    "expm1": "exp(x) - 1, accurate near 0.",
    "floor": "Round each element down to an integer.",
    "gelu": "GELU, exact: x · Φ(x) (arXiv:1606.08415, sec. 2).",
    "gelu_tanh": "GELU with the tanh approximation, as in GPT-2 and the original BERT code "
    "(arXiv:1606.08415, sec. 2).",
    "log": "Return the natural logarithm of each element.",
    "log1p": "log(1 + x), accurate near 0.",
    "neg": "Return -x.",
    "quick_gelu": "x · sigmoid(1.702 x) (arXiv:1606.08415, sec. 2).",
    "reciprocal": "1 / x.",
    "relu": "max(0, x).",
    "relu2": "Squared ReLU: max(0, x)² (arXiv:2109.08668).",
    "round": "Round each element to the nearest integer; halves are rounded to even.",
    "sigmoid": "1 / (1 + exp(-x)).",
    "sign": "Return the sign of each element: -1, 0 or 1.",
    "silu": "SiLU (Swish): x · sigmoid(x) (arXiv:1702.03118).",
    "sin": "Return the sine of each element, in radians.",
    "softplus": "log(1 + exp(x)).",
    "sqrt": "Return the square root of each element.",
    "tanh": "Return the hyperbolic tangent of each element.",
}
"""The documentation of each elementwise unary function, keyed by name."""

NUMBER_FUNCTIONS = runtime_scalars.UNARY_FUNCTIONS.keys() - {"neg"}
"""The elementwise functions that also accept a compile-time number."""


def _make_pointwise(fn: str) -> Callable[[CallContext, SpecValue], Tensor | Number]:
    """Return the implementation of the elementwise unary function `fn`."""

    def evaluate_pointwise(ctx: CallContext, x: SpecValue) -> Tensor | Number:
        match x:
            case Tensor():
                stable = try_fuse_log_sigmoid(ctx.builder, x) if fn == "log" else None
                return stable or ctx.add_op(ops.Pointwise(fn), x)
            case Dim() | float() | RuntimeScalar() if fn in NUMBER_FUNCTIONS:
                try:
                    return runtime_scalars.apply_unary_function(ctx.builder, fn, x)
                except (ValueError, OverflowError, ZeroDivisionError):
                    ctx.raise_error("E0310", f"{fn}({x}) is undefined", "x")
        expected = "" if isinstance(x, Number) else f" or a number, got {describe_value(x)}"
        ctx.raise_error("E0203", f"`{fn}`: expected a tensor{expected}", "x")

    return evaluate_pointwise


for _fn in POINTWISE_FUNCTIONS:
    BUILTINS[_fn] = Builtin(
        _fn,
        (BuiltinParameter("x", (ANY_KIND,), MISSING, is_positional=True),),
        _make_pointwise(_fn),
        False,
        FUNCTION_DOCS[_fn],
    )


@register_builtin()
def identity(ctx: CallContext, x: Tensor) -> Tensor:
    """Return `x` unchanged."""
    return x


@register_builtin()
def where(ctx: CallContext, condition: Tensor, then: Anything, otherwise: Anything) -> Tensor:
    """Select elements from `then` where the condition is true, and from `otherwise` elsewhere."""
    # if both branches are numbers, their types determine the element type of the result
    if not isinstance(then, Tensor) and not isinstance(otherwise, Tensor):
        dtype = "i64" if is_integral(then) and is_integral(otherwise) else "f32"
        if isinstance(then, bool):
            dtype = "bool"
        then = convert_to_tensor(ctx.builder, then, dtype)
    a, b = convert_operands(ctx.builder, then, otherwise)
    return ctx.add_op(ops.Where(), condition, a, b)


@register_builtin()
def clip(ctx: CallContext, x: Tensor, *, low: Anything = None, high: Anything = None) -> Tensor:
    """Clamp values between `low` and `high`."""
    minimum, maximum = (get_static_float(b) if isinstance(b, Number) else None for b in (low, high))
    if minimum is not None and maximum is not None and minimum > maximum:
        title = f"`clip`: `low` {minimum:g} is above `high` {maximum:g}"
        ctx.raise_error("E0417", title, "low")
    for bound, fn in ((low, "max"), (high, "min")):
        if bound is not None:
            x = ctx.add_binary_op(fn, *convert_operands(ctx.builder, x, bound))
    return x


@register_builtin()
def in_same_group(ctx: CallContext, x: Tensor, y: Tensor) -> Tensor:
    """Test elementwise whether two group ids are equal and positive. The id 0 marks positions
    without a group. In a decode step, all positions of a group, such as the image in a prompt, are
    processed together. Therefore, the mask `same_group` is considered causal.
    """
    return ctx.add_op(ops.Compare("same_group"), x, y)


@register_builtin()
def cast(ctx: CallContext, x: Tensor, *, to: Literal["float", "int", "bool"]) -> Tensor:
    """Convert to another element type. True becomes 1. Floats are truncated towards zero when cast
    to integers. When cast to bool, all values except 0 become true.
    """
    if to == "bool":
        if x.type.dtype == "bool":
            return x
        zero = ctx.add_constant(0, x.type.dtype)
        return ctx.add_op(ops.Compare("ne"), x, zero)
    return ctx.add_op(ops.Cast({"float": "f32", "int": "i64"}[to]), x)


@register_builtin(name="len")
def len_(ctx: CallContext, x: Anything) -> Dim:
    """Return the number of items of a list, or of characters of a string."""
    if isinstance(x, tuple | str):
        return Dim.from_value(len(x))
    if isinstance(x, Record):
        return Dim.from_value(len(x.fields))
    helps = ["length(x, axis=1) is the length of a tensor's axis"] if isinstance(x, Tensor) else []
    ctx.raise_error(
        "E0203", f"`len`: expected a list or a string, got {describe_value(x)}", "x", helps=helps
    )


@register_builtin(name="int")
def int_(ctx: CallContext, x: Anything) -> EvalResult:
    """Convert a number to an integer, truncating towards zero."""
    if not isinstance(x, Number):
        ctx.raise_error("E0203", f"`int`: expected a number, got {describe_value(x)}", "x")
    if isinstance(x, float) and not math.isfinite(x):
        ctx.raise_error("E0310", f"int({x:g}) has no value", "x")
    if isinstance(x, RuntimeScalar):
        return truncate_to_integer(ctx.builder, x)
    return x if isinstance(x, Dim) else Dim.from_value(int(x))


@register_builtin()
def at_least(ctx: CallContext, x: Anything, least: Anything) -> EvalResult:
    """Return the argument `x`, or raise E0417 if it is less than `least`."""
    if not isinstance(x, Number) or not isinstance(least, Number):
        ctx.raise_error("E0203", f"`at_least`: expected two numbers, got {describe_value(x)}", "x")
    number, minimum = get_static_float(x), get_static_float(least)
    if number is None or minimum is None or number >= minimum:
        return x
    ctx.raise_error("E0417", f"{x} is below the minimum, {least}", "x")


@register_builtin(name="float")
def float_(ctx: CallContext, x: Anything) -> EvalResult:
    """Convert a number, or the elements of a tensor, to floating point."""
    if isinstance(x, Tensor):
        return ctx.add_op(ops.Cast("f32"), x) if x.type.dtype in ("i64", "bool") else x
    if not isinstance(x, Number):
        ctx.raise_error(
            "E0203", f"`float`: expected a number or a tensor, got {describe_value(x)}", "x"
        )
    return convert_to_float(ctx.builder, x)

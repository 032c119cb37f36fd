"""Built-in elementwise functions and reductions."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from specc.frontend import runtime_scalars
from specc.frontend.builtins.registry import (
    BUILTINS,
    LAST_AXIS,
    SECOND_AXIS,
    ZERO,
    Builtin,
    BuiltinParameter,
    CallSite,
    register_builtin,
)
from specc.frontend.node_builder import add_log_sigmoid
from specc.frontend.operators import convert_operands, convert_to_tensor
from specc.frontend.parameter_kinds import ANY_KIND, Anything
from specc.frontend.runtime_scalars import get_static_float, is_integer_number
from specc.frontend.spec_values import (
    MISSING,
    Number,
    RuntimeNumber,
    SpecValue,
    Tensor,
    describe_value,
)
from specc.ir import ops
from specc.ir.dim import Dim, max_dims, min_dims
from specc.ir.ops.tensor import POINTWISE_FUNCTIONS

FUNCTION_DOCS = {
    "abs": "The absolute value.",
    "ceil": "The smallest integer that is at least x.",
    "cos": "The cosine of x in radians.",
    "erf": "The error function.",
    "exp": "The exponential function.",
    "expm1": "exp(x) - 1, accurate near 0.",
    "floor": "The largest integer that is at most x.",
    "gelu": "GELU, exact: x · Φ(x) (arXiv:1606.08415, sec. 2).",
    "gelu_tanh": "GELU by its tanh approximation, as in GPT-2 and BERT's original code "
    "(arXiv:1606.08415, sec. 2).",
    "log": "The natural logarithm.",
    "log1p": "log(1 + x), accurate near 0.",
    "neg": "The negative, -x.",
    "quick_gelu": "x · sigmoid(1.702 x) (arXiv:1606.08415, sec. 2).",
    "reciprocal": "1 / x.",
    "relu": "max(0, x).",
    "relu2": "Squared ReLU: max(0, x)² (arXiv:2109.08668).",
    "round": "The nearest integer; halves round to even.",
    "sigmoid": "1 / (1 + exp(-x)).",
    "sign": "The sign of x: -1, 0 or 1.",
    "silu": "SiLU (Swish): x · sigmoid(x) (arXiv:1702.03118).",
    "sin": "The sine of x in radians.",
    "softplus": "log(1 + exp(x)).",
    "sqrt": "The square root.",
    "tanh": "The hyperbolic tangent.",
}
"""The documentation of the elementwise unary functions, by name."""

NUMBER_FUNCTIONS = runtime_scalars.UNARY_FUNCTIONS.keys() - {"neg"}
"""The elementwise functions that also accept a compile-time number."""


def _make_pointwise(fn: str) -> Callable[[CallSite, SpecValue], Tensor | Number]:
    """Return the implementation of the elementwise unary function `fn`."""

    def evaluate_pointwise(site: CallSite, x: SpecValue) -> Tensor | Number:
        match x:
            case Tensor():
                stable = add_log_sigmoid(site.nodes, x) if fn == "log" else None
                return stable or site.add_op(ops.Pointwise(fn), x)
            case Dim() | float() | RuntimeNumber() if fn in NUMBER_FUNCTIONS:
                try:
                    return runtime_scalars.apply_unary_function(site.nodes, fn, x)
                except (ValueError, OverflowError, ZeroDivisionError):
                    site.raise_error("E0310", f"{fn}({x}) is undefined", "x")
        expected = "" if isinstance(x, Number) else f" or a number, got {describe_value(x)}"
        site.raise_error("E0203", f"`{fn}`: expected a tensor{expected}", "x")

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
def identity(site: CallSite, x: Tensor) -> Tensor:
    """Return `x` unchanged."""
    return x


@register_builtin(name="min")
def min_(
    site: CallSite, x: Anything, *others: Anything, axis: Dim | None = None
) -> Tensor | Number:
    """Return the elementwise minimum of several operands, the minimum along `axis`, or the
    minimum of a list of numbers.
    """
    return _compute_extreme(site, "min", x, others, axis)


@register_builtin(name="max")
def max_(
    site: CallSite, x: Anything, *others: Anything, axis: Dim | None = None
) -> Tensor | Number:
    """Return the elementwise maximum of several operands, the maximum along `axis`, or the
    maximum of a list of numbers.
    """
    return _compute_extreme(site, "max", x, others, axis)


def _compute_extreme(
    site: CallSite,
    fn: Literal["min", "max"],
    x: SpecValue,
    others: tuple[SpecValue, ...],
    axis: Dim | None,
) -> Tensor | Number:
    if axis is not None:
        return add_reduction(site, fn, x, axis)
    # the operands are either a list, as in `max(sizes)`, or several values, as in `max(a, b)`
    items = list(x) if isinstance(x, tuple) and not others else [x, *others]
    if not items:
        site.raise_error("E0203", f"`{fn}` of an empty list is undefined")
    return _fold_operands(site, fn, _require_operands(site, fn, x, items))


ElementwiseOperand: TypeAlias = Tensor | Dim | float | RuntimeNumber
"""An operand of an elementwise function, which may mix tensors and numbers."""

INTEGER_FUNCTIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "add": operator.add,
    "min": min_dims,
    "max": max_dims,
}
"""The elementwise functions of two dimensions whose result is a dimension."""


def _require_operands(
    site: CallSite, fn: str, x: SpecValue, items: Iterable[SpecValue]
) -> list[ElementwiseOperand]:
    """Return `items` as a list. Raise E0203 for an item that is neither a number nor a tensor."""
    operands: list[ElementwiseOperand] = []
    for item in items:
        if not isinstance(item, ElementwiseOperand):
            title = f"`{fn}`: expected numbers and tensors, got {describe_value(item)}"
            site.raise_error("E0203", title, "x" if item is x or isinstance(x, tuple) else "")
        operands.append(item)
    return operands


def _fold_operands(
    site: CallSite, fn: str, operands: Sequence[ElementwiseOperand]
) -> ElementwiseOperand:
    """Reduce a list of operands from left to right with a binary function."""
    result = operands[0]
    for operand in operands[1:]:
        if isinstance(result, Tensor) or isinstance(operand, Tensor):
            converted = convert_operands(site.nodes, result, operand)
            result = site.add_arithmetic(fn, *converted)
        elif isinstance(result, Dim) and isinstance(operand, Dim):
            result = INTEGER_FUNCTIONS[fn](result, operand)
        else:
            result = runtime_scalars.compute_arithmetic(site.nodes, fn, result, operand)
    return result


def add_reduction(site: CallSite, fn: str, x: SpecValue, axis: Dim) -> Tensor:
    """Reduce the tensor `x` along an axis with `fn`. Raise E0203 if `x` is not a tensor."""
    if not isinstance(x, Tensor):
        site.raise_error(
            "E0203", f"`{fn}` along an axis: expected a tensor, got {describe_value(x)}", "x"
        )
    return site.add_op(ops.Reduce(fn, site.resolve_axis(x, axis)), x)


@register_builtin(name="sum")
def sum_(site: CallSite, x: Anything, *, axis: Dim = LAST_AXIS) -> Tensor | Number:
    """Sum along an axis, or sum a list of numbers or tensors."""
    if not isinstance(x, tuple):
        return add_reduction(site, "sum", x, axis)
    return _fold_operands(site, "add", _require_operands(site, "sum", x, x)) if x else ZERO


@register_builtin()
def mean(site: CallSite, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Average along an axis. For a padded axis, use `masked_mean_pool`."""
    return add_reduction(site, "mean", x, axis)


@register_builtin(name="any")
def any_(site: CallSite, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Test whether any element along an axis is true."""
    return add_reduction(site, "any", x, axis)


@register_builtin()
def every(site: CallSite, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Test whether all elements along an axis are true."""
    return add_reduction(site, "all", x, axis)


@register_builtin()
def argmax(site: CallSite, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Return the index of the maximum along an axis. The first of several equal maxima is used."""
    return site.add_op(ops.ArgMax(site.resolve_axis(x, axis)), x)


@register_builtin()
def cumsum(site: CallSite, x: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Return the cumulative sum along an axis, including the current position. True counts
    as 1.
    """
    if x.type.dtype == "bool":
        x = site.add_op(ops.Cast("i64"), x)
    return site.add_op(ops.CumSum(site.resolve_axis(x, axis)), x)


@register_builtin()
def where(site: CallSite, condition: Tensor, then: Anything, otherwise: Anything) -> Tensor:
    """Select elements from `then` where the condition is true, and from `otherwise` elsewhere."""
    # the types of two numbers determine the element type of the result
    if not isinstance(then, Tensor) and not isinstance(otherwise, Tensor):
        dtype = "i64" if is_integer_number(then) and is_integer_number(otherwise) else "f32"
        if isinstance(then, bool):
            dtype = "bool"
        then = convert_to_tensor(site.nodes, then, dtype)
    a, b = convert_operands(site.nodes, then, otherwise)
    return site.add_op(ops.Where(), condition, a, b)


@register_builtin()
def clip(site: CallSite, x: Tensor, *, low: Anything = None, high: Anything = None) -> Tensor:
    """Clamp values between `low` and `high`."""
    minimum, maximum = (get_static_float(b) if isinstance(b, Number) else None for b in (low, high))
    if minimum is not None and maximum is not None and minimum > maximum:
        title = f"`clip`: `low` {minimum:g} is above `high` {maximum:g}"
        site.raise_error("E0417", title, "low")
    for bound, fn in ((low, "max"), (high, "min")):
        if bound is not None:
            x = site.add_arithmetic(fn, *convert_operands(site.nodes, x, bound))
    return x


@register_builtin()
def in_same_group(site: CallSite, x: Tensor, y: Tensor) -> Tensor:
    """Return True where two group ids are equal and positive. The id 0 means no group. All
    positions of a group, such as an image in a prompt, are processed in one decode step, so the
    mask `same_group` is considered causal.
    """
    return site.add_op(ops.Compare("same_group"), x, y)


@register_builtin()
def cast(site: CallSite, x: Tensor, *, to: Literal["float", "int", "bool"]) -> Tensor:
    """Convert to another element type. True becomes 1, floats are truncated towards zero, and every
    value except 0 becomes true.
    """
    if to == "bool":
        if x.type.dtype == "bool":
            return x
        zero = site.add_constant(0, x.type.dtype)
        return site.add_op(ops.Compare("ne"), x, zero)
    return site.add_op(ops.Cast({"float": "f32", "int": "i64"}[to]), x)

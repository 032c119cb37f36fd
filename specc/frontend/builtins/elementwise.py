"""Built-in elementwise functions and reductions."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from specc.frontend import node_builder, scalar_arithmetic
from specc.frontend.builtins.registry import (
    BUILTINS,
    MISSING,
    Builtin,
    BuiltinParameter,
    CallSite,
    register_builtin,
)
from specc.frontend.operators import convert_operands, convert_to_tensor
from specc.frontend.parameter_kinds import ANYTHING, Anything
from specc.frontend.scalar_arithmetic import get_known_float, is_integer_number
from specc.frontend.spec_values import Number, RuntimeNumber, SpecValue, Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim, max_dims, min_dims
from specc.ir.ops.tensor import POINTWISE_FUNCTIONS

FUNCTION_DOCS = {
    "abs": "the size of a number without its sign",
    "ceil": "rounded up",
    "cos": "cosine",
    "erf": "the error function",
    "exp": "e to the power of x",
    "expm1": "exp(x) - 1, accurate near 0",
    "floor": "rounded down",
    "gelu": "x · Φ(x), exact (arXiv:1606.08415, sec. 2)",
    "gelu_tanh": "gelu by its tanh approximation, as GPT-2 and BERT's original code "
    "have it (arXiv:1606.08415, sec. 2)",
    "log": "natural logarithm",
    "log1p": "log(1 + x), accurate near 0",
    "neg": "the negative",
    "quick_gelu": "x · sigmoid(1.702 x) (arXiv:1606.08415, sec. 2)",
    "reciprocal": "1 / x",
    "relu": "max(0, x)",
    "relu2": "max(0, x)² (arXiv:2109.08668)",
    "round": "to the nearest whole number, halves to even",
    "sigmoid": "1 / (1 + exp(-x))",
    "sign": "-1, 0 or 1",
    "silu": "x · sigmoid(x) (arXiv:1702.03118)",
    "sin": "sine",
    "softplus": "log(1 + exp(x))",
    "sqrt": "square root",
    "tanh": "hyperbolic tangent",
}
"""One line for each function of one number."""

NUMBER_FUNCTIONS = scalar_arithmetic.UNARY_FUNCTIONS.keys() - {"neg"}
"""Those that take a static number too."""


def _pointwise(fn: str) -> Callable[[CallSite, SpecValue], Tensor | Number]:
    def make(site: CallSite, x: SpecValue) -> Tensor | Number:
        if isinstance(x, Number):
            return _apply_to_number(site, fn, x)
        if not isinstance(x, Tensor):
            site.fail("E0203", f"`{fn}` takes a tensor or a number, not {describe_value(x)}", "x")
        return site.one(ops.Pointwise(fn), x)

    return make


def _apply_to_number(site: CallSite, fn: str, x: Number) -> Number:
    if fn not in NUMBER_FUNCTIONS:
        site.fail("E0203", f"`{fn}` takes a tensor", "x")
    try:
        return scalar_arithmetic.apply_unary_function(site.context, fn, x, site.span)
    except (ValueError, OverflowError, ZeroDivisionError):
        site.fail("E0310", f"{fn}({x}) has no value", "x")


for _fn in POINTWISE_FUNCTIONS:
    BUILTINS[_fn] = Builtin(
        _fn,
        (BuiltinParameter("x", (ANYTHING,), MISSING, positional=True),),
        _pointwise(_fn),
        False,
        FUNCTION_DOCS[_fn],
    )


@register_builtin()
def identity(site: CallSite, x: Tensor) -> Tensor:
    """The operand as it is."""
    return x


@register_builtin(name="min")
def min_(
    site: CallSite, x: Anything, *others: Anything, axis: Dim | None = None
) -> Tensor | Number:
    """The smallest of several, elementwise; with `axis`, the smallest along it. Of a
    list of numbers, its least.
    """
    return _compute_extreme(site, "min", x, others, axis)


@register_builtin(name="max")
def max_(
    site: CallSite, x: Anything, *others: Anything, axis: Dim | None = None
) -> Tensor | Number:
    """The greatest of several, elementwise; with `axis`, the greatest along it. Of a
    list of numbers, its greatest.
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
    # `max(sizes)` of a list, or `max(a, b)`
    items = list(x) if isinstance(x, tuple) and not others else [x, *others]
    if not items:
        site.fail("E0203", f"`{fn}` of an empty list has no value")
    operands: list[ElementwiseOperand] = []
    for item in items:
        if not isinstance(item, ElementwiseOperand):
            title = f"`{fn}` compares numbers; this is {describe_value(item)}"
            site.fail("E0203", title, "x" if item is x else "")
        operands.append(item)
    return _fold_operands(site, fn, operands)


ElementwiseOperand: TypeAlias = Tensor | Dim | float | RuntimeNumber
"""What functions of several numbers take, mixed as one likes."""

INTEGER_FUNCTIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "add": operator.add,
    "min": min_dims,
    "max": max_dims,
}
"""The functions of two that keep lengths lengths."""


def _fold_operands(
    site: CallSite, fn: str, operands: Sequence[ElementwiseOperand]
) -> ElementwiseOperand:
    """One function of two, from the left over all operands."""
    result = operands[0]
    for operand in operands[1:]:
        if isinstance(result, Tensor) or isinstance(operand, Tensor):
            both = convert_operands(site.context, result, operand, site.span)
            result = site.one(ops.Arith(fn), *both)
        elif isinstance(result, Dim) and isinstance(operand, Dim):
            result = INTEGER_FUNCTIONS[fn](result, operand)
        else:
            result = scalar_arithmetic.compute_arithmetic(
                site.context, fn, result, operand, site.span
            )
    return result


def add_reduction(site: CallSite, fn: str, x: SpecValue, axis: Dim) -> Tensor:
    """One reduction along one axis."""
    if not isinstance(x, Tensor):
        site.fail("E0203", f"`{fn}` along an axis takes a tensor, not {describe_value(x)}", "x")
    return site.one(ops.Reduce(fn, site.axis(x, axis)), x)


@register_builtin(name="sum")
def sum_(site: CallSite, x: Anything, *, axis: Dim = Dim.of(-1)) -> Tensor | Number:
    """The sum along an axis; of a list of numbers or tensors, their sum."""
    if not isinstance(x, tuple):
        return add_reduction(site, "sum", x, axis)
    if not x:
        return Dim.of(0)
    operands: list[ElementwiseOperand] = []
    for item in x:
        if not isinstance(item, ElementwiseOperand):
            site.fail("E0203", f"`sum` adds numbers; this is {describe_value(item)}", "x")
        operands.append(item)
    return _fold_operands(site, "add", operands)


@register_builtin()
def mean(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """The mean along an axis. Over a padded axis use `masked_mean`."""
    return add_reduction(site, "mean", x, axis)


@register_builtin(name="any")
def any_(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """Whether any row along an axis is true."""
    return add_reduction(site, "any", x, axis)


@register_builtin()
def every(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """Whether all rows along an axis are true."""
    return add_reduction(site, "all", x, axis)


@register_builtin()
def argmax(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """The number of the greatest row along an axis; the first of equals."""
    return site.one(ops.ArgMax(site.axis(x, axis)), x)


@register_builtin()
def cumsum(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(1)) -> Tensor:
    """Running sum along an axis, the row itself included. True counts as 1."""
    if x.type.dtype == "bool":
        x = site.one(ops.Cast("i64"), x)
    return site.one(ops.CumSum(site.axis(x, axis)), x)


@register_builtin()
def where(site: CallSite, condition: Tensor, then: Anything, otherwise: Anything) -> Tensor:
    """`then` where the condition is true, else `otherwise`."""
    # two numbers: one of them says of which type the result is
    if not isinstance(then, Tensor) and not isinstance(otherwise, Tensor):
        dtype = "i64" if is_integer_number(then) and is_integer_number(otherwise) else "f32"
        if isinstance(then, bool):
            dtype = "bool"
        then = convert_to_tensor(site.context, then, dtype, site.span)
    a, b = convert_operands(site.context, then, otherwise, site.span)
    return site.one(ops.Where(), condition, a, b)


@register_builtin()
def clip(site: CallSite, x: Tensor, *, low: Anything = None, high: Anything = None) -> Tensor:
    """No less than `low` and no more than `high`."""
    least, most = (get_known_float(b) if isinstance(b, Number) else None for b in (low, high))
    if least is not None and most is not None and least > most:
        site.fail("E0417", f"`clip` from {least:g} to {most:g} leaves nothing", "low")
    for bound, fn in ((low, "max"), (high, "min")):
        if bound is not None:
            x = site.one(ops.Arith(fn), *convert_operands(site.context, x, bound, site.span))
    return x


@register_builtin()
def cast(site: CallSite, x: Tensor, *, to: Literal["float", "int", "bool"]) -> Tensor:
    """The same values as another kind. True is 1; fractions are cut towards zero; what
    is not 0 is true.
    """
    if to == "bool":
        if x.type.dtype == "bool":
            return x
        zero = node_builder.add_constant(site.context, 0, x.type.dtype, site.span)
        return site.one(ops.Compare("ne"), x, zero)
    return site.one(ops.Cast({"float": "f32", "int": "i64"}[to]), x)

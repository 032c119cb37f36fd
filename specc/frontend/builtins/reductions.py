"""Built-in reductions along an axis, such as sum, mean, min, max and argmax."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from specc.frontend import runtime_scalars
from specc.frontend.builtins.registry import (
    LAST_AXIS,
    SECOND_AXIS,
    ZERO,
    CallContext,
    register_builtin,
)
from specc.frontend.operators import convert_operands
from specc.frontend.parameter_kinds import Anything
from specc.frontend.spec_values import Number, RuntimeScalar, SpecValue, Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim, max_dims, min_dims


@register_builtin(name="min")
def min_(
    ctx: CallContext, x: Anything, *others: Anything, axis: Dim | None = None
) -> Tensor | Number:
    """Return the elementwise minimum of several operands or of a list. With `axis`, return the
    minimum of a tensor along this axis.
    """
    return _compute_extreme(ctx, "min", x, others, axis)


@register_builtin(name="max")
def max_(
    ctx: CallContext, x: Anything, *others: Anything, axis: Dim | None = None
) -> Tensor | Number:
    """Return the elementwise maximum of several operands or of a list. With `axis`, return the
    maximum of a tensor along this axis.
    """
    return _compute_extreme(ctx, "max", x, others, axis)


def _compute_extreme(
    ctx: CallContext,
    fn: Literal["min", "max"],
    x: SpecValue,
    others: tuple[SpecValue, ...],
    axis: Dim | None,
) -> Tensor | Number:
    if axis is not None:
        return add_reduction(ctx, fn, x, axis)
    # the operands are either a list, as in `max(sizes)`, or several values, as in `max(a, b)`
    items = list(x) if isinstance(x, tuple) and not others else [x, *others]
    if not items:
        ctx.raise_error("E0203", f"`{fn}` of an empty list is undefined")
    return _fold_operands(ctx, fn, _require_operands(ctx, fn, x, items))


ElementwiseOperand: TypeAlias = Tensor | Dim | float | RuntimeScalar
"""An operand of an elementwise function: a tensor or a number."""


INTEGER_FUNCTIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "add": operator.add,
    "min": min_dims,
    "max": max_dims,
}
"""The functions that compute a dimension from two dimensions, by name."""


def _require_operands(
    ctx: CallContext, fn: str, x: SpecValue, items: Iterable[SpecValue]
) -> list[ElementwiseOperand]:
    """Return `items` as a list. Raise E0203 for an item that is neither a number nor a tensor."""
    operands: list[ElementwiseOperand] = []
    for item in items:
        if not isinstance(item, ElementwiseOperand):
            title = f"`{fn}`: expected numbers and tensors, got {describe_value(item)}"
            ctx.raise_error("E0203", title, "x" if item is x or isinstance(x, tuple) else "")
        operands.append(item)
    return operands


def _fold_operands(
    ctx: CallContext, fn: str, operands: Sequence[ElementwiseOperand]
) -> ElementwiseOperand:
    """Reduce a list of operands from left to right with a binary function."""
    result = operands[0]
    for operand in operands[1:]:
        if isinstance(result, Tensor) or isinstance(operand, Tensor):
            converted = convert_operands(ctx.builder, result, operand)
            result = ctx.add_binary_op(fn, *converted)
        elif isinstance(result, Dim) and isinstance(operand, Dim):
            result = INTEGER_FUNCTIONS[fn](result, operand)
        else:
            result = runtime_scalars.apply_binary_function(ctx.builder, fn, result, operand)
    return result


def add_reduction(ctx: CallContext, fn: str, x: SpecValue, axis: Dim) -> Tensor:
    """Reduce the tensor `x` along an axis with `fn`. Raise E0203 if `x` is not a tensor."""
    if not isinstance(x, Tensor):
        ctx.raise_error(
            "E0203", f"`{fn}` along an axis: expected a tensor, got {describe_value(x)}", "x"
        )
    return ctx.add_op(ops.Reduce(fn, ctx.resolve_axis(x, axis)), x)


@register_builtin(name="sum")
def sum_(ctx: CallContext, x: Anything, *, axis: Dim = LAST_AXIS) -> Tensor | Number:
    """Sum a tensor along an axis, or sum the numbers or tensors in a list."""
    if not isinstance(x, tuple):
        return add_reduction(ctx, "sum", x, axis)
    return _fold_operands(ctx, "add", _require_operands(ctx, "sum", x, x)) if x else ZERO


@register_builtin()
def mean(ctx: CallContext, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Average along an axis. For a padded axis, use `masked_mean_pool`."""
    return add_reduction(ctx, "mean", x, axis)


@register_builtin(name="any")
def any_(ctx: CallContext, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Test whether any element along an axis is true."""
    return add_reduction(ctx, "any", x, axis)


@register_builtin()
def every(ctx: CallContext, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Test whether all elements along an axis are true."""
    return add_reduction(ctx, "all", x, axis)


@register_builtin()
def argmax(ctx: CallContext, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Return the index of the maximum along an axis. Ties are resolved to the first index."""
    return ctx.add_op(ops.ArgMax(ctx.resolve_axis(x, axis)), x)


@register_builtin()
def cumsum(ctx: CallContext, x: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Return the cumulative sum along an axis, including the current position. In a boolean tensor,
    true counts as 1.
    """
    if x.type.dtype == "bool":
        x = ctx.add_op(ops.Cast("i64"), x)
    return ctx.add_op(ops.CumSum(ctx.resolve_axis(x, axis)), x)

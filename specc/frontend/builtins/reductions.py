"""Built-in reductions along an axis, such as sum, mean, min, max and argmax."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from specc.frontend import runtime_scalars
from specc.frontend.builtins.registry import (
    LAST_AXIS,
    SECOND_AXIS,
    ZERO,
    CallSite,
    register_builtin,
)
from specc.frontend.operators import convert_operands
from specc.frontend.parameter_kinds import Anything
from specc.frontend.spec_values import Number, RuntimeNumber, SpecValue, Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim, max_dims, min_dims


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
"""An operand of an elementwise function: a tensor or a number."""


INTEGER_FUNCTIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "add": operator.add,
    "min": min_dims,
    "max": max_dims,
}
"""The elementwise functions that map two dimensions to a dimension."""


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
            converted = convert_operands(site.builder, result, operand)
            result = site.add_arithmetic(fn, *converted)
        elif isinstance(result, Dim) and isinstance(operand, Dim):
            result = INTEGER_FUNCTIONS[fn](result, operand)
        else:
            result = runtime_scalars.apply_binary_function(site.builder, fn, result, operand)
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
    """Return the index of the maximum along an axis. Ties are resolved to the first index."""
    return site.add_op(ops.ArgMax(site.resolve_axis(x, axis)), x)


@register_builtin()
def cumsum(site: CallSite, x: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Return the cumulative sum along an axis, including the current position. True is converted to
    1.
    """
    if x.type.dtype == "bool":
        x = site.add_op(ops.Cast("i64"), x)
    return site.add_op(ops.CumSum(site.resolve_axis(x, axis)), x)

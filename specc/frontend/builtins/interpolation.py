"""Built-in functions that resize axes or sample a feature map by interpolation."""

import math
from fractions import Fraction
from typing import Literal

from specc.frontend.builtins.registry import CallContext, register_builtin
from specc.frontend.parameter_kinds import Anything
from specc.frontend.runtime_scalars import convert_to_op_attribute
from specc.frontend.spec_values import (
    Number,
    RuntimeScalar,
    SpecValue,
    Tensor,
    UnresolvedValueError,
    describe_value,
)
from specc.ir import ops
from specc.ir.dim import Dim, floor_divide_dims


@register_builtin()
def resize(
    ctx: CallContext,
    x: Tensor,
    *,
    mode: Literal["bilinear", "bicubic", "nearest", "nearest_exact"],
    size: tuple[Dim, ...] = (),
    factor: Anything = None,
    axis: Dim | None = None,
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Resize axes by interpolation, like PyTorch's `interpolate`. `resize(x, size=[h, w],
    mode=bilinear)` resizes the last two axes of an image [batch, channels, height, width].

    `axis` is the first resized axis (default 2), as in `size=[n], axis=1` for [batch, time,
    features]. If `factor` is given instead of `size`, the length of every axis from `axis` on is
    multiplied by it. `antialias` applies a low-pass filter before downsampling and requires static
    sizes.
    """
    axis_index, count = _find_resized_axes(ctx, x, mode, size, factor, axis)
    if align_corners and mode.startswith("nearest"):
        title = f"`align_corners` has no effect with `mode={mode}`"
        ctx.raise_error("E0329", title, "align_corners")
    factors: tuple[float, ...] = ()
    if isinstance(factor, Number):
        scale = _require_factor(ctx, factor)
        size = tuple(_scale_length(ctx, n, scale) for n in x.shape[axis_index:])
        factors = (scale,) * count
    elif factor is not None:
        title = f"`factor` of `resize`: expected a number, got {describe_value(factor)}"
        ctx.raise_error("E0203", title, "factor")
    if antialias:
        is_plain_resize = not align_corners and not factors
        _check_antialias(
            ctx, mode, (*size, *x.shape[axis_index : axis_index + count]), is_plain_resize
        )
    op = ops.Resize(axis_index, size, mode, align_corners, factors, antialias)
    return ctx.add_op(op, x)


@register_builtin()
def grid_sample(
    ctx: CallContext,
    x: Tensor,
    grid: Tensor,
    *,
    mode: Literal["bilinear", "nearest"],
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Sample a feature map [batch, channels, height, width] at the points `grid` [batch, ..., 2],
    like PyTorch's `grid_sample`. The result is [batch, channels, ...].

    Points are (x, y) in [-1, 1]. The values -1 and 1 are the outer edges of the border pixels, or
    with `align_corners` the centers of the border pixels. Points outside the feature map have the
    value 0 by default. `padding_mode=border` uses the nearest pixel, and `padding_mode=reflection`
    mirrors the feature map at its border.
    """
    return ctx.add_op(ops.GridSample(mode, padding_mode, align_corners), x, grid)


def _find_resized_axes(
    ctx: CallContext,
    x: Tensor,
    mode: str,
    size: tuple[Dim, ...],
    factor: SpecValue,
    axis: Dim | None,
) -> tuple[int, int]:
    """Return the first resized axis and the number of resized axes. Raise an error unless a call
    sets exactly one of `size` and `factor`, and all sizes are at least 1.
    """
    if bool(size) == (factor is not None):
        title = "`resize` takes either `size` or `factor`"
        ctx.raise_error("E0329", title, "factor" if size else "")
    for length in size:
        ctx.check_range(length, "size", 1)
    rank = len(x.shape)
    default_axis = rank - len(size) if size else 2
    first_axis = ctx.resolve_axis(x, Dim.from_value(default_axis) if axis is None else axis)
    count = len(size) or rank - first_axis
    max_count = {"bilinear": 3, "bicubic": 2}.get(mode, rank)
    if first_axis + count > rank or count > max_count:
        axes_text = f"{count}, starting at axis {first_axis}"
        title = f"`mode={mode}` can resize up to {max_count} axes, got {axes_text}"
        ctx.raise_error("E0329", title, "size" if size else "factor", describe_value(x))
    return first_axis, count


def _check_antialias(
    ctx: CallContext, mode: str, lengths: tuple[Dim, ...], is_plain_resize: bool
) -> None:
    """Raise E0329 if `antialias` is unsupported, and UnresolvedValueError for symbolic sizes."""
    if mode.startswith("nearest") or not is_plain_resize or len(lengths) > 4:
        title = "`antialias` needs `size` of one or two axes, and `mode=bilinear` or `bicubic`"
        ctx.raise_error("E0329", title, "antialias")
    for length in lengths:
        if length.number is None and ctx.env.context.has_dynamic_symbol(length.symbols()):
            ctx.raise_error(
                "E0329",
                f"`antialias` needs constant lengths, but `{length}` depends on an input",
                "antialias",
                helps=["remove `antialias`, or use images of a fixed size"],
            )
        ctx.require_integer(length, "antialias")


def _require_factor(ctx: CallContext, factor: Number) -> float:
    """Return a positive factor as a float. Raise UnresolvedValueError for a symbolic factor."""
    nodes = ctx.make_node_builder("factor")
    number = convert_to_op_attribute(nodes, factor, "`factor` of `resize`")
    if isinstance(number, RuntimeScalar):
        raise UnresolvedValueError(number.symbols, nodes.span)
    if not 0 < number < math.inf:
        ctx.raise_error(
            "E0417", f"`factor` of `resize` must be greater than 0, got {number:g}", "factor"
        )
    return number


def _scale_length(ctx: CallContext, length: Dim, factor: float) -> Dim:
    """Return the size of a resized axis: the original size times the factor, rounded down."""
    if length.number is not None:
        # as in PyTorch, the product is rounded down: 100 · 0.29 becomes 28
        return Dim.from_value(math.floor(length.number * factor))
    fraction = Fraction(factor)
    if fraction.denominator > 1024:
        if not ctx.env.context.has_dynamic_symbol(length.symbols()):
            raise UnresolvedValueError(length.symbols(), ctx.argument_spans.get("factor"))
        ctx.raise_error(
            "E0329",
            f"`{length}` times {factor:g} is not always an integer",
            "factor",
            helps=["pass the length: `size=[…]`", "or use a factor such as 0.5 or 0.25"],
        )
    return floor_divide_dims(length * fraction.numerator, fraction.denominator)

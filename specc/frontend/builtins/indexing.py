"""Built-in functions along an axis: sort, top-k, roll, pad, resize, grid sample."""

import math
from fractions import Fraction
from typing import Literal

from specc.frontend.builtins.registry import (
    LAST_AXIS,
    SECOND_AXIS,
    ZERO,
    CallSite,
    register_builtin,
)
from specc.frontend.builtins.tensor import get_fill_value
from specc.frontend.parameter_kinds import Anything
from specc.frontend.runtime_scalars import require_op_attribute
from specc.frontend.spec_values import (
    Number,
    Results,
    RuntimeNumber,
    SpecValue,
    Tensor,
    UnresolvedValueError,
    describe_value,
)
from specc.ir import ops
from specc.ir.dim import Dim, floor_divide_dims


@register_builtin()
def sort(site: CallSite, x: Tensor, *, axis: Dim = LAST_AXIS, descending: bool = False) -> Results:
    """Sort along an axis in ascending or `descending` order. Returns (values, indices). The sort is
    stable.
    """
    return Results(site.add_node(ops.Sort(site.resolve_axis(x, axis), descending), x))


@register_builtin()
def argsort(site: CallSite, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Return the indices of a stable sort of `x` along an axis in ascending order."""
    return site.add_node(ops.Sort(site.resolve_axis(x, axis)), x)[1]


@register_builtin()
def topk(
    site: CallSite, x: Tensor, k: Dim, *, axis: Dim = LAST_AXIS, largest: bool = True
) -> Results:
    """Return the `k` largest values along an axis in descending order, and their indices: `values,
    ids = topk(x, 3)`. Equal values are ordered by index.

    With `largest=false`, return the `k` smallest values in ascending order. `gather(y, ids)`
    selects the same positions of another tensor.
    """
    axis_index = site.resolve_axis(x, axis)
    site.check_range(k, "k", 1)
    remaining = x.shape[axis_index] - k
    if remaining.number is not None and remaining.number < 0:
        site.raise_error(
            "E0326",
            f"`topk` needs {k} values, but the axis has only {x.shape[axis_index]}",
            "k",
            describe_value(x),
            helps=[f"use at most {x.shape[axis_index]}", "or choose another `axis`"],
        )
    return Results(site.add_node(ops.TopK(axis_index, k, largest), x))


@register_builtin()
def roll(site: CallSite, x: Tensor, by: Dim, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Shift an axis circularly by `by` positions. Position t of the result is position `t - by` of
    `x`. Positions that are shifted past one end are inserted at the other end.
    """
    return site.add_op(ops.Roll(site.resolve_axis(x, axis), by), x)


@register_builtin()
def pad(
    site: CallSite,
    x: Tensor,
    *,
    before: Dim = ZERO,
    after: Dim = ZERO,
    axis: Dim = SECOND_AXIS,
    mode: Literal["constant", "reflect", "edge"] = "constant",
    value: Anything = ZERO,
) -> Tensor:
    """Pad an axis with `before` positions at the start and `after` positions at the end. By
    default, new positions have the value `value`. `mode=edge` repeats the border position, and
    `mode=reflect` mirrors positions at the border without repeating the border position.
    """
    axis_index = site.resolve_axis(x, axis)
    number = get_fill_value(site, x, value, "value")
    for option, count in (("before", before), ("after", after)):
        site.check_range(count, option, 0)
        limit = x.shape[axis_index] - 1
        excess = count - limit
        if mode == "reflect" and excess.number is not None and excess.number > 0:
            site.raise_error(
                "E0326",
                f"`mode=reflect` can pad at most {limit} positions here, got {count}",
                option,
                describe_value(x),
                helps=["`mode=edge` repeats the border any number of times"],
            )
    return site.add_op(ops.Pad(axis_index, before, after, mode, number), x)


@register_builtin()
def resize(
    site: CallSite,
    x: Tensor,
    *,
    mode: Literal["bilinear", "bicubic", "nearest", "nearest_exact"],
    size: tuple[Dim, ...] = (),
    factor: Anything = None,
    axis: Dim | None = None,
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Interpolate like PyTorch's `interpolate`. `resize(x, size=[h, w], mode=bilinear)` resizes the
    last two axes of an image [batch, channels, height, width].

    `axis` is the first resized axis (default 2), as in `size=[n], axis=1` for [batch, time,
    features]. With `factor` instead of `size`, the length of every axis from `axis` on is
    multiplied by `factor`. `antialias` applies a low-pass filter before downsampling, like image
    processors, and requires static sizes.
    """
    axis_index, count = _find_resized_axes(site, x, mode, size, factor, axis)
    if align_corners and mode.startswith("nearest"):
        title = f"`align_corners` has no effect with `mode={mode}`"
        site.raise_error("E0329", title, "align_corners")
    factors: tuple[float, ...] = ()
    if isinstance(factor, Number):
        scale = _require_factor(site, factor)
        size = tuple(_scale_length(site, n, scale) for n in x.shape[axis_index:])
        factors = (scale,) * count
    elif factor is not None:
        title = f"`factor` of `resize`: expected a number, got {describe_value(factor)}"
        site.raise_error("E0203", title, "factor")
    if antialias:
        is_plain_resize = not align_corners and not factors
        _check_antialias(
            site, mode, (*size, *x.shape[axis_index : axis_index + count]), is_plain_resize
        )
    op = ops.Resize(axis_index, size, mode, align_corners, factors, antialias)
    return site.add_op(op, x)


@register_builtin()
def grid_sample(
    site: CallSite,
    x: Tensor,
    grid: Tensor,
    *,
    mode: Literal["bilinear", "nearest"],
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Sample a feature map [batch, channels, height, width] at the points `grid` [batch, ..., 2],
    like PyTorch's `grid_sample`. Returns [batch, channels, ...].

    Points are (x, y) from -1 to 1. The range from -1 to 1 spans the outer edges of the border
    pixels, or with `align_corners` the centers of the border pixels. Outside the feature map, the
    value is 0 by default, the value of the nearest pixel with `padding_mode=border`, and the value
    of the feature map mirrored at its border with `padding_mode=reflection`.
    """
    return site.add_op(ops.GridSample(mode, padding_mode, align_corners), x, grid)


def _find_resized_axes(
    site: CallSite, x: Tensor, mode: str, size: tuple[Dim, ...], factor: SpecValue, axis: Dim | None
) -> tuple[int, int]:
    """Return the first resized axis and the number of resized axes. Raise an error unless a call
    sets either `size` or `factor`, and all sizes are at least 1.
    """
    if bool(size) == (factor is not None):
        title = "`resize` takes either `size` or `factor`"
        site.raise_error("E0329", title, "factor" if size else "")
    for length in size:
        site.check_range(length, "size", 1)
    rank = len(x.shape)
    default_axis = rank - len(size) if size else 2
    first_axis = site.resolve_axis(x, Dim.from_value(default_axis) if axis is None else axis)
    count = len(size) or rank - first_axis
    max_count = {"bilinear": 3, "bicubic": 2}.get(mode, rank)
    if first_axis + count > rank or count > max_count:
        axes_text = f"{count}, starting at axis {first_axis}"
        title = f"`mode={mode}` can resize up to {max_count} axes, got {axes_text}"
        site.raise_error("E0329", title, "size" if size else "factor", describe_value(x))
    return first_axis, count


def _check_antialias(
    site: CallSite, mode: str, lengths: tuple[Dim, ...], is_plain_resize: bool
) -> None:
    """Raise E0329 if `antialias` is unsupported, and UnresolvedValueError for symbolic sizes."""
    if mode.startswith("nearest") or not is_plain_resize or len(lengths) > 4:
        title = "`antialias` needs `size` of one or two axes, and `mode=bilinear` or `bicubic`"
        site.raise_error("E0329", title, "antialias")
    for length in lengths:
        if length.number is None and site.context.has_dynamic_symbol(length.symbols()):
            site.raise_error(
                "E0329",
                f"`antialias` needs constant lengths, but `{length}` depends on an input",
                "antialias",
                helps=["remove `antialias`, or use images of a fixed size"],
            )
        site.require_integer(length, "antialias")


def _require_factor(site: CallSite, factor: Number) -> float:
    """Return a positive factor as a float. Raise UnresolvedValueError for a symbolic factor."""
    nodes = site.get_argument_nodes("factor")
    number = require_op_attribute(nodes, factor, "`factor` of `resize`")
    if isinstance(number, RuntimeNumber):
        raise UnresolvedValueError(number.symbols, nodes.span)
    if not 0 < number < math.inf:
        site.raise_error(
            "E0417", f"`factor` of `resize` must be greater than 0, got {number:g}", "factor"
        )
    return number


def _scale_length(site: CallSite, length: Dim, factor: float) -> Dim:
    """Return the size of a resized axis, i.e. the product of size and factor, rounded down."""
    if length.number is not None:
        # as in PyTorch, the product is rounded down, e.g. 100 · 0.29 to 28
        return Dim.from_value(math.floor(length.number * factor))
    fraction = Fraction(factor)
    if fraction.denominator > 1024:
        if not site.context.has_dynamic_symbol(length.symbols()):
            raise UnresolvedValueError(length.symbols(), site.argument_spans.get("factor"))
        site.raise_error(
            "E0329",
            f"`{length}` times {factor:g} is not always an integer",
            "factor",
            helps=["pass the length: `size=[…]`", "or use a factor such as 0.5 or 0.25"],
        )
    return floor_divide_dims(length * fraction.numerator, fraction.denominator)

"""Built-in functions along an axis: sort, top-k, roll, pad, resize, group and batch norm."""

import math
from fractions import Fraction
from typing import Literal

from specc.frontend.builtins.nn import ONES_INIT, ZEROS_INIT
from specc.frontend.builtins.registry import CallSite, register_builtin
from specc.frontend.builtins.tensor import get_fill_value
from specc.frontend.parameter_kinds import Anything
from specc.frontend.scalar_arithmetic import require_attribute_number
from specc.frontend.spec_values import (
    NeedsValue,
    Number,
    Results,
    RuntimeNumber,
    SpecValue,
    Tensor,
    describe_value,
)
from specc.ir import ops
from specc.ir.dim import Dim, floor_divide_dims, mod_dims


@register_builtin()
def sort(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(-1), descending: bool = False) -> Results:
    """The rows along an axis in ascending order, and their row numbers; of equals the
    lower number first. With `descending` from the greatest on.
    """
    return Results(site.add(ops.Sort(site.axis(x, axis), descending), x))


@register_builtin()
def argsort(site: CallSite, x: Tensor, *, axis: Dim = Dim.of(-1)) -> Tensor:
    """Row numbers in ascending order of the values along an axis; of equals the lower
    number first.
    """
    return site.add(ops.Sort(site.axis(x, axis)), x)[1]


@register_builtin()
def topk(
    site: CallSite, x: Tensor, k: Dim, *, axis: Dim = Dim.of(-1), largest: bool = True
) -> Results:
    """The `k` greatest along an axis from the greatest on, and their row numbers; of
    equals the lower number first: `values, ids = topk(x, 3)`.

    With `largest=false` the least from the least on. `gather(y, ids)` reads the same
    rows of another tensor.
    """
    at = site.axis(x, axis)
    site.within(k, "k", 1)
    spare = x.shape[at] - k
    if spare.number is not None and spare.number < 0:
        site.fail(
            "E0326",
            f"the {k} greatest are asked for, the axis has {x.shape[at]} rows",
            "k",
            describe_value(x),
            helps=[f"write a number up to {x.shape[at]}", "or name another `axis`"],
        )
    return Results(site.add(ops.TopK(at, k, largest), x))


@register_builtin()
def roll(site: CallSite, x: Tensor, by: Dim, *, axis: Dim = Dim.of(1)) -> Tensor:
    """An axis shifted by `by` rows; what leaves it at one end comes in at the other.
    Row t is row `t - by` of the operand; with `by` below 0, one behind it.
    """
    return site.one(ops.Roll(site.axis(x, axis), by), x)


@register_builtin()
def pad(
    site: CallSite,
    x: Tensor,
    *,
    before: Dim = Dim.of(0),
    after: Dim = Dim.of(0),
    axis: Dim = Dim.of(1),
    mode: Literal["constant", "reflect", "edge"] = "constant",
    value: Anything = Dim.of(0),
) -> Tensor:
    """`before` rows put in front of an axis and `after` behind it: of `value`, or with
    `mode=edge` the first and the last again, or with `mode=reflect` what a mirror
    shows that stands on them.
    """
    at = site.axis(x, axis)
    number = get_fill_value(site, x, value, "value")
    for option, rows in (("before", before), ("after", after)):
        site.within(rows, option, 0)
        spare = x.shape[at] - 1 - rows
        if mode == "reflect" and spare.number is not None and spare.number < 0:
            site.fail(
                "E0326",
                f"a mirror shows {x.shape[at] - 1} of {x.shape[at]} rows, {rows} are asked for",
                option,
                describe_value(x),
                helps=["mode=edge repeats the last row as often as is asked for"],
            )
    return site.one(ops.Pad(at, before, after, mode, number), x)


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
    """Axes sampled anew, as PyTorch's `interpolate` does:
    `resize(x, size=[h, w], mode=bilinear)` for the last two of a picture
    [batch, channels, height, width].

    `axis` is the first of them, so `size=[n], axis=1` is for rows [batch, time,
    features]. With `factor` instead, each axis from `axis` on, 2 where none is said,
    becomes so many times as long. `antialias` averages what becomes smaller, as
    pictures are made smaller before a network sees them; its lengths are known.
    """
    at, count = _find_resized_axes(site, x, mode, size, factor, axis)
    if align_corners and mode.startswith("nearest"):
        title = f"`{mode}` takes pixels as they are: there are no corners to align"
        site.fail("E0329", title, "align_corners")
    factors: tuple[float, ...] = ()
    if isinstance(factor, Number):
        by = _require_factor(site, factor)
        size = tuple(_scale_length(site, n, by) for n in x.shape[at:])
        factors = (by,) * count
    elif factor is not None:
        title = f"`factor` of `resize` takes a number, not {describe_value(factor)}"
        site.fail("E0203", title, "factor")
    if antialias:
        plain = not align_corners and not factors
        _check_antialias(site, mode, (*size, *x.shape[at : at + count]), plain)
    op = ops.Resize(at, size, mode, align_corners, factors, antialias)
    return site.one(op, x)


def _find_resized_axes(
    site: CallSite, x: Tensor, mode: str, size: tuple[Dim, ...], factor: SpecValue, axis: Dim | None
) -> tuple[int, int]:
    """The first of the axes that change, and how many they are."""
    if bool(size) == (factor is not None):
        title = "`resize` takes the new lengths, `size`, or a `factor`: one of the two"
        site.fail("E0329", title, "factor" if size else "")
    for length in size:
        site.within(length, "size", 1)
    rank = len(x.shape)
    usual = rank - len(size) if size else 2
    at = site.axis(x, Dim.of(usual) if axis is None else axis)
    count = len(size) or rank - at
    most = {"bilinear": 3, "bicubic": 2}.get(mode, rank)
    if at + count > rank or count > most:
        title = f"`{mode}` is for up to {most} axes; there are {rank - at} from axis {at} on"
        site.fail("E0329", title, "size" if size else "factor", describe_value(x))
    return at, count


def _check_antialias(site: CallSite, mode: str, lengths: tuple[Dim, ...], plain: bool) -> None:
    """E0329 where `antialias` says nothing; NeedsValue while a length is a symbol."""
    if mode.startswith("nearest") or not plain or len(lengths) > 4:
        title = "`antialias` goes with a `size` of one or two axes, `bilinear` or `bicubic`"
        site.fail("E0329", title, "antialias")
    for length in lengths:
        if length.number is None and site.context.late(length.symbols()):
            site.fail(
                "E0329",
                f"how much is averaged hangs on `{length}`, which only an input tells",
                "antialias",
                helps=["leave it out, or give pictures of one size"],
            )
        site.number(length, "antialias")


def _require_factor(site: CallSite, factor: Number) -> float:
    """A factor as a number above 0; NeedsValue while it is a symbol."""
    at = site.spans.get("factor")
    by = require_attribute_number(site.context, factor, "`factor` of `resize`", at)
    if isinstance(by, RuntimeNumber):
        raise NeedsValue(by.symbols, at)
    if not 0 < by < math.inf:
        site.fail("E0417", f"`factor` of `resize` is {by:g}, and must be above 0", "factor")
    return by


def _scale_length(site: CallSite, length: Dim, factor: float) -> Dim:
    """How long an axis becomes: the product rounded down."""
    if length.number is not None:
        # as PyTorch rounds it: 100 times 0.29 is 28
        return Dim.of(math.floor(length.number * factor))
    exact = Fraction(factor)
    if exact.denominator > 1024:
        if not site.context.late(length.symbols()):
            raise NeedsValue(length.symbols(), site.spans.get("factor"))
        site.fail(
            "E0329",
            f"{factor:g} times `{length}` rows is no length: it would hang on rounding",
            "factor",
            helps=["say how long it becomes: size=[…]", "or take a half, a quarter, …"],
        )
    return floor_divide_dims(length * exact.numerator, exact.denominator)


@register_builtin(weights=True)
def group_norm(
    site: CallSite,
    x: Tensor,
    *,
    groups: Dim,
    eps: float,
    axis: Dim = Dim.of(1),
    bias: bool = True,
    scale: bool = True,
) -> Tensor:
    """Normalization over groups of neighboring channels and over all that is behind the
    first axis (arXiv:1803.08494). Weights: `weight`, `bias` [channels].

    `axis` is that of the channels: 1 of a picture [batch, channels, height, width], -1
    of rows [batch, time, features].
    """
    at = _get_channel_axis(site, x, axis)
    site.within(eps, "eps", 0.0)
    site.within(groups, "groups", 1)
    if mod_dims(x.shape[at], groups).number:
        site.fail(
            "E0321",
            f"{x.shape[at]} channels are not {groups} equal groups",
            "groups",
            describe_value(x),
            helps=["write a number that divides the channels, or name their `axis`"],
        )
    weight = site.parameter("weight", [x.shape[at]], ONES_INIT) if scale else None
    shift = site.parameter("bias", [x.shape[at]], ZEROS_INIT) if bias else None
    return site.one(ops.GroupNorm(at, groups, eps), x, weight, shift)


@register_builtin(weights=True)
def batch_norm(
    site: CallSite, x: Tensor, *, eps: float, axis: Dim = Dim.of(1), affine: bool = True
) -> Tensor:
    """Batch normalization as it is in use, by the mean and variance that training has
    gathered (arXiv:1502.03167, alg. 2). Weights: `weight`, `bias`, `running_mean`,
    `running_var` [channels]; a file's `num_batches_tracked` is left aside.

    `axis` is that of the channels: 1 of a picture [batch, channels, height, width], -1
    of rows [batch, time, features].
    """
    at = _get_channel_axis(site, x, axis)
    site.within(eps, "eps", 0.0)
    channels = [x.shape[at]]
    mean = site.parameter("running_mean", channels, ZEROS_INIT)
    spread = site.parameter("running_var", channels, ONES_INIT)
    small = site.constant(eps, "f32")
    spread = site.one(ops.Arith("add"), spread, small)
    scale = site.one(ops.Pointwise("reciprocal"), site.one(ops.Pointwise("sqrt"), spread))
    if affine:
        weight = site.parameter("weight", channels, ONES_INIT)
        scale = site.one(ops.Arith("mul"), weight, scale)
    # The mean is taken away first: where it is large, nothing is left of digits behind it.
    centred = site.one(ops.Arith("sub"), x, _align_weight(site, mean, len(x.shape) - 1 - at))
    y = site.one(ops.Arith("mul"), centred, _align_weight(site, scale, len(x.shape) - 1 - at))
    if not affine:
        return y
    bias = site.parameter("bias", channels, ZEROS_INIT)
    return site.one(ops.Arith("add"), y, _align_weight(site, bias, len(x.shape) - 1 - at))


def _get_channel_axis(site: CallSite, x: Tensor, axis: Dim) -> int:
    """The axis of the channels, behind that of the batch."""
    at = site.axis(x, axis)
    if at == 0 or not x.type.dtype.startswith(("f", "bf")):
        title = f"`{site.call.function.path}` takes channels of numbers behind the batch"
        site.fail("E0301", title, "x", f"this is {describe_value(x)}")
    return at


def _align_weight(site: CallSite, weight: Tensor, behind: int) -> Tensor:
    """A weight [channels] with so many axes of length 1 behind it."""
    for n in range(behind):
        weight = site.one(ops.Insert(n + 1), weight)
    return weight

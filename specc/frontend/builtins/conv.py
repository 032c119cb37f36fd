"""Built-in convolutions and pooling."""

from dataclasses import replace
from typing import NoReturn

from specc.frontend.builtins.nn import FAN_IN_INIT, ZEROS_INIT
from specc.frontend.builtins.registry import CallSite, register_builtin
from specc.frontend.builtins.window_options import (
    EndPadding,
    PaddingOption,
    SizeOption,
    WindowOperand,
    add_per_axis,
)
from specc.frontend.spec_values import Results, Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly, mod_dims

ONE_STEP, NO_PADDING = Dim.of(1), Dim.of(0)


@register_builtin(weights=True)
def conv(
    site: CallSite,
    x: Tensor,
    *,
    out: Dim | None = None,
    kernel: SizeOption | None = None,
    stride: SizeOption = ONE_STEP,
    dilation: SizeOption = ONE_STEP,
    groups: Dim = ONE_STEP,
    padding: PaddingOption = NO_PADDING,
    keep: Tensor | None = None,
    weight: Tensor | None = None,
    bias: bool | Tensor = True,
    init: str = FAN_IN_INIT,
) -> Tensor | Results:
    """A convolution along rows [batch, time, channels], or over a picture [batch,
    channels, high, wide].

    `kernel=3` or `[3, 5]`, and likewise `stride` and `dilation`; each of `groups` reads
    its own channels. `padding` is how many zeros stand before and behind: a number, `[2,
    0]` before and behind rows, `[high, wide]` of a picture, `[[2, 0], [1, 1]]` axis by
    axis; `same` keeps the length, the odd one behind; `causal` never looks ahead. Rows
    that `keep` [batch, time] leaves out count as zeros, and the results are then (out,
    keep), the second for the rows that come out. Weights: `weight` [out, channels /
    groups, kernel], `bias` [out]; `weight=` and `bias=` may also be given.
    """
    over = WindowOperand(site, x)
    sizes = _get_kernel_sizes(over, out, kernel, weight)
    window = over.window(sizes, stride, dilation, padding)
    _check_groups(site, over.channels, groups)
    own = weight is None
    if weight is None:
        if out is None:
            _raise_missing_option(site, "out")
        _check_groups(site, out, groups)
        shape = (out, divide_dims_exactly(over.channels, groups), *map(Dim.of, window.kernel))
        weight = site.parameter("weight", shape, init, ["out", "", "kernel", "kernel"])
    # What stands in padded rows would be read over the end of a text.
    there = x if keep is None else _mask_input(site, over, keep)
    op = ops.Conv(*window.numbers, groups)
    made = site.one(op, there, weight, _get_bias(site, bias, weight.shape[0], own))
    if keep is None:
        return made
    return Results((made, _compute_output_mask(site, op, keep)), ("out", "keep"))


@register_builtin(weights=True)
def conv_transpose(
    site: CallSite,
    x: Tensor,
    *,
    out: Dim | None = None,
    kernel: SizeOption | None = None,
    stride: SizeOption = ONE_STEP,
    dilation: SizeOption = ONE_STEP,
    groups: Dim = ONE_STEP,
    padding: EndPadding = NO_PADDING,
    extra: SizeOption = NO_PADDING,
    weight: Tensor | None = None,
    bias: bool | Tensor = True,
    init: str = FAN_IN_INIT,
) -> Tensor:
    """The opposite of a convolution with a stride, which makes rows or pictures longer:
    every row adds a whole kernel, `stride` rows behind the one before
    (arXiv:1603.07285, sec. 4).

    `padding` rows are cut off before and behind, `extra` ones stand behind, fewer than
    `stride` or `dilation`: as in PyTorch, `n` rows become `(n - 1) · stride + dilation
    · (kernel - 1) + 1 - 2 · padding + extra`. Options as in `conv`. Weights: `weight`
    [channels, out / groups, kernel], `bias` [out]; `weight=` and `bias=` may also be
    given.
    """
    over = WindowOperand(site, x)
    sizes = _get_kernel_sizes(over, out, kernel, weight)
    window = over.transposed(sizes, stride, dilation, padding, extra)
    _check_groups(site, over.channels, groups)
    own = weight is None
    if weight is None:
        if out is None:
            _raise_missing_option(site, "out")
        _check_groups(site, out, groups)
        shape = (over.channels, divide_dims_exactly(out, groups), *map(Dim.of, window.kernel))
        weight = site.parameter("weight", shape, init, ["", "out", "kernel", "kernel"])
    offset = _get_bias(site, bias, weight.shape[1] * groups, own)
    return site.one(ops.ConvTranspose(*window.numbers, groups), x, weight, offset)


@register_builtin()
def max_pool(
    site: CallSite,
    x: Tensor,
    *,
    kernel: SizeOption,
    stride: SizeOption | None = None,
    dilation: SizeOption = ONE_STEP,
    padding: PaddingOption = NO_PADDING,
    ceil: bool = False,
) -> Tensor:
    """The greatest of each window of rows [batch, time, channels] or of a picture
    [batch, channels, high, wide], channel by channel.

    `stride` is as long as the kernel unless given; other options are those of `conv`.
    What is padded is below all. With `ceil` a last window may reach over the end.
    """
    window = WindowOperand(site, x).pool(kernel, stride, dilation, padding)
    extra = window.max_overhang() if ceil else window.nothing
    whole = replace(window, behind=add_per_axis(window.behind, extra))
    return site.one(ops.MaxPool(*whole.numbers), x)


@register_builtin()
def average_pool(
    site: CallSite,
    x: Tensor,
    *,
    kernel: SizeOption,
    stride: SizeOption | None = None,
    padding: PaddingOption = NO_PADDING,
    counted: bool | None = None,
    ceil: bool = False,
) -> Tensor:
    """The mean of each window of rows [batch, time, channels] or of a picture [batch,
    channels, high, wide], channel by channel.

    Options are those of `max_pool`. Where there is padding, `counted` says whether its
    zeros count: in PyTorch they do unless told otherwise, in others they do not.
    """
    window = WindowOperand(site, x).pool(kernel, stride, ONE_STEP, padding)
    # The two ways differ at the ends alone, where nobody looks: so it has to be said.
    if counted is None and any((*window.before, *window.behind)):
        helps = ["write `counted=true`, as PyTorch has it, or `counted=false`"]
        title = "`average_pool` needs the option `counted` where there is padding"
        site.fail("E0211", title, "padding", helps=helps)
    extra = window.max_overhang() if ceil else window.nothing
    kernels, strides, _, pads = window.numbers
    op = ops.AveragePool(kernels, strides, pads, extra, bool(counted))
    return site.one(op, x)


@register_builtin()
def conv_keep(
    site: CallSite,
    keep: Tensor,
    *,
    kernel: SizeOption,
    stride: SizeOption = ONE_STEP,
    dilation: SizeOption = ONE_STEP,
    padding: PaddingOption = NO_PADDING,
    ceil: bool = False,
) -> Tensor:
    """Which rows exist behind a convolution or a pool with these options along the rows
    that `keep` [batch, time] says exist: as many as come out of a text alone.

    Zeros have to stand where rows do not exist, if the window reads over the end;
    `conv(…, keep=keep)` sees to both.
    """
    if len(keep.shape) != 2 or keep.type.dtype != "bool":
        title = "`conv_keep` takes what says which rows exist, bool[batch, time]"
        site.fail("E0301", title, "keep", f"this is {describe_value(keep)}")
    over = WindowOperand(site, keep, rows=True)
    window = over.window(kernel, stride, dilation, padding)
    extra = window.max_overhang() if ceil else window.nothing
    whole = replace(window, behind=add_per_axis(window.behind, extra))
    return _compute_output_mask(site, ops.MaxPool(*whole.numbers), keep)


def _mask_input(site: CallSite, over: WindowOperand, keep: Tensor) -> Tensor:
    """The rows, with zeros where they do not exist."""
    if len(over.x.shape) != 3:
        title = "`keep` says which rows exist, and a picture has none that do not"
        site.fail("E0301", title, "keep", describe_value(keep))
    shown = site.one(ops.Insert(2), keep)
    return site.one(ops.Where(), shown, over.x, site.constant(0.0, over.x.type.dtype))


def _compute_output_mask(site: CallSite, op: ops.Sliding, keep: Tensor) -> Tensor:
    """Which rows exist behind a window."""
    # As many rows come out as went in, each at its place.
    if op.keeps(0):
        return keep
    return site.one(ops.KeepRows(op.stride[0], op.lag(0)), keep)


def _get_bias(site: CallSite, bias: bool | Tensor, out: Dim, own: bool) -> Tensor | None:
    """The bias that is given, or one of the call's own."""
    if isinstance(bias, Tensor):
        return bias
    sizes = ["out"] if own else []
    return site.parameter("bias", [out], ZEROS_INIT, sizes) if bias else None


def _raise_missing_option(site: CallSite, option: str) -> NoReturn:
    """E0211 for an option that must be there where no weight is given."""
    called = site.call.function.path
    helps = [f"give `{option}=`, or a tensor as `weight=`"]
    site.fail("E0211", f"`{called}` needs the option `{option}`", helps=helps)


def _get_kernel_sizes(
    over: WindowOperand, out: Dim | None, kernel: SizeOption | None, weight: Tensor | None
) -> SizeOption:
    """The kernel: as it is given, or as the weight has it, whose shape says `out` too."""
    # Of a weight that is given the shape says it; said twice, the two could differ.
    if weight is None:
        return kernel if kernel is not None else _raise_missing_option(over.site, "kernel")
    for option, value in (("out", out), ("kernel", kernel)):
        if value is not None:
            title = f"the shape of `weight` says what `{option}` is"
            over.site.fail("E0212", title, option, helps=[f"leave out `{option}=`"])
    return _get_weight_kernel(over, weight)


def _get_weight_kernel(over: WindowOperand, weight: Tensor) -> tuple[Dim, ...]:
    """The kernel of a weight that is given. E0301 where it has not its axes."""
    if len(weight.shape) != len(over.lengths) + 2:
        sizes = "kernel" if len(over.lengths) == 1 else "high, wide"
        title = f"a weight has the axes out, channels of a group, {sizes}"
        over.site.fail("E0301", title, "weight", f"this is {describe_value(weight)}")
    return weight.shape[2:]


def _check_groups(site: CallSite, channels: Dim, groups: Dim) -> None:
    """E0321 where channels cannot be shared out equally."""
    site.within(groups, "groups", 1)
    if mod_dims(channels, groups).number:
        title = f"{channels} channels cannot be shared out to {groups} groups"
        helps = ["the number of groups divides the channels that go in and those that come out"]
        site.fail("E0321", title, "groups", helps=helps)

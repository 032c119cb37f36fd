"""Built-in convolutions and pooling."""

from typing import NoReturn

from specc.frontend.builtins.nn import FAN_IN_INIT, ZEROS_INIT
from specc.frontend.builtins.registry import ONE, ZERO, CallContext, register_builtin
from specc.frontend.builtins.window_options import (
    EndPadding,
    PaddingOption,
    SizeOption,
    SlidingWindow,
    WindowedInput,
)
from specc.frontend.spec_values import ResultTuple, Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly, mod_dims


@register_builtin(has_weights=True)
def conv(
    ctx: CallContext,
    x: Tensor,
    *,
    out: Dim | None = None,
    kernel: SizeOption | None = None,
    stride: SizeOption = ONE,
    dilation: SizeOption = ONE,
    groups: Dim = ONE,
    padding: PaddingOption = ZERO,
    keep: Tensor | None = None,
    weight: Tensor | None = None,
    bias: bool | Tensor = True,
    init: str = FAN_IN_INIT,
) -> Tensor | ResultTuple:
    """Apply a convolution along the time axis of [batch, time, channels], or over a feature map
    [batch, channels, height, width].

    `kernel`, `stride` and `dilation` are one number, or one number per axis, such as `[3, 5]`.
    `groups` is the number of channel groups, which are convolved independently. `padding` is the
    number of zeros: a number for both ends of each axis, `[height, width]`, `[2, 0]` for start and
    end of the time axis, or `[[2, 0], [1, 1]]` for start and end of each axis. `padding=same` keeps
    the length. If the number of zeros is odd, the end has one zero more than the start.
    `padding=causal` pads only at the start, so that no output depends on later positions. If `keep`
    [batch, time] is set, masked-out positions are treated as zeros, and the results are (out,
    keep), where `keep` masks the output positions. Weights: `weight` [out, channels / groups,
    kernel], `bias` [out]. `weight=` and `bias=` accept tensors in place of stored weights.
    """
    operand = WindowedInput(ctx, x)
    sizes = _get_kernel_sizes(operand, out, kernel, weight)
    window = operand.make_window(sizes, stride, dilation, padding)
    _check_groups(ctx, operand.channels, groups)
    has_own_weight = weight is None
    weight = weight or _make_kernel(operand, out, groups, window, init, is_transposed=False)
    # mask the input, so that windows at the end of a sequence read zeros at padded positions
    masked_input = x if keep is None else _mask_input(ctx, operand, keep)
    op = ops.Conv(*window.op_attributes, groups)
    output = ctx.add_op(
        op, masked_input, weight, _get_bias(ctx, bias, weight.shape[0], has_own_weight)
    )
    if keep is None:
        return output
    return ResultTuple((output, _compute_output_mask(ctx, op, keep)), ("out", "keep"))


@register_builtin(has_weights=True)
def conv_transpose(
    ctx: CallContext,
    x: Tensor,
    *,
    out: Dim | None = None,
    kernel: SizeOption | None = None,
    stride: SizeOption = ONE,
    dilation: SizeOption = ONE,
    groups: Dim = ONE,
    padding: EndPadding = ZERO,
    output_padding: SizeOption = ZERO,
    weight: Tensor | None = None,
    bias: bool | Tensor = True,
    init: str = FAN_IN_INIT,
) -> Tensor:
    """Apply a transposed convolution, which upsamples by `stride` (arXiv:1603.07285, sec. 4).

    As in PyTorch, `n` positions become `(n - 1) · stride + dilation · (kernel - 1) + 1 - 2 ·
    padding + output_padding`. `padding` positions are removed at each end, and `output_padding`
    positions are added at the end. `output_padding` must be less than `stride` or `dilation`. All
    other options are those of `conv`. Weights: `weight` [channels, out / groups, kernel], `bias`
    [out]. `weight=` and `bias=` accept tensors in place of stored weights.
    """
    operand = WindowedInput(ctx, x)
    sizes = _get_kernel_sizes(operand, out, kernel, weight)
    window = operand.make_transposed_window(sizes, stride, dilation, padding, output_padding)
    _check_groups(ctx, operand.channels, groups)
    has_own_weight = weight is None
    weight = weight or _make_kernel(operand, out, groups, window, init, is_transposed=True)
    bias_operand = _get_bias(ctx, bias, weight.shape[1] * groups, has_own_weight)
    return ctx.add_op(ops.ConvTranspose(*window.op_attributes, groups), x, weight, bias_operand)


@register_builtin()
def max_pool(
    ctx: CallContext,
    x: Tensor,
    *,
    kernel: SizeOption,
    stride: SizeOption | None = None,
    dilation: SizeOption = ONE,
    padding: PaddingOption = ZERO,
    ceil_mode: bool = False,
) -> Tensor:
    """Apply max pooling per channel to [batch, time, channels] or to a feature map [batch,
    channels, height, width].

    `stride` defaults to the kernel size. All other options are those of `conv`. Padded positions
    have the value -inf. With `ceil_mode`, the last window may extend past the end of the input.
    """
    window = WindowedInput(ctx, x).make_pool_window(kernel, stride, dilation, padding)
    window = window.with_ceil_mode_padding() if ceil_mode else window
    return ctx.add_op(ops.MaxPool(*window.op_attributes), x)


@register_builtin()
def average_pool(
    ctx: CallContext,
    x: Tensor,
    *,
    kernel: SizeOption,
    stride: SizeOption | None = None,
    padding: PaddingOption = ZERO,
    count_include_pad: bool | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Apply average pooling per channel to [batch, time, channels] or to a feature map [batch,
    channels, height, width].

    The options are those of `max_pool`. `count_include_pad` is required if there is padding, and
    determines whether the mean includes the padded zeros.
    """
    window = WindowedInput(ctx, x).make_pool_window(kernel, stride, ONE, padding)
    # the option is required if there is padding, because PyTorch and ONNX have different defaults
    if count_include_pad is None and any((*window.pad_before, *window.pad_after)):
        helps = ["write `count_include_pad=true`, PyTorch's default, or `count_include_pad=false`"]
        title = "missing option `count_include_pad` of `average_pool` (required with padding)"
        ctx.raise_error("E0211", title, "padding", helps=helps)
    ceil_mode_padding = window.get_ceil_mode_padding() if ceil_mode else (0,) * len(window.kernel)
    kernels, strides, _, pads = window.op_attributes
    op = ops.AveragePool(kernels, strides, pads, ceil_mode_padding, bool(count_include_pad))
    return ctx.add_op(op, x)


@register_builtin()
def conv_keep(
    ctx: CallContext,
    keep: Tensor,
    *,
    kernel: SizeOption,
    stride: SizeOption = ONE,
    dilation: SizeOption = ONE,
    padding: PaddingOption = ZERO,
    ceil_mode: bool = False,
) -> Tensor:
    """Compute the padding mask [batch, time] of the output of a convolution or pooling. `keep`
    [batch, time] is the padding mask of the input.

    The number of valid output positions of a sequence does not depend on its padding. If windows
    extend past the end of a sequence, the values at padded positions must be zero, as in `conv(…,
    keep=keep)`.
    """
    if len(keep.shape) != 2 or keep.type.dtype != "bool":
        title = "`conv_keep` takes a padding mask, bool[batch, time]"
        ctx.raise_error("E0301", title, "keep", f"this is {describe_value(keep)}")
    operand = WindowedInput(ctx, keep, is_mask=True)
    window = operand.make_window(kernel, stride, dilation, padding)
    window = window.with_ceil_mode_padding() if ceil_mode else window
    return _compute_output_mask(ctx, ops.MaxPool(*window.op_attributes), keep)


def _mask_input(ctx: CallContext, operand: WindowedInput, keep: Tensor) -> Tensor:
    """Replace the values at padded positions with zeros."""
    if len(operand.x.shape) != 3:
        title = "`keep` masks the time axis of [batch, time, channels]; a feature map has none"
        ctx.raise_error("E0301", title, "keep", describe_value(keep))
    mask = ctx.insert_axis(keep, 2)
    return ctx.add_op(ops.Where(), mask, operand.x, ctx.add_constant(0.0, operand.x.type.dtype))


def _compute_output_mask(ctx: CallContext, op: ops.SlidingWindowOp, keep: Tensor) -> Tensor:
    """Return the padding mask of the output positions of the sliding-window op `op`."""
    # a position-preserving op has one output per input position, so the mask is unchanged
    if op.is_position_preserving(0):
        return keep
    return ctx.add_op(ops.DownsamplePaddingMask(op.stride[0], op.get_output_lag(0)), keep)


def _get_bias(
    ctx: CallContext, bias: bool | Tensor, out: Dim, has_own_weight: bool
) -> Tensor | None:
    """Return the bias tensor of a call, a new bias parameter, or None for a call without bias."""
    if isinstance(bias, Tensor):
        return bias
    sizes = ["out"] if has_own_weight else []
    return ctx.add_weight("bias", [out], ZEROS_INIT, sizes) if bias else None


def _make_kernel(
    operand: WindowedInput,
    out: Dim | None,
    groups: Dim,
    window: SlidingWindow,
    init: str,
    *,
    is_transposed: bool,
) -> Tensor:
    """Return the weight of a convolution, [out, channels / groups, kernel], or of a transposed
    convolution, [channels, out / groups, kernel].
    """
    if out is None:
        _raise_missing_option(operand.ctx, "out")
    _check_groups(operand.ctx, out, groups)
    channels, options = [out, operand.channels], ["out", ""]
    if is_transposed:
        channels.reverse()
        options.reverse()
    shape = (
        channels[0],
        divide_dims_exactly(channels[1], groups),
        *map(Dim.from_value, window.kernel),
    )
    return operand.ctx.add_weight("weight", shape, init, [*options, "kernel", "kernel"])


def _raise_missing_option(ctx: CallContext, option: str) -> NoReturn:
    """Raise E0211 if a call has neither the option `option` nor `weight`."""
    function_name = ctx.expr.function.path
    helps = [f"pass `{option}=`, or pass a tensor as `weight=`"]
    ctx.raise_error("E0211", f"missing option `{option}` of `{function_name}`", helps=helps)


def _get_kernel_sizes(
    operand: WindowedInput, out: Dim | None, kernel: SizeOption | None, weight: Tensor | None
) -> SizeOption:
    """Return the kernel sizes from `kernel` or `weight`. Raise E0212 if both options are set."""
    if weight is None:
        return kernel if kernel is not None else _raise_missing_option(operand.ctx, "kernel")
    for option, value in (("out", out), ("kernel", kernel)):
        if value is not None:
            title = f"`{option}` is determined by the shape of `weight`"
            operand.ctx.raise_error("E0212", title, option, helps=[f"remove `{option}=`"])
    if len(weight.shape) != len(operand.lengths) + 2:
        sizes = "kernel" if len(operand.lengths) == 1 else "height, width"
        title = f"`weight` of a convolution is [out, channels / groups, {sizes}]"
        operand.ctx.raise_error("E0301", title, "weight", f"this is {describe_value(weight)}")
    return weight.shape[2:]


def _check_groups(ctx: CallContext, channels: Dim, groups: Dim) -> None:
    """Raise E0321 if `groups` does not divide the number of channels."""
    ctx.check_range(groups, "groups", 1)
    if mod_dims(channels, groups).number:
        title = f"{channels} channels cannot be divided into {groups} groups"
        helps = ["`groups` must divide the number of input channels and of output channels"]
        ctx.raise_error("E0321", title, "groups", helps=helps)

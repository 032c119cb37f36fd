"""Convolutions and pooling in PyTorch."""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc.ir.graph_interpreter import (
    compute_conv_transpose_sizes,
    compute_downsampled_mask_size,
    count_window_elements,
    count_windows,
)
from specc_torch.torch_interpreter import ForwardContext, evaluate


def _get_function(name: str, op: ops.SlidingWindowOp | ops.ConvTranspose) -> Callable[..., Tensor]:
    """Return the variant of a PyTorch function for the number of window axes, such as `conv2d`."""
    function: Callable[..., Tensor] = getattr(functional, f"{name}{len(op.kernel)}d")
    return function


def _run_on_windows(
    op: ops.SlidingWindowOp,
    x: Tensor,
    channels: int,
    apply_windows: Callable[[Tensor, list[int]], Tensor],
) -> Tensor:
    """Call `apply_windows` with `x` in channels-first layout and the number of windows per axis.
    Return its result, which has `channels` channels. If there are no windows, return an empty
    tensor without calling `apply_windows`, because PyTorch rejects axes smaller than a window.
    """
    x = _swap_channels(op.kernel, x)
    window_counts = count_windows(op, x.shape[2:])
    if 0 in (*window_counts, *x.shape[:2]):
        result = x.new_zeros(x.shape[0], channels, *window_counts)
    else:
        result = apply_windows(x, window_counts)
    return _swap_channels(op.kernel, result)


@evaluate
def conv(
    op: ops.Conv, context: ForwardContext, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Compute a convolution.

    f[b t i], f[o j k], f[o]? -> f[b t o]
    """

    def convolve_windows(x: Tensor, window_counts: list[int]) -> Tensor:
        return _get_function("conv", op)(
            _pad_window_axes(op, x, 0.0),
            weight,
            bias,
            stride=op.stride,
            dilation=op.dilation,
            groups=context.evaluate_dim(op.groups),
        )

    return _run_on_windows(op, x, len(weight), convolve_windows)


@evaluate
def conv_transpose(
    op: ops.ConvTranspose,
    context: ForwardContext,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute a transposed convolution.

    f[b t i], f[i p k], f[o]? -> f[b u o]
    """
    x, groups = _swap_channels(op.kernel, x), context.evaluate_dim(op.groups)
    output_sizes = compute_conv_transpose_sizes(op, x.shape[2:])
    if 0 in x.shape:
        result = x.new_zeros(x.shape[0], weight.shape[1] * groups, *output_sizes)
    else:
        full_result = _get_function("conv_transpose", op)(
            x, weight, stride=op.stride, groups=groups, dilation=op.dilation
        )
        pads = zip(reversed(op.padding_before), reversed(op.padding_after), strict=True)
        # In PyTorch, negative padding crops a tensor.
        result = functional.pad(full_result, [-n for pad_pair in pads for n in pad_pair])
    if bias is not None:
        result = result + bias.reshape(-1, *[1] * len(op.kernel))
    return _swap_channels(op.kernel, result)


@evaluate
def max_pool(op: ops.MaxPool, context: ForwardContext, x: Tensor) -> Tensor:
    """Apply max pooling.

    f[b t c] -> f[b t c]
    """

    def pool_windows(x: Tensor, window_counts: list[int]) -> Tensor:
        padded = _pad_window_axes(op, x, -torch.inf)
        return _get_function("max_pool", op)(
            padded, op.kernel, stride=op.stride, dilation=op.dilation
        )

    return _run_on_windows(op, x, _count_channels(op, x), pool_windows)


@evaluate
def average_pool(op: ops.AveragePool, context: ForwardContext, x: Tensor) -> Tensor:
    """Apply average pooling.

    f[b t c] -> f[b t c]
    """

    def average_windows(x: Tensor, window_counts: list[int]) -> Tensor:
        padded = _pad_window_axes(op, x, 0.0)
        mean = _get_function("avg_pool", op)(padded, op.kernel, stride=op.stride)
        # PyTorch divides by the kernel size, not by the number of counted elements.
        element_counts = x.new_ones(())
        for elements in count_window_elements(op, x.shape[2:], window_counts):
            element_counts = element_counts[..., None] * torch.tensor(elements, device=x.device)
        return mean * prod(op.kernel) / element_counts

    return _run_on_windows(op, x, _count_channels(op, x), average_windows)


@evaluate
def downsample_padding_mask(
    op: ops.DownsamplePaddingMask, context: ForwardContext, keep: Tensor
) -> Tensor:
    """Compute the padding mask after a strided convolution.

    b[b t] -> b[b u]
    """
    length = keep.shape[1]
    output_length = compute_downsampled_mask_size(op, length)
    starts = torch.arange(output_length, device=keep.device) * op.stride + min(op.lag, 0)
    positions = starts[:, None] + torch.arange(abs(op.lag) + 1, device=keep.device)
    if not length:
        return keep.new_zeros(keep.shape[0], output_length)
    window = keep[:, positions.clamp(0, length - 1)] & (positions >= 0) & (positions < length)
    return window.all(2) if op.lag >= 0 else window.any(2)


def _count_channels(op: ops.SlidingWindowOp, x: Tensor) -> int:
    return x.shape[2 if len(op.kernel) == 1 else 1]


def _swap_channels(kernel: Sequence[int], x: Tensor) -> Tensor:
    """Transpose [b, t, c] to [b, c, t] or back. NCHW feature maps are returned unchanged."""
    return x.transpose(1, 2) if len(kernel) == 1 else x


def _pad_window_axes(op: ops.SlidingWindowOp, x: Tensor, value: float) -> Tensor:
    # PyTorch's padding lists the last axis first.
    pads = zip(reversed(op.padding_before), reversed(op.end_padding), strict=True)
    return functional.pad(x, [n for pad_pair in pads for n in pad_pair], value=value)

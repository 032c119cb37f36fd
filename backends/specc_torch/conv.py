"""Convolutions and pooling in PyTorch."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc.ir.evaluation import count_kept_rows, count_transposed_positions, count_windows
from specc_torch.torch_interpreter import ForwardContext, evaluate

CONV_FUNCTIONS = {1: functional.conv1d, 2: functional.conv2d}
CONV_TRANSPOSE_FUNCTIONS = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d}
MAX_POOL_FUNCTIONS = {1: functional.max_pool1d, 2: functional.max_pool2d}
AVERAGE_POOL_FUNCTIONS = {1: functional.avg_pool1d, 2: functional.avg_pool2d}
"""PyTorch's function by the number of window axes."""


@evaluate
def conv(
    op: ops.Conv, place: ForwardContext, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """f[b t i], f[o j k], f[o]? -> f[b t o]"""
    x = _to_channels_first(op.kernel, x)
    counts = count_windows(op, x.shape[2:])
    # PyTorch refuses an axis that is shorter than a window; here the result is empty.
    if 0 in (*counts, x.shape[0]):
        return _to_channels_first(op.kernel, x.new_zeros(x.shape[0], weight.shape[0], *counts))
    made = CONV_FUNCTIONS[len(op.kernel)](
        _pad_window_axes(op, x, 0.0),
        weight,
        bias,
        stride=op.stride,
        dilation=op.dilation,
        groups=place.length(op.groups),
    )
    return _to_channels_first(op.kernel, made)


@evaluate
def conv_transpose(
    op: ops.ConvTranspose,
    place: ForwardContext,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """f[b t i], f[i p k], f[o]? -> f[b u o]"""
    x, groups = _to_channels_first(op.kernel, x), place.length(op.groups)
    counts = count_transposed_positions(op, x.shape[2:])
    if 0 in x.shape:
        made = x.new_zeros(x.shape[0], weight.shape[1] * groups, *counts)
    else:
        whole = CONV_TRANSPOSE_FUNCTIONS[len(op.kernel)](
            x, weight, stride=op.stride, groups=groups, dilation=op.dilation
        )
        sides = zip(reversed(op.padding_before), reversed(op.padding_after), strict=True)
        # cropping is negative padding
        made = functional.pad(whole, [-n for side in sides for n in side])
    if bias is not None:
        made = made + bias.reshape(-1, *[1] * len(op.kernel))
    return _to_channels_first(op.kernel, made)


@evaluate
def max_pool(op: ops.MaxPool, place: ForwardContext, x: Tensor) -> Tensor:
    """f[b t c] -> f[b t c]"""
    x = _to_channels_first(op.kernel, x)
    counts = count_windows(op, x.shape[2:])
    if 0 in (*counts, *x.shape[:2]):
        return _to_channels_first(op.kernel, x.new_zeros(*x.shape[:2], *counts))
    padded = _pad_window_axes(op, x, -torch.inf)
    made = MAX_POOL_FUNCTIONS[len(op.kernel)](
        padded, op.kernel, stride=op.stride, dilation=op.dilation
    )
    return _to_channels_first(op.kernel, made)


@evaluate
def average_pool(op: ops.AveragePool, place: ForwardContext, x: Tensor) -> Tensor:
    """f[b t c] -> f[b t c]"""
    x = _to_channels_first(op.kernel, x)
    counts = count_windows(op, x.shape[2:])
    if 0 in (*counts, *x.shape[:2]):
        return _to_channels_first(op.kernel, x.new_zeros(*x.shape[:2], *counts))
    mean = AVERAGE_POOL_FUNCTIONS[len(op.kernel)](
        _pad_window_axes(op, x, 0.0), op.kernel, stride=op.stride
    )
    # the mean over the whole window, from the mean over valid positions
    number = x.new_ones(())
    for n, (size, count) in enumerate(zip(x.shape[2:], counts, strict=True)):
        least, most = 0, size
        if op.counted:
            least, most = -op.padding_before[n], size + op.padding_after[n]
        first = torch.arange(count, device=x.device) * op.stride[n] - op.padding_before[n]
        here = (first + op.kernel[n]).clamp(max=most) - first.clamp(min=least)
        number = number[..., None] * here
    return _to_channels_first(op.kernel, mean * prod(op.kernel) / number)


@evaluate
def keep_rows(op: ops.KeepRows, place: ForwardContext, keep: Tensor) -> Tensor:
    """b[b t] -> b[b u]"""
    size = keep.shape[1]
    count = count_kept_rows(op, size)
    first = torch.arange(count, device=keep.device) * op.stride + min(op.lag, 0)
    at = first[:, None] + torch.arange(abs(op.lag) + 1, device=keep.device)
    if not size:
        return keep.new_zeros(keep.shape[0], count)
    there = keep[:, at.clamp(0, size - 1)] & (at >= 0) & (at < size)
    return there.all(2) if op.lag >= 0 else there.any(2)


def _to_channels_first(kernel: Sequence[int], x: Tensor) -> Tensor:
    """Rows [b, t, c] as [b, c, t], and back; a picture as it is."""
    return x.transpose(1, 2) if len(kernel) == 1 else x


def _pad_window_axes(op: ops.Sliding, x: Tensor, value: float) -> Tensor:
    # PyTorch takes the last axis first.
    sides = zip(reversed(op.padding_before), reversed(op.end_padding), strict=True)
    return functional.pad(x, [n for side in sides for n in side], value=value)

"""Convolutions and pooling in PyTorch."""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc.ir.evaluation import (
    count_kept_rows,
    count_transposed_positions,
    count_window_elements,
    count_windows,
)
from specc_torch.torch_interpreter import ForwardContext, evaluate


def _get_function(name: str, op: ops.Sliding | ops.ConvTranspose) -> Callable[..., Tensor]:
    """Return PyTorch's function for the number of window axes, such as `conv2d`."""
    function: Callable[..., Tensor] = getattr(functional, f"{name}{len(op.kernel)}d")
    return function


def _run_on_windows(
    op: ops.Sliding, x: Tensor, channels: int, run: Callable[[Tensor, list[int]], Tensor]
) -> Tensor:
    """Return the result of `run`, which takes `x` channels-first and the number of windows. PyTorch
    refuses an axis that is shorter than a window; here the result is empty.
    """
    x = _swap_channels(op.kernel, x)
    counts = count_windows(op, x.shape[2:])
    if 0 in (*counts, *x.shape[:2]):
        made = x.new_zeros(x.shape[0], channels, *counts)
    else:
        made = run(x, counts)
    return _swap_channels(op.kernel, made)


@evaluate
def conv(
    op: ops.Conv, place: ForwardContext, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """f[b t i], f[o j k], f[o]? -> f[b t o]"""

    def convolve(x: Tensor, counts: list[int]) -> Tensor:
        return _get_function("conv", op)(
            _pad_window_axes(op, x, 0.0),
            weight,
            bias,
            stride=op.stride,
            dilation=op.dilation,
            groups=place.length(op.groups),
        )

    return _run_on_windows(op, x, len(weight), convolve)


@evaluate
def conv_transpose(
    op: ops.ConvTranspose,
    place: ForwardContext,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """f[b t i], f[i p k], f[o]? -> f[b u o]"""
    x, groups = _swap_channels(op.kernel, x), place.length(op.groups)
    counts = count_transposed_positions(op, x.shape[2:])
    if 0 in x.shape:
        made = x.new_zeros(x.shape[0], weight.shape[1] * groups, *counts)
    else:
        whole = _get_function("conv_transpose", op)(
            x, weight, stride=op.stride, groups=groups, dilation=op.dilation
        )
        sides = zip(reversed(op.padding_before), reversed(op.padding_after), strict=True)
        # cropping is negative padding
        made = functional.pad(whole, [-n for side in sides for n in side])
    if bias is not None:
        made = made + bias.reshape(-1, *[1] * len(op.kernel))
    return _swap_channels(op.kernel, made)


@evaluate
def max_pool(op: ops.MaxPool, place: ForwardContext, x: Tensor) -> Tensor:
    """f[b t c] -> f[b t c]"""

    def pool(x: Tensor, counts: list[int]) -> Tensor:
        padded = _pad_window_axes(op, x, -torch.inf)
        return _get_function("max_pool", op)(
            padded, op.kernel, stride=op.stride, dilation=op.dilation
        )

    return _run_on_windows(op, x, _count_channels(op, x), pool)


@evaluate
def average_pool(op: ops.AveragePool, place: ForwardContext, x: Tensor) -> Tensor:
    """f[b t c] -> f[b t c]"""

    def average(x: Tensor, counts: list[int]) -> Tensor:
        padded = _pad_window_axes(op, x, 0.0)
        mean = _get_function("avg_pool", op)(padded, op.kernel, stride=op.stride)
        # the mean over the whole window, from the mean over valid positions
        number = x.new_ones(())
        for elements in count_window_elements(op, x.shape[2:], counts):
            number = number[..., None] * torch.tensor(elements, device=x.device)
        return mean * prod(op.kernel) / number

    return _run_on_windows(op, x, _count_channels(op, x), average)


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


def _count_channels(op: ops.Sliding, x: Tensor) -> int:
    return x.shape[2 if len(op.kernel) == 1 else 1]


def _swap_channels(kernel: Sequence[int], x: Tensor) -> Tensor:
    """Return [b, t, c] as [b, c, t], and back; an image unchanged."""
    return x.transpose(1, 2) if len(kernel) == 1 else x


def _pad_window_axes(op: ops.Sliding, x: Tensor, value: float) -> Tensor:
    # PyTorch takes the last axis first.
    sides = zip(reversed(op.padding_before), reversed(op.end_padding), strict=True)
    return functional.pad(x, [n for side in sides for n in side], value=value)

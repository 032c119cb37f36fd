"""Evaluate convolutions and pooling."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph_interpreter import (
    compute_conv_transpose_sizes,
    compute_downsampled_mask_size,
    count_window_elements,
    count_windows,
    evaluate_dim,
)
from specc_numpy.numpy_interpreter import LengthValues, evaluate


@evaluate
def conv(
    op: ops.Conv, lengths: LengthValues, x: Array, weight: Array, bias: Array | None = None
) -> Array:
    """Compute a convolution.

    f[b t i], f[o j k], f[o]? -> f[b t o]
    """
    x, groups = swap_channel_axis(op.kernel, x), evaluate_dim(op.groups, lengths)
    window_counts = count_windows(op, x.shape[2:])
    window_count = prod(window_counts)
    batch = x.shape[0]
    output_channels, channels = weight.shape[:2]
    group_outputs = output_channels // groups
    padded = _pad_window_axes(op, x, 0.0)
    padded = padded.reshape(batch, groups, channels, *padded.shape[2:])
    y: Array = np.zeros((batch, groups, group_outputs, window_count))
    # Sum over the kernel offsets. One matrix multiplication per offset computes all windows.
    for offset in np.ndindex(*op.kernel):
        window_inputs = _select_window_offset(op, padded, offset, window_counts)
        window_inputs = window_inputs.reshape(batch, groups, channels, window_count)
        kernel_slice = weight[(..., *offset)].reshape(groups, group_outputs, channels)
        y += kernel_slice @ window_inputs
    return swap_channel_axis(
        op.kernel, _add_bias(y.reshape(batch, output_channels, *window_counts), bias)
    )


@evaluate
def conv_transpose(
    op: ops.ConvTranspose, lengths: LengthValues, x: Array, weight: Array, bias: Array | None = None
) -> Array:
    """Compute a transposed convolution.

    f[b t i], f[i p k], f[o]? -> f[b u o]
    """
    x, groups = swap_channel_axis(op.kernel, x), evaluate_dim(op.groups, lengths)
    batch, channels, *sizes = x.shape
    output_channels = weight.shape[1] * groups
    output_sizes = compute_conv_transpose_sizes(op, sizes)
    grouped_input = x.reshape(batch, groups, channels // groups, prod(sizes))
    kernels = weight.reshape(groups, channels // groups, weight.shape[1], *op.kernel)
    scattered_sizes = [
        _count_scattered_positions(op, n, sizes[n], count) for n, count in enumerate(output_sizes)
    ]
    y: Array = np.zeros((batch, output_channels, *scattered_sizes))
    # For each kernel offset, scatter all input positions at once.
    for offset in np.ndindex(*op.kernel):
        products = kernels[(..., *offset)].swapaxes(1, 2) @ grouped_input
        steps = zip(offset, op.dilation, op.stride, sizes, strict=True)
        slices = [slice(n * d, n * d + size * s, s) for n, d, s, size in steps]
        y[:, :, *slices] += products.reshape(batch, output_channels, *sizes)
    crop_slices = [slice(a, a + n) for a, n in zip(op.padding_before, output_sizes, strict=True)]
    return swap_channel_axis(op.kernel, _add_bias(y[:, :, *crop_slices], bias))


def _count_scattered_positions(op: ops.ConvTranspose, axis: int, size: int, count: int) -> int:
    """Return a transposed convolution's output size along an axis before cropping."""
    last_start = max(size - 1, 0) * op.stride[axis]
    kernel_span = op.dilation[axis] * (op.kernel[axis] - 1)
    return max(count + op.padding_before[axis], last_start + kernel_span + 1)


@evaluate
def max_pool(op: ops.MaxPool, lengths: LengthValues, x: Array) -> Array:
    """Apply max pooling.

    f[b t c] -> f[b t c]
    """
    pooled = _combine_windows(op, swap_channel_axis(op.kernel, x), -np.inf, np.maximum)
    return swap_channel_axis(op.kernel, pooled)


@evaluate
def average_pool(op: ops.AveragePool, lengths: LengthValues, x: Array) -> Array:
    """Apply average pooling.

    f[b t c] -> f[b t c]
    """
    x = swap_channel_axis(op.kernel, x)
    window_sums = _combine_windows(op, x, 0.0, np.add)
    element_counts: Array = np.ones(())
    for elements in count_window_elements(op, x.shape[2:], window_sums.shape[2:]):
        element_counts = element_counts[..., None] * np.array(elements)
    return swap_channel_axis(op.kernel, window_sums / element_counts)


def _combine_windows(
    op: ops.MaxPool | ops.AveragePool,
    x: Array,
    initial_value: float,
    combine: Callable[[Array, Array], Array],
) -> Array:
    """Reduce each window of `x` (NCHW) to one element with `combine`. The reduction begins with
    `initial_value`, which is also the padding value.
    """
    window_counts = count_windows(op, x.shape[2:])
    padded = _pad_window_axes(op, x, initial_value)
    y: Array = np.full((*x.shape[:2], *window_counts), initial_value)
    for offset in np.ndindex(*op.kernel):
        y = combine(y, _select_window_offset(op, padded, offset, window_counts))
    return y


@evaluate
def downsample_padding_mask(
    op: ops.DownsamplePaddingMask, lengths: LengthValues, keep: Array
) -> Array:
    """Compute the padding mask after a strided convolution.

    b[b t] -> b[b u]
    """
    length = keep.shape[1]
    output_length = compute_downsampled_mask_size(op, length)
    result: Array = np.zeros((keep.shape[0], output_length), bool)
    for t in range(output_length):
        # The window of a result starts at `position` and ends at `position + lag`. If the lag is
        # negative, the window starts at `position + lag` and ends at `position`.
        position = t * op.stride
        window_start, window_end = sorted((position, position + op.lag))
        window = keep[:, max(window_start, 0) : window_end + 1]
        result[:, t] = window.all(1) if op.lag >= 0 else window.any(1)
    return result


def swap_channel_axis(kernel: Sequence[int], x: Array) -> Array:
    """Transpose [b, t, c] to [b, c, t] or back. NCHW feature maps are returned unchanged."""
    return x.swapaxes(1, 2) if len(kernel) == 1 else x


def _pad_window_axes(op: ops.SlidingWindowOp, x: Array, value: float) -> Array:
    pads = list(zip(op.padding_before, op.end_padding, strict=True))
    return np.pad(x, [(0, 0), (0, 0), *pads], constant_values=value)


def _select_window_offset(
    op: ops.SlidingWindowOp, padded: Array, offset: Sequence[int], window_counts: Sequence[int]
) -> Array:
    """Return the element at one kernel offset for every window."""
    steps = zip(offset, op.dilations, op.stride, window_counts, strict=True)
    slices = [slice(n * d, n * d + c * s, s) for n, d, s, c in steps]
    leading = [slice(None)] * (padded.ndim - len(slices))
    return padded[*leading, *slices]


def _add_bias(y: Array, b: Array | None) -> Array:
    return y if b is None else y + b.reshape(-1, *[1] * (y.ndim - 2))

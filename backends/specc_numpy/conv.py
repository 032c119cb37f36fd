"""Evaluate convolutions and pooling."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.evaluation import (
    count_kept_rows,
    count_transposed_positions,
    count_window_elements,
    count_windows,
    evaluate_length,
)
from specc_numpy.numpy_interpreter import LengthValues, evaluate


@evaluate
def conv(
    op: ops.Conv, env: LengthValues, x: Array, weight: Array, bias: Array | None = None
) -> Array:
    """f[b t i], f[o j k], f[o]? -> f[b t o]"""
    x, groups = swap_channels(op.kernel, x), evaluate_length(op.groups, env)
    counts = count_windows(op, x.shape[2:])
    count = prod(counts)
    batch = x.shape[0]
    out, channels = weight.shape[:2]
    own = out // groups
    padded = _pad_window_axes(op, x, 0.0)
    padded = padded.reshape(batch, groups, channels, *padded.shape[2:])
    y: Array = np.zeros((batch, groups, own, count))
    # A window is a sum over kernel positions: one product per position, for all windows at once.
    for place in np.ndindex(*op.kernel):
        seen = _select_window_place(op, padded, place, counts)
        seen = seen.reshape(batch, groups, channels, count)
        here = weight[(..., *place)].reshape(groups, own, channels)
        y += here @ seen
    return swap_channels(op.kernel, _add_bias(y.reshape(batch, out, *counts), bias))


@evaluate
def conv_transpose(
    op: ops.ConvTranspose, env: LengthValues, x: Array, weight: Array, bias: Array | None = None
) -> Array:
    """f[b t i], f[i p k], f[o]? -> f[b u o]"""
    x, groups = swap_channels(op.kernel, x), evaluate_length(op.groups, env)
    batch, channels, *sizes = x.shape
    out = weight.shape[1] * groups
    counts = count_transposed_positions(op, sizes)
    given = x.reshape(batch, groups, channels // groups, prod(sizes))
    kernels = weight.reshape(groups, channels // groups, weight.shape[1], *op.kernel)
    room = [_count_scattered_positions(op, n, sizes[n], count) for n, count in enumerate(counts)]
    y: Array = np.zeros((batch, out, *room))
    # Transposed: for each kernel position, all input positions are scattered at once.
    for place in np.ndindex(*op.kernel):
        added = kernels[(..., *place)].swapaxes(1, 2) @ given
        steps = zip(place, op.dilation, op.stride, sizes, strict=True)
        here = [slice(n * d, n * d + size * s, s) for n, d, s, size in steps]
        y[:, :, *here] += added.reshape(batch, out, *sizes)
    kept = [slice(a, a + n) for a, n in zip(op.padding_before, counts, strict=True)]
    return swap_channels(op.kernel, _add_bias(y[:, :, *kept], bias))


def _count_scattered_positions(op: ops.ConvTranspose, n: int, size: int, count: int) -> int:
    """Return the length that holds every kernel of every position, before cropping."""
    last = max(size - 1, 0) * op.stride[n]
    reach = op.dilation[n] * (op.kernel[n] - 1)
    return max(count + op.padding_before[n], last + reach + 1)


@evaluate
def max_pool(op: ops.MaxPool, env: LengthValues, x: Array) -> Array:
    """f[b t c] -> f[b t c]"""
    pooled = _combine_windows(op, swap_channels(op.kernel, x), -np.inf, np.maximum)
    return swap_channels(op.kernel, pooled)


@evaluate
def average_pool(op: ops.AveragePool, env: LengthValues, x: Array) -> Array:
    """f[b t c] -> f[b t c]"""
    x = swap_channels(op.kernel, x)
    total = _combine_windows(op, x, 0.0, np.add)
    number: Array = np.ones(())
    for elements in count_window_elements(op, x.shape[2:], total.shape[2:]):
        number = number[..., None] * np.array(elements)
    return swap_channels(op.kernel, total / number)


def _combine_windows(
    op: ops.MaxPool | ops.AveragePool,
    x: Array,
    start: float,
    combine: Callable[[Array, Array], Array],
) -> Array:
    """Return the elements of each window combined, from `start`, which is also the padding."""
    counts = count_windows(op, x.shape[2:])
    padded = _pad_window_axes(op, x, start)
    y: Array = np.full((*x.shape[:2], *counts), start)
    for place in np.ndindex(*op.kernel):
        y = combine(y, _select_window_place(op, padded, place, counts))
    return y


@evaluate
def keep_rows(op: ops.KeepRows, env: LengthValues, keep: Array) -> Array:
    """b[b t] -> b[b u]"""
    size = keep.shape[1]
    count = count_kept_rows(op, size)
    made: Array = np.zeros((keep.shape[0], count), bool)
    for t in range(count):
        # All positions from an offset on ahead or, with a negative lag, all from a lag on behind.
        at = t * op.stride
        first, last = sorted((at, at + op.lag))
        there = keep[:, max(first, 0) : last + 1]
        made[:, t] = there.all(1) if op.lag >= 0 else there.any(1)
    return made


def swap_channels(kernel: Sequence[int], x: Array) -> Array:
    """Return [b, t, c] as [b, c, t], and back; an image unchanged."""
    return x.swapaxes(1, 2) if len(kernel) == 1 else x


def _pad_window_axes(op: ops.Sliding, x: Array, value: float) -> Array:
    sides = list(zip(op.padding_before, op.end_padding, strict=True))
    return np.pad(x, [(0, 0), (0, 0), *sides], constant_values=value)


def _select_window_place(
    op: ops.Sliding, padded: Array, place: Sequence[int], counts: Sequence[int]
) -> Array:
    """Return the element at one offset of every window."""
    steps = zip(place, op.dilations, op.stride, counts, strict=True)
    here = [slice(n * d, n * d + c * s, s) for n, d, s, c in steps]
    before = [slice(None)] * (padded.ndim - len(here))
    return padded[*before, *here]


def _add_bias(y: Array, b: Array | None) -> Array:
    return y if b is None else y + b.reshape(-1, *[1] * (y.ndim - 2))

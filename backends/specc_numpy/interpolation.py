"""Evaluate `Resize` and `GridSample`."""

import math

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph_interpreter import evaluate_dim
from specc_numpy.numpy_interpreter import LengthValues, evaluate


@evaluate
def resize(op: ops.Resize, lengths: LengthValues, x: Array) -> Array:
    """Resize axes by nearest-neighbor, linear or cubic interpolation, like PyTorch.

    a[*a t *b] -> a[*a u *b]
    """
    for n, dim in enumerate(op.sizes):
        axis, size = op.axis + n, evaluate_dim(dim, lengths)
        length = x.shape[axis]
        if length < 1 or size < 1:
            raise_error("E0912", f"cannot resize an axis of length {length} to {size}")
        # An explicit scale factor is used unchanged, because it differs from the ratio of the
        # rounded sizes.
        step = 1 / op.factors[n] if op.factors else length / size
        if not op.is_interpolating:
            x = np.take(x, find_nearest_source_indices(op.mode, length, size, step), axis=axis)
        elif op.antialias:
            x = _sum_weighted_positions(
                x, axis, _compute_antialiased_weights(op.mode, length, size, step)
            )
        else:
            coordinates = _compute_source_coordinates(
                length, size, step, align_corners=op.align_corners
            )
            x = _sum_weighted_positions(x, axis, INTERPOLATION_RULES[op.mode](coordinates))
    return x


def _compute_source_coordinates(
    length: int, size: int, step: float, *, align_corners: bool
) -> Array:
    """Map output indices to source coordinates, with `align_corners` or half-pixel centers."""
    positions = np.arange(size)
    if align_corners:
        return positions * ((length - 1) / (size - 1) if size > 1 else 0.0)
    coordinates: Array = (positions + 0.5) * step - 0.5
    return coordinates


def _sum_weighted_positions(x: Array, axis: int, neighbors: list[tuple[Array, Array]]) -> Array:
    """Return weighted sums of neighbors along an axis. Indices beyond the border are clamped."""
    trailing_axes = [1] * (x.ndim - 1 - axis)
    weighted_sum: Array = np.zeros(())
    for index, weight in neighbors:
        values = np.take(x, np.clip(index, 0, x.shape[axis] - 1), axis=axis)
        weighted_sum = weighted_sum + values * weight.reshape(-1, *trailing_axes)
    return weighted_sum


def find_nearest_source_indices(mode: str, input_size: int, output_size: int, step: float) -> Array:
    """Return the nearest source index of each output index, computed in float32 as in PyTorch."""
    offset = np.float32(0.5 if mode == "nearest_exact" else 0)
    positions = np.arange(output_size).astype(np.float32) + offset
    indices: Array = np.minimum(
        np.floor(positions * np.float32(step)).astype(np.int64), input_size - 1
    )
    return indices


def _compute_linear_weights(coordinates: Array) -> list[tuple[Array, Array]]:
    """Return the two source indices around each coordinate, with their interpolation weights."""
    coordinates = np.maximum(coordinates, 0.0)
    lower = np.floor(coordinates).astype(np.int64)
    return [(lower, 1 - (coordinates - lower)), (lower + 1, coordinates - lower)]


def _compute_cubic_weights(coordinates: Array) -> list[tuple[Array, Array]]:
    """Return four source indices per coordinate and their weights (Keys 1981, a = -0.75)."""
    a, lower = -0.75, np.floor(coordinates).astype(np.int64)
    neighbors = []
    for offset in (-1, 0, 1, 2):
        distance = np.abs(coordinates - lower - offset)
        inner = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        outer = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        neighbors.append((lower + offset, inner if offset in (0, 1) else outer))
    return neighbors


def _compute_antialiased_weights(
    mode: str, length: int, size: int, step: float
) -> list[tuple[Array, Array]]:
    """Return the source indices in the support of a triangle or cubic filter, and their weights."""
    filter_scale = max(step, 1.0)
    centers = (np.arange(size) + 0.5) * step
    radius = filter_scale * (1 if mode == "bilinear" else 2)
    first_indices = np.floor(centers - radius + 0.5).astype(np.int64)
    neighbors = []
    for n in range(math.ceil(2 * radius) + 1):
        distance = np.abs(first_indices + n + 0.5 - centers) / filter_scale
        if mode == "bilinear":
            weight = np.maximum(1 - distance, 0)
        else:
            # the cubic kernel of Keys (1981) with a = -0.5
            inner = (1.5 * distance - 2.5) * distance * distance + 1
            outer = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
            weight = np.where(distance < 1, inner, np.where(distance < 2, outer, 0))
        is_in_range = (first_indices + n >= 0) & (first_indices + n < length)
        neighbors.append((first_indices + n, np.where(is_in_range, weight, 0.0)))
    weight_sum = sum(weight for _, weight in neighbors)
    return [(index, weight / weight_sum) for index, weight in neighbors]


INTERPOLATION_RULES = {"bilinear": _compute_linear_weights, "bicubic": _compute_cubic_weights}
"""For each interpolation mode, the function that computes source indices (clamped to the axis) and
interpolation weights.
"""


@evaluate
def grid_sample(op: ops.GridSample, lengths: LengthValues, x: Array, grid: Array) -> Array:
    """Sample a feature map at points with coordinates in [-1, 1], like PyTorch's `grid_sample`.

    f[b c h w], f[b *u xy] -> f[b c *u]
    """
    if min(x.shape[2:]) < 1:
        raise_error("E0912", f"cannot sample a feature map of shape {x.shape}")
    points = grid.reshape(len(grid), math.prod(grid.shape[1:-1]), 2)
    columns, rows = (_compute_pixel_weights(op, points[..., n], x.shape[3 - n]) for n in range(2))
    batch = np.arange(len(x))[:, None]
    samples = np.zeros((*points.shape[:2], x.shape[1]))
    for row, row_weight in rows:
        for column, column_weight in columns:
            samples = samples + x[batch, :, row, column] * (row_weight * column_weight)[..., None]
    return np.moveaxis(samples, 2, 1).reshape(*x.shape[:2], *grid.shape[1:-1])


def _compute_pixel_weights(
    op: ops.GridSample, coordinates: Array, size: int
) -> list[tuple[Array, Array]]:
    """Return the indices and weights of the two pixels next to each point on an axis. Points are in
    [-1, 1]. NaN is treated as -1.
    """
    coordinates = np.where(np.isnan(coordinates), -1.0, coordinates)
    coordinates = (
        (coordinates + 1) / 2 * (size - 1)
        if op.align_corners
        else ((coordinates + 1) * size - 1) / 2
    )
    if op.padding_mode == "reflection":
        edge = 0.0 if op.align_corners else 0.5
        span = max(size - 1 + 2 * edge, 1.0)
        coordinates = span - np.abs((coordinates + edge) % (2 * span) - span) - edge
    if op.padding_mode != "zeros":
        coordinates = np.clip(coordinates, 0, size - 1)
    lower = np.floor(coordinates) if op.mode == "bilinear" else np.round(coordinates)
    neighbors = [(lower, 1 - (coordinates - lower)), (lower + 1, coordinates - lower)]
    if op.mode == "nearest":
        neighbors = [(lower, np.ones(coordinates.shape))]
    return [
        # the weight of a pixel may be NaN for an infinite coordinate, and its pixel index is then
        # irrelevant
        (np.clip(np.nan_to_num(n), 0, size - 1).astype(np.int64), weight * ((n >= 0) & (n < size)))
        for n, weight in neighbors
    ]

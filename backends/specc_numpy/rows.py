"""Evaluate ops that select, reorder or resample positions."""

import math

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.evaluation import evaluate_length, evaluate_padding, evaluate_stride, evaluate_top_k
from specc_numpy.numpy_interpreter import LengthValues, evaluate


@evaluate
def sort(op: ops.Sort, env: LengthValues, x: Array) -> tuple[Array, Array]:
    """n[*a t *b] -> n[*a t *b], i[*a t *b]"""
    order = _sort_indices(x, op.axis, op.descending)
    return np.take_along_axis(x, order, axis=op.axis), order


def _sort_indices(x: Array, axis: int, descending: bool) -> Array:
    """Return the indices that sort an axis; of equal elements the lower index comes first."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # A stable sort of the reversed axis, reversed back.
    reversed_order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    order: Array = x.shape[axis] - 1 - np.flip(reversed_order, axis)
    return order


@evaluate
def top_k(op: ops.TopK, env: LengthValues, x: Array) -> tuple[Array, Array]:
    """n[*a t *b] -> n[*a u *b], i[*a u *b]"""
    k = evaluate_top_k(op, x.shape[op.axis], env)
    order = _sort_indices(x, op.axis, op.largest)
    places = np.take(order, np.arange(k), axis=op.axis)
    return np.take_along_axis(x, places, axis=op.axis), places


evaluate.add_rules(
    {
        ops.Stride: lambda op, env, x: np.take(
            x, np.arange(*evaluate_stride(op, x.shape[op.axis], env)), axis=op.axis
        ),
        ops.Roll: lambda op, env, x: np.roll(x, evaluate_length(op.by, env), axis=op.axis),
    }
)


@evaluate
def pad(op: ops.Pad, env: LengthValues, x: Array) -> Array:
    """a[*a t *b] -> a[*a u *b]"""
    before, after = evaluate_padding(op, x.shape[op.axis], env)
    widths = [(0, 0)] * x.ndim
    widths[op.axis] = before, after
    if op.mode == "constant":
        return np.pad(x, widths, constant_values=op.value)
    return np.pad(x, widths, mode="edge" if op.mode == "edge" else "reflect")


@evaluate
def resize(op: ops.Resize, env: LengthValues, x: Array) -> Array:
    """a[*a t *b] -> a[*a u *b]"""
    for n, dim in enumerate(op.sizes):
        axis, size = op.axis + n, evaluate_length(dim, env)
        rows = x.shape[axis]
        if rows < 1 or size < 1:
            raise_error("E0912", f"cannot resize an axis of length {rows} to {size}")
        # An explicit scale factor is used as given, not the ratio of rounded lengths.
        step = 1 / op.factors[n] if op.factors else rows / size
        if not op.interpolates:
            x = np.take(x, find_nearest_indices(op.mode, rows, size, step), axis=axis)
        elif op.antialias:
            x = _sum_weighted_positions(x, axis, _weigh_antialiased(op.mode, rows, size, step))
        else:
            at = _compute_source_coordinates(rows, size, step, corners=op.align_corners)
            x = _sum_weighted_positions(x, axis, INTERPOLATION_RULES[op.mode](at))
    return x


def _compute_source_coordinates(rows: int, size: int, step: float, *, corners: bool) -> Array:
    """Map output positions to input coordinates: corner to corner, or by pixel centers."""
    points = np.arange(size)
    if corners:
        return points * ((rows - 1) / (size - 1) if size > 1 else 0.0)
    places: Array = (points + 0.5) * step - 0.5
    return places


def _sum_weighted_positions(x: Array, axis: int, around: list[tuple[Array, Array]]) -> Array:
    """Return the weighted sum of indexed positions, clamped to the border."""
    behind = [1] * (x.ndim - 1 - axis)
    total: Array = np.zeros(())
    for row, weight in around:
        taken = np.take(x, np.clip(row, 0, x.shape[axis] - 1), axis=axis)
        total = total + taken * weight.reshape(-1, *behind)
    return total


def find_nearest_indices(mode: str, rows: int, size: int, step: float) -> Array:
    """Return the source pixel of each point, computed in float32 as PyTorch does."""
    offset = np.float32(0.5 if mode == "nearest_exact" else 0)
    points = np.arange(size).astype(np.float32) + offset
    taken: Array = np.minimum(np.floor(points * np.float32(step)).astype(np.int64), rows - 1)
    return taken


def _weigh_linear(at: Array) -> list[tuple[Array, Array]]:
    """Return the two positions around each coordinate, with their weights."""
    at = np.maximum(at, 0.0)
    low = np.floor(at).astype(np.int64)
    return [(low, 1 - (at - low)), (low + 1, at - low)]


def _weigh_cubic(at: Array) -> list[tuple[Array, Array]]:
    """Return the four positions around each coordinate, with their weights (Keys 1981,
    a = -0.75).
    """
    a, low = -0.75, np.floor(at).astype(np.int64)
    found = []
    for step in (-1, 0, 1, 2):
        far = np.abs(at - low - step)
        near = ((a + 2) * far - (a + 3)) * far * far + 1
        beyond = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
        found.append((low + step, near if step in (0, 1) else beyond))
    return found


def _weigh_antialiased(mode: str, rows: int, size: int, step: float) -> list[tuple[Array, Array]]:
    """Return the positions that a triangle or cubic filter covers, with their weights."""
    wide = max(step, 1.0)
    centers = (np.arange(size) + 0.5) * step
    reach = wide * (1 if mode == "bilinear" else 2)
    first = np.floor(centers - reach + 0.5).astype(np.int64)
    found = []
    for n in range(math.ceil(2 * reach) + 1):
        far = np.abs(first + n + 0.5 - centers) / wide
        if mode == "bilinear":
            weight = np.maximum(1 - far, 0)
        else:
            # Keys 1981, with a = -0.5
            near = (1.5 * far - 2.5) * far * far + 1
            beyond = ((-0.5 * far + 2.5) * far - 4) * far + 2
            weight = np.where(far < 1, near, np.where(far < 2, beyond, 0))
        there = (first + n >= 0) & (first + n < rows)
        found.append((first + n, np.where(there, weight, 0.0)))
    total = sum(weight for _, weight in found)
    return [(row, weight / total) for row, weight in found]


INTERPOLATION_RULES = {"bilinear": _weigh_linear, "bicubic": _weigh_cubic}
"""The source positions of each mode; positions beyond the border are clamped."""


@evaluate
def grid_sample(op: ops.GridSample, env: LengthValues, x: Array, grid: Array) -> Array:
    """f[b c h w], f[b *u xy] -> f[b c *u]"""
    if min(x.shape[2:]) < 1:
        raise_error("E0912", f"a feature map of shape {x.shape} is sampled")
    points = grid.reshape(len(grid), math.prod(grid.shape[1:-1]), 2)
    columns, rows = (_weigh_pixels(op, points[..., n], x.shape[3 - n]) for n in range(2))
    batch = np.arange(len(x))[:, None]
    total = np.zeros((*points.shape[:2], x.shape[1]))
    for row, row_weight in rows:
        for column, column_weight in columns:
            total = total + x[batch, :, row, column] * (row_weight * column_weight)[..., None]
    return np.moveaxis(total, 2, 1).reshape(*x.shape[:2], *grid.shape[1:-1])


def _weigh_pixels(op: ops.GridSample, at: Array, size: int) -> list[tuple[Array, Array]]:
    """Return the pixels of one axis that points in -1 to 1 read, with their weights; NaN is -1."""
    at = np.where(np.isnan(at), -1.0, at)
    at = (at + 1) / 2 * (size - 1) if op.align_corners else ((at + 1) * size - 1) / 2
    if op.padding_mode == "reflection":
        edge = 0.0 if op.align_corners else 0.5
        span = max(size - 1 + 2 * edge, 1.0)
        at = span - np.abs((at + edge) % (2 * span) - span) - edge
    if op.padding_mode != "zeros":
        at = np.clip(at, 0, size - 1)
    low = np.floor(at) if op.mode == "bilinear" else np.round(at)
    found = [(low, 1 - (at - low)), (low + 1, at - low)]
    if op.mode == "nearest":
        found = [(low, np.ones(at.shape))]
    return [
        # a point that is NaN reads some pixel with the weight NaN
        (np.clip(np.nan_to_num(n), 0, size - 1).astype(np.int64), weight * ((n >= 0) & (n < size)))
        for n, weight in found
    ]

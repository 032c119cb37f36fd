"""Resize position embedding tables (bicubic)."""

import math

import numpy as np
from numpy.typing import NDArray

from specc.ir.array import Array

CUBIC = -0.75
"""The free number of the cubic kernel, as PyTorch's
`interpolate(mode="bicubic", antialias=False)` has it.
"""


def resize_grid(table: Array, rows: int, columns: int, prefix: int) -> Array:
    """f[*s (prefix + n n) d] → f[*s (prefix + rows columns) d]: bicubic, corners not
    aligned, edges repeated.

    The first `prefix` rows ([CLS] and the like) are kept. Computed in float64, rounded
    once. The kernel is that of Keys 1981, "Cubic convolution interpolation", eq. 4 in
    its general form.
    """
    side = math.isqrt(table.shape[-2] - prefix)
    lead, d = table.shape[:-2], table.shape[-1]
    grid = table[..., prefix:, :].astype(np.float64).reshape(*lead, side, side, d)
    down, across = _resampling(side, rows), _resampling(side, columns)
    grid = np.einsum(
        "rs,...std,ct->...rcd", down, grid, across, optimize=["einsum_path", (0, 1), (0, 1)]
    )
    body = grid.reshape(*lead, rows * columns, d).astype(table.dtype)
    return np.concatenate([table[..., :prefix, :], body], axis=-2)


def _resampling(old: int, new: int) -> NDArray[np.float64]:
    """f64[new old]: row r holds the weights with which the old points make new point r."""
    matrix = np.zeros((new, old))
    for r in range(new):
        center = (r + 0.5) * old / new - 0.5
        first = math.floor(center)
        for k in range(-1, 3):
            at = min(max(first + k, 0), old - 1)
            matrix[r, at] += _kernel(abs(center - (first + k)))
    return matrix


def _kernel(t: float) -> float:
    """The cubic kernel at distance `t`, in points of the old grid."""
    if t <= 1:
        return ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1
    if t < 2:
        return ((CUBIC * t - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC
    return 0.0

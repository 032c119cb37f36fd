"""GPTQ rounding (Frantar et al., 2022, arXiv:2210.17323, Algorithm 1)."""

import numpy as np

from specc.ir.array import Array
from specc.weights import int_quantization

BITS, LOW, HIGH = 4, -8, 7
MAX_DIRECT_INVERSE = 256
"""Matrices up to this size are inverted without recursion."""
BLOCK_COLUMNS = 8
"""Number of columns updated at once with a column's error."""
DAMPING_FRACTION = 0.01
"""Fraction of the mean diagonal of H that is added to the diagonal, so that H is invertible."""


def cholesky_factor(products: Array) -> Array:
    """Return the upper U with `UᵀU = H⁻¹` of the Gram matrix `XᵀX`, f64, computed in place
    with three temporaries of a quarter of its size.
    """
    diagonal = np.einsum("ii->i", products)
    # An input that is always 0 gives no information about its column, which is rounded to nearest.
    diagonal[diagonal == 0] = 1.0
    diagonal += DAMPING_FRACTION * diagonal.mean()
    _factor_matrix(products)
    return products


def _factor_matrix(h: Array) -> None:
    """Compute U in place of H, by halves: with `H = V Vᵀ`, V upper, it is V⁻¹.

    H = [A  B]    V = [V₁  W ]    W = B V₂⁻ᵀ,    U = [U₁  -U₁ W U₂]
        [Bᵀ C]        [    V₂]    V₁V₁ᵀ = A - WWᵀ    [         U₂ ]
    """
    if len(h) <= MAX_DIRECT_INVERSE:
        # the usual Cholesky factor of H in reverse order is upper triangular
        backwards = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]
        h[:] = np.triu(np.linalg.inv(backwards))
        return
    half = len(h) // 2
    first, last, right = h[:half, :half], h[half:, half:], h[:half, half:]
    _factor_matrix(last)
    w = right @ last.T
    first -= w @ w.T
    _factor_matrix(first)
    np.matmul(first @ w, -last, out=right)
    h[half:, :half] = 0


def quantize_gptq(rows: Array, factor: Array, block: int) -> tuple[Array, Array]:
    """Quantize rows `[out, in]` by GPTQ to 4-bit integers `[out, blocks, block]` and scales
    `[out, blocks]`.
    """
    left = rows.astype(np.float64)
    wide = rows.shape[1]
    numbers, scales = [], []
    for start in range(0, wide, block):
        end = min(start + block, wide)
        here = int_quantization.split_groups(left[:, start:end].astype(np.float32), block)
        unit = int_quantization.group_scales(here, BITS)
        whole, lost = _quantize_block(left[:, start:end], factor[start:end, start:end], unit)
        left[:, end:] -= lost @ factor[start:end, end:]
        numbers.append(np.pad(whole, ((0, 0), (0, block - (end - start)))))
        scales.append(unit)
    return np.stack(numbers, 1), np.concatenate(scales, 1)


def _quantize_block(left: Array, factor: Array, unit: Array) -> tuple[Array, Array]:
    """Return the integers of the columns of a block, and their errors divided by `U[j, j]`."""
    # columns are in order here, and a column's error is compensated in its nearest neighbors at
    # once, in farther ones together with their errors
    columns = np.ascontiguousarray(left.T)
    whole = np.empty(columns.shape, np.int8)
    lost = np.empty_like(columns)
    scale = unit[:, 0].astype(np.float64)
    divisor = int_quantization.finite_divisor(scale)
    for start in range(0, len(columns), BLOCK_COLUMNS):
        end = min(start + BLOCK_COLUMNS, len(columns))
        for j in range(start, end):
            number = np.clip(np.rint(columns[j] / divisor), LOW, HIGH)
            whole[j] = number
            lost[j] = (columns[j] - number * scale) / factor[j, j]
            columns[j + 1 : end] -= np.outer(factor[j, j + 1 : end], lost[j])
        columns[end:] -= factor[start:end, end:].T @ lost[start:end]
    return np.ascontiguousarray(whole.T), lost.T

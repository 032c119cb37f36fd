"""Quantize weights to 4 or 8 bits per group, rounded to nearest or by GPTQ, and dequantize.

GPTQ: Frantar et al., 2022, arXiv:2210.17323, Algorithm 1.
"""

import numpy as np

from specc.ir.array import Array
from specc.ir.ops.quantized import QuantizationFormat, count_groups

CODE_OFFSETS = {4: 8, 8: 128}
"""Offset of packed integers, so that none is negative."""
MIN_SCALE = np.finfo(np.float32).tiny
"""The minimum scale: subnormal float32 values would lose digits, or be 0. Groups with a smaller
one are zero, with scale 0: kernels flush its product with an activation scale.
"""
MAX_SCALE = np.nextafter(np.finfo(np.float32).max / np.float32(127), np.float32(0))
"""The maximum scale whose 127-fold is a finite float32."""


def split_groups(rows: Array, block: int) -> Array:
    """Reshape `[out, in]` to `[out, blocks, block]`, zero-padded; one block for block size 0."""
    out, wide = rows.shape
    size = block or max(wide, 1)
    missing = count_groups(wide, size) * size - wide
    if missing:
        rows = np.pad(rows, ((0, 0), (0, missing)))
    return rows.reshape(out, -1, size)


def group_scales(blocks: Array, bits: int) -> Array:
    """Return the scale of each block of `[out, blocks, block]`, f32."""
    # finding the index of the maximum is several times faster than its absolute value
    far = np.abs(blocks).argmax(-1)
    most = np.take_along_axis(blocks, far[..., None], -1)[..., 0]
    if bits == 8:
        scales = np.minimum(np.abs(most) / np.float32(127), MAX_SCALE)
    else:
        scales = most / np.float32(-8)
    return np.where(np.abs(scales) < MIN_SCALE, 0, scales).astype(np.float32)


def round_to_grid(blocks: Array, scales: Array, bits: int) -> Array:
    """Round `[out, blocks, block]` to integers, as f32."""
    # most of a compile's time is spent here: nothing is copied unnecessarily
    whole = blocks / finite_divisor(scales)[..., None]
    np.rint(whole, out=whole)
    # with these scales nothing is below -8 or beyond 127, and 8 occurs where 7 is the maximum
    if bits == 4:
        np.minimum(whole, 7, out=whole)
    made: Array = whole
    return made


def finite_divisor(scales: Array) -> Array:
    """Return scales to divide by: infinity for 0, so that a group of zeros gives zeros."""
    return np.where(scales == 0, scales.dtype.type(np.inf), scales)


def pack_quantized(whole: Array, wide: int, form: QuantizationFormat) -> Array:
    """Pack integers `[out, blocks, block]` with row width `wide` into storage form; the column
    layout stays `[out, in]`.
    """
    if form.layout == "columns" or not form.group_size:
        return whole.reshape(len(whole), -1)[:, :wide]
    # an overflowing sum of unsigned bytes wraps around, as intended
    moved = whole.view(np.uint8) + np.uint8(CODE_OFFSETS[form.bits])
    return moved if form.bits == 8 else pack_nibbles(moved)


def dequantize(numbers: Array, scales: Array, wide: int, form: QuantizationFormat) -> Array:
    """Dequantize to the f32 weight `[out, in]`; `[in, out]` if it was transposed."""
    whole = unpack_quantized(numbers, wide, form)
    wanted = scales.T if form.layout == "columns" and form.group_size else scales
    blocks = split_groups(whole.astype(np.float32), form.group_size)
    made = (blocks * wanted.reshape(*blocks.shape[:2], 1)).reshape(len(blocks), -1)
    made = made[:, :wide].astype(np.float32)
    return made.T if form.is_transposed else made


def unpack_quantized(numbers: Array, wide: int, form: QuantizationFormat) -> Array:
    """Unpack stored weights to integers `[out, in]`."""
    if form.layout == "columns":
        return numbers.T.astype(np.int8)
    if not form.group_size:
        return numbers
    if form.bits == 4:
        halves = np.stack([numbers & 15, numbers >> 4], -1)
        numbers = halves.reshape(*numbers.shape[:2], -1)
    whole = numbers.astype(np.int16) - CODE_OFFSETS[form.bits]
    return whole.reshape(len(whole), -1)[:, :wide].astype(np.int8)


def pack_nibbles(moved: Array) -> Array:
    """Pack an even number of values 0 to 15 two per byte, the first in the low nibble."""
    pairs = np.ascontiguousarray(moved).view("<u2")
    # the first byte of a pair is the low nibble; the cast drops the rest
    made: Array = (pairs | (pairs >> 4)).astype(np.uint8)
    return made


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
        here = split_groups(left[:, start:end].astype(np.float32), block)
        unit = group_scales(here, BITS)
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
    divisor = finite_divisor(scale)
    for start in range(0, len(columns), BLOCK_COLUMNS):
        end = min(start + BLOCK_COLUMNS, len(columns))
        for j in range(start, end):
            number = np.clip(np.rint(columns[j] / divisor), LOW, HIGH)
            whole[j] = number
            lost[j] = (columns[j] - number * scale) / factor[j, j]
            columns[j + 1 : end] -= np.outer(factor[j, j + 1 : end], lost[j])
        columns[end:] -= factor[start:end, end:].T @ lost[start:end]
    return np.ascontiguousarray(whole.T), lost.T

"""Quantize weights to 4 or 8 bits in groups, with rounding to nearest or with GPTQ. Dequantize
weights and accumulate quantization errors.

The shape of a weight is `[out, in]`, and `[out, blocks, block]` after it is split into groups.
GPTQ: Frantar et al., 2022, arXiv:2210.17323, Algorithm 1.
"""

from dataclasses import dataclass

import numpy as np

from specc.ir.array import Array
from specc.ir.ops.quantized import QuantizationFormat, count_groups_per_row

CODE_OFFSETS = {4: 8, 8: 128}
"""The offset that makes packed codes non-negative, keyed by the number of bits per code."""
MIN_SCALE = np.finfo(np.float32).tiny
"""The minimum scale. Smaller scales would be subnormal in float32 and imprecise, and kernels would
flush their product with an activation scale to 0. A group with a smaller scale is stored as zeros
with the scale 0.
"""
MAX_SCALE = np.nextafter(np.finfo(np.float32).max / np.float32(127), np.float32(0))
"""The maximum scale for which 127 × scale is a finite float32."""


def split_weight_groups(weight: Array, group_size: int) -> Array:
    """Reshape `[row_count, in]` to `[row_count, blocks, block]` with zero padding. If `group_size`
    is 0, there is one block per row.
    """
    row_count, width = weight.shape
    group_length = group_size or max(width, 1)
    padding = count_groups_per_row(width, group_length) * group_length - width
    if padding:
        weight = np.pad(weight, ((0, 0), (0, padding)))
    return weight.reshape(row_count, -1, group_length)


def compute_group_scales(groups: Array, bits: int) -> Array:
    """Return the float32 scale `[out, blocks]` of each group of `[out, blocks, block]`. The scale
    is the largest magnitude divided by 127 for 8 bits, and the value of largest magnitude divided
    by -8 for 4 bits.
    """
    # `argmax` and `argmin` are several times faster than the maximum of absolute values
    extreme_index = np.abs(groups).argmax(-1)
    extremes = np.take_along_axis(groups, extreme_index[..., None], -1)[..., 0]
    if bits == 8:
        scales = np.minimum(np.abs(extremes) / np.float32(127), MAX_SCALE)
    else:
        scales = extremes / np.float32(-8)
    return np.where(np.abs(scales) < MIN_SCALE, 0, scales).astype(np.float32)


def round_to_integers(groups: Array, scales: Array, bits: int) -> Array:
    """Return the codes of a weight `[out, blocks, block]`: values divided by scales, rounded to
    integers, as float32.
    """
    # avoid copies of the weight, because rounding takes most of the compile time
    codes = groups / replace_zero_scales(scales)[..., None]
    np.rint(codes, out=codes)
    # with scales from `compute_group_scales`, no code is below the minimum, but a 4-bit code may be
    # 8, above the maximum of 7
    if bits == 4:
        np.minimum(codes, 7, out=codes)
    result: Array = codes
    return result


def replace_zero_scales(scales: Array) -> Array:
    """Replace zero scales with infinity, because a group of zeros divided by infinity is 0."""
    return np.where(scales == 0, scales.dtype.type(np.inf), scales)


def choose_zero_points(codes: Array, bits: int) -> Array:
    """Return a zero point for each group of the codes `[out, blocks, block]`. The sum of a code and
    its zero point is non-negative. If all codes fit, the zero point is the middle of the code
    range.
    """
    middle, top = 1 << (bits - 1), (1 << bits) - 1
    low, high = codes.min(-1), codes.max(-1)
    has_room = (low >= -middle) & (high < top - middle + 1)
    result: Array = np.where(has_room, middle, np.clip(-low, 0, top)).astype(np.uint8)
    return result


def pack_zero_points(zero_points: Array, bits: int) -> Array:
    """Pack uint8 zero points `[out, blocks]`: two per byte for 4 bits, unchanged for 8 bits."""
    if bits != 4:
        return zero_points
    return pack_nibbles(np.pad(zero_points, ((0, 0), (0, zero_points.shape[1] % 2))))


def pack_weight_codes(codes: Array, in_channels: int, format: QuantizationFormat) -> Array:
    """Pack the codes `[out, blocks, block]` of a weight with `in_channels` input features into the
    storage format. In the layout `columns`, the result is `[out, in]`.
    """
    if format.layout == "columns" or not format.group_size:
        return codes.reshape(len(codes), -1)[:, :in_channels]
    # unsigned addition wraps around, which is intended
    offset = 0 if format.has_zero_points else CODE_OFFSETS[format.bits]
    unsigned = codes.view(np.uint8) + np.uint8(offset)
    return unsigned if format.bits == 8 else pack_nibbles(unsigned)


def dequantize_weight(
    codes: Array,
    scales: Array,
    in_channels: int,
    format: QuantizationFormat,
    zero_points: Array | None = None,
) -> Array:
    """Dequantize to a float32 weight `[out, in]`, or `[in, out]` if the weight was transposed."""
    integers = unpack_weight_codes(codes, in_channels, format)
    group_scales = scales.T if format.layout == "columns" and format.group_size else scales
    groups = split_weight_groups(integers.astype(np.float32), format.group_size)
    if zero_points is not None:
        groups = groups - unpack_zero_points(zero_points, scales.shape[1], format.bits)[..., None]
    weight = (groups * group_scales.reshape(*groups.shape[:2], 1)).reshape(len(groups), -1)
    weight = weight[:, :in_channels].astype(np.float32)
    return weight.T if format.is_transposed else weight


def unpack_weight_codes(codes: Array, in_channels: int, format: QuantizationFormat) -> Array:
    """Unpack stored codes to integers `[out, in]` for `in_channels` input features."""
    if format.layout == "columns":
        return codes.T.astype(np.int8)
    if not format.group_size:
        return codes
    if format.bits == 4:
        halves = np.stack([codes & 15, codes >> 4], -1)
        codes = halves.reshape(*codes.shape[:2], -1)
    integers = codes.astype(np.int16)
    if not format.has_zero_points:
        integers -= CODE_OFFSETS[format.bits]
    return integers.reshape(len(integers), -1)[:, :in_channels].astype(np.int8)


def unpack_zero_points(packed: Array, count: int, bits: int) -> Array:
    """Unpack zero points to `[out, blocks]`, with `count` blocks per row."""
    halves = np.stack([packed & 15, packed >> 4], -1) if bits == 4 else packed
    return halves.reshape(len(packed), -1)[:, :count]


def pack_nibbles(values: Array) -> Array:
    """Pack an even number of values from 0 to 15, two per byte, the first in the low nibble."""
    pairs = np.ascontiguousarray(values).view("<u2")
    # the first value of a pair becomes the low nibble, and the cast drops the upper bits
    packed: Array = (pairs | (pairs >> 4)).astype(np.uint8)
    return packed


BITS, LOW, HIGH = 4, -8, 7
"""The number of bits, the minimum code and the maximum code of GPTQ."""
MAX_DIRECT_INVERSE = 256
"""Maximum size of a matrix that is inverted directly, without splitting it into halves."""
BLOCK_COLUMNS = 8
"""Number of columns per GPTQ block. Within a block, errors are compensated immediately."""
DAMPING_FRACTION = 0.01
"""The fraction of the mean diagonal of H that is added to the diagonal to make H invertible."""


def compute_inverse_cholesky_factor(gram: Array) -> Array:
    """Return the upper triangular U with `UᵀU = H⁻¹`, where H is the damped Gram matrix `XᵀX` of
    the activations (float64). `gram` is overwritten. Each of the three temporary arrays is a
    quarter as large as `gram`.
    """
    diagonal = np.einsum("ii->i", gram)
    # A weight column whose input channel is always 0 is rounded to nearest.
    diagonal[diagonal == 0] = 1.0
    diagonal += DAMPING_FRACTION * diagonal.mean()
    _factor_matrix(gram)
    return gram


def _factor_matrix(h: Array) -> None:
    """Compute U in place of H recursively by halves: with `H = V Vᵀ` and upper triangular V, U =
    V⁻¹.

    H = [A  B]    V = [V₁  W ]    W = B V₂⁻ᵀ,    U = [U₁  -U₁ W U₂]
        [Bᵀ C]        [    V₂]    V₁V₁ᵀ = A - WWᵀ    [         U₂ ]
    """
    if len(h) <= MAX_DIRECT_INVERSE:
        # the Cholesky factor of H with reversed rows and columns, reversed again, is upper
        # triangular
        upper_factor = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]
        h[:] = np.triu(np.linalg.inv(upper_factor))
        return
    half = len(h) // 2
    first, last, right = h[:half, :half], h[half:, half:], h[:half, half:]
    _factor_matrix(last)
    w = right @ last.T
    first -= w @ w.T
    _factor_matrix(first)
    np.matmul(first @ w, -last, out=right)
    h[half:, :half] = 0


def quantize_weight_gptq(weight: Array, factor: Array, group_size: int) -> tuple[Array, Array]:
    """Quantize a weight `[out, in]` with GPTQ. Return 4-bit codes `[out, blocks, block]` and scales
    `[out, blocks]`. `factor` is the result of `compute_inverse_cholesky_factor`.
    """
    remaining = weight.astype(np.float64)
    width = weight.shape[1]
    codes, scales = [], []
    for start in range(0, width, group_size):
        end = min(start + group_size, width)
        groups = split_weight_groups(remaining[:, start:end].astype(np.float32), group_size)
        group_scales = compute_group_scales(groups, BITS)
        group_codes, errors = _quantize_block(
            remaining[:, start:end], factor[start:end, start:end], group_scales
        )
        remaining[:, end:] -= errors @ factor[start:end, end:]
        codes.append(np.pad(group_codes, ((0, 0), (0, group_size - (end - start)))))
        scales.append(group_scales)
    return np.stack(codes, 1), np.concatenate(scales, 1)


def _quantize_block(remaining: Array, factor: Array, scales: Array) -> tuple[Array, Array]:
    """Quantize the columns of one group with GPTQ. Return the codes, and the quantization errors
    divided by `U[j, j]`. `remaining`, the weight columns with compensated errors, is not changed.
    """
    # the error of each column is compensated in the following columns of the block immediately, and
    # in all later columns after the block
    columns = np.ascontiguousarray(remaining.T)
    codes = np.empty(columns.shape, np.int8)
    errors = np.empty_like(columns)
    scale = scales[:, 0].astype(np.float64)
    divisor = replace_zero_scales(scale)
    for start in range(0, len(columns), BLOCK_COLUMNS):
        end = min(start + BLOCK_COLUMNS, len(columns))
        for j in range(start, end):
            column_codes = np.clip(np.rint(columns[j] / divisor), LOW, HIGH)
            codes[j] = column_codes
            errors[j] = (columns[j] - column_codes * scale) / factor[j, j]
            columns[j + 1 : end] -= np.outer(factor[j, j + 1 : end], errors[j])
        columns[end:] -= factor[start:end, end:].T @ errors[start:end]
    return np.ascontiguousarray(codes.T), errors.T


MIN_ACCURATE_SUM = 1e-30
"""The minimum sum of squares that is accurate in float32 (the smallest subnormal is 1e-45)."""


@dataclass
class QuantizationErrorStats:
    """The quantization error of a weight: sums of squares over elements, and the maximum error."""

    squared_norm: float = 0.0
    squared_error: float = 0.0
    max_error: float = 0.0

    def add_rows(self, exact: Array, quantized: Array) -> None:
        """Add the quantization error of some rows of a weight. `exact` contains the rows before
        quantization, and `quantized` the dequantized rows. `quantized` is overwritten.
        """
        errors = np.subtract(exact, quantized, out=quantized)
        self.squared_norm += _sum_squares(exact.reshape(-1))
        self.squared_error += _sum_squares(errors.reshape(-1))
        bounds = errors.max(initial=0.0), -errors.min(initial=0.0)
        self.max_error = max(self.max_error, *map(float, bounds))

    def merge(self, other: "QuantizationErrorStats") -> None:
        """Add the error statistics of other rows of the same weight."""
        self.squared_norm += other.squared_norm
        self.squared_error += other.squared_error
        self.max_error = max(self.max_error, other.max_error)

    @property
    def relative_error(self) -> float:
        """The error's norm divided by the weight's norm."""
        return (self.squared_error / self.squared_norm) ** 0.5 if self.squared_norm else 0.0


def _sum_squares(flat: Array) -> float:
    """Return the sum of squares of float32 values, in float64 if float32 overflows."""
    with np.errstate(over="ignore", under="ignore"):
        total = float(np.dot(flat, flat))
    # sums below the minimum are inaccurate, because squares may have underflowed
    if MIN_ACCURATE_SUM < total < np.inf:
        return total
    flat64 = flat.astype(np.float64)
    return float(np.dot(flat64, flat64))

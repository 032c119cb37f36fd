"""Define the storage formats and layouts of quantized weights, and unpack codes and scales.

A dequantized weight is `codes * scales` in float32. Codes are stored integers minus zero points.
Each `infer_…_layout` function checks the tensors of one weight, and returns the layout with the
decoder of the weight.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.safetensors_header import Shape

Lengths: TypeAlias = dict[str, int]
"""Axis sizes, keyed by the axis names in tensor patterns."""

_FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
_FLOAT8_DTYPES = frozenset(
    {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}
)
_DTYPE_CLASSES: Mapping[str, frozenset[str]] = {
    "float": _FLOAT_DTYPES,
    "f8": _FLOAT8_DTYPES,
    "scale": _FLOAT_DTYPES | _FLOAT8_DTYPES | {"uint8"},
    "int": frozenset({"int32", "int64"}),
    "i32": frozenset({"int32"}),
    "i8": frozenset({"int8"}),
    "u8": frozenset({"uint8"}),
}
_TENSOR_PATTERN = re.compile(r"([\w|]+)(?:\[([^]]*)\])?")


class QuantizedLayoutError(Exception):
    """Raised if tensors do not form a valid quantized weight. The message contains the reason."""


def check_tensor_pattern(tensor_name: str, tensor: Array, pattern: str, lengths: Lengths) -> None:
    """Check a tensor against a pattern, and add the tensor's axis sizes to `lengths`.

    The pattern `float|u8[groups, 16]` allows two element types, and requires two axes, the second
    of size 16. `any` matches every type. Without brackets, any shape matches. Raise
    QuantizedLayoutError if the tensor does not match.
    """
    match = _TENSOR_PATTERN.fullmatch(pattern)
    assert match is not None, pattern
    dtype_classes, axes = match[1], match[2]
    axis_names = [] if axes is None else [name.strip() for name in axes.split(",")]
    is_dtype_valid = dtype_classes == "any" or any(
        tensor.dtype.name in _DTYPE_CLASSES[kind] for kind in dtype_classes.split("|")
    )
    message = f"{tensor_name} is {tensor.dtype.name}{list(tensor.shape)}, expected {pattern}"
    if not is_dtype_valid or (axes is not None and len(axis_names) != tensor.ndim):
        raise QuantizedLayoutError(message)
    for name, length in zip(axis_names, tensor.shape, strict=False):
        expected = int(name) if name.isdigit() else lengths.setdefault(name, length)
        if expected != length:
            binding = "" if name.isdigit() else f" with {name} = {expected}"
            raise QuantizedLayoutError(message + binding)


def check_element_count(name: str, count: int, expected: int) -> None:
    """Raise QuantizedLayoutError unless the number of elements of a tensor matches the other
    tensors.
    """
    if count != expected:
        raise QuantizedLayoutError(f"{name}: {count} values, expected {expected}")


StoredTensors: TypeAlias = Mapping[str, Array]
"""The tensors of a quantized weight (codes, scales, zero points), keyed by name suffix. Slicing a
tensor reads its values from the file.
"""
Codes: TypeAlias = tuple[Array, Array]
"""Two arrays that broadcast to the shape of the weight: codes minus zero points, and scales."""
Decode: TypeAlias = Callable[[StoredTensors, slice], Codes]
"""A function that decodes some rows of a weight. The caller reopens the tensors for each call to
detect changed files.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSettings:
    """The settings of a quantization config. `block_shape` is the shape of blocks that share one
    scale. If `block_shape` is None, the shape is inferred from the tensors. `bits` is the number of
    bits per code. The `group_size` is 0 if the config sets none, and -1 for per-channel scales.
    `zero_offset` is added to stored zero points.
    """

    block_shape: tuple[int, int] | None = None
    bits: int = 0
    group_size: int = 0
    zero_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayout:
    """The shape and the decoder of a weight, the bits per code and the group size along `axis`.

    If `is_uniform` is True, codes are integers with one scale per group. If `is_symmetric` is True,
    the weight has no zero points. Weights that are both uniform and symmetric can be stored
    unchanged.
    """

    shape: Shape
    decode: Decode
    bits: int = 8
    group_size: int = 0
    axis: int = -1
    is_uniform: bool = True
    is_symmetric: bool = True


InferLayout: TypeAlias = Callable[[StoredTensors, Lengths, QuantizationSettings], QuantizedLayout]
"""A function that checks the tensors of a weight and returns the layout of the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeightFormat:
    """A storage format of quantized weights. `methods` lists the quantization methods
    (`quant_method` in the config) that use the format.

    A tensor `name + marker_suffix` indicates a quantized weight `name + weight_suffix`.
    `required_tensors` and `optional_tensors` map suffixes of tensors to patterns
    (`check_tensor_pattern`).
    """

    methods: tuple[str, ...]
    marker_suffix: str
    weight_suffix: str = ".weight"
    required_tensors: Mapping[str, str]
    infer_layout: InferLayout
    optional_tensors: Mapping[str, str] = field(default_factory=dict)


EXPONENT_BIAS = 127
"""The exponent bias of E8M0, a format without sign and mantissa."""


def unpack_codes(words: Array, bits: int, axis: int = -1) -> Array:
    """Unpack words into `bits`-bit codes along an axis. The first code is in the lowest bits."""
    flat = np.ascontiguousarray(np.moveaxis(words, axis, -1)).view(np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = (flat[..., None] >> shifts) & np.uint8((1 << bits) - 1)
        codes = codes.reshape(*flat.shape[:-1], -1)
    else:
        all_bits = np.unpackbits(flat, axis=-1, bitorder="little")
        count = all_bits.shape[-1] // bits
        powers = (1 << np.arange(bits)).astype(np.uint8)
        codes = all_bits[..., : count * bits].reshape(*flat.shape[:-1], count, bits) @ powers
    return np.moveaxis(codes, -1, axis)


def decode_scales(stored: Array) -> Array:
    """Return scales as float32. uint8 scales are decoded as E8M0 exponents."""
    if stored.dtype == np.uint8:
        with np.errstate(over="ignore"):  # the check for finite values detects an overflow
            return np.ldexp(np.float32(1), stored.astype(np.int32) - EXPONENT_BIAS)
    return stored.astype(np.float32)


def reshape_scales_to_rank(scales: Array, rank: int) -> Array:
    """Reshape scales or zero points to `rank` axes, the rank of the weight. A single scale is
    reshaped to [1, 1]. Raise QuantizedLayoutError if the scales have another rank.
    """
    if scales.size == 1 and scales.ndim < 3:
        return scales.reshape(1, 1)
    if scales.ndim != rank:
        raise QuantizedLayoutError(f"scales of shape {list(scales.shape)} do not fit {rank} axes")
    return scales


def subtract_zero_points(codes: Array, zero_points: Array | int) -> Array:
    """Return codes minus zero points. The difference is int16 to avoid overflow."""
    return codes.astype(np.int16) - (
        zero_points if isinstance(zero_points, int) else zero_points.astype(np.int16)
    )


def infer_bits_per_code(
    code_count: int, word_count: int, candidates: Sequence[int], bits: int
) -> int:
    """Return the first number of bits in `candidates` for which `code_count` codes fill exactly
    `word_count` 32-bit words. If the config specifies a number of bits (`bits` is not 0), this
    number is the only candidate. Raise QuantizedLayoutError if no candidate fits.
    """
    matching_bits = [
        b for b in candidates if -(-code_count * b // 32) == word_count and bits in (0, b)
    ]
    if not matching_bits:
        size = f"{bits} bits" if bits else f"{' or '.join(map(str, candidates))} bits"
        raise QuantizedLayoutError(
            f"{code_count} codes of {size} do not occupy {word_count * 4} bytes"
        )
    return matching_bits[0]


def infer_group_size(in_channels: int, group_count: int, settings: QuantizationSettings) -> int:
    """Infer the group size of a weight with `in_channels` input features and `group_count` groups
    per row. Raise QuantizedLayoutError if the result differs from the group size in `settings`.
    """
    requested = in_channels if settings.group_size < 0 else settings.group_size
    if requested and -(-in_channels // requested) == group_count:
        return requested
    if requested or group_count < 1 or in_channels % group_count:
        size = f" of {requested}" if requested else ""
        raise QuantizedLayoutError(
            f"{group_count} scales per row do not fit {in_channels} values in groups{size}"
        )
    return in_channels // group_count


def has_ordered_groups(
    group_index: Array | None, in_channels: int, group_size: int, group_count: int
) -> bool:
    """Return True if groups are consecutive input channels, i.e. without act-order."""
    if group_index is None:
        return True
    check_element_count("g_idx", len(group_index), in_channels)
    if group_index.size and not 0 <= group_index.min() <= group_index.max() < group_count:
        raise QuantizedLayoutError(f"g_idx contains group indices outside 0 to {group_count - 1}")
    return bool(np.array_equal(group_index, np.arange(in_channels) // group_size))

"""Decode quantized weights, including GGUF blocks, to codes and scales.

A dequantized weight is `codes * scales` in float32. Codes are stored integers minus zero points.
Each `open_…` function checks the tensors of one weight and returns its layout, which contains the
decoder of the weight.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.gguf_header import BLOCK_TYPES, GGMLType
from specc.weights.formats.safetensors_header import Shape

Lengths: TypeAlias = dict[str, int]
"""Axis sizes by the axis names in tensor patterns."""

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


class LayoutError(Exception):
    """Raised if tensors do not form a valid quantized weight. The message contains the reason."""


def check_tensor_pattern(tensor_name: str, tensor: Array, pattern: str, lengths: Lengths) -> None:
    """Check a tensor against a pattern and add its axis sizes to `lengths`.

    `float|u8[groups, 16]` requires one of two types, and two axes, of which the second has size 16.
    `any` matches every type. Without brackets, any shape matches. Otherwise, raise LayoutError.
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
        raise LayoutError(message)
    for name, length in zip(axis_names, tensor.shape, strict=False):
        expected = int(name) if name.isdigit() else lengths.setdefault(name, length)
        if expected != length:
            binding = "" if name.isdigit() else f" with {name} = {expected}"
            raise LayoutError(message + binding)


def check_element_count(name: str, count: int, expected: int) -> None:
    """Raise LayoutError unless a tensor has the number of elements that the shapes of the other
    tensors imply.
    """
    if count != expected:
        raise LayoutError(f"{name}: {count} values, expected {expected}")


StoredTensors: TypeAlias = Mapping[str, Array]
"""The tensors of a quantized weight (codes, scales, zero points) by name suffix. Slicing a tensor
reads its values from the file.
"""
Codes: TypeAlias = tuple[Array, Array]
"""Two arrays that broadcast to the shape of the weight: codes minus zero points, and scales."""
Decode: TypeAlias = Callable[[StoredTensors, slice], Codes]
"""A function that decodes some rows of a weight. The caller opens the tensors again for each call,
so that a changed file is detected.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSettings:
    """The settings of a quantization config. `block_shape` is the shape of blocks that share one
    scale. None means that the shape is inferred from the tensors. `bits` is the number of bits per
    code. A `group_size` of 0 means not set, and -1 means per channel. `zero_offset` is added to
    stored zero points.
    """

    block_shape: tuple[int, int] | None = None
    bits: int = 0
    group_size: int = 0
    zero_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayout:
    """The shape and the decoder of a weight, the bits per code and the group size along `axis`.

    If `is_uniform` is True, codes are integers with one scale per group. If `is_symmetric` is True,
    the weight has no zero points. Uniform and symmetric weights can be stored unchanged.
    """

    shape: Shape
    decode: Decode
    bits: int = 8
    group_size: int = 0
    axis: int = -1
    is_uniform: bool = True
    is_symmetric: bool = True


OpenWeight: TypeAlias = Callable[[StoredTensors, Lengths, QuantizationSettings], QuantizedLayout]
"""A function that checks the tensors of a weight and returns the layout of the weight."""


FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.int8)
FP4_DOUBLED = np.concatenate([FP4_VALUES, -FP4_VALUES])
"""The values of all FP4 (E2M1) codes, doubled to make them integers."""
EXPONENT_BIAS = 127
"""The exponent bias of E8M0, a format without sign and mantissa."""


def unpack_codes(words: Array, bits: int, axis: int = -1) -> Array:
    """Unpack words into codes of `bits` bits along an axis. The lowest bits are the first code."""
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
        with np.errstate(over="ignore"):  # overflow is detected by the check for finite values
            return np.ldexp(np.float32(1), stored.astype(np.int32) - EXPONENT_BIAS)
    return stored.astype(np.float32)


def reshape_scale_grid(scales: Array, rank: int) -> Array:
    """Reshape scales or zero points to `rank` axes, the rank of the weight. A single scale becomes
    [1, 1]. Raise LayoutError if the scales have another rank.
    """
    if scales.size == 1 and scales.ndim < 3:
        return scales.reshape(1, 1)
    if scales.ndim != rank:
        raise LayoutError(f"scales of shape {list(scales.shape)} do not fit {rank} axes")
    return scales


# --- 8-bit values with separate scales: FP8, int8 ---------------------------------------


def _infer_block_shape(shape: Shape, grid: Shape, block: tuple[int, int] | None) -> tuple[int, int]:
    """Infer the shape of the blocks that share one scale from the matrix shape and `grid`, the
    shape of the scales. `block` is the block shape in the config, or None. If the config has a
    block shape, blocks at the edges may be smaller. Raise LayoutError if the shapes do not fit.
    """
    sizes = []
    for length, count, requested in zip(shape, grid, block or (0, 0), strict=True):
        if requested and -(-length // requested) == count:
            sizes.append(requested)
        elif count and length % count == 0:
            sizes.append(length // count)
        else:
            raise LayoutError(f"scales of shape {list(grid)} do not fit a matrix {list(shape)}")
    return sizes[0], sizes[1]


def infer_scaled_layout(
    tensors: StoredTensors, _: Lengths, settings: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of FP8 and int8 weights, whose scales are a separate tensor."""
    weight, suffix = ("", "_scale_inv") if "" in tensors else (".weight", ".weight_scale")
    dtype, shape, rank = tensors[weight].dtype, tensors[weight].shape, tensors[weight].ndim
    if rank < 2:
        raise LayoutError(f"the weight has the shape {list(shape)} and is not a matrix")
    grid, zeros = reshape_scale_grid(tensors[suffix], rank), tensors.get(".weight_zero_point")
    if grid.shape[:-2] not in ((), shape[:-2]):
        raise LayoutError(
            f"scales of shape {list(grid.shape)} do not fit a weight of shape {list(shape)}"
        )
    if zeros is not None and reshape_scale_grid(zeros, rank).shape != grid.shape:
        raise LayoutError(f"zero points of shape {list(zeros.shape)} do not fit the scales")
    block = _infer_block_shape(shape[-2:], grid.shape[-2:], settings.block_shape)

    def expand_grid(grid: Array, rows: slice) -> Array:
        i, j = (np.arange(n) // size for n, size in zip(shape[-2:], block, strict=True))
        if grid.ndim > 2:
            grid = grid[rows]
        return grid[..., i if rank > 2 else i[rows], :][..., j]

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        scales = expand_grid(reshape_scale_grid(decode_scales(tensors[suffix]), rank), rows)
        zeros = reshape_scale_grid(tensors.get(".weight_zero_point", np.zeros((1, 1))), rank)
        zeros = zeros.astype(np.float32)
        offset = zeros if zeros.size == 1 else expand_grid(zeros, rows)
        return tensors[weight][rows].astype(np.float32) - offset, scales

    return QuantizedLayout(
        shape=shape,
        decode=decode,
        group_size=block[1],
        is_uniform=dtype == np.int8,
        is_symmetric=zeros is None,
    )


def infer_llm_int8_layout(
    _: StoredTensors, lengths: Lengths, __: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of an LLM.int8 weight of bitsandbytes, `[out, in]`, with per-channel absmax
    scales.
    """

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        scales = decode_scales(tensors[".SCB"][rows]) / np.float32(127)
        return tensors[".weight"][rows], scales[:, None]

    shape = lengths["out"], lengths["in"]
    return QuantizedLayout(shape=shape, decode=decode, group_size=lengths["in"])


# --- bitsandbytes, 4 bits -----------------------------------------------------------------

QUANT_STATES = tuple(f".quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))


def _read_quant_state(tensors: StoredTensors) -> dict[str, Any]:
    """Parse the JSON that bitsandbytes stores in a byte tensor."""
    stored = next(tensors[mark] for mark in QUANT_STATES if mark in tensors)
    try:
        state = json.loads(stored.tobytes().decode())
        sizes = [*state["shape"], state["blocksize"]]
        if ".nested_absmax" in tensors:
            sizes.append(state["nested_blocksize"])
            float(state["nested_offset"])
        if min(map(int, sizes)) < 1 or len(state["shape"]) != 2:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LayoutError("its quant_state does not describe a matrix") from None
    return dict(state)


def infer_bnb4_layout(
    tensors: StoredTensors, lengths: Lengths, _: QuantizationSettings
) -> QuantizedLayout:
    """Return the layout of an NF4 or FP4 weight of bitsandbytes, `table[q] * absmax`. The codes are
    blocks of the flattened weight. Nested scales are quantized to 8 bits.
    """
    state = _read_quant_state(tensors)
    shape, block_size = tuple(map(int, state["shape"])), int(state["blocksize"])
    count = math.prod(shape)
    check_element_count("the bytes of codes", tensors[""].nbytes, -(-count // 2))
    check_element_count("absmax", lengths["blocks"], -(-count // block_size))
    if (tensors[".absmax"].dtype == np.uint8) != all(
        f".nested_{suffix}" in tensors for suffix in ("absmax", "quant_map")
    ):
        raise LayoutError("absmax is quantized, or nested_absmax and nested_quant_map are missing")
    if ".nested_absmax" in tensors:
        block_count = -(-lengths["blocks"] // int(state["nested_blocksize"]))
        check_element_count("nested_absmax", len(tensors[".nested_absmax"]), block_count)

    def decode(tensors: StoredTensors, rows: slice) -> Codes:
        first, stop, _ = rows.indices(shape[0])
        start, end = first * shape[1], stop * shape[1]
        flat = tensors[""].reshape(-1).view(np.uint8)[start // 2 : -(-end // 2)]
        codes = np.stack([flat >> 4, flat & 15], -1).reshape(-1)[start % 2 :][: end - start]
        if ".nested_absmax" not in tensors:
            scales = decode_scales(tensors[".absmax"])
        else:
            scales = tensors[".nested_quant_map"].astype(np.float32)[tensors[".absmax"]]
            outer_blocks = np.arange(len(scales)) // int(state["nested_blocksize"])
            scales = scales * decode_scales(tensors[".nested_absmax"])[outer_blocks]
            scales = scales + np.float32(state["nested_offset"])
        values = tensors[".quant_map"].astype(np.float32)[codes]
        weight_scales = scales[np.arange(start, end) // block_size]
        return values.reshape(-1, shape[1]), weight_scales.reshape(-1, shape[1])

    return QuantizedLayout(shape=shape, decode=decode, is_uniform=False)


DecodeBlocks: TypeAlias = Callable[[Array], Codes]
"""A decoder from blocks `[..., bytes]` to codes `[..., groups, values]` and scales
`[..., groups, 1]`."""


def _decode_float16(raw: Array) -> Array:
    """Reinterpret byte pairs as float16 and convert them to float32."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _split_bit_fields(raw: Array, bits: int, width: int) -> Array:
    """Split bytes into fields of `bits` bits. The result contains, for each run of `width` bytes,
    first the lowest fields of all bytes.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = raw.reshape(*raw.shape[:-1], -1, 1, width)
    fields = (parts >> shifts) & np.uint8((1 << bits) - 1)
    return fields.reshape(*raw.shape[:-1], -1)


def _reshape_groups(codes: Array, size: int) -> Array:
    return codes.reshape(*codes.shape[:-1], -1, size)


def _decode_q4_0(blocks: Array) -> Codes:
    codes = _split_bit_fields(blocks[..., 2:], 4, 16).astype(np.int8) - np.int8(8)
    return codes[..., None, :], _decode_float16(blocks[..., :2])[..., None]


def _decode_q8_0(blocks: Array) -> Codes:
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return codes[..., None, :], _decode_float16(blocks[..., :2])[..., None]


def _unpack_scales(packed: Array) -> tuple[Array, Array]:
    """Unpack eight 6-bit scales and eight 6-bit minimums from 12 bytes."""
    low, high, mixed = (packed[..., start : start + 4] for start in (0, 4, 8))
    scales = np.concatenate([low & 63, (mixed & 15) | ((low >> 2) & 48)], -1)
    minimums = np.concatenate([high & 63, (mixed >> 4) | ((high >> 2) & 48)], -1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _decode_offset_blocks(blocks: Array, codes: Array) -> Codes:
    """Decode `d * scale * q - dmin * minimum`. Scales are folded into the returned codes."""
    super_scales = _decode_float16(blocks[..., :4])
    scales, minimums = _unpack_scales(blocks[..., 4:16])
    groups = _reshape_groups(codes, 32).astype(np.float32)
    offset = (super_scales[..., 1:] * minimums)[..., None]
    values = (super_scales[..., :1] * scales)[..., None] * groups - offset
    return values, np.ones((*values.shape[:-1], 1), np.float32)


def _decode_q4_k(blocks: Array) -> Codes:
    return _decode_offset_blocks(blocks, _split_bit_fields(blocks[..., 16:], 4, 32))


def _decode_q5_k(blocks: Array) -> Codes:
    low_bits = _split_bit_fields(blocks[..., 48:], 4, 32)
    high_bits = _split_bit_fields(blocks[..., 16:48], 1, 32)
    return _decode_offset_blocks(blocks, low_bits | (high_bits << 4))


def _decode_q6_k(blocks: Array) -> Codes:
    low = _split_bit_fields(blocks[..., :128], 4, 64)
    high = _split_bit_fields(blocks[..., 128:192], 2, 32)
    codes = (low | (high << 4)).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return _reshape_groups(codes, 16), (_decode_float16(blocks[..., 208:]) * scales)[..., None]


DECODERS: Mapping[str, tuple[int, DecodeBlocks]] = {
    "q4_0": (4, _decode_q4_0),
    "q8_0": (8, _decode_q8_0),
    "q4_k": (0, _decode_q4_k),
    "q5_k": (0, _decode_q5_k),
    "q6_k": (6, _decode_q6_k),
}
"""The decoder of each GGUF block type, and its bits per code (0 if codes are not integers)."""
QUANTIZED_TYPES = tuple(t for t in BLOCK_TYPES.values() if t.name in DECODERS)


def make_gguf_layout_function(suffix: str, block_type: GGMLType) -> OpenWeight:
    """Return the function that opens weights stored as GGUF blocks in the tensor `suffix`."""
    bits, decode_blocks = DECODERS[block_type.name]

    def open_weight(
        tensors: StoredTensors, _: Lengths, __: QuantizationSettings
    ) -> QuantizedLayout:
        *outer, row_bytes = tensors[suffix].shape
        width = row_bytes // block_type.nbytes * block_type.block_size

        def decode(tensors: StoredTensors, rows: slice) -> Codes:
            blocks = _reshape_groups(tensors[suffix][rows], block_type.nbytes)
            values, scales = decode_blocks(blocks)
            shape = (*blocks.shape[:-2], width)
            return values.reshape(shape), np.broadcast_to(scales, values.shape).reshape(shape)

        return QuantizedLayout(
            shape=(*outer, width),
            decode=decode,
            bits=bits,
            group_size=block_type.block_size,
            is_uniform=bits > 0,
        )

    return open_weight

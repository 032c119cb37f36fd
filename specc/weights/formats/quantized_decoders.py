"""Decode quantized weights, including GGUF blocks, to codes and scales.

A dequantized weight is `codes * scales` in float32. Codes are stored integers minus zero points.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.gguf_header import BLOCK_TYPES, BlockType

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
    """Raised if tensors do not form a valid quantized weight; the message contains the reason."""


def match_tensor(tensor_name: str, tensor: Array, pattern: str, lengths: Lengths) -> None:
    """Check a tensor against a pattern and add the sizes of its axes to `lengths`.

    `float|u8[groups, 16]` requires one of two types and two axes, the second of size 16. `any`
    matches every type; a type without axes matches every shape. Raise LayoutError on a mismatch.
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


def check_entry_count(name: str, count: int, expected: int) -> None:
    """Raise LayoutError unless a tensor has the number of entries that other tensors imply."""
    if count != expected:
        raise LayoutError(f"{name}: {count} values, expected {expected}")


Parts: TypeAlias = Mapping[str, Array]
"""The tensors of a quantized weight (codes, scales, zero points) by suffix, read when sliced."""
Codes: TypeAlias = tuple[Array, Array]
"""Codes minus zero points, and scales. Both broadcast to the shape of the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSettings:
    """The settings of a quantization config. `block_shape` is the shape of blocks that share one
    scale (None: inferred from the tensors), `bits` the bits per code, `group_size` the group size
    (0: not set, -1: per channel), and `zero_offset` is added to stored zero points.
    """

    block_shape: tuple[int, int] | None = None
    bits: int = 0
    group_size: int = 0
    zero_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayout:
    """The shape of a weight, the bits per code and the group size along `axis`.

    `is_uniform`: codes are integers with one scale per group. `is_symmetric`: there are no zero
    points. Uniform and symmetric weights can be stored unchanged. `block_shape` is the shape of the
    blocks that share one scale; `zero_offset` is added to stored zero points.
    """

    shape: tuple[int, ...]
    bits: int = 8
    group_size: int = 0
    axis: int = -1
    is_uniform: bool = True
    is_symmetric: bool = True
    block_shape: tuple[int, int] = (0, 0)
    zero_offset: int = 0


InferLayout: TypeAlias = Callable[[Parts, Lengths, QuantizationSettings], QuantizedLayout]
Decode: TypeAlias = Callable[[Parts, QuantizedLayout, slice], Codes]


FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.int8)
FP4_DOUBLED = np.concatenate([FP4_VALUES, -FP4_VALUES])
"""The doubled values of all FP4 (E2M1) codes; doubling makes them integers."""
EXPONENT_BIAS = 127
"""The exponent bias of E8M0, a format without sign and mantissa."""


def unpack_codes(words: Array, bits: int, axis: int = -1) -> Array:
    """Unpack words into codes of `bits` bits along an axis; the lowest bits are the first code."""
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


def read_scales(stored: Array) -> Array:
    """Return scales as float32. uint8 scales are decoded as E8M0 exponents."""
    if stored.dtype == np.uint8:
        with np.errstate(over="ignore"):  # overflow is detected by the check for finite values
            return np.ldexp(np.float32(1), stored.astype(np.int32) - EXPONENT_BIAS)
    return stored.astype(np.float32)


def reshape_scale_grid(scales: Array, rank: int) -> Array:
    """Reshape scales or zero points to `rank` axes, the rank of the weight; a single scale becomes
    [1, 1]. Raise LayoutError if the scales have another rank.
    """
    if scales.size == 1 and scales.ndim < 3:
        return scales.reshape(1, 1)
    if scales.ndim != rank:
        raise LayoutError(f"scales of shape {list(scales.shape)} do not fit {rank} axes")
    return scales


# --- 8-bit values with separate scales: FP8, int8 ---------------------------------------


def _infer_block_shape(
    shape: tuple[int, ...], grid: tuple[int, ...], block: tuple[int, int] | None
) -> tuple[int, int]:
    """Infer the shape of the blocks that share one scale, from the shape of a matrix and of its
    scales, `grid`. `block` is the shape in the config, or None; with a config shape, blocks at the
    edges may be smaller. Raise LayoutError if the shapes do not fit.
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


def make_scaled_decoder(suffix: str) -> tuple[InferLayout, Decode]:
    """Return the layout and decoder of weights whose scales are the tensor named `suffix`."""
    weight = "" if suffix == "_scale_inv" else ".weight"

    def layout(parts: Parts, _: Lengths, settings: QuantizationSettings) -> QuantizedLayout:
        whole = parts[weight]
        if whole.ndim < 2:
            raise LayoutError(f"the weight has the shape {list(whole.shape)} and is not a matrix")
        grid, zeros = reshape_scale_grid(parts[suffix], whole.ndim), parts.get(".weight_zero_point")
        if grid.shape[:-2] not in ((), whole.shape[:-2]):
            raise LayoutError(f"scales of shape {list(grid.shape)} fit no {list(whole.shape)}")
        if zeros is not None and reshape_scale_grid(zeros, whole.ndim).shape != grid.shape:
            raise LayoutError(f"zero points of shape {list(zeros.shape)} do not fit the scales")
        block = _infer_block_shape(whole.shape[-2:], grid.shape[-2:], settings.block_shape)
        return QuantizedLayout(
            shape=whole.shape,
            group_size=block[1],
            is_uniform=whole.dtype == np.int8,
            is_symmetric=zeros is None,
            block_shape=block,
        )

    def read_codes(parts: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
        down, along = layout.block_shape
        i, j = np.arange(layout.shape[-2]) // down, np.arange(layout.shape[-1]) // along
        stacked = len(layout.shape) > 2

        def expand_grid(grid: Array) -> Array:
            if grid.ndim > 2:
                grid = grid[rows]
            return grid[..., i if stacked else i[rows], :][..., j]

        rank = len(layout.shape)
        scales = expand_grid(reshape_scale_grid(read_scales(parts[suffix]), rank))
        zeros = reshape_scale_grid(parts.get(".weight_zero_point", np.zeros((1, 1))), rank)
        zeros = zeros.astype(np.float32)
        offset = zeros if zeros.size == 1 else expand_grid(zeros)
        return parts[weight][rows].astype(np.float32) - offset, scales

    return layout, read_codes


def infer_llm_int8_layout(_: Parts, lengths: Lengths, __: QuantizationSettings) -> QuantizedLayout:
    """Return the layout of bitsandbytes' LLM.int8: `[out, in]` with per-channel absmax scales."""
    return QuantizedLayout(shape=(lengths["out"], lengths["in"]), group_size=lengths["in"])


def decode_llm_int8(parts: Parts, _: QuantizedLayout, rows: slice) -> Codes:
    """Decode LLM.int8 weights, which have per-channel absmax scales."""
    return parts[".weight"][rows], (read_scales(parts[".SCB"][rows]) / np.float32(127))[:, None]


# --- MXFP4 experts ------------------------------------------------------------------------


def infer_mxfp4_layout(_: Parts, lengths: Lengths, __: QuantizationSettings) -> QuantizedLayout:
    """Return the layout of MXFP4 experts, stored as `[out, in]` and used as `[in, out]`."""
    group = lengths["bytes"] * 2
    shape = lengths["experts"], lengths["groups"] * group, lengths["out"]
    return QuantizedLayout(shape=shape, group_size=group, axis=-2)


def decode_mxfp4(parts: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode MXFP4 weights `q * s`. The scales are powers of two."""
    packed, scales = parts["_blocks"][rows], read_scales(parts["_scales"][rows]) / np.float32(2)
    codes = FP4_DOUBLED[unpack_codes(packed, 4)].reshape(*packed.shape[:2], -1)
    return codes.swapaxes(1, 2), np.repeat(scales, layout.group_size, axis=2).swapaxes(1, 2)


# --- bitsandbytes, 4 bits -----------------------------------------------------------------


def _read_quant_state(parts: Parts) -> dict[str, Any]:
    """Parse the JSON that bitsandbytes stores in a byte tensor."""
    stored = next(parts[mark] for mark in QUANT_STATES if mark in parts)
    try:
        state = json.loads(stored.tobytes().decode())
        sizes = [*state["shape"], state["blocksize"]]
        if ".nested_absmax" in parts:
            sizes.append(state["nested_blocksize"])
            float(state["nested_offset"])
        if min(map(int, sizes)) < 1 or len(state["shape"]) != 2:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LayoutError("its quant_state is not that of a matrix") from None
    return dict(state)


def infer_bnb4_layout(parts: Parts, lengths: Lengths, _: QuantizationSettings) -> QuantizedLayout:
    """Return the layout of bitsandbytes' NF4 and FP4: codes in blocks of a flat array."""
    state = _read_quant_state(parts)
    shape = tuple(map(int, state["shape"]))
    count = math.prod(shape)
    check_entry_count("the bytes of codes", parts[""].nbytes, -(-count // 2))
    check_entry_count("absmax", lengths["blocks"], -(-count // int(state["blocksize"])))
    if (parts[".absmax"].dtype == np.uint8) != all(
        f".nested_{suffix}" in parts for suffix in ("absmax", "quant_map")
    ):
        raise LayoutError("absmax is quantized, or nested_absmax and nested_quant_map are missing")
    if ".nested_absmax" in parts:
        block_count = -(-lengths["blocks"] // int(state["nested_blocksize"]))
        check_entry_count("nested_absmax", len(parts[".nested_absmax"]), block_count)
    return QuantizedLayout(shape=shape, is_uniform=False)


def decode_bnb4(parts: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode NF4 or FP4 weights `table[q] * absmax`. Nested scales are quantized to 8 bits."""
    state = _read_quant_state(parts)
    width = layout.shape[1]
    first, stop, _ = rows.indices(layout.shape[0])
    start, end = first * width, stop * width
    flat = parts[""].reshape(-1).view(np.uint8)[start // 2 : -(-end // 2)]
    codes = np.stack([flat >> 4, flat & 15], -1).reshape(-1)[start % 2 :][: end - start]
    if ".nested_absmax" in parts:
        inner_scales = parts[".nested_quant_map"].astype(np.float32)[parts[".absmax"]]
        outer_blocks = np.arange(len(inner_scales)) // int(state["nested_blocksize"])
        scales = inner_scales * read_scales(parts[".nested_absmax"])[outer_blocks]
        scales = scales + np.float32(state["nested_offset"])
    else:
        scales = read_scales(parts[".absmax"])
    blocks = np.arange(start, end) // int(state["blocksize"])
    values = parts[".quant_map"].astype(np.float32)[codes]
    shape = stop - first, width
    return values.reshape(shape), scales[blocks].reshape(shape)


QUANT_STATES = tuple(f".quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))


DecodeBlocks: TypeAlias = Callable[[Array], Codes]
"""Decodes blocks `[..., bytes]` to codes `[..., groups, values]` and scales `[..., groups, 1]`."""


def _decode_float16(raw: Array) -> Array:
    """Reinterpret byte pairs as float16 and convert them to float32."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _split_bit_fields(raw: Array, bits: int, width: int) -> Array:
    """Split bytes into fields of `bits` bits. Of every `width` consecutive bytes, the lowest fields
    of all bytes come first.
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


def make_block_decoder(marker_suffix: str, block_type: BlockType) -> tuple[InferLayout, Decode]:
    """Return the layout and decoder of weights stored as GGUF blocks in one tensor."""
    bits, decode_blocks = DECODERS[block_type.name]

    def layout(parts: Parts, _: Lengths, __: QuantizationSettings) -> QuantizedLayout:
        *outer, width = parts[marker_suffix].shape
        shape = (*outer, width // block_type.nbytes * block_type.block_size)
        return QuantizedLayout(
            shape=shape, bits=bits, group_size=block_type.block_size, is_uniform=bits > 0
        )

    def read_codes(parts: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
        blocks = _reshape_groups(parts[marker_suffix][rows], block_type.nbytes)
        values, scales = decode_blocks(blocks)
        shape = (*blocks.shape[:-2], layout.shape[-1])
        return values.reshape(shape), np.broadcast_to(scales, values.shape).reshape(shape)

    return layout, read_codes

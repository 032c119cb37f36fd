"""Decode quantized weights, also the blocks of GGUF: shapes, codes and scales.

Every value is `codes * scales`, computed in float32.
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
"""Lengths of axes by their names in the patterns."""

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


class TensorMisfit(Exception):
    """Why tensors cannot be decoded to a weight."""


def match_tensor(what: str, tensor: Array, pattern: str, lengths: Lengths) -> None:
    """Check a tensor against a pattern and note the lengths of its axes.

    `float|u8[groups, 16]`: one of these types, two axes, the second of 16. `any` is every
    type; without brackets every shape. Raise TensorMisfit.
    """
    parsed = _TENSOR_PATTERN.fullmatch(pattern)
    assert parsed is not None, pattern
    kinds, axes = parsed[1], parsed[2]
    names = [] if axes is None else [name.strip() for name in axes.split(",")]
    fits = kinds == "any" or any(
        tensor.dtype.name in _DTYPE_CLASSES[kind] for kind in kinds.split("|")
    )
    found = f"{what} is {tensor.dtype.name}{list(tensor.shape)}, expected {pattern}"
    if not fits or (axes is not None and len(names) != tensor.ndim):
        raise TensorMisfit(found)
    for name, length in zip(names, tensor.shape, strict=False):
        known = int(name) if name.isdigit() else lengths.setdefault(name, length)
        if known != length:
            given = "" if name.isdigit() else f" with {name} = {known}"
            raise TensorMisfit(found + given)


def expect_equal(what: str, found: int, wanted: int) -> None:
    """Raise TensorMisfit unless a count is what other tensors say."""
    if found != wanted:
        raise TensorMisfit(f"{what}: {found} values, expected {wanted}")


Parts: TypeAlias = Mapping[str, Array]
"""The tensors of one weight by suffix; those of files are read when sliced."""
Codes: TypeAlias = tuple[Array, Array]
"""Codes minus the zero point, and their scales; both broadcast to the weight's shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSettings:
    """Settings of the quantization config: `block` is the shape that shares one scale (None: from
    the tensors), `bits` those of a code and `group` the group size (0: not given, -1: per channel),
    `zero_offset` is added to stored zero points.
    """

    block: tuple[int, int] | None = None
    bits: int = 0
    group: int = 0
    zero_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayout:
    """Shape of a weight, the bits of a code and the group size along `axis`.

    `kept`: codes are integers, those of a group share one scale, and with `centered` codes
    no zero point either, so that they can be stored as they are. `block` is the shape that shares
    one scale, `zero_offset` is added to stored zero points.
    """

    shape: tuple[int, ...]
    bits: int = 8
    group: int = 0
    axis: int = -1
    kept: bool = True
    centered: bool = True
    block: tuple[int, int] = (0, 0)
    zero_offset: int = 0


Describe: TypeAlias = Callable[[Parts, Lengths, QuantizationSettings], QuantizedLayout]
Decode: TypeAlias = Callable[[Parts, QuantizedLayout, slice], Codes]


FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.int8)
FP4_DOUBLED = np.concatenate([FP4_VALUES, -FP4_VALUES])
"""Twice the value of each code of FP4 (E2M1), so that all are integers."""
EXPONENT_BIAS = 127
"""Bias of an exponent without sign and mantissa (E8M0)."""


def unpack_codes(words: Array, bits: int, axis: int = -1) -> Array:
    """Split words into codes of `bits` bits along an axis, lowest bits first."""
    flat = np.ascontiguousarray(np.moveaxis(words, axis, -1)).view(np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = (flat[..., None] >> shifts) & np.uint8((1 << bits) - 1)
        codes = codes.reshape(*flat.shape[:-1], -1)
    else:
        every = np.unpackbits(flat, axis=-1, bitorder="little")
        count = every.shape[-1] // bits
        powers = (1 << np.arange(bits)).astype(np.uint8)
        codes = every[..., : count * bits].reshape(*flat.shape[:-1], count, bits) @ powers
    return np.moveaxis(codes, -1, axis)


def read_scales(stored: Array) -> Array:
    """Return scales as float32; bytes are exponents (E8M0)."""
    if stored.dtype == np.uint8:
        with np.errstate(over="ignore"):  # found when values are checked to be finite
            return np.ldexp(np.float32(1), stored.astype(np.int32) - EXPONENT_BIAS)
    return stored.astype(np.float32)


def as_scale_grid(scales: Array, rank: int) -> Array:
    """Return scales with the axes of the weight; one scale is a grid of 1 by 1."""
    if scales.size == 1 and scales.ndim < 3:
        return scales.reshape(1, 1)
    if scales.ndim != rank:
        raise TensorMisfit(f"scales of shape {list(scales.shape)} do not fit {rank} axes")
    return scales


# --- 8-bit values with separate scales  : FP8, int8 --------------------------------


def _block_sizes(
    shape: tuple[int, ...], grid: tuple[int, ...], block: tuple[int, int] | None
) -> tuple[int, int]:
    """Return the lengths of the blocks that share a scale; those at the edges may be shorter."""
    sizes = []
    for length, count, given in zip(shape, grid, block or (0, 0), strict=True):
        if given and -(-length // given) == count:
            sizes.append(given)
        elif count and length % count == 0:
            sizes.append(length // count)
        else:
            raise TensorMisfit(f"scales of shape {list(grid)} do not fit a matrix {list(shape)}")
    return sizes[0], sizes[1]


def make_scaled_decoder(suffix: str) -> tuple[Describe, Decode]:
    """Return layout and decoder of weights whose scales are in the tensor `suffix`."""
    weight = "" if suffix == "_scale_inv" else ".weight"

    def layout(t: Parts, _: Lengths, settings: QuantizationSettings) -> QuantizedLayout:
        whole = t[weight]
        if whole.ndim < 2:
            raise TensorMisfit(f"the weight has the shape {list(whole.shape)} and is not a matrix")
        grid, zeros = as_scale_grid(t[suffix], whole.ndim), t.get(".weight_zero_point")
        if grid.shape[:-2] not in ((), whole.shape[:-2]):
            raise TensorMisfit(f"scales of shape {list(grid.shape)} fit no {list(whole.shape)}")
        if zeros is not None and as_scale_grid(zeros, whole.ndim).shape != grid.shape:
            raise TensorMisfit(f"zero points of shape {list(zeros.shape)} do not fit the scales")
        block = _block_sizes(whole.shape[-2:], grid.shape[-2:], settings.block)
        return QuantizedLayout(
            shape=whole.shape,
            group=block[1],
            kept=whole.dtype == np.int8,
            centered=zeros is None,
            block=block,
        )

    def read_codes(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
        down, along = layout.block
        high, wide = np.arange(layout.shape[-2]) // down, np.arange(layout.shape[-1]) // along
        stacked = len(layout.shape) > 2

        def expand_grid(grid: Array) -> Array:
            if grid.ndim > 2:
                grid = grid[rows]
            return grid[..., high if stacked else high[rows], :][..., wide]

        zeros = np.zeros((1, 1)) if ".weight_zero_point" not in t else t[".weight_zero_point"]
        grids = [as_scale_grid(x, len(layout.shape)) for x in (read_scales(t[suffix]), zeros)]
        one = grids[1].size == 1
        offset = grids[1].astype(np.float32) if one else expand_grid(grids[1].astype(np.float32))
        return t[weight][rows].astype(np.float32) - offset, expand_grid(grids[0])

    return layout, read_codes


def describe_llm_int8(_: Parts, n: Lengths, __: QuantizationSettings) -> QuantizedLayout:
    """Describe LLM.int8 of bitsandbytes: `[out, in]` with the absmax of each row."""
    return QuantizedLayout(shape=(n["out"], n["in"]), group=n["in"])


def decode_llm_int8(t: Parts, _: QuantizedLayout, rows: slice) -> Codes:
    """Decode LLM.int8: rows scaled by their absmax."""
    return t[".weight"][rows], (read_scales(t[".SCB"][rows]) / np.float32(127))[:, None]


# --- MXFP4 experts ------------------------------------------------------------------------


def describe_mxfp4(_: Parts, n: Lengths, __: QuantizationSettings) -> QuantizedLayout:
    """Describe MXFP4: the model multiplies by `[in, out]`, the file stores `[out, in]`."""
    group = n["bytes"] * 2
    shape = n["experts"], n["groups"] * group, n["out"]
    return QuantizedLayout(shape=shape, group=group, axis=-2)


def decode_mxfp4(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode `q * s`, with power-of-two scales."""
    packed, scales = t["_blocks"][rows], read_scales(t["_scales"][rows]) / np.float32(2)
    codes = FP4_DOUBLED[unpack_codes(packed, 4)].reshape(*packed.shape[:2], -1)
    return codes.swapaxes(1, 2), np.repeat(scales, layout.group, axis=2).swapaxes(1, 2)


# --- bitsandbytes, 4 bits -----------------------------------------------------------------


def _read_quant_state(t: Parts) -> dict[str, Any]:
    """Return the JSON that bitsandbytes stores in a tensor of bytes."""
    stored = next(t[mark] for mark in QUANT_STATES if mark in t)
    try:
        state = json.loads(stored.tobytes().decode())
        sizes = [*state["shape"], state["blocksize"]]
        if ".nested_absmax" in t:
            sizes.append(state["nested_blocksize"])
            float(state["nested_offset"])
        if min(map(int, sizes)) < 1 or len(state["shape"]) != 2:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TensorMisfit("its quant_state is not that of a matrix") from None
    return dict(state)


def describe_bnb4(t: Parts, n: Lengths, _: QuantizationSettings) -> QuantizedLayout:
    """Describe NF4 and FP4 of bitsandbytes: a flat list of codes in blocks."""
    state = _read_quant_state(t)
    shape = tuple(map(int, state["shape"]))
    count = math.prod(shape)
    expect_equal("the bytes of codes", t[""].nbytes, -(-count // 2))
    expect_equal("absmax", n["blocks"], -(-count // int(state["blocksize"])))
    if (t[".absmax"].dtype == np.uint8) != all(
        f".nested_{part}" in t for part in ("absmax", "quant_map")
    ):
        raise TensorMisfit("absmax is quantized, or nested_absmax and nested_quant_map are missing")
    if ".nested_absmax" in t:
        needed = -(-n["blocks"] // int(state["nested_blocksize"]))
        expect_equal("nested_absmax", len(t[".nested_absmax"]), needed)
    return QuantizedLayout(shape=shape, kept=False)


def decode_bnb4(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
    """Decode `table[q] * absmax`; nested scales are quantized to 8 bits themselves."""
    state = _read_quant_state(t)
    width = layout.shape[1]
    first, stop, _ = rows.indices(layout.shape[0])
    start, end = first * width, stop * width
    flat = t[""].reshape(-1).view(np.uint8)[start // 2 : -(-end // 2)]
    codes = np.stack([flat >> 4, flat & 15], -1).reshape(-1)[start % 2 :][: end - start]
    scales = read_scales(t[".absmax"]) if ".nested_absmax" not in t else None
    if scales is None:
        each = t[".nested_quant_map"].astype(np.float32)[t[".absmax"]]
        outer = np.arange(len(each)) // int(state["nested_blocksize"])
        scales = each * read_scales(t[".nested_absmax"])[outer]
        scales = scales + np.float32(state["nested_offset"])
    blocks = np.arange(start, end) // int(state["blocksize"])
    values = t[".quant_map"].astype(np.float32)[codes]
    shape = stop - first, width
    return values.reshape(shape), scales[blocks].reshape(shape)


QUANT_STATES = tuple(f".quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))


DecodeBlocks: TypeAlias = Callable[[Array], Codes]
"""Decodes blocks `[..., bytes]` to codes `[..., groups, values]` and scales `[..., groups, 1]`."""


def _float16(raw: Array) -> Array:
    """Return float16 values in pairs of bytes as float32."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _bit_fields(raw: Array, bits: int, width: int) -> Array:
    """Split bytes into fields of `bits` bits: those of `width` bytes follow each other, the lowest
    first.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = raw.reshape(*raw.shape[:-1], -1, 1, width)
    fields = (parts >> shifts) & np.uint8((1 << bits) - 1)
    return fields.reshape(*raw.shape[:-1], -1)


def _in_groups(codes: Array, size: int) -> Array:
    return codes.reshape(*codes.shape[:-1], -1, size)


def _decode_q4_0(blocks: Array) -> Codes:
    codes = _bit_fields(blocks[..., 2:], 4, 16).astype(np.int8) - np.int8(8)
    return codes[..., None, :], _float16(blocks[..., :2])[..., None]


def _decode_q8_0(blocks: Array) -> Codes:
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return codes[..., None, :], _float16(blocks[..., :2])[..., None]


def _unpack_scales(packed: Array) -> tuple[Array, Array]:
    """Return the eight scales and the eight minimums of 6 bits in 12 bytes."""
    low, high, mixed = (packed[..., start : start + 4] for start in (0, 4, 8))
    scales = np.concatenate([low & 63, (mixed & 15) | ((low >> 2) & 48)], -1)
    minimums = np.concatenate([high & 63, (mixed >> 4) | ((high >> 2) & 48)], -1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _decode_offset_blocks(blocks: Array, codes: Array) -> Codes:
    """Decode `d * scale * q - dmin * minimum`; values with a minimum have the scale 1."""
    sizes = _float16(blocks[..., :4])
    scales, minimums = _unpack_scales(blocks[..., 4:16])
    groups = _in_groups(codes, 32).astype(np.float32)
    offset = (sizes[..., 1:] * minimums)[..., None]
    values = (sizes[..., :1] * scales)[..., None] * groups - offset
    return values, np.ones((*values.shape[:-1], 1), np.float32)


def _decode_q4_k(blocks: Array) -> Codes:
    return _decode_offset_blocks(blocks, _bit_fields(blocks[..., 16:], 4, 32))


def _decode_q5_k(blocks: Array) -> Codes:
    highest = _bit_fields(blocks[..., 16:48], 1, 32)
    return _decode_offset_blocks(blocks, _bit_fields(blocks[..., 48:], 4, 32) | (highest << 4))


def _decode_q6_k(blocks: Array) -> Codes:
    low, high = _bit_fields(blocks[..., :128], 4, 64), _bit_fields(blocks[..., 128:192], 2, 32)
    codes = (low | (high << 4)).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return _in_groups(codes, 16), (_float16(blocks[..., 208:]) * scales)[..., None]


DECODERS: Mapping[str, tuple[int, DecodeBlocks]] = {
    "q4_0": (4, _decode_q4_0),
    "q8_0": (8, _decode_q8_0),
    "q4_k": (0, _decode_q4_k),
    "q5_k": (0, _decode_q5_k),
    "q6_k": (6, _decode_q6_k),
}
"""By type: the bits of a code (0: codes are not integers times a scale) and the decoder."""
QUANTIZED_TYPES = tuple(t for t in BLOCK_TYPES.values() if t.name in DECODERS)


def make_block_decoder(mark: str, kind: BlockType) -> tuple[Describe, Decode]:
    """Return layout and decoder of weights whose blocks are the bytes of the tensor `mark`."""
    bits, decode_blocks = DECODERS[kind.name]

    def layout(t: Parts, _: Lengths, __: QuantizationSettings) -> QuantizedLayout:
        *outer, width = t[mark].shape
        shape = (*outer, width // kind.nbytes * kind.values)
        return QuantizedLayout(shape=shape, bits=bits, group=kind.values, kept=bits > 0)

    def read_codes(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
        blocks = _in_groups(t[mark][rows], kind.nbytes)
        values, scales = decode_blocks(blocks)
        shape = (*blocks.shape[:-2], layout.shape[-1])
        return values.reshape(shape), np.broadcast_to(scales, values.shape).reshape(shape)

    return layout, read_codes

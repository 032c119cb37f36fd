"""Decode the blocks of quantized GGUF tensors, as ggml's reference does."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.gguf_header import BLOCK_TYPES, BlockType
from specc.weights.formats.quantized_decoders import (
    Codes,
    Decode,
    Describe,
    Lengths,
    Parts,
    QuantizationSettings,
    QuantizedLayout,
)

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

    def layout(t: Parts, _: Lengths, settings: QuantizationSettings) -> QuantizedLayout:
        *outer, width = t[mark].shape
        shape = (*outer, width // kind.nbytes * kind.values)
        return QuantizedLayout(
            shape=shape, bits=bits, group=kind.values, kept=bits > 0, settings=settings
        )

    def read_codes(t: Parts, layout: QuantizedLayout, rows: slice) -> Codes:
        blocks = _in_groups(t[mark][rows], kind.nbytes)
        values, scales = decode_blocks(blocks)
        shape = (*blocks.shape[:-2], layout.shape[-1])
        return values.reshape(shape), np.broadcast_to(scales, values.shape).reshape(shape)

    return layout, read_codes

"""Parse the header of GGUF files (llama.cpp): metadata, and the shapes and offsets of tensors.
Decode blocks of quantized values to codes and scales.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.weights.formats.quantized_layout import (
    Codes,
    InferLayout,
    Lengths,
    QuantizationSettings,
    QuantizedLayout,
    QuantizedWeightFormat,
    StoredTensors,
)
from specc.weights.formats.safetensors_header import MAX_HEADER_BYTES, MAX_LENGTH, Shape

Metadata: TypeAlias = Mapping[str, object]
"""GGUF metadata, keyed by name: numbers, booleans, strings, or lists of numbers, booleans or
strings.
"""

MAGIC, VERSIONS = b"GGUF", (2, 3)
STRING, ARRAY = 8, 9
SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""The `struct` format code of each scalar metadata type."""
DEFAULT_ALIGNMENT = 32
MAX_AXES = 4


@dataclass(frozen=True, slots=True)
class GGMLType:
    """A GGUF tensor type (ggml_type). Each block of `block_size` elements takes `nbytes` bytes."""

    name: str
    block_size: int = 1
    nbytes: int = 0


BLOCK_TYPES = {
    0: GGMLType("f32", 1, 4),
    1: GGMLType("f16", 1, 2),
    2: GGMLType("q4_0", 32, 18),
    8: GGMLType("q8_0", 32, 34),
    12: GGMLType("q4_k", 256, 144),
    13: GGMLType("q5_k", 256, 176),
    14: GGMLType("q6_k", 256, 210),
    30: GGMLType("bf16", 1, 2),
}
UNSUPPORTED_TYPES = {
    3: "q4_1", 6: "q5_0", 7: "q5_1", 9: "q8_1", 10: "q2_k", 11: "q3_k", 15: "q8_k", 16: "iq2_xxs",
    17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs",
    24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 29: "iq1_m", 34: "tq1_0", 35: "tq2_0",
    39: "mxfp4", 40: "nvfp4",
}  # fmt: skip
"""Names of GGUF tensor types that specc cannot read."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor in a GGUF file. `offset` is in bytes from the start of the file."""

    name: str
    block_type: GGMLType
    shape: Shape
    offset: int

    @property
    def row_bytes(self) -> int:
        """Return the size of a row in bytes. Each row consists of whole blocks."""
        return self.shape[-1] // self.block_type.block_size * self.block_type.nbytes

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return math.prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class GGUFHeader:
    """The header of a GGUF file: metadata, tensors, and the raw bytes of the header."""

    metadata: Metadata
    tensors: tuple[GGUFTensor, ...]
    data: bytes


class _InvalidHeaderError(Exception):
    """Raised if a GGUF header is invalid. The message contains the reason."""


@dataclass(slots=True)
class _Reader:
    """A reader of little-endian values in a memory-mapped file, starting at `offset`. All methods
    raise an error if a value extends beyond the end of the file.
    """

    data: mmap
    offset: int = field(default=len(MAGIC))

    def skip(self, size: int) -> int:
        """Skip `size` bytes and return the offset of the first skipped byte."""
        start, self.offset = self.offset, self.offset + size
        if self.offset > len(self.data):
            raise _InvalidHeaderError("the file is truncated inside the header")
        if self.offset > MAX_HEADER_BYTES:
            raise _InvalidHeaderError(f"the header exceeds {MAX_HEADER_BYTES} bytes")
        return start

    def unpack(self, codes: str) -> Shape:
        """Read values in a `struct` format."""
        format = f"<{codes}"
        return struct.unpack_from(format, self.data, self.skip(struct.calcsize(format)))

    def read_string(self) -> str:
        """Read a string with a length prefix."""
        (size,) = self.unpack("Q")
        start = self.skip(size)
        # tokens of byte-level vocabularies may be incomplete UTF-8 sequences
        return self.data[start : self.offset].decode(errors="replace")

    def read_value(self, type_code: int) -> object:
        """Read a metadata value of the type `type_code`."""
        if type_code == STRING:
            return self.read_string()
        if type_code == ARRAY:
            return self.read_array(*self.unpack("IQ"))
        if type_code not in SCALARS:
            raise _InvalidHeaderError(f"unknown metadata type {type_code}")
        return self.unpack(SCALARS[type_code])[0]

    def read_array(self, type_code: int, count: int) -> list[object]:
        """Read `count` elements of the type `type_code`."""
        if type_code == STRING:
            return [self.read_string() for _ in self.make_range(count)]
        if type_code not in SCALARS:
            raise _InvalidHeaderError(f"unsupported metadata array type {type_code}")
        code = SCALARS[type_code]
        start = self.skip(count * struct.calcsize(f"<{code}"))
        return list(struct.unpack_from(f"<{count}{code}", self.data, start))

    def make_range(self, count: int) -> range:
        """Return `range(count)` for a loop over `count` items of at least one byte each. Raise an
        error if fewer than `count` bytes remain in the file.
        """
        if count > len(self.data) - self.offset:
            raise _InvalidHeaderError(
                f"the header declares {count} items, more than the file can hold"
            )
        return range(count)


def read_gguf_header(data: mmap, path: str) -> GGUFHeader:
    """Parse the header of a GGUF file. Raise E0506 (invalid header) or E0508 (unsupported type)."""
    reader = _Reader(data)
    try:
        (version,) = reader.unpack("I")
        if version not in VERSIONS:
            if not version & 0xFFFF:
                raise _InvalidHeaderError("big-endian files are not supported")
            raise _InvalidHeaderError(f"unsupported version {version}, expected 2 or 3")
        tensor_count, key_count = reader.unpack("QQ")
        metadata = _read_metadata(reader, key_count)
        alignment = _read_alignment(metadata)
        raw_tensors = [_read_tensor(reader, path) for _ in reader.make_range(tensor_count)]
        start = -(-reader.offset // alignment) * alignment
        tensors = [GGUFTensor(n, t, s, start + offset) for n, t, s, offset in raw_tensors]
        _check_ranges(tensors, alignment, len(data))
    except _InvalidHeaderError as error:
        raise_invalid_gguf_error(path, str(error))
    return GGUFHeader(metadata, tuple(tensors), data[: reader.offset])


def raise_invalid_gguf_error(path: str | Path, reason: str) -> NoReturn:
    """Raise E0506 because a GGUF file is invalid."""
    raise_error(
        "E0506",
        f"`{escape_text(path)}` is corrupted, or not a GGUF file",
        notes=[reason],
        helps=["download the file again"],
    )


def _read_metadata(reader: _Reader, count: int) -> Metadata:
    metadata: dict[str, object] = {}
    for _ in reader.make_range(count):
        key = reader.read_string()
        if key in metadata:
            raise _InvalidHeaderError(f"duplicate metadata key `{escape_text(key)[:200]}`")
        metadata[key] = reader.read_value(reader.unpack("I")[0])
    return metadata


def _read_alignment(metadata: Metadata) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise _InvalidHeaderError(
            f"its alignment is {escape_text(alignment)[:40]}, not a power of 2"
        )
    return alignment


def _read_tensor(reader: _Reader, path: str) -> tuple[str, GGMLType, Shape, int]:
    """Read the name, type, shape and data offset of a tensor."""
    name = reader.read_string()
    label = f"the tensor `{escape_text(name)[:200]}`"
    (axes,) = reader.unpack("I")
    if not 0 < axes <= MAX_AXES:
        raise _InvalidHeaderError(f"{label} has {axes} axes, expected 1 to {MAX_AXES}")
    # GGUF stores the innermost axis first
    shape = reader.unpack(f"{axes}Q")[::-1]
    number, offset = reader.unpack("IQ")
    if number not in BLOCK_TYPES:
        _raise_unsupported_type(path, name, number)
    block_type = BLOCK_TYPES[number]
    if math.prod(max(length, 1) for length in shape) >= MAX_LENGTH or offset >= MAX_LENGTH:
        raise _InvalidHeaderError(f"{label} is larger than any file")
    if shape[-1] % block_type.block_size:
        raise _InvalidHeaderError(
            f"{label} has rows of {shape[-1]} values, expected a multiple of the block size "
            f"{block_type.block_size} of {block_type.name}"
        )
    return name, block_type, shape, offset


def _raise_unsupported_type(path: str, name: str, type_code: int) -> NoReturn:
    type_name = UNSUPPORTED_TYPES.get(type_code, f"number {type_code}")
    raise_error(
        "E0508",
        f"specc cannot read GGUF tensors of type {type_name.upper()}",
        notes=[
            f"`{escape_text(name)[:200]}` in `{escape_text(path)}` has this type",
            f"supported: {', '.join(t.name.upper() for t in BLOCK_TYPES.values())}",
        ],
        helps=["download the file in one of these types, e.g. Q4_K_M, Q8_0 or F16"],
    )


def _check_ranges(tensors: list[GGUFTensor], alignment: int, size: int) -> None:
    """Raise E0506 unless tensors have unique names and are aligned, disjoint and in the file."""
    names: set[str] = set()
    previous: GGUFTensor | None = None
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        label = f"the tensor `{escape_text(tensor.name)[:200]}`"
        if tensor.name in names:
            raise _InvalidHeaderError(f"{label} is a duplicate")
        names.add(tensor.name)
        if tensor.offset % alignment:
            raise _InvalidHeaderError(f"{label} does not begin at a multiple of {alignment} bytes")
        if previous is not None and tensor.offset < previous.offset + previous.nbytes:
            raise _InvalidHeaderError(f"{label} overlaps the tensor before it")
        if tensor.offset + tensor.nbytes > size:
            raise _InvalidHeaderError(f"{label} ends after the end of the file, which is cut off")
        previous = tensor


DecodeBlocks: TypeAlias = Callable[[Array], Codes]
"""A function that decodes blocks `[..., bytes]` into codes `[..., groups, values]` and scales
`[..., groups, 1]`."""


def _decode_float16(raw: Array) -> Array:
    """Reinterpret byte pairs as float16, and convert to float32."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _split_bit_fields(raw: Array, bits: int, width: int) -> Array:
    """Split bytes into fields of `bits` bits. For each run of `width` bytes, the result contains
    the lowest fields of all bytes first, followed by the higher fields.
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
"""The decoder and the bits per code (0 if codes are not integers) of each GGUF block type."""


QUANTIZED_TYPES = tuple(t for t in BLOCK_TYPES.values() if t.name in DECODERS)


def make_gguf_layout_function(suffix: str, block_type: GGMLType) -> InferLayout:
    """Return the function that infers the layout of weights stored as GGUF blocks in the tensor
    `suffix`.
    """
    bits, decode_blocks = DECODERS[block_type.name]

    def infer_layout(
        tensors: StoredTensors, _lengths: Lengths, _settings: QuantizationSettings
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

    return infer_layout


GGUF_METHOD = "gguf"
"""The quantization method of GGUF files. GGUF files have no quantization config."""

GGUF_FORMATS = tuple(
    QuantizedWeightFormat(
        methods=(GGUF_METHOD,),
        marker_suffix=f":{block_type.name}",
        weight_suffix="",
        required_tensors={f":{block_type.name}": "u8"},
        infer_layout=make_gguf_layout_function(f":{block_type.name}", block_type),
    )
    for block_type in QUANTIZED_TYPES
)

"""Parse and validate safetensors headers, and define the dtypes of weights."""

import re
from dataclasses import dataclass
from typing import TypeAlias

import ml_dtypes
import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.json_io import (
    NO_LIMITS,
    DuplicateKeyError,
    Json,
    NestingTooDeepError,
    get_exact_integer,
    parse_strict_json,
)
from specc.io.platform_and_signals import read_at_offset
from specc.io.safe_read import escape_text, has_lone_surrogate
from specc.ir.array import Array

NUMPY_KINDS: dict[str, str | type | None] = {
    "bool": "?",
    "u8": "u1",
    "i8": "i1",
    "u16": "<u2",
    "i16": "<i2",
    "u32": "<u4",
    "i32": "<i4",
    "u64": "<u8",
    "i64": "<i8",
    "f16": "<f2",
    "bf16": ml_dtypes.bfloat16,
    "f32": "<f4",
    "f64": "<f8",
    "c64": "<c8",
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
    "f8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f8_e8m0": ml_dtypes.float8_e8m0fnu,
    **dict.fromkeys(("f6_e2m3", "f6_e3m2", "f4")),
}
"""The NumPy dtype of each safetensors dtype. Packed types have no NumPy dtype."""

DTYPE_BITS = {n: int(re.findall(r"\d+", n)[0]) if n != "bool" else 8 for n in (*NUMPY_KINDS, "i4")}
"""Bits per element of each dtype, including `i4`, which is not a safetensors dtype."""

NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {
    ours: np.dtype(kind) for ours, kind in NUMPY_KINDS.items() if kind is not None
}
"""The little-endian NumPy dtype of each weight dtype, without packed types."""

DTYPES_BY_FILE_NAME: dict[str, str] = {ours.upper(): ours for ours in NUMPY_KINDS}
"""The name in specc of each safetensors dtype."""

FLOAT_DTYPES = frozenset(n for n in DTYPE_BITS if n.startswith(("f", "bf")))
"""Floating-point dtypes."""
CONVERTIBLE_FLOATS = FLOAT_DTYPES & NUMPY_DTYPES.keys()
"""The floating-point dtypes that can be converted to each other."""

NATIVE_ORDER_DTYPES = frozenset(
    ours for ours, kind in NUMPY_KINDS.items() if isinstance(kind, type)
)
"""Dtypes of ml_dtypes, which exist only in native byte order."""

# the mapping is invertible, because all NumPy dtypes are different
_BY_NAME = {kind.name: ours for ours, kind in NUMPY_DTYPES.items()}


def get_array_dtype(array: Array) -> str:
    """Return the dtype name of an array. Raise E0508 if weights of this dtype are unsupported."""
    name = array.dtype.name
    if name not in _BY_NAME:
        raise_error(
            "E0508",
            f"the dtype {name} is not supported for weights",
            helps=["store them as f32, f16 or bf16"],
        )
    return _BY_NAME[name]


Shape: TypeAlias = tuple[int, ...]
MAX_HEADER_BYTES = 100_000_000
MAX_LENGTH = 1 << 53
"""Upper bound of axis sizes and offsets. Integers in a spec have the same bound."""
HEADER_FIELDS = frozenset({"dtype", "shape", "data_offsets"})
"""Fields of a tensor's header entry. All fields are required, and no others are allowed."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The header entry of a tensor. `offset` is in bytes from the start of the file."""

    name: str
    dtype: str
    shape: Shape
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The offset of the first byte after the tensor."""
        return self.offset + self.nbytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class _InvalidHeaderError(Exception):
    """Raised if a safetensors header is invalid. The message contains the reason."""


def read_header(fd: int, size: int, path: str) -> tuple[list[TensorEntry], dict[str, str], bytes]:
    """Return the tensors in file order, the metadata and the raw header. Raise E0506 on failure."""
    try:
        data = _read_header_bytes(fd, size)
        fields = _parse_fields(data)
        metadata = _parse_metadata(fields.pop("__metadata__", None))
        start = 8 + len(data)
        tensors = [_parse_tensor(name, f, start) for name, f in fields.items()]
        tensors.sort(key=lambda t: (t.offset, t.nbytes))
        _check_ranges(tensors, start, size)
    except _InvalidHeaderError as error:
        raise_error(
            "E0506",
            f"`{escape_text(path)}` is corrupted, or not a safetensors file",
            notes=[str(error)],
            helps=["download or write the file again"],
        )
    return tensors, metadata, data


def _read_header_bytes(fd: int, size: int) -> bytes:
    """Return the JSON text of the header, whose length is in the first eight bytes of the file."""
    if size < 8:
        raise _InvalidHeaderError(f"file size is {size} bytes, expected at least 10")
    length = int.from_bytes(read_at_offset(fd, 8, 0), "little")
    # check the length before reading, because the file may have another format
    if length > MAX_HEADER_BYTES:
        raise _InvalidHeaderError(f"header length is {length} bytes, maximum {MAX_HEADER_BYTES}")
    if length > size - 8:
        raise _InvalidHeaderError(
            f"its header should have {length} bytes, but only {size - 8} follow: the "
            "file is truncated"
        )
    data = read_at_offset(fd, length, 8)
    if len(data) != length:  # the file was truncated after its size was read
        raise _InvalidHeaderError("the file is truncated inside the header")
    return data


def _parse_fields(data: bytes) -> dict[str, Json]:
    """Parse the header as JSON with unique keys."""
    try:
        fields = parse_strict_json(data.decode("utf-8"), NO_LIMITS)
    except DuplicateKeyError as error:
        raise _InvalidHeaderError(
            f"duplicate key {escape_text(repr(error.key))} in the header"
        ) from None
    except NestingTooDeepError:
        raise _InvalidHeaderError("the header is nested too deeply") from None
    except UnicodeDecodeError as error:
        # add the 8 bytes of the length field to get the offset in the file
        raise _InvalidHeaderError(f"the header is not UTF-8 (byte {error.start + 8})") from None
    except ValueError as error:
        # the header is invalid JSON, or contains NaN or an integer with thousands of digits
        raise _InvalidHeaderError(f"the header is not JSON: {escape_text(error)}") from None
    if not isinstance(fields, dict):
        raise _InvalidHeaderError("the header is not a JSON object")
    return fields


def _parse_metadata(value: Json) -> dict[str, str]:
    if value is None:
        return {}
    texts: dict[str, str] = {}
    if isinstance(value, dict):
        texts = {key: text for key, text in value.items() if isinstance(text, str)}
    if not isinstance(value, dict) or len(texts) != len(value):
        raise _InvalidHeaderError("its `__metadata__` is not a map of strings")
    return texts


def _parse_tensor(name: str, fields: Json, start: int) -> TensorEntry:
    """Parse the header entry of a tensor. The data of the file begins at the offset `start`. Raise
    an error if the entry is inconsistent.
    """
    tensor_label = f"the tensor `{escape_text(name[:200])}`"
    if not name:
        raise _InvalidHeaderError("a tensor has no name")
    # JSON may contain lone surrogates, which are not allowed in names
    if has_lone_surrogate(name):
        raise _InvalidHeaderError(f"{tensor_label} has a lone surrogate in its name")
    # unknown fields might change the meaning of known fields
    if not isinstance(fields, dict) or set(fields) != HEADER_FIELDS:
        raise _InvalidHeaderError(
            f"{tensor_label} must have exactly the fields dtype, shape and data_offsets"
        )
    dtype = _check_dtype(tensor_label, fields["dtype"])
    shape = _parse_lengths(fields["shape"])
    if shape is None or len(shape) > 64:
        raise _InvalidHeaderError(
            f"{tensor_label} has a shape that is not a list of at most 64 axis sizes"
        )
    begin, end = _parse_offsets(tensor_label, fields["data_offsets"])
    byte_count = _count_bytes(tensor_label, dtype, shape)
    if end - begin != byte_count:
        raise _InvalidHeaderError(
            f"{tensor_label}, {dtype} of shape {shape}, takes {byte_count} bytes, "
            f"but its data_offsets span {end - begin}"
        )
    return TensorEntry(name, DTYPES_BY_FILE_NAME[dtype], tuple(shape), start + begin, byte_count)


def _check_dtype(tensor_label: str, dtype: Json) -> str:
    """Return the dtype in a header entry. Raise an error if the dtype is unknown."""
    if not isinstance(dtype, str) or dtype not in DTYPES_BY_FILE_NAME:
        raise _InvalidHeaderError(
            f"{tensor_label} has the unknown dtype {escape_text(repr(dtype)[:40])}"
        )
    return dtype


def _parse_offsets(tensor_label: str, value: Json) -> tuple[int, int]:
    """Parse the begin and end offsets of a tensor."""
    offsets = _parse_lengths(value)
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _InvalidHeaderError(
            f"{tensor_label} has data_offsets that are not two increasing numbers"
        )
    return offsets[0], offsets[1]


def _count_bytes(tensor_label: str, dtype: str, shape: list[int]) -> int:
    """Return the size of a tensor in bytes."""
    count = 1
    for dim in shape:
        count *= dim
        if count >= MAX_LENGTH:  # check after every factor, because a later 0 hides an overflow
            raise _InvalidHeaderError(f"{tensor_label} has more elements than any file can hold")
    bits = count * DTYPE_BITS[DTYPES_BY_FILE_NAME[dtype]]
    if bits % 8:  # types of 4 and 6 bits are packed into bytes
        raise _InvalidHeaderError(f"{tensor_label} of {dtype} does not fill whole bytes")
    return bits // 8


def _parse_lengths(value: Json) -> list[int] | None:
    """Parse a list of axis sizes. Return None if an item is not a non-negative integer."""
    if not isinstance(value, list):
        return None
    numbers = [n for v in value if (n := get_exact_integer(v)) is not None and 0 <= n < MAX_LENGTH]
    return numbers if len(numbers) == len(value) else None


def _check_ranges(tensors: list[TensorEntry], start: int, size: int) -> None:
    """Raise an error unless the tensors, in order, fill the bytes from `start` to `size`, the file
    size, without gaps.
    """
    position = start
    for t in tensors:
        if t.offset != position:
            problem = (
                "overlaps the tensor before it"
                if t.offset < position
                else "leaves unused bytes before it"
            )
            raise _InvalidHeaderError(f"the tensor `{escape_text(t.name[:200])}` {problem}")
        position = t.end
    if position > size:
        first = next(t for t in tensors if t.end > size)
        raise _InvalidHeaderError(
            f"its tensors require {position - start} bytes of data, got {size - start}: the file "
            f"is truncated, from `{escape_text(first.name[:200])}` on"
        )
    if position < size:
        raise _InvalidHeaderError(f"{size - position} bytes follow its last tensor")

"""The header of a safetensors file, taken apart and checked.

Rules (the format's own, and ours): at most 100 MB; UTF-8 JSON that begins with `{`; every name once;
`dtype`, `shape` and `data_offsets` and no other field; a shape's bytes equal its range; ranges in order
fill the data from its first byte to its last.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from specc.input import shown
from specc.text.diagnostic import fail
from specc.weights.dtypes import BITS, FROM_FILE

MOST_HEADER_BYTES = 100_000_000
MOST_LENGTH = 1 << 53
"""Lengths and offsets stay below this, as every number in a spec does."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A tensor as the header tells it; `begin` and `end` count from the first byte of data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Twice(Exception):
    """A JSON object has a key twice."""


def read_header(fd: int, size: int, path: str) -> tuple[list[Raw], dict[str, str], bytes]:
    """The tensors in the order of their data, the metadata, and the header's bytes. Fails with E0506."""

    def refuse(why: str) -> NoReturn:
        fail(
            "E0506",
            f"`{shown(path)}` is damaged, or not a safetensors file",
            notes=[why],
            helps=["download or write the file again"],
        )

    if size < 8:
        refuse(f"it has {size} bytes; a safetensors file has at least 10")
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if length > MOST_HEADER_BYTES:
        refuse(f"it begins with a header length of {length} bytes; at most {MOST_HEADER_BYTES} are allowed")
    if length > size - 8:
        refuse(f"its header should have {length} bytes, but only {size - 8} follow: the file is cut off")
    data = os.pread(fd, length, 8)
    if len(data) != length:
        refuse("the file is cut off inside the header")
    try:
        fields = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except _Twice as error:
        refuse(f"its header names {shown(repr(str(error)))} twice")
    except RecursionError:
        refuse("its header is nested too deeply")
    except UnicodeDecodeError as error:
        refuse(f"its header is not UTF-8 (byte {error.start + 8})")
    except ValueError as error:  # JSONDecodeError, an integer of thousands of digits, NaN
        refuse(f"its header is not JSON: {shown(str(error))}")
    if not isinstance(fields, dict):
        refuse("its header is not a JSON object")
    try:
        metadata = _metadata(fields.pop("__metadata__", None))
        tensors = sorted((_tensor(n, f) for n, f in fields.items()), key=lambda t: (t.begin, t.end))
        _check_ranges(tensors, size - 8 - length)
    except _Wrong as error:
        refuse(str(error))
    return tensors, metadata, data


class _Wrong(Exception):
    """What a header breaks."""


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(key)
        found[key] = value
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON value")


def _metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise _Wrong("its `__metadata__` is not a table of texts")
    return value


def _tensor(name: str, fields: Any) -> Raw:
    """One entry, complete and consistent in itself."""
    what = f"the tensor `{shown(name[:200])}`"
    if not name:
        raise _Wrong("a tensor has no name")
    if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
        raise _Wrong(f"{what} has half of a character pair in its name")
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise _Wrong(f"{what} must have exactly the fields dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in FROM_FILE:
        raise _Wrong(f"{what} has the unknown dtype {shown(repr(dtype)[:40])}")
    if not _lengths(shape) or len(shape) > 64:
        raise _Wrong(f"{what} has a shape that is not a list of at most 64 lengths")
    if not _lengths(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _Wrong(f"{what} has data_offsets that are not two growing numbers")
    ours = FROM_FILE[dtype]
    count = 1
    for dim in shape:
        count *= dim
        if count >= MOST_LENGTH:  # checked on the way: a later 0 must not hide it
            raise _Wrong(f"{what} has more elements than any file can hold")
    bits = count * BITS[ours]
    if bits % 8:
        raise _Wrong(f"{what} of {dtype} does not fill whole bytes")
    if offsets[1] - offsets[0] != bits // 8:
        raise _Wrong(
            f"{what}, {dtype} of shape {shape}, takes {bits // 8} bytes, "
            f"but its data_offsets span {offsets[1] - offsets[0]}"
        )
    return Raw(name, ours, tuple(shape), offsets[0], offsets[1])


def _lengths(value: Any) -> bool:
    """Whether a JSON value is a list of whole numbers from 0; true and 1.0 are not numbers here."""
    return isinstance(value, list) and all(type(v) is int and 0 <= v < MOST_LENGTH for v in value)


def _check_ranges(tensors: list[Raw], size: int) -> None:
    """No hole, no overlap, and the last byte of data is the last of the file."""
    at = 0
    for t in tensors:
        if t.begin != at:
            what = "overlaps the tensor before it" if t.begin < at else "leaves unused bytes before it"
            raise _Wrong(f"the tensor `{shown(t.name[:200])}` {what}")
        at = t.end
    if at > size:
        raise _Wrong(f"its tensors need {at} bytes of data, but {size} are there: the file is cut off")
    if at < size:
        raise _Wrong(f"{size - at} bytes follow its last tensor")

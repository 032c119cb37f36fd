"""Read arrays from .npy, .npz and JSON files without changing their values."""

import io
import json
import math
import warnings
import zipfile
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.io.json_io import (
    NO_LIMITS,
    InvalidJsonError,
    Json,
    NestingTooDeepError,
    NonFiniteNumberError,
    parse_strict_json,
)
from specc.io.safe_read import (
    MAX_ARRAY_BYTES,
    MAX_TEXT_BYTES,
    escape_text,
    raise_file_too_large_error,
    read_input_file,
)
from specc.ir.array import Array

ZIP_SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06")
"""Magic numbers of .npz files. The second magic number marks an archive without members."""
MAX_RANK = 16
MAX_HEADER_BYTES = 10_000
"""Maximum header size of a .npy file in bytes."""
MAX_ARRAYS = 10_000
"""Maximum number of arrays in a .npz file."""

NPY_SIGNATURE = b"\x93NUMPY"
SAVE_AGAIN_HELP = "save or copy it again"


def parse_npy(data: bytes, name: str) -> Array:
    """Parse a .npy file, format version 1 or 2. Raise E0905 if the file is invalid."""
    readers = {b"\1\0": npy.read_array_header_1_0, b"\2\0": npy.read_array_header_2_0}
    if not data.startswith(NPY_SIGNATURE) or data[6:8] not in readers:
        raise_invalid_array_error(
            name, "it is not a .npy file of version 1 or 2", "save it with numpy.save"
        )
    file = io.BytesIO(data)
    file.seek(8)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, is_fortran_order, dtype = readers[data[6:8]](
                file, max_header_size=MAX_HEADER_BYTES
            )
    except Exception:  # NumPy may raise any type of exception for a corrupted header
        raise_invalid_array_error(name, "its header is invalid", SAVE_AGAIN_HELP)
    _check_dtype(dtype, name)
    if len(shape) > MAX_RANK or not all(type(n) is int and 0 <= n < 2**48 for n in shape):
        raise_invalid_array_error(name, "its shape is invalid", SAVE_AGAIN_HELP)
    count, start = math.prod(shape), file.tell()
    expected, available = count * dtype.itemsize, len(data) - start
    if available != expected:
        raise_invalid_array_error(
            name, f"its shape requires {expected} bytes of data, got {available}", SAVE_AGAIN_HELP
        )
    flat = np.frombuffer(data, dtype, count, start)
    return to_native_byte_order(flat.reshape(shape, order="F" if is_fortran_order else "C"))


def _check_dtype(dtype: "np.dtype[np.generic]", name: str) -> None:
    if dtype.hasobject:
        raise_invalid_array_error(
            name,
            "it contains Python objects, which would run code when loaded",
            "convert it first: array.astype(numpy.float32), or lists of equal length",
        )
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise_invalid_array_error(
            name, "its elements are neither numbers nor booleans", "convert it to numbers first"
        )


def parse_npz(data: bytes, path: str) -> dict[str, Array]:
    """Return the arrays of a .npz file, keyed by name. Raise E0905 (invalid file) or E0904 (too
    large).
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_members(archive, path)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        reason = escape_text(error)[:160]
        raise_invalid_array_error(path, f"it is an invalid .npz file ({reason})", SAVE_AGAIN_HELP)


def _read_members(archive: zipfile.ZipFile, path: str) -> dict[str, Array]:
    """Return the arrays of an archive, keyed by name. Check the declared sizes of the arrays before
    unpacking the archive.
    """
    members = archive.infolist()
    unpacked_bytes = sum(member.file_size for member in members)
    if len(members) > MAX_ARRAYS or unpacked_bytes > MAX_ARRAY_BYTES:
        raise_file_too_large_error(path, "its arrays exceed the size limit of specc")
    arrays: dict[str, Array] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            duplicate = f"duplicate array `{escape_text(name)}`"
            raise_invalid_array_error(path, duplicate, "save it again with numpy.savez")
        with archive.open(member) as file:
            # read one byte more than the declared size, to detect an incorrect size
            content = file.read(member.file_size + 1)
        if not content.startswith(NPY_SIGNATURE):
            problem = f"`{escape_text(member.filename)}` in it is not an array"
            raise_invalid_array_error(path, problem, "save it with numpy.savez")
        arrays[name] = parse_npy(content, f"{path}: {name}")
    return arrays


def to_native_byte_order(array: Array) -> Array:
    """Return a read-only, C-contiguous copy or view of an array in native byte order."""
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def raise_invalid_array_error(path: str, reason: str, fix: str) -> NoReturn:
    """Raise E0905 for an invalid array."""
    raise_error("E0905", f"cannot use the array in `{escape_text(path)}`: {reason}", helps=[fix])


def parse_json_arrays(data: bytes, name: str) -> dict[str, Array]:
    """Return the arrays of a JSON document, keyed by name. The name of a number or nested list is
    "".
    """
    value = load_strict_json(data, name)
    if isinstance(value, dict):
        return {
            key: convert_lists_to_array(
                item, f"the JSON text in {escape_text(name)}, `{escape_text(key)}`"
            )
            for key, item in value.items()
        }
    return {"": convert_lists_to_array(value, f"the JSON text in {escape_text(name)}")}


def convert_lists_to_array(value: object, location: str, *, pad_left: bool = False) -> Array:
    """Convert nested lists to an array (bool, int64 or float64). Raise E0906 if the lists are
    invalid. `location` describes the lists in messages. If `pad_left` is True, the help text shows
    the lists padded on the left.
    """
    if isinstance(value, list) and {*map(type, value)} == {int}:  # usually token ids
        with suppress(OverflowError):  # `_flatten_lists` reports an overflow with its location
            return np.array(value, np.int64)
    shape = _infer_shape(value)
    if len(shape) > MAX_RANK:
        _raise_invalid_json(
            location,
            f"lists are nested more than {MAX_RANK} levels deep, the maximum rank of an array",
        )
    flat: list[bool | int | float] = []
    try:
        _flatten_lists(value, shape, (), flat, location)
    except SpeccError as failed:
        padded_lists = _pad_lists(value, pad_left)
        if not padded_lists:
            raise
        example = (
            f", as {padded_lists}"
            if len(padded_lists[0]) * len(padded_lists) <= MAX_PADDED_ELEMENTS
            else ""
        )
        fix = f"pad the shorter ones{example}, and pass a padding mask as the input of type `keep`"
        raise SpeccError(replace(failed.diagnostics[0], helps=(fix,))) from None
    return np.array(flat, _choose_list_dtype(flat, location)).reshape(shape)


def _choose_list_dtype(flat: list[bool | int | float], location: str) -> type[np.generic]:
    """Choose the dtype for the elements of a list. Raise E0906 for a mix of bools and numbers."""
    kinds = {type(item) for item in flat}
    if bool in kinds and len(kinds) > 1:
        _raise_invalid_json(location, "true and false are mixed with numbers")
    if kinds == {bool}:
        return np.bool_
    return np.float64 if float in kinds else np.int64


MAX_PADDED_ELEMENTS = 24
"""Maximum number of padded list elements that a message shows."""


def _pad_lists(value: object, pad_left: bool) -> list[list[object]]:
    """Return lists of numbers, zero-padded to equal length. Return [] if no padding is needed or
    possible.
    """
    rows = value if isinstance(value, list) else []
    lists = [
        row for row in rows if isinstance(row, list) and {*map(type, row)} <= {int, float, bool}
    ]
    max_length = max(map(len, lists), default=0)
    if len(lists) < len(rows) or {*map(len, lists)} <= {max_length}:
        return []
    zeros: list[list[object]] = [[0] * (max_length - len(row)) for row in lists]
    return [
        zeros_of_row + row if pad_left else row + zeros_of_row
        for row, zeros_of_row in zip(lists, zeros, strict=True)
    ]


def load_strict_json(data: bytes, name: str) -> Json:
    """Parse a JSON document. Raise E0906 for invalid JSON, duplicate keys and NaN."""
    try:
        return parse_strict_json(data.decode("utf-8-sig"), NO_LIMITS)
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 text (byte {error.start})"
    except NonFiniteNumberError as error:
        reason = f"{error}, expected finite numbers"
    except NestingTooDeepError:
        reason = "lists are nested too deeply"
    except InvalidJsonError as error:
        reason = str(error)
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno}, column {error.colno}: {error.msg.lower()}"
    except ValueError:  # the document contains an integer with thousands of digits
        reason = "a number has too many digits"
    _raise_invalid_json(f"the JSON text in {escape_text(name)}", reason)


def _infer_shape(value: object) -> tuple[int, ...]:
    """Infer the shape of nested lists from the first element at each level."""
    shape: list[int] = []
    # limit the depth, because a list may contain itself
    while isinstance(value, list | tuple) and len(shape) <= MAX_RANK:
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _flatten_lists(
    value: object,
    shape: tuple[int, ...],
    index: tuple[int, ...],
    elements: list[bool | int | float],
    location: str,
) -> None:
    """Append the elements of nested lists to `elements`. Raise E0906 unless the lists have the
    shape `shape`. `index` is the index of `value` in the outermost list, for messages.
    """
    if not shape:
        elements.append(_convert_number(value, index, location))
        return
    if not isinstance(value, list | tuple) or len(value) != shape[0]:
        actual = f"a list of {len(value)}" if isinstance(value, list | tuple) else "no list"
        expected = f"earlier ones are lists of {shape[0]}"
        _raise_invalid_json(location, f"{_format_location(index)} is {actual} where {expected}")
    for i, item in enumerate(value):
        _flatten_lists(item, shape[1:], (*index, i), elements, location)


def _convert_number(value: object, index: tuple[int, ...], location: str) -> bool | int | float:
    """Convert a Python number or boolean to an array element of dtype bool, int64 or float64."""
    if isinstance(value, list | tuple):
        reason = "is a list, but earlier elements are numbers"
    elif not isinstance(value, bool | int | float):
        reason = "is null" if value is None else "is not a number"
    elif isinstance(value, float) and not math.isfinite(value):
        reason = "is NaN" if math.isnan(value) else "is too large for a floating-point number"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        reason = "is an integer outside the 64-bit range"
    else:
        return value
    _raise_invalid_json(location, f"{_format_location(index)} {reason}")


def _format_location(index: tuple[int, ...]) -> str:
    return "".join(f"[{i}]" for i in index) or "the value"


def _raise_invalid_json(location: str, reason: str) -> NoReturn:
    raise_error(
        "E0906",
        f"cannot read numbers from {location}: {reason}",
        helps=["pass nested lists of equal lengths, such as [[1, 2, 3], [4, 5, 6]]"],
    )


NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.float32),  # NumPy has no bf16, so the runtime rounds float32 values
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
}
"""NumPy dtypes of arrays by element type."""


def read_arrays(path: str) -> dict[str, Array]:
    """Read the arrays of a file, keyed by name. An array without a name (.npy, JSON list) is named
    "".
    """
    if path.lower().endswith((".json", ".jsonl")):
        return parse_json_arrays(read_input_file(path, MAX_TEXT_BYTES), path)
    data = read_input_file(path, MAX_ARRAY_BYTES)
    if data.startswith(ZIP_SIGNATURES):
        return parse_npz(data, path)
    if data.startswith(NPY_SIGNATURE):
        return {"": parse_npy(data, path)}
    if data.lstrip()[:1] not in (b"[", b"{"):
        raise_invalid_array_error(
            path, "expected a .npy, .npz or JSON file", "save the array with numpy.save"
        )
    return parse_json_arrays(data, path)


def _narrow_array(array: Array, dtype: str, name: str) -> Array:
    """Cast floats to a narrower dtype. Raise E0907 if a finite value becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        result = array.astype(NUMPY_DTYPES[dtype])
    has_overflowed = np.isinf(result) & np.isfinite(array)
    if has_overflowed.any():
        reason = f"the value at {format_first_true_index(has_overflowed)} is too large for {dtype}"
        _raise_inexact(array, dtype, name, reason)
    return to_native_byte_order(result)


def cast_input_array(array: Array, dtype: str, name: str) -> Array:
    """Cast the array of input `name` to `dtype` (`f32`, `i64`, …). Raise E0907 if the cast changes
    values. Floats may be rounded to narrower floats, but floats are not cast to integers and bools
    are not cast to numbers.
    """
    target_dtype = NUMPY_DTYPES[dtype]
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    source_kind = array.dtype.kind
    if source_kind not in "fiub":
        _raise_inexact(array, dtype, name, "expected an array of numbers or booleans")
    if source_kind == target_dtype.kind == "f":
        return _narrow_array(array, dtype, name)
    if source_kind == "f":
        _raise_inexact(array, dtype, name, "floats are not converted to integers implicitly")
    if source_kind == "b" and target_dtype.kind != "b":
        _raise_inexact(array, dtype, name, "booleans are not converted to numbers implicitly")
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(target_dtype)
        is_changed = _find_difference(array, result)
    if is_changed.any():
        _raise_changed_value(array, dtype, name, is_changed)
    return to_native_byte_order(result)


def _raise_changed_value(
    array: Array, dtype: str, name: str, is_changed: NDArray[np.bool_]
) -> NoReturn:
    """Raise E0907 with the first value that the conversion changes."""
    index = tuple(int(i) for i in np.argwhere(is_changed)[0])
    place = format_first_true_index(is_changed)
    reason = f"{dtype} cannot represent the value {array[index]} at {place}"
    _raise_inexact(array, dtype, name, f"{reason} exactly")


def _find_difference(array: Array, result: Array) -> NDArray[np.bool_]:
    """Return a mask of the elements that a conversion from integers or booleans changed."""
    if result.dtype.kind == "f":
        # the float dtype represents all integers up to `limit` exactly
        limit = 2 ** (np.finfo(result.dtype).nmant + 1)
        return np.asarray(
            (array > limit) | (array < -limit) if array.dtype.kind == "i" else array > limit
        )
    if array.dtype.kind == "u" and result.dtype.kind == "i":
        return np.asarray(array > np.iinfo(result.dtype).max)
    return np.asarray(result.astype(array.dtype) != array)


def format_first_true_index(mask: Array) -> str:
    """Format the index of the first true element of a mask, e.g. as `[0, 3]`."""
    return str([int(i) for i in np.argwhere(mask)[0]])


def _raise_inexact(array: Array, dtype: str, name: str, reason: str) -> NoReturn:
    raise_error(
        "E0907",
        f"the input `{escape_text(name)}` must be {dtype}, got {array.dtype}",
        notes=[reason],
        helps=[f"to convert the array explicitly: array.astype(numpy.{NUMPY_DTYPES[dtype]})"],
    )

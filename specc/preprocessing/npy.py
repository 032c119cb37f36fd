"""NumPy .npy and .npz files."""

import ast
import io
import math
import re
import warnings
import zipfile
import zlib
from typing import NamedTuple, NoReturn

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import MAX_ARRAY_BYTES, MAX_RANK, escape_text, fail_too_large
from specc.ir.array import Array

ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # how a .npz begins; the second is an empty one
MAX_HEADER = 10_000  # bytes
MAX_MEMBERS = 10_000  # arrays in one .npz

NPY = b"\x93NUMPY"
ELEMENT = re.compile(r"[<>|=](b1|[iu][1248]|f[248])")
DAMAGED = "its header is damaged"
AGAIN = "save or copy it again"


class NpyHeader(NamedTuple):
    """The header of a .npy file, whose data begin at byte `start`. `by_column`: Fortran order."""

    shape: tuple[int, ...]
    by_column: bool
    dtype: "np.dtype[np.generic]"
    start: int


def parse_npy(data: bytes, name: str) -> Array:
    """The array in the bytes of a .npy file, of format version 1 or 2. Fails with E0905."""
    header = _header(data, name)
    count = math.prod(header.shape)
    due, rest = count * header.dtype.itemsize, len(data) - header.start
    if rest != due:
        fail_bad_array(name, f"its shape needs {due} bytes of data and {rest} are there", AGAIN)
    flat = np.frombuffer(data, header.dtype, count, header.start)
    return to_native_order(flat.reshape(header.shape, order="F" if header.by_column else "C"))


def _header(data: bytes, name: str) -> NpyHeader:
    """The header, each part of it looked at."""
    fields, start = _header_fields(data, name)
    match fields:
        case {"descr": kind, "shape": shape, "fortran_order": by_column} if len(fields) == 3:
            dtype = _element(kind, name)
        case _:
            fail_bad_array(name, DAMAGED, AGAIN)
    if not isinstance(shape, tuple) or len(shape) > MAX_RANK:
        fail_bad_array(name, DAMAGED, AGAIN)
    if not isinstance(by_column, bool):
        fail_bad_array(name, DAMAGED, AGAIN)
    if not all(type(length) is int and 0 <= length < 2**48 for length in shape):
        fail_bad_array(name, "its shape is not possible", AGAIN)
    return NpyHeader(shape, by_column, dtype, start)


def _header_fields(data: bytes, name: str) -> tuple[dict[object, object], int]:
    """What the header says, a Python literal, and where the data begin."""
    width = {b"\x01\x00": 2, b"\x02\x00": 4}.get(data[6:8])
    if not data.startswith(NPY) or width is None:
        fail_bad_array(name, "it is not a .npy file of version 1 or 2", "save it with numpy.save")
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    if not 8 + width < start <= min(len(data), MAX_HEADER):
        fail_bad_array(name, DAMAGED, AGAIN)
    text = data[8 + width : start].decode("latin-1").strip()
    try:
        with warnings.catch_warnings():
            # what Python has to say of a stranger's spelling helps no one
            warnings.simplefilter("ignore")
            fields = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        fields = None
    if not isinstance(fields, dict):
        fail_bad_array(name, DAMAGED, AGAIN)
    return fields, start


def _element(kind: object, name: str) -> "np.dtype[np.generic]":
    """The element type that a header names."""
    if kind == "|O":
        fail_bad_array(
            name,
            "it holds Python objects, which only running code from the file could restore",
            "convert it first: array.astype(numpy.float32) or a list of equally long rows",
        )
    if not isinstance(kind, str) or not ELEMENT.fullmatch(kind):
        fail_bad_array(
            name, "its elements are neither numbers nor truth values", "convert it to numbers first"
        )
    return np.dtype(kind)


def parse_npz(data: bytes, path: str) -> dict[str, Array]:
    """Return the arrays of a .npz file by name. Raise E0905, or E0904 if they are too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _members(archive, path)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as fault:
        words = escape_text(str(fault))[:160]
        fail_bad_array(path, f"it is a damaged .npz file ({words})", AGAIN)


def _members(archive: zipfile.ZipFile, path: str) -> dict[str, Array]:
    """The arrays of an archive; sizes are limited before anything is unpacked."""
    members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if len(members) > MAX_MEMBERS or unpacked > MAX_ARRAY_BYTES:
        fail_too_large(path, "its arrays take more room than specc grants")
    found: dict[str, Array] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in found:
            twice = f"it holds `{escape_text(name)}` twice"
            fail_bad_array(path, twice, "save it again with numpy.savez")
        with archive.open(member) as file:
            # a byte more than is promised shows that the promise was a lie
            content = file.read(member.file_size + 1)
        if not content.startswith(NPY):
            odd = f"`{escape_text(member.filename)}` in it is not an array"
            fail_bad_array(path, odd, "save it with numpy.savez")
        found[name] = parse_npy(content, f"{path}: {name}")
    return found


def to_native_order(array: Array) -> Array:
    """The same values in this machine's byte order, C-contiguous and writable by no one else."""
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def fail_bad_array(path: str, why: str, mend: str) -> NoReturn:
    """Fails with E0905."""
    raise_error("E0905", f"cannot use the array in `{escape_text(path)}`: {why}", helps=[mend])

"""Arrays in files: .npy, .npz and JSON, read so that nothing a file says is believed unchecked.

Pickles are never opened. Sizes are compared with the file before memory is taken. What comes out is native
in byte order and C-contiguous. `exact` gives an array the element type a model wants, or says why that
would change it.
"""

import ast
import io
import json
import math
import re
import warnings
import zipfile
import zlib
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.reading.files import MAX_ARRAY_BYTES, MAX_TEXT_BYTES, read_bytes, shown, too_large
from specc.text.diagnostic import fail

Array: TypeAlias = NDArray[Any]

MAX_RANK = 16
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # how a .npz begins; the second is an empty one
MAX_HEADER = 10_000  # bytes
MAX_MEMBERS = 10_000  # arrays in one .npz

NPY = b"\x93NUMPY"
ELEMENT = re.compile(r"[<>|=](b1|[iu][1248]|f[248])")

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.float32),  # NumPy has no bf16: the runner rounds
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
}
"""What NumPy calls the element types of specc."""


def read_array(path: str) -> Array:
    """The one array in a .npy, .npz or JSON file. Fails with E0905 or E0906 if there is not exactly one."""
    found = read_arrays(path)
    if len(found) != 1:
        names = ", ".join(f"`{shown(name)}`" for name in list(found)[:8]) or "none"
        _bad_array(
            path,
            f"it holds {len(found)} arrays where one is wanted: {names}",
            "save the one array you mean with numpy.save, or give the whole file without naming an input",
        )
    return next(iter(found.values()))


def read_arrays(path: str) -> dict[str, Array]:
    """The arrays in a file by name; "" is the name of the one in a .npy file or a JSON list."""
    if path.lower().endswith((".json", ".jsonl")):
        return parse_json(read_bytes(path, MAX_TEXT_BYTES), path)
    data = read_bytes(path, MAX_ARRAY_BYTES)
    if data.startswith(ZIP):
        return _read_npz(data, path)
    if data.startswith(NPY):
        return {"": parse_npy(data, path)}
    if data.lstrip()[:1] not in (b"[", b"{"):
        _bad_array(path, "it is neither .npy nor .npz nor JSON", "save the array with numpy.save")
    return parse_json(data, path)


def parse_npy(data: bytes, name: str) -> Array:
    """The array in the bytes of a .npy file, of format version 1 or 2. Fails with E0905."""
    shape, fortran, dtype, start = _npy_header(data, name)
    due = math.prod(shape) * dtype.itemsize
    rest = len(data) - start
    if rest != due:
        _bad_array(name, f"its shape needs {due} bytes of data and {rest} are there", "save or copy it again")
    flat = np.frombuffer(data, dtype, math.prod(shape), start)
    return native(flat.reshape(shape, order="F" if fortran else "C"))


def _npy_header(data: bytes, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns come first, element type, and where the data begin.

    NumPy's own reader retries odd headers through a tokenizer and accepts types that no model takes.
    """
    damaged = "its header is damaged"
    width = {b"\x01\x00": 2, b"\x02\x00": 4}.get(data[6:8])
    if not data.startswith(NPY) or width is None:
        _bad_array(name, "it is not a .npy file of version 1 or 2", "save it with numpy.save")
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    if not 8 + width < start <= min(len(data), MAX_HEADER):
        _bad_array(name, damaged, "save or copy it again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python has to say of a stranger's spelling helps no one
            header = ast.literal_eval(data[8 + width : start].decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        header = None
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        _bad_array(name, damaged, "save or copy it again")
    kind, shape, fortran = header["descr"], header["shape"], header["fortran_order"]
    if kind == "|O":
        _bad_array(
            name,
            "it holds Python objects, which only running code from the file could restore",
            "convert it first: array.astype(numpy.float32) or a list of equally long rows",
        )
    if not isinstance(kind, str) or not ELEMENT.fullmatch(kind):
        _bad_array(name, "its elements are neither numbers nor truth values", "convert it to numbers first")
    if not isinstance(shape, tuple) or len(shape) > MAX_RANK or not isinstance(fortran, bool):
        _bad_array(name, damaged, "save or copy it again")
    if not all(type(length) is int and 0 <= length < 2**48 for length in shape):
        _bad_array(name, "its shape is not possible", "save or copy it again")
    return shape, fortran, np.dtype(kind), start


def parse_json(data: bytes, name: str) -> dict[str, Array]:
    """The arrays of a JSON text: a list (of lists …) of numbers, a number, or an object of those by name."""
    value = load_json(data, name)
    if isinstance(value, dict):
        return {
            key: nested_array(item, f"the JSON text in {shown(name)}, `{shown(key)}`") for key, item in value.items()
        }
    return {"": nested_array(value, f"the JSON text in {shown(name)}")}


def nested_array(value: object, where: str) -> Array:
    """Nested lists as an array: bool, i64 if all are whole, or f64. `where` is what a message calls them. E0906."""
    shape = _shape(value)
    if len(shape) > MAX_RANK:
        _bad_json(where, f"lists are nested more than {MAX_RANK} deep; that is the most axes an array has")
    flat: list[bool | int | float] = []
    _flatten(value, shape, (), flat, where)
    kinds = {type(item) for item in flat}
    if bool in kinds and len(kinds) > 1:
        _bad_json(where, "true and false are mixed with numbers")
    dtype: Any = np.bool_ if kinds == {bool} else np.float64 if float in kinds else np.int64
    return np.array(flat, dtype).reshape(shape)


def native(array: Array) -> Array:
    """The same values in this machine's byte order, C-contiguous and writable by no one else."""
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def exact(array: Array, dtype: str, name: str) -> Array:
    """The array of input `name` as `dtype` (`f32`, `i64`, …). Fails with E0907 if values would change.

    Whole numbers convert to any type that holds them, 0 and 1 to bool, floats to narrower floats by rounding
    as long as none becomes infinite. Fractions never become whole numbers, truth values never numbers.
    """
    goal = DTYPES[dtype]
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    source = array.dtype.kind
    if source not in "fiub":
        _inexact(array, dtype, name, "only numbers and truth values can be given to a model")
    if source == goal.kind == "f":
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            result = array.astype(goal)
        lost = np.isinf(result) & np.isfinite(array)
        if lost.any():
            _inexact(array, dtype, name, f"the value at {_place(lost)} is too large for {dtype}")
        return native(result)
    if source == "f":
        _inexact(array, dtype, name, "fractions do not become whole numbers by themselves")
    if source == "b" and goal.kind != "b":
        _inexact(array, dtype, name, "truth values are not numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(goal)
        changed = _differs(array, result)
    if changed.any():
        at = tuple(int(i) for i in np.argwhere(changed)[0])
        _inexact(
            array,
            dtype,
            name,
            f"the value {array[at]} at {_place(changed)} is not one that {dtype} holds exactly",
        )
    return native(result)


def _differs(array: Array, result: Array) -> NDArray[np.bool_]:
    """Where a conversion from whole numbers or truth values changed a value."""
    if result.dtype.kind == "f":
        limit = 2 ** (np.finfo(result.dtype).nmant + 1)  # up to here every whole number has a float
        return np.asarray((array > limit) | (array < -limit) if array.dtype.kind == "i" else array > limit)
    if array.dtype.kind == "u" and result.dtype.kind == "i":
        return np.asarray(array > np.iinfo(result.dtype).max)
    return np.asarray(result.astype(array.dtype) != array)


def _read_npz(data: bytes, path: str) -> dict[str, Array]:
    """The arrays of a .npz file; sizes are limited before anything is unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > MAX_MEMBERS or sum(member.file_size for member in members) > MAX_ARRAY_BYTES:
                too_large(path, "its arrays take more room than specc grants")
            found: dict[str, Array] = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in found:
                    _bad_array(path, f"it holds `{shown(name)}` twice", "save it again with numpy.savez")
                with archive.open(member) as file:
                    content = file.read(member.file_size + 1)
                if not content.startswith(NPY):
                    _bad_array(path, f"`{shown(member.filename)}` in it is not an array", "save it with numpy.savez")
                found[name] = parse_npy(content, f"{path}: {name}")
            return found
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as fault:
        _bad_array(path, f"it is a damaged .npz file ({shown(str(fault))[:160]})", "save or copy it again")


def load_json(data: bytes, name: str) -> object:
    """What a JSON text says, with no name twice and no NaN. Fails with E0906."""

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(items)
        if len(found) != len(items):
            _bad_json(f"the JSON text in {shown(name)}", "a name is given twice in one object")
        return found

    def constant(text: str) -> NoReturn:
        _bad_json(f"the JSON text in {shown(name)}", f"{text} is not a number that a model can be given")

    try:
        text = data.decode("utf-8-sig")
        value: object = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError as fault:
        _bad_json(f"the JSON text in {shown(name)}", f"it is not UTF-8 text (byte {fault.start})")
    except json.JSONDecodeError as fault:
        _bad_json(f"the JSON text in {shown(name)}", f"line {fault.lineno}, column {fault.colno}: {fault.msg.lower()}")
    except RecursionError:
        _bad_json(f"the JSON text in {shown(name)}", "lists are nested too deep")
    except ValueError:  # an integer of thousands of digits
        _bad_json(f"the JSON text in {shown(name)}", "it holds a number with too many digits")
    return value


def _shape(value: object) -> tuple[int, ...]:
    """The shape that the first elements suggest."""
    shape: list[int] = []
    while isinstance(value, list | tuple) and len(shape) <= MAX_RANK:  # a list may hold itself
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _flatten(
    value: object, shape: tuple[int, ...], at: tuple[int, ...], out: list[bool | int | float], where: str
) -> None:
    """Append the numbers in `value`, which must have `shape`, to `out`."""
    place = "".join(f"[{i}]" for i in at) or "the value"
    if shape:
        if not isinstance(value, list | tuple) or len(value) != shape[0]:
            is_ = f"a list of {len(value)}" if isinstance(value, list | tuple) else "no list"
            _bad_json(where, f"{place} is {is_} where the ones before are lists of {shape[0]}")
        for i, item in enumerate(value):
            _flatten(item, shape[1:], (*at, i), out, where)
        return
    if isinstance(value, list | tuple):
        _bad_json(where, f"{place} is a list where the ones before are numbers")
    if not isinstance(value, bool | int | float):
        _bad_json(where, f"{place} is {'null' if value is None else 'no number'}")
    if isinstance(value, float) and not math.isfinite(value):
        _bad_json(where, f"{place} is too large for a number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        _bad_json(where, f"{place} is a whole number beyond 64 bits")
    out.append(value)


def _place(where: Array) -> str:
    """The first true position, as people write it: `[0, 3]`."""
    return str([int(i) for i in np.argwhere(where)[0]])


def _bad_array(path: str, why: str, mend: str) -> NoReturn:
    fail("E0905", f"cannot use the array in `{shown(path)}`: {why}", helps=[mend])


def _bad_json(where: str, why: str) -> NoReturn:
    fail(
        "E0906",
        f"cannot read numbers from {where}: {why}",
        helps=["give nested lists of equal lengths, such as [[1, 2, 3], [4, 5, 6]]"],
    )


def _inexact(array: Array, dtype: str, name: str, why: str) -> NoReturn:
    fail(
        "E0907",
        f"the input `{shown(name)}` takes {dtype} and is given {array.dtype}",
        notes=[why],
        helps=[f"convert the array yourself if you mean it: array.astype(numpy.{DTYPES[dtype]})"],
    )

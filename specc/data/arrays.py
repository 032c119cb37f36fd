"""Arrays in files, .npy, .npz and JSON, and arrays as a model wants them.

What is read is native in byte order and C-contiguous. `exact` gives an array the
element type a model wants, or says why that would change it.
"""

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from specc.data.files import MAX_ARRAY_BYTES, MAX_TEXT_BYTES, read_bytes
from specc.data.json_arrays import parse_json
from specc.data.npy import NPY, ZIP, bad_array, native, parse_npy, parse_npz
from specc.files.read import shown
from specc.ir.array import Array
from specc.text.diagnostic import fail

DTYPES: dict[str, np.dtype[np.generic]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.float32),  # NumPy has no bf16: the runner rounds
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
}
"""What NumPy calls the element types of specc."""


def read_arrays(path: str) -> dict[str, Array]:
    """The arrays in a file by name; "" is the name of the one in a .npy file or a JSON list."""
    if path.lower().endswith((".json", ".jsonl")):
        return parse_json(read_bytes(path, MAX_TEXT_BYTES), path)
    data = read_bytes(path, MAX_ARRAY_BYTES)
    if data.startswith(ZIP):
        return parse_npz(data, path)
    if data.startswith(NPY):
        return {"": parse_npy(data, path)}
    if data.lstrip()[:1] not in (b"[", b"{"):
        bad_array(
            path,
            "it is neither .npy nor .npz nor JSON",
            "save the array with numpy.save",
        )
    return parse_json(data, path)


def _narrowed(array: Array, dtype: str, name: str) -> Array:
    """Floats as floats of another width. Fails with E0907 where one becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        result = array.astype(DTYPES[dtype])
    lost = np.isinf(result) & np.isfinite(array)
    if lost.any():
        why = f"the value at {_place(lost)} is too large for {dtype}"
        _inexact(array, dtype, name, why)
    return native(result)


def exact(array: Array, dtype: str, name: str) -> Array:
    """The array of input `name` as `dtype` (`f32`, `i64`, …). Fails with E0907 if
    values would change.

    Whole numbers convert to any type that holds them, 0 and 1 to bool, floats to
    narrower floats by rounding as long as none becomes infinite. Fractions never become
    whole numbers, truth values never numbers.
    """
    goal = DTYPES[dtype]
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    source = array.dtype.kind
    if source not in "fiub":
        _inexact(
            array, dtype, name, "only numbers and truth values can be given to a model"
        )
    if source == goal.kind == "f":
        return _narrowed(array, dtype, name)
    if source == "f":
        _inexact(
            array, dtype, name, "fractions do not become whole numbers by themselves"
        )
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
        # up to here every whole number has a float
        limit = 2 ** (np.finfo(result.dtype).nmant + 1)
        return np.asarray(
            (array > limit) | (array < -limit)
            if array.dtype.kind == "i"
            else array > limit
        )
    if array.dtype.kind == "u" and result.dtype.kind == "i":
        return np.asarray(array > np.iinfo(result.dtype).max)
    return np.asarray(result.astype(array.dtype) != array)


def _place(where: Array) -> str:
    """The first true position, as people write it: `[0, 3]`."""
    return str([int(i) for i in np.argwhere(where)[0]])


def _inexact(array: Array, dtype: str, name: str, why: str) -> NoReturn:
    fail(
        "E0907",
        f"the input `{shown(name)}` takes {dtype} and is given {array.dtype}",
        notes=[why],
        helps=[
            f"convert the array yourself if you mean it: array.astype(numpy.{DTYPES[dtype]})"
        ],
    )

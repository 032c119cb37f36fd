"""Convert Python values to arrays: tensors of other libraries, table columns and images."""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.types import Type
from specc.preprocessing.array_files import convert_lists_to_array

ARRAY_PROTOCOLS = ("__array__", "__array_interface__", "__dlpack__")
DLPACK_HOST_DEVICES = (1, 3)
"""DLPack device types of host memory: CPU memory and CUDA pinned memory."""
TEXT_IMAGES_RANK = 4
"""Rank of an array with several images of one text."""
TOKEN_IDS = ("i64", 2)
"""The dtype and the rank of a batch of token ids."""
MAX_LIST_DEPTH = 8
"""Maximum depth of nested lists that are searched for arrays."""


def _is_string_column(array: Array) -> bool:
    """Return True if a one-dimensional array contains a string."""
    if array.dtype.kind not in "UTO" or array.ndim != 1:
        return False
    return any(isinstance(item, str) for item in array.tolist())


def convert_image_arrays(value: object, name: str) -> list[Array]:
    """Convert image arrays to one array [images, …] per text. Return [] if there are no images."""
    images_of_texts = list(value) if isinstance(value, list | tuple) else []
    if not all(
        _is_array_like(images) and np.ndim(images) == TEXT_IMAGES_RANK for images in images_of_texts
    ):
        return []
    return [_convert_array(images, name) for images in images_of_texts]


def convert_input_value(value: object, name: str) -> object:
    """Convert the value of an input to an array, a string, strings, or nested lists of numbers."""
    if isinstance(value, str):
        return str(value)  # convert NumPy strings, which would be treated as arrays
    if isinstance(value, list | tuple):
        # check only one value per type, because checking a million values is slow
        value_by_type = {type(item): item for item in _iterate_elements(value, MAX_LIST_DEPTH)}
        has_arrays = any(map(_is_array_like, value_by_type.values()))
        return _convert_lists(value, name) if has_arrays else value
    if not _is_array_like(value):
        return value
    array = _convert_array(value, name)
    return array.tolist() if _is_string_column(array) else array


TOKENIZER_HELP = (
    "to pass text, put tokenizer.json into the checkpoint directory (the directory of `--weights` "
    "or `--config`), and compile the model again"
)
COMMENT = re.compile("#.*")


def suggest_tokenizer(name: str, type: Type, spec_sources: Mapping[str, str]) -> list[str]:
    """Return the help texts for passing text to the input `name`, which has no tokenizer. Return []
    if the type is not a batch of token ids. `spec_sources` are the spec files of the model.
    """
    if (type.dtype, type.rank) != TOKEN_IDS:
        return []
    # in YAML, the name and the expression may be in quotes
    reading = re.compile(rf"\b{name}[\"']?\s*[=:]\s*[\"']?text\s*\(\s*tokenizer\s*\(")
    if reading.search(COMMENT.sub("", "\n".join(spec_sources.values()))):
        return [TOKENIZER_HELP]
    return [f"or declare in the spec how text is tokenized: `reading {{ {name} = text(bytes()) }}`"]


def convert_to_array(
    value: object,
    name: str,
    *,
    pad_left: bool = False,
    suggest_tokenizer: Callable[[str], list[str]] = lambda name: [],
) -> Array:
    """Convert a value or nested lists of numbers to an array. Raise E0906 if the value is invalid.
    If `pad_left` is True, the help text shows lists padded on the left. `suggest_tokenizer` returns
    the help messages for a text that is passed to a numeric input.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, bytes | bytearray | Mapping | Set | Iterator):
        fix = "pass a list of its elements: list(…)"
        if isinstance(value, bytes | bytearray):
            fix = "pass a string, value.decode(), or an array, numpy.frombuffer(value, …)"
        raise_error(
            "E0906",
            f"unsupported type {type(value).__name__} of the value of `{escape_text(name)}`",
            notes=["pass an array, a list of numbers, or a string"],
            helps=[fix],
        )
    if isinstance(value, str):
        raise_error(
            "E0906",
            f"the input `{escape_text(name)}` expects numbers, not text",
            helps=["pass an array or a list of numbers", *suggest_tokenizer(name)],
        )
    return convert_lists_to_array(value, f"the value of `{name}`", pad_left=pad_left)


def is_image(value: object) -> bool:
    """Return True if a value is a Pillow image or the path of an image file."""
    return isinstance(value, str | Path) or any(
        kind.__module__.startswith("PIL.") and kind.__name__ == "Image"
        for kind in type(value).__mro__
    )


def _is_array_like(value: object) -> bool:
    return any(name in dir(type(value)) for name in ARRAY_PROTOCOLS)


def _iterate_elements(value: object, depth: int) -> Iterator[object]:
    """Yield the elements of nested lists up to `depth` levels deep."""
    for item in value if isinstance(value, list | tuple) else ():
        yield from (
            _iterate_elements(item, depth - 1)
            if isinstance(item, list | tuple) and depth
            else (item,)
        )


def _convert_lists(value: object, name: str) -> object:
    """Convert the arrays in nested lists to lists of numbers."""
    if isinstance(value, list | tuple):
        return [_convert_lists(item, name) for item in value]
    return _convert_array(value, name).tolist() if _is_array_like(value) else value


def _convert_array(value: Any, name: str) -> Array:
    """Convert an array-like object to an array. Raise E0907 if the conversion fails."""
    # do not import numpy.ma, because the import takes longer than the preparation of a prompt
    if type(value).__module__.startswith("numpy.ma") and isinstance(value, np.ma.MaskedArray):
        # reject the array, because NumPy would ignore the mask and use the masked values
        _raise_unsupported_array(
            name,
            "is a masked array, which is not supported",
            "fill it, `array.filled(0)`, and pass the mask as an input",
        )
    methods = dir(type(value))
    _check_nulls(value, methods, name)
    try:
        _check_device(value, methods, name)
        if "detach" in methods:
            value = value.detach()
        # NumPy lacks bf16, so convert to float32, which represents every bf16 value
        if "dtype" in methods and str(value.dtype) == "torch.bfloat16":
            value = value.float()
        array = (
            np.asarray(value)
            if {"__array__", "__array_interface__"} & {*methods}
            else np.from_dlpack(value)
        )
    except SpeccError:
        raise
    except Exception as error:  # other libraries may raise any type of exception
        note = f"{type(value).__name__}: {escape_text(error)[:200]}"
        fix = "convert it yourself: numpy.asarray(…)"
        _raise_unsupported_array(name, "cannot be converted to an array", fix, note)
    return array


def _check_device(value: Any, methods: list[str], name: str) -> None:
    """Raise E0907 if a tensor is not in CPU memory."""
    if "__dlpack_device__" not in methods:
        return
    device_type = int(value.__dlpack_device__()[0])
    if device_type not in DLPACK_HOST_DEVICES:
        _raise_unsupported_array(
            name,
            "is an array on an accelerator, expected an array on the CPU",
            "copy it once: `.cpu()` in PyTorch",
            "specc does not copy it implicitly, because each run would copy it again",
        )


def _check_nulls(value: Any, methods: list[str], name: str) -> None:
    """Raise E0907 if an Arrow column contains nulls."""
    if "null_count" not in methods or not value.null_count:
        return
    _raise_unsupported_array(
        name,
        f"is null in row {value.to_pylist().index(None)}",
        "fill them, `column.fill_null(…)`, or drop these rows",
        f"{value.null_count} of its rows are null",
    )


def _raise_unsupported_array(name: str, problem: str, fix: str, note: str = "") -> NoReturn:
    """Raise E0907 because the value of the input `name` is not a supported array."""
    title = f"the value of `{escape_text(name)}` {problem}"
    raise_error("E0907", title, notes=[note] if note else [], helps=[fix])

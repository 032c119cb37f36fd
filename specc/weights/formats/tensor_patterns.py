"""Patterns of element types and shapes that stored tensors must match: `i32[groups, out]`."""

import re
from collections.abc import Mapping
from typing import TypeAlias

from specc.ir.array import Array

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
    """Why tensors make no weight."""


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

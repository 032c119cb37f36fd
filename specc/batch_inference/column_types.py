"""Types of columns and their values."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from specc.ir.array import Array

NUMBERS = ("f32", "f64", "i64", "u64", "i32", "bool")
OTHERS = ("text", "binary", "json")
"""`json` is any value, written as JSON text where a format has no such thing."""


NULL = "null"
"""Of a column in which nobody has said anything yet."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A value: of the type `of`, in lists of `sizes` from the outside in; None stands
    for any length. `Kind("f32", (None, 8))` is a list of vectors of 8 numbers.
    """

    of: str
    sizes: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        lengths = ", ".join("n" if s is None else str(s) for s in self.sizes)
        return f"{self.of}[{lengths}]" if self.sizes else self.of

    @staticmethod
    def read(text: str) -> "ColumnType":
        """The kind that `str` wrote."""
        of, _, rest = text.partition("[")
        sizes = rest.removesuffix("]").split(", ") if rest else []
        return ColumnType(of, tuple(None if s == "n" else int(s) for s in sizes))


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table."""

    name: str
    kind: ColumnType


def plain_value(value: object) -> Any:
    """A value as Python's own numbers, texts and lists."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def merge_column_types(one: str, other: str) -> str:
    """The kind of a column that holds values of both; "" is that of nothing."""
    if not one or one == other:
        return other
    if not other:
        return one
    return "f64" if {one, other} == {"i64", "f64"} else "json"


def infer_column_type(value: object) -> str:
    """The kind of a value that JSON or a table gave; "" for nothing."""
    match value:
        case None:
            return ""
        case bool():
            return "bool"
        case int() if -(2**63) <= value < 2**63:
            return "i64"
        case float():
            return "f64"
        case str():
            return "text"
        case bytes():
            return "binary"
    return "json"


def cast_to_column_type(value: Array, of: str) -> Array:
    """Numbers of a kind's own type."""
    types = {"f32": "float32", "f64": "float64", "i64": "int64", "i32": "int32"}
    return value.astype(types.get(of, of), copy=False)

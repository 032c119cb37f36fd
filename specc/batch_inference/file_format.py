"""Column types, value conversions, and the interface of data file formats."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from specc.io.json_io import Json
from specc.io.safe_read import (
    UnreadableFileError,
    describe_os_error,
    open_regular_file,
    raise_unreadable_file,
)

NULL_TYPE = "null"
"""The element type of a column that has only null values so far."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column: the element type and the sizes of nested lists, outermost first. The
    size None is variable. Example: `ColumnType("f32", (None, 8))`.
    """

    element_type: str
    list_sizes: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        lengths = ", ".join("n" if s is None else str(s) for s in self.list_sizes)
        return f"{self.element_type}[{lengths}]" if self.list_sizes else self.element_type

    @staticmethod
    def parse(text: str) -> "ColumnType":
        """Parse a column type from its string representation."""
        element_type, _, size_text = text.partition("[")
        sizes = size_text.removesuffix("]").split(", ") if size_text else []
        return ColumnType(element_type, tuple(None if size == "n" else int(size) for size in sizes))


@dataclass(frozen=True, slots=True)
class TableColumn:
    """The name and type of a table column."""

    name: str
    type: ColumnType


def merge_element_types(first: str, second: str) -> str:
    """Return the element type that represents both types; "" is the type of a column of nulls."""
    if not first or first == second:
        return second
    if not second:
        return first
    return "f64" if {first, second} == {"i64", "f64"} else "json"


ELEMENT_TYPES = {type(None): "", bool: "bool", float: "f64", str: "text"}
"""Element types of JSON values other than integers, by Python type; "" is the type of null."""


def infer_element_type(value: Json) -> str:
    """Return the element type of a JSON value, or "" for a null value."""
    if type(value) is int:
        return "i64" if -(2**63) <= value < 2**63 else "json"
    return ELEMENT_TYPES.get(type(value), "json")


ColumnValues: TypeAlias = Mapping[str, Sequence[object]]
"""Columns by name, with one value per row. `UnreadableRow` replaces a value that cannot be read."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """The reason why a row of a data file cannot be read."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """A block of `row_count` consecutive rows from `first_row`. `offset` and `byte_count` locate
    the block in a text file; `row_group` is the block's row group in a Parquet file.
    """

    file_index: int
    first_row: int
    row_count: int
    offset: int = 0
    byte_count: int = 0
    row_group: int = 0


@dataclass
class DataFile(ABC):
    """A data file or image directory. Each file format is a subclass."""

    path: Path

    @abstractmethod
    def read_columns(self) -> tuple[TableColumn, ...]:
        """Return the columns of the file. Raise E0870 to E0873 if the file is invalid."""

    @abstractmethod
    def split_into_blocks(self, file_index: int, max_rows: int) -> list[RowBlock]:
        """Split the rows into blocks of at most `max_rows` rows, with the given `file_index`."""

    @abstractmethod
    def read_block(self, block: RowBlock, columns: Sequence[str]) -> ColumnValues:
        """Read the selected columns of a block of rows."""


READABLE_FILE_HELP = "pass a readable regular file, or a directory of such files"


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """A context manager that converts operating system errors for a file or directory to E0802."""
    try:
        yield
    except OSError as error:
        raise_unreadable_file(path, describe_os_error(error), READABLE_FILE_HELP)


def check_readable(path: Path) -> None:
    """Raise E0802 for a data file that is not readable or not seekable."""
    try:
        descriptor = open_regular_file(path)
    except UnreadableFileError as error:
        raise_unreadable_file(path, error.reason, READABLE_FILE_HELP)
    os.close(descriptor)

"""Define table columns, column types and the interface of data file formats. Read and write Parquet
files (pyarrow, extra [data]).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.json_io import Json
from specc.io.safe_read import (
    UnreadableFileError,
    describe_os_error,
    escape_text,
    open_regular_file,
    raise_unreadable_file_error,
)
from specc.ir.array import Array

NULL_TYPE = "null"
"""The element type of a column that has contained only null values so far."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column: the element type and the sizes of nested lists, outermost first. A size
    of None is variable. Example: `ColumnType("f32", (None, 8))`.
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
    """Return an element type that can represent both types. "" is the type of null columns."""
    if not first or first == second:
        return second
    if not second:
        return first
    return "f64" if {first, second} == {"i64", "f64"} else "json"


ELEMENT_TYPES = {type(None): "", bool: "bool", float: "f64", str: "text"}
"""Element types of JSON values except integers, by Python type. The type of null is ""."""


def infer_element_type(value: Json) -> str:
    """Return the element type of a JSON value, or "" for a null value."""
    if type(value) is int:
        return "i64" if -(2**63) <= value < 2**63 else "json"
    return ELEMENT_TYPES.get(type(value), "json")


ColumnValues: TypeAlias = Mapping[str, Sequence[object]]
"""Table columns, keyed by name, with one value per row. `UnreadableRow` replaces a value that
cannot be read.
"""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """The reason why a row of a data file cannot be read."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """A block of `row_count` consecutive rows, starting at `first_row`. `offset` and `byte_count`
    locate the block in a text file, and `row_group` locates the block in a Parquet file.
    """

    file_index: int
    first_row: int
    row_count: int
    offset: int = 0
    byte_count: int = 0
    row_group: int = 0


@dataclass
class DataFile(ABC):
    """A data file or image directory. Each file format has its own subclass."""

    path: Path

    @abstractmethod
    def read_schema(self) -> tuple[TableColumn, ...]:
        """Return the columns of the file. Raise E0870 to E0873 if the file is invalid."""

    @abstractmethod
    def split_into_blocks(self, file_index: int, max_rows: int) -> list[RowBlock]:
        """Split the rows of file `file_index` into blocks of at most `max_rows` rows."""

    @abstractmethod
    def read_block(self, block: RowBlock, columns: Sequence[str]) -> ColumnValues:
        """Read the selected columns of a block."""


READABLE_FILE_HELP = "pass a readable regular file, or a directory of such files"


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """A context manager that converts operating system errors for a file or directory to E0802."""
    try:
        yield
    except OSError as error:
        raise_unreadable_file_error(path, describe_os_error(error), READABLE_FILE_HELP)


def check_readable(path: Path) -> None:
    """Raise E0802 for a data file that is not readable or not seekable."""
    try:
        descriptor = open_regular_file(path)
    except UnreadableFileError as error:
        raise_unreadable_file_error(path, error.reason, READABLE_FILE_HELP)
    os.close(descriptor)


Arrow: TypeAlias = Any
"""A module or object of pyarrow. pyarrow is optional, so annotations cannot name its types."""


def import_pyarrow() -> Arrow:
    """Import pyarrow and its submodule `parquet`. Raise E0874 if pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise_error(
            "E0874",
            "Parquet requires the package `pyarrow`, which is not installed",
            helps=[
                "pip install -e '.[data]'",
                "or read and write JSON Lines, which requires no package: --output-format jsonl",
            ],
        )
    return pyarrow


ARROW_STRING_TYPES = ("string", "large_string", "string_view")
ARROW_BINARY_TYPES = ("binary", "large_binary", "binary_view")
"""Names of Arrow's binary types."""


@dataclass
class ParquetFile(DataFile):
    """A Parquet file. The most recently read row group is cached for the next block."""

    cached_row_group: tuple[int, tuple[str, ...], Arrow] | None = None

    @cached_property
    def parquet_reader(self) -> Arrow:
        """The open `pyarrow.parquet.ParquetFile`. Raise E0870 if the file is corrupted."""
        try:
            return import_pyarrow().parquet.ParquetFile(self.path)
        except PermissionError:
            # do not report a missing permission as a corrupted file
            raise
        except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
            note = escape_text(str(error).splitlines()[0])[:200]
            self._raise_corrupted("is not a readable Parquet file", note)

    def _raise_corrupted(
        self, problem: str, note: str, fix: str = "check that the file is complete"
    ) -> NoReturn:
        raise_error("E0870", f"`{escape_text(self.path)}` {problem}", notes=[note], helps=[fix])

    def read_schema(self) -> tuple[TableColumn, ...]:
        """Return the columns of the schema. Raise E0870 if two columns have the same name."""
        schema = self.parquet_reader.schema_arrow
        names = schema.names
        if duplicates := [name for name in names if names.count(name) > 1]:
            note = f"duplicate column `{escape_text(duplicates[0])}`"
            self._raise_corrupted("is not a readable Parquet file", note, "rename one of them")
        return tuple(TableColumn(field.name, _infer_column_type(field.type)) for field in schema)

    def split_into_blocks(self, file_index: int, max_rows: int) -> list[RowBlock]:
        """Return blocks of at most `max_rows` rows that do not cross row groups."""
        metadata = self.parquet_reader.metadata
        blocks, first_row = [], 0
        for group in range(metadata.num_row_groups):
            group_rows = metadata.row_group(group).num_rows
            for offset in range(0, group_rows, max_rows):
                row_count = min(max_rows, group_rows - offset)
                blocks.append(
                    RowBlock(
                        file_index=file_index,
                        first_row=first_row + offset,
                        row_count=row_count,
                        offset=offset,
                        row_group=group,
                    )
                )
            first_row += group_rows
        return blocks

    def read_block(self, block: RowBlock, columns: Sequence[str]) -> ColumnValues:
        """Read the selected columns of a block as Python values."""
        key = (block.row_group, tuple(columns))
        if self.cached_row_group is None or self.cached_row_group[:2] != key:
            try:
                table = self.parquet_reader.read_row_group(block.row_group, list(columns))
            except (OSError, ValueError) as error:
                note = escape_text(str(error).splitlines()[0])[:200]
                self._raise_corrupted(f"is corrupted in row group {block.row_group}", note)
            self.cached_row_group = (*key, table)
        rows = self.cached_row_group[2].slice(block.offset, block.row_count)
        return {name: _convert_values(name, rows.column(name)) for name in columns}


def _convert_values(name: str, column: Arrow) -> list[object]:
    """Convert a column to Python objects. If bulk conversion fails, convert each value
    separately.
    """
    with suppress(ValueError, OverflowError):
        if not _has_nanoseconds(column.type):
            return list(column.to_pylist())
    return [_convert_value(name, value) for value in column]


def _has_nanoseconds(type: Arrow) -> bool:
    """Return True for time types in nanoseconds. pyarrow cannot convert these without pandas."""
    types = import_pyarrow().types
    is_time = types.is_timestamp(type) or types.is_duration(type) or types.is_time64(type)
    return bool(is_time) and type.unit == "ns"


def _convert_value(name: str, value: Arrow) -> object:
    """Convert an Arrow value to Python or to a string. Return `UnreadableRow` on failure."""
    if not value.is_valid:
        return None
    with suppress(ValueError, OverflowError):
        if not _has_nanoseconds(value.type):
            return value.as_py()
    with suppress(ValueError, NotImplementedError):
        text = str(value.cast(import_pyarrow().string()).as_py())
        if not text.startswith("<"):  # pyarrow prints `<…>` for a date that is out of range
            return text
    return UnreadableRow(f"`{name}` contains no readable {value.type}")


def _infer_column_type(type: Arrow) -> ColumnType:
    """Return the column type of an Arrow type. Lists of unsupported types have the type `json`."""
    pa = import_pyarrow()
    types = pa.types
    has_fixed_size = types.is_fixed_size_list(type)
    if has_fixed_size or types.is_list(type) or types.is_large_list(type):
        item_type = _infer_column_type(type.value_type)
        size = type.list_size if has_fixed_size else None
        return (
            item_type
            if item_type.element_type == "json"
            else ColumnType(item_type.element_type, (size, *item_type.list_sizes))
        )
    matches = {
        "bool": types.is_boolean(type),
        "u64": types.is_uint64(type),
        "i64": types.is_integer(type),
        "f32": types.is_float32(type) or types.is_float16(type),
        "f64": types.is_float64(type),
        "text": str(type) in ARROW_STRING_TYPES or _has_dictionary(type),
        "binary": str(type) in ARROW_BINARY_TYPES or types.is_fixed_size_binary(type),
    }
    return ColumnType(
        next((element_type for element_type, is_match in matches.items() if is_match), "json")
    )


def _has_dictionary(type: Arrow) -> bool:
    """Return True if an Arrow type contains dictionary-encoded values."""
    types = import_pyarrow().types
    return bool(types.is_dictionary(type) and str(type.value_type) in ARROW_STRING_TYPES)


def encode_parquet(columns: Sequence[TableColumn], values: Mapping[str, Sequence[object]]) -> bytes:
    """Encode rows as a Parquet file with one row group. The encoding is deterministic."""
    pa = import_pyarrow()
    arrays = [_convert_column(column.type, values[column.name]) for column in columns]
    names = [_escape_surrogates(column.name) for column in columns]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(arrays, names=names)
    count = max(table.num_rows, 1)
    pa.parquet.write_table(table, sink, row_group_size=count)
    return bytes(sink.getvalue())


ARROW_TYPES = {
    "f32": "float32",
    "f64": "float64",
    "i32": "int32",
    "i64": "int64",
    "u64": "uint64",
    "bool": "bool_",
    "binary": "binary",
}
"""The name of pyarrow's type function for each element type. Columns of other types contain
strings.
"""


def _make_arrow_type(column_type: ColumnType) -> Arrow:
    pa = import_pyarrow()
    arrow_type = getattr(pa, ARROW_TYPES.get(column_type.element_type, "string"))()
    for size in reversed(column_type.list_sizes):
        arrow_type = pa.list_(arrow_type) if size is None else pa.list_(arrow_type, size)
    return arrow_type


def _convert_column(column_type: ColumnType, values: Sequence[object]) -> Arrow:
    """Convert the values of a column to an Arrow array."""
    pa, arrow_type = import_pyarrow(), _make_arrow_type(column_type)
    python_values: list[Any] = [_nest_array(v) if isinstance(v, np.ndarray) else v for v in values]
    if column_type == ColumnType("f64"):  # a JSON column may contain both integers and floats
        python_values = [None if v is None else float(v) for v in python_values]
    try:
        return pa.array(python_values, type=arrow_type)
    except UnicodeEncodeError:
        return pa.array(_escape_surrogates(python_values), type=arrow_type)


def _nest_array(array: Array) -> object:
    """Convert an array to nested lists of one-dimensional arrays. pyarrow converts these without
    creating a Python object per element.
    """
    if array.ndim > 1:
        return [_nest_array(item) for item in array]
    return array if array.ndim else array.item()


def _escape_surrogates(value: Arrow) -> Arrow:
    """Escape lone surrogates in strings, because UTF-8 cannot encode surrogates."""
    if isinstance(value, list):
        return [_escape_surrogates(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value

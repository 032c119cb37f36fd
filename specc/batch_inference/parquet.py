"""Read and write Parquet files with pyarrow (extra [data])."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, TypeAlias

import numpy as np

from specc.batch_inference.file_format import (
    ColumnType,
    ColumnValues,
    DataFile,
    RowBlock,
    TableColumn,
    UnreadableRow,
    to_python_value,
)
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array

Arrow: TypeAlias = Any
"""A module or object of pyarrow. pyarrow is optional, so annotations do not import it."""


def import_pyarrow(name: str = "pyarrow") -> Arrow:
    """Import a module of pyarrow. Raise E0874 if pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise_error(
            "E0874",
            "Parquet needs the package `pyarrow`, which is not installed",
            helps=[
                "pip install -e '.[data]'",
                "or read and write JSON Lines, which need no package: --output-format jsonl",
            ],
        )
    return pyarrow.parquet if name == "pyarrow.parquet" else pyarrow


ARROW_STRING_TYPES = ("string", "large_string", "string_view")
ARROW_BINARY_TYPES = ("binary", "large_binary", "binary_view")
"""Names of Arrow's binary types."""


@dataclass
class ParquetFile(DataFile):
    """A Parquet file of row groups. The last row group that was read is cached for the next
    block.
    """

    cached_row_group: tuple[int, tuple[str, ...], Arrow] | None = None

    @cached_property
    def arrow_file(self) -> Arrow:
        """Return the open file. Raise E0870 if it is corrupted."""
        try:
            return import_pyarrow("pyarrow.parquet").ParquetFile(self.path)
        except PermissionError:
            raise  # not necessarily a corrupted file
        except (OSError, ValueError) as fault:  # ArrowInvalid is a ValueError
            note = escape_text(str(fault).splitlines()[0])[:200]
            self._raise_damaged("is not a readable Parquet file", note)

    def _raise_damaged(
        self, what: str, note: str, fix: str = "check that the file is complete"
    ) -> NoReturn:
        raise_error("E0870", f"`{escape_text(self.path)}` {what}", notes=[note], helps=[fix])

    def read_columns(self) -> tuple[TableColumn, ...]:
        """Return the columns of the schema. Raise E0870 if two have the same name."""
        schema = self.arrow_file.schema_arrow
        names = schema.names
        if twice := [n for n in names if names.count(n) > 1]:
            note = f"duplicate column `{escape_text(twice[0])}`"
            self._raise_damaged("is not a readable Parquet file", note, "rename one of them")
        return tuple(TableColumn(f.name, _infer_column_type(f.type)) for f in schema)

    def split_into_blocks(self, file_index: int, max_rows: int) -> list[RowBlock]:
        """Return blocks of at most `max_rows` rows that do not cross row groups."""
        metadata = self.arrow_file.metadata
        found, start = [], 0
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            for begin in range(0, count, max_rows):
                some = min(max_rows, count - begin)
                found.append(
                    RowBlock(
                        file_index=file_index,
                        first_row=start + begin,
                        row_count=some,
                        offset=begin,
                        row_group=group,
                    )
                )
            start += count
        return found

    def read_block(self, block: RowBlock, columns: Sequence[str]) -> ColumnValues:
        """Read the selected columns of a block as Python values."""
        key = (block.row_group, tuple(columns))
        if self.cached_row_group is None or self.cached_row_group[:2] != key:
            try:
                table = self.arrow_file.read_row_group(block.row_group, list(columns))
            except (OSError, ValueError) as fault:
                note = escape_text(str(fault).splitlines()[0])[:200]
                self._raise_damaged(f"is corrupted in row group {block.row_group}", note)
            self.cached_row_group = (*key, table)
        part = self.cached_row_group[2].slice(block.offset, block.row_count)
        return {name: _convert_values(name, part.column(name)) for name in columns}


def _convert_values(name: str, column: Arrow) -> list[object]:
    """Convert values to Python objects, one at a time if they cannot be converted in bulk."""
    try:
        if _has_nanoseconds(column.type):
            return [_convert_value(name, value) for value in column]
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_convert_value(name, value) for value in column]


def _has_nanoseconds(type: Arrow) -> bool:
    """Return True if a type contains times in nanoseconds, which pyarrow converts only with
    additional packages.
    """
    types = import_pyarrow().types
    timed = types.is_timestamp(type) or types.is_duration(type) or types.is_time64(type)
    return bool(timed) and type.unit == "ns"


def _convert_value(name: str, value: Arrow) -> object:
    """Convert an Arrow value to a Python value, or to a string if Python has no such type. Return
    `UnreadableRow` if the conversion fails.
    """
    if not value.is_valid:
        return None
    with suppress(ValueError, OverflowError):
        if not _has_nanoseconds(value.type):
            return value.as_py()
    with suppress(ValueError, NotImplementedError):
        text = str(value.cast(import_pyarrow().string()).as_py())
        if not text.startswith("<"):  # a date outside the range of Python's calendar
            return text
    return UnreadableRow(f"`{name}` contains no readable {value.type}")


def _infer_column_type(type: Arrow) -> ColumnType:
    """Return the column type of an Arrow type; lists of other types are `json`."""
    pa = import_pyarrow()
    of = pa.types
    fixed = of.is_fixed_size_list(type)
    if fixed or of.is_list(type) or of.is_large_list(type):
        inner = _infer_column_type(type.value_type)
        size = type.list_size if fixed else None
        return (
            inner
            if inner.element_type == "json"
            else ColumnType(inner.element_type, (size, *inner.list_sizes))
        )
    kinds = {
        "bool": of.is_boolean(type),
        "u64": of.is_uint64(type),
        "i64": of.is_integer(type),
        "f32": of.is_float32(type) or of.is_float16(type),
        "f64": of.is_float64(type),
        "text": str(type) in ARROW_STRING_TYPES or _has_dictionary(type),
        "binary": str(type) in ARROW_BINARY_TYPES or of.is_fixed_size_binary(type),
    }
    return ColumnType(next((kind for kind, fits in kinds.items() if fits), "json"))


def _has_dictionary(type: Arrow) -> bool:
    """Return True if the values of an Arrow type are indices into a dictionary."""
    types = import_pyarrow().types
    return bool(types.is_dictionary(type) and str(type.value_type) in ARROW_STRING_TYPES)


def encode_parquet(columns: Sequence[TableColumn], values: Mapping[str, Sequence[object]]) -> bytes:
    """Encode rows as a Parquet file with one row group. The bytes are deterministic."""
    pa = import_pyarrow()
    arrays = [_convert_column(c.type, values[c.name]) for c in columns]
    names = [_decode_utf8(c.name) for c in columns]
    schema = pa.schema([(n, a.type) for n, a in zip(names, arrays, strict=True)])
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(arrays, schema=schema)
    count = max(table.num_rows, 1)
    import_pyarrow("pyarrow.parquet").write_table(table, sink, row_group_size=count)
    return bytes(sink.getvalue())


def _make_arrow_type(column_type: ColumnType) -> Arrow:
    pa = import_pyarrow()
    text = pa.string()
    numbers = {"f32": pa.float32(), "f64": pa.float64(), "i32": pa.int32()}
    whole = {"i64": pa.int64(), "u64": pa.uint64()}
    others = {"bool": pa.bool_(), "binary": pa.binary()}
    made = (numbers | whole | others).get(column_type.element_type, text)
    for size in reversed(column_type.list_sizes):
        made = pa.list_(made) if size is None else pa.list_(made, size)
    return made


def _convert_column(column_type: ColumnType, values: Sequence[object]) -> Arrow:
    """Convert the values of a column to an Arrow array."""
    lists = _convert_arrays_to_lists(column_type, values)
    if lists is not None:
        return lists
    plain = [to_python_value(v) for v in values]
    if column_type == ColumnType("f64"):  # integers and floats of a JSON file
        plain = [None if v is None else float(v) for v in plain]
    try:
        return import_pyarrow().array(plain, type=_make_arrow_type(column_type))
    except UnicodeEncodeError:
        return import_pyarrow().array(
            [_decode_utf8(v) for v in plain], type=_make_arrow_type(column_type)
        )


def _convert_arrays_to_lists(column_type: ColumnType, values: Sequence[object]) -> Arrow | None:
    """Convert arrays and nulls to Arrow lists, or return None for other values."""
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    is_null = [v is None for v in values]
    if not arrays or not column_type.list_sizes or len(arrays) + sum(is_null) < len(values):
        return None
    # a null in a list of fixed size still occupies elements
    is_null_free = column_type.list_sizes[0] is None or not any(is_null)
    return _convert_lists(column_type, arrays, is_null) if is_null_free else None


def _decode_utf8(value: Arrow) -> Arrow:
    """Escape lone surrogates in strings, which UTF-8 cannot encode."""
    if isinstance(value, list):
        return [_decode_utf8(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _convert_lists(
    column_type: ColumnType, arrays: Sequence[Array], is_null: Sequence[bool]
) -> Arrow:
    """Convert arrays to nested Arrow lists without Python objects; rows where `is_null` is true
    become null.
    """
    pa = import_pyarrow()
    flat = np.concatenate([array.ravel() for array in arrays])
    made = pa.array(flat, type=_make_arrow_type(ColumnType(column_type.element_type)))
    for axis in reversed(range(1, len(column_type.list_sizes))):
        lengths = [np.repeat(a.shape[axis], math.prod(a.shape[:axis])) for a in arrays]
        made = _split_lists(made, column_type.list_sizes[axis], np.concatenate(lengths), None)
    outer = iter([len(array) for array in arrays])
    rows = np.array([0 if none else next(outer) for none in is_null])
    mask = pa.array(is_null) if any(is_null) else None
    return _split_lists(made, column_type.list_sizes[0], rows, mask)


def _split_lists(values: Arrow, size: int | None, lengths: Array, mask: Arrow) -> Arrow:
    """Group flat values into Arrow lists of fixed `size` or of the given lengths."""
    pa = import_pyarrow()
    if size is not None:
        return pa.FixedSizeListArray.from_arrays(values, size)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), type=pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=mask)

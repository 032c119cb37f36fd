"""Parquet, through pyarrow (the extra [data]), found where such a file is read or
written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specc.files.read import shown
from specc.ir.array import Array
from specc.map.formats.source import Block, Rows
from specc.map.kinds import Column, Kind, plain_value
from specc.text.diagnostic import fail


def arrow(name: str = "pyarrow") -> Any:
    """A module of pyarrow. E0874 where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        fail(
            "E0874",
            "Parquet needs the package `pyarrow`, which is not installed",
            helps=[
                'pip install "specc[data]"',
                "or read and write JSON lines, which need nothing: --to jsonl",
            ],
        )
    return pyarrow.parquet if name == "pyarrow.parquet" else pyarrow


@dataclass
class Parquet:
    """A file of row groups. The group that was read last is kept for the next block."""

    opened: dict[Path, Any] = field(default_factory=dict)
    group: tuple[Path, int, tuple[str, ...], Any] | None = None

    def _file(self, path: Path) -> Any:
        if path not in self.opened:
            try:
                self.opened[path] = arrow("pyarrow.parquet").ParquetFile(path)
            except (OSError, ValueError) as fault:  # ArrowInvalid is a ValueError
                fail(
                    "E0870",
                    f"`{shown(str(path))}` is no Parquet file that can be read",
                    notes=[shown(str(fault).splitlines()[0])[:200]],
                    helps=["check that the file is whole"],
                )
        return self.opened[path]

    def columns(self, path: Path) -> tuple[Column, ...]:
        """The columns of its schema."""
        schema = self._file(path).schema_arrow
        return tuple(Column(f.name, _kind(f.type)) for f in schema)

    def blocks(self, path: Path, file: int, rows: int) -> list[Block]:
        """Blocks of at most `rows` rows, none across two groups."""
        metadata = self._file(path).metadata
        found, start = [], 0
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            for begin in range(0, count, rows):
                some = min(rows, count - begin)
                found.append(
                    Block(
                        file=file,
                        start=start + begin,
                        rows=some,
                        at=begin,
                        group=group,
                    )
                )
            start += count
        return found

    def read(self, path: Path, block: Block, columns: Sequence[str]) -> Rows:
        """Some columns of a block, as Python values."""
        key = (path, block.group, tuple(columns))
        if self.group is None or self.group[:3] != key:
            try:
                table = self._file(path).read_row_group(block.group, list(columns))
            except (OSError, ValueError) as fault:
                fail(
                    "E0870",
                    f"`{shown(str(path))}` is damaged in row group {block.group}",
                    notes=[shown(str(fault).splitlines()[0])[:200]],
                    helps=["check that the file is whole"],
                )
            self.group = (*key, table)
        part = self.group[3].slice(block.at, block.rows)
        return {name: part.column(name).to_pylist() for name in columns}


def _kind(type: Any) -> Kind:
    """What values of an Arrow type are here."""
    pa = arrow()
    of = pa.types
    if of.is_fixed_size_list(type):
        inner = _kind(type.value_type)
        return Kind(inner.of, (type.list_size, *inner.sizes))
    if of.is_list(type) or of.is_large_list(type):
        inner = _kind(type.value_type)
        return Kind(inner.of, (None, *inner.sizes))
    kinds = {
        "bool": of.is_boolean(type),
        "i64": of.is_integer(type),
        "f32": of.is_float32(type) or of.is_float16(type),
        "f64": of.is_float64(type),
        "text": of.is_string(type) or of.is_large_string(type) or _texts(type),
        "binary": of.is_binary(type) or of.is_large_binary(type),
    }
    return Kind(next((kind for kind, fits in kinds.items() if fits), "json"))


def _texts(type: Any) -> bool:
    """Whether values are numbers of texts in a table of their own."""
    types = arrow().types
    return bool(types.is_dictionary(type) and types.is_string(type.value_type))


def table_bytes(
    columns: Sequence[Column], rows: Mapping[str, Sequence[object]]
) -> bytes:
    """A Parquet file of one row group, the same bytes for the same rows."""
    pa = arrow()
    arrays = [_column(c.kind, rows[c.name]) for c in columns]
    schema = pa.schema([(c.name, a.type) for c, a in zip(columns, arrays, strict=True)])
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(arrays, schema=schema)
    count = max(table.num_rows, 1)
    arrow("pyarrow.parquet").write_table(table, sink, row_group_size=count)
    return bytes(sink.getvalue())


def _type(kind: Kind) -> Any:
    pa = arrow()
    text = pa.string()
    numbers = {"f32": pa.float32(), "f64": pa.float64(), "i32": pa.int32()}
    others = {"i64": pa.int64(), "bool": pa.bool_(), "binary": pa.binary()}
    made = (numbers | others).get(kind.of, text)
    for size in reversed(kind.sizes):
        made = pa.list_(made) if size is None else pa.list_(made, size)
    return made


def _column(kind: Kind, values: Sequence[object]) -> Any:
    """Values of a kind as an Arrow array; nothing is null."""
    pa = arrow()
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    vectors = len(kind.sizes) == 1 and kind.sizes[0] is not None
    if vectors and arrays and len(arrays) == len(values):
        return _vectors(kind, arrays)
    return pa.array([plain_value(v) for v in values], type=_type(kind))


def _vectors(kind: Kind, values: Sequence[Array]) -> Any:
    """Vectors of one length without a detour over Python's numbers."""
    pa = arrow()
    flat = pa.array(np.concatenate(values), type=_type(Kind(kind.of)))
    return pa.FixedSizeListArray.from_arrays(flat, kind.sizes[0])

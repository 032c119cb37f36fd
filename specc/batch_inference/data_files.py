"""Readers of data files: text files, JSON Lines, CSV files, and image directories."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from specc.batch_inference.columns_and_parquet import (
    NULL_TYPE,
    ColumnType,
    ColumnValues,
    DataFile,
    ParquetFile,
    RowBlock,
    TableColumn,
    UnreadableRow,
    check_readable,
    infer_element_type,
    merge_element_types,
    translate_os_errors,
)
from specc.diagnostics.diagnostic import raise_error
from specc.io.json_io import Json, JsonLimits, parse_strict_json
from specc.io.safe_read import escape_text, raise_unreadable_file_error

MAX_ROW_BYTES = 64 * 2**20
"""Maximum size of a row in bytes, which limits the memory used for files without line breaks."""

ROW_JSON_LIMITS = JsonLimits(max_depth=200, max_integer=None)
"""Limits on JSON values in rows: at most 200 nesting levels, and integers of any size."""

QUOTED_VALUE = re.compile(rb'(?:^|,)"(?:[^"]|"")*("?)')
"""Pattern of a quoted CSV value. The group contains the closing quote, or is "" if the quote is not
closed.
"""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The UTF-8 byte order mark."""


class FileLine(NamedTuple):
    """A line of a file: the bytes including the line end, and the file offset of the next line."""

    data: bytes
    next_offset: int


def read_lines(path: Path) -> Iterator[FileLine]:
    """Yield the lines of a file, including blank lines. Raise E0871 if a line is too long."""
    with path.open("rb") as file:
        offset = 0
        while data := file.readline(MAX_ROW_BYTES + 1):
            if len(data) > MAX_ROW_BYTES:
                raise_error(
                    "E0871",
                    f"a row of `{escape_text(path)}` is larger than {MAX_ROW_BYTES >> 20} MB",
                    helps=["check that it is a text file; each row must end with a newline"],
                )
            offset += len(data)
            yield FileLine(
                data.removeprefix(BYTE_ORDER_MARK) if offset == len(data) else data, offset
            )


def split_lines_into_blocks(
    lines: Iterator[FileLine],
    file_index: int,
    max_rows: int,
    start_offset: int = 0,
    is_row: Callable[[bytes], object] = bool,
) -> list[RowBlock]:
    """Split the lines from `start_offset` that satisfy `is_row` into blocks of `max_rows` rows."""
    marks = ((bool(is_row(line.data)), line.next_offset) for line in lines)
    blocks, first_row, offset = list[RowBlock](), 0, start_offset
    while chunk := list(islice(marks, max_rows)):
        block = RowBlock(
            file_index=file_index,
            first_row=first_row,
            row_count=sum(has_row for has_row, _ in chunk),
            offset=offset,
            byte_count=chunk[-1][1] - offset,
        )
        blocks.append(block)
        first_row, offset = first_row + block.row_count, offset + block.byte_count
    return [block for block in blocks if block.row_count]


def read_block_bytes(path: Path, block: RowBlock) -> bytes:
    """Return a block's bytes without a leading byte order mark."""
    with path.open("rb") as file:
        file.seek(block.offset)
        data = file.read(block.byte_count)
    return data.removeprefix(BYTE_ORDER_MARK) if block.offset == 0 else data


def _read_block_lines(path: Path, block: RowBlock) -> list[bytes]:
    """Read the lines of a block. Strip line ends, and omit an empty last line."""
    return [line.rstrip(b"\r\n") for line in io.BytesIO(read_block_bytes(path, block))]


class TextFile(DataFile):
    """A text file with one row per line, in the column `text`."""

    def read_schema(self) -> tuple[TableColumn, ...]:
        """Return the column `text`."""
        return (TableColumn("text", ColumnType("text")),)

    def split_into_blocks(self, file_index: int, max_rows: int) -> list[RowBlock]:
        """Split the file into blocks of lines."""
        return split_lines_into_blocks(read_lines(self.path), file_index, max_rows)

    def read_block(self, block: RowBlock, columns: Sequence[str]) -> ColumnValues:
        """Return the lines of a block as the column `text`."""
        return {"text": [_decode_text(line) for line in _read_block_lines(self.path, block)]}


def _decode_text(line: bytes) -> str | UnreadableRow:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        return UnreadableRow(f"the line is not UTF-8 at byte {error.start}")


class JsonLinesFile(DataFile):
    """A JSON Lines file. Blank lines are skipped."""

    def read_schema(self) -> tuple[TableColumn, ...]:
        """Return the keys of all objects as columns. The type of a column can represent all values
        of the column.
        """
        element_types: dict[str, str] = {}
        previous_types: dict[str, type] = {}
        for line in read_lines(self.path):
            value = _parse_object(line.data) if line.data.strip() else {}
            for name, item in ({} if isinstance(value, UnreadableRow) else value).items():
                # most values have the type of the previous row; check all integers, because large
                # integers have a different type
                if previous_types.get(name) is type(item) is not int:
                    continue
                previous_types[name] = type(item)
                element_types[name] = merge_element_types(
                    element_types.get(name, ""), infer_element_type(item)
                )
        return tuple(
            TableColumn(name, ColumnType(element_type or NULL_TYPE))
            for name, element_type in element_types.items()
        )

    def split_into_blocks(self, file_index: int, max_rows: int) -> list[RowBlock]:
        """Split the file into blocks of objects. Blank lines belong to the preceding block."""
        return split_lines_into_blocks(
            read_lines(self.path), file_index, max_rows, is_row=bytes.strip
        )

    def read_block(self, block: RowBlock, columns: Sequence[str]) -> ColumnValues:
        """Read the objects of a block as columns. Missing keys become null."""
        lines = _read_block_lines(self.path, block)
        return _collect_columns([_parse_object(line) for line in lines if line.strip()], columns)


def _collect_columns(
    rows: Sequence[Mapping[str, object] | UnreadableRow], columns: Sequence[str]
) -> ColumnValues:
    """Return the values of all rows in the selected columns."""
    return {
        name: [row if isinstance(row, UnreadableRow) else row.get(name) for row in rows]
        for name in columns
    }


def _parse_object(line: bytes) -> dict[str, Json] | UnreadableRow:
    text = _decode_text(line)
    if isinstance(text, UnreadableRow):
        return text
    try:
        value = parse_strict_json(text, ROW_JSON_LIMITS)
    except json.JSONDecodeError as error:
        return UnreadableRow(f"the line is not JSON: {error.msg.lower()} at character {error.pos}")
    except ValueError as error:
        return UnreadableRow(f"the line is not JSON: {error}")
    return value if isinstance(value, dict) else UnreadableRow("the line is not a JSON object")


class CsvFile(DataFile):
    """A CSV file with column names in the first row. Quoted values may span several lines."""

    def read_schema(self) -> tuple[TableColumn, ...]:
        """Read the column names from the first row."""
        names, _ = self._read_header()
        return tuple(TableColumn(name, ColumnType("text")) for name in names)

    def _read_header(self) -> tuple[list[str], int]:
        """Return the column names and the offset of the first data row. Raise E0872 if the column
        names are invalid.
        """
        record = next(_join_lines(read_lines(self.path)), None)
        try:
            text = "" if record is None else record.data.decode("utf-8")
            names = _read_fields(text.rstrip("\r\n"))
        except (UnicodeDecodeError, csv.Error):
            names = []
        if record is None or not all(names) or len(set(names)) < len(names) or not names:
            raise_error(
                "E0872",
                f"the first row of `{escape_text(self.path)}` is not a valid list of column names",
                notes=["column names must be unique and not empty"],
                helps=["write the column names as the first row"],
            )
        return names, record.next_offset

    def split_into_blocks(self, file_index: int, max_rows: int) -> list[RowBlock]:
        """Split the records after the header row into blocks."""
        _, start_offset = self._read_header()
        records = _join_lines(read_lines(self.path))
        next(records)
        return split_lines_into_blocks(records, file_index, max_rows, start_offset)

    def read_block(self, block: RowBlock, columns: Sequence[str]) -> ColumnValues:
        """Read the records of a block as columns of strings."""
        names, _ = self._read_header()
        lines = io.BytesIO(read_block_bytes(self.path, block))
        records = _join_lines(FileLine(line, 0) for line in lines)
        rows = [_read_values(record.data.rstrip(b"\r\n"), names) for record in records]
        return _collect_columns(rows, columns)


def _join_lines(lines: Iterator[FileLine]) -> Iterator[FileLine]:
    """Yield records. A record with quoted line breaks spans several lines."""
    parts, end_offset, size, is_in_quote = list[bytes](), 0, 0, False
    for line in lines:
        if not is_in_quote and not line.data.strip(b"\r\n"):
            continue
        parts.append(line.data)
        end_offset, size = line.next_offset, size + len(line.data)
        is_in_quote = _has_open_quote(line.data, is_in_quote)
        if not is_in_quote:
            yield FileLine(b"".join(parts), end_offset)
            parts, size = [], 0
        elif size > MAX_ROW_BYTES:
            break  # the quote is not closed: the rest of the file is one invalid row
    if parts:
        yield FileLine(b"".join(parts), end_offset)


def _has_open_quote(line: bytes, starts_in_quote: bool) -> bool:
    """Return True if a quoted value of the line continues on the next line."""
    closing_quotes = [
        match[1] for match in QUOTED_VALUE.finditer(b'"' + line if starts_in_quote else line)
    ]
    return bool(closing_quotes) and not closing_quotes[-1]


def _read_values(record: bytes, names: Sequence[str]) -> dict[str, str] | UnreadableRow:
    text = _decode_text(record)
    if isinstance(text, UnreadableRow):
        return text
    try:
        values = _read_fields(text)
    except csv.Error as error:
        return UnreadableRow(f"the row cannot be read: {error}")
    if len(values) != len(names):
        return UnreadableRow(f"the row has {len(values)} values, expected {len(names)}")
    return dict(zip(names, values, strict=True))


def _read_fields(text: str) -> list[str]:
    csv.field_size_limit(MAX_ROW_BYTES)
    return next(csv.reader([text], strict=True), [""])


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def find_image_files(directory: Path) -> list[Path]:
    """Return the image files in a directory and its subdirectories, sorted by path."""
    paths = (path for path in directory.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    return sorted((path for path in paths if path.is_file()), key=lambda path: path.as_posix())


class ImageDirectory(DataFile):
    """A directory of images as a table with the columns `image` (file) and `path` (relative
    path).
    """

    def read_schema(self) -> tuple[TableColumn, ...]:
        """Return the columns `image` and `path`."""
        return TableColumn("image", ColumnType("text")), TableColumn("path", ColumnType("text"))

    def split_into_blocks(self, file_index: int, max_rows: int) -> list[RowBlock]:
        """Split the images into blocks of consecutive files."""
        count = len(find_image_files(self.path))
        return [
            RowBlock(file_index=file_index, first_row=start, row_count=min(max_rows, count - start))
            for start in range(0, count, max_rows)
        ]

    def read_block(self, block: RowBlock, columns: Sequence[str]) -> ColumnValues:
        """Return the paths of the images in a block as the columns `image` and `path`."""
        paths = find_image_files(self.path)[block.first_row : block.first_row + block.row_count]
        return {
            "image": [str(path) for path in paths],
            "path": [path.relative_to(self.path).as_posix() for path in paths],
        }


FILE_FORMATS: dict[str, type[DataFile]] = {
    ".parquet": ParquetFile,
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".csv": CsvFile,
    ".txt": TextFile,
}


def open_data_file(path: Path) -> DataFile:
    """Return a reader for a data file or image directory. Raise E0873 for an unknown extension."""
    if path.is_dir():
        return ImageDirectory(path)
    file_class = FILE_FORMATS.get(path.suffix.lower())
    if file_class is None:
        raise_error(
            "E0873",
            f"`{escape_text(path)}` has an unsupported file format",
            notes=[f"expected an extension of {', '.join(FILE_FORMATS)}, or a directory of images"],
            helps=["rename or convert the file"],
        )
    return file_class(path)


def find_data_files(paths: Sequence[str]) -> list[Path]:
    """Return the data files and image directories of a job, in the order of `paths`. Raise E0802 if
    a file is not readable, and E0873 if a directory contains neither tables nor images.
    """
    data_files: list[Path] = []
    for name in paths:
        path = Path(name)
        with translate_os_errors(path):
            # an empty name is not a path, although `Path("")` is the working directory
            if not name or not path.exists():
                fix = "pass a table file, or a directory that contains tables or images"
                raise_unreadable_file_error(name, "no such file or directory", fix)
            files_of_path = _list_directory_files(path) if path.is_dir() else [path]
        for file in files_of_path:
            if not file.is_dir():
                open_data_file(file)  # report an unsupported suffix before other errors
                check_readable(file)
        data_files += files_of_path
    return data_files


def _list_directory_files(directory: Path) -> list[Path]:
    tables = sorted(
        p
        for p in directory.iterdir()
        if p.suffix.lower() in FILE_FORMATS and p.name[0] not in "._" and p.is_file()
    )
    if tables:
        return tables
    if not find_image_files(directory):
        raise_error(
            "E0873",
            f"the directory `{escape_text(directory)}` contains neither tables nor images",
            notes=[f"tables have the extension {', '.join(FILE_FORMATS)}"],
            helps=["pass the paths of the files"],
        )
    return [directory]

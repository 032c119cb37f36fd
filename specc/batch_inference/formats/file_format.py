"""The interface of a data set format; image directories."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol, TypeAlias

from specc.batch_inference.column_types import ColumnType, TableColumn
from specc.diagnostics.diagnostic import raise_error
from specc.io.output_paths import describe_os_error
from specc.io.safe_read import UnreadableFile, escape_text, open_regular_file

Rows: TypeAlias = Mapping[str, Sequence[object]]
"""Columns by name, each with a value a row. A value that cannot be read is a `BadRow`."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """Why a row cannot be read."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Some neighboring rows of a file: `rows` of them behind `start`.

    `at` and `bytes` are where they stand in a file of text, `group` which group of a
    columnar one they are in.
    """

    file: int
    start: int
    rows: int
    at: int = 0
    bytes: int = 0
    group: int = 0


class FileFormat(Protocol):
    """Reads one kind of file."""

    def columns(self, path: Path) -> tuple[TableColumn, ...]:
        """The columns of a file. E0870 to E0873 for one that is damaged."""
        ...

    def blocks(self, path: Path, file: int, rows: int) -> list[RowBlock]:
        """The blocks of a file, of at most `rows` rows."""
        ...

    def read(self, path: Path, block: RowBlock, columns: Sequence[str]) -> Rows:
        """Some columns of a block."""
        ...


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Turns what the system says of a file or a folder into E0802, whatever it says."""
    try:
        yield
    except OSError as error:
        _unreadable(path, describe_os_error(error))


def check_readable(path: Path) -> None:
    """E0802 for what is no file that can be read from its beginning as often as it takes."""
    try:
        descriptor = open_regular_file(path)
    except UnreadableFile as fault:
        _unreadable(path, fault.reason)
    os.close(descriptor)


def _unreadable(path: Path, why: str) -> NoReturn:
    raise_error(
        "E0802",
        f"cannot read `{escape_text(str(path))}`: {why}",
        helps=["give a regular file that you may read, or a folder of such files"],
    )


ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def find_images(folder: Path) -> list[Path]:
    """The pictures in a folder and those below it, sorted by path."""
    found = (p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS)
    return sorted((p for p in found if p.is_file()), key=lambda p: p.as_posix())


class ImageDirectory:
    """`image` is the file to be read, `path` its path below the folder."""

    def columns(self, path: Path) -> tuple[TableColumn, ...]:
        """The two columns."""
        return TableColumn("image", ColumnType("text")), TableColumn("path", ColumnType("text"))

    def blocks(self, path: Path, file: int, rows: int) -> list[RowBlock]:
        """Blocks of neighboring pictures."""
        count = len(find_images(path))
        return [
            RowBlock(file=file, start=start, rows=min(rows, count - start))
            for start in range(0, count, rows)
        ]

    def read(self, path: Path, block: RowBlock, columns: Sequence[str]) -> Rows:
        """The paths of a block."""
        some = find_images(path)[block.start : block.start + block.rows]
        return {
            "image": [str(p) for p in some],
            "path": [p.relative_to(path).as_posix() for p in some],
        }

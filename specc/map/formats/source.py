"""What every format can do, and which one a file has."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol, TypeAlias

from specc.files.place import words
from specc.files.read import Unreadable, open_regular, shown
from specc.map.kinds import Column
from specc.text.diagnostic import fail

Rows: TypeAlias = Mapping[str, Sequence[object]]
"""Columns by name, each with a value a row. A value that cannot be read is a `Bad`."""


@dataclass(frozen=True, slots=True)
class Bad:
    """Why a row cannot be read."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
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


class Format(Protocol):
    """Reads one kind of file."""

    def columns(self, path: Path) -> tuple[Column, ...]:
        """The columns of a file. E0870 to E0873 for one that is damaged."""
        ...

    def blocks(self, path: Path, file: int, rows: int) -> list[Block]:
        """The blocks of a file, of at most `rows` rows."""
        ...

    def read(self, path: Path, block: Block, columns: Sequence[str]) -> Rows:
        """Some columns of a block."""
        ...


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what the system says of a file or a folder into E0802, whatever it says."""
    try:
        yield
    except OSError as error:
        _unreadable(path, words(error))


def check_readable(path: Path) -> None:
    """E0802 for what is no file that can be read from its beginning as often as it takes."""
    try:
        descriptor = open_regular(path)
    except Unreadable as fault:
        _unreadable(path, fault.reason)
    os.close(descriptor)


def _unreadable(path: Path, why: str) -> NoReturn:
    fail(
        "E0802",
        f"cannot read `{shown(str(path))}`: {why}",
        helps=["give a regular file that you may read, or a folder of such files"],
    )

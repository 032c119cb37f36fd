"""What every format can do, and which one a file has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from specc.map.kinds import Column

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

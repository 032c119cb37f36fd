"""The files that `specc run` writes beside what it prints."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from specc.input import shown
from specc.ours import MARK
from specc.output import atomic_write
from specc.place import ARRAYS, PICTURE, Kind, place


@dataclass(frozen=True)
class Outputs:
    """A picture of attention and an .npz of the results, where they were asked for, over none of the `inputs`.

    `scope` is a pattern that says which attention the picture is of.
    """

    attention: str
    arrays: str
    inputs: Sequence[Path]
    force: bool
    scope: str = ""

    def check(self) -> None:
        """Refuses what cannot be written before anything is computed."""
        for path, kind in ((self.attention, PICTURE), (self.arrays, ARRAYS)):
            if path:
                self._place(path, kind)

    def pictures(self, named: Iterable[tuple[str, bytes]]) -> None:
        """Results that are pictures, in the folder the user is in."""
        for name, png in named:
            self._write(name, PICTURE, png)

    def looked(self, png: bytes) -> None:
        """The picture of attention."""
        self._write(self.attention, PICTURE, png)

    def save(self, results: Mapping[str, Any]) -> None:
        """An .npz with a fixed date, so that equal results are equal files, and our mark."""
        if not self.arrays:
            return
        buffer = BytesIO()
        np.savez(buffer, **results)
        with ZipFile(buffer, "a") as archive:
            archive.comment = MARK.encode()
        self._write(self.arrays, ARRAYS, buffer.getvalue())

    def _place(self, path: str, kind: Kind) -> Path:
        return place(path, kind, inputs=self.inputs, force=self.force)

    def _write(self, path: str, kind: Kind, content: bytes) -> None:
        atomic_write(self._place(path, kind), [content])
        print(f"{shown(path)} written", file=sys.stderr)

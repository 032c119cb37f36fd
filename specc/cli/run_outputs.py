"""What `specc run` prints of texts, what it remarks, and the files that it writes beside."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from specc.files.ours import MARK
from specc.files.place import ARRAYS, PICTURE, Kind, place
from specc.files.read import shown
from specc.files.write import atomic_write
from specc.run.attention import Look
from specc.run.generation import Result
from specc.text.diagnostic import fail


@dataclass(frozen=True)
class Outputs:
    """A picture of attention and an .npz of the results, where they were asked for,
    over none of the `inputs`.

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

    def looked(self, seen: Look) -> None:
        """The picture of attention."""
        if seen.left_out:
            say(seen.left_out)
        self._write(self.attention, PICTURE, seen.png)

    def save(self, results: Mapping[str, Any]) -> None:
        """An .npz with a fixed date, so that equal results are equal files, and our mark."""
        if not self.arrays:
            return
        buffer = BytesIO()
        np.savez(buffer, **results)
        # The mark says that the file may be replaced by a later run without being
        # asked.
        with ZipFile(buffer, "a") as archive:
            archive.comment = MARK.encode()
        self._write(self.arrays, ARRAYS, buffer.getvalue())

    def _place(self, path: str, kind: Kind) -> Path:
        return place(path, kind, inputs=self.inputs, force=self.force)

    def _write(self, path: str, kind: Kind, content: bytes) -> None:
        atomic_write(self._place(path, kind), [content])
        print(f"{shown(path)} written", file=sys.stderr)


def outputs_of(given: Namespace, inputs: Sequence[Path]) -> Outputs:
    """What the options ask for. E0753 for the scope of a picture that nobody wants."""
    if given.scope and not given.attention:
        fail(
            "E0753",
            "`--scope` says which attention to draw, and none is to be drawn",
            helps=["add --attention OUT.png"],
        )
    return Outputs(
        attention=given.attention,
        arrays=given.output,
        inputs=inputs,
        force=given.force,
        scope=given.scope,
    )


def say(remark: str) -> None:
    """A note on stderr, where it does not mix with results."""
    print(f"note: {remark}", file=sys.stderr)


def print_results(results: Sequence[Sequence[Result]]) -> None:
    """A line a text, behind its score where there are several of one prompt."""
    for row in results:
        for result in row:
            score = ""
            if result.score is not None and len(row) > 1:
                # without the sign of a zero, which would be printed
                rounded = 0.0 if abs(result.score) < 5e-5 else result.score
                score = f"{rounded:8.4f}  "
            text = " ".join(map(str, result.tokens))
            if result.text is not None:
                text = shown(result.text, keep="\n\t")
            print(f"{score}{text}")

"""What `specc run` prints of texts, what it remarks, and the files that it writes beside."""

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from specc.cli.messages import done, remark
from specc.data.pictures.raster import need_pillow
from specc.files.ours import MARK
from specc.files.place import ARRAYS, LOOK, PICTURE, Kind, place
from specc.files.read import shown
from specc.files.write import atomic_write
from specc.run.attention import Look
from specc.run.attention_choice import Choice, numbers
from specc.run.attention_picture import picture_of
from specc.run.generation import Result
from specc.text.diagnostic import fail


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """A picture of attention and an .npz of the results, where they were asked for,
    over none of the `inputs`.

    `choice` says which attention the picture is of, `log` that its colors go by powers
    of ten.
    """

    attention: str
    arrays: str
    inputs: Sequence[Path]
    force: bool
    choice: Choice = field(default_factory=Choice)
    log: bool = False

    def check(self) -> None:
        """Refuses what cannot be written before anything is computed."""
        for path, kind in ((self.attention, LOOK), (self.arrays, ARRAYS)):
            if path:
                self._place(path, kind)
        if self.attention.lower().endswith(".png"):
            need_pillow()

    def pictures(self, named: Iterable[tuple[str, bytes]]) -> None:
        """Results that are pictures, in the folder the user is in."""
        for name, png in named:
            self._write(name, PICTURE, png)

    def looked(self, seen: Look) -> None:
        """The picture of attention, in the format that its name asks for."""
        form = Path(self.attention).suffix.lower()
        picture = picture_of(seen, form, self.choice, log=self.log)
        for note in picture.remarks:
            remark(note)
        self._write(self.attention, LOOK, picture.content)

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
        done(f"{shown(path)} written", aside=True)


def outputs_of(given: Namespace, inputs: Sequence[Path]) -> Outputs:
    """What the options ask for. E0753 for the scope of a picture that nobody wants."""
    which = ("scope", "layers", "heads", "log")
    told = [name for name in which if vars(given)[name]]
    if told and not given.attention:
        fail(
            "E0753",
            f"`--{told[0]}` says how to draw attention, and none is to be drawn",
            helps=["add --attention OUT.html"],
        )
    return Outputs(
        attention=given.attention,
        arrays=given.output,
        inputs=inputs,
        force=given.force,
        choice=Choice(
            scope=given.scope,
            layers=numbers(given.layers, "--layers") if given.layers else (),
            heads=numbers(given.heads, "--heads") if given.heads else (),
        ),
        log=given.log,
    )


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

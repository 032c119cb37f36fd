"""Print and write the outputs of `specc run`; JSON form of arrays and texts."""

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from specc.cli.terminal import print_done, print_note
from specc.diagnostics.diagnostic import raise_error
from specc.drawing.png import require_pillow
from specc.io.atomic_write import write_file_atomically
from specc.io.file_signatures import PRODUCER_NAME
from specc.io.output_paths import (
    ARRAYS_OUTPUT,
    ATTENTION_PLOT_OUTPUT,
    IMAGE_OUTPUT,
    OutputKind,
    resolve_output_path,
)
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.runtime.attention_selection import AttentionSelection, parse_number_list
from specc.runtime.attention_views import AttentionRun, render_attention
from specc.runtime.generation import GenerationResult

MOST_NUMBERS = 100_000
"""Numbers of an array that are printed; larger ones are written with `-o`."""


def array_as_json(array: Array) -> dict[str, object]:
    """An array with its type and shape; `values` is null where it is too large to print."""
    few = array.size <= MOST_NUMBERS
    # low-precision dtypes have no JSON form
    plain = array.astype("float64") if array.dtype.kind not in "biufU" else array
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "values": plain.tolist() if few else None,
    }


def text_as_json(result: GenerationResult) -> dict[str, object]:
    """A text that was written, or its tokens where the model has none."""
    return {
        "text": result.text,
        "tokens": [int(token) for token in result.tokens],
        "score": None if result.score is None else float(result.score),
        "complete": result.complete,
    }


@dataclass(frozen=True, kw_only=True)
class RunOutputs:
    """A picture of attention and an .npz of the results, where they were asked for,
    over none of the `inputs`.

    `choice` says which attention the picture is of, `log` that its colors go by powers
    of ten.
    """

    attention: str
    arrays: str
    inputs: Sequence[Path]
    force: bool
    choice: AttentionSelection = field(default_factory=AttentionSelection)
    log: bool = False

    def check(self) -> None:
        """Refuses what cannot be written before anything is computed."""
        for path, kind in ((self.attention, ATTENTION_PLOT_OUTPUT), (self.arrays, ARRAYS_OUTPUT)):
            if path:
                self._place(path, kind)
        if self.attention.lower().endswith(".png"):
            require_pillow()

    def pictures(self, named: Iterable[tuple[str, bytes]]) -> None:
        """Results that are pictures, in the folder the user is in."""
        for name, png in named:
            self._write(name, IMAGE_OUTPUT, png)

    def looked(self, seen: AttentionRun) -> None:
        """The picture of attention, in the format that its name asks for."""
        form = Path(self.attention).suffix.lower()
        picture = render_attention(seen, form, self.choice, log=self.log)
        for note in picture.remarks:
            print_note(note)
        self._write(self.attention, ATTENTION_PLOT_OUTPUT, picture.content)

    def save(self, results: Mapping[str, Any]) -> None:
        """An .npz with a fixed date, so that equal results are equal files, and our mark."""
        if not self.arrays:
            return
        buffer = BytesIO()
        np.savez(buffer, **results)
        # The mark says that the file may be replaced by a later run without being
        # asked.
        with ZipFile(buffer, "a") as archive:
            archive.comment = PRODUCER_NAME.encode()
        self._write(self.arrays, ARRAYS_OUTPUT, buffer.getvalue())

    def _place(self, path: str, kind: OutputKind) -> Path:
        return resolve_output_path(path, kind, inputs=self.inputs, force=self.force)

    def _write(self, path: str, kind: OutputKind, content: bytes) -> None:
        write_file_atomically(self._place(path, kind), [content])
        print_done(f"{escape_text(path)} written", aside=True)


def parse_run_outputs(given: Namespace, inputs: Sequence[Path]) -> RunOutputs:
    """What the options ask for. E0753 for the scope of a picture that nobody wants."""
    which = ("scope", "layers", "heads", "log_scale")
    told = [name for name in which if vars(given)[name]]
    if told and not given.attention:
        raise_error(
            "E0753",
            f"`--{told[0].replace('_', '-')}` says how to draw attention, and none is to be drawn",
            helps=["add --attention OUT.html"],
        )
    return RunOutputs(
        attention=given.attention,
        arrays=given.output,
        inputs=inputs,
        force=given.force,
        choice=AttentionSelection(
            scope=given.scope,
            layers=parse_number_list(given.layers, "--layers") if given.layers else (),
            heads=parse_number_list(given.heads, "--heads") if given.heads else (),
        ),
        log=given.log_scale,
    )


def print_results(results: Sequence[Sequence[GenerationResult]]) -> None:
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
                text = escape_text(result.text, keep="\n\t")
            print(f"{score}{text}")

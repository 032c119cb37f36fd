"""What rows of training data say, as arrays: inputs, answers, and whole texts taken apart
into what is given and what comes next.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from specc.data.batch import keep_of, row_inputs
from specc.data.reading import Reading
from specc.data.record import TEXT, Choice, Image, OutputReading, TextOf, TextReading
from specc.data.taken import as_array, taken
from specc.data.text import encode, pad
from specc.decode.settings import settings_of
from specc.files.read import shown
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.ir.model import Generation
from specc.text.diagnostic import fail
from specc.text.suggest import suggest

PASSED_OVER = -100
"""Stands where nothing should have been said: PyTorch's losses pass over it by themselves."""


def given(
    graph: Graph, reading: Reading, name: str, values: list[object]
) -> dict[str, object]:
    """An input of every row as one array or list of texts, with its keep input where
    rows differ in length.
    """
    record = reading.of_input(name)
    if isinstance(record, TEXT) and all(isinstance(v, str) for v in values):
        return {name: values}
    if isinstance(record, Image):
        return {
            name: np.concatenate([_picture(reading, name, v, record) for v in values])
        }
    arrays = [as_array(taken(reading, name, v), name) for v in values]
    if len({array.shape for array in arrays}) == 1:
        return {name: np.stack(arrays)}
    if any(array.ndim != 1 for array in arrays):
        shapes = sorted({str(list(array.shape)) for array in arrays})
        fail(
            "E0912",
            f"the rows of `{name}` are of several shapes: {', '.join(shapes[:4])}",
            helps=["put rows of one shape into a batch"],
        )
    return dict(row_inputs(graph, name, arrays))


def _picture(reading: Reading, name: str, value: object, record: Image) -> Array:
    """A picture as `[1, channels, rows, columns]`: a file, an open picture, or pixels
    as the model takes them.
    """
    where = Path(value) if isinstance(value, str) else value
    array = as_array(taken(reading, name, where), name)
    return array if array.ndim == 4 else array[None]


def answers(reading: Reading, name: str, values: list[object]) -> Array:
    """What should have been said as the result `name`, i64 or f32[batch, …]."""
    record = dict(reading.shows).get(name)
    rows = [_answer(name, value, record) for value in values]
    if len({row.shape for row in rows}) == 1:
        # of 2 beside 0.5 both are numbers
        kind = np.float32 if any(r.dtype.kind == "f" for r in rows) else np.int64
        return np.stack(rows).astype(kind)
    if all(row.ndim == 1 and row.dtype.kind == "i" for row in rows):
        return pad(rows, PASSED_OVER)[0]
    fail("E0947", f"what is wanted of `{name}` has several shapes in one batch")


@dataclass(frozen=True)
class Texts:
    """Texts that `graph` learns to write, as `generation` says."""

    graph: Graph
    reading: Reading
    generation: Generation

    def shifted(self, values: list[object]) -> tuple[dict[str, Array], Array]:
        """Texts to be learned: what the model is given of them, and what it should have
        said at each place.
        """
        name, settings = self.generation.growing, settings_of(self.generation.settings)
        start, stop = list(settings.start), settings.stop
        given: list[Array] = []
        wanted: list[Array] = []
        for number, value in enumerate(values):
            ids = self._ids(value).tolist()
            if start and ids[: len(start)] == start:
                # the reading has put it there already
                ids = ids[len(start) :]
            if stop and ids[-1:] and ids[-1] not in stop:
                ids.append(stop[0])
            whole = [*start, *ids]
            if len(whole) < 2:
                _nothing_to_learn(name, number)
            said = [PASSED_OVER] * (len(start) - 1) + ids
            given.append(np.array(whole[:-1], np.int64))
            wanted.append(np.array(said if start else ids[1:], np.int64))
        keep = keep_of(self.graph, name)
        left = bool(keep) and self.graph.input_facts[keep].keep == "left"
        # No earlier row sees what stands behind it, so that padding there teaches
        # nothing wrong even where no input says what it is.
        ids, exist = pad(given, 0, left=left)
        answers, _ = pad(wanted, PASSED_OVER, left=left)
        return {name: ids, keep: exist} if keep else {name: ids}, answers

    def _ids(self, value: object) -> Array:
        """The ids of a text that is written: as the model shows its result, else as it
        reads what grows.
        """
        name = self.generation.growing
        if not isinstance(value, str):
            return as_array(taken(self.reading, name, value), name).astype(np.int64)
        record = self.vocabulary
        if record is None:
            _no_text(name)
        return encode(value, record)

    @property
    def vocabulary(self) -> TextReading | None:
        """How what is written becomes text; None where it is none."""
        record = dict(self.reading.shows).get(self.generation.source)
        if isinstance(record, TextOf):
            return record.vocabulary
        found = self.reading.of_input(self.generation.growing)
        return found if isinstance(found, TEXT) else None


def _answer(name: str, value: object, record: OutputReading | None) -> Array:
    """One answer as numbers: the number of a label, the ids of a text, or as it is."""
    if isinstance(value, str):
        if isinstance(record, TextOf):
            return encode(value, record.vocabulary)
        if not isinstance(record, Choice):
            _no_text(name)
        if value not in record.labels:
            there = f"the labels are {', '.join(record.labels[:20]) or 'numbers'}"
            fail(
                "E0947",
                f"`{shown(value)[:60]}` is no label of `{name}`",
                helps=suggest(value, record.labels, there),
            )
        return np.array(record.labels.index(value), np.int64)
    array = np.array(value) if isinstance(value, int | float) else as_array(value, name)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def _no_text(name: str) -> NoReturn:
    fail(
        "E0947",
        f"`{name}` is no text, and is given one",
        notes=["the spec's `reading` does not say how it is shown as text or labels"],
        helps=["give numbers", f"or say `show {name} = …` in the spec's `reading`"],
    )


def _nothing_to_learn(name: str, number: int) -> NoReturn:
    fail(
        "E0947",
        f"the text of row {number} is too short to learn from",
        notes=[f"`{name}` has no token behind which another stands"],
        helps=["leave it out"],
    )

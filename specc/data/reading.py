"""What the inputs and outputs of a model mean to people: the `reading` of a spec, as a
compiled model keeps it.

`to_json` and `from_json` are inverse; `from_json` trusts nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specc.data.record import (
    MAX_TOKEN,
    TEXTS,
    Choice,
    ClassMap,
    Files,
    Image,
    ImageOf,
    InputReading,
    Numbers,
    OutputReading,
    TextOf,
    text_reading,
)
from specc.data.sound_record import SOUNDS, sound_reading
from specc.data.tasks import Task
from specc.data.tokenizer import TextTokenizer, TokenizerFile, files_from, files_to_json
from specc.data.transcript import Transcript
from specc.files.fields import Complain, Fields, damaged
from specc.files.json import Json
from specc.text.brief import brief, ports

MAX_PORTS = 1000  # inputs or outputs with a reading
SHOWN = ("choice", "numbers", "text", "transcript", "picture", "class_map")


@dataclass(frozen=True, slots=True)
class Reading:
    """The readings of a model's inputs and of the outputs it shows, in the order of the
    spec.

    An input that is not listed is read as `Numbers`; where nothing is shown, every
    output is. `task` says what the results are for, where the graph has a head for text.
    """

    inputs: tuple[tuple[str, InputReading], ...] = ()
    shows: tuple[tuple[str, OutputReading], ...] = ()
    task: Task | None = None

    def __repr__(self) -> str:
        kinds = {name: type(record).__name__ for name, record in self.inputs}
        shown = {name: type(record).__name__ for name, record in self.shows}
        return brief(f"reading: {ports(kinds)}; shown: {ports(shown)}")

    def with_task(self, task: Task) -> "Reading":
        """The same with a task."""
        return replace(self, task=task)

    def of_input(self, name: str) -> InputReading:
        """How the input `name` is read."""
        return dict(self.inputs).get(name, Numbers())

    @property
    def files(self) -> tuple[TokenizerFile, ...]:
        """The tokenizer files, each once."""
        records = [r for _, r in self.inputs] + [
            r.vocabulary for _, r in self.shows if isinstance(r, TextOf)
        ]
        return tuple(
            dict.fromkeys(r.file for r in records if isinstance(r, TextTokenizer))
        )

    def placed(self, stem: str) -> "Reading":
        """As the model called `stem` carries it: files that are too large to be inside
        have their names.
        """
        return self._changed(lambda file: file.placed(stem))

    def named(self, names: Mapping[str, str]) -> "Reading":
        """With the files of these hashes beside the model under these names, as a
        package of graphs has them.
        """
        return self._changed(lambda file: file.named(names.get(file.sha256, file.name)))

    def opened(self, folder: Path) -> "Reading":
        """With what lies in files beside the model in `folder`. Fails with E0942."""
        return self._changed(lambda file: file.opened(folder))

    def _changed(self, change: Callable[[TokenizerFile], TokenizerFile]) -> "Reading":
        if not self.files:
            return self
        changed = {file: change(file) for file in self.files}
        inputs: list[tuple[str, InputReading]] = []
        for name, record in self.inputs:
            if isinstance(record, TextTokenizer):
                record = replace(record, file=changed[record.file])
            inputs.append((name, record))
        shows: list[tuple[str, OutputReading]] = []
        for name, shown in self.shows:
            words = shown.vocabulary if isinstance(shown, TextOf) else None
            if isinstance(words, TextTokenizer):
                shown = TextOf(replace(words, file=changed[words.file]))
            shows.append((name, shown))
        return replace(self, inputs=tuple(inputs), shows=tuple(shows))

    def to_json(self) -> Json:
        """The record as JSON."""
        found: dict[str, Json] = {
            "inputs": {name: record.to_json() for name, record in self.inputs},
            "shows": {name: record.to_json() for name, record in self.shows},
        }
        if self.files:
            found["tokenizers"] = files_to_json(self.files)
        if self.task is not None:
            found["task"] = self.task.to_json()
        return found

    @staticmethod
    def from_json(value: object) -> "Reading":
        """The record from JSON of unknown origin; files beside the model are not read
        yet. Fails with E0915.
        """
        whole = Fields(value, ("reading",))
        inputs, shows = whole.child("inputs"), whole.child("shows")
        files = files_from(whole.child("tokenizers")) if whole.has("tokenizers") else {}
        task = Task.from_fields(whole.child("task")) if whole.has("task") else None
        whole.done()
        for part in (inputs, shows):
            longest = max(map(len, part.names()), default=0)
            if len(part.names()) > MAX_PORTS or longest > MAX_TOKEN:
                damaged(part.path, "is too large")
        return Reading(
            tuple((n, input_reading(v, at, files=files)) for n, v, at in _each(inputs)),
            tuple((n, output_reading(v, at, files=files)) for n, v, at in _each(shows)),
            task,
        )


def _each(part: Fields) -> Iterator[tuple[str, object, tuple[str, ...]]]:
    """Every field with its path, as a complaint about it names it."""
    for name in part.names():
        yield name, part.get(name), (*part.path, name)


def input_reading(
    value: object,
    path: tuple[str, ...] = (),
    complain: Complain = damaged,
    files: Files | None = None,
) -> InputReading:
    """One input's record from JSON; `complain` is told the path of a field and what is
    wrong with it.

    `files` are the tokenizers that a record may name by their hash.
    """
    fields = Fields(value, path, complain)
    record: InputReading
    match fields.choice("kind", ("image", *SOUNDS, *TEXTS, "numbers")):
        case "image":
            record = Image.from_fields(fields)
        case kind if kind in SOUNDS:
            record = sound_reading(kind, fields)
        case "numbers":
            record = Numbers.from_fields(fields)
        case kind:
            record = text_reading(kind, fields, files or {})
    fields.done()
    return record


def output_reading(
    value: object,
    path: tuple[str, ...] = (),
    complain: Complain = damaged,
    files: Files | None = None,
) -> OutputReading:
    """One output's record from JSON; `complain` and `files` as in `input_reading`."""
    fields = Fields(value, path, complain)
    record: OutputReading
    match fields.choice("kind", SHOWN):
        case "choice":
            record = Choice.from_fields(fields)
        case "numbers":
            record = Numbers.from_fields(fields)
        case "text":
            record = TextOf.from_fields(fields, files or {})
        case "transcript":
            record = Transcript.from_fields(fields)
        case "picture":
            record = ImageOf.from_fields(fields)
        case _:
            record = ClassMap.from_fields(fields)
    fields.done()
    return record

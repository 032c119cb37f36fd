"""The preprocessing of all inputs and outputs of a model, as stored in its metadata."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from specc.diagnostics.render import format_io_types, format_repr
from specc.io.json_io import (
    AnyRecord,
    FieldPath,
    Json,
    JsonFields,
    RaiseFieldError,
    parse_tagged_record,
    raise_invalid_record,
)
from specc.preprocessing.preprocessing_records import (
    INPUT_RECORDS,
    MAX_TOKEN,
    OUTPUT_RECORDS,
    InputConfig,
    LabelsOutput,
    NumbersOutput,
    OutputFormat,
    SegmentationMap,
    TextOutput,
)
from specc.preprocessing.task_kinds import Task
from specc.preprocessing.tokenizer_files import JsonTokenizer, TokenizerFile, parse_tokenizer_files

MAX_PORTS = 1000  # maximum number of inputs or outputs
MAX_REPORTED = 3  # image labels, if the spec describes how labels are displayed
Files: TypeAlias = Mapping[str, TokenizerFile]


@dataclass(frozen=True, slots=True)
class PreprocessingConfig:
    """The preprocessing of inputs and the postprocessing of outputs, in the order of the spec. An
    input without an entry takes arrays; if no output has an entry, all outputs are returned. `task`
    is the task of the model head.
    """

    inputs: tuple[tuple[str, InputConfig], ...] = ()
    outputs: tuple[tuple[str, OutputFormat], ...] = ()
    task: Task | None = None

    def __repr__(self) -> str:
        kinds = {name: type(record).__name__ for name, record in self.inputs}
        shown = {name: type(record).__name__ for name, record in self.outputs}
        return format_repr(f"reading: {format_io_types(kinds)}; shown: {format_io_types(shown)}")

    def with_task(self, task: Task) -> "PreprocessingConfig":
        """Return a copy with a task."""
        return replace(self, task=task)

    def get_input_config(self, name: str) -> InputConfig:
        """Return the preprocessing of the input `name`."""
        return dict(self.inputs).get(name, NumbersOutput())

    @property
    def files(self) -> tuple[TokenizerFile, ...]:
        """Return the tokenizer files, without duplicates."""
        records = [r for _, r in self.inputs] + [
            r.vocabulary for _, r in self.outputs if isinstance(r, TextOutput)
        ]
        return tuple(dict.fromkeys(r.file for r in records if isinstance(r, JsonTokenizer)))

    def assign_file_names(self, stem: str) -> "PreprocessingConfig":
        """Return a copy for storage in the model called `stem`; large files are stored next to the
        model.
        """
        return self._change_files(lambda file: file.assign_name(stem))

    def rename_files(self, names: Mapping[str, str]) -> "PreprocessingConfig":
        """Return a copy in which files are named by hash, for storage in a package."""
        return self._change_files(lambda f: f.with_file_name(names.get(f.sha256, f.name)))

    def load_files(self, directory: Path) -> "PreprocessingConfig":
        """Return a copy with the content of files next to the model in `directory`. Raise E0942 if
        a file does not match.
        """
        return self._change_files(lambda file: file.load_text(directory))

    def _change_files(
        self, change: Callable[[TokenizerFile], TokenizerFile]
    ) -> "PreprocessingConfig":
        if not self.files:
            return self
        changed = {file: change(file) for file in self.files}
        inputs, shows = dict(self.inputs), dict(self.outputs)
        for name, record in self.inputs:
            if isinstance(record, JsonTokenizer):
                inputs[name] = replace(record, file=changed[record.file])
        for name, shown in self.outputs:
            words = shown.vocabulary if isinstance(shown, TextOutput) else None
            if isinstance(words, JsonTokenizer):
                shows[name] = TextOutput(replace(words, file=changed[words.file]))
        return replace(self, inputs=tuple(inputs.items()), outputs=tuple(shows.items()))

    def to_json(self) -> Json:
        """Return the record as JSON."""
        found: dict[str, Json] = {
            "inputs": {name: record.to_json() for name, record in self.inputs},
            "shows": {name: record.to_json() for name, record in self.outputs},
        }
        if self.files:
            found["tokenizers"] = {file.sha256: file.to_json() for file in self.files}
        if self.task is not None:
            found["task"] = self.task.to_json()
        return found

    @staticmethod
    def from_json(value: object) -> "PreprocessingConfig":
        """Parse the config from untrusted JSON, without reading the files next to the model. Raise
        E0915 if it is invalid.
        """
        whole = JsonFields(value, ("reading",))
        inputs, shows = whole.read_object("inputs"), whole.read_object("shows")
        if whole.has_field("tokenizers"):
            inputs.shared = parse_tokenizer_files(whole.read_object("tokenizers"))
            shows.shared = inputs.shared
        task = Task.from_fields(whole.read_object("task")) if whole.has_field("task") else None
        whole.reject_unknown()
        for part in (inputs, shows):
            longest = max(map(len, part.names()), default=0)
            if len(part.names()) > MAX_PORTS or longest > MAX_TOKEN:
                raise_invalid_record(part.path, "is too large")
        return PreprocessingConfig(
            _parse_ports(inputs, INPUT_RECORDS), _parse_ports(shows, OUTPUT_RECORDS), task
        )


def _parse_ports(
    part: JsonFields, kinds: Mapping[str, type[AnyRecord]]
) -> tuple[tuple[str, AnyRecord], ...]:
    """Parse the preprocessing of every input, or the postprocessing of every output."""
    return tuple((n, parse_tagged_record(part.read_object(n), kinds)) for n in part.names())


def parse_input_record(
    value: object,
    path: FieldPath = (),
    report_error: RaiseFieldError = raise_invalid_record,
    files: Files | None = None,
) -> InputConfig:
    """Parse the preprocessing of an input from JSON. `report_error` raises an error for the path of
    a field; `files` are the tokenizers by hash.
    """
    return parse_tagged_record(JsonFields(value, path, report_error, files), INPUT_RECORDS)


def parse_output_record(
    value: object,
    path: FieldPath = (),
    report_error: RaiseFieldError = raise_invalid_record,
    files: Files | None = None,
) -> OutputFormat:
    """Parse the postprocessing of an output from JSON, like `parse_input_record`."""
    return parse_tagged_record(JsonFields(value, path, report_error, files), OUTPUT_RECORDS)


def adapt_labels_to_rank(record: OutputFormat, rank: int) -> OutputFormat:
    """Return the postprocessing for image scores [batch, classes] or pixel scores
    [batch, classes, height, width]; task heads of one spec may have either rank.
    """
    match record:
        case LabelsOutput() if rank == 4:
            return SegmentationMap(record.labels)
        case SegmentationMap() if rank == 2:
            return LabelsOutput(record.labels, min(len(record.labels) or 1, MAX_REPORTED))
        case _:
            return record

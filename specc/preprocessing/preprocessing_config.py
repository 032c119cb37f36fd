"""The preprocessing of all inputs and outputs of a model, as stored in the model's metadata."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_repr, format_value_types
from specc.io.json_io import (
    AnyRecord,
    Json,
    JsonReader,
    parse_tagged_record,
    raise_invalid_record_error,
)
from specc.preprocessing.preprocessing_records import (
    INPUT_RECORDS,
    MAX_TOKEN,
    OUTPUT_RECORDS,
    ArrayConfig,
    ClassificationOutput,
    InputConfig,
    OutputFormat,
    SegmentationOutput,
    TextOutput,
)
from specc.preprocessing.tasks import Task
from specc.preprocessing.tokenizer_files import HfTokenizer, TokenizerFile, parse_tokenizer_entries

MAX_INPUTS_OR_OUTPUTS = 1000  # maximum number of preprocessing records for inputs or outputs
MAX_IMAGE_LABELS = 3  # maximum number of printed labels per image


@immutable_dataclass
class PreprocessingConfig:
    """The preprocessing of inputs and the postprocessing of outputs, in the order of the spec. An
    input without an entry accepts only arrays. If no output has an entry, all outputs are returned.
    `task` is the task of the model head.
    """

    inputs: tuple[tuple[str, InputConfig], ...] = ()
    outputs: tuple[tuple[str, OutputFormat], ...] = ()
    task: Task | None = None

    def __repr__(self) -> str:
        input_types = {name: type(config).__name__ for name, config in self.inputs}
        output_types = {name: type(config).__name__ for name, config in self.outputs}
        return format_repr(
            f"reading: {format_value_types(input_types)}; shown: {format_value_types(output_types)}"
        )

    def get_input_config(self, name: str) -> InputConfig:
        """Return the preprocessing of the input `name`."""
        return dict(self.inputs).get(name, ArrayConfig())

    @property
    def tokenizer_files(self) -> tuple[TokenizerFile, ...]:
        """Return the tokenizer files of all records, without duplicates."""
        records = [r for _, r in self.inputs] + [
            r.vocabulary for _, r in self.outputs if isinstance(r, TextOutput)
        ]
        return tuple(dict.fromkeys(r.file for r in records if isinstance(r, HfTokenizer)))

    def assign_tokenizer_file_names(self, stem: str) -> "PreprocessingConfig":
        """Return a copy in which the names of large tokenizer files begin with `stem`. These files
        are stored next to the model. Small files are embedded.
        """
        return self._map_files(lambda file: file.assign_file_name(stem))

    def rename_tokenizer_files(self, names: Mapping[str, str]) -> "PreprocessingConfig":
        """Return a copy with new file names. `names` maps SHA-256 hashes to names."""
        return self._map_files(lambda f: f.with_file_name(names.get(f.sha256, f.name)))

    def load_tokenizer_files(self, directory: Path) -> "PreprocessingConfig":
        """Return a copy with files read from `directory`. Raise E0942 if a file does not match."""
        return self._map_files(lambda file: file.load_text(directory))

    def _map_files(
        self, map_file: Callable[[TokenizerFile], TokenizerFile]
    ) -> "PreprocessingConfig":
        if not self.tokenizer_files:
            return self
        new_files = {file: map_file(file) for file in self.tokenizer_files}
        inputs, outputs = dict(self.inputs), dict(self.outputs)
        for name, config in self.inputs:
            if isinstance(config, HfTokenizer):
                inputs[name] = replace(config, file=new_files[config.file])
        for name, output_format in self.outputs:
            tokenizer = output_format.vocabulary if isinstance(output_format, TextOutput) else None
            if isinstance(tokenizer, HfTokenizer):
                outputs[name] = TextOutput(replace(tokenizer, file=new_files[tokenizer.file]))
        return replace(self, inputs=tuple(inputs.items()), outputs=tuple(outputs.items()))

    def to_json(self) -> Json:
        """Return the config as JSON."""
        json: dict[str, Json] = {
            "inputs": {name: config.to_json() for name, config in self.inputs},
            "shows": {name: config.to_json() for name, config in self.outputs},
        }
        if self.tokenizer_files:
            json["tokenizers"] = {file.sha256: file.to_json() for file in self.tokenizer_files}
        if self.task is not None:
            json["task"] = self.task.to_json()
        return json

    @staticmethod
    def from_json(value: object) -> "PreprocessingConfig":
        """Parse a config from JSON, without reading the files of the config. Raise E0915 if the
        config is invalid.
        """
        fields = JsonReader(value, ("preprocessing",))
        inputs, outputs = fields.read_object("inputs"), fields.read_object("shows")
        if fields.has_field("tokenizers"):
            inputs.shared = parse_tokenizer_entries(fields.read_object("tokenizers"))
            outputs.shared = inputs.shared
        task = Task.from_fields(fields.read_object("task")) if fields.has_field("task") else None
        fields.reject_unknown_keys()
        for section in (inputs, outputs):
            max_name_length = max(map(len, section.list_keys()), default=0)
            if len(section.list_keys()) > MAX_INPUTS_OR_OUTPUTS or max_name_length > MAX_TOKEN:
                raise_invalid_record_error(section.path, "is too large")
        return PreprocessingConfig(
            _parse_records(inputs, INPUT_RECORDS), _parse_records(outputs, OUTPUT_RECORDS), task
        )


def _parse_records(
    part: JsonReader, kinds: Mapping[str, type[AnyRecord]]
) -> tuple[tuple[str, AnyRecord], ...]:
    """Parse the preprocessing of all inputs, or the postprocessing of all outputs."""
    return tuple((n, parse_tagged_record(part.read_object(n), kinds)) for n in part.list_keys())


def adapt_output_format_to_rank(config: OutputFormat, rank: int) -> OutputFormat:
    """Return the postprocessing for image scores [batch, classes] or pixel scores [batch, classes,
    height, width]. The task heads of one spec may output either type of scores.
    """
    match config:
        case ClassificationOutput() if rank == 4:
            return SegmentationOutput(config.labels)
        case SegmentationOutput() if rank == 2:
            return ClassificationOutput(
                config.labels, min(len(config.labels) or 1, MAX_IMAGE_LABELS)
            )
        case _:
            return config

"""The preprocessing of all inputs and outputs of a model, and the task of its head (inputs, labels,
output format), as stored in the model's metadata.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_repr, format_value_types
from specc.io.json_io import (
    AnyRecord,
    Json,
    JsonFields,
    JsonRecord,
    make_int_range_reader,
    parse_tagged_record,
    raise_invalid_record,
    to_json_value,
)
from specc.preprocessing.preprocessing_records import (
    INPUT_RECORDS,
    MAX_TOKEN,
    OUTPUT_RECORDS,
    InputConfig,
    Labels,
    LabelsOutput,
    NumbersOutput,
    OutputFormat,
    SegmentationOutput,
    TextOutput,
)
from specc.preprocessing.tokenizer_files import (
    JsonTokenizer,
    TokenId,
    TokenizerFile,
    parse_tokenizer_files,
)

Options: TypeAlias = Mapping[str, Any]
"""Task options by name, with default values. A value must have the type of its default."""
PROBABILITY_FUNCTIONS = ("softmax", "sigmoid", "none")
MAX_PROMPTS = 1000
MAX_PROMPT_LENGTH = 100_000
MAX_TOKENS = 2**31 - 1


@immutable_dataclass
class TaskInput:
    """An input of a task. A variadic input consumes all remaining command-line arguments."""

    name: str
    is_variadic: bool = False
    is_optional: bool = False


@immutable_dataclass(slots=True, kw_only=True)
class TaskKind:
    """A type of task: its inputs, its options with defaults, and the transformers classes and
    output names that identify a graph. If `needs_tokenizer` is True, the task needs the offsets
    that a tokenizer.json provides.
    """

    inputs: tuple[TaskInput, ...]
    class_suffixes: tuple[str, ...] = ()
    results: tuple[str, ...] = ("logits",)
    options: Mapping[str, object]
    needs_tokenizer: bool = False


TEXT_INPUT = TaskInput("text", is_variadic=True)
TASKS: Mapping[str, TaskKind] = {
    "text-classification": TaskKind(
        inputs=(TEXT_INPUT, TaskInput("text_pair", is_variadic=True, is_optional=True)),
        class_suffixes=("ForSequenceClassification",),
        options={"top_k": 0, "function_to_apply": ""},
    ),
    "next-sentence-prediction": TaskKind(
        inputs=(TEXT_INPUT, TaskInput("text_pair", is_variadic=True)),
        class_suffixes=("ForNextSentencePrediction",),
        options={"top_k": 0, "function_to_apply": ""},
    ),
    "token-classification": TaskKind(
        inputs=(TEXT_INPUT,),
        class_suffixes=("ForTokenClassification",),
        options={"aggregation_strategy": "simple"},
        needs_tokenizer=True,
    ),
    "question-answering": TaskKind(
        inputs=(TaskInput("question"), TaskInput("context")),
        class_suffixes=("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
        results=("start_logits", "end_logits"),
        options={"top_k": 1, "max_answer_len": 15, "max_seq_len": 384},
        needs_tokenizer=True,
    ),
    "fill-mask": TaskKind(
        inputs=(TEXT_INPUT,),
        class_suffixes=("ForMaskedLM",),
        options={"top_k": 5},
        needs_tokenizer=True,
    ),
    "multiple-choice": TaskKind(
        inputs=(TaskInput("text"), TaskInput("choices", is_variadic=True)),
        class_suffixes=("ForMultipleChoice",),
        options={},
    ),
    "zero-shot-image-classification": TaskKind(
        inputs=(TaskInput("image"), TaskInput("candidate_labels", is_variadic=True)),
        results=("logits_per_image",),
        options={"hypothesis_template": "This is a photo of {}."},
    ),
    "sentence-similarity": TaskKind(
        inputs=(TEXT_INPUT,),
        results=("sentence_embedding",),
        options={"prompt_name": "", "prompt": ""},
    ),
}


def find_task(classes: tuple[str, ...], results: tuple[str, ...]) -> str:
    """Return the task of a graph with the given class names and outputs, or "" if none matches."""
    for name, kind in TASKS.items():
        if not set(kind.results) <= set(results):
            continue
        if not kind.class_suffixes or any(c.endswith(kind.class_suffixes) for c in classes):
            return name
    return ""


def _read_prompts(fields: JsonFields, name: str) -> tuple[tuple[str, str], ...]:
    prompts = []
    for number, item in enumerate(fields.read_list(name, MAX_PROMPTS)):
        match item:
            case [str(key), str(text)] if len(text) <= MAX_PROMPT_LENGTH:
                prompts.append((key, text))
            case _:
                fields.raise_invalid(f"{name}[{number}]", "is not a pair of name and string")
    return tuple(prompts)


TokenCount: TypeAlias = Annotated[int, make_int_range_reader(0, MAX_TOKENS)]


@immutable_dataclass(slots=True, kw_only=True)
class Task(JsonRecord):
    """The task of a compiled model, stored in its metadata.

    `text_input` names the text input. `score_function` converts logits to scores. If
    `uses_token_types` is true, the model has an input for token type ids. Every text is padded to
    `padded_length` tokens. Texts longer than `max_length` are truncated, at the beginning if
    `truncates_left` is true. `prompts` are text prefixes by name; `prompt` names the default
    prefix.
    """

    json_keys: ClassVar[Mapping[str, str]] = {
        "text_input": "text", "score_function": "function", "mask_token_id": "mask",
        "unknown_token_id": "unknown", "cls_token_id": "cls", "uses_token_types": "token_types",
        "padded_length": "length", "pad_token_id": "pad",
    }  # fmt: skip
    kind: Annotated[str, partial(JsonFields.read_choice, options=tuple(TASKS))]
    text_input: str
    labels: Labels = ()
    score_function: Annotated[
        str, partial(JsonFields.read_choice, options=PROBABILITY_FUNCTIONS)
    ] = "softmax"
    mask_token_id: TokenId = None
    unknown_token_id: TokenId = None
    cls_token_id: TokenId = None
    uses_token_types: bool = True
    padded_length: TokenCount = 0
    pad_token_id: TokenId = None
    max_length: TokenCount = 0
    prompts: Annotated[tuple[tuple[str, str], ...], _read_prompts] = ()
    prompt: str = ""
    truncates_left: bool = False

    @property
    def inputs(self) -> tuple[TaskInput, ...]:
        """Return the inputs of the task."""
        return TASKS[self.kind].inputs

    @property
    def options(self) -> Mapping[str, object]:
        """Return the options of the task with their defaults."""
        return TASKS[self.kind].options

    def get_label(self, number: int) -> str:
        """Return the label of the class `number`."""
        return self.labels[number] if number < len(self.labels) else f"LABEL_{number}"

    def to_json(self) -> dict[str, Json]:
        """Return the task as JSON without default values."""
        return {
            self.json_keys.get(f.name, f.name): to_json_value(value)
            for f in fields(self)
            if (value := getattr(self, f.name)) != f.default
        }

    def check_fields(self, fields: JsonFields) -> None:
        """Raise an error if a task in the metadata has unknown fields."""
        fields.reject_unknown_keys()


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
        input_types = {name: type(record).__name__ for name, record in self.inputs}
        output_types = {name: type(record).__name__ for name, record in self.outputs}
        return format_repr(
            f"reading: {format_value_types(input_types)}; shown: {format_value_types(output_types)}"
        )

    def get_input_config(self, name: str) -> InputConfig:
        """Return the preprocessing of the input `name`."""
        return dict(self.inputs).get(name, NumbersOutput())

    @property
    def files(self) -> tuple[TokenizerFile, ...]:
        """Return the tokenizer files of all records, without duplicates."""
        records = [r for _, r in self.inputs] + [
            r.vocabulary for _, r in self.outputs if isinstance(r, TextOutput)
        ]
        return tuple(dict.fromkeys(r.file for r in records if isinstance(r, JsonTokenizer)))

    def assign_file_names(self, stem: str) -> "PreprocessingConfig":
        """Return a copy in which large tokenizer files have names that begin with `stem`, to be
        stored next to the model. Small files are embedded.
        """
        return self._map_files(lambda file: file.assign_name(stem))

    def rename_files(self, names: Mapping[str, str]) -> "PreprocessingConfig":
        """Return a copy with new file names. `names` maps SHA-256 hashes to names."""
        return self._map_files(lambda f: f.with_file_name(names.get(f.sha256, f.name)))

    def load_files(self, directory: Path) -> "PreprocessingConfig":
        """Return a copy with files read from `directory`. Raise E0942 if a file does not match."""
        return self._map_files(lambda file: file.load_text(directory))

    def _map_files(
        self, map_file: Callable[[TokenizerFile], TokenizerFile]
    ) -> "PreprocessingConfig":
        if not self.files:
            return self
        new_files = {file: map_file(file) for file in self.files}
        inputs, outputs = dict(self.inputs), dict(self.outputs)
        for name, record in self.inputs:
            if isinstance(record, JsonTokenizer):
                inputs[name] = replace(record, file=new_files[record.file])
        for name, output_format in self.outputs:
            tokenizer = output_format.vocabulary if isinstance(output_format, TextOutput) else None
            if isinstance(tokenizer, JsonTokenizer):
                outputs[name] = TextOutput(replace(tokenizer, file=new_files[tokenizer.file]))
        return replace(self, inputs=tuple(inputs.items()), outputs=tuple(outputs.items()))

    def to_json(self) -> Json:
        """Return the config as JSON."""
        json: dict[str, Json] = {
            "inputs": {name: record.to_json() for name, record in self.inputs},
            "shows": {name: record.to_json() for name, record in self.outputs},
        }
        if self.files:
            json["tokenizers"] = {file.sha256: file.to_json() for file in self.files}
        if self.task is not None:
            json["task"] = self.task.to_json()
        return json

    @staticmethod
    def from_json(value: object) -> "PreprocessingConfig":
        """Parse a config from JSON, without its files. Raise E0915 if the config is invalid."""
        fields = JsonFields(value, ("preprocessing",))
        inputs, outputs = fields.read_object("inputs"), fields.read_object("shows")
        if fields.has_field("tokenizers"):
            inputs.shared = parse_tokenizer_files(fields.read_object("tokenizers"))
            outputs.shared = inputs.shared
        task = Task.from_fields(fields.read_object("task")) if fields.has_field("task") else None
        fields.reject_unknown_keys()
        for section in (inputs, outputs):
            max_name_length = max(map(len, section.names()), default=0)
            if len(section.names()) > MAX_INPUTS_OR_OUTPUTS or max_name_length > MAX_TOKEN:
                raise_invalid_record(section.path, "is too large")
        return PreprocessingConfig(
            _parse_records(inputs, INPUT_RECORDS), _parse_records(outputs, OUTPUT_RECORDS), task
        )


def _parse_records(
    part: JsonFields, kinds: Mapping[str, type[AnyRecord]]
) -> tuple[tuple[str, AnyRecord], ...]:
    """Parse the preprocessing of all inputs, or the postprocessing of all outputs."""
    return tuple((n, parse_tagged_record(part.read_object(n), kinds)) for n in part.names())


def adapt_labels_to_rank(record: OutputFormat, rank: int) -> OutputFormat:
    """Return the postprocessing for image scores [batch, classes] or pixel scores [batch, classes,
    height, width]. Task heads of the same spec may have either rank.
    """
    match record:
        case LabelsOutput() if rank == 4:
            return SegmentationOutput(record.labels)
        case SegmentationOutput() if rank == 2:
            return LabelsOutput(record.labels, min(len(record.labels) or 1, MAX_IMAGE_LABELS))
        case _:
            return record

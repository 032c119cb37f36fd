"""The tasks of model heads: their inputs, options, prompts and predictions."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.io.json_io import Json, JsonReader, JsonRecord, make_int_range_reader, to_json_value
from specc.preprocessing.preprocessing_records import Labels
from specc.preprocessing.tokenizer_files import TokenId

Options: TypeAlias = Mapping[str, Any]
"""Task options by name, with default values. A value must have the type of its default."""
PROBABILITY_FUNCTIONS = ("softmax", "sigmoid", "none")
MAX_PROMPTS = 1000
MAX_PROMPT_LENGTH = 100_000
MAX_TOKENS = 2**31 - 1


@immutable_dataclass
class TaskInput:
    """An input of a task. A variadic input receives all remaining command-line arguments."""

    name: str
    is_variadic: bool = False
    is_optional: bool = False


@immutable_dataclass(slots=True, kw_only=True)
class TaskDefinition:
    """A type of task, with its inputs and its options with defaults. The class names of
    transformers and the output names identify a graph with this task. If `needs_tokenizer` is True,
    the task requires token offsets, i.e. a tokenizer.json.
    """

    inputs: tuple[TaskInput, ...]
    class_suffixes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("logits",)
    options: Mapping[str, object]
    needs_tokenizer: bool = False


TEXT_INPUT = TaskInput("text", is_variadic=True)
TASKS: Mapping[str, TaskDefinition] = {
    "text-classification": TaskDefinition(
        inputs=(TEXT_INPUT, TaskInput("text_pair", is_variadic=True, is_optional=True)),
        class_suffixes=("ForSequenceClassification",),
        options={"top_k": 0, "function_to_apply": ""},
    ),
    "next-sentence-prediction": TaskDefinition(
        inputs=(TEXT_INPUT, TaskInput("text_pair", is_variadic=True)),
        class_suffixes=("ForNextSentencePrediction",),
        options={"top_k": 0, "function_to_apply": ""},
    ),
    "token-classification": TaskDefinition(
        inputs=(TEXT_INPUT,),
        class_suffixes=("ForTokenClassification",),
        options={"aggregation_strategy": "simple"},
        needs_tokenizer=True,
    ),
    "question-answering": TaskDefinition(
        inputs=(TaskInput("question"), TaskInput("context")),
        class_suffixes=("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
        outputs=("start_logits", "end_logits"),
        options={"top_k": 1, "max_answer_len": 15, "max_seq_len": 384},
        needs_tokenizer=True,
    ),
    "fill-mask": TaskDefinition(
        inputs=(TEXT_INPUT,),
        class_suffixes=("ForMaskedLM",),
        options={"top_k": 5},
        needs_tokenizer=True,
    ),
    "multiple-choice": TaskDefinition(
        inputs=(TaskInput("text"), TaskInput("choices", is_variadic=True)),
        class_suffixes=("ForMultipleChoice",),
        options={},
    ),
    "zero-shot-image-classification": TaskDefinition(
        inputs=(TaskInput("image"), TaskInput("candidate_labels", is_variadic=True)),
        outputs=("logits_per_image",),
        options={"hypothesis_template": "This is a photo of {}."},
    ),
    "sentence-similarity": TaskDefinition(
        inputs=(TEXT_INPUT,),
        outputs=("sentence_embedding",),
        options={"prompt_name": "", "prompt": ""},
    ),
}


def find_matching_task(classes: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    """Return the task of a graph with these class names and outputs, or "" if no task matches."""
    for name, kind in TASKS.items():
        if not set(kind.outputs) <= set(outputs):
            continue
        if not kind.class_suffixes or any(c.endswith(kind.class_suffixes) for c in classes):
            return name
    return ""


def _read_prompts(fields: JsonReader, name: str) -> tuple[tuple[str, str], ...]:
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
    `truncates_left` is true. `prompts` maps names to text prefixes, and `prompt` is the name of the
    default prefix.
    """

    json_keys: ClassVar[Mapping[str, str]] = {
        "text_input": "text", "score_function": "function", "mask_token_id": "mask",
        "unknown_token_id": "unknown", "cls_token_id": "cls", "uses_token_types": "token_types",
        "padded_length": "length", "pad_token_id": "pad",
    }  # fmt: skip
    kind: Annotated[str, partial(JsonReader.read_choice, options=tuple(TASKS))]
    text_input: str
    labels: Labels = ()
    score_function: Annotated[
        str, partial(JsonReader.read_choice, options=PROBABILITY_FUNCTIONS)
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

    def get_label(self, class_id: int) -> str:
        """Return the label of the class `class_id`."""
        return self.labels[class_id] if class_id < len(self.labels) else f"LABEL_{class_id}"

    def to_json(self) -> dict[str, Json]:
        """Return the task as JSON without default values."""
        return {
            self.json_keys.get(f.name, f.name): to_json_value(value)
            for f in fields(self)
            if (value := getattr(self, f.name)) != f.default
        }

    def check_fields(self, fields: JsonReader) -> None:
        """Raise an error if a task in the metadata has unknown fields."""
        fields.reject_unknown_keys()

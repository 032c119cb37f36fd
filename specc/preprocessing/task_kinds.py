"""The tasks of model heads: inputs, labels and output format."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias

from specc.io.json_io import Json, JsonFields, Record, int_range, to_json_value
from specc.preprocessing.preprocessing_records import Labels
from specc.preprocessing.tokenizer_files import TokenId

Options: TypeAlias = Mapping[str, Any]
"""Options of a task by name, with defaults; values must have the type of the default."""
PROBABILITY_FUNCTIONS = ("softmax", "sigmoid", "none")
MAX_PROMPTS = 1000
MAX_PROMPT_LENGTH = 100_000
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """An input of a task. A variadic input takes all remaining command-line arguments."""

    name: str
    is_variadic: bool = False
    is_optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """A kind of task: its inputs, the transformers classes and output names that identify a graph,
    and options with defaults. `needs_tokenizer` is true if the task needs the offsets of a
    tokenizer.json.
    """

    slots: tuple[TaskSlot, ...]
    class_suffixes: tuple[str, ...] = ()
    results: tuple[str, ...] = ("logits",)
    options: Mapping[str, object]
    needs_tokenizer: bool = False


TEXT_SLOTS = (
    TaskSlot("text", is_variadic=True),
    TaskSlot("text_pair", is_variadic=True, is_optional=True),
)
TASKS: Mapping[str, TaskKind] = {
    "text-classification": TaskKind(
        slots=TEXT_SLOTS,
        class_suffixes=("ForSequenceClassification",),
        options={"top_k": 0, "function_to_apply": ""},
    ),
    "next-sentence-prediction": TaskKind(
        slots=(TaskSlot("text", is_variadic=True), TaskSlot("text_pair", is_variadic=True)),
        class_suffixes=("ForNextSentencePrediction",),
        options={"top_k": 0, "function_to_apply": ""},
    ),
    "token-classification": TaskKind(
        slots=(TaskSlot("text", is_variadic=True),),
        class_suffixes=("ForTokenClassification",),
        options={"aggregation_strategy": "simple"},
        needs_tokenizer=True,
    ),
    "question-answering": TaskKind(
        slots=(TaskSlot("question"), TaskSlot("context")),
        class_suffixes=("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
        results=("start_logits", "end_logits"),
        options={"top_k": 1, "max_answer_len": 15, "max_seq_len": 384},
        needs_tokenizer=True,
    ),
    "fill-mask": TaskKind(
        slots=(TaskSlot("text", is_variadic=True),),
        class_suffixes=("ForMaskedLM",),
        options={"top_k": 5},
        needs_tokenizer=True,
    ),
    "multiple-choice": TaskKind(
        slots=(TaskSlot("text"), TaskSlot("choices", is_variadic=True)),
        class_suffixes=("ForMultipleChoice",),
        options={},
    ),
    "zero-shot-image-classification": TaskKind(
        slots=(TaskSlot("image"), TaskSlot("candidate_labels", is_variadic=True)),
        results=("logits_per_image",),
        options={"hypothesis_template": "This is a photo of {}."},
    ),
    "sentence-similarity": TaskKind(
        slots=(TaskSlot("text", is_variadic=True),),
        results=("sentence_embedding",),
        options={"prompt_name": "", "prompt": ""},
    ),
}


def find_task(classes: tuple[str, ...], results: tuple[str, ...]) -> str:
    """Return the name of the task of a graph with these outputs and transformers classes, or ""."""
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


TokenCount: TypeAlias = Annotated[int, int_range(0, MAX_TOKENS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Record):
    """The task of a compiled model, stored in its metadata.

    `text_input` names the text input. `score_function` converts logits to scores. If
    `uses_token_types`, the model takes token type ids. Every text is padded to `padded_length`
    tokens. Texts longer than `max_length` are truncated, at the beginning if `truncates_left`.
    `prompts` are text prefixes by name; `prompt` names the default prefix.
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
    def slots(self) -> tuple[TaskSlot, ...]:
        """Return the inputs of the task."""
        return TASKS[self.kind].slots

    @property
    def options(self) -> Mapping[str, object]:
        """Return the options with their defaults."""
        return TASKS[self.kind].options

    def get_label(self, number: int) -> str:
        """Return the label of a class."""
        return self.labels[number] if number < len(self.labels) else f"LABEL_{number}"

    def to_json(self) -> dict[str, Json]:
        """Return the record as JSON; defaults are omitted."""
        return {
            self.json_keys.get(f.name, f.name): to_json_value(value)
            for f in fields(self)
            if (value := getattr(self, f.name)) != f.default
        }

    def check_fields(self, fields: JsonFields) -> None:
        """Raise an error if there are unknown fields."""
        fields.reject_unknown()

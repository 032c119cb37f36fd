"""Tasks of model heads: inputs, labels, output format."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from specc.io.json_io import Json, JsonFields
from specc.preprocessing.records import MAX_LABEL, MAX_LABELS
from specc.preprocessing.tokenizer_files import MAX_ID

Options: TypeAlias = Mapping[str, Any]
"""Options of a task by name, each of the type of its default."""
FUNCTIONS = ("softmax", "sigmoid", "none")
MOST_PROMPTS = 1000
LONGEST_PROMPT = 100_000
MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """One input of a task. `many`: all remaining words of the command line belong to it;
    `optional`: it may be left out.
    """

    name: str
    many: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """One task: its inputs, the classes and the results by which a graph is known, and the
    options that change its output, with their defaults.

    `needs_tokenizer`: only a tokenizer.json says where tokens are in the text.
    """

    slots: tuple[TaskSlot, ...]
    classes: tuple[str, ...] = ()
    results: tuple[str, ...] = ("logits",)
    options: Mapping[str, object]
    needs_tokenizer: bool = False


TEXT = (TaskSlot("text", many=True), TaskSlot("text_pair", many=True, optional=True))
LABELS = ("id2label",)
TASKS: Mapping[str, TaskKind] = {
    "text-classification": TaskKind(
        slots=TEXT,
        classes=("ForSequenceClassification",),
        options={"top_k": 0, "function_to_apply": ""},
    ),
    "next-sentence-prediction": TaskKind(
        slots=(TaskSlot("text", many=True), TaskSlot("text_pair", many=True)),
        classes=("ForNextSentencePrediction",),
        options={"top_k": 0, "function_to_apply": ""},
    ),
    "token-classification": TaskKind(
        slots=(TaskSlot("text", many=True),),
        classes=("ForTokenClassification",),
        options={"aggregation_strategy": "simple"},
        needs_tokenizer=True,
    ),
    "question-answering": TaskKind(
        slots=(TaskSlot("question"), TaskSlot("context")),
        classes=("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
        results=("start_logits", "end_logits"),
        options={"top_k": 1, "max_answer_len": 15, "max_seq_len": 384},
        needs_tokenizer=True,
    ),
    "fill-mask": TaskKind(
        slots=(TaskSlot("text", many=True),),
        classes=("ForMaskedLM",),
        options={"top_k": 5},
        needs_tokenizer=True,
    ),
    "multiple-choice": TaskKind(
        slots=(TaskSlot("text"), TaskSlot("choices", many=True)),
        classes=("ForMultipleChoice",),
        options={},
    ),
    "zero-shot-image-classification": TaskKind(
        slots=(TaskSlot("image"), TaskSlot("candidate_labels", many=True)),
        results=("logits_per_image",),
        options={"hypothesis_template": "This is a photo of {}."},
    ),
    "sentence-similarity": TaskKind(
        slots=(TaskSlot("text", many=True),),
        results=("sentence_embedding",),
        options={"prompt_name": "", "prompt": ""},
    ),
}


def find_task(classes: tuple[str, ...], results: tuple[str, ...]) -> str:
    """Return the task of a graph that is made for `classes` and gives `results`; empty
    where it has none.
    """
    for name, kind in TASKS.items():
        if not set(kind.results) <= set(results):
            continue
        if not kind.classes or any(c.endswith(kind.classes) for c in classes):
            return name
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task of a compiled model, stored in its metadata.

    `text` is the input that reads text. `function` turns logits into scores. `mask`,
    `unknown`, `cls` and `pad` are token ids. `token_types`: the tokenizer's segment ids are
    given to the model. `length`: every text is padded to that many tokens with `pad`.
    `max_length`: longer texts are truncated. `prompts` are put before texts by name,
    `prompt` is the default one's name. `lower`: texts are read in lower case.
    """

    kind: str
    text: str
    labels: tuple[str, ...] = ()
    function: str = "softmax"
    mask: int | None = None
    unknown: int | None = None
    cls: int | None = None
    token_types: bool = True
    length: int = 0
    pad: int | None = None
    max_length: int = 0
    prompts: tuple[tuple[str, str], ...] = ()
    prompt: str = ""
    lower: bool = False

    @property
    def slots(self) -> tuple[TaskSlot, ...]:
        """What people give."""
        return TASKS[self.kind].slots

    @property
    def options(self) -> Mapping[str, object]:
        """The options with their defaults."""
        return TASKS[self.kind].options

    def label(self, number: int) -> str:
        """The name of a class."""
        return self.labels[number] if number < len(self.labels) else f"LABEL_{number}"

    def to_json(self) -> Json:
        """The record as JSON; defaults are left out."""
        default = Task(kind=self.kind, text=self.text)
        found: dict[str, Json] = {"kind": self.kind, "text": self.text}
        for name in Task.__slots__:
            value = getattr(self, name)
            if value != getattr(default, name):
                found[name] = _plain(value)
        return found

    @staticmethod
    def from_fields(fields: JsonFields) -> "Task":
        """The record from JSON; every field but `kind` and `text` may be absent."""
        default = Task(kind=fields.choice("kind", tuple(TASKS)), text="")

        def length(name: str) -> int:
            return fields.integer(name, 0, MOST_TOKENS) if fields.has(name) else 0

        def flag(name: str) -> bool:
            return fields.flag(name) if fields.has(name) else getattr(default, name)

        made = Task(
            kind=default.kind,
            text=fields.text("text"),
            labels=fields.texts("labels", MAX_LABELS, MAX_LABEL) if fields.has("labels") else (),
            function=fields.choice("function", FUNCTIONS)
            if fields.has("function")
            else default.function,
            mask=fields.identity("mask", MAX_ID),
            unknown=fields.identity("unknown", MAX_ID),
            cls=fields.identity("cls", MAX_ID),
            token_types=flag("token_types"),
            length=length("length"),
            pad=fields.identity("pad", MAX_ID),
            max_length=length("max_length"),
            prompts=_prompts(fields),
            prompt=fields.text("prompt") if fields.has("prompt") else "",
            lower=flag("lower"),
        )
        fields.done()
        return made


def _plain(value: object) -> Json:
    """A field as JSON."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    assert isinstance(value, str | int | None), "fields hold texts and numbers"
    return value


def _prompts(fields: JsonFields) -> tuple[tuple[str, str], ...]:
    """Prompts by name."""
    if not fields.has("prompts"):
        return ()
    found = []
    for number, item in enumerate(fields.items("prompts", MOST_PROMPTS)):
        match item:
            case [str(name), str(text)] if len(text) <= LONGEST_PROMPT:
                found.append((name, text))
            case _:
                fields.refuse(f"prompts[{number}]", "is not a name and a text")
    return tuple(found)

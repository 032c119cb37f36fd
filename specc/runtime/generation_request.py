"""Generation requests: a generative model, its prompts as one batch, chat templates, limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from specc import backend
from specc.analysis.length_limits import format_limit_reason
from specc.artifact.generation_facts import GenerationFacts
from specc.artifact.manifest import RandomWeights
from specc.backend import Session
from specc.decode.generation_settings import GenerationSettings
from specc.decode.settings_errors import VocabularySizes
from specc.decode.token_choice import Bools, Ints
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.ir.array import Array, Arrays
from specc.ir.model import GenerateSection, find_default_sources, resolve_absent_inputs
from specc.preprocessing.chat_template import parse_messages, render_chat_template
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.python_values import is_pil_image
from specc.preprocessing.records import TEXT_READINGS, TextOutput, TextReading
from specc.preprocessing.text_codec import decode_text
from specc.preprocessing.tokenizer_files import TextTokenizer
from specc.preprocessing.tokenizer_library import tokenize_text
from specc.runtime.model_inputs import ModelInputs
from specc.runtime.steppers import FullForwardStepper, KVCacheStepper

CreateStepper = Callable[[Arrays], FullForwardStepper | KVCacheStepper]
"""Creates a stepper for one text or batch of prepared inputs."""


def find_text_tokenizer(
    reading: PreprocessingConfig, generation: GenerateSection
) -> TextReading | None:
    """Return the tokenizer of the generated text: that of the output, else of the input."""
    record = dict(reading.outputs).get(generation.source)
    if isinstance(record, TextOutput):
        return record.vocabulary
    found = reading.get_input_reading(generation.growing)
    return found if isinstance(found, TEXT_READINGS) else None


@dataclass(kw_only=True)
class GenerativeModel:
    """The parts of a generative model. `input_signature` describes its inputs, `context` its
    maximum length, bounded by `table`. `stepper` begins a decode loop in Python; `itself` runs a
    standalone decode graph with the settings `compiled`. Tokens are `drawn` from so many logits.
    `begins`: the first token is sampled from prefix positions, without a prompt. `apart` are the
    facts of a step whose batch may hold sequences of different lengths.
    """

    input_signature: ModelInputs
    generation: GenerateSection
    reading: PreprocessingConfig
    context: int | None
    stepper: CreateStepper = field(repr=False)
    table: str = ""
    random_init: RandomWeights | None = None
    itself: Session | None = field(default=None, repr=False)
    compiled: Mapping[str, object] = field(default_factory=dict)
    drawn: int | None = None
    begins: bool = False
    apart: GenerationFacts | None = None

    @cached_property
    def decode(self) -> Callable[[Sequence[int]], str] | None:
        """Decode ids with the tokenizer of the output, else of the input; None without one."""
        record = find_text_tokenizer(self.reading, self.generation)
        return partial(decode_text, record=record) if record else None

    @property
    def vocabulary(self) -> VocabularySizes:
        """Vocabulary sizes of the input and of the logits."""
        below = self.input_signature.graph.input_facts[self.input_signature.growing].below
        return VocabularySizes(below.number if below is not None else None, self.drawn)


@dataclass(kw_only=True)
class GenerationRequest:
    """A request to generate a batch after `prompt`, with `keep` as its padding mask and `room` for
    so many tokens. `begun`: no prompt was given, so the first token is the start token, or there is
    none. Sequences are sampled by their `numbers`, by default their batch indices.
    """

    writer: GenerativeModel
    settings: GenerationSettings
    prepared: Arrays
    prompt: Ints
    keep: Bools | None
    room: int
    begun: bool = False
    numbers: Sequence[int] = ()

    @property
    def limited_settings(self) -> GenerationSettings:
        """The settings, with max_tokens limited to the positions left."""
        most = min(self.settings.max_tokens, self.room)
        return replace(self.settings, max_tokens=most)

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        """Detokenizer. E0945 if the model has none."""
        if self.writer.decode is None:
            raise_error(
                "E0945",
                "this model's tokens have no text form",
                notes=["its spec does not declare a tokenizer"],
                helps=[
                    "iterate over the tokens instead",
                    "add `show logits = text(…)` to the spec's `reading`",
                ],
            )
        return self.writer.decode


def encode_chat(input_signature: ModelInputs, messages: object) -> list[int]:
    """Encode a chat (a text, or messages with `role` and `content`) as prompt ids. E0424 if the
    model has no chat template, else as in `specc.preprocessing.chat_template`.
    """
    growing = input_signature.growing
    record = input_signature.reading.get_input_reading(growing) if growing else None
    if not isinstance(record, TextTokenizer) or record.chat is None:
        raise_error("E0424", "this model has no chat template", helps=["pass the formatted prompt"])
    text = render_chat_template(record.chat, parse_messages(messages))
    # the template has added the special tokens
    return tokenize_text(text, replace(record, special=False))


def prepare_prompts(
    input_signature: ModelInputs,
    inputs: Mapping[str, object],
    start: Sequence[int],
    begins: bool = False,
) -> Arrays:
    """Prepare arrays for every input: prompts as one batch, or the start tokens if no prompt is
    given; none if the sequence `begins` from prefix positions.
    """
    growing = input_signature.growing
    if growing not in inputs:
        return input_signature.prepared(_add_start_tokens(input_signature, inputs, start, begins))
    others = {name: value for name, value in inputs.items() if name != growing}
    prompts = _pad_prompts(input_signature, inputs[growing])
    # a mask from the caller takes precedence over the computed one
    prepared = input_signature.prepared({**prompts, **others})
    padded = next((n for n in prompts if n not in (growing, *others)), "")
    return _as_alone(input_signature, prepared, padded) if padded else prepared


def _add_start_tokens(
    input_signature: ModelInputs, inputs: Mapping[str, object], start: Sequence[int], begins: bool
) -> dict[str, object]:
    """Return the inputs with the start tokens of each sequence, or none if it `begins` without."""
    if not start and not begins:
        return dict(inputs)
    first = np.tile(np.array(start, np.int64), (_count_rows(input_signature, inputs), 1))
    # they are valid, even one with the padding id
    keep = input_signature.mask
    exists = {keep: np.ones(first.shape, np.bool_)} if keep else {}
    return {**exists, **inputs, input_signature.growing: first}


def _as_alone(input_signature: ModelInputs, prepared: dict[str, Array], keep: str) -> Arrays:
    """Compute the padding mask of batched prompts as if each stood in a batch of one."""
    defaults, growing = input_signature.defaults, input_signature.growing
    if defaults is None or keep not in defaults.outputs:
        return prepared
    if find_default_sources(defaults, keep) != {growing}:
        title = f"the prompts are of different length, and `{keep}` hangs on more"
        raise_error("E0912", title, helps=[f"pass `{keep}` with the prompts"])
    alone, exist = resolve_absent_inputs(defaults, (keep,)), prepared[keep].copy()
    for row, tokens in enumerate(prepared[growing]):
        begin = len(tokens) - int(exist[row].sum())
        given = {growing: tokens[None, begin:]}
        exist[row, begin:] = backend.load_reference().evaluate_graph(alone, given, {})[keep][0]
    return {**prepared, keep: exist}


def _pad_prompts(input_signature: ModelInputs, given: object) -> dict[str, object]:
    """Left-pad prompts of different lengths (lists of ids) and add their padding mask."""
    growing = input_signature.growing
    rows = _list_prompts(given)
    if not rows:
        return {growing: given}
    keep = input_signature.mask
    longest = max(map(len, rows))
    if not longest:
        given = np.zeros((len(rows), 0), np.int64)
    # Nothing is padded, but the model may require the mask anyway; a default provides it.
    if min(map(len, rows)) == longest:
        absent = input_signature.defaults.outputs if input_signature.defaults else ()
        if not keep or keep in absent:
            return {growing: given}
        return {growing: given, keep: np.ones((len(rows), longest), np.bool_)}
    if not keep:
        raise_error(
            "E0912",
            f"the prompts have {min(map(len, rows))} to {longest} tokens, "
            "and the model cannot tell padding",
            notes=["it has no `keep` input with the same axes"],
            helps=[
                "batch prompts of equal length, or add `keep: keep[batch, n]` to the graph's inputs"
            ],
        )
    # On the left, so that the newest token of every sequence is in one column. Its id does not
    # matter: `keep` marks it as padding.
    padded = [[0] * (longest - len(row)) + list(row) for row in rows]
    exist = [[False] * (longest - len(row)) + [True] * len(row) for row in rows]
    return {growing: padded, keep: exist}


def _list_prompts(given: object) -> list[Sequence[object]]:
    """Return prompts that are lists of ids; empty for any other value."""
    if not isinstance(given, list | tuple):
        return []
    rows: list[Sequence[object]] = [r for r in given if isinstance(r, list | tuple)]
    return rows if len(rows) == len(given) else []


def _count_rows(input_signature: ModelInputs, inputs: Mapping[str, object]) -> int:
    """Return the batch size of the given inputs."""
    for name, value in inputs.items():
        known = input_signature.graph.inputs.get(name)
        if known is None or input_signature.batch not in known.type.shape[:1]:
            continue
        # A text is one batch element, however many characters it has, and so is an image.
        if isinstance(value, str) or is_pil_image(value):
            continue
        if isinstance(value, list | tuple):
            return len(value)
        return next(iter(np.shape(np.asarray(value))), 1)
    return 1


def check_generation_settings(source: GenerativeModel, settings: GenerationSettings) -> None:
    """Raise E0732 or E0733 for settings that this model does not support."""
    growing, batch = source.input_signature.growing, source.input_signature.batch
    named = {
        "pad": settings.pad,
        "start": settings.start,
        "begin": settings.begin,
        "forced_eos_token_id": settings.forced_eos_token_id,
    }
    for name, token in named.items():
        if fault := source.vocabulary.check_token_id(name, token):
            raise Failed(fault)
    if settings.strategy == "beam" and batch.number is not None:
        raise_error(
            "E0733",
            f"beam search needs a dynamic batch size, this model has one of {batch}",
            helps=[
                f"give `{growing}` a run-time length as its first axis",
                "or use greedy decoding",
            ],
        )


def check_context(source: GenerativeModel, prompt: Ints) -> None:
    """Raise E0943 if the prompt is longer than the context."""
    if source.context is None or prompt.shape[1] <= source.context:
        return
    raise_error(
        "E0943",
        f"the prompt has {prompt.shape[1]} tokens, the model can see {source.context}",
        notes=[format_limit_reason(source.table, source.context)] if source.table else [],
        helps=["use a shorter prompt"],
    )


def max_new_tokens(source: GenerativeModel, settings: GenerationSettings, length: int) -> int:
    """Return how many tokens may follow a prompt of this length. E0733 if `max_length`
    leaves none.
    """
    room = settings.max_tokens
    if source.context is not None:
        # the last generated token is never fed back, so it needs no position
        room = source.context - length + 1
    if settings.max_length is None:
        return room
    left = settings.max_length - length
    if left < 1:
        raise_error(
            "E0733",
            f"the prompt has {length} tokens, and `max_length` is {settings.max_length}",
            helps=["use `max_tokens`, which does not count the prompt"],
        )
    return min(room, left)

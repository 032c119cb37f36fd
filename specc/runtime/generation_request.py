"""A generative model as a value, and one request to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from specc.artifact.generation_facts import GenerationFacts
from specc.artifact.manifest import RandomWeights
from specc.backend import Session
from specc.decode.generation_settings import GenerationSettings
from specc.decode.settings_errors import VocabularySizes
from specc.decode.token_choice import Bools, Ints
from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.ir.model import GenerateSection
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.records import TEXT_READINGS, TextOutput
from specc.preprocessing.text_codec import decode_text
from specc.runtime.model_inputs import ModelInputs
from specc.runtime.steppers import FullForwardStepper, KVCacheStepper

CreateStepper = Callable[[Mapping[str, Array]], FullForwardStepper | KVCacheStepper]
"""Creates a stepper for one text or batch of prepared inputs."""


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
        shown = [
            r.vocabulary
            for n, r in self.reading.shows
            if isinstance(r, TextOutput) and n == self.generation.source
        ]
        record = shown[0] if shown else self.reading.of_input(self.input_signature.growing)
        if isinstance(record, TEXT_READINGS):
            return partial(decode_text, record=record)
        return None

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
    prepared: Mapping[str, Array]
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

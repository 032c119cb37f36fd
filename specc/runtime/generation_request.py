"""A generative model as a value, and one request to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from specc.artifact.generation_facts import GenerationFacts
from specc.artifact.manifest import RandomWeights
from specc.backend import Session
from specc.decode.generation_settings import GenerationSettings
from specc.decode.settings_errors import VocabularySizes
from specc.decode.stepper_protocol import Bools, Ints
from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.ir.model import GenerateSection
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.records import TEXT, TextOutput
from specc.preprocessing.text_codec import decode_text
from specc.runtime.model_inputs import ModelInputs
from specc.runtime.steppers import FullForwardStepper, KVCacheStepper

Begin = Callable[[Mapping[str, Array]], FullForwardStepper | KVCacheStepper]
"""Makes a stepper for one text or batch, of inputs that are prepared."""


@dataclass(kw_only=True)
class GenerativeModel:
    """What a model that writes is run by. `entrance` says what it may be given,
    `context` how much it can see, by `table`.

    `stepper` begins one that is driven from here; `itself` runs one that decodes by
    itself, `compiled` as it says. Tokens are `drawn` from so many. A text `begins` by
    itself where rows stand before it, of which its first token is drawn. `apart` are the
    facts of a step in which sequences of different lengths may share a batch.
    """

    entrance: ModelInputs
    generation: GenerateSection
    reading: PreprocessingConfig
    context: int | None
    stepper: Begin = field(repr=False)
    table: str = ""
    chance: RandomWeights | None = None
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
        record = shown[0] if shown else self.reading.of_input(self.entrance.growing)
        if isinstance(record, TEXT):
            return partial(decode_text, record=record)
        return None

    @property
    def vocabulary(self) -> VocabularySizes:
        """How many tokens there are."""
        below = self.entrance.graph.input_facts[self.entrance.growing].below
        return VocabularySizes(below.number if below is not None else None, self.drawn)


@dataclass(kw_only=True)
class GenerationRequest:
    """What a model that writes is asked for: a batch of texts behind `prompt`, of which
    `keep` says what is no padding.

    There is `room` for so many tokens. `begun` says that nobody gave a prompt: the first
    token is the start, or there is none. The seed draws texts by their `numbers`, which
    are those of the rows where nobody gives any.
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
    def bounded(self) -> GenerationSettings:
        """The settings, with no more tokens than there are positions for."""
        most = min(self.settings.max_tokens, self.room)
        return replace(self.settings, max_tokens=most)

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        """Ids to text. E0945 where tokens are no text."""
        if self.writer.decode is None:
            raise_error(
                "E0945",
                "this model's tokens are no text",
                notes=["its spec does not say how they are read"],
                helps=[
                    "iterate over the tokens instead",
                    "say `show logits = text(…)` in the spec's `reading`",
                ],
            )
        return self.writer.decode

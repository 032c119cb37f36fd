"""A model that writes, as a value: what drives it, what it may be given, how its tokens
read; and what it is asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from specc.artifact.chance import Chance
from specc.artifact.facts import Facts
from specc.backend import Session
from specc.data.reading import Reading
from specc.data.record import TEXT, TextOf
from specc.data.text import decode
from specc.decode.option_faults import Vocabulary
from specc.decode.settings import Settings
from specc.decode.stepper import Bools, Ints
from specc.ir.array import Array
from specc.ir.model import Generation
from specc.run.inputs import Entrance
from specc.run.steppers import FullStepper, StateStepper
from specc.text.diagnostic import fail

Begin = Callable[[Mapping[str, Array]], FullStepper | StateStepper]
"""Makes a stepper for one text or batch, of inputs that are prepared."""


@dataclass(kw_only=True)
class Source:
    """What a model that writes is run by. `entrance` says what it may be given,
    `context` how much it can see, by `table`.

    `stepper` begins one that is driven from here; `itself` runs one that decodes by
    itself, `compiled` as it says. Tokens are `drawn` from so many. A text `begins` by
    itself where rows stand before it, of which its first token is drawn. `apart` are the
    facts of a step in which texts of unequal age may stand beside each other.
    """

    entrance: Entrance
    generation: Generation
    reading: Reading
    context: int | None
    stepper: Begin = field(repr=False)
    table: str = ""
    chance: Chance | None = None
    itself: Session | None = field(default=None, repr=False)
    compiled: Mapping[str, object] = field(default_factory=dict)
    drawn: int | None = None
    begins: bool = False
    apart: Facts | None = None

    @cached_property
    def decode(self) -> Callable[[Sequence[int]], str] | None:
        """Ids to text as the model shows its result, else as it reads what grows; None
        where it does neither.
        """
        shown = [
            r.vocabulary
            for n, r in self.reading.shows
            if isinstance(r, TextOf) and n == self.generation.source
        ]
        record = shown[0] if shown else self.reading.of_input(self.entrance.growing)
        if isinstance(record, TEXT):
            return partial(decode, record=record)
        return None

    @property
    def vocabulary(self) -> Vocabulary:
        """How many tokens there are."""
        below = self.entrance.graph.input_facts[self.entrance.growing].below
        return Vocabulary(below.number if below is not None else None, self.drawn)


@dataclass(kw_only=True)
class Asked:
    """What a model that writes is asked for: a batch of texts behind `prompt`, of which
    `keep` says what is no padding.

    There is `room` for so many tokens. `begun` says that nobody gave a prompt: the first
    token is the start, or there is none. The seed draws texts by their `numbers`, which
    are those of the rows where nobody gives any.
    """

    writer: Source
    settings: Settings
    prepared: Mapping[str, Array]
    prompt: Ints
    keep: Bools | None
    room: int
    begun: bool = False
    numbers: Sequence[int] = ()

    @property
    def bounded(self) -> Settings:
        """The settings, with no more tokens than there are positions for."""
        most = min(self.settings.max_tokens, self.room)
        return replace(self.settings, max_tokens=most)

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        """Ids to text. E0945 where tokens are no text."""
        if self.writer.decode is None:
            fail(
                "E0945",
                "this model's tokens are no text",
                notes=["its spec does not say how they are read"],
                helps=[
                    "iterate over the tokens instead",
                    "say `show logits = text(…)` in the spec's `reading`",
                ],
            )
        return self.writer.decode

"""How a model decodes itself: what is settled when it is written, and what the caller gives at run time."""

from dataclasses import dataclass
from typing import Literal

Strategy = Literal["greedy", "sample", "beam"]

MAX_TOKENS = "max_tokens"
"""i64[]: how many tokens are made at most; an input of every model that decodes."""

SEED = "seed"
"""i64[]: what the draws of a model that samples are made from; not negative."""

PENALTY = "repetition_penalty"
"""f32[]: 1 changes nothing; more makes tokens that were there before less likely."""

KNOBS = {"temperature": "f32", "top_k": "i64", "top_p": "f32", "min_p": "f32"}
"""The scalars a model that samples takes. 0 (`top_k`, `min_p`) and 1 (`temperature`, `top_p`) change nothing."""


NOWHERE = -1
"""What stands for a token where the model gives no number: no token of any model. Its log-probability is NaN."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """What is settled when the model is written.

    `source` is the result of the step whose newest row tells the next token. `start` is the token every row
    starts with; None where the caller gives a prompt. `stop` are the tokens that end a row, `pad` stands behind
    them (None: the stop itself). `penalized` models take `repetition_penalty`.

    For beam search: `beams` hypotheses are followed and the `best` given; scores are divided by
    `length ** length_penalty`; `early` stops as soon as `beams` are finished, "never" only when none can get better.
    """

    source: str
    strategy: Strategy = "greedy"
    start: int | None = None
    stop: tuple[int, ...] = ()
    pad: int | None = None
    penalized: bool = False
    beams: int = 4
    best: int = 1
    length_penalty: float = 1.0
    early: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        assert 1 <= self.best <= self.beams, f"{self.best} of {self.beams} beams"

    @property
    def filler(self) -> int:
        """The token that stands where a row is over."""
        return self.pad if self.pad is not None else self.stop[0] if self.stop else 0

    @property
    def scalars(self) -> dict[str, str]:
        """The scalar inputs of the model and their element types, in order."""
        found = {MAX_TOKENS: "i64"}
        if self.strategy == "sample":
            found |= {SEED: "i64", **KNOBS}
        return found | ({PENALTY: "f32"} if self.penalized else {})

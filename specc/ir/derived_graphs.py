"""Records for the graphs derived from a generative model: encoder, decode step,
its states and KV caches, and the settings of a self-decoding model.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from specc.ir.graph import Graph
from specc.ir.types import Type

StateRole = Literal["key", "value", "carry", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeState:
    """A decode state: input `name`, output `next` of a step.

    `batch` is its batch axis or None; `rows` its time axis, None for a fixed shape, with at most
    `most` positions. `initial` names the output of `encode` that it starts as, "" for zeros. `role`
    and `layer` identify its attention, loop or running sum.
    """

    name: str
    next: str
    type: Type
    batch: int | None
    rows: int | None
    most: float
    initial: str
    role: StateRole
    layer: int


@dataclass(frozen=True, kw_only=True)
class DerivedGraphs:
    """A generative graph split along the time axis. `encode` is computed once, if at all. `step`
    takes new positions of `growing`, `handed` values (outputs of `encode`, or inputs of the spec),
    inputs along the time axis (those in `whole` with the past), and the states. `first` names the
    output of `encode` with the logits of an empty sequence, `[batch, vocabulary]` or `[batch, 1,
    vocabulary]`; "" if a sequence begins with a token.
    """

    encode: Graph | None
    step: Graph
    states: tuple[DecodeState, ...]
    handed: tuple[str, ...]
    whole: tuple[str, ...]
    growing: str
    first: str = ""


PAST_LENGTH_INPUT = "past.rows"
"""The past length input: a state if no other input has that length, given by the caller with
in-place buffers."""


@dataclass(frozen=True, slots=True)
class KVCache:
    """One attention's cache: input names, and the outputs that replace them."""

    key: str
    value: str
    next_key: str
    next_value: str


@dataclass(frozen=True)
class KVBufferGraph:
    """A step graph, and the caches of it that are buffers."""

    graph: Graph
    caches: tuple[KVCache, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that are buffers."""
        return tuple(n for c in self.caches for n in (c.key, c.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingConfig:
    """Decoding settings of a standalone decode graph. `source` is the output with the logits. Each
    sequence starts with the tokens `start` (none if a prompt is given) and ends with one of `stop`,
    followed by `pad`. Beam search follows `num_beams` and returns `best` hypotheses, scored by
    `length ** length_penalty`; `early` stops with `num_beams` finished ones, "never" only when none
    can improve. Token rules: `suppress_tokens`, `begin_suppress_tokens`, no stop before
    `min_tokens` or `min_length` (with the prompt), one of each position of `begin` first,
    `forced_eos_token_id` at the limit, `no_repeat_ngram_size`, `bad_words_ids`;
    `renormalize_logits` after these, `penalized` takes `repetition_penalty`.
    """

    source: str
    strategy: Literal["greedy", "sample", "beam"] = "greedy"
    start: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    pad: int | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    min_tokens: int = 0
    min_length: int = 0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    begin: tuple[tuple[int, ...], ...] = ()
    forced_eos_token_id: int | None = None
    renormalize_logits: bool = False
    penalized: bool = False
    num_beams: int = 4
    best: int = 1
    length_penalty: float = 1.0
    early: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        assert 1 <= self.best <= self.num_beams, f"{self.best} of {self.num_beams} beams"

    @property
    def filler(self) -> int:
        """The filler token after the end of a sequence."""
        if self.pad is not None:
            return self.pad
        return self.stop[0] if self.stop else 0


@dataclass(frozen=True)
class SelfDecodingGraph:
    """A self-decoding model's parts: the spec's graph, the derived ones, and the decoding.
    `defaults` computes inputs that are then none of the model.
    """

    graph: Graph
    derived: DerivedGraphs
    decoding: DecodingConfig
    defaults: Graph | None = None


ModelSource: TypeAlias = Graph | KVBufferGraph | SelfDecodingGraph
"""The source of a model: a graph, one with in-place caches, or a graph with decoding settings."""

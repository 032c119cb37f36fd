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
    """A value that one step hands to the next.

    `name` is the input of the step graph, `next` the output that takes its place.
    `batch` is its batch axis, None where it has none. `rows` is the axis that grows,
    None for a carry of fixed shape; at most `most` rows are kept. `initial` names the
    output of `encode` that it starts as; empty, it starts as zeros, without rows where
    it has an axis of them. `role` and `layer` say whose it is: keys or values of an
    attention, the carry of a loop or a running sum, or other rows; the layer counts
    within the role.
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
    """A graph taken apart along the axis that grows.

    `encode` is computed once; None where there is nothing to compute. `step` takes the
    new rows of `growing`, what `handed` names (results of `encode`, or inputs of the
    spec, the same at every step), inputs along the time axis (those in `whole` with
    the rows of before and the new ones, others with the new rows), and the states.
    `first` names the result of `encode` that the first token of an empty text is drawn
    from, `[batch, vocabulary]` or with one row between; empty, a text begins with a
    token.
    """

    encode: Graph | None
    step: Graph
    states: tuple[DecodeState, ...]
    handed: tuple[str, ...]
    whole: tuple[str, ...]
    growing: str
    first: str = ""


PAST_LENGTH_INPUT = "past.rows"
"""The input that says how many rows there were: a state where no other input tells, the
caller's beside buffers.
"""


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
    """How a model that decodes by itself does so, as far as that is settled when it is
    written.

    `source` is the result of the step whose newest row tells the next token. `start` are
    the tokens every row starts with; none where the caller gives a prompt. `stop` are
    the tokens that end a row, `pad` stands behind them (None: the stop itself).
    `penalized` models take `repetition_penalty`.

    For beam search: `num_beams` hypotheses are followed and the `best` given; scores are
    divided by `length ** length_penalty`; `early` stops as soon as `num_beams` are
    finished, "never" only when none can get better.

    `suppress_tokens` and `begin_suppress_tokens` are tokens that are never written, or not
    first; no stop comes before `min_tokens`; one of each place of `begin` comes first, and
    `forced_eos_token_id` at the maximum length. No n-gram of size `no_repeat_ngram_size`
    occurs twice, no sequence of `bad_words_ids` is generated, and no stop comes before a
    sequence has `min_length` tokens, the prompt included. `renormalize_logits` makes beam
    search renormalize the probabilities after these rules.
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
        """The token that stands where a row is over."""
        if self.pad is not None:
            return self.pad
        return self.stop[0] if self.stop else 0


@dataclass(frozen=True)
class SelfDecodingGraph:
    """What a model that decodes itself is made from: the spec's graph, the same taken
    apart, and how to decode.

    `defaults` computes inputs that are then no inputs of the model.
    """

    graph: Graph
    derived: DerivedGraphs
    decoding: DecodingConfig
    defaults: Graph | None = None


ModelSource: TypeAlias = Graph | KVBufferGraph | SelfDecodingGraph
"""What a model is made from: a graph, one with caches in place, or a graph and how to
decode with it.
"""

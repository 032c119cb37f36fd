"""The time axis of a generative model: which axes grow with it, how many prefix
positions come first, and how many positions each chunk adds.

    seq            head 0: a sequence
    3 + seq        head 3: three learned positions before it
    m + 2 + seq    head m + 2: a memory of `m` positions, two more, the sequence

Position `r` of such an axis is *time* `r - h`; positions of the head have negative times, so
a prefix needs no rule of its own. Behind strided windows `g` counts *chunks* of the input,
and an axis has as many positions per chunk as its *rate*:

    6 seq          six per chunk: samples
    2 seq          two, behind a window of stride 3
    4 + seq        one, behind four positions that were there before
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.length_constraints import is_never_negative


@dataclass(frozen=True, slots=True)
class TimeAxisLayout:
    """The rows of an axis that grows: `head` of them first, then `rate` with each chunk."""

    head: Dim
    rate: int = 1


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """What grows in a graph: the length `grows`, a symbol, and those that follow from it,
    `related`, itself among them. `least` bounds lengths from below.

    The input that grows has `chunk` rows for each that `grows` counts.
    """

    grows: Dim
    related: frozenset[str]
    least: frozenset[tuple[str, int]] = frozenset()
    chunk: int = 1

    @property
    def symbol(self) -> str:
        """The name of what grows."""
        name = self.grows.name
        assert name is not None, "what grows is a length with a name"
        return name

    def head(self, length: Dim) -> Dim | None:
        """Return the prefix length of an axis of this length; None if it is no time axis."""
        track = self.track(length)
        return None if track is None else track.head

    def rate(self, length: Dim) -> int:
        """How many rows an axis of this length gains with a chunk; 0 where it gains none."""
        track = self.track(length)
        return 0 if track is None else track.rate

    def track(self, length: Dim) -> TimeAxisLayout | None:
        """The rows of an axis of this length; None where it is no time axis."""
        return TimeAxisLayout(Dim.of(0)) if length == self.grows else _find_layout(self, length)

    def begun(self, length: Dim) -> bool:
        """Whether an axis of this length surely has a row before those that grow."""
        head = self.head(length)
        return head is not None and self.sure(head - 1)

    def sure(self, length: Dim) -> bool:
        """Whether a length is surely not below 0."""
        return is_never_negative(length, dict(self.least))


@lru_cache(maxsize=4096)
def _find_layout(clock: TimeAxis, length: Dim) -> TimeAxisLayout | None:
    if length.symbols() & clock.related != {clock.symbol}:
        return None
    # Once, and with nothing else that grows: of `2 g` no row is told apart by `r - g`,
    # unless a chunk has as many rows.
    rate = dict(length.terms).get(((clock.symbol, 1),), 0)
    if rate <= 0 or clock.chunk % rate:
        return None
    rest = length - clock.grows * rate
    if rest.symbols() & clock.related or not clock.sure(rest):
        return None
    return TimeAxisLayout(rest, rate)


def find_time_axis(graph: Graph, symbol: str, chunk: int = 1) -> TimeAxis:
    """What grows along `symbol` in a graph, `chunk` rows at a time."""
    related = collect_related_symbols(graph.facts, symbol)
    least = frozenset((n, m) for n, m in graph.least.items() if n not in related)
    return TimeAxis(Dim.symbol(symbol), related, least, chunk)


def collect_related_symbols(facts: Mapping[str, Dim], symbol: str) -> frozenset[str]:
    """The symbol and those that a fact states in terms of it."""
    found = {symbol}
    while more := {n for n, dim in facts.items() if dim.symbols() & found} - found:
        found |= more
    return frozenset(found)

"""The time axis of a generative model: which axes grow with it, how many prefix
positions come first, and how many positions each chunk adds.

    seq            head 0: a sequence
    3 + seq        head 3: three learned positions before it
    m + 2 + seq    head m + 2: a memory of `m` positions, two more, the sequence

Position `r` of such an axis is *time* `r - h`; prefix positions have negative times, so
a prefix needs no rule of its own. After strided windows `g` counts *chunks* of the input,
and an axis has as many positions per chunk as its *rate*:

    6 seq          six per chunk: samples
    2 seq          two, after a window of stride 3
    4 + seq        one, after four prefix positions
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.length_constraints import is_never_negative


@dataclass(frozen=True, slots=True)
class TimeAxisLayout:
    """The positions of a time axis: `head` prefix positions, then `rate` per chunk."""

    prefix_length: Dim
    rate: int = 1


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The time axis of a graph: the symbol `grows`, and the symbols that depend on it, `related`,
    itself included. `least` are lower bounds of lengths. The autoregressive input has `chunk`
    positions per unit of `grows`.
    """

    length: Dim
    dependent_symbols: frozenset[str]
    min_lengths: frozenset[tuple[str, int]] = frozenset()
    chunk_size: int = 1

    @property
    def symbol(self) -> str:
        """The symbol of the time axis."""
        name = self.length.name
        assert name is not None, "the time axis has a named length"
        return name

    def get_prefix_length(self, length: Dim) -> Dim | None:
        """Return the prefix length of an axis of this length; None if it is not a time axis."""
        track = self.get_layout(length)
        return None if track is None else track.prefix_length

    def get_rate(self, length: Dim) -> int:
        """Return the positions that an axis of this length gains per chunk, or 0."""
        track = self.get_layout(length)
        return 0 if track is None else track.rate

    def get_layout(self, length: Dim) -> TimeAxisLayout | None:
        """Return the layout of an axis of this length; None if it is not a time axis."""
        return TimeAxisLayout(Dim.of(0)) if length == self.length else _find_layout(self, length)

    def has_prefix(self, length: Dim) -> bool:
        """Return whether an axis of this length certainly has a prefix position."""
        head = self.get_prefix_length(length)
        return head is not None and self.is_non_negative(head - 1)

    def is_non_negative(self, length: Dim) -> bool:
        """Return whether a length is certainly non-negative."""
        return is_never_negative(length, dict(self.min_lengths))


@lru_cache(maxsize=4096)
def _find_layout(time_axis: TimeAxis, length: Dim) -> TimeAxisLayout | None:
    if length.symbols() & time_axis.dependent_symbols != {time_axis.symbol}:
        return None
    # Once, and without other growing symbols: with length `2 g` no position is identified by `r -
    # g`, unless a chunk has as many positions.
    rate = dict(length.terms).get(((time_axis.symbol, 1),), 0)
    if rate <= 0 or time_axis.chunk_size % rate:
        return None
    rest = length - time_axis.length * rate
    if rest.symbols() & time_axis.dependent_symbols or not time_axis.is_non_negative(rest):
        return None
    return TimeAxisLayout(rest, rate)


def find_time_axis(graph: Graph, symbol: str, chunk_size: int = 1) -> TimeAxis:
    """Return the time axis of `symbol` in a graph, with `chunk` positions per unit."""
    related = collect_related_symbols(graph.length_equations, symbol)
    least = frozenset((n, m) for n, m in graph.min_lengths.items() if n not in related)
    return TimeAxis(Dim.symbol(symbol), related, least, chunk_size)


def collect_related_symbols(facts: Mapping[str, Dim], symbol: str) -> frozenset[str]:
    """Return the symbol and those that facts define in terms of it."""
    found = {symbol}
    while more := {n for n, dim in facts.items() if dim.symbols() & found} - found:
        found |= more
    return frozenset(found)

"""What stands in front of what grows: an axis of the length `h + g` has a head of `h`
rows, behind which come the rows of `g`.

    seq            head 0: a text
    3 + seq        head 3: three learned rows before it
    m + 2 + seq    head m + 2: a memory of `m` rows, two more, the text

Row number `r` of such an axis is *time* `r - h`. Rows of the head have times below 0.
Everything that is said of rows along `g` is said in time, so that a head needs no rule
of its own: what is put in front of an axis moves no row of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.least import never_negative


@dataclass(frozen=True, slots=True)
class Clock:
    """What grows in a graph: the length `grows`, a symbol, and those that follow from it,
    `related`, itself among them. `least` bounds lengths from below.
    """

    grows: Dim
    related: frozenset[str]
    least: frozenset[tuple[str, int]] = frozenset()

    @property
    def symbol(self) -> str:
        """The name of what grows."""
        name = self.grows.name
        assert name is not None, "what grows is a length with a name"
        return name

    def head(self, length: Dim) -> Dim | None:
        """The rows before those that grow on an axis of this length; None where it is no
        time axis.
        """
        return Dim.of(0) if length == self.grows else _head(self, length)

    def begun(self, length: Dim) -> bool:
        """Whether an axis of this length surely has a row before those that grow."""
        head = self.head(length)
        return head is not None and self.sure(head - 1)

    def sure(self, length: Dim) -> bool:
        """Whether a length is surely not below 0."""
        return never_negative(length, dict(self.least))


@lru_cache(maxsize=4096)
def _head(clock: Clock, length: Dim) -> Dim | None:
    # Once, and with nothing else that grows: of `2 g` no row is told apart by `r - g`.
    if length.symbols() & clock.related != {clock.symbol}:
        return None
    rest = length - clock.grows
    if rest.symbols() & clock.related or not clock.sure(rest):
        return None
    return rest


def clock_of(graph: Graph, symbol: str) -> Clock:
    """What grows along `symbol` in a graph."""
    related = related_to(graph.facts, symbol)
    least = frozenset((n, m) for n, m in graph.least.items() if n not in related)
    return Clock(Dim.symbol(symbol), related, least)


def related_to(facts: Mapping[str, Dim], symbol: str) -> frozenset[str]:
    """The symbol and those that a fact states in terms of it."""
    found = {symbol}
    while more := {n for n, dim in facts.items() if dim.symbols() & found} - found:
        found |= more
    return frozenset(found)

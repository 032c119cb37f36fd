"""The parts of a mask: a band, and what is decided by the key alone or the query alone.

On entry: a mask and its two axes. `window | global rows` has no band, because a global
row sees all and is seen by all; taken apart it is a band, keys that every query may see,
and queries that may see every key:

    abs(i - j) < 64 | first[j] | first[i]     [-63, 63], first[j], first[i]
    (i - j < 64 & j <= i | j < 4) & keep[j]   [0, 63], j < 4
    first[i] & keep[j]                        nothing, first[i]

What is found holds all that the mask shows, and may hold more: of two conditions that
must both hold, the one is kept that leaves less.
"""

from collections.abc import Collection, Generator
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from specc.ir import ops
from specc.ir.graph import Value
from specc.ir.interval import ALL, EMPTY, Interval
from specc.passes.prove.bands import band_of
from specc.passes.prove.grids import Grid, aligned, grid_of, through
from specc.passes.prove.once import Budget, answered


@dataclass(frozen=True, slots=True)
class Alone:
    """Rows along `axis` of a boolean at which it is true, at any place along its other
    axes; with `negated` at which it is false.
    """

    value: Value
    axis: int
    negated: bool


@dataclass(frozen=True, slots=True)
class Parts:
    """A mask is true only where `q - k` lies in `band`, or at one of the `keys`, or of
    the `queries`.
    """

    band: Interval
    keys: tuple[Alone, ...] = ()
    queries: tuple[Alone, ...] = ()

    def __or__(self, other: "Parts") -> "Parts":
        keys = dict.fromkeys((*self.keys, *other.keys))
        queries = dict.fromkeys((*self.queries, *other.queries))
        return Parts(self.band | other.band, tuple(keys), tuple(queries))

    def __and__(self, other: "Parts") -> "Parts":
        if not (self.alone or other.alone):
            return Parts(self.band & other.band)
        return min(self, other, key=lambda parts: parts.left)

    @property
    def alone(self) -> int:
        """How many parts there are beside the band."""
        return len(self.keys) + len(self.queries)

    @property
    def left(self) -> tuple[int, bool, int]:
        """Less where less is seen, as far as one can tell: sides without an end count
        first, then keys alone, which are most of them where they say what is padding.
        """
        ends = (self.band.lo, self.band.hi)
        open_ = 0 if self.band.empty else sum(abs(end) == inf for end in ends)
        return open_, self.band.empty and bool(self.keys), self.alone


def parts_of(
    value: Value, query: int, key: int, padded: Collection[Value] = ()
) -> Parts:
    """The parts of a mask whose queries are its axis `query`, its keys its axis `key`.

    `padded` are the inputs that say which rows exist: most do, so they are no parts.
    """
    asked = _Asked(grid_of(value, query, key), False)
    return answered(asked, _Split(padded).rule, {}, Budget(), Parts(ALL))


class _Asked(NamedTuple):
    """What are the parts of a grid, or of its opposite?"""

    grid: Grid
    negated: bool


@dataclass(frozen=True, slots=True)
class _Split:
    padded: Collection[Value]

    def rule(self, asked: _Asked) -> Generator[_Asked, Parts, Parts]:
        """The parts of a grid, from those of its operands."""
        grid, negated = asked
        node = grid.value.node
        if grid.query is None or grid.key is None:
            return self._alone(grid, negated)
        if node is None:
            return Parts(ALL)
        if (inner := through(grid)) is not None:
            return (yield _Asked(inner, negated))
        operands = [aligned(grid, a) for a in node.args if a]
        match node.op:
            case ops.Not():
                return (yield _Asked(operands[0], not negated))
            case ops.And() | ops.Or():
                left = yield _Asked(operands[0], negated)
                right = yield _Asked(operands[1], negated)
                # "not (a and b)" is "not a or not b", and the other way round.
                both = isinstance(node.op, ops.And) != negated
                return left & right if both else left | right
            case ops.Where() if grid.value.type.dtype == "bool":
                condition, yes, no = operands
                taken = yield _Asked(condition, False)
                taken = taken & (yield _Asked(yes, negated))
                left = yield _Asked(condition, True)
                return taken | (left & (yield _Asked(no, negated)))
        return Parts(band_of(grid, negated=negated))

    def _alone(self, grid: Grid, negated: bool) -> Parts:
        """A condition that does not compare queries with keys."""
        inner: Grid | None = grid
        while inner is not None and not negated:
            if inner.value in self.padded:
                return Parts(ALL)
            inner = through(inner)
        if grid.value.type.dtype != "bool":
            return Parts(band_of(grid, negated=negated))
        if grid.key is not None:
            return Parts(EMPTY, keys=(Alone(grid.value, grid.key, negated),))
        if grid.query is not None:
            return Parts(EMPTY, queries=(Alone(grid.value, grid.query, negated),))
        # One for all: a number that is written down, or what only an input tells.
        return Parts(band_of(grid, negated=negated))

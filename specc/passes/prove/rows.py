"""What is known of a value where rows are padded: the facts that `padded` finds and
`padding` asks for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specc.ir.graph import Graph, Node, Value
from specc.passes.prove.rotation import Turned
from specc.passes.prove.row_numbers import NOTHING, Count, either

if TYPE_CHECKING:
    from specc.passes.prove.padded_link import Reading


@dataclass(frozen=True, slots=True)
class Dirt:
    """The op through which padded rows came in. `counted`: by their number, not by
    their values; `shifted`: by their number before a stride.

    `inside` is the body of the loop that the op stands in, if it stands in one;
    `reading` the link that lets them in, where values do.
    """

    node: Node
    counted: bool = False
    shifted: bool = False
    inside: Graph | None = None
    reading: "Reading | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What is known of a value along a padded axis.

    It is zero or false (`zero`), very low (`low`), or lower than at every row that
    exists (`floor`), wherever its row along one of these axes is padded. Along `peaks`
    at least one row that exists holds an ordinary number; unless `wild`, all do, and
    unless `stained`, padded ones too. Where rows are padded it may hold NaN (`broken`) or
    infinity (`endless`, of these signs).

    `count`: it grows with the number of padded rows before. `turned`: its features were
    rotated by angles that do. `points`: it holds numbers of rows that exist. `held`: the
    number that stands wherever the row along an axis is padded. `fill`: the same, where it
    also stands at the positions that `pad` or `concat` added beside. `repeated`: axes
    along which padded positions hold what the last that exists holds. `ranked`: axes along
    which rows are in the order of what they hold, padded ones last. `behind`: a mask
    where it is false alone infinity was put, from which all that is broken comes.
    `dirt`: padded rows have reached rows that exist.
    """

    zero: frozenset[int] = frozenset()
    low: frozenset[int] = frozenset()
    floor: frozenset[int] = frozenset()
    peaks: frozenset[int] = frozenset()
    wild: bool = False
    stained: bool = False
    endless: frozenset[int] = frozenset()
    broken: bool = False
    count: Count = None
    turned: Turned | None = None
    points: bool = False
    held: Mapping[int, float] = field(default_factory=dict)
    fill: Mapping[int, float] = field(default_factory=dict)
    repeated: frozenset[int] = frozenset()
    ranked: frozenset[int] = frozenset()
    behind: Value | None = None
    dirt: Dirt | None = None

    @property
    def finite(self) -> bool:
        """Whether all padded positions hold finite values, which times zero are zero."""
        return not (self.broken or self.endless)

    def at_padded(self, axis: int) -> float | None:
        """Return the number that stands wherever an axis is padded, if it is known."""
        return 0.0 if axis in self.zero else self.held.get(axis)

    def covered(self, axis: int) -> bool:
        """Whether a maximum along an axis passes over padded rows."""
        return axis in self.floor or (axis in self.low and axis in self.peaks)


PLAIN = Rows(count=NOTHING)
"""A value of which nothing is known, and that has not to do with padding."""


def moved(rows: Rows, axis: int, by: int) -> Rows:
    """`rows` where an axis was taken out (-1) or put in (1) at `axis`."""

    def changed(known: frozenset[int]) -> frozenset[int]:
        return frozenset(
            a + by if a >= axis else a for a in known if by > 0 or a != axis
        )

    def numbers(known: Mapping[int, float]) -> dict[int, float]:
        return {
            a + by if a >= axis else a: n
            for a, n in known.items()
            if by > 0 or a != axis
        }

    # Where turned features lie is not followed into a body, nor out of it.
    turned = replace(rows.turned, axis=None) if rows.turned else None
    return replace(
        rows,
        zero=changed(rows.zero),
        low=changed(rows.low),
        floor=changed(rows.floor),
        peaks=changed(rows.peaks),
        held=numbers(rows.held),
        fill=numbers(rows.fill),
        repeated=changed(rows.repeated),
        ranked=changed(rows.ranked),
        behind=None,
        turned=turned,
    )


def one_of(one: Rows, other: Rows) -> Rows:
    """What is known of a value that is one or the other: a carry as it starts, or as a
    step of its loop leaves it.
    """
    # What is good must hold of both, what is bad of either.
    return Rows(
        zero=one.zero & other.zero,
        low=one.low & other.low,
        floor=one.floor & other.floor,
        peaks=one.peaks & other.peaks,
        wild=one.wild or other.wild,
        stained=one.stained or other.stained,
        endless=one.endless | other.endless,
        broken=one.broken or other.broken,
        # Ranks in one and rows in the other: nothing more is said of either.
        count=either(one.count, other.count) if one.ranked == other.ranked else None,
        held=dict(one.held.items() & other.held.items()),
        fill=dict(one.fill.items() & other.fill.items()),
        repeated=one.repeated & other.repeated,
        ranked=one.ranked | other.ranked,
        turned=one.turned or other.turned,
        points=one.points and other.points,
        dirt=one.dirt or other.dirt,
    )

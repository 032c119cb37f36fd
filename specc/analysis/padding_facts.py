"""Facts about a value at padded positions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, TypeAlias, TypeVar

from specc.analysis.padding_positions import NO_PADDING_COUNT, PaddingCount, merge_padding_counts
from specc.analysis.padding_rotation import RotationFact
from specc.ir import ops
from specc.ir.dependence import Dependence, get_read_length
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op


@dataclass(frozen=True, slots=True)
class PaddingSource:
    """The op through which padded positions entered. `counted`: by their number, not by their
    values; `shifted`: by their number before a stride. `inside` is the body of the loop that
    contains the op, if any; `reading` the dependence that reads them.
    """

    node: Node
    counted: bool = False
    shifted: bool = False
    inside: Graph | None = None
    reading: "PaddedRead | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingFacts:
    """Facts about a value along a padded axis.

    At padded positions along these axes it is zero or false (`zero`), very low (`low`), or
    lower (`floor`) or higher (`ceiling`) than at every valid position. Along `finite_axes` at
    least one valid position holds an ordinary value; unless `has_extremes`, all do, and unless
    `extreme_padding`, padded ones too. At padded positions it may be NaN (`broken`) or infinite
    (`infinite_signs`, of these signs).

    `count`: what the number of earlier padded positions adds to it. `turned`: the rotation of
    its features by such angles. `points`: it holds indices of valid positions. `held`: the
    constant at padded positions, by axis. `fill`: the same if positions added by `pad` or
    `concat` hold it, too. `repeated`: axes along which padded positions repeat the last valid
    one. `ranked`: axes in sorted order, padded positions last. `reversed`: axes that `flip`
    reversed, and padding with them. `rolled`: axes that `roll` rotated, and padding with them,
    each with the leak that reading one position would be. `behind`: the mask outside of
    which infinity was filled in, from which all NaN comes. `padding_source`: the source through
    which padded positions reached valid ones.
    """

    zero: frozenset[int] = frozenset()
    low: frozenset[int] = frozenset()
    floor: frozenset[int] = frozenset()
    ceiling: frozenset[int] = frozenset()
    finite_axes: frozenset[int] = frozenset()
    has_extremes: bool = False
    extreme_padding: bool = False
    infinite_signs: frozenset[int] = frozenset()
    broken: bool = False
    count: PaddingCount = None
    turned: RotationFact | None = None
    points: bool = False
    held: Mapping[int, float] = field(default_factory=dict)
    fill: Mapping[int, float] = field(default_factory=dict)
    repeated: frozenset[int] = frozenset()
    ranked: frozenset[int] = frozenset()
    reversed: frozenset[int] = frozenset()
    rolled: Mapping[int, PaddingSource] = field(default_factory=dict)
    behind: Value | None = None
    padding_source: PaddingSource | None = None

    @property
    def is_finite(self) -> bool:
        """True if all padded positions hold finite values, so that times zero they are zero."""
        return not (self.broken or self.infinite_signs)

    def get_padded_value(self, axis: int) -> float | None:
        """Return the constant at all padded positions of an axis, None if unknown."""
        return 0.0 if axis in self.zero else self.held.get(axis)

    def get_side(self, axis: int, side: str) -> str:
        """Return on which side of an axis padding lies if `side` is that of the padding mask."""
        other = {"left": "right", "right": "left"}
        return other.get(side, side) if axis in self.reversed else side

    def is_ignored_by_max(self, axis: int) -> bool:
        """Return True if a maximum along `axis` ignores padded positions."""
        return axis in self.floor or (axis in self.low and axis in self.finite_axes)


GUARANTEES = ("zero", "low", "floor", "ceiling", "finite_axes", "repeated", "points")
HAZARDS = ("has_extremes", "extreme_padding", "infinite_signs", "broken", "ranked", "reversed")
"""Fields of two alternative values that hold if they hold of both, or of either."""

AXIS_SETS = (*GUARANTEES[:-1], "ranked", "reversed")
"""The fields that are sets of axes."""

T = TypeVar("T")

NO_PADDING_FACTS = PaddingFacts(count=NO_PADDING_COUNT)
"""The facts of a value that does not depend on padding and of which nothing else is known."""


def is_order_exposed(graph: Graph, name: str, value: Value, rows: PaddingFacts) -> bool:
    """Return True if valid positions of an output are in reverse order, or the first ones in
    sorted order while the padding may stand before them or between others.
    """
    length = graph.inputs[name].shape[-1:]
    away = any(value.shape[axis : axis + 1] != length for axis in rows.ranked)
    away = away or bool(rows.reversed)
    return away or (bool(rows.ranked) and graph.input_facts[name].keep != "right")


def shift_fact_axes(rows: PaddingFacts, axis: int, by: int) -> PaddingFacts:
    """Return `rows` with an axis removed (-1) or inserted (1) at `axis`."""

    def shift_keys(known: Mapping[int, T]) -> dict[int, T]:
        return {a + by if a >= axis else a: n for a, n in known.items() if by > 0 or a != axis}

    shifted: dict[str, Any] = {
        name: frozenset(shift_keys(dict.fromkeys(getattr(rows, name)))) for name in AXIS_SETS
    }
    # The location of rotated features is not tracked into or out of a body.
    turned = replace(rows.turned, axis=None) if rows.turned else None
    return replace(
        rows,
        held=shift_keys(rows.held),
        fill=shift_keys(rows.fill),
        **shifted,
        behind=None,
        turned=turned,
    )


def join_padding_facts(one: PaddingFacts, other: PaddingFacts) -> PaddingFacts:
    """Return the facts that hold of both values, e.g. of a carry before and after an iteration."""
    merged: dict[str, Any] = {
        name: getattr(one, name) & getattr(other, name) for name in GUARANTEES
    } | {name: getattr(one, name) | getattr(other, name) for name in HAZARDS}
    return PaddingFacts(
        # Ranks in one and positions in the other: nothing is known of the result.
        count=merge_padding_counts(one.count, other.count) if one.ranked == other.ranked else None,
        held=dict(one.held.items() & other.held.items()),
        fill=dict(one.fill.items() & other.fill.items()),
        turned=one.turned or other.turned,
        padding_source=one.padding_source or other.padding_source,
        **merged,
    )


AxisFact: TypeAlias = Literal["zero", "low", "floor", "ceiling", "finite_axes", "repeated"]
"""A per-axis field of `PaddingFacts`."""


@dataclass(frozen=True, kw_only=True)
class PaddedResult:
    """One result of a node, and the facts of its operands; `keeps` are its elementwise
    dependences along padded axes.

    `keep` is the padding mask, `settled` others that are true, `lengths` those of padded axes,
    `joined` those of axes to which `pad` or `concat` added positions. `after`: padding comes
    after all valid positions.
    """

    node: Node
    value: Value
    given: Sequence[PaddingFacts]
    keeps: Iterable[Dependence]
    keep: Value
    lengths: frozenset[Dim]
    settled: frozenset[Value] = frozenset()
    joined: frozenset[Dim] = frozenset()
    after: bool = False

    @property
    def op(self) -> Op:
        """The op that computes the result."""
        return self.node.op

    def axes(self) -> set[int]:
        """Return the padded axes of the result."""
        return {k.result_axis for k in self.keeps if k.result_axis is not None}

    def padded(self) -> set[int]:
        """Return the axes of the result with the length of a padded axis."""
        shape = self.value.shape
        return {n for n, length in enumerate(shape) if length in self.lengths}

    def at(self, what: AxisFact, axis: int) -> list[bool]:
        """Return, per operand, whether a fact holds where the result's `axis` is padded."""
        found: list[bool] = []
        for n, rows in enumerate(self.given):
            known: frozenset[int] = getattr(rows, what)
            found.append(any(k.operand_axis in known for k in self._list_links(n, axis)))
        return found

    def along(self, axis: int) -> list[bool]:
        """Return, per operand, whether it has the axis; the others are broadcast along it."""
        return [bool(self._list_links(n, axis)) for n in range(len(self.given))]

    def _list_links(self, operand: int, axis: int) -> list[Dependence]:
        return [k for k in self.keeps if k.operand == operand and k.result_axis == axis]


def attach_loop_body(
    rows: PaddingFacts, body: Graph, outside: set[PaddingSource | None]
) -> PaddingFacts:
    """Return facts whose leak, where it began inside a loop, names the loop body."""
    if rows.padding_source is None or rows.padding_source in outside or rows.padding_source.inside:
        return rows
    return replace(rows, padding_source=replace(rows.padding_source, inside=body))


def find_reversed_axes(
    node: Node, given: Sequence[PaddingFacts], padded: Sequence[Dependence]
) -> frozenset[int]:
    """Return the axes of a result that are in reverse order, from its links along padded axes."""
    found = {k.result_axis for k in padded if k.operand_axis in given[k.operand].reversed}
    if isinstance(node.op, ops.Flip):
        found ^= {k.result_axis for k in padded if k.operand_axis == node.op.axis}
    return frozenset(a for a in found if a is not None)


def is_order_mixed(
    node: Node, given: Sequence[PaddingFacts], padded: Sequence[Dependence], inside: bool
) -> bool:
    """Return True if an op reads reversed axes in another way than windows and reductions do, or
    together with others; `inside` a loop it may not reverse any.
    """
    if isinstance(node.op, ops.Flip | ops.Roll):
        return inside and bool(padded)
    if not any(r.reversed for r in given):
        return False
    whole = isinstance(node.op, ops.Reduce | ops.Softmax)
    return any(
        k.operand_axis not in given[k.operand].reversed
        or not (whole or k.kind in ("same", "window", "newest"))
        for k in padded
    )


def find_rolled_axes(
    given: Sequence[PaddingFacts], padded: Sequence[Dependence]
) -> Mapping[int, PaddingSource]:
    """Return the axes of a result that `roll` rotated, from its links along padded axes."""
    return {
        k.result_axis: source
        for k in padded
        if k.result_axis is not None
        and (source := given[k.operand].rolled.get(k.operand_axis)) is not None
    }


def find_exposed_roll(
    node: Node, given: Sequence[PaddingFacts], links: Iterable[Dependence]
) -> PaddingSource | None:
    """Return the roll of an axis that an op reads in another way than a reduction does, or
    together with positions that are not rolled by as many; None if there is none.
    """
    if not any(rows.rolled for rows in given):
        return None
    padded = list(links)
    sources = [given[k.operand].rolled.get(k.operand_axis) for k in padded]
    for link, source in zip(padded, sources, strict=True):
        elementwise = link.kind == "same" and not isinstance(node.op, ops.Scan)
        beside = {
            other and other.node.op
            for k, other in zip(padded, sources, strict=True)
            if k.result_axis is not None and k.result_axis == link.result_axis
        }
        whole = elementwise or isinstance(node.op, ops.Reduce)
        if source and (not whole or len(beside) > 1):
            return source
    return None


@dataclass(frozen=True, kw_only=True)
class PaddedRead:
    """One dependence through which a result may read padded positions, with the facts of the
    operands and the side of the padding.

    `is_separated`: padding separates always-valid positions of the operand, `ends` many before
    and after it; `leads_to_separated`: those of the result. `merged`: the axis is batch and
    positions in one.
    """

    node: Node
    link: Dependence
    given: Sequence[PaddingFacts]
    side: str
    merged: bool = False
    is_separated: bool = False
    ends: tuple[int | None, int | None] = (0, 0)
    leads_to_separated: bool = False

    @property
    def op(self) -> Op:
        """The op that reads."""
        return self.node.op

    @property
    def axis(self) -> int:
        """The axis that is read."""
        return self.link.operand_axis

    @property
    def read_length(self) -> Dim:
        """The length of the axis that is read."""
        return get_read_length(self.node, self.link)

    @property
    def fill(self) -> float | None:
        """The constant at padded positions and at positions added next to them, or None."""
        return self.read.fill.get(self.axis)

    @property
    def read(self) -> PaddingFacts:
        """The facts of the operand that is read."""
        return self.given[self.link.operand]

    @property
    def after(self) -> bool:
        """True if padding comes after all valid positions."""
        return self.side == "right" and not self.is_separated

    @property
    def first(self) -> bool:
        """True if padding comes before all valid positions."""
        return self.side == "left" and not self.is_separated

    @property
    def may_be_left(self) -> bool:
        """True if padding may come before valid positions."""
        return self.side != "right"

    @property
    def may_be_right(self) -> bool:
        """True if padding may come after valid positions."""
        return self.side != "left"

    @property
    def zero(self) -> bool:
        """True if the operand is zero at padded positions."""
        return self.axis in self.read.zero

    @property
    def padded_value(self) -> float | None:
        """The constant at padded positions, or None."""
        return self.read.get_padded_value(self.axis)

    @property
    def is_finite(self) -> bool:
        """True if the operand is finite at padded positions."""
        if self.padded_value is not None:
            return isfinite(self.padded_value)
        return self.read.is_finite

    @property
    def shifted(self) -> bool:
        """True if left padding decides which positions a stride selects."""
        return self.link.kind == "strided" and self.link.stride > 1 and self.side != "right"

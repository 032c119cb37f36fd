"""Which rows an op reads by the marks of its signature: every op but a loop, whose body
says it.

A rule such as `f[*s q k|q] -> f[*s q d]` gives each axis of each operand a name with a
mark. Resolved for one node it tells, axis by axis, which axis of the result the rows are
read along, and how far.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from specc.ir.interval import ALL, EMPTY, PAST, SAME, Interval
from specc.ir.link import Gate, Kind, Link
from specc.ir.op import Op
from specc.ir.operands import MayLack, Operand
from specc.ir.ops import (
    Attend,
    Einsum,
    Extent,
    Hard,
    MaskedSoftmax,
    MatMul,
    Share,
    Weigh,
)
from specc.ir.signature import Axis, Term, layout
from specc.ir.types import Type

GATE: Mapping[type[Op], Operand | MayLack] = {
    Attend: Attend.mask,
    MaskedSoftmax: MaskedSoftmax.mask,
    Hard: Hard.mask,
    Share: Share.mask,
    Weigh: Weigh.weights,
    MatMul: MatMul.left,
}
"""The operand that says which keys a query reads: a mask, or weights that are zero
where a mask was false.
"""


Marked: TypeAlias = Sequence[tuple[Axis, range]]
"""The names of one operand's term, each with the axes that it covers."""


@dataclass(frozen=True)
class _Places:
    """Where each axis name of a term stands in a tensor."""

    at: Mapping[str, range]

    def one(self, name: str) -> int | None:
        """The axis of a name that stands for one axis."""
        found = self.at.get(name)
        return found.start if found is not None else None


def marked_links(
    op: Op, args: Sequence[Type | None], results: Sequence[Type]
) -> Iterator[Link]:
    """Every link between the operands and the results of such an op."""
    rule = op.rule()
    places: list[Marked] = [
        layout(term, arg.rank, op.at_axis(), n) if arg else ()
        for n, (term, arg) in enumerate(rule.pair(args))
    ]
    # How many axes `*s` stands for, an operand says; the result is read with that.
    spreads = [(m, dims) for p in places for m, dims in p if m.spread and not m.one]
    widths = {m.name: len(dims) for m, dims in spreads}
    for r, (term, type) in enumerate(zip(rule.results, results, strict=True)):
        target = _result_places(term, type.rank, widths)
        for at in _axes(op, places, target, r):
            arg = args[at.operand]
            assert arg is not None, "what is missing has no axes"
            yield _link(at, arg, type)


def _axes(
    op: Op, places: Sequence[Marked], target: "_Places", result: int
) -> Iterator["_At"]:
    """Every axis of every operand that a result may read."""
    for n, marked in enumerate(places):
        if isinstance(op, Attend) and (n, result) == (
            op.values.place,
            op.weights_result,
        ):
            continue  # the weights do not depend on the values
        for mark, dims in marked:
            if isinstance(op, Extent) and mark.mark != "@":
                continue  # nothing else is looked at
            for axis in dims:
                yield _At(
                    op=op,
                    places=places,
                    target=target,
                    mark=mark,
                    dims=dims,
                    axis=axis,
                    operand=n,
                    result=result,
                )


def _result_places(term: Term, rank: int, widths: Mapping[str, int]) -> _Places:
    """The axes of each name of a result; the one spread whose width nothing says takes the rest."""
    open_ = [a.name for a in term.axes if a.spread and a.name not in widths]
    known = sum(widths.get(a.name, 0) if a.spread else 1 for a in term.axes)
    at: dict[str, range] = {}
    start = 0
    for a in term.axes:
        width = 1
        if a.spread:
            width = rank - known if a.name in open_ else widths[a.name]
        at[a.name] = range(start, start + width)
        start += width
    return _Places(at)


@dataclass(frozen=True, kw_only=True)
class _At:
    """One axis of one operand, seen from one result.

    `mark` is the name in the rule that covers it, with its mark, and `dims` all axes
    that this name covers; `places` has the like of all operands, `target` the axes of
    the result.
    """

    op: Op
    places: Sequence[Marked]
    target: _Places
    mark: Axis
    dims: range
    axis: int
    operand: int
    result: int

    def to(self) -> int | None:
        """The axis of the result that goes by the same name; None where it has none."""
        found = self.target.at.get(self.mark.name)
        if found is None:
            return None
        # Axes that may be missing are aligned from the right.
        if self.mark.one:
            return found.stop - (self.dims.stop - self.axis)
        return found.start + self.axis - self.dims.start

    def link(
        self,
        to: int | None,
        kind: Kind,
        reach: Interval = ALL,
        gates: tuple[Gate, ...] = (),
    ) -> Link:
        """A link from this axis to the axis `to` of the result."""
        return Link(
            operand=self.operand,
            operand_axis=self.axis,
            result=self.result,
            result_axis=to,
            kind=kind,
            reach=reach,
            gates=gates,
        )


def _link(at: _At, arg: Type, result: Type) -> Link:
    """How one axis of an operand is read: by its mark, and without one row for row."""
    to, mark = at.to(), at.mark
    repeated = mark.one and arg.shape[at.axis] == 1
    if repeated and to is not None and result.shape[to] != 1:
        # The one row is broadcast: every row of the result reads it.
        return at.link(None, "all")
    if mark.mark:
        return _marked(at, to)
    if to is not None:
        return at.link(to, "same", SAME)
    # A name in no result is read whole; of a sum of products, where no factor is zero.
    if isinstance(at.op, Einsum):
        gates = _contraction_gates(at.places, mark.name, at.target)
        if gates:
            return at.link(gates[0].result_axis, "band", ALL, gates)
    return at.link(None, "all")


def _marked(at: _At, to: int | None) -> Link:
    """What the mark of a rule says of the rows that are read."""
    mark = at.mark.mark
    match mark[0]:
        case "@":
            return at.link(None, "extent", EMPTY)
        case "$":
            return at.link(None, "newest", SAME)
        case "~":
            return at.link(None, "all")
        case ">":
            # Rows up to this one; where the result has no such axis, up to the newest.
            return at.link(to, "newest" if to is None else "window", PAST)
        case "[":
            low, high, *moved = mark[1:-1].split(":")
            reach = Interval(_bound(at.op, low), _bound(at.op, high))
            if not moved:
                return at.link(to, "window", reach)
            stride, made = moved
            link = at.link(at.target.one(made), "strided", reach)
            return replace(link, stride=_bound(at.op, stride))
    assert mark[0] == "|", f"no such mark: {mark}"
    query = mark[1:]
    gates = _gates(at.op, at.places, at.mark.name, query, at.target)
    return at.link(at.target.one(query), "band", ALL, gates)


def _bound(op: Op, text: str) -> int:
    """A number of a mark: written out, or an attribute of the op."""
    if text.lstrip("-").isdecimal():
        return int(text)
    value: object = getattr(op, text)
    assert isinstance(value, int), f"{op.name}.{text} is no number of rows"
    return value


def _gates(
    op: Op,
    places: Sequence[Marked],
    key: str,
    query: str,
    target: _Places,
) -> tuple[Gate, ...]:
    gate = GATE[type(op)].place
    to = target.one(query)
    # Without a mask, or where the queries are no axis of the result, every key is read.
    if gate >= len(places) or to is None:
        return ()
    at = {m.name: d for m, d in places[gate]}
    if key not in at or query not in at:
        return ()
    return (Gate(gate, at[query].start, at[key].start, to),)


def _contraction_gates(
    places: Sequence[Marked], key: str, target: _Places
) -> tuple[Gate, ...]:
    """Every operand that has the axis summed over and one that stays may be zero
    outside a band of both.
    """
    gates = []
    for operand, found in enumerate(places):
        at = {m.name: d.start for m, d in found}
        if key in at:
            stay = [(name, axis) for name, axis in at.items() if name in target.at]
            gates += [
                Gate(operand, axis, at[key], target.at[name].start)
                for name, axis in stay
            ]
    return tuple(gates)

"""Which rows of its operands a row of a result reads: the marks of a signature, resolved for one node.

An element of a result depends on row `u` of an operand's axis only if one of the links between the two
allows it. A link that names a result axis allows `u` where `t - u` lies in its interval, `t` being the
element's row along that axis. An operand axis without a link to a result is not read by it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from specc.ir.graph import Graph, Node, Value
from specc.ir.interval import ALL, EMPTY, FUTURE, PAST, SAME, Interval
from specc.ir.op import Op
from specc.ir.ops import Attend, Einsum, Extent, Hard, MaskedSoftmax, MatMul, Scan, Share, Weigh
from specc.ir.signature import Axis, Term, layout
from specc.ir.types import Type

Kind = Literal["same", "window", "band", "newest", "extent", "all"]

GATE: Mapping[type[Op], int] = {Attend: 3, MaskedSoftmax: 1, Hard: 1, Share: 1, Weigh: 0, MatMul: 0}
"""The operand that says which keys a query reads: a mask, or weights that are zero where a mask was false."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Rows are read only where `operand` is not surely false or zero.

    `query` and `key` are axes of that operand; `result_axis` is the axis of the result that `query` becomes.
    """

    operand: int
    query: int
    key: int
    result_axis: int


@dataclass(frozen=True, slots=True)
class Link:
    """How axis `operand_axis` of operand `operand` is read by result `result`.

    `same`: row for row. `window`: rows `t - hi` to `t - lo` of `result_axis`. `band`: through any one of
    `gates`, all of which hold; without a gate, every row. `newest`: the last row (`hi` > 0: those
    before it too), and `result_axis` is None. `extent`: only how many there are. `all`: every row.
    """

    operand: int
    operand_axis: int
    result: int
    result_axis: int | None
    kind: Kind
    reach: Interval = ALL
    gates: tuple[Gate, ...] = ()

    @property
    def lo(self) -> float:
        """The lowest `t_result - t_operand`; negative where later rows are read."""
        return self.reach.lo

    @property
    def hi(self) -> float:
        """The highest `t_result - t_operand`: how far it looks back."""
        return self.reach.hi


def links(node: Node, results: Sequence[Value]) -> tuple[Link, ...]:
    """Every link between the operands and the results of a node."""
    return known(node.op, tuple(a.type if a else None for a in node.args), tuple(r.type for r in results))


@lru_cache(maxsize=4096)
def known(op: Op, args: tuple[Type | None, ...], results: tuple[Type, ...]) -> tuple[Link, ...]:
    """The links of an op applied to these types; the layers of a model ask for the same ones again and again."""
    return tuple(_scan_links(op, args, results) if isinstance(op, Scan) else _links(op, args, results))


@dataclass(frozen=True)
class _Places:
    """Where each axis name of a term stands in a tensor."""

    at: Mapping[str, range]

    def one(self, name: str) -> int | None:
        """The axis of a name that stands for one axis."""
        found = self.at.get(name)
        return found.start if found is not None else None


def _links(op: Op, args: Sequence[Type | None], results: Sequence[Type]) -> Iterator[Link]:
    rule = op.rule()
    pairs = rule.pair(args)
    places = [
        [(mark, dims) for mark, dims in layout(term, arg.rank, op.at_axis(), n)] if arg else []
        for n, (term, arg) in enumerate(pairs)
    ]
    widths = {m.name: len(d) for found in places for m, d in found if m.spread and not m.one}
    for r, (term, type) in enumerate(zip(rule.results, results, strict=True)):
        target = _result_places(term, type.rank, widths)
        for n, found in enumerate(places):
            if isinstance(op, Attend) and (n, r) == (2, 1):
                continue  # the weights do not depend on the values
            if isinstance(op, Extent):
                found = [(m, d) for m, d in found if m.mark == "@"]  # nothing else is looked at
            arg = args[n]
            for mark, dims in found:
                assert arg is not None
                for axis in dims:
                    yield _link(op, places, mark, target, (n, axis, r), arg, type, dims)


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


def _link(
    op: Op,
    places: Sequence[Sequence[tuple[Axis, range]]],
    mark: Axis,
    target: _Places,
    where: tuple[int, int, int],
    arg: Type,
    result: Type,
    dims: range,
) -> Link:
    operand, axis, r = where
    found = target.at.get(mark.name)
    to: int | None = None
    if found is not None:
        to = (found.stop - (dims.stop - axis)) if mark.one else found.start + axis - dims.start
    if mark.one and to is not None and arg.shape[axis] == 1 and result.shape[to] != 1:
        return Link(operand, axis, r, None, "all")
    match mark.mark[:1]:
        case "@":
            return Link(operand, axis, r, None, "extent", EMPTY)
        case "$":
            return Link(operand, axis, r, None, "newest", SAME)
        case "~":
            return Link(operand, axis, r, None, "all")
        case ">":
            return Link(operand, axis, r, to, "window" if to is not None else "newest", PAST)
        case "[":
            low, high = (_bound(op, b) for b in mark.mark[1:-1].split(":"))
            return Link(operand, axis, r, to, "window", Interval(low, high))
        case "|":
            gates = _gates(op, places, mark.name, mark.mark[1:], target)
            return Link(operand, axis, r, target.one(mark.mark[1:]), "band", ALL, gates)
    if to is not None:
        return Link(operand, axis, r, to, "same", SAME)
    if isinstance(op, Einsum) and (gates := _contraction_gates(places, mark.name, target)):
        return Link(operand, axis, r, gates[0].result_axis, "band", ALL, gates)
    return Link(operand, axis, r, None, "all")


def _bound(op: Op, text: str) -> int:
    """A number of a mark: written out, or an attribute of the op."""
    if text.lstrip("-").isdecimal():
        return int(text)
    value: object = getattr(op, text)
    assert isinstance(value, int), f"{op.name}.{text} is no number of rows"
    return value


def _gates(
    op: Op, places: Sequence[Sequence[tuple[Axis, range]]], key: str, query: str, target: _Places
) -> tuple[Gate, ...]:
    gate = GATE[type(op)]
    to = target.one(query)
    if gate >= len(places) or to is None:
        return ()
    at = {m.name: d for m, d in places[gate]}
    if key not in at or query not in at:
        return ()
    return (Gate(gate, at[query].start, at[key].start, to),)


def _contraction_gates(places: Sequence[Sequence[tuple[Axis, range]]], key: str, target: _Places) -> tuple[Gate, ...]:
    """Every operand that has the axis summed over and one that stays may be zero outside a band of both."""
    gates = []
    for operand, found in enumerate(places):
        at = {m.name: d.start for m, d in found}
        if key in at:
            stay = [(name, axis) for name, axis in at.items() if name in target.at]
            gates += [Gate(operand, axis, at[key], target.at[name].start) for name, axis in stay]
    return tuple(gates)


# A loop: its own axis is read in order; any other axis is followed through the body.


@dataclass
class Trace:
    """What one axis of one value has become in another: rows along axes, or every row of it."""

    axes: dict[int, Interval] = field(default_factory=dict)
    all: bool = False

    def join(self, other: "Trace") -> bool:
        """Take over what `other` says; whether anything changed."""
        before = dict(self.axes), self.all
        self.all = self.all or other.all
        for axis, reach in other.axes.items():
            self.axes[axis] = self.axes.get(axis, EMPTY) | reach
        if self.all:
            self.axes.clear()
        return before != (self.axes, self.all)

    @property
    def read(self) -> bool:
        """Whether anything of the axis is read."""
        return self.all or bool(self.axes)


def trace(graph: Graph, start: Mapping[Value, Trace]) -> dict[Value, Trace]:
    """Follow axes of some values of `graph` to every value that reads them."""
    found: dict[Value, Trace] = {v: Trace(dict(t.axes), t.all) for v, t in start.items()}
    for node, results in graph.nodes:
        if not any(a in found for a in node.args if a):
            continue
        for link in links(node, results):
            operand = node.args[link.operand]
            source = found.get(operand) if operand else None
            if source is None or not source.read or link.kind == "extent":
                continue
            into = found.setdefault(results[link.result], Trace())
            said = Trace(all=source.all)
            if link.operand_axis in source.axes:
                if link.kind in ("same", "window") and link.result_axis is not None:
                    said.axes[link.result_axis] = source.axes[link.operand_axis] + link.reach
                else:
                    said.all = True
            into.join(said)
    return found


def _scan_links(op: Scan, args: Sequence[Type | None], results: Sequence[Type]) -> Iterator[Link]:
    first = 1 if op.masked else 0
    if op.masked:
        yield from _row_links(op, 0, 1, len(results))
        for r in range(len(results)):
            yield Link(0, 0, r, _outer(op, 0, r >= op.carries), "same", SAME)
    for n in range(first, len(args)):
        arg = args[n]
        assert arg is not None, "a scan has no optional operands"
        scanned = n - first < op.scanned
        for axis in range(arg.rank):
            if scanned and axis == op.axis:
                yield from _row_links(op, n, axis, len(results))
            else:
                inner = axis - (axis > op.axis) if scanned else axis
                yield from _body_links(op, n, axis, n - first, inner)


def _row_links(op: Scan, operand: int, axis: int, count: int) -> Iterator[Link]:
    """The loop's own axis."""
    for r in range(count):
        if r < op.carries:
            if op.reverse:
                yield Link(operand, axis, r, None, "all")
            else:
                yield Link(operand, axis, r, None, "newest", PAST)
        elif op.carries:
            yield Link(operand, axis, r, op.axis, "window", FUTURE if op.reverse else PAST)
        else:
            yield Link(operand, axis, r, op.axis, "same", SAME)


def _outer(op: Scan, axis: int, collected: bool) -> int:
    """An axis of a body's result, counted outside."""
    return axis + (collected and axis >= op.axis)


def _body_links(op: Scan, operand: int, axis: int, number: int, inner: int) -> Iterator[Link]:
    """Another axis, followed through the body until what the carries read no longer grows."""
    inputs, outputs = list(op.body.inputs.values()), list(op.body.outputs.values())
    carried = inputs[op.scanned : op.scanned + op.carries]
    start = {v: Trace() for v in carried}
    start.setdefault(inputs[number], Trace()).join(Trace({inner: SAME}))
    turn = 0
    while True:
        found = trace(op.body, {v: t for v, t in start.items() if t.read})
        changed = [start[v].join(found.get(after, Trace())) for v, after in zip(carried, outputs, strict=False)]
        if not any(changed):
            break
        turn += 1
        if turn >= 3:  # the reach grows with every step
            for v, grew in zip(carried, changed, strict=True):
                start[v].join(Trace(all=grew))
    for r, value in enumerate(outputs):
        state = Trace()
        state.join(found.get(value, Trace()))
        if r < op.carries:
            state.join(start[carried[r]])
        if state.all:
            yield Link(operand, axis, r, None, "all")
        for a, reach in state.axes.items():
            kind: Kind = "same" if reach == SAME else "window"
            yield Link(operand, axis, r, _outer(op, a, r >= op.carries), kind, reach)

"""How many rows before the new ones each value must have, so that the next rows can be
computed.

On entry: a graph that is causal along a symbol, and its `Flow`, which says which axes
of each value are rows of that symbol ("time axes"). Nothing is built here.

A need is a number of rows: 0 for the new rows alone, `inf` for all that were ever
there, and `NEWEST` where even of the new rows only the last is wanted. Needs flow
backwards, from the results that are asked for to the inputs: an op that looks back `hi`
rows adds `hi`. All consumers of a value are joined before anything is built.

A text of which only the newest result is asked for, through an average over a window of
three. The convolution looks back 2 rows, so the map before it is wanted for 2 rows more
than the newest, and the query beside it for the newest alone:

    $ demand x y=newest
    graph "g"
    input "x" %0: f32[b, n, 4]
    parameter "w" %1: f32[4, 4] initial="zeros" made_by="linear"
    parameter "k" %2: f32[4, 4, 3] initial="zeros" made_by="conv"
    %3: f32[b, n, 4] = linear(%0, %1)
    %4: f32[b, n, 4] = conv(%3, %2) {kernel=(3), stride=(1), dilation=(1), pads=(2, 0), groups=<1>}
    %5: f32[b, n, 4] = pointwise(%3) {fn="tanh"}
    %6: f32[b, n, 4] = arith(%4, %5) {fn="mul"}
    output "y" %6
    end
    gives
    %0 axis 1: 2 more
    %3 axis 1: 2 more
    %4 axis 1: the newest row
    %5 axis 1: the newest row
    %6 axis 1: the newest row
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value, needed
from specc.ir.heads import Clock
from specc.ir.op import Op
from specc.ir.ops.recurrent import KEEP, ROWS
from specc.ir.reach import Link, links
from specc.ir.signature import Term, layout
from specc.passes.prove.flow import Flow, resolve
from specc.passes.prove.spliced import HEAD, from_head

NEWEST = -1.0
"""The need for the newest row only."""

FOLDS = (ops.CumSum, ops.Rnn, ops.Gru, ops.Lstm, ops.Scan)
"""Ops that read every earlier row through a state that is carried on."""

ROWS_AXIS = 1
"""Recurrent layers read [batch, rows, features]."""

Axis = Hashable
Needs = Mapping[Value, Mapping[int, float]]


@dataclass(frozen=True)
class Asked:
    """What one node is asked for: the rows of each axis name, and which axes of
    operands and results bear it.
    """

    rows: Mapping[Axis, float]
    operands: tuple[Mapping[int, Axis], ...]
    results: tuple[Mapping[int, Axis], ...]


@dataclass(frozen=True)
class Setting:
    """What a demand is made for: the graph and its flow, values that are kept, those
    whose rows cost nothing.

    Unless it is `bounded`, an attention through a window keeps all rows, as readers of
    such caches may expect.
    """

    graph: Graph
    flow: Flow
    kept: Collection[Value] = ()
    free: Collection[Value] = ()
    bounded: bool = True

    def times(self, value: Value | None) -> tuple[int, ...]:
        """The time axes of a value."""
        return tuple(sorted(self.flow.state(value).axes)) if value else ()

    def head(self, value: Value, axis: int) -> Dim:
        """How many rows stand before those that grow along a time axis of a value."""
        found = self.flow.clock.head(value.type.shape[axis])
        assert found is not None, "a time axis has a head, maybe of no rows"
        return found

    def folds(self, node: Node, results: tuple[Value, ...]) -> bool:
        """Whether the node goes on from a state; what is free is computed anew from its
        first row.
        """
        if not isinstance(node.op, FOLDS) or any(r in self.free for r in results):
            return False
        if isinstance(node.op, ops.CumSum) and len(self.times(node.first)) > 1:
            return False  # over the keys of a grid, all of which are there in each step
        return any(
            along(node, a) is not None for a in range(min(2, len(node.args)))
        ) and self._moves(node)

    def _moves(self, node: Node) -> bool:
        x, axis = folded(node)
        return axis in self.times(x)


def folded(node: Node) -> tuple[Value, int]:
    """The operand whose rows a fold reads one after the other, and their axis."""
    match node.op:
        case ops.Scan(axis=axis):
            return node.op.row(node), axis
        case ops.CumSum(axis=axis):
            x = node.first
            assert x is not None
            return x, axis
    return ROWS(node), ROWS_AXIS


def along(node: Node, operand: int) -> int | None:
    """The axis of an operand that a fold runs along; None for what it does not read row by row."""
    match node.op:
        case ops.Scan(axis=axis, scanned=scanned, first=first):
            if operand < first:
                return ROWS_AXIS  # `keep` is [batch, rows] whatever is looped over
            return axis if operand < first + scanned else None
        case ops.CumSum(axis=axis):
            return axis if operand == 0 else None
        case ops.Rnn() | ops.Gru() | ops.Lstm():
            return ROWS_AXIS if operand in (ROWS.place, KEEP.place) else None
    return None


def demand(
    setting: Setting, outputs: Mapping[Value, float]
) -> dict[Value, dict[int, float]]:
    """The need of every live value along each of its time axes, for these needs of the
    outputs' rows.

    A second time axis of an output, the keys of an attention map, is wanted whole.
    """
    # From the last node to the first: when a node is met, all that use its results have
    # said what they need.
    needs: dict[Value, dict[int, float]] = {}
    for value, rows in outputs.items():
        for n, axis in enumerate(setting.times(value)):
            _join(needs, value, axis, inf if n else rows)
    live = wanted(outputs, setting.flow)
    for node, results in reversed(setting.graph.nodes):
        if node not in live or picks_fixed(node, setting.flow):
            continue
        asked = ask(setting, node, results, needs)
        for operand, axes in zip(node.args, asked.operands, strict=True):
            for axis, name in axes.items():
                if operand is not None:
                    _join(needs, operand, axis, asked.rows[name])
    return needs


def wanted(values: Iterable[Value], flow: Flow) -> set[Node]:
    """Every node that `values` are made from in a step. What an `extent` only measures is
    not looked at, nor what rows of a head were picked from, which a step cannot make.
    """
    return needed(values, reads=lambda node: not _elsewhere(node, flow))


def _elsewhere(node: Node, flow: Flow) -> bool:
    """Whether a step does not read the operands of a node."""
    return isinstance(node.op, ops.Extent) or picks_fixed(node, flow)


def picks_fixed(node: Node, flow: Flow) -> bool:
    """Whether a node makes what stays the same of what grows, from rows of its head."""
    if not from_head(node, flow.clock):
        return False
    x = node.first
    return x is not None and len(flow.state(x).axes) == 1


def ask(
    setting: Setting, node: Node, results: tuple[Value, ...], needs: Needs
) -> Asked:
    """The rows that a node works on, by axis name, to give what is needed of its results."""
    names = axis_names(node, results)
    if isinstance(node.op, ops.Extent):
        # What is measured is not read: no rows of it are wanted.
        names = [{}], names[1]
    operands = _time_names(setting, node.args, names[0])
    made = _time_names(setting, results, names[1])
    rows = _given(setting, results, made, needs)
    for axes in operands:
        for name in axes.values():
            rows.setdefault(name, NEWEST)
    fold = setting.folds(node, results)
    # What is asked of the results, before any operand has been joined: a link adds its
    # reach to that, not to what another link asked for.
    given = dict(rows)
    for link in links(node, results):
        name = operands[link.operand].get(link.operand_axis)
        if name is None or link.kind == "extent":
            continue
        asked = _through(node, link, made, given, fold, setting.flow.clock)
        if asked > 0 and link.kind in ("band", "all") and not setting.bounded:
            asked = inf
        rows[name] = max(rows[name], asked)
    if fold and "rows" in rows:
        # It goes on from a state: never more than the new rows, never fewer.
        rows["rows"] = 0.0
    return Asked(rows, operands, made)


def _time_names(
    setting: Setting,
    values: Sequence[Value | None],
    names: Sequence[Mapping[int, Axis]],
) -> tuple[dict[int, Axis], ...]:
    """Of the names of all axes those of time axes, value by value."""
    found = []
    for value, axes in zip(values, names, strict=True):
        times = setting.times(value)
        found.append({axis: name for axis, name in axes.items() if axis in times})
    return tuple(found)


def _given(
    setting: Setting,
    results: Sequence[Value],
    names: Sequence[Mapping[int, Axis]],
    needs: Needs,
) -> dict[Axis, float]:
    """The rows that the results are to have; of one that is kept the new rows are made,
    those of before are there.
    """
    rows: dict[Axis, float] = {}
    for value, axes in zip(results, names, strict=True):
        for axis, name in axes.items():
            need = needs.get(value, {}).get(axis, NEWEST)
            need = 0.0 if value in setting.kept else need
            rows[name] = max(rows.get(name, NEWEST), need)
    return rows


def _through(
    node: Node,
    link: Link,
    made: tuple[Mapping[int, Axis], ...],
    given: Mapping[Axis, float],
    fold: bool,
    clock: Clock,
) -> float:
    """What a link asks of its operand's rows."""
    if fold and along(node, link.operand) == link.operand_axis:
        return 0.0  # it goes on from a state
    to, reach = resolve(node, link, clock)
    if (to, reach) == HEAD:
        return inf  # rows of the head are there only where all are
    # A link to no time axis of the result, as of `last`, is asked for the newest row.
    name = made[link.result].get(to) if to is not None else None
    need = given[name] if name is not None else NEWEST
    if reach.empty or reach.hi <= 0:
        return need
    # Row t is made of rows down to t - hi. That is counted from the first of the new
    # rows, also where the newest alone is wanted: how many are new is not known here.
    return max(need, 0.0) + reach.hi


def axis_names(
    node: Node, results: tuple[Value, ...]
) -> tuple[list[dict[int, Axis]], list[dict[int, Axis]]]:
    """For each operand and each result, the name of every axis; axes of one name are
    equally long.
    """
    if isinstance(node.op, ops.Scan):
        return _scan_names(node, node.op, results)
    rule = node.op.rule()
    types = tuple(a.type if a else None for a in node.args)
    widths: dict[str, int] = {}
    operands: list[dict[int, Axis]] = []
    for n, (term, arg) in enumerate(rule.pair(types)):
        found: dict[int, Axis] = {}
        marks = layout(term, arg.rank, node.op.at_axis(), n) if arg is not None else []
        for mark, dims in marks:
            assert arg is not None
            widths[mark.name] = max(widths.get(mark.name, 0), len(dims))
            for axis in dims:
                # An axis of 1 that is repeated has one row, which is no time axis.
                if not mark.one or arg.shape[axis] != 1:
                    found[axis] = _name(node.op, mark.name, dims.stop - axis)
        operands.append(found)
    made = [
        _result_names(node.op, term, value, widths)
        for term, value in zip(rule.results, results, strict=True)
    ]
    return operands, made


def _result_names(
    op: Op, term: Term, value: Value, widths: Mapping[str, int]
) -> dict[int, Axis]:
    """The names of a result's axes. One spread whose width no operand says takes what
    the others leave.
    """
    known = sum(widths.get(a.name, 0) if a.spread else 1 for a in term.axes)
    names: dict[int, Axis] = {}
    start = 0
    for a in term.axes:
        width = widths.get(a.name, value.type.rank - known) if a.spread else 1
        for axis in range(start, start + width):
            names[axis] = _name(op, a.name, start + width - axis)
        start += width
    return names


def _name(op: Op, name: str, from_right: int) -> Axis:
    """An axis by its name in the rule; of several under one name, counted from the right."""
    return "rows" if isinstance(op, FOLDS) and name == "t" else (name, from_right)


def _scan_names(
    node: Node, op: ops.Scan, results: tuple[Value, ...]
) -> tuple[list[dict[int, Axis]], list[dict[int, Axis]]]:
    """The loop's own axis is `rows`; another one goes by the length that it has."""
    operands: list[dict[int, Axis]] = []
    for n, arg in enumerate(node.args):
        own = along(node, n)
        assert arg is not None
        operands.append(
            {a: "rows" if a == own else d for a, d in enumerate(arg.type.shape)}
        )
    made: list[dict[int, Axis]] = []
    for r, value in enumerate(results):
        collected = r >= op.carries
        made.append(
            {
                a: "rows" if collected and a == op.axis else d
                for a, d in enumerate(value.type.shape)
            }
        )
    return operands, made


def _join(
    needs: dict[Value, dict[int, float]], value: Value, axis: int, rows: float
) -> None:
    axes = needs.setdefault(value, {})
    axes[axis] = max(axes.get(axis, NEWEST), rows)

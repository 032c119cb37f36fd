"""How many rows before the new ones each value must have, so that the next rows can be computed.

A need is a number of rows: 0 for the new rows alone, `inf` for all that were ever there, and `NEWEST` where even of
the new rows only the last is wanted. Needs flow backwards, from the results that are asked for to the inputs: an
op that looks back `hi` rows adds `hi`. All consumers of a value are joined before anything is built.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value, needed
from specc.ir.op import Op
from specc.ir.reach import Link, links
from specc.ir.signature import layout
from specc.passes.flow import Flow, resolve

NEWEST = -1.0
"""The need for the newest row only."""

FOLDS = (ops.CumSum, ops.Rnn, ops.Gru, ops.Lstm, ops.Scan)
"""Ops that read every earlier row through a state that is carried on."""

Axis = Hashable
Needs = Mapping[Value, Mapping[int, float]]


@dataclass(frozen=True)
class Asked:
    """What one node is asked for: the rows of each axis name, and which axes of operands and results bear it."""

    rows: Mapping[Axis, float]
    operands: tuple[Mapping[int, Axis], ...]
    results: tuple[Mapping[int, Axis], ...]


@dataclass(frozen=True)
class Setting:
    """What a demand is made for: the graph and its flow, values that are kept, those whose rows cost nothing.

    Unless it is `bounded`, an attention through a window keeps all rows, as readers of such caches may expect.
    """

    graph: Graph
    flow: Flow
    kept: Collection[Value] = ()
    free: Collection[Value] = ()
    bounded: bool = True

    def times(self, value: Value | None) -> tuple[int, ...]:
        """The time axes of a value."""
        return tuple(sorted(self.flow.state(value).axes)) if value else ()

    def folds(self, node: Node, results: tuple[Value, ...]) -> bool:
        """Whether the node goes on from a state; what is free is computed anew from its first row."""
        if not isinstance(node.op, FOLDS) or any(r in self.free for r in results):
            return False
        return any(along(node, a) is not None for a in (0, 1) if a < len(node.args)) and self._moves(node)

    def _moves(self, node: Node) -> bool:
        x, axis = folded(node)
        return axis in self.times(x)


def folded(node: Node) -> tuple[Value, int]:
    """The operand whose rows a fold reads one after the other, and their axis."""
    match node.op:
        case ops.Scan(axis=axis, masked=masked):
            x = node.args[1 if masked else 0]
        case ops.CumSum(axis=axis):
            x = node.args[0]
        case _:
            x, axis = node.args[0], 1
    assert x is not None
    return x, axis


def along(node: Node, operand: int) -> int | None:
    """The axis of an operand that a fold runs along; None for what it does not read row by row."""
    match node.op:
        case ops.Scan(axis=axis, scanned=scanned, masked=masked):
            first = 1 if masked else 0
            if operand < first:
                return 1
            return axis if operand < first + scanned else None
        case ops.CumSum(axis=axis):
            return axis if operand == 0 else None
        case ops.Rnn() | ops.Gru() | ops.Lstm():
            return 1 if operand in (0, 5) else None
    return None


def demand(setting: Setting, outputs: Mapping[Value, float]) -> dict[Value, dict[int, float]]:
    """The need of every live value along each of its time axes, for these needs of the outputs' rows.

    A second time axis of an output, the keys of an attention map, is wanted whole.
    """
    needs: dict[Value, dict[int, float]] = {}
    for value, rows in outputs.items():
        for n, axis in enumerate(setting.times(value)):
            _join(needs, value, axis, inf if n else rows)
    live = wanted(outputs)
    for node, results in reversed(setting.graph.nodes):
        if node not in live:
            continue
        asked = ask(setting, node, results, needs)
        for operand, axes in zip(node.args, asked.operands, strict=True):
            for axis, name in axes.items():
                if operand is not None:
                    _join(needs, operand, axis, asked.rows[name])
    return needs


def wanted(values: Iterable[Value]) -> set[Node]:
    """Every node that `values` are made from. What an `extent` only measures is not looked at."""
    return needed(values, reads=lambda node: not isinstance(node.op, ops.Extent))


def ask(setting: Setting, node: Node, results: tuple[Value, ...], needs: Needs) -> Asked:
    """The rows that a node works on, by axis name, to give what is needed of its results."""
    names = axis_names(node, results)
    if isinstance(node.op, ops.Extent):
        names = [{}], names[1]
    operands = tuple(
        {a: n for a, n in axes.items() if a in setting.times(v)} for v, axes in zip(node.args, names[0], strict=True)
    )
    made = tuple(
        {a: n for a, n in axes.items() if a in setting.times(v)} for v, axes in zip(results, names[1], strict=True)
    )
    rows: dict[Axis, float] = {}
    for value, axes in zip(results, made, strict=True):
        for axis, name in axes.items():
            need = needs.get(value, {}).get(axis, NEWEST)
            rows[name] = max(rows.get(name, NEWEST), 0.0 if value in setting.kept else need)
    fold = setting.folds(node, results)
    for axes in operands:
        for name in axes.values():
            rows.setdefault(name, NEWEST)
    given = dict(rows)
    for link in links(node, results):
        name = operands[link.operand].get(link.operand_axis)
        if name is None or link.kind == "extent":
            continue
        asked = _through(node, link, made, given, fold)
        rows[name] = max(rows[name], inf if asked > 0 and link.kind == "band" and not setting.bounded else asked)
    if fold:
        rows = {name: 0.0 if name == "rows" else need for name, need in rows.items()}
    return Asked(rows, operands, made)


def _through(
    node: Node,
    link: Link,
    made: tuple[Mapping[int, Axis], ...],
    given: Mapping[Axis, float],
    fold: bool,
) -> float:
    """What a link asks of its operand's rows."""
    if fold and along(node, link.operand) == link.operand_axis:
        return 0.0
    to, reach = resolve(node, link)
    name = made[link.result].get(to) if to is not None else None
    need = given[name] if name is not None else NEWEST
    if reach.empty or reach.hi <= 0:
        return need
    return max(need, 0.0) + reach.hi


def axis_names(node: Node, results: tuple[Value, ...]) -> tuple[list[dict[int, Axis]], list[dict[int, Axis]]]:
    """For each operand and each result, the name of every axis; axes of one name are equally long."""
    if isinstance(node.op, ops.Scan):
        return _scan_names(node, node.op, results)
    rule = node.op.rule()
    types = tuple(a.type if a else None for a in node.args)
    widths: dict[str, int] = {}
    operands: list[dict[int, Axis]] = []
    for n, (term, arg) in enumerate(rule.pair(types)):
        found: dict[int, Axis] = {}
        if arg is not None:
            for mark, dims in layout(term, arg.rank, node.op.at_axis(), n):
                widths[mark.name] = max(widths.get(mark.name, 0), len(dims))
                for axis in dims:
                    if not mark.one or arg.shape[axis] != 1:
                        found[axis] = _name(node.op, mark.name, dims.stop - axis)
        operands.append(found)
    made: list[dict[int, Axis]] = []
    for term, value in zip(rule.results, results, strict=True):
        known = sum(widths.get(a.name, 0) if a.spread else 1 for a in term.axes)
        found, start = {}, 0
        for a in term.axes:
            width = widths.get(a.name, value.type.rank - known) if a.spread else 1
            for axis in range(start, start + width):
                found[axis] = _name(node.op, a.name, start + width - axis)
            start += width
        made.append(found)
    return operands, made


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
        operands.append({a: "rows" if a == own else d for a, d in enumerate(arg.type.shape)})
    made: list[dict[int, Axis]] = []
    for r, value in enumerate(results):
        collected = r >= op.carries
        made.append({a: "rows" if collected and a == op.axis else d for a, d in enumerate(value.type.shape)})
    return operands, made


def _join(needs: dict[Value, dict[int, float]], value: Value, axis: int, rows: float) -> None:
    axes = needs.setdefault(value, {})
    axes[axis] = max(axes.get(axis, NEWEST), rows)

"""Where the rows of one axis go: forward through a graph, along the symbol that names the axis.

A value is fixed (it depends on nothing that has the axis), or it moves. One that moves has time axes, the
axes of exactly that length, and for each the accumulated reach: which rows its row `t` depends on, as an
interval of `t - u`. Or it has none and holds the newest row, or what was read of all rows.

Every op is judged by itself: `leaks` names each one that lets row t of its result read a row after t of
its operand, whatever a later op makes of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.interval import EMPTY, SAME, Interval
from specc.ir.reach import Link, links
from specc.passes.bands import band

Why = Literal["ahead", "all", "newest", "length", "captured", "shape"]


@dataclass(frozen=True, slots=True)
class State:
    """What a value is along the symbol. `axes` maps each time axis to its accumulated reach."""

    axes: Mapping[int, Interval] = field(default_factory=dict)
    newest: bool = False
    whole: bool = False

    @property
    def moves(self) -> bool:
        """Whether it depends on the axis at all."""
        return bool(self.axes) or self.newest or self.whole


@dataclass(frozen=True, slots=True)
class Leak:
    """`node` reads rows that come after the one it makes.

    `why`: `ahead`, rows up to `-reach.lo` later; `all`, every row; `newest`, it mixes the newest row into
    earlier ones; `length`, it needs the final number of rows; `captured`, a loop takes from outside
    what moves; `shape`, its result has an axis whose rows are no longer those of the symbol. `inside`: the
    leak in the body of the loop `node`, with that body.
    """

    node: Node
    why: Why
    operand: int | None = None
    reach: Interval = EMPTY
    inside: "tuple[Graph, Leak] | None" = None


@dataclass(frozen=True)
class Flow:
    """The state of every value along `symbol`, and the ops that leak, in the graph's order."""

    symbol: str
    states: Mapping[Value, State]
    leaks: tuple[Leak, ...]
    related: frozenset[str]

    def state(self, value: Value) -> State:
        """The state of a value; parameters are fixed."""
        return self.states.get(value, State())


@lru_cache(maxsize=4)
def flow(graph: Graph, symbol: str) -> Flow:
    """Follow the axis called `symbol` through `graph`."""
    related = related_to(graph, symbol)
    length = Dim.symbol(symbol)
    states: dict[Value, State] = {}
    leaks: list[Leak] = []
    for value in graph.inputs.values():
        axes = {n: SAME for n, d in enumerate(value.type.shape) if d == length}
        composite = any(d != length and d.symbols() & related for d in value.type.shape)
        states[value] = State(axes, whole=composite and not axes)
    for node, results in graph.nodes:
        _visit(node, results, states, leaks, length, related)
    return Flow(symbol, states, tuple(leaks), related)


def related_to(graph: Graph, symbol: str) -> frozenset[str]:
    """The symbol and those that a fact states in terms of it."""
    found = {symbol}
    while more := {name for name, dim in graph.facts.items() if dim.symbols() & found} - found:
        found |= more
    return frozenset(found)


def _visit(
    node: Node,
    results: tuple[Value, ...],
    states: dict[Value, State],
    leaks: list[Leak],
    length: Dim,
    related: frozenset[str],
) -> None:
    """Find the states of the results of a node, and note the first way in which it leaks."""
    found: list[Leak] = []
    given = [states.get(a, State()) if a else State() for a in node.args]
    before = [dict.fromkeys(_time_axes(r, length), EMPTY) for r in results]
    newest, whole = [False] * len(results), [False] * len(results)
    if any(s.newest or s.whole for s in given):
        newest = [any(s.newest for s in given)] * len(results)
        whole = [any(s.whole for s in given)] * len(results)
    for link in links(node, results):
        state = given[link.operand]
        if link.operand_axis not in state.axes:
            continue
        r = link.result
        to, reach = resolve(node, link)
        match link.kind:
            case "extent":
                continue
            case "newest":
                newest[r] = True
            case _ if to is not None and to in before[r] and not (link.kind == "band" and not link.gates):
                before[r][to] = before[r][to] | (state.axes[link.operand_axis] + reach)
                if reach.lo < 0:
                    found.append(Leak(node, "ahead", link.operand, reach))
            case _:
                whole[r] = True
                found.append(Leak(node, "all", link.operand))
    mixed = [bool(newest[r] and before[r]) for r in range(len(results))]
    made = [State(before[r], newest[r] and not mixed[r], whole[r] or mixed[r]) for r in range(len(results))]
    found += _mixed(node, results, given, made, length, related)
    if isinstance(node.op, ops.Scan):
        found = [*_in_body(node, node.op, given, made, length, related), *found]
    if any(mixed):
        found.append(Leak(node, "newest", next((n for n, s in enumerate(given) if s.newest), None)))
    if found:
        leaks.append(_worst(found))
    for r, value in enumerate(results):
        states[value] = made[r]


def _worst(found: list[Leak]) -> Leak:
    """One op, one leak: the one that says most."""
    order: list[Why] = ["captured", "length", "all", "ahead", "newest", "shape"]
    return min(found, key=lambda leak: (order.index(leak.why), leak.reach.lo))


def _mixed(
    node: Node,
    results: tuple[Value, ...],
    given: list[State],
    made: list[State],
    length: Dim,
    related: frozenset[str],
) -> list[Leak]:
    """Leaks that no single link shows."""
    found: list[Leak] = []
    if needs_length(node, length, related):
        found.append(Leak(node, "length"))
    elif not any(_composite(a, length, related) for a in node.args if a):
        made_here = any(_composite(r, length, related) for r in results)
        found += [Leak(node, "shape")] if made_here and not any(s.whole for s in made) else []
    if isinstance(node.op, ops.Scan) and _runs_along(node, node.op, length):
        first = node.op.scanned + (1 if node.op.masked else 0)
        found += [Leak(node, "captured", n) for n in range(first, len(given)) if given[n].moves]
    return found


def _runs_along(node: Node, op: ops.Scan, length: Dim) -> bool:
    row = node.args[1 if op.masked else 0]
    return row is not None and row.type.shape[op.axis] == length


def _in_body(
    node: Node, op: ops.Scan, given: list[State], made: list[State], length: Dim, related: frozenset[str]
) -> list[Leak]:
    """The leaks in the body of a loop, each op judged by itself as outside."""
    body = op.body
    says = [n for n, _ in body.nodes if any(_mentions(v, related) for v in _attributes(n))]
    if says and (_runs_along(node, op, length) or not any(s.axes for s in (*given, *made))):
        return [Leak(node, "length", inside=(body, Leak(says[0], "length")))]
    inner = list(body.inputs.values())
    outer = given[1 if op.masked else 0 :]
    start = {
        v: State(dict.fromkeys(_time_axes(v, length), SAME), s.newest, s.whole)
        for v, s in zip(inner, outer, strict=True)
    }
    carried = inner[op.scanned : op.scanned + op.carries]
    while True:
        states, leaks = dict(start), list[Leak]()
        for inside, results in body.nodes:
            _visit(inside, results, states, leaks, length, related)
        after = [states.get(v, State()) for v in list(body.outputs.values())[: op.carries]]
        joined = {
            v: State(start[v].axes, start[v].newest or s.newest, start[v].whole or s.whole)
            for v, s in zip(carried, after, strict=True)
        }
        if all(start[v] == s for v, s in joined.items()):
            return [Leak(node, k.why, None, k.reach, (body, k)) for k in leaks]
        start |= joined


def _attributes(node: Node) -> Iterator[object]:
    """The attributes of a node, and where it is a loop, those of the nodes in its body."""
    if isinstance(node.op, ops.Scan):
        for inner, _ in node.op.body.nodes:
            yield from _attributes(inner)
    else:
        yield from node.op.attributes().values()


def needs_length(node: Node, length: Dim, related: frozenset[str]) -> bool:
    """Whether an op holds the length itself, other than to make rows of that length."""
    match node.op:
        case ops.Range(length=dim) | ops.Expand(length=dim) if dim == length:
            return False
        case ops.Scan():
            return False
    return any(_mentions(v, related) for v in node.op.attributes().values())


def _mentions(value: object, related: frozenset[str]) -> bool:
    if isinstance(value, tuple):
        return any(_mentions(v, related) for v in value)
    return isinstance(value, Dim) and bool(value.symbols() & related)


def _time_axes(value: Value, length: Dim) -> list[int]:
    return [n for n, d in enumerate(value.type.shape) if d == length]


def _composite(value: Value, length: Dim, related: frozenset[str]) -> bool:
    """Whether an axis mentions the symbol without being it."""
    return any(d != length and d.symbols() & related for d in value.type.shape)


def resolve(node: Node, link: Link) -> tuple[int | None, Interval]:
    """The result axis and the interval of a link; of several gates, the one that proves most."""
    if link.kind != "band":
        return link.result_axis, link.reach
    best: tuple[int | None, Interval] = (link.result_axis, link.reach)
    for gate in link.gates:
        operand = node.args[gate.operand]
        reach = band(operand, gate.query, gate.key) if operand else link.reach
        if _better(reach, best[1]):
            best = gate.result_axis, reach
    return best


def _better(a: Interval, b: Interval) -> bool:
    """Prefer what is causal, then what is shorter, then what looks less far ahead."""
    return (a.lo >= 0, -(a.hi - a.lo), a.lo) > (b.lo >= 0, -(b.hi - b.lo), b.lo)


__all__ = ["Flow", "Leak", "State", "flow", "needs_length", "resolve"]

"""Where the rows of one axis go: forward through a graph, along the symbol that names
the axis.

On entry: any sound graph, and the symbol of an axis, such as the length of a text. On
leaving: the state of every value, and the ops that leak. A graph is never refused here;
`causality` decides which leaks matter.

Rows are counted in time, from behind the head of an axis (`specc.ir.heads`). A value is
fixed (it depends on nothing that has the axis, or on rows of a head alone), or it moves.
One that moves has time axes, the axes of that length behind a head or none, and for each
the accumulated reach:
which rows its row `t` depends on, as an interval of `t - u`. Or it has none and holds
the newest row, or what was read of all rows.

Every op is judged by itself: `leaks` names each one that lets row t of its result read
a row after t of its operand, whatever a later op makes of it.

A centered convolution reads one row before, its own, and one after, which leaks. The
delay behind it moves that by one: its rows depend on two before to their own. `last`
holds the newest row and has no rows of its own:

    $ flow n
    graph "g"
    input "x" %0: f32[b, n, 4]
    parameter "w" %1: f32[4, 4, 3] initial="zeros" made_by="conv"
    %2: f32[b, n, 4] = conv(%0, %1) {kernel=(3), stride=(1), dilation=(1), pads=(1, 1), groups=<1>}
    %3: f32[b, n, 4] = delay(%2) {axis=1, by=1, first=0.0}
    %4: f32[b, 4] = last(%3) {axis=1}
    output "y" %4
    end
    gives
    %0 axis 1 reads [0, 0]
    %2 axis 1 reads [-1, 1]
    %3 axis 1 reads [0, 2]
    %4 the newest row
    leak at %2 conv: ahead
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from math import inf

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.heads import Clock, clock_of
from specc.ir.interval import ALL, EMPTY, SAME, Interval
from specc.ir.reach import Link, links
from specc.passes.prove.beyond import beyond, hidden
from specc.passes.prove.moving import Along, Flow, Leak, State, Why
from specc.passes.prove.neutral import neutral
from specc.passes.prove.opened import opened
from specc.passes.prove.spliced import FIRST, HEAD, Reads, spliced
from specc.passes.prove.strides import strided
from specc.passes.prove.taken import before_first, runs_along, taken


@lru_cache(maxsize=4)
def flow(graph: Graph, symbol: str, chunk: int = 1) -> Flow:
    """Follow the axis called `symbol` through `graph`, of which `chunk` rows of what
    comes in are one (`specc.passes.prove.chunks`).
    """
    along = Along(clock_of(graph, symbol, chunk), {}, [], {})
    for value in graph.inputs.values():
        # Of an input of `n + 1` rows nobody knows which belongs to a new row.
        shape = value.type.shape
        axes = {n: SAME for n, d in enumerate(shape) if along.clock.head(d) == 0}
        whole = not axes and any(d.symbols() & along.related for d in shape)
        along.states[value] = State(axes, whole=whole)
    for node, results in graph.nodes:
        _visit(node, results, along)
    return Flow(along.clock, along.states, tuple(along.leaks), along.inside)


@dataclass
class _Read:
    """What a result reads of what moves: rows, along each of its time axes; the newest;
    all; the first.
    """

    before: dict[int, Interval]
    newest: bool = False
    whole: bool = False
    first: Interval = EMPTY

    @property
    def mixed(self) -> bool:
        """Whether the newest row goes into rows before it."""
        return self.newest and bool(self.before)

    def state(self) -> State:
        """What the result is."""
        newest = self.newest and not self.mixed
        # What the first row goes into reads it from every row.
        axes = {axis: reach | self.first for axis, reach in self.before.items()}
        first = EMPTY if axes else self.first
        return State(axes, newest, self.whole or self.mixed, first)


def _visit(node: Node, results: tuple[Value, ...], along: Along) -> None:
    """Find the states of the results of a node, and note the first way in which it leaks."""
    if isinstance(node.op, ops.Scan):
        _loop(node, node.op, results, along)
    else:
        _note(node, results, *_judged(node, results, along), along)


def _note(
    node: Node,
    results: tuple[Value, ...],
    states: Sequence[State],
    found: Sequence[Leak],
    along: Along,
) -> None:
    if found:
        along.leaks.append(_worst(found))
    along.states.update(zip(results, states, strict=True))


def _judged(
    node: Node, results: tuple[Value, ...], along: Along
) -> tuple[list[State], list[Leak]]:
    """The states of the results by the links of the node, and its leaks."""
    given = along.given(node)
    newest, whole = any(s.newest for s in given), any(s.whole for s in given)
    first = EMPTY
    for s in given:
        first = first | s.first
    reads = [
        _Read(dict.fromkeys(along.times(r), EMPTY), newest, whole, first)
        for r in results
    ]
    found: list[Leak] = []
    for link in links(node, results):
        if link.operand_axis in given[link.operand].axes:
            found += _follow(
                node, link, given[link.operand], reads[link.result], along.clock
            )
    states = [read.state() for read in reads]
    found += _mixed(node, results, given, states, along)
    if any(read.mixed for read in reads):
        operand = next((n for n, s in enumerate(given) if s.newest), None)
        found.append(Leak(node, "newest", operand))
    return states, found


def _follow(
    node: Node, link: Link, state: State, read: _Read, clock: Clock
) -> list[Leak]:
    """Join into `read` what a link reads along a time axis; the leak, if it is one."""
    if link.kind == "extent":
        return []  # a length is told, no row is read
    if link.kind == "newest":
        read.newest = True
        return []
    to, reach = resolve(node, link, clock)
    if (to, reach) == HEAD:
        return []  # rows of a head do not move
    if (to, reach) == FIRST:
        read.first = read.first | (state.axes[link.operand_axis] + reach)
        return []
    unmasked = link.kind == "band" and not link.gates
    if to is None or to not in read.before or unmasked:
        # The axis is gone, or every row of the result sees every row of it.
        read.whole = True
        return [Leak(node, "all", link.operand)]
    # Reaches add up along a path, and paths that meet are joined. They are counted in
    # rows of what comes in, of which a row behind strides is several.
    operand = node.args[link.operand]
    rate = clock.rate(operand.type.shape[link.operand_axis]) if operand else 1
    rows = reach.times(clock.chunk // max(rate, 1))
    read.before[to] = read.before[to] | (state.axes[link.operand_axis] + rows)
    return [Leak(node, "ahead", link.operand, reach)] if reach.lo < 0 else []


def _worst(found: Sequence[Leak]) -> Leak:
    """One op, one leak: the one that says most."""
    order: list[Why] = [
        *("captured", "length", "all", "ahead", "newest", "first", "shape"),
    ]
    return min(found, key=lambda leak: (order.index(leak.why), leak.reach.lo))


def _mixed(
    node: Node,
    results: tuple[Value, ...],
    given: list[State],
    states: list[State],
    along: Along,
) -> list[Leak]:
    """Leaks that no single link shows."""
    found: list[Leak] = []
    if needs_length(node, along.clock):
        found.append(Leak(node, "length"))
    elif not any(along.composite(a) for a in node.args if a):
        # Here rows are first put together with others, as by a merge with another axis.
        made_here = any(along.composite(r) for r in results)
        if made_here and not any(s.whole for s in states):
            found.append(Leak(node, "shape"))
    found += taken(node, given, along.clock)
    if before_first(node, results, given, along.clock):
        found.append(Leak(node, "first"))
    return found


def _loop(node: Node, op: ops.Scan, results: tuple[Value, ...], along: Along) -> None:
    """Find the states of the results of a loop, whose body is judged op by op as what
    stands outside is.
    """
    runs = runs_along(node, op, along.clock)
    given = along.given(node)
    body = opened(node, op)
    inside = _in_body(node, op, body, along)
    if runs:
        states, found = _judged(node, results, along)
    else:
        # Along another axis it is its body that is read, turn by turn.
        states = _behind(op, body, inside)
        found = _mixed(node, results, given, states, along)
        along.inside.update({node: body, **inside.inside})
        along.states.update(inside.states)
    moves = any(s.axes for s in (*given, *states))
    if (says := _says_length(op.body, along.related)) and (runs or not moves):
        found = [Leak(node, "length", inside=(op.body, Leak(says, "length"))), *found]
    else:
        within = [Leak(node, k.why, None, k.reach, (body, k)) for k in inside.leaks]
        found = [*within, *found]
    _note(node, results, states, found, along)


def _in_body(node: Node, op: ops.Scan, body: Graph, along: Along) -> Along:
    """What is known inside a loop, whatever the number of turns."""
    outer, inner = op.parts(along.given(node)), op.inner()
    start = {
        v: _row_of(s, op.axis) for v, s in zip(inner.rows, outer.rows, strict=True)
    }
    start |= dict(zip(inner.starts, outer.starts, strict=True))
    outputs = list(body.outputs.values())
    for turn in count():
        states = {**along.states, **start}
        inside = Along(along.clock, states, [], {})
        for each, results in body.nodes:
            _visit(each, results, inside)
        # What a carry is behind a turn it may be before the next one: again, until no
        # turn adds anything. States only grow, so this ends.
        grown = {
            before: _joined(start[before], inside.states.get(after, State()), turn)
            for before, after in zip(inner.starts, outputs, strict=False)
        }
        if all(start[v] == s for v, s in grown.items()):
            break
        start |= grown
    return inside


def _row_of(state: State, axis: int) -> State:
    """What one row of `axis` is."""
    axes = {n - (n > axis): reach for n, reach in state.axes.items() if n != axis}
    return State(axes, state.newest, state.whole, state.first)


def _behind(op: ops.Scan, body: Graph, inside: Along) -> list[State]:
    """What a loop over another axis gives, from what its body does."""
    made = [inside.states.get(v, State()) for v in body.outputs.values()]
    carried = [inside.states.get(v, State()) for v in op.inner().starts]
    ends = [_joined(c, m, 0) for c, m in zip(carried, made, strict=False)]
    stacked = [
        replace(s, axes={n + (n >= op.axis): r for n, r in s.axes.items()})
        for s in made[op.carries :]
    ]
    return [*ends, *stacked]


FEW_TURNS = 3
"""Turns that are followed; a reach that grows with the fourth grows without end."""


def _joined(carry: State, after: State, turn: int) -> State:
    """A carry before any turn: what it was, or what the turn before has made of it."""
    axes: dict[int, Interval] = {}
    for axis in {*carry.axes, *after.axes}:
        old = carry.axes.get(axis, EMPTY)
        new = old | after.axes.get(axis, EMPTY)
        if turn >= FEW_TURNS and new != old:
            lo = -inf if new.lo < old.lo else new.lo
            new = Interval(lo, inf if new.hi > old.hi else new.hi)
        axes[axis] = new
    first = EMPTY if axes else carry.first | after.first
    return State(axes, carry.newest or after.newest, carry.whole or after.whole, first)


def _says_length(body: Graph, related: frozenset[str]) -> Node | None:
    """The first node of a body whose attributes hold the length."""
    for node, _ in body.nodes:
        if any(_mentions(v, related) for v in _attributes(node)):
            return node
    return None


def _attributes(node: Node) -> Iterator[object]:
    """The attributes of a node, and where it is a loop, those of the nodes in its body."""
    if isinstance(node.op, ops.Scan):
        for inner, _ in node.op.body.nodes:
            yield from _attributes(inner)
    else:
        yield from node.op.attributes().values()


def needs_length(node: Node, clock: Clock) -> bool:
    """Whether an op holds the length itself, other than to make rows of that length, or
    to leave away rows of a head in front of them.
    """
    match node.op:
        case ops.Range(length=dim) | ops.Expand(length=dim):
            rows = clock.head(dim) is not None
        case ops.Slice(axis=axis, start=start, stop=stop):
            rows = _is_end(node, axis, stop) and not _mentions(start, clock.related)
        case ops.Stride(axis=axis, start=start, stop=stop, step=step):
            rows = _is_end(node, axis, stop) and not any(
                _mentions(d, clock.related) for d in (start, step)
            )
        case ops.Resize():
            return False  # every row is read, which says more
        case ops.Scan():
            return False
        case _:
            rows = False
    said = node.op.attributes().values()
    return not rows and any(_mentions(v, clock.related) for v in said)


def _mentions(value: object, related: frozenset[str]) -> bool:
    if isinstance(value, tuple):
        return any(_mentions(v, related) for v in value)
    return isinstance(value, Dim) and bool(value.symbols() & related)


def _is_end(node: Node, axis: int, stop: Dim) -> bool:
    """Whether rows are taken up to the last."""
    return node.first is not None and stop == node.first.type.shape[axis]


def resolve(node: Node, link: Link, clock: Clock | None = None) -> Reads:
    """The result axis and the interval of a link, in time where a clock is given; of
    several gates, the one that proves most. What reads every key reads row by row where
    hidden ones do not count. `HEAD` where no row that moves is read.
    """
    if link.kind == "all" and clock and (found := spliced(node, link, clock)):
        return found
    if link.kind == "strided" and clock:
        return strided(node, link, clock)
    best: Reads = (link.result_axis, link.reach)
    for to, reach in (*_gated(node, link, clock), *neutral(node, link, clock)):
        if _better(reach, best[1]):
            best = to, reach
    return best


def _gated(
    node: Node, link: Link, clock: Clock | None
) -> Iterator[tuple[int, Interval]]:
    """What each gate of a link lets through."""
    for gate in link.gates:
        operand = node.args[gate.operand]
        if operand:
            yield gate.result_axis, hidden(operand, gate.query, gate.key, clock)
        scores = node.first
        if isinstance(node.op, ops.MaskedSoftmax) and scores:
            # A score of minus infinity is as good as a mask.
            query = scores.type.rank - 2
            low = beyond(scores, query, query + 1, clock).get(-ALL.hi, ALL)
            yield gate.result_axis, low


def _better(a: Interval, b: Interval) -> bool:
    """Prefer what is causal, then what is shorter, then what looks less far ahead."""
    return (a.lo >= 0, -(a.hi - a.lo), a.lo) > (b.lo >= 0, -(b.hi - b.lo), b.lo)


__all__ = ["Flow", "Leak", "State", "flow", "needs_length", "resolve"]

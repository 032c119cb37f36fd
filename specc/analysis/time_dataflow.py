"""Trace the time axis forward through a graph and find ops that read later positions.

Input: any valid graph, and the symbol of a time axis, such as the sequence length. Output: the
state of every value, and the ops that leak. Graphs are never rejected here; `causality` decides
which leaks matter.

Positions are counted in time, from the end of the prefix of an axis (`specc.analysis.time_axis`). A
value is constant (it depends on nothing with the time axis, or on prefix positions only), or it
moves. A moving value has time axes, with or without a prefix, and for each the accumulated
receptive field: which positions its position `t` depends on, as an interval of `t - u`. Or it
has none and holds the newest position, or a reduction over all.

Each op is judged by itself: `causality_messages` reports each op that lets position t of its
result read a position after t of its operand, whatever a later op does with it.

A centered convolution reads the position before, its own, and the one after, which leaks. The
delay after it shifts that by one: its positions depend on the last two and their own. `last`
holds the newest position and has no time axis:

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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from math import inf

from specc.analysis.masked_reductions import iterate_neutral_reads
from specc.analysis.masked_values import find_masked_values, find_nonzero_interval
from specc.analysis.time_axis import (
    FIRST_POSITION_READ,
    PREFIX_READ,
    TimeAxis,
    TimeRead,
    find_time_axis,
    resolve_splice,
    resolve_stride,
)
from specc.analysis.time_dataflow_facts import (
    Leak,
    LeakReason,
    TimeFlow,
    TimeState,
    find_length_use,
    has_prefix_leak,
    has_time_axis_length,
    inline_loop_captures,
    is_time_loop,
    iterate_capture_leaks,
)
from specc.ir import ops
from specc.ir.dependence import Dependence, find_dependences, get_read_length
from specc.ir.graph import Graph, Node, NodeResults
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, SAME_POSITION, Interval


@lru_cache(maxsize=4)
def trace_time_dataflow(graph: Graph, symbol: str, chunk: int = 1) -> TimeFlow:
    """Follow the axis `symbol` through `graph`; `chunk` positions of the input
    are one time step (`specc.analysis.time_axis`).
    """
    along = TimeFlow(find_time_axis(graph, symbol, chunk))
    for value in graph.inputs.values():
        # In an input of `n + 1` positions it is undefined which belongs to a new one.
        shape = value.shape
        axes = {
            n: SAME_POSITION for n, d in enumerate(shape) if along.clock.get_prefix_length(d) == 0
        }
        whole = not axes and any(d.symbols() & along.related for d in shape)
        along.states[value] = TimeState(axes, whole=whole)
    for node, results in graph.nodes:
        _visit_node(node, results, along)
    return along


@dataclass
class _TimeReads:
    """The positions that a result reads along each time axis: interval, newest, all, or first."""

    before: dict[int, Interval]
    newest: bool = False
    whole: bool = False
    first: Interval = EMPTY_INTERVAL

    @property
    def mixed(self) -> bool:
        """True if the newest position flows into earlier ones."""
        return self.newest and bool(self.before)

    def state(self) -> TimeState:
        """Return the state of the result."""
        newest = self.newest and not self.mixed
        # Whatever depends on the first position is read at every position.
        axes = {axis: reach | self.first for axis, reach in self.before.items()}
        first = EMPTY_INTERVAL if axes else self.first
        return TimeState(axes, newest, self.whole or self.mixed, first)


def _visit_node(node: Node, results: NodeResults, along: TimeFlow) -> None:
    """Find the states of the results of a node, and note the first way in which it leaks."""
    judge = _visit_loop if isinstance(node.op, ops.Scan) else _judge_node
    states, found = judge(node, results, along)
    if found:
        # the most informative leak of the op
        along.leaks.append(min(found, key=lambda k: (LEAK_ORDER.index(k.reason), k.reach.lo)))
    along.states.update(zip(results, states, strict=True))


def _judge_node(
    node: Node, results: NodeResults, along: TimeFlow
) -> tuple[list[TimeState], list[Leak]]:
    """Return the states of the results, by the dependences of the node, and its leaks."""
    given = along.given(node)
    newest, whole = any(s.newest for s in given), any(s.whole for s in given)
    first = EMPTY_INTERVAL
    for s in given:
        first = first | s.first
    reads = [
        _TimeReads(dict.fromkeys(along.find_time_axes(r), EMPTY_INTERVAL), newest, whole, first)
        for r in results
    ]
    found: list[Leak] = []
    for link in find_dependences(node, results):
        if link.operand_axis in given[link.operand].axes:
            found += _follow_dependence(
                node, link, given[link.operand], reads[link.result], along.clock
            )
    states = [read.state() for read in reads]
    found += _find_mixing_leaks(node, results, given, states, along)
    if any(read.mixed for read in reads):
        operand = next((n for n, s in enumerate(given) if s.newest), None)
        found.append(Leak(node, "newest", operand))
    return states, found


def _follow_dependence(
    node: Node, link: Dependence, state: TimeState, read: _TimeReads, clock: TimeAxis
) -> list[Leak]:
    """Join into `read` what a link reads along a time axis; the leak, if it is one."""
    if link.kind == "extent":
        return []  # a length is read, no position
    if link.kind == "newest":
        read.newest = True
        return []
    to, reach = resolve_dependence(node, link, clock)
    if (to, reach) == PREFIX_READ:
        return []  # positions of a head do not move
    if (to, reach) == FIRST_POSITION_READ:
        read.first = read.first | (state.axes[link.operand_axis] + reach)
        return []
    unmasked = link.kind == "band" and not link.gates
    if to is None or to not in read.before or unmasked:
        # The axis is gone, or every position of the result depends on every input position.
        read.whole = True
        return [Leak(node, "all", link.operand)]
    # Dependences add up along a path, and joining paths are merged. They are counted in input
    # positions, of which one position after a stride is several.
    rate = clock.get_rate(get_read_length(node, link))
    rows = reach.scale(clock.chunk_size // max(rate, 1))
    read.before[to] = read.before[to] | (state.axes[link.operand_axis] + rows)
    return [Leak(node, "ahead", link.operand, reach)] if reach.lo < 0 else []


LEAK_ORDER: tuple[LeakReason, ...] = (
    *("captured", "length", "all", "ahead", "newest", "first", "shape"),
)
"""The reasons of leaks, the most informative first."""


def _find_mixing_leaks(
    node: Node,
    results: NodeResults,
    given: list[TimeState],
    states: list[TimeState],
    along: TimeFlow,
) -> list[Leak]:
    """Return the leaks of a node that no single read reveals."""
    found: list[Leak] = []
    if has_time_axis_length(node, along.clock):
        found.append(Leak(node, "length"))
    elif not any(along.composite(a) for a in node.operands):
        # Here positions are merged with another axis first.
        made_here = any(along.composite(r) for r in results)
        if made_here and not any(s.whole for s in states):
            found.append(Leak(node, "shape"))
    found += iterate_capture_leaks(node, given, along.clock)
    if has_prefix_leak(node, results, given, along.clock):
        found.append(Leak(node, "first"))
    return found


def _visit_loop(
    node: Node, results: NodeResults, along: TimeFlow
) -> tuple[list[TimeState], list[Leak]]:
    """Return the states of the results of a loop, whose body is judged op by op as what
    stands outside is, and its leaks.
    """
    op = node.op
    assert isinstance(op, ops.Scan)
    runs = is_time_loop(node, op, along.clock)
    given = along.given(node)
    body = inline_loop_captures(node, op)
    inside = _enter_body(node, op, body, along)
    if runs:
        states, found = _judge_node(node, results, along)
    else:
        # Along another axis its body is analyzed, iteration by iteration.
        states = _get_loop_results(op, body, inside)
        found = _find_mixing_leaks(node, results, given, states, along)
        along.inside.update({node: body, **inside.inside})
        along.states.update(inside.states)
    moves = any(s.axes for s in (*given, *states))
    if (says := find_length_use(op.body, along.related)) and (runs or not moves):
        return states, [Leak(node, "length", inside=(op.body, Leak(says, "length"))), *found]
    within = [Leak(node, k.reason, None, k.reach, (body, k)) for k in inside.leaks]
    return states, [*within, *found]


def _enter_body(node: Node, op: ops.Scan, body: Graph, along: TimeFlow) -> TimeFlow:
    """Return the states inside a loop body, for any number of iterations (a fixed point)."""
    outer, inner = op.split_operands(along.given(node)), op.split_body_inputs()
    start = {
        v: _get_row_state(s, op.axis) for v, s in zip(inner.scanned, outer.scanned, strict=True)
    }
    start |= dict(zip(inner.initial_carries, outer.initial_carries, strict=True))
    outputs = list(body.outputs.values())
    for turn in count():
        states = {**along.states, **start}
        inside = TimeFlow(along.clock, states)
        for each, results in body.nodes:
            _visit_node(each, results, inside)
        # A carry's state after an iteration may hold before the next one: repeated until a fixed
        # point. States only grow, so this terminates.
        grown = {
            before: _join_carry(start[before], inside.state(after), turn)
            for before, after in zip(inner.initial_carries, outputs, strict=False)
        }
        if all(start[v] == s for v, s in grown.items()):
            break
        start |= grown
    return inside


def _get_row_state(state: TimeState, axis: int) -> TimeState:
    """Return the state of one element along `axis`."""
    axes = {n - (n > axis): reach for n, reach in state.axes.items() if n != axis}
    return TimeState(axes, state.newest, state.whole, state.first)


def _get_loop_results(op: ops.Scan, body: Graph, inside: TimeFlow) -> list[TimeState]:
    """Return the states of the results of a loop over another axis, from those of its body."""
    made = [inside.state(v) for v in body.outputs.values()]
    carried = [inside.state(v) for v in op.split_body_inputs().initial_carries]
    ends = [_join_carry(c, m, 0) for c, m in zip(carried, made, strict=False)]
    stacked = [
        replace(s, axes={n + (n >= op.axis): r for n, r in s.axes.items()})
        for s in made[op.carries :]
    ]
    return [*ends, *stacked]


MAX_FOLLOWED_ITERATIONS = 3
"""Number of loop iterations that are analyzed; a dependence that still grows after them is
unbounded."""


def _join_carry(carry: TimeState, after: TimeState, turn: int) -> TimeState:
    """Return the state of a carry before any iteration: its initial value or a result."""
    axes: dict[int, Interval] = {}
    for axis in {*carry.axes, *after.axes}:
        old = carry.axes.get(axis, EMPTY_INTERVAL)
        new = old | after.axes.get(axis, EMPTY_INTERVAL)
        if turn >= MAX_FOLLOWED_ITERATIONS and new != old:
            lo = -inf if new.lo < old.lo else new.lo
            new = Interval(lo, inf if new.hi > old.hi else new.hi)
        axes[axis] = new
    first = EMPTY_INTERVAL if axes else carry.first | after.first
    return TimeState(axes, carry.newest or after.newest, carry.whole or after.whole, first)


def resolve_dependence(node: Node, link: Dependence, clock: TimeAxis | None = None) -> TimeRead:
    """Return the result axis and interval of a dependence, in time if a clock is given; of several
    gates, the tightest. A reduction over all keys reads elementwise where masked keys have no
    effect. `PREFIX_READ` if no position on the time axis is read.
    """
    if link.kind == "all" and clock and (found := resolve_splice(node, link, clock)):
        return found
    if link.kind == "strided" and clock:
        return resolve_stride(node, link, clock)
    best: TimeRead = (link.result_axis, link.reach)
    for to, reach in (
        *_iterate_gate_reads(node, link, clock),
        *iterate_neutral_reads(node, link, clock),
    ):
        if _is_better_interval(reach, best[1]):
            best = to, reach
    return best


def _iterate_gate_reads(
    node: Node, link: Dependence, clock: TimeAxis | None
) -> Iterator[tuple[int, Interval]]:
    """Yield what each gate of a dependence lets through."""
    for gate in link.gates:
        mask = node.operand(gate.operand)
        yield gate.result_axis, find_nonzero_interval(mask, gate.query, gate.key, clock)
        if isinstance(node.op, ops.MaskedSoftmax):
            # A score of minus infinity acts as a mask.
            query = node.operand().rank - 2
            low = find_masked_values(node.operand(), query, query + 1, clock)
            yield gate.result_axis, low.get(-inf, FULL_INTERVAL)


def _is_better_interval(a: Interval, b: Interval) -> bool:
    """Return True if an interval is better: causal first, then shorter, then less far ahead."""
    return (a.lo >= 0, -(a.hi - a.lo), a.lo) > (b.lo >= 0, -(b.hi - b.lo), b.lo)

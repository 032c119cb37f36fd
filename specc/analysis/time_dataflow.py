"""Forward dataflow analysis that traces the time axis through a graph and finds ops that read later
positions.

The input is any valid graph, and the symbolic dimension of a time axis, such as the sequence
length. The output is the lattice element (`TimeState`) of every value, and the *leaks*: ops that
violate causality. `causality` decides which leaks are errors.

Positions are counted in time, from the end of the prefix of an axis (`specc.analysis.time_axis`). A
value is constant (it depends on no value with the time axis, or on prefix positions only), or it is
time-dependent. A time-dependent value has time axes, with or without a prefix, each with an
accumulated receptive field: the interval of `t - u` for the positions `u` that its position `t`
depends on. Without a time axis it holds the newest position, or a reduction over all positions.

Each op is checked by itself, independent of later ops: an op leaks if position `t` of its result
depends on a position after `t` of an operand.

A centered convolution reads the previous, the current and the next position; the next position is a
leak. After the delay, each position depends on itself and the two positions before it. `last`
contains the last position and has no time axis:

    $ flow n
    graph "g"
    input "x" %0: f32[b, n, 4]
    parameter "w" %1: f32[4, 4, 3] initial="zeros" made_by="conv"
    %2: f32[b, n, 4] = conv(%0, %1) {kernel=(3), stride=(1), dilation=(1), pads=(1, 1), groups=<1>}
    %3: f32[b, n, 4] = delay(%2) {axis=1, steps=1, fill_value=0.0}
    %4: f32[b, 4] = last(%3) {axis=1}
    output "y" %4
    end
    gives
    %0 axis 1 reads [0, 0]
    %2 axis 1 reads [-1, 1]
    %3 axis 1 reads [0, 2]
    %4 the newest position
    leak at %2 conv: ahead
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from math import inf

from specc.analysis.masked_constants import find_masked_constants, find_nonzero_interval
from specc.analysis.masked_reductions import iterate_unaffected_reductions
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
    TimeDataflow,
    TimeState,
    ViolationReason,
    find_length_use,
    has_time_axis_length,
    inline_loop_captures,
    is_time_loop,
    iterate_capture_violations,
    violates_prefix_causality,
)
from specc.ir import ops
from specc.ir.dependence import Dependence, find_dependences, get_read_length
from specc.ir.graph import Graph, Node, NodeResults
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, SAME_POSITION, Interval


@lru_cache(maxsize=4)
def trace_time_dataflow(graph: Graph, symbol: str, chunk_size: int = 1) -> TimeDataflow:
    """Trace the axis with the symbolic dimension `symbol` through `graph`; `chunk_size` positions
    of the input are one time step (`specc.analysis.time_axis`).
    """
    flow = TimeDataflow(find_time_axis(graph, symbol, chunk_size))
    for value in graph.inputs.values():
        # For an input of size `n + 1`, no rule assigns positions to time steps.
        shape = value.shape
        axes = {
            n: SAME_POSITION
            for n, d in enumerate(shape)
            if flow.time_axis.get_prefix_length(d) == 0
        }
        whole = not axes and any(d.symbols() & flow.dependent_symbols for d in shape)
        flow.states[value] = TimeState(axes, is_all=whole)
    for node, results in graph.nodes:
        _visit_node(node, results, flow)
    return flow


@dataclass
class _TimeReads:
    """The positions that a result reads along each time axis: an interval, the last position, all
    positions, or the first position.
    """

    intervals: dict[int, Interval]
    is_last_only: bool = False
    is_all: bool = False
    first_offsets: Interval = EMPTY_INTERVAL

    @property
    def is_mixed(self) -> bool:
        """True if the newest position affects earlier positions."""
        return self.is_last_only and bool(self.intervals)

    def make_state(self) -> TimeState:
        """Return the lattice element of the result."""
        newest = self.is_last_only and not self.is_mixed
        # Every position of the result depends on the first position.
        axes = {axis: reach | self.first_offsets for axis, reach in self.intervals.items()}
        first = EMPTY_INTERVAL if axes else self.first_offsets
        return TimeState(axes, newest, self.is_all or self.is_mixed, first)


def _visit_node(node: Node, results: NodeResults, flow: TimeDataflow) -> None:
    """Infer the lattice elements of the results of a node, and record its most informative leak."""
    judge = _visit_loop if isinstance(node.op, ops.Scan) else _compute_node_states
    states, found = judge(node, results, flow)
    if found:
        # only the most informative leak of an op is recorded
        flow.leaks.append(
            min(found, key=lambda k: (VIOLATION_ORDER.index(k.reason), k.offsets.low))
        )
    flow.states.update(zip(results, states, strict=True))


def _compute_node_states(
    node: Node, results: NodeResults, flow: TimeDataflow
) -> tuple[list[TimeState], list[Leak]]:
    """Return the lattice elements of the results, computed from the dependences of the node, and
    its leaks.
    """
    operand_states = flow.get_operand_states(node)
    newest, whole = (
        any(s.is_last_only for s in operand_states),
        any(s.is_all for s in operand_states),
    )
    first = _merge_first_offsets(operand_states)
    reads = [
        _TimeReads(dict.fromkeys(flow.find_time_axes(r), EMPTY_INTERVAL), newest, whole, first)
        for r in results
    ]
    found: list[Leak] = []
    for link in find_dependences(node, results):
        if link.operand_axis in operand_states[link.operand].axes:
            found += _follow_dependence(
                node, link, operand_states[link.operand], reads[link.result], flow.time_axis
            )
    states = [read.make_state() for read in reads]
    found += _find_mixing_violations(node, results, operand_states, states, flow)
    if any(read.is_mixed for read in reads):
        found.append(_make_last_position_violation(node, operand_states))
    return states, found


def _merge_first_offsets(operand_states: list[TimeState]) -> Interval:
    first = EMPTY_INTERVAL
    for state in operand_states:
        first = first | state.first_offsets
    return first


def _make_last_position_violation(node: Node, operand_states: list[TimeState]) -> Leak:
    operand = next((n for n, s in enumerate(operand_states) if s.is_last_only), None)
    return Leak(node, "newest", operand)


def _follow_dependence(
    node: Node,
    dependence: Dependence,
    state: TimeState,
    time_reads: _TimeReads,
    time_axis: TimeAxis,
) -> list[Leak]:
    """Add the positions that a dependence reads along a time axis to `time_reads`. Return its
    leaks.
    """
    if dependence.kind == "extent":
        return []  # only the axis size is read, no positions
    if dependence.kind == "newest":
        time_reads.is_last_only = True
        return []
    to, reach = resolve_dependence(node, dependence, time_axis)
    if (to, reach) == PREFIX_READ:
        return []  # prefix positions are constant
    if (to, reach) == FIRST_POSITION_READ:
        time_reads.first_offsets = time_reads.first_offsets | (
            state.axes[dependence.operand_axis] + reach
        )
        return []
    unmasked = dependence.kind == "band" and not dependence.gates
    if to is None or to not in time_reads.intervals or unmasked:
        # The axis is removed, or every result position depends on every operand position.
        time_reads.is_all = True
        return [Leak(node, "all", dependence.operand)]
    # Intervals are summed along a path, and merged over several paths. They are measured in input
    # positions; one position after a stride corresponds to several input positions.
    rate = time_axis.get_rate(get_read_length(node, dependence))
    rows = reach.scale(time_axis.chunk_size // max(rate, 1))
    time_reads.intervals[to] = time_reads.intervals[to] | (
        state.axes[dependence.operand_axis] + rows
    )
    return [Leak(node, "ahead", dependence.operand, reach)] if reach.low < 0 else []


VIOLATION_ORDER: tuple[ViolationReason, ...] = (
    *("captured", "length", "all", "ahead", "newest", "first", "shape"),
)
"""The reasons of causality violations, from most to least informative."""


def _find_mixing_violations(
    node: Node,
    results: NodeResults,
    operand_states: list[TimeState],
    states: list[TimeState],
    flow: TimeDataflow,
) -> list[Leak]:
    """Return the leaks of a node that only its dependences together cause."""
    found: list[Leak] = []
    if has_time_axis_length(node, flow.time_axis):
        found.append(Leak(node, "length"))
    elif not any(flow.has_composite_axis(a) for a in node.operands):
        # the time axis was merged with another axis
        made_here = any(flow.has_composite_axis(r) for r in results)
        if made_here and not any(s.is_all for s in states):
            found.append(Leak(node, "shape"))
    found += iterate_capture_violations(node, operand_states, flow.time_axis)
    if violates_prefix_causality(node, results, operand_states, flow.time_axis):
        found.append(Leak(node, "first"))
    return found


def _visit_loop(
    node: Node, results: NodeResults, flow: TimeDataflow
) -> tuple[list[TimeState], list[Leak]]:
    """Return the lattice elements of the results of a loop, and its leaks. The body is analyzed op
    by op.
    """
    op = node.op
    assert isinstance(op, ops.Scan)
    runs = is_time_loop(node, op, flow.time_axis)
    operand_states = flow.get_operand_states(node)
    body = inline_loop_captures(node, op)
    body_flow = _enter_body(node, op, body, flow)
    if runs:
        states, found = _compute_node_states(node, results, flow)
    else:
        # The body of a loop along another axis is analyzed once per iteration, up to a fixpoint.
        states = _get_loop_results(op, body, body_flow)
        found = _find_mixing_violations(node, results, operand_states, states, flow)
        flow.loop_body_dataflows.update({node: body, **body_flow.loop_body_dataflows})
        flow.states.update(body_flow.states)
    moves = any(s.axes for s in (*operand_states, *states))
    if (says := find_length_use(op.body, flow.dependent_symbols)) and (runs or not moves):
        return states, [
            Leak(node, "length", body_violation=(op.body, Leak(says, "length"))),
            *found,
        ]
    within = [Leak(node, k.reason, None, k.offsets, (body, k)) for k in body_flow.leaks]
    return states, [*within, *found]


def _enter_body(node: Node, op: ops.Scan, body: Graph, flow: TimeDataflow) -> TimeDataflow:
    """Return the lattice elements in a loop body, for any number of iterations (a fixpoint)."""
    outer, inner = op.split_operands(flow.get_operand_states(node)), op.split_body_inputs()
    start = {
        v: _get_element_state(s, op.axis) for v, s in zip(inner.scanned, outer.scanned, strict=True)
    }
    start |= dict(zip(inner.initial_carries, outer.initial_carries, strict=True))
    outputs = list(body.outputs.values())
    for iteration in count():
        states = {**flow.states, **start}
        body_flow = TimeDataflow(flow.time_axis, states)
        for each, results in body.nodes:
            _visit_node(each, results, body_flow)
        # The lattice element of a loop-carried value after an iteration is joined with the one
        # before it, up to a fixpoint. Lattice elements only increase, so this terminates.
        grown = {
            before: _merge_carry_states(start[before], body_flow.get_state(next_state), iteration)
            for before, next_state in zip(inner.initial_carries, outputs, strict=False)
        }
        if all(start[v] == s for v, s in grown.items()):
            break
        start |= grown
    return body_flow


def _get_element_state(state: TimeState, axis: int) -> TimeState:
    """Return the lattice element of a slice at one index of `axis`."""
    axes = {n - (n > axis): reach for n, reach in state.axes.items() if n != axis}
    return TimeState(axes, state.is_last_only, state.is_all, state.first_offsets)


def _get_loop_results(op: ops.Scan, body: Graph, body_flow: TimeDataflow) -> list[TimeState]:
    """Return the lattice elements of the results of a loop along an axis other than the time
    axis.
    """
    made = [body_flow.get_state(v) for v in body.outputs.values()]
    carried = [body_flow.get_state(v) for v in op.split_body_inputs().initial_carries]
    ends = [_merge_carry_states(c, m, 0) for c, m in zip(carried, made, strict=False)]
    stacked = [
        replace(s, axes={n + (n >= op.axis): r for n, r in s.axes.items()})
        for s in made[op.carry_count :]
    ]
    return [*ends, *stacked]


MAX_FOLLOWED_ITERATIONS = 3
"""Number of analyzed loop iterations. A dependence that still increases after them is considered
unbounded."""


def _merge_carry_states(carry: TimeState, next_state: TimeState, iteration: int) -> TimeState:
    """Return the lattice element of a loop-carried value before an iteration: that of its previous
    value joined with that of its next value. A receptive field that still increases after the
    analyzed iterations becomes unbounded.
    """
    axes: dict[int, Interval] = {}
    for axis in {*carry.axes, *next_state.axes}:
        old = carry.axes.get(axis, EMPTY_INTERVAL)
        new = old | next_state.axes.get(axis, EMPTY_INTERVAL)
        if iteration >= MAX_FOLLOWED_ITERATIONS and new != old:
            lo = -inf if new.low < old.low else new.low
            new = Interval(lo, inf if new.high > old.high else new.high)
        axes[axis] = new
    first = EMPTY_INTERVAL if axes else carry.first_offsets | next_state.first_offsets
    return TimeState(
        axes,
        carry.is_last_only or next_state.is_last_only,
        carry.is_all or next_state.is_all,
        first,
    )


def resolve_dependence(
    node: Node, dependence: Dependence, time_axis: TimeAxis | None = None
) -> TimeRead:
    """Return the result axis along which a dependence reads, and the interval that it reads, in
    time if `time_axis` is given. The tightest of several masks is used. A reduction over all keys
    is elementwise if masked keys have no effect. Return `PREFIX_READ` if no position on the time
    axis is read.
    """
    if (
        dependence.kind == "all"
        and time_axis
        and (found := resolve_splice(node, dependence, time_axis))
    ):
        return found
    if dependence.kind == "strided" and time_axis:
        return resolve_stride(node, dependence, time_axis)
    best: TimeRead = (dependence.result_axis, dependence.offsets)
    for to, reach in (
        *_iterate_masked_reads(node, dependence, time_axis),
        *iterate_unaffected_reductions(node, dependence, time_axis),
    ):
        if _is_preferred_interval(reach, best[1]):
            best = to, reach
    return best


def _iterate_masked_reads(
    node: Node, dependence: Dependence, time_axis: TimeAxis | None
) -> Iterator[tuple[int, Interval]]:
    """Yield the result axis and the interval of visible keys for each mask of a dependence."""
    for gate in dependence.gates:
        mask = node.get_operand(gate.operand)
        yield (
            gate.result_axis,
            find_nonzero_interval(mask, gate.query_axis, gate.key_axis, time_axis),
        )
        if isinstance(node.op, ops.MaskedSoftmax):
            # Scores of -inf act as a mask.
            query = node.get_operand().rank - 2
            low = find_masked_constants(node.get_operand(), query, query + 1, time_axis)
            yield gate.result_axis, low.get(-inf, FULL_INTERVAL)


def _is_preferred_interval(a: Interval, b: Interval) -> bool:
    """Return True if interval `a` is preferred to `b`: causal intervals first, then shorter
    intervals, then intervals with less look-ahead.
    """
    return (a.low >= 0, -(a.high - a.low), a.low) > (b.low >= 0, -(b.high - b.low), b.low)

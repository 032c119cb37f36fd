"""Forward dataflow analysis that traces the time axis through a graph and finds ops that read later
positions.

The inputs are a valid graph and the symbolic dimension of a time axis, such as the sequence length.
The output is the lattice element (`TimeDependence`) of every value, and the causality violations,
i.e. ops that read later positions. `causality` decides which violations are errors.

Positions are times, relative to the end of the prefix of an axis
(`specc.analysis.time_axis_prefix_and_chunks`). A value is either constant or time-dependent. A
constant value depends on no value with a time axis or only on prefix positions of such values. A
time-dependent value may have time axes, with or without a prefix. Each time axis has an accumulated
receptive field: the interval of `t - u` for all positions `u` on which position `t` depends. A
time-dependent value without a time axis contains the newest position or a reduction over all
positions.

Each op is checked independently of later ops: an op violates causality if position `t` of its
result depends on a position after `t` of an operand.

In the example, a centered convolution violates causality, because it reads the previous, the
current and the next position. After the delay, each position depends on itself and the two
positions before it. The result of `last` is the last position, without a time axis:

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
    violation at %2 conv: ahead
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import count
from math import inf
from operator import or_

from specc.analysis.masked_constants import find_masked_constants, find_nonzero_interval
from specc.analysis.masked_reductions import find_visible_keys
from specc.analysis.time_axis_prefix_and_chunks import (
    FIRST_POSITION_READ,
    PREFIX_READ,
    TimeAxis,
    TimeRead,
    find_time_axis,
    resolve_concat_or_slice_read,
    resolve_strided_read,
)
from specc.analysis.time_dependence_and_unsupported_loops import (
    CausalityViolation,
    TimeDataflow,
    TimeDependence,
    ViolationReason,
    find_length_dependent_node,
    inline_loop_captures,
    is_length_dependent,
    is_time_loop,
    iterate_captured_value_violations,
    violates_prefix_causality,
)
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.graph import Graph, Node, NodeResults
from specc.ir.loop_dependence import find_dependences, get_operand_axis_size
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, SAME_POSITION, Interval


@lru_cache(maxsize=4)
def trace_time_dataflow(graph: Graph, symbol: str, chunk_size: int = 1) -> TimeDataflow:
    """Trace the time axis with the symbolic dimension `symbol` through `graph`. Return the lattice
    element of every value and the causality violations of the graph.

    `chunk_size` consecutive input positions form one time step.
    """
    flow = TimeDataflow(find_time_axis(graph, symbol, chunk_size))
    for value in graph.inputs.values():
        # For an input axis of size `n + 1`, the time step of each position is undefined.
        shape = value.shape
        prefix_lengths = map(flow.time_axis.get_prefix_length, shape)
        axes = {axis: SAME_POSITION for axis, length in enumerate(prefix_lengths) if length == 0}
        reads_all = not axes and any(d.symbols() & flow.dependent_symbols for d in shape)
        flow.states[value] = TimeDependence(axes, depends_on_all=reads_all)
    for node, results in graph.nodes:
        _visit_node(node, results, flow)
    return flow


@dataclass
class _TimeReads:
    """The positions that one result of a node reads along the time axes of its operands.

    `intervals` maps each time axis of the result to the receptive field along this axis.
    `is_last_position_only` is True if the result reads the last position, and `reads_all` is True
    if it reads all positions. If the result reads the first position, `first_offsets` is the
    interval of distances to the first position.
    """

    intervals: dict[int, Interval]
    is_last_position_only: bool = False
    reads_all: bool = False
    first_offsets: Interval = EMPTY_INTERVAL

    @property
    def is_mixed(self) -> bool:
        """True if earlier positions of the result read the newest position."""
        return self.is_last_position_only and bool(self.intervals)

    def make_state(self) -> TimeDependence:
        """Return the lattice element of the result."""
        is_newest = self.is_last_position_only and not self.is_mixed
        # Every position of the result depends on the first position.
        axes = {axis: offsets | self.first_offsets for axis, offsets in self.intervals.items()}
        first_offsets = EMPTY_INTERVAL if axes else self.first_offsets
        return TimeDependence(axes, is_newest, self.reads_all or self.is_mixed, first_offsets)


def _visit_node(node: Node, results: NodeResults, flow: TimeDataflow) -> None:
    """Infer the lattice elements of a node's results, and record its most informative violation."""
    infer_states = _visit_loop if isinstance(node.op, ops.Scan) else _compute_node_states
    states, violations = infer_states(node, results, flow)
    if violations:
        # only the most informative violation of each op is recorded
        flow.violations.append(
            min(violations, key=lambda v: (VIOLATION_ORDER.index(v.reason), v.offsets.low))
        )
    flow.states.update(zip(results, states, strict=True))


def _compute_node_states(
    node: Node, results: NodeResults, flow: TimeDataflow
) -> tuple[list[TimeDependence], list[CausalityViolation]]:
    """Return the lattice elements of the results of a node, and its causality violations."""
    operand_states = flow.get_operand_states(node)
    is_last_position_only = any(s.is_last_position_only for s in operand_states)
    reads_all = any(s.depends_on_all for s in operand_states)
    first_offsets = reduce(or_, (s.first_offsets for s in operand_states), EMPTY_INTERVAL)
    intervals = [dict.fromkeys(flow.find_time_axes(r), EMPTY_INTERVAL) for r in results]
    reads = [_TimeReads(i, is_last_position_only, reads_all, first_offsets) for i in intervals]
    violations: list[CausalityViolation] = []
    for dependence in find_dependences(node, results):
        state, read = operand_states[dependence.operand], reads[dependence.result]
        if dependence.operand_axis in state.axes:
            violations += _follow_dependence(node, dependence, state, read, flow.time_axis)
    states = [read.make_state() for read in reads]
    violations += _find_mixing_violations(node, results, operand_states, states, flow)
    if any(read.is_mixed for read in reads):
        operand = next((n for n, s in enumerate(operand_states) if s.is_last_position_only), None)
        violations.append(CausalityViolation(node, "newest", operand))
    return states, violations


def _follow_dependence(
    node: Node,
    dependence: Dependence,
    state: TimeDependence,
    time_reads: _TimeReads,
    time_axis: TimeAxis,
) -> list[CausalityViolation]:
    """Add the positions that `dependence` reads along the time axis of an operand to `time_reads`.
    Return the causality violations of the dependence.

    `state` is the lattice element of the operand.
    """
    if dependence.kind == "extent":
        return []  # the op reads only the size of the axis
    if dependence.kind == "newest":
        time_reads.is_last_position_only = True
        return []
    result_axis, offsets = resolve_time_dependence(node, dependence, time_axis)
    if (result_axis, offsets) == PREFIX_READ:
        return []  # prefix positions are constant
    if (result_axis, offsets) == FIRST_POSITION_READ:
        time_reads.first_offsets = time_reads.first_offsets | (
            state.axes[dependence.operand_axis] + offsets
        )
        return []
    unmasked = dependence.kind == "band" and not dependence.masks
    if result_axis is None or result_axis not in time_reads.intervals or unmasked:
        # The op removes the axis, or every result position depends on every operand position.
        time_reads.reads_all = True
        return [CausalityViolation(node, "all", dependence.operand)]
    # Intervals are summed along a path and merged over paths. Intervals are measured in input
    # positions, because one position after a stride corresponds to several input positions.
    rate = time_axis.get_positions_per_chunk(get_operand_axis_size(node, dependence))
    input_offsets = offsets.scale(time_axis.chunk_size // max(rate, 1))
    time_reads.intervals[result_axis] = time_reads.intervals[result_axis] | (
        state.axes[dependence.operand_axis] + input_offsets
    )
    return (
        [CausalityViolation(node, "ahead", dependence.operand, offsets)] if offsets.low < 0 else []
    )


VIOLATION_ORDER: tuple[ViolationReason, ...] = (
    *("captured", "length", "all", "ahead", "newest", "first", "shape"),
)
"""The reasons of causality violations, from most to least informative."""


def _find_mixing_violations(
    node: Node,
    results: NodeResults,
    operand_states: list[TimeDependence],
    states: list[TimeDependence],
    flow: TimeDataflow,
) -> list[CausalityViolation]:
    """Return the causality violations of a node that are not caused by a single dependence: uses of
    the final length, captures of time-dependent values, prefix positions that depend on the first
    position, and merged time axes.
    """
    violations: list[CausalityViolation] = []
    if is_length_dependent(node, flow.time_axis):
        violations.append(CausalityViolation(node, "length"))
    elif not any(flow.has_time_dependent_size(a) for a in node.operands):
        # the time axis has been merged with another axis
        has_composite_result = any(flow.has_time_dependent_size(r) for r in results)
        if has_composite_result and not any(s.depends_on_all for s in states):
            violations.append(CausalityViolation(node, "shape"))
    violations += iterate_captured_value_violations(node, operand_states, flow.time_axis)
    if violates_prefix_causality(node, results, operand_states, flow.time_axis):
        violations.append(CausalityViolation(node, "first"))
    return violations


def _visit_loop(
    node: Node, results: NodeResults, flow: TimeDataflow
) -> tuple[list[TimeDependence], list[CausalityViolation]]:
    """Return the lattice elements of the results of a loop, and its causality violations.

    A loop along the time axis is analyzed by following its dependences. A loop along another axis
    is analyzed by analyzing its body.
    """
    op = node.op
    assert isinstance(op, ops.Scan)
    is_along_time = is_time_loop(node, op, flow.time_axis)
    operand_states = flow.get_operand_states(node)
    body = inline_loop_captures(node, op)
    body_flow = _analyze_loop_body(node, op, body, flow)
    if is_along_time:
        states, violations = _compute_node_states(node, results, flow)
    else:
        # The body of a loop along another axis is analyzed once per iteration, up to a fixpoint.
        states = _list_loop_result_states(op, body, body_flow)
        violations = _find_mixing_violations(node, results, operand_states, states, flow)
        flow.inlined_loop_bodies.update({node: body, **body_flow.inlined_loop_bodies})
        flow.states.update(body_flow.states)
    is_time_dependent = any(s.axes for s in (*operand_states, *states))
    if (length_reader := find_length_dependent_node(op.body, flow.dependent_symbols)) and (
        is_along_time or not is_time_dependent
    ):
        return states, [
            CausalityViolation(
                node,
                "length",
                body_violation=(op.body, CausalityViolation(length_reader, "length")),
            ),
            *violations,
        ]
    body_violations = [
        CausalityViolation(node, v.reason, None, v.offsets, (body, v)) for v in body_flow.violations
    ]
    return states, [*body_violations, *violations]


def _analyze_loop_body(node: Node, op: ops.Scan, body: Graph, flow: TimeDataflow) -> TimeDataflow:
    """Return the lattice elements of all values in the body of a loop. The elements of loop-carried
    values are a fixpoint, valid for any number of iterations.
    """
    outer, inner = op.split_operands(flow.get_operand_states(node)), op.split_body_inputs()
    input_states = {
        v: _get_element_state(s, op.axis) for v, s in zip(inner.scanned, outer.scanned, strict=True)
    }
    input_states |= dict(zip(inner.initial_carries, outer.initial_carries, strict=True))
    outputs = list(body.outputs.values())
    for iteration in count():
        states = {**flow.states, **input_states}
        body_flow = TimeDataflow(flow.time_axis, states)
        for body_node, results in body.nodes:
            _visit_node(body_node, results, body_flow)
        # The lattice elements of a loop-carried value before and after an iteration are joined
        # until a fixpoint. The iteration terminates because lattice elements only increase.
        merged = {
            carry: _merge_carry_states(
                input_states[carry], body_flow.get_state(next_state), iteration
            )
            for carry, next_state in zip(inner.initial_carries, outputs, strict=False)
        }
        if all(input_states[v] == s for v, s in merged.items()):
            break
        input_states |= merged
    return body_flow


def _get_element_state(state: TimeDependence, axis: int) -> TimeDependence:
    """Return the lattice element of the slice of a value at one index of `axis`."""
    axes = {n - (n > axis): reach for n, reach in state.axes.items() if n != axis}
    return replace(state, axes=axes)


def _list_loop_result_states(
    op: ops.Scan, body: Graph, body_flow: TimeDataflow
) -> list[TimeDependence]:
    """Return the lattice elements of the results of a loop that runs along another axis."""
    output_states = [body_flow.get_state(v) for v in body.outputs.values()]
    carry_states = [body_flow.get_state(v) for v in op.split_body_inputs().initial_carries]
    final_carries = [
        _merge_carry_states(c, m, 0) for c, m in zip(carry_states, output_states, strict=False)
    ]
    stacked = [
        replace(s, axes={n + (n >= op.axis): r for n, r in s.axes.items()})
        for s in output_states[op.carry_count :]
    ]
    return [*final_carries, *stacked]


MAX_FOLLOWED_ITERATIONS = 3
"""Number of loop iterations to analyze before a growing receptive field is treated as unbounded."""


def _merge_carry_states(
    carry: TimeDependence, next_state: TimeDependence, iteration: int
) -> TimeDependence:
    """Return the join of the lattice elements of a loop-carried value before (`carry`) and after
    (`next_state`) an iteration. A receptive field that still grows after `MAX_FOLLOWED_ITERATIONS`
    iterations becomes unbounded.
    """
    axes: dict[int, Interval] = {}
    for axis in {*carry.axes, *next_state.axes}:
        previous = carry.axes.get(axis, EMPTY_INTERVAL)
        merged = previous | next_state.axes.get(axis, EMPTY_INTERVAL)
        if iteration >= MAX_FOLLOWED_ITERATIONS and merged != previous:
            low = -inf if merged.low < previous.low else merged.low
            merged = Interval(low, inf if merged.high > previous.high else merged.high)
        axes[axis] = merged
    first_offsets = EMPTY_INTERVAL if axes else carry.first_offsets | next_state.first_offsets
    return TimeDependence(
        axes,
        carry.is_last_position_only or next_state.is_last_position_only,
        carry.depends_on_all or next_state.depends_on_all,
        first_offsets,
    )


def resolve_time_dependence(
    node: Node, dependence: Dependence, time_axis: TimeAxis | None = None
) -> TimeRead:
    """Return the result axis of `dependence` and the interval of offsets that it reads. Offsets are
    differences of times if `time_axis` is not None.

    If the node has several masks, return the tightest interval. A reduction over all keys is
    elementwise along the query axis if masked keys do not affect the result. Return `PREFIX_READ`
    if the dependence reads no position of the time axis.
    """
    if (
        dependence.kind == "all"
        and time_axis
        and (splice := resolve_concat_or_slice_read(node, dependence, time_axis))
    ):
        return splice
    if dependence.kind == "strided" and time_axis:
        return resolve_strided_read(node, dependence, time_axis)
    reads: list[TimeRead] = [
        (dependence.result_axis, dependence.offsets),
        *_iterate_masked_reads(node, dependence, time_axis),
        *find_visible_keys(node, dependence, time_axis),
    ]
    return max(reads, key=lambda read: _rank_interval(read[1]))


def _iterate_masked_reads(
    node: Node, dependence: Dependence, time_axis: TimeAxis | None
) -> Iterator[tuple[int, Interval]]:
    """Yield the result axis and the interval of visible keys for each mask of a dependence."""
    for mask in dependence.masks:
        operand = node.get_operand(mask.operand)
        yield (
            mask.result_axis,
            find_nonzero_interval(operand, mask.query_axis, mask.key_axis, time_axis),
        )
        if isinstance(node.op, ops.MaskedSoftmax):
            # Scores of -inf act as a mask.
            query = node.get_operand().rank - 2
            score_constants = find_masked_constants(node.get_operand(), query, query + 1, time_axis)
            yield mask.result_axis, score_constants.get(-inf, FULL_INTERVAL)


def _rank_interval(offsets: Interval) -> tuple[bool, float, float]:
    """Return a sort key that is larger for a tighter interval: prefer causal intervals, then
    shorter intervals, then intervals with less look-ahead.
    """
    return offsets.low >= 0, offsets.low - offsets.high, offsets.low

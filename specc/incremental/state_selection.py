"""Select the values to cache between steps and the values to precompute. The selection is a minimum
cut.

The `sinks` of the network are the values that a step uses. Each of these values is either cached or
recomputed. Both costs are estimated from the size of the value in bytes. The operands of a
recomputed value must also be cached or recomputed. The selection with the lowest cost is a minimum
cut in a network with two nodes per value: "available" and "recomputed". If there are several
minimum cuts, the cut nearest to the sinks is chosen.

The input is the result of `compute_demanded_positions`. Earlier positions of a value are available
only if they are cached, or if they can be recomputed from cached values.

Contractions and loops are never recomputed. Reshapes and other views have no cost. Values that
depend only on positions, masks and loop-invariant inputs are always recomputed. Each dynamic axis
is assumed to have size 64. All tested estimates between 2 and 100 000 resulted in the same
selection.

In the example, a delay reads the previous position of `exp(x W)`. A cache of `x` would have the
same size, but `x W` would be computed twice for each position. A cache of `x W` would also have the
same size, but `exp` would be computed twice. `m` has no time axis, so its linear layer is computed
once and passed to each step:

    $ keeping x y=new
    graph "g"
    input "x" %0: f32[b, n, 4]
    input "m" %1: f32[b, 4]
    parameter "w" %2: f32[4, 4] initial="zeros" made_by="linear"
    %3: f32[b, n, 4] = linear(%0, %2)
    %4: f32[b, n, 4] = pointwise(%3) {fn="exp"}
    %5: f32[b, n, 4] = delay(%4) {axis=1, steps=1, fill_value=0.0}
    %6: f32[b, 4] = linear(%1, %2)
    %7: f32[b, 1, 4] = insert(%6) {axis=1}
    %8: f32[b, n, 4] = arith(%5, %7) {fn="add"}
    output "y" %8
    end
    gives
    %4 is cached
    "insert" is passed to each step
"""

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Generic, TypeVar

from specc.analysis.time_dependence_and_unsupported_loops import TimeDataflow
from specc.incremental.demand_propagation import (
    collect_decode_step_nodes,
    compute_demanded_positions,
    is_fixed_prefix_slice,
)
from specc.incremental.demanded_positions import (
    NEWEST_ONLY,
    STATEFUL_OPS,
    DemandedPositionsContext,
    PositionNeeds,
)
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class CacheCandidate(Generic[T]):
    """The cost of caching a value, the cost of recomputing it, and the values from which it is
    recomputed.

    A value with `recompute_cost = inf` must be cached if it is needed.
    """

    cache_cost: float
    recompute_cost: float
    operands: Sequence[T] = ()


def find_minimum_cut(candidates: Mapping[T, CacheCandidate[T]], sinks: Sequence[T]) -> list[T]:
    """Return the values to cache so that the total cost of computing `sinks` is minimal, in the
    order of `candidates`.
    """
    network = _FlowNetwork[tuple[str, T | None]]()
    source, sink = ("source", None), ("sink", None)
    for value, choice in candidates.items():
        available, recomputed = ("available", value), ("recomputed", value)
        network.add_edge(recomputed, available, choice.cache_cost)
        network.add_edge(source, recomputed, choice.recompute_cost)
        for operand in choice.operands:
            network.add_edge(("available", operand), recomputed, inf)
    for value in sinks:
        network.add_edge(("available", value), sink, inf)
    sink_side = network.find_sink_side(source, sink)
    return [
        v
        for v in candidates
        if ("available", v) in sink_side and ("recomputed", v) not in sink_side
    ]


N = TypeVar("N", bound=Hashable)


@dataclass
class _FlowNetwork(Generic[N]):
    """A flow network, represented by the residual capacities of each node and neighbor."""

    residual_capacities: dict[N, dict[N, float]] = field(default_factory=dict)

    def add_edge(self, a: N, b: N, capacity: float) -> None:
        out = self.residual_capacities.setdefault(a, {})
        out[b] = out.get(b, 0.0) + capacity
        self.residual_capacities.setdefault(b, {}).setdefault(a, 0.0)

    def find_sink_side(self, source: N, sink: N) -> set[N]:
        """Return the nodes that reach the sink in the residual network (Edmonds and Karp 1972)."""
        while (path := self._find_augmenting_path(source, sink)) is not None:
            self._saturate_path(path)
        sink_side, worklist = {sink}, [sink]
        while worklist:
            node = worklist.pop()
            predecessors = [
                n
                for n in self.residual_capacities.get(node, {})
                if n not in sink_side and self.residual_capacities[n][node] > 0
            ]
            sink_side.update(predecessors)
            worklist += predecessors
        return sink_side

    def _saturate_path(self, path: Sequence[tuple[N, N]]) -> None:
        """Augment the flow along `path` by the smallest residual capacity on `path`."""
        capacity = min(self.residual_capacities[a][b] for a, b in path)
        assert capacity < inf, "a sink can be neither cached nor recomputed"
        for a, b in path:
            self.residual_capacities[a][b] -= capacity
            self.residual_capacities[b][a] += capacity

    def _find_augmenting_path(self, source: N, sink: N) -> list[tuple[N, N]] | None:
        predecessors: dict[N, N] = {}
        worklist = deque([source])
        while worklist:
            node = worklist.popleft()
            for neighbor, capacity in self.residual_capacities.get(node, {}).items():
                if capacity <= 0 or neighbor in predecessors or neighbor == source:
                    continue
                predecessors[neighbor] = node
                if neighbor == sink:
                    path = []
                    while neighbor != source:
                        path.append((predecessors[neighbor], neighbor))
                        neighbor = predecessors[neighbor]
                    return path[::-1]
                worklist.append(neighbor)
        return None


NOMINAL_LENGTH = 64
BYTES_BY_DTYPE = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "bool": 1}


def estimate_value_bytes(value: Value) -> float:
    """Estimate the size of a value in bytes, with 64 for every dynamic dimension."""
    lengths = [d.evaluate(dict.fromkeys(d.symbols(), NOMINAL_LENGTH)) for d in value.shape]
    return float(prod(lengths) * BYTES_BY_DTYPE[value.dtype])


def estimate_recompute_cost(node: Node, value: Value) -> float:
    """Estimate the cost of recomputing `value`, a result of `node`: its size in bytes, 0 for views,
    or infinity for contractions and stateful ops.
    """
    if node.op.is_compute_intensive or isinstance(node.op, STATEFUL_OPS):
        return inf
    return 0.0 if node.op.is_view else estimate_value_bytes(value)


def find_recomputable_values(graph: Graph, flow: TimeDataflow, time_axis_input: str) -> set[Value]:
    """Return the time-dependent values that cost nothing to recompute: inputs other than
    `time_axis_input`, position ids, and results of elementwise ops on such values.
    """
    recomputable = {
        v
        for n, v in graph.inputs.items()
        if n != time_axis_input and flow.get_state(v).is_time_dependent
    }
    for node, results in iterate_nodes_and_loop_bodies(graph, flow):
        if node in flow.inlined_loop_bodies:
            recomputable.update(v for v, x in _list_scanned_operands(node) if x in recomputable)
        if _is_free_node(node, results, flow, recomputable):
            recomputable.update(results)
    return recomputable


def _is_free_node(
    node: Node, results: Sequence[Value], flow: TimeDataflow, recomputable_values: set[Value]
) -> bool:
    """Return True if a node depends on the time axis, is not a contraction, and reads only
    `recomputable_values` and time-independent values.
    """
    is_time_dependent = flow.get_state(results[0]).is_time_dependent
    return (
        is_time_dependent
        and not node.op.is_compute_intensive
        and _find_moving_operands(node, flow) <= recomputable_values
    )


def _find_moving_operands(node: Node, flow: TimeDataflow) -> set[Value]:
    """Return the operands of a node that depend on the time axis."""
    if isinstance(node.op, ops.Extent):
        return set()
    return {a for a in node.operands if flow.get_state(a).is_time_dependent}


def select_cached_values(
    context: DemandedPositionsContext, outputs: Mapping[Value, float]
) -> list[Value]:
    """Return the values to cache between steps so that computing `outputs` costs the least."""
    candidates = _find_history_values(context, compute_demanded_positions(context, outputs))
    if not candidates:
        return []
    cached_context = replace(context, cached_values=frozenset(candidates))
    sinks = _find_history_values(
        cached_context, compute_demanded_positions(cached_context, outputs)
    )
    choices: dict[Value, CacheCandidate[Value]] = {}
    scanned_operands = {
        x: outer
        for loop in context.flow.inlined_loop_bodies
        for x, outer in _list_scanned_operands(loop)
    }
    for value in candidates:
        # Graph inputs and loop-carried values cannot be recomputed. Slices of scanned operands have
        # no cost, because the complete operand is available.
        recompute_cost = estimate_recompute_cost(value.node, value) if value.node else inf
        choices[value] = CacheCandidate(
            estimate_value_bytes(value),
            0.0 if value in scanned_operands else recompute_cost,
            _find_recompute_sources(context, value, cached_context.cached_values, scanned_operands),
        )
    return find_minimum_cut(choices, sinks)


def iterate_nodes_and_loop_bodies(
    graph: Graph, flow: TimeDataflow
) -> Iterator[tuple[Node, tuple[Value, ...]]]:
    """Yield the nodes of a graph. A loop over a non-time axis is followed by its body nodes."""
    for node, results in graph.nodes:
        yield node, results
        if node in flow.inlined_loop_bodies:
            yield from iterate_nodes_and_loop_bodies(flow.inlined_loop_bodies[node], flow)


def _list_scanned_operands(node: Node) -> list[tuple[Value, Value]]:
    """Return the scanned inputs of a loop body, each with the corresponding operand."""
    op = node.op
    assert isinstance(op, ops.Scan), "only loops have a body"
    outer = op.split_operands(node.operands).scanned
    return list(zip(op.split_body_inputs().scanned, outer, strict=True))


def _find_history_values(context: DemandedPositionsContext, needs: PositionNeeds) -> list[Value]:
    """Return the values of which a step uses earlier positions, in graph order."""
    values = list(context.graph.inputs.values())
    for node, results in iterate_nodes_and_loop_bodies(context.graph, context.flow):
        values += results
        if node in context.flow.inlined_loop_bodies:
            values += context.flow.inlined_loop_bodies[node].inputs.values()
    return [
        v
        for v in values
        if v not in context.recomputable_values
        and len(context.find_time_axes(v)) == 1
        and max(needs.get(v, {}).values(), default=NEWEST_ONLY) > 0
    ]


def _find_recompute_sources(
    context: DemandedPositionsContext,
    value: Value,
    cacheable_values: Collection[Value],
    scanned_operands: Mapping[Value, Value],
) -> list[Value]:
    """Return the nearest of `cacheable_values` upstream of `value` from which `value` can be
    recomputed. Exclude `value` itself. `scanned_operands` maps scanned inputs of loop bodies to
    operands of the loops.
    """

    def list_read_values(read: Value) -> list[Value]:
        if read in scanned_operands:
            return [scanned_operands[read]]
        return [*read.node.operands] if read.node else []

    sources: dict[Value, None] = {}
    worklist = list_read_values(value)
    while worklist:
        current = worklist.pop()
        if current in cacheable_values:
            sources[current] = None
        elif current not in context.recomputable_values and context.find_time_axes(current):
            worklist += list_read_values(current)
    return list(sources)


def select_encoder_outputs(
    graph: Graph, flow: TimeDataflow, used_values: Iterable[Value]
) -> list[Value]:
    """Return the time-independent values that the encoder graph passes to the step. The
    step computes all `used_values` from the passed values at minimum cost. Values that depend only
    on weights and constants are not passed to the step.
    """
    inputs = {v for v in graph.inputs.values() if not flow.get_state(v).is_time_dependent}
    reachable_values = set(inputs)
    # if an input and a value derived from it have the same cost, pass the input
    choices = {v: CacheCandidate[Value](estimate_value_bytes(v) - 0.5, inf) for v in inputs}
    sinks = list(dict.fromkeys(used_values))
    live_nodes = collect_decode_step_nodes(sinks, flow)
    for node, results in graph.nodes:
        if node in live_nodes and (
            is_fixed_prefix_slice(node, flow) or reachable_values & {*node.args}
        ):
            reachable_values.update(results)
            choices |= _make_choices(node, results, flow, reachable_values)
    return find_minimum_cut(choices, [v for v in sinks if v in reachable_values])


def _make_choices(
    node: Node, results: Iterable[Value], flow: TimeDataflow, reachable_values: set[Value]
) -> dict[Value, CacheCandidate[Value]]:
    """Return for each result of a node the costs of passing it to the step and recomputing it."""
    # Slices of the positions before the first token exist only in the encoder graph.
    is_encoder_only = is_fixed_prefix_slice(node, flow)
    operands = [a for a in node.operands if a in reachable_values]
    return {
        r: CacheCandidate(
            estimate_value_bytes(r),
            inf if is_encoder_only else estimate_recompute_cost(node, r),
            operands,
        )
        for r in results
    }

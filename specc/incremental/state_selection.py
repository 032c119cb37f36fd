"""Select the values to cache between steps and to precompute, by a minimum cut.

The `sinks` are values that a step needs. A needed value is either cached, at the cost of its bytes,
or recomputed, at the cost of its multiply-adds; then its operands are needed, too. The cheapest
choice is a minimum cut in a network with two nodes per value: "available" and "recomputed". Of
several minimum cuts, the one nearest to the sinks is chosen. The algorithm is independent of the
graph IR.

The input is the result of `compute_position_demand`. Earlier positions of a value are available
only if they were cached, or if they can be recomputed from cached values.

Contractions and loops are never recomputed; reshapes and other views are free; values that depend
only on positions, masks and loop-invariant inputs are always recomputed. Dynamic lengths are
estimated as 64; estimates between 2 and 100 000 led to the same choices.

In the example, a delay needs the previous position of `exp(x W)`. Caching `x` would take as many
bytes, but `x W` would be computed twice. Caching `x W` and recomputing `exp` costs more than
caching the result of `exp`, because both have four features. `m` has no time axis, so its linear
layer is computed once and passed to each step:

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
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Generic, TypeVar

from specc.analysis.time_dataflow_facts import TimeDataflow
from specc.incremental.position_demand import (
    collect_step_nodes,
    compute_position_demand,
    is_fixed_prefix_slice,
)
from specc.incremental.position_demand_types import (
    NEWEST_ONLY,
    STATEFUL_OPS,
    DemandContext,
    PositionNeeds,
)
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class CacheCandidate(Generic[T]):
    """The costs of caching and of recomputing a value, and the values from which it is recomputed.

    `recompute_cost = inf` means that the value must be cached if it is needed.
    """

    cache_cost: float
    recompute_cost: float
    operands: Sequence[T] = ()


def find_minimum_cut(choices: Mapping[T, CacheCandidate[T]], sinks: Sequence[T]) -> list[T]:
    """Return the values to cache so that every sink is available, in the order of `choices`."""
    net = _FlowNetwork[tuple[str, T | None]]()
    source, sink = ("source", None), ("sink", None)
    for value, choice in choices.items():
        there, again = ("there", value), ("again", value)
        net.add_edge(again, there, choice.cache_cost)
        net.add_edge(source, again, choice.recompute_cost)
        for operand in choice.operands:
            net.add_edge(("there", operand), again, inf)
    for value in sinks:
        net.add_edge(("there", value), sink, inf)
    wanted = net.find_sink_side(source, sink)
    return [v for v in choices if ("there", v) in wanted and ("again", v) not in wanted]


N = TypeVar("N", bound=Hashable)


@dataclass
class _FlowNetwork(Generic[N]):
    """A flow network, stored as residual capacities by node and neighbor."""

    residual_capacities: dict[N, dict[N, float]] = field(default_factory=dict)

    def add_edge(self, a: N, b: N, capacity: float) -> None:
        out = self.residual_capacities.setdefault(a, {})
        out[b] = out.get(b, 0.0) + capacity
        self.residual_capacities.setdefault(b, {}).setdefault(a, 0.0)

    def find_sink_side(self, source: N, sink: N) -> set[N]:
        """Return the nodes that reach the sink in the residual network (Edmonds and Karp 1972)."""
        while (path := self._find_augmenting_path(source, sink)) is not None:
            self._saturate_path(path)
        reached, worklist = {sink}, [sink]
        while worklist:
            at = worklist.pop()
            before = [
                n
                for n in self.residual_capacities.get(at, {})
                if n not in reached and self.residual_capacities[n][at] > 0
            ]
            reached.update(before)
            worklist += before
        return reached

    def _saturate_path(self, path: Sequence[tuple[N, N]]) -> None:
        """Augment the flow along `path` by its smallest residual capacity."""
        capacity = min(self.residual_capacities[a][b] for a, b in path)
        assert capacity < inf, "a sink can be neither cached nor recomputed"
        for a, b in path:
            self.residual_capacities[a][b] -= capacity
            self.residual_capacities[b][a] += capacity

    def _find_augmenting_path(self, source: N, sink: N) -> list[tuple[N, N]] | None:
        came: dict[N, N] = {}
        worklist = deque([source])
        while worklist:
            at = worklist.popleft()
            for to, capacity in self.residual_capacities.get(at, {}).items():
                if capacity <= 0 or to in came or to == source:
                    continue
                came[to] = at
                if to == sink:
                    path = []
                    while to != source:
                        path.append((came[to], to))
                        to = came[to]
                    return path[::-1]
                worklist.append(to)
        return None


NOMINAL_LENGTH = 64
BYTES_BY_DTYPE = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "bool": 1}


def estimate_value_bytes(value: Value) -> float:
    """Estimate the size of a value in bytes, with 64 for every dynamic dimension."""
    lengths = [d.evaluate(dict.fromkeys(d.symbols(), NOMINAL_LENGTH)) for d in value.shape]
    return float(prod(lengths) * BYTES_BY_DTYPE[value.dtype])


def estimate_recompute_cost(node: Node, value: Value) -> float:
    """Estimate the cost of recomputing a node: its bytes, 0 for views, or infinity for heavy
    ops.
    """
    if node.op.is_heavy or isinstance(node.op, STATEFUL_OPS):
        return inf
    return 0.0 if node.op.is_view else estimate_value_bytes(value)


def find_recomputable_values(graph: Graph, flow: TimeDataflow, time_axis_input: str) -> set[Value]:
    """Return the time-dependent values that are free to recompute: position ids, inputs, and
    results of cheap ops.
    """
    free = {
        v
        for n, v in graph.inputs.items()
        if n != time_axis_input and flow.get_state(v).is_time_dependent
    }
    for node, results in iterate_nodes_and_loop_bodies(graph, flow):
        if node in flow.loop_body_dataflows:
            free.update(v for v, x in _list_scanned_operands(node) if x in free)
        if _is_free_node(node, results, flow, free):
            free.update(results)
    return free


def _is_free_node(
    node: Node, results: Sequence[Value], flow: TimeDataflow, recomputable_values: set[Value]
) -> bool:
    """Return True if a node is a cheap op that depends on the time axis and reads only free
    values.
    """
    moves = flow.get_state(results[0]).is_time_dependent
    return (
        moves and not node.op.is_heavy and _find_moving_operands(node, flow) <= recomputable_values
    )


def _find_moving_operands(node: Node, flow: TimeDataflow) -> set[Value]:
    """Return the operands of a node that depend on the time axis."""
    if isinstance(node.op, ops.Extent):
        return set()
    return {a for a in node.operands if flow.get_state(a).is_time_dependent}


def select_cached_values(context: DemandContext, outputs: Mapping[Value, float]) -> list[Value]:
    """Return the values whose earlier positions are cached between steps; each has one time
    axis.
    """
    candidates = _find_history_values(context, compute_position_demand(context, outputs))
    if not candidates:
        return []
    sure = replace(context, cached_values=frozenset(candidates))
    sinks = _find_history_values(sure, compute_position_demand(sure, outputs))
    choices: dict[Value, CacheCandidate[Value]] = {}
    sources = _RecomputeSources(context, frozenset(candidates))
    for value in candidates:
        # Graph inputs and loop-carried values cannot be recomputed; slices of scanned operands are
        # free, because the whole operand is available.
        recompute_cost = estimate_recompute_cost(value.node, value) if value.node else inf
        recompute_cost = 0.0 if value in sources.rows else recompute_cost
        choices[value] = CacheCandidate(
            estimate_value_bytes(value), recompute_cost, sources.find_sources(value)
        )
    return find_minimum_cut(choices, sinks)


def iterate_nodes_and_loop_bodies(
    graph: Graph, flow: TimeDataflow
) -> Iterator[tuple[Node, tuple[Value, ...]]]:
    """Yield the nodes of a graph, and the nodes of the bodies of loops over other axes than the
    time axis, after the loop.
    """
    for node, results in graph.nodes:
        yield node, results
        if node in flow.loop_body_dataflows:
            yield from iterate_nodes_and_loop_bodies(flow.loop_body_dataflows[node], flow)


def _list_scanned_operands(node: Node) -> list[tuple[Value, Value]]:
    """Return the scanned inputs of a loop body, each with the corresponding operand."""
    op = node.op
    assert isinstance(op, ops.Scan), "no other op has a body"
    outer = [x for x in op.split_operands(node.args).scanned if x is not None]
    return list(zip(op.split_body_inputs().scanned, outer, strict=True))


def _find_history_values(context: DemandContext, needs: PositionNeeds) -> list[Value]:
    """Return the values along the time axis whose earlier positions are needed, in graph order."""
    every = list(context.graph.inputs.values())
    for node, results in iterate_nodes_and_loop_bodies(context.graph, context.flow):
        every += results
        if node in context.flow.loop_body_dataflows:
            every += context.flow.loop_body_dataflows[node].inputs.values()
    return [
        v
        for v in every
        if v not in context.recomputable_values
        and len(context.find_time_axes(v)) == 1
        and max(needs.get(v, {}).values(), default=NEWEST_ONLY) > 0
    ]


class _RecomputeSources:
    """Finds, upstream of a value, the nearest cacheable values from which it can be recomputed."""

    def __init__(self, context: DemandContext, cacheable_values: frozenset[Value]) -> None:
        self.setting, self.known = context, cacheable_values
        loops = context.flow.loop_body_dataflows
        self.rows = {row: x for node in loops for row, x in _list_scanned_operands(node)}

    def find_sources(self, value: Value) -> list[Value]:
        """Return the sources of a value, without the value itself."""
        found: dict[Value, None] = {}
        worklist = self._list_read_values(value)
        while worklist:
            value = worklist.pop()
            if value in self.known:
                found[value] = None
            elif value not in self.setting.recomputable_values and self.setting.find_time_axes(
                value
            ):
                worklist += self._list_read_values(value)
        return list(found)

    def _list_read_values(self, value: Value) -> list[Value]:
        if value in self.rows:
            return [self.rows[value]]
        return [*value.node.operands] if value.node else []


def select_encoder_values(
    graph: Graph, flow: TimeDataflow, used_values: Iterable[Value]
) -> list[Value]:
    """Return the time-independent values that `encode` passes to the step, so that the step can
    compute all `used_values`. Weights, constants and values computed only from them are not passed.
    """
    inputs = {v for v in graph.inputs.values() if not flow.get_state(v).is_time_dependent}
    reached = set(inputs)
    # of several values with equal cost, the input itself is passed
    choices = {v: CacheCandidate[Value](estimate_value_bytes(v) - 0.5, inf) for v in inputs}
    sinks = list(dict.fromkeys(used_values))
    live = collect_step_nodes(sinks, flow)
    for node, results in graph.nodes:
        if node in live and (is_fixed_prefix_slice(node, flow) or reached & {*node.args}):
            reached.update(results)
            choices |= _make_choices(node, results, flow, reached)
    return find_minimum_cut(choices, [v for v in sinks if v in reached])


def _make_choices(
    node: Node, results: Iterable[Value], flow: TimeDataflow, reachable_values: set[Value]
) -> dict[Value, CacheCandidate[Value]]:
    """Return the cost of passing each result of a node to the step, and of recomputing it."""
    if is_fixed_prefix_slice(node, flow):
        # Only the encoder graph can compute slices of the positions before the first token.
        return {r: CacheCandidate(estimate_value_bytes(r), inf) for r in results}
    operands = [a for a in node.args if a in reachable_values and a is not None]
    return {
        r: CacheCandidate(estimate_value_bytes(r), estimate_recompute_cost(node, r), operands)
        for r in results
    }

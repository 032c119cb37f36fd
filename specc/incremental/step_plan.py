"""Plan a decode step: select the cached values, the number of positions per value, and the symbolic
dimensions. `StepGraphRewriter` adds nodes to the step graph.

The input is a graph that has been proved causal for the requested outputs. In the plan, every live
value has a demand (a number of earlier positions) along each of its time axes. Each demand is
satisfied by a cached value, by an input with all positions, or by recomputation.

A delay by 2 has a look-back of two positions, so at most two positions of `x` are cached. The size
of this cache is therefore a symbolic dimension `kept` of at most 2, not the number of all earlier
positions (`past`):

    $ plan x y=new
    graph "g"
    input "x" %0: f32[b, n, 4]
    %1: f32[b, n, 4] = delay(%0) {axis=1, steps=2, fill_value=0.0}
    output "y" %1
    end
    gives
    lengths: new, and kept from before
    %0 axis 1: 2 more, cached
    %1 axis 1: the new positions
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Literal

from specc.analysis.time_axis_prefix_and_chunks import TimeAxisLayout, is_first_position_slice
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.incremental.demand_propagation import (
    collect_decode_step_nodes,
    compute_demanded_positions,
)
from specc.incremental.demanded_positions import (
    NEWEST_ONLY,
    DemandedPositions,
    DemandedPositionsContext,
    PositionNeeds,
)
from specc.incremental.graph_boundary import uniquify_name
from specc.incremental.state_selection import (
    find_recomputable_values,
    iterate_nodes_and_loop_bodies,
    select_cached_values,
)
from specc.ir import ops
from specc.ir.dim import Dim, min_dims
from specc.ir.graph import (
    Graph,
    GraphBuilder,
    Node,
    NodeOrigin,
    NodeResults,
    Value,
    collect_shape_symbols,
)
from specc.ir.op import Op
from specc.ir.types import Type

OutputPositions = Literal["newest", "new"]


@dataclass(frozen=True, kw_only=True)
class StepPlan(DemandedPositionsContext):
    """The plan for one graph whose time axis has the symbolic dimension `time_symbol`.

    `needs` maps each value to its number of earlier positions
    (`specc.incremental.demanded_positions`), and `full_inputs` are the names of inputs along the
    time axis that are passed with all positions. A step processes `new_chunk_count` new chunks of
    positions. `past_chunk_count` is the number of cached earlier chunks: all earlier chunks, or at
    most the last `max_cached_chunks`. Without strides, a chunk is one position. `batch_size` is
    None if the generated input has no batch axis.
    """

    time_symbol: str
    time_axis_input: str
    outputs: Mapping[str, OutputPositions]
    needs: dict[Value, dict[int, float]]
    full_inputs: tuple[str, ...]
    max_cached_chunks: float
    past_chunk_count: Dim
    new_chunk_count: Dim
    batch_size: Dim | None
    live_nodes: set[Node] = field(default_factory=set)

    @classmethod
    def from_graph(
        cls,
        graph: Graph,
        time_symbol: str,
        time_axis_input: str,
        outputs: Mapping[str, OutputPositions],
        evicts_positions: bool = True,
        chunk_length: int = 1,
    ) -> "StepPlan":
        """Plan a step: select the cached values, then compute the demand on every value."""
        flow = trace_time_dataflow(graph, time_symbol, chunk_length)
        needs_by_kind = {"newest": NEWEST_ONLY, "new": 0.0}
        requested = {graph.outputs[n]: needs_by_kind[kind] for n, kind in outputs.items()}
        recomputable = frozenset(find_recomputable_values(graph, flow, time_axis_input))
        uncached = DemandedPositionsContext(graph, flow, (), recomputable, evicts_positions)
        cached = frozenset(select_cached_values(uncached, requested))
        context, needs, full_inputs = _count_needs(uncached, cached, requested, time_axis_input)
        max_chunks = inf if full_inputs else _find_max_chunks(context, needs, context.cached_values)
        first_positions = _count_cached_first_positions(context)
        is_insufficient = _find_max_chunks(context, needs, needs) > max_chunks
        # The size of a cached first position indicates whether there are earlier positions.
        if is_insufficient or not (
            first_positions >= max_chunks or _is_length_known(context, needs, max_chunks)
        ):
            # No cached value has sufficient positions for the required look-back or determines the
            # past length, so the input with the time axis is cached.
            token = graph.inputs[time_axis_input]
            context, needs, full_inputs = _count_needs(
                uncached, cached | {token}, requested, time_axis_input
            )
            needs[token], max_chunks = dict.fromkeys(context.find_time_axes(token), inf), inf
        max_chunks = max(max_chunks, first_positions)
        past_chunk_count, new_chunk_count = _make_length_symbols(graph, max_chunks)
        shape = graph.inputs[time_axis_input].shape
        return cls(
            **vars(context),
            time_symbol=time_symbol,
            time_axis_input=time_axis_input,
            outputs=outputs,
            needs=needs,
            full_inputs=full_inputs,
            max_cached_chunks=max_chunks,
            past_chunk_count=past_chunk_count,
            new_chunk_count=new_chunk_count,
            batch_size=shape[0] if len(shape) > 1 else None,
            live_nodes=collect_decode_step_nodes(requested, flow),
        )

    def make_loop_body_plan(self, body: Graph) -> "StepPlan":
        """Return the plan of a step for the body of a loop."""
        live_nodes = collect_decode_step_nodes(body.outputs.values(), self.flow)
        return replace(self, graph=body, outputs={}, live_nodes=live_nodes)

    def count_positions(self, demand: float, layout: TimeAxisLayout) -> Dim:
        """Return the size of an axis with `demand` earlier positions and the new positions."""
        if demand < 0:
            return Dim.from_value(1)
        return self.count_past_positions(demand, layout) + self.new_chunk_count * layout.rate

    def count_past_positions(self, demand: float, layout: TimeAxisLayout) -> Dim:
        """Return the number of earlier positions, including the prefix, that satisfy `demand`."""
        chunks = _count_chunks(self, demand, layout)
        is_prefix_fixed = layout.prefix_length.number is not None
        takes_all = demand == inf or (chunks >= self.max_cached_chunks > 0 and is_prefix_fixed)
        return self._count_needed_positions(self.past_chunk_count, demand, layout, takes_all)

    def count_past_positions_after_step(self, demand: float, layout: TimeAxisLayout) -> Dim:
        """Return how many earlier positions the next step has, including the new positions."""
        return self._count_needed_positions(
            self.past_chunk_count + self.new_chunk_count, demand, layout, demand == inf
        )

    def _count_needed_positions(
        self, available_chunks: Dim, demand: float, layout: TimeAxisLayout, takes_all_cached: bool
    ) -> Dim:
        """Return the number of earlier positions to keep for `demand` if `available_chunks` chunks
        are available. If `takes_all_cached`, all available positions are kept, because no more than
        `demand` positions are ever cached.
        """
        prefix_length, rate = layout.prefix_length, layout.rate
        if demand == inf:
            return available_chunks * rate + prefix_length
        missing_positions = _count_missing_positions(self, demand, prefix_length)
        if missing_positions <= 0:
            return Dim.from_value(max(int(demand), 0))
        if rate == 1:
            return (
                available_chunks + prefix_length
                if takes_all_cached
                else min_dims(available_chunks + prefix_length, int(demand))
            )
        # If one chunk is sufficient, only the needed positions of the chunk are kept. If several
        # chunks are required, all positions of these chunks are kept.
        chunks = (
            available_chunks
            if takes_all_cached
            else min_dims(available_chunks, ceil(missing_positions / rate))
        )
        return chunks * int(min(missing_positions, rate)) + prefix_length

    def depends_on_time(self, value: Value) -> bool:
        """Return True if a value depends on the time axis."""
        return self.flow.get_state(value).is_time_dependent

    def get_length_constraints(self) -> tuple[dict[str, int], dict[str, Dim]]:
        """Return lower bounds and equality constraints of all dimensions but the time axis."""
        min_lengths = dict(self.graph.min_lengths)
        min_lengths.pop(self.time_symbol, None)
        length_equations = {
            n: d
            for n, d in self.graph.length_equations.items()
            if self.time_symbol not in d.symbols() and n != self.time_symbol
        }
        return min_lengths, length_equations


def _count_needs(
    uncached_context: DemandedPositionsContext,
    cached_values: frozenset[Value],
    requested_positions: Mapping[Value, float],
    time_axis_input: str,
) -> tuple[DemandedPositionsContext, dict[Value, dict[int, float]], tuple[str, ...]]:
    """Compute the number of needed positions of every value if `cached_values` are cached. Return
    the context with `cached_values`, the demands, and the names of inputs that are passed with all
    positions because earlier positions are needed.
    """
    context = replace(uncached_context, cached_values=cached_values)
    needs = compute_demanded_positions(context, requested_positions)
    inputs = {
        n: v
        for n, v in uncached_context.graph.inputs.items()
        if n != time_axis_input and uncached_context.flow.get_state(v).is_time_dependent
    }
    full_inputs = tuple(
        n for n, v in inputs.items() if max(needs.get(v, {}).values(), default=NEWEST_ONLY) > 0
    )
    for name in full_inputs:
        needs[inputs[name]] = dict.fromkeys(context.find_time_axes(inputs[name]), inf)
    return context, needs, full_inputs


def _count_missing_positions(
    context: DemandedPositionsContext, demand: float, prefix_length: Dim
) -> float:
    """Return the number of earlier positions, excluding prefix positions, that a step needs."""
    if demand <= 0 or demand == inf:
        return max(demand, 0.0)
    if prefix_length.number is not None:
        return max(demand - prefix_length.number, 0.0)
    return 0.0 if context.flow.time_axis.is_non_negative(prefix_length - int(demand)) else demand


def _count_chunks(
    context: DemandedPositionsContext, demand: float, layout: TimeAxisLayout
) -> float:
    """Return the number of chunks that contain the needed earlier positions after the prefix."""
    missing_positions = _count_missing_positions(context, demand, layout.prefix_length)
    return (
        missing_positions
        if missing_positions == inf
        else float(ceil(missing_positions / layout.rate))
    )


def _find_max_chunks(
    context: DemandedPositionsContext, needs: PositionNeeds, values: Iterable[Value]
) -> float:
    """Return the largest number of earlier chunks that a step needs of any of `values`."""
    chunk_counts = (
        _count_chunks(context, need, context.get_axis_layout(v, axis))
        for v in values
        for axis, need in needs.get(v, {}).items()
    )
    return max(chunk_counts, default=0.0)


def _count_cached_first_positions(context: DemandedPositionsContext) -> float:
    """Return 1 if the first position of a value is cached, otherwise 0."""
    nodes = iterate_nodes_and_loop_bodies(context.graph, context.flow)
    slices = ((n, r) for n, r in nodes if is_first_position_slice(n, context.flow.time_axis))
    return float(any(context.is_computed_from_state(node, results) for node, results in slices))


def _is_length_known(
    context: DemandedPositionsContext, needs: PositionNeeds, max_cached_chunks: float
) -> bool:
    """Return True if the size of a cache determines the chunk count, unlike `min(past + m, 3)`."""
    if max_cached_chunks in (0.0, inf):
        return True
    layouts = (
        (context.get_axis_layout(v, axis), need)
        for v in context.cached_values
        for axis, need in needs.get(v, {}).items()
    )
    return any(
        layout.prefix_length.number is not None
        and _count_chunks(context, need, layout) == max_cached_chunks
        for layout, need in layouts
    )


def _make_length_symbols(graph: Graph, max_cached_chunks: float) -> tuple[Dim, Dim]:
    """Return unused symbolic dimensions for the numbers of earlier chunks and new chunks."""
    used_symbols = collect_shape_symbols(graph.inputs.values())
    name = "past" if max_cached_chunks == inf else "kept"
    past_chunk_count, new_chunk_count = (
        uniquify_name(n, {*used_symbols, *graph.length_equations}) for n in (name, "new")
    )
    return Dim.symbol(past_chunk_count), Dim.symbol(new_chunk_count)


@dataclass
class StepGraphRewriter:
    """A rewriter of the full-forward graph to the step graph. `new_values` maps values of the full
    graph to values of the step, which contain the earlier positions that `plan.needs` states,
    followed by the new positions.
    """

    plan: StepPlan
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    new_values: dict[Value, Value] = field(default_factory=dict)

    def add_node(self, node: Node, op: Op, *args: Value | None) -> NodeResults:
        """Add a node with the same origin as `node` in the full-forward graph."""
        results = self.builder.add_node(op, *args)
        origin, new_node = self.plan.graph.node_origins.get(node), results[0].node
        if origin and new_node:
            merged_origin = self.builder.node_origins.get(new_node, NodeOrigin())
            self.builder.node_origins[new_node] = merged_origin.merge(origin)
        return results

    def slice_to_demand(
        self, new_value: Value, value: Value, axis: int, available: float, demand: float
    ) -> Value:
        """Return the last positions of `new_value`, with `demand` earlier positions along `axis`.
        `new_value` replaces `value` and has `available` earlier positions.
        """
        if available == demand:
            return new_value
        assert demand < available, f"{demand} earlier positions are needed, {available} exist"
        layout = self.plan.get_axis_layout(value, axis)
        return self.select_last_positions(
            new_value,
            axis,
            self.plan.count_positions(available, layout),
            self.plan.count_positions(demand, layout),
        )

    def select_last_positions(
        self, value: Value, axis: int, total_positions: Dim, positions: Dim
    ) -> Value:
        """Return the last `positions` of `total_positions` positions."""
        if total_positions == positions:
            return value
        return self.builder.add_op(
            ops.Slice(axis, total_positions - positions, total_positions), value
        )

    def slice_operands(
        self, node: Node, demand: DemandedPositions, excluded: Collection[int] = ()
    ) -> list[Value | None]:
        """Return a node's operands sliced to the needed positions, and None for `excluded` ones."""
        operands: list[Value | None] = []
        for n, (value, axes) in enumerate(zip(node.args, demand.operand_axes, strict=True)):
            if value is None or n in excluded:
                operands.append(None)
                continue
            operand = self.new_values[value]
            for axis, name in axes.items():
                available, need = self.plan.needs[value][axis], demand.positions[name]
                operand = self.slice_to_demand(operand, value, axis, available, need)
            operands.append(operand)
        return operands

    def slice_output(self, value: Value, demand: float) -> Value:
        """Return an output of the step, with `demand` earlier positions along its first time axis.
        A second time axis (the keys of an attention map) is not sliced.
        """
        output = self.new_values[value]
        for axis in self.plan.find_time_axes(value)[:1]:
            available = self.plan.needs[value][axis]
            output = self.slice_to_demand(output, value, axis, available, demand)
        return output


def replace_axis_sizes(type: Type, lengths: Mapping[int, Dim]) -> Type:
    """Return `type` with the axis sizes in `lengths`, which is keyed by axis index."""
    return Type(type.dtype, tuple(lengths.get(n, d) for n, d in enumerate(type.shape)))


def adapt_size_attributes(
    plan: StepPlan, node: Node, results: NodeResults, demand: DemandedPositions
) -> Op:
    """Return a copy of a node's op with its size attributes adapted to the needed positions."""
    match op := node.op:
        case ops.Expand(axis) if axis in demand.result_axes[0]:
            # The op broadcasts to the size of a time axis.
            layout = plan.get_axis_layout(results[0], axis)
            need = demand.positions[demand.result_axes[0][axis]]
            return ops.Expand(axis, plan.count_positions(need, layout))
        case ops.StridedSlice(axis) if axis in demand.result_axes[0]:
            # The strided slice selects every n-th position, and the number of positions is a
            # multiple of n.
            (x,) = node.operands
            need = demand.positions[demand.operand_axes[0][axis]]
            stop = plan.count_positions(need, plan.get_axis_layout(x, axis))
            return replace(op, stop=stop)
    return op

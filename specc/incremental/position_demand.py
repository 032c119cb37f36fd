"""Compute how many earlier positions of each value a decode step needs.

The input is a graph that is causal along its time axis, and its `TimeDataflow`, which lists the
time axes of each value. A need (position demand) is a number of earlier positions: 0 means only the
new positions, `inf` means all earlier positions, and `NEWEST_ONLY` means only the last position.
Needs are propagated backward from the requested outputs to the inputs; an op with a look-back of
`hi` positions adds `hi`. The demand for a value is the maximum demand of its consumers.

In the example, only the last position of the output is requested. The convolution has kernel size 3
and reads 2 earlier positions, so its operand is needed at 2 more positions. `tanh` reads no earlier
positions and is needed only at the last position:

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
    %4 axis 1: the newest position
    %5 axis 1: the newest position
    %6 axis 1: the newest position
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil, inf

from specc.analysis.time_axis import (
    PREFIX_READ,
    TimeAxis,
    TimeAxisLayout,
    count_positions_before_first_chunk,
    is_prefix_slice,
)
from specc.analysis.time_dataflow import resolve_time_dependence
from specc.analysis.time_dataflow_facts import TimeDataflow
from specc.incremental.position_demand_types import (
    NEWEST_ONLY,
    AxisName,
    AxisNames,
    NonTimeAxisLoop,
    PositionDemand,
    PositionDemandContext,
    PositionNeeds,
    assign_axis_names,
    get_stateful_axis,
    round_demand_to_chunks,
)
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.graph import (
    Graph,
    Node,
    NodeOperands,
    NodeResults,
    Value,
    collect_required_nodes,
    select_entries,
)
from specc.ir.loop_dependence import find_dependences


def compute_position_demand(
    context: PositionDemandContext, outputs: Mapping[Value, float]
) -> dict[Value, dict[int, float]]:
    """Return how many earlier positions of every live value are needed along each of its time axes,
    given how many each output needs along its first time axis. A second time axis of an output (the
    keys of an attention map) is needed at all positions.
    """
    # Nodes are visited in reverse order, so that the demand of all users of a node's results is
    # known.
    needs: dict[Value, dict[int, float]] = {}
    for value, positions in outputs.items():
        for n, axis in enumerate(context.find_time_axes(value)):
            _merge_need(needs, value, axis, inf if n else positions)
    live_nodes = collect_step_nodes(outputs, context.flow)
    _propagate_demand(context, context.graph, live_nodes, needs)
    return needs


def _propagate_demand(
    context: PositionDemandContext,
    graph: Graph,
    live_nodes: Collection[Node],
    needs: dict[Value, dict[int, float]],
) -> None:
    """Merge the demands of a graph's or loop body's nodes on their operands into `needs`."""
    for node, results in reversed(graph.nodes):
        if node not in live_nodes or is_fixed_prefix_slice(node, context.flow):
            continue
        if node in context.flow.loop_body_dataflows:
            _propagate_into_body(context, node, results, needs)
        node_demand = compute_node_demand(context, node, results, needs)
        for operand, axes in zip(node.args, node_demand.operand_axes, strict=True):
            for axis, name in axes.items():
                if operand is not None:
                    _merge_need(needs, operand, axis, node_demand.positions[name])


def _propagate_into_body(
    context: PositionDemandContext,
    node: Node,
    results: NodeResults,
    needs: dict[Value, dict[int, float]],
) -> None:
    """Merge the demands of a loop body on its values and captures into `needs`."""
    loop = NonTimeAxisLoop.from_node(context, node)
    live_nodes = collect_step_nodes(loop.body_outputs, context.flow)
    previous: list[Mapping[int, float]] = []
    while True:
        output_positions = loop.get_output_positions(results, needs)
        for value, axes in zip(loop.body_outputs, output_positions, strict=True):
            for axis, need in axes.items():
                _merge_need(needs, value, axis, need)
        # Each iteration must compute the positions of a loop-carried value that the next iteration
        # needs, so iterate to a fixpoint.
        if output_positions == previous:
            return
        previous = output_positions
        _propagate_demand(context, loop.body, live_nodes, needs)


def collect_step_nodes(values: Iterable[Value], flow: TimeDataflow) -> set[Node]:
    """Return every node that `values` need in a decode step, except nodes that compute only
    operands of an `extent` or constant prefix positions.
    """

    def get_read_operands(node: Node) -> Iterable[Value]:
        reads_nothing = isinstance(node.op, ops.Extent) or is_fixed_prefix_slice(node, flow)
        return () if reads_nothing else node.operands

    return collect_required_nodes(values, get_read_operands)


def is_fixed_prefix_slice(node: Node, flow: TimeDataflow) -> bool:
    """Return True if a node selects only prefix positions, which are constant during generation."""
    if not is_prefix_slice(node, flow.time_axis):
        return False
    return len(flow.get_state(node.get_operand()).axes) == 1


def compute_node_demand(
    context: PositionDemandContext, node: Node, results: NodeResults, needs: PositionNeeds
) -> PositionDemand:
    """Return how many earlier positions a node must compute and read to satisfy `needs`."""
    if node in context.flow.loop_body_dataflows:
        return NonTimeAxisLoop.from_node(context, node).compute_demand(results, needs)
    names = assign_axis_names(node, results)
    if isinstance(node.op, ops.Extent):
        # a read of only the axis size needs no positions
        names = [{}], names[1]
    operand_names = _select_time_axes(context, node.args, names[0])
    result_names = _select_time_axes(context, results, names[1])
    positions = _get_result_demand(context, results, result_names, needs)
    for axes in operand_names:
        for name in axes.values():
            positions.setdefault(name, NEWEST_ONLY)
    resumes = context.resumes_from_state(node, results)
    # Each dependence adds its range to the demand on the results, not to the demand of another
    # dependence.
    result_positions = dict(positions)
    for dependence in find_dependences(node, results):
        name = operand_names[dependence.operand].get(dependence.operand_axis)
        if name is None or dependence.kind == "extent":
            continue
        required = _get_operand_demand(
            node, dependence, result_names, result_positions, resumes, context.flow.time_axis
        )
        # Unless positions are evicted, keys outside the window are also cached.
        if required > 0 and dependence.kind in ("band", "all") and not context.evicts_positions:
            required = inf
        operand = node.get_operand(dependence.operand)
        layout = context.get_axis_layout(operand, dependence.operand_axis)
        positions[name] = max(positions[name], round_demand_to_chunks(required, layout))
        positions |= _count_windows(dependence, result_names, positions[name], layout)
    if resumes and "rows" in positions:
        # the op resumes from a state, so it processes exactly the new positions
        positions["rows"] = 0.0
    return PositionDemand(positions, operand_names, result_names)


def _select_time_axes(
    context: PositionDemandContext, values: NodeOperands, names: Sequence[AxisNames]
) -> tuple[AxisNames, ...]:
    """Return the names of the time axes of each value."""
    return tuple(
        select_entries(axes, context.find_time_axes(value))
        for value, axes in zip(values, names, strict=True)
    )


def _get_result_demand(
    context: PositionDemandContext,
    results: Sequence[Value],
    names: Sequence[AxisNames],
    needs: PositionNeeds,
) -> dict[AxisName, float]:
    """Return how many positions of a node's results are needed, by axis name. Of a cached value,
    only the new positions are needed.
    """
    positions: dict[AxisName, float] = {}
    for value, axes in zip(results, names, strict=True):
        for axis, name in axes.items():
            need = needs.get(value, {}).get(axis, NEWEST_ONLY)
            need = 0.0 if value in context.cached_values else need
            positions[name] = max(positions.get(name, NEWEST_ONLY), need)
    return positions


def _get_operand_demand(
    node: Node,
    dependence: Dependence,
    result_axes: tuple[AxisNames, ...],
    result_demand: Mapping[AxisName, float],
    resumes: bool,
    time_axis: TimeAxis,
) -> float:
    """Return how many earlier operand positions a dependence reads to compute the needed positions
    of the results, by axis name. `resumes` is true if the op resumes from a state.
    """
    if resumes and get_stateful_axis(node, dependence.operand) == dependence.operand_axis:
        return 0.0  # the op resumes from a state
    result_axis, offsets = resolve_time_dependence(node, dependence, time_axis)
    if (result_axis, offsets) == PREFIX_READ:
        return inf  # the prefix is computed only if all positions are needed
    # if the result has no time axis, as for `last`, the dependence needs the last position
    name = result_axes[dependence.result].get(result_axis) if result_axis is not None else None
    need = result_demand[name] if name is not None else NEWEST_ONLY
    if dependence.kind == "strided":
        return _count_window_inputs(node, dependence, need, time_axis)
    if offsets.is_empty or offsets.high <= 0:
        return need
    # Position t depends on positions from t - hi on. The range starts at the first new position
    # even if only the last position is needed, because the number of new positions is unknown.
    return max(need, 0.0) + offsets.high


def _count_windows(
    dependence: Dependence,
    result_axes: tuple[AxisNames, ...],
    positions: float,
    layout: TimeAxisLayout,
) -> dict[AxisName, float]:
    """Return the number of strided windows over `positions` positions, without the earliest windows
    that are not needed, by axis name. Return {} if the op preserves the axis size.
    """
    if dependence.kind != "strided" or dependence.result_axis is None:
        return {}
    prefix_length = layout.prefix_length.number or 0
    return {
        result_axes[dependence.result][dependence.result_axis]: (positions - prefix_length)
        / dependence.stride
    }


def _count_window_inputs(
    node: Node, dependence: Dependence, demand: float, time_axis: TimeAxis
) -> float:
    """Return how many operand positions the last `demand` windows read: `stride` positions per
    window, plus the overlap with earlier windows.
    """
    positions_ahead = count_positions_before_first_chunk(node, dependence, time_axis)
    assert positions_ahead is not None, "a step computes whole chunks"
    return (
        max(demand, 0.0) + ceil(dependence.max_offset / dependence.stride)
    ) * dependence.stride + positions_ahead


def _merge_need(
    needs: dict[Value, dict[int, float]], value: Value, axis: int, positions: float
) -> None:
    axes = needs.setdefault(value, {})
    axes[axis] = max(axes.get(axis, NEWEST_ONLY), positions)

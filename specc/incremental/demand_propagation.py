"""Propagate demanded positions backward through a graph and through loops over an axis other than
the time axis.

    scan row in memory along src carry y {       y: f[batch, seq, d], seq grows
      y = … attend(y, y, y, causal) …            keys are cached, one state per iteration
    }

A loop-carried value has the same positions before and after an iteration. A loop-carried value has
no earlier positions, because the body caches the earlier positions that it reads.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from specc.analysis.time_axis_prefix_and_chunks import is_prefix_slice
from specc.analysis.time_dependence_and_unsupported_loops import TimeDataflow
from specc.incremental.demanded_positions import (
    NEWEST_ONLY,
    AxisName,
    AxisNames,
    DemandedPositions,
    DemandedPositionsContext,
    PositionNeeds,
    compute_op_demand,
)
from specc.ir import ops
from specc.ir.graph import Graph, Node, NodeResults, Value, collect_required_nodes


def compute_demanded_positions(
    context: DemandedPositionsContext, outputs: Mapping[Value, float]
) -> dict[Value, dict[int, float]]:
    """Return, for every live value and time axis, the number of earlier positions that a step
    needs. `outputs` contains the number of needed positions for the first time axis of each output.
    If an output has a second time axis (the keys of an attention map), all its positions are
    needed.
    """
    # Nodes are visited in reverse order, so that the demand of all consumers of a node is known.
    needs: dict[Value, dict[int, float]] = {}
    for value, positions in outputs.items():
        for n, axis in enumerate(context.find_time_axes(value)):
            _merge_need(needs, value, axis, inf if n else positions)
    live_nodes = collect_decode_step_nodes(outputs, context.flow)
    _propagate_demand(context, context.graph, live_nodes, needs)
    return needs


def _propagate_demand(
    context: DemandedPositionsContext,
    graph: Graph,
    live_nodes: Collection[Node],
    needs: dict[Value, dict[int, float]],
) -> None:
    """Merge the demands of all nodes of a graph or loop body on their operands into `needs`."""
    for node, results in reversed(graph.nodes):
        if node not in live_nodes or is_fixed_prefix_slice(node, context.flow):
            continue
        if node in context.flow.inlined_loop_bodies:
            _propagate_into_body(context, node, results, needs)
        node_demand = compute_node_demand(context, node, results, needs)
        for operand, axes in zip(node.args, node_demand.operand_axes, strict=True):
            for axis, name in axes.items():
                if operand is not None:
                    _merge_need(needs, operand, axis, node_demand.positions[name])


def _propagate_into_body(
    context: DemandedPositionsContext,
    node: Node,
    results: NodeResults,
    needs: dict[Value, dict[int, float]],
) -> None:
    """Merge the demands of a loop body on its values and captures into `needs`."""
    loop = PerStepLoop.from_node(context, node)
    live_nodes = collect_decode_step_nodes(loop.body_outputs, context.flow)
    previous: list[Mapping[int, float]] = []
    while True:
        output_positions = loop.count_output_positions(results, needs)
        for value, axes in zip(loop.body_outputs, output_positions, strict=True):
            for axis, need in axes.items():
                _merge_need(needs, value, axis, need)
        # Each iteration must compute the positions of a loop-carried value that the next iteration
        # reads, so iterate to a fixpoint.
        if output_positions == previous:
            return
        previous = output_positions
        _propagate_demand(context, loop.body, live_nodes, needs)


def collect_decode_step_nodes(values: Iterable[Value], flow: TimeDataflow) -> set[Node]:
    """Return every node on which `values` depend in a decode step, except nodes that compute only
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


def _merge_need(
    needs: dict[Value, dict[int, float]], value: Value, axis: int, positions: float
) -> None:
    axes = needs.setdefault(value, {})
    axes[axis] = max(axes.get(axis, NEWEST_ONLY), positions)


def compute_node_demand(
    context: DemandedPositionsContext, node: Node, results: NodeResults, demands: PositionNeeds
) -> DemandedPositions:
    """Return the number of earlier positions that an op or loop must read to satisfy `demands`."""
    if node in context.flow.inlined_loop_bodies:
        return PerStepLoop.from_node(context, node).compute_demand(results, demands)
    return compute_op_demand(context, node, results, demands)


@dataclass(frozen=True, kw_only=True)
class PerStepLoop:
    """A loop over an axis other than the time axis. Each decode step runs all iterations of the
    loop. `body_carries` are the loop-carried inputs of the body, and `body_inputs` are all inputs.
    `body_outputs` are the next loop-carried values, followed by the scan outputs.
    """

    context: DemandedPositionsContext
    node: Node
    op: ops.Scan
    body: Graph
    body_inputs: NodeResults
    body_carries: NodeResults
    body_outputs: NodeResults

    @classmethod
    def from_node(cls, context: DemandedPositionsContext, node: Node) -> "PerStepLoop":
        """Describe the loop `node`."""
        body, op = context.flow.inlined_loop_bodies[node], node.op
        assert isinstance(op, ops.Scan), "only loops have a body"
        inner = op.split_body_inputs()
        return cls(
            context=context,
            node=node,
            op=op,
            body=body,
            body_inputs=(*inner.scanned, *inner.initial_carries),
            body_carries=inner.initial_carries,
            body_outputs=tuple(body.outputs.values()),
        )

    def count_output_positions(
        self, results: NodeResults, demands: PositionNeeds
    ) -> list[Mapping[int, float]]:
        """Return the number of earlier positions to compute, per result and body output axis."""
        output_positions: list[Mapping[int, float]] = []
        for r, result in enumerate(results):
            is_scan_output = r >= len(self.body_carries)
            positions: dict[int, float] = {}
            for axis in self.context.find_time_axes(result):
                body_axis = axis - (is_scan_output and axis > self.op.axis)
                need = demands.get(result, {}).get(axis, NEWEST_ONLY)
                positions[body_axis] = 0.0 if result in self.context.cached_values else need
            if not is_scan_output:
                _add_carry_demand(positions, demands.get(self.body_carries[r], {}))
            output_positions.append(positions)
        return output_positions

    def compute_demand(self, results: NodeResults, demands: PositionNeeds) -> DemandedPositions:
        """Return the demand on the loop's operands, given `demands` on results and body values."""
        result_demands = self.count_output_positions(results, demands)
        positions: dict[AxisName, float] = {}
        operands: list[AxisNames] = []
        for n in range(len(self.node.args)):
            operand = self.node.get_operand(n)
            body_input = n - self.op.first_body_operand_index
            names: AxisNames = {}
            for axis in self.context.find_time_axes(operand):
                names[axis] = ("operand", n, axis)
                positions[names[axis]] = self._get_operand_demand(
                    operand, body_input, axis, result_demands, demands
                )
            operands.append(names)
        result_axes: list[AxisNames] = []
        for r, axes in enumerate(result_demands):
            is_scan_output = r >= len(self.body_carries)
            result_names = {
                a + (is_scan_output and a >= self.op.axis): ("result", r, a) for a in axes
            }
            positions.update({("result", r, a): need for a, need in axes.items()})
            result_axes.append(dict(result_names))
        return DemandedPositions(positions, tuple(operands), tuple(result_axes))

    def _get_operand_demand(
        self,
        operand: Value,
        operand_index: int,
        axis: int,
        result_demands: Sequence[Mapping[int, float]],
        needs: PositionNeeds,
    ) -> float:
        """Return the demand on an operand along `axis`, given the operand's body input index."""
        first_carry = len(self.body_inputs) - len(self.body_carries)
        if 0 <= operand_index < first_carry:
            body_input, body_axis = self.body_inputs[operand_index], axis - (axis > self.op.axis)
            is_cached = body_input in self.context.cached_values
            return 0.0 if is_cached else needs.get(body_input, {}).get(body_axis, NEWEST_ONLY)
        if first_carry <= operand_index < len(self.body_inputs):
            return result_demands[operand_index - first_carry][axis]
        # A captured value is passed with all positions, and the nodes that read it slice it.
        return needs.get(operand, {}).get(axis, NEWEST_ONLY)


def _add_carry_demand(demand: dict[int, float], input_demand: Mapping[int, float]) -> None:
    """Merge the demand of the loop body on a loop-carried value (`input_demand`) into the demand on
    its next value. Both values have the same number of positions. A value with a single time axis
    needs no earlier positions, because the body caches earlier positions.
    """
    for axis, need in input_demand.items():
        need = min(need, 0.0) if len(input_demand) == 1 or need <= 0 else inf
        demand[axis] = max(demand.get(axis, NEWEST_ONLY), need)

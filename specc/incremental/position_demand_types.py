"""Data types of the position demand analysis, axis names of nodes, and the demand inside loops over
an axis other than the time axis.

    scan row in memory along src carry y {       y: f[batch, seq, d], seq grows
      y = … attend(y, y, y, causal) …            keys are cached, one state per iteration
    }

A loop-carried value has the same positions before and after an iteration, and no earlier positions,
because the body caches the earlier positions that it reads.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TypeAlias

from specc.analysis.time_axis import TimeAxisLayout, is_first_position_slice
from specc.analysis.time_dataflow_facts import TimeDataflow
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, NodeResults, Value
from specc.ir.op import Op
from specc.ir.signature import assign_operand_axes, assign_result_axes

NEWEST_ONLY = -1.0
"""The demand for the last position only."""

STATEFUL_OPS = (ops.CumSum, ops.RecurrentLayer, ops.Scan)
"""Ops that depend on all earlier positions through a state, or that read the first position."""

SEQUENCE_AXIS = 1
"""The time axis of recurrent layers, [batch, time, features]."""

AxisName: TypeAlias = Hashable
AxisNames: TypeAlias = dict[int, AxisName]
"""The name of each axis of a value. Axes with equal names have equal sizes."""
PositionNeeds: TypeAlias = Mapping[Value, Mapping[int, float]]


@dataclass(frozen=True)
class PositionDemand:
    """The numbers of earlier positions that a node must compute or read, by axis name, and the
    names of the time axes of its operands and results.
    """

    positions: Mapping[AxisName, float]
    operand_axes: tuple[AxisNames, ...]
    result_axes: tuple[AxisNames, ...]


@dataclass(frozen=True)
class PositionDemandContext:
    """The context of a demand analysis: the graph, its time dataflow, the values that are cached
    between steps, and the values that cost nothing to recompute.

    Unless `evicts_positions` is True, sliding-window attention caches all positions, which some
    runtimes expect.
    """

    graph: Graph
    flow: TimeDataflow
    cached_values: Collection[Value] = ()
    recomputable_values: Collection[Value] = ()
    evicts_positions: bool = True

    def find_time_axes(self, value: Value | None) -> tuple[int, ...]:
        """Return the time axes of a value, or () for None."""
        return tuple(sorted(self.flow.get_state(value).axes)) if value else ()

    def get_axis_layout(self, value: Value, axis: int) -> TimeAxisLayout:
        """Return the layout of a time axis of a value."""
        layout = self.flow.time_axis.get_layout(value.shape[axis])
        assert layout is not None, "a time axis has a dynamic length"
        return layout

    def get_prefix_length(self, value: Value, axis: int) -> Dim:
        """Return the number of prefix positions of a time axis of a value."""
        return self.get_axis_layout(value, axis).prefix_length

    def resumes_from_state(self, node: Node, results: NodeResults) -> bool:
        """Return True if a decode step computes a node from a state of the previous step, such as a
        cumulative sum or a loop along the time axis. Other nodes read all positions that they need.
        """
        if any(r in self.recomputable_values for r in results):
            return False
        if is_first_position_slice(node, self.flow.time_axis):
            return self._depends_on_time(node)
        if not isinstance(node.op, STATEFUL_OPS):
            return False
        if isinstance(node.op, ops.CumSum) and len(self.find_time_axes(node.first_operand)) > 1:
            return False  # all keys are available in each step
        return any(
            get_stateful_axis(node, a) is not None for a in range(min(2, len(node.args)))
        ) and self._depends_on_time(node)

    def _depends_on_time(self, node: Node) -> bool:
        x, axis = get_stateful_operand(node)
        return axis in self.find_time_axes(x)


def round_demand_to_chunks(demand: float, layout: TimeAxisLayout) -> float:
    """Round a demand up to complete chunks, so that strided windows stay aligned."""
    if layout.rate == 1 or demand <= 0 or demand == inf:
        return demand
    if layout.prefix_length.number is None:
        return inf  # complete chunks may include positions before the first token
    missing_positions = demand - layout.prefix_length.number
    if missing_positions <= layout.rate:
        return demand
    return layout.prefix_length.number + ceil(missing_positions / layout.rate) * layout.rate


def get_stateful_operand(node: Node) -> tuple[Value, int]:
    """Return the operand that a stateful op processes sequentially, and its axis."""
    match node.op:
        case ops.Slice(axis) | ops.Index(axis) | ops.CumSum(axis):
            return node.get_operand(), axis
        case ops.Scan(axis=axis):
            return node.op.get_first_scanned_operand(node), axis
    return ops.RecurrentLayer.sequence(node), SEQUENCE_AXIS


def get_stateful_axis(node: Node, operand: int) -> int | None:
    """Return the axis along which a stateful op processes an operand sequentially, or None."""
    match node.op:
        case ops.Scan(axis=axis, scanned_count=scanned_count, first_body_operand=first_operand):
            if operand < first_operand:
                return SEQUENCE_AXIS  # `keep` is [batch, positions] for any scan axis
            return axis if operand < first_operand + scanned_count else None
        case ops.CumSum(axis):
            return axis if operand == 0 else None
        case ops.Slice(axis) | ops.Index(axis):
            return axis
        case ops.RecurrentLayer(sequence=sequence, keep=keep):
            return SEQUENCE_AXIS if operand in (sequence.index, keep.index) else None
    return None


def assign_axis_names(node: Node, results: NodeResults) -> tuple[list[AxisNames], list[AxisNames]]:
    """Return a name for every operand and result axis. Axes with equal names have equal sizes."""
    if isinstance(node.op, ops.Scan):
        return _assign_scan_names(node, node.op, results)
    rule = node.op.get_signature()
    types = [a.type if a else None for a in node.args]
    widths: dict[str, int] = {}
    operands: list[AxisNames] = []
    for n, (term, arg) in enumerate(rule.pair_operands(types)):
        marks = (
            assign_operand_axes(term, arg.rank, node.op.get_first_variadic_group_rank(), n)
            if arg
            else ()
        )
        for mark, dims in marks:
            widths[mark.name] = max(widths.get(mark.name, 0), len(dims))
        operands.append(_name_axes(node.op, [(mark.name, dims) for mark, dims in marks]))
    result_demands = [
        _name_axes(node.op, assign_result_axes(term, value.rank, widths).items())
        for term, value in zip(rule.results, results, strict=True)
    ]
    return operands, result_demands


def _name_axes(op: Op, axis_ranges: Iterable[tuple[str, range]]) -> AxisNames:
    """Derive axis names from the signature of an op. Equal names are numbered from the right."""
    is_stateful = isinstance(op, STATEFUL_OPS)
    return {
        axis: "rows" if is_stateful and name == "t" else (name, dims.stop - axis)
        for name, dims in axis_ranges
        for axis in dims
    }


def _assign_scan_names(
    node: Node, op: ops.Scan, results: NodeResults
) -> tuple[list[AxisNames], list[AxisNames]]:
    """Return axis names: `rows` for the scan axis of a loop, symbolic sizes for other axes."""

    def name_axes(value: Value, scan_axis: int | None) -> AxisNames:
        names: AxisNames = dict(enumerate(value.shape))
        return names if scan_axis is None else names | {scan_axis: "rows"}

    operands = [name_axes(a, get_stateful_axis(node, n)) for n, a in enumerate(node.operands)]
    return operands, [
        name_axes(value, op.axis if r >= op.carry_count else None)
        for r, value in enumerate(results)
    ]


@dataclass(frozen=True, kw_only=True)
class NonTimeAxisLoop:
    """A loop over an axis other than the time axis, with its op and body. `body_carries` are the
    loop-carried inputs of the body, and `body_inputs` are all inputs. `body_outputs` are the next
    loop-carried values, followed by the scan outputs.
    """

    context: PositionDemandContext
    node: Node
    op: ops.Scan
    body: Graph
    body_inputs: NodeResults
    body_carries: NodeResults
    body_outputs: NodeResults

    @classmethod
    def from_node(cls, context: PositionDemandContext, node: Node) -> "NonTimeAxisLoop":
        """Describe the loop `node`."""
        body, op = context.flow.loop_body_dataflows[node], node.op
        assert isinstance(op, ops.Scan), "no other op has a body"
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

    def get_output_positions(
        self, results: NodeResults, needs: PositionNeeds
    ) -> list[Mapping[int, float]]:
        """Return the number of computed earlier positions of each result, by body output axis."""
        output_positions: list[Mapping[int, float]] = []
        for r, result in enumerate(results):
            is_scan_output = r >= len(self.body_carries)
            positions: dict[int, float] = {}
            for axis in self.context.find_time_axes(result):
                body_axis = axis - (is_scan_output and axis > self.op.axis)
                need = needs.get(result, {}).get(axis, NEWEST_ONLY)
                positions[body_axis] = 0.0 if result in self.context.cached_values else need
            if not is_scan_output:
                _add_carry_demand(positions, needs.get(self.body_carries[r], {}))
            output_positions.append(positions)
        return output_positions

    def compute_demand(self, results: NodeResults, needs: PositionNeeds) -> PositionDemand:
        """Return the demand on the loop's operands from the `needs` of results and body."""
        result_demands = self.get_output_positions(results, needs)
        positions: dict[AxisName, float] = {}
        operands: list[AxisNames] = []
        for n in range(len(self.node.args)):
            operand = self.node.get_operand(n)
            body_input = n - self.op.first_body_operand
            names: AxisNames = {}
            for axis in self.context.find_time_axes(operand):
                names[axis] = ("operand", n, axis)
                positions[names[axis]] = self._get_operand_demand(
                    operand, body_input, axis, result_demands, needs
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
        return PositionDemand(positions, tuple(operands), tuple(result_axes))

    def _get_operand_demand(
        self,
        operand: Value,
        operand_index: int,
        axis: int,
        result_demands: Sequence[Mapping[int, float]],
        needs: PositionNeeds,
    ) -> float:
        """Return the demand on an operand along `axis`. `operand_index` is the body input index."""
        first_carry = len(self.body_inputs) - len(self.body_carries)
        if 0 <= operand_index < first_carry:
            body_input, body_axis = self.body_inputs[operand_index], axis - (axis > self.op.axis)
            is_cached = body_input in self.context.cached_values
            return 0.0 if is_cached else needs.get(body_input, {}).get(body_axis, NEWEST_ONLY)
        if first_carry <= operand_index < len(self.body_inputs):
            return result_demands[operand_index - first_carry][axis]
        # A captured value is passed with all positions, and is sliced where it is read.
        return needs.get(operand, {}).get(axis, NEWEST_ONLY)


def _add_carry_demand(demand: dict[int, float], input_demand: Mapping[int, float]) -> None:
    """Merge the body's demand on a loop-carried value (`input_demand`) into the demand on its next
    value, because both values have the same number of positions. A value with a single time axis
    needs no earlier positions, because the body caches earlier positions.
    """
    for axis, need in input_demand.items():
        need = min(need, 0.0) if len(input_demand) == 1 or need <= 0 else inf
        demand[axis] = max(demand.get(axis, NEWEST_ONLY), need)

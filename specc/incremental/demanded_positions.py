"""Compute the number of earlier positions of each value that a decode step needs.

The input is a graph that is causal along its time axis, and its `TimeDataflow`, which lists the
time axes of each value. A demand (`need`) is a number of earlier positions: 0 means only
the new positions, `inf` means all earlier positions, and `NEWEST_ONLY` means only the last
position. Demands are propagated backward from the requested outputs to the inputs. An op with a
look-back of `hi` positions adds `hi` to the demand. The demand for a value is the maximum demand of
its consumers.

In the example, only the last position of the output is requested. The convolution has kernel size 3
and reads 2 earlier positions, so 2 more positions of its operand are needed. `tanh` reads no
earlier positions, and only the last position of its result is needed:

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

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TypeAlias

from specc.analysis.time_axis_prefix_and_chunks import (
    PREFIX_READ,
    TimeAxis,
    TimeAxisLayout,
    count_positions_before_first_chunk,
    is_first_position_slice,
)
from specc.analysis.time_dataflow import resolve_time_dependence
from specc.analysis.time_dependence_and_unsupported_loops import TimeDataflow
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, NodeOperands, NodeResults, Value, select_entries
from specc.ir.loop_dependence import find_dependences
from specc.ir.op import Op
from specc.ir.signature import assign_operand_axes, assign_result_axes

NEWEST_ONLY = -1.0
"""The demand of a consumer that reads only the last position of an operand."""


STATEFUL_OPS = (ops.CumSum, ops.RecurrentLayer, ops.Scan)
"""Ops that depend on all earlier positions through a state, or that read the first position."""


SEQUENCE_AXIS = 1
"""The time axis of recurrent layers, [batch, time, features]."""


AxisName: TypeAlias = Hashable


AxisNames: TypeAlias = dict[int, AxisName]
"""The name of each axis of a value. Axes with the same name have the same size."""


PositionNeeds: TypeAlias = Mapping[Value, Mapping[int, float]]


@dataclass(frozen=True)
class DemandedPositions:
    """The numbers of earlier positions that a node must compute or read, keyed by axis name, and
    the names of the time axes of its operands and results.
    """

    positions: Mapping[AxisName, float]
    operand_axes: tuple[AxisNames, ...]
    result_axes: tuple[AxisNames, ...]


@dataclass(frozen=True)
class DemandedPositionsContext:
    """The context of a demand analysis: the graph, its time dataflow, the values that are cached
    between steps, and the values that cost nothing to recompute.

    Unless `evicts_positions` is True, sliding-window attention caches all positions, as some
    runtimes expect.
    """

    graph: Graph
    flow: TimeDataflow
    cached_values: Collection[Value] = ()
    recomputable_values: Collection[Value] = ()
    evicts_positions: bool = True

    def find_time_axes(self, value: Value | None) -> tuple[int, ...]:
        """Return the time axes of a value, or () if the value is None."""
        return tuple(sorted(self.flow.get_state(value).axes)) if value else ()

    def get_axis_layout(self, value: Value, axis: int) -> TimeAxisLayout:
        """Return the layout of the time axis `axis` of a value."""
        layout = self.flow.time_axis.get_layout(value.shape[axis])
        assert layout is not None, "a time axis has a dynamic length"
        return layout

    def get_prefix_length(self, value: Value, axis: int) -> Dim:
        """Return the prefix length of a value along its time axis `axis`."""
        return self.get_axis_layout(value, axis).prefix_length

    def is_computed_from_state(self, node: Node, results: NodeResults) -> bool:
        """Return True if a decode step computes a node from a state of the previous step, such as a
        cumulative sum or a loop along the time axis. Other nodes have no state and read all
        positions that they use.
        """
        if any(r in self.recomputable_values for r in results):
            return False
        if is_first_position_slice(node, self.flow.time_axis):
            return self._depends_on_time(node)
        if not isinstance(node.op, STATEFUL_OPS):
            return False
        if isinstance(node.op, ops.CumSum) and len(self.find_time_axes(node.first_operand)) > 1:
            return False  # all keys are available in every step
        return any(
            get_stateful_axis(node, a) is not None for a in range(min(2, len(node.args)))
        ) and self._depends_on_time(node)

    def _depends_on_time(self, node: Node) -> bool:
        x, axis = get_stateful_operand(node)
        return axis in self.find_time_axes(x)


def round_demand_to_chunks(demand: float, layout: TimeAxisLayout) -> float:
    """Round a demand up to complete chunks to keep strided windows aligned."""
    if layout.rate == 1 or demand <= 0 or demand == inf:
        return demand
    if layout.prefix_length.number is None:
        return inf  # complete chunks may include positions before the first token
    missing_positions = demand - layout.prefix_length.number
    if missing_positions <= layout.rate:
        return demand
    return layout.prefix_length.number + ceil(missing_positions / layout.rate) * layout.rate


def get_stateful_operand(node: Node) -> tuple[Value, int]:
    """Return the operand that a stateful op processes sequentially, and the sequence axis."""
    match node.op:
        case ops.Slice(axis) | ops.Index(axis) | ops.CumSum(axis):
            return node.get_operand(), axis
        case ops.Scan(axis=axis):
            return node.op.get_first_scanned_operand(node), axis
    return ops.RecurrentLayer.sequence(node), SEQUENCE_AXIS


def get_stateful_axis(node: Node, operand: int) -> int | None:
    """Return the axis along which a stateful op processes an operand sequentially, or None."""
    match node.op:
        case ops.Scan(
            axis=axis, scanned_count=scanned_count, first_body_operand_index=first_operand
        ):
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
    """Assign a name to every operand and result axis. Axes of the same name have equal sizes."""
    if isinstance(node.op, ops.Scan):
        return _assign_scan_names(node, node.op, results)
    rule = node.op.get_signature()
    types = [a.type if a else None for a in node.args]
    widths: dict[str, int] = {}
    operands: list[AxisNames] = []
    for n, (term, arg) in enumerate(rule.match_operands_to_terms(types)):
        marks = assign_operand_axes(term, arg.rank, node.op.count_leading_axes(), n) if arg else ()
        for mark, dims in marks:
            widths[mark.name] = max(widths.get(mark.name, 0), len(dims))
        operands.append(_name_axes(node.op, [(mark.name, dims) for mark, dims in marks]))
    result_demands = [
        _name_axes(node.op, assign_result_axes(term, value.rank, widths).items())
        for term, value in zip(rule.results, results, strict=True)
    ]
    return operands, result_demands


def _name_axes(op: Op, axis_ranges: Iterable[tuple[str, range]]) -> AxisNames:
    """Name axes after the op signature. Axes with equal names are numbered from the right."""
    is_stateful = isinstance(op, STATEFUL_OPS)
    return {
        axis: "rows" if is_stateful and name == "t" else (name, dims.stop - axis)
        for name, dims in axis_ranges
        for axis in dims
    }


def _assign_scan_names(
    node: Node, op: ops.Scan, results: NodeResults
) -> tuple[list[AxisNames], list[AxisNames]]:
    """Name the scan axis of a loop `rows`, and name other axes by their symbolic sizes."""

    def name_axes(value: Value, scan_axis: int | None) -> AxisNames:
        names: AxisNames = dict(enumerate(value.shape))
        return names if scan_axis is None else names | {scan_axis: "rows"}

    operands = [name_axes(a, get_stateful_axis(node, n)) for n, a in enumerate(node.operands)]
    return operands, [
        name_axes(value, op.axis if r >= op.carry_count else None)
        for r, value in enumerate(results)
    ]


def compute_op_demand(
    context: DemandedPositionsContext, node: Node, results: NodeResults, demands: PositionNeeds
) -> DemandedPositions:
    """Return the number of earlier positions that a node must compute and read to satisfy
    `demands`.
    """
    names = assign_axis_names(node, results)
    if isinstance(node.op, ops.Extent):
        # a dependence on only the axis size reads no positions
        names = [{}], names[1]
    operand_names = _select_time_axes(context, node.args, names[0])
    result_names = _select_time_axes(context, results, names[1])
    positions = _get_result_demand(context, results, result_names, demands)
    for axes in operand_names:
        for name in axes.values():
            positions.setdefault(name, NEWEST_ONLY)
    resumes = context.is_computed_from_state(node, results)
    # Each dependence adds the positions that it reads to the demand on the results. The ranges of
    # several dependences are not summed.
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
        # the op resumes from a state, so it processes only the new positions
        positions["rows"] = 0.0
    return DemandedPositions(positions, operand_names, result_names)


def _select_time_axes(
    context: DemandedPositionsContext, values: NodeOperands, names: Sequence[AxisNames]
) -> tuple[AxisNames, ...]:
    """Return the names of the time axes of each value."""
    return tuple(
        select_entries(axes, context.find_time_axes(value))
        for value, axes in zip(values, names, strict=True)
    )


def _get_result_demand(
    context: DemandedPositionsContext,
    results: Sequence[Value],
    names: Sequence[AxisNames],
    needs: PositionNeeds,
) -> dict[AxisName, float]:
    """Return how many positions of a node's results are needed, keyed by axis name. Only the new
    positions of a cached value are needed.
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
    """Return how many earlier operand positions a dependence reads to compute the needed result
    positions. `result_demand` maps axis names to the number of needed positions. `resumes` is true
    if the op resumes from a state.
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
    # Position t depends on positions at or after t - hi. The range starts at the first new position
    # even if only the last position is needed, because the number of new positions is unknown.
    return max(need, 0.0) + offsets.high


def _count_windows(
    dependence: Dependence,
    result_axes: tuple[AxisNames, ...],
    positions: float,
    layout: TimeAxisLayout,
) -> dict[AxisName, float]:
    """Return the number of strided windows that fit into `positions` positions, keyed by the name
    of the result axis. Windows over the prefix are excluded. Return {} if the op has no strided
    windows.
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
    """Return the number of operand positions that the last `demand` windows read: `stride`
    positions per window, plus the overlap with earlier windows.
    """
    positions_ahead = count_positions_before_first_chunk(node, dependence, time_axis)
    assert positions_ahead is not None, "a step computes whole chunks"
    return (
        max(demand, 0.0) + ceil(dependence.max_offset / dependence.stride)
    ) * dependence.stride + positions_ahead

"""Types of the demand analysis, and the names of a node's axes."""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf

from specc.analysis.time_axis_strides import is_first_position_slice
from specc.analysis.time_dataflow import TimeFlow
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op
from specc.ir.ops.recurrent import KEEP_OPERAND, SEQUENCE_OPERAND
from specc.ir.signature import SignatureAxis as Mark
from specc.ir.signature import SignatureTerm, assign_axis_marks
from specc.ir.time_axis import TimeAxisLayout
from specc.ir.types import Type

NEWEST_ONLY = -1.0
"""The need for the newest row only."""

STATEFUL_OPS = (ops.CumSum, ops.Rnn, ops.Gru, ops.Lstm, ops.Scan)
"""Ops that read every earlier row through a state that is carried on. What picks the
first row does so too.
"""

SEQUENCE_AXIS = 1
"""Recurrent layers read [batch, rows, features]."""

AxisName = Hashable
PositionNeeds = Mapping[Value, Mapping[int, float]]


@dataclass(frozen=True)
class Demand:
    """What one node is asked for: the rows of each axis name, and which axes of
    operands and results bear it.
    """

    rows: Mapping[AxisName, float]
    operands: tuple[Mapping[int, AxisName], ...]
    results: tuple[Mapping[int, AxisName], ...]


@dataclass(frozen=True)
class DemandContext:
    """What a demand is made for: the graph and its flow, values that are kept, those
    whose rows cost nothing.

    Unless it is `bounded`, an attention through a window keeps all rows, as readers of
    such caches may expect.
    """

    graph: Graph
    flow: TimeFlow
    kept: Collection[Value] = ()
    free: Collection[Value] = ()
    bounded: bool = True

    def times(self, value: Value | None) -> tuple[int, ...]:
        """Return the time axes of a value."""
        return tuple(sorted(self.flow.state(value).axes)) if value else ()

    def track(self, value: Value, axis: int) -> TimeAxisLayout:
        """Return the layout of a time axis of a value."""
        found = self.flow.clock.track(value.type.shape[axis])
        assert found is not None, "a time axis has rows that grow"
        return found

    def head(self, value: Value, axis: int) -> Dim:
        """Return the prefix length of a time axis of a value."""
        return self.track(value, axis).head

    def folds(self, node: Node, results: tuple[Value, ...]) -> bool:
        """Return True if the node resumes from a state; nodes that are recomputed start at their
        first position.
        """
        if any(r in self.free for r in results):
            return False
        if is_first_position_slice(node, self.flow.clock):
            return self._moves(node)
        if not isinstance(node.op, STATEFUL_OPS):
            return False
        if isinstance(node.op, ops.CumSum) and len(self.times(node.first)) > 1:
            return False  # over the keys of a grid, all of which are there in each step
        return any(
            get_stateful_axis(node, a) is not None for a in range(min(2, len(node.args)))
        ) and self._moves(node)

    def _moves(self, node: Node) -> bool:
        x, axis = get_stateful_operand(node)
        return axis in self.times(x)


def round_up_to_chunks(need: float, track: TimeAxisLayout) -> float:
    """Round a demand up to whole chunks of a strided stream. Within one chunk any number of
    positions can be met.

    The number of positions is then a multiple of the chunk's, so that strided windows align as
    in the full forward pass.
    """
    if track.rate == 1 or need <= 0 or need == inf:
        return need
    if track.head.number is None:
        return inf  # of nothing else is known whether some of it are rows of the head
    lacking = need - track.head.number
    if lacking <= track.rate:
        return need
    return track.head.number + ceil(lacking / track.rate) * track.rate


def get_stateful_operand(node: Node) -> tuple[Value, int]:
    """Return the operand that a stateful op reads sequentially, and its axis."""
    match node.op:
        case ops.Slice(axis=axis) | ops.Index(axis=axis):
            x = node.first
            assert x is not None
            return x, axis
        case ops.Scan(axis=axis):
            return node.op.row(node), axis
        case ops.CumSum(axis=axis):
            x = node.first
            assert x is not None
            return x, axis
    return SEQUENCE_OPERAND(node), SEQUENCE_AXIS


def get_stateful_axis(node: Node, operand: int) -> int | None:
    """Return the axis of an operand along which a stateful op runs; None if the operand is not
    read sequentially.
    """
    match node.op:
        case ops.Scan(axis=axis, scanned=scanned, first=first):
            if operand < first:
                return SEQUENCE_AXIS  # `keep` is [batch, rows] whatever is looped over
            return axis if operand < first + scanned else None
        case ops.CumSum(axis=axis):
            return axis if operand == 0 else None
        case ops.Slice(axis=axis) | ops.Index(axis=axis):
            return axis
        case ops.Rnn() | ops.Gru() | ops.Lstm():
            return (
                SEQUENCE_AXIS if operand in (SEQUENCE_OPERAND.place, KEEP_OPERAND.place) else None
            )
    return None


def assign_axis_names(
    node: Node, results: tuple[Value, ...]
) -> tuple[list[dict[int, AxisName]], list[dict[int, AxisName]]]:
    """Return the name of every axis of each operand and result; axes with one name have equal
    lengths.
    """
    if isinstance(node.op, ops.Scan):
        return _assign_scan_names(node, node.op, results)
    rule = node.op.rule()
    types = tuple(a.type if a else None for a in node.args)
    widths: dict[str, int] = {}
    operands: list[dict[int, AxisName]] = []
    for n, (term, arg) in enumerate(rule.pair(types)):
        if arg is None:
            operands.append({})
            continue
        marks = assign_axis_marks(term, arg.rank, node.op.at_axis(), n)
        for mark, dims in marks:
            widths[mark.name] = max(widths.get(mark.name, 0), len(dims))
        operands.append(_assign_operand_names(node.op, marks, arg))
    made = [
        _assign_result_names(node.op, term, value, widths)
        for term, value in zip(rule.results, results, strict=True)
    ]
    return operands, made


def _assign_operand_names(
    op: Op, marks: Iterable[tuple[Mark, range]], arg: Type
) -> dict[int, AxisName]:
    """Return the names of an operand's axes."""
    found: dict[int, AxisName] = {}
    for mark, dims in marks:
        for axis in dims:
            # An axis of 1 that is repeated has one row, which is no time axis.
            if not mark.one or arg.shape[axis] != 1:
                found[axis] = _qualify_axis_name(op, mark.name, dims.stop - axis)
    return found


def _assign_result_names(
    op: Op, term: SignatureTerm, value: Value, widths: Mapping[str, int]
) -> dict[int, AxisName]:
    """Return the names of a result's axes. A variadic axis that no operand determines takes the
    remaining axes.
    """
    known = sum(widths.get(a.name, 0) if a.spread else 1 for a in term.axes)
    names: dict[int, AxisName] = {}
    start = 0
    for a in term.axes:
        width = widths.get(a.name, value.type.rank - known) if a.spread else 1
        for axis in range(start, start + width):
            names[axis] = _qualify_axis_name(op, a.name, start + width - axis)
        start += width
    return names


def _qualify_axis_name(op: Op, name: str, from_right: int) -> AxisName:
    """Return an axis name from its name in the shape rule; several axes with one name are
    counted from the right.
    """
    return "rows" if isinstance(op, STATEFUL_OPS) and name == "t" else (name, from_right)


def _assign_scan_names(
    node: Node, op: ops.Scan, results: tuple[Value, ...]
) -> tuple[list[dict[int, AxisName]], list[dict[int, AxisName]]]:
    """Name the loop's own axis `rows`, and other axes by their lengths."""
    operands: list[dict[int, AxisName]] = []
    for n, arg in enumerate(node.args):
        own = get_stateful_axis(node, n)
        assert arg is not None
        operands.append({a: "rows" if a == own else d for a, d in enumerate(arg.type.shape)})
    made: list[dict[int, AxisName]] = []
    for r, value in enumerate(results):
        collected = r >= op.carries
        made.append(
            {a: "rows" if collected and a == op.axis else d for a, d in enumerate(value.type.shape)}
        )
    return operands, made

"""Dependence analysis: find the operand positions that each result position depends on, for all
nodes including loops.

Position `t` of a result axis may depend on position `u` of an operand axis only if there is a
`Dependence` between the two axes whose offsets include `t - u`. If an operand axis has no
dependence, the result does not read it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op
from specc.ir.op_dependence import (
    MASK_OPERANDS,
    Dependence,
    DependenceKind,
    DependenceMask,
    iterate_op_dependences,
    make_dependence,
)
from specc.ir.ops import Scan
from specc.ir.types import (
    EMPTY_INTERVAL,
    FUTURE_POSITIONS,
    PAST_POSITIONS,
    SAME_POSITION,
    Interval,
    Type,
)

__all__ = [
    "MASK_OPERANDS",
    "AxisTrace",
    "Dependence",
    "DependenceKind",
    "DependenceMask",
    "find_dependences",
    "find_op_dependences",
    "get_read_length",
    "trace_axes",
]


def find_dependences(node: Node, results: Sequence[Value] | None = None) -> tuple[Dependence, ...]:
    """Return all dependences between the operands and the results of a node. If `results` is None,
    the result types are inferred.
    """
    result_types = node.infer_types() if results is None else tuple(r.type for r in results)
    return find_op_dependences(
        node.op, tuple(a.type if a else None for a in node.args), result_types
    )


def get_read_length(node: Node, dependence: Dependence) -> Dim:
    """Return the size of the operand axis that a dependence reads."""
    return node.get_operand(dependence.operand).shape[dependence.operand_axis]


@lru_cache(maxsize=4096)
def find_op_dependences(
    op: Op, args: tuple[Type | None, ...], results: tuple[Type, ...]
) -> tuple[Dependence, ...]:
    """Return the dependences of an op for these types. The result is cached, because the layers of
    a model have equal ops and types.
    """
    return tuple(
        _iterate_scan_dependences(op, args, results)
        if isinstance(op, Scan)
        else iterate_op_dependences(op, args, results)
    )


# a loop reads its scan axis in order; dependences along other axes are traced through the body


@dataclass
class AxisTrace:
    """The positions of one traced axis on which a value depends: an interval of offsets per axis of
    the value, or all positions.
    """

    axes: dict[int, Interval] = field(default_factory=dict)
    is_fully_read: bool = False

    def join(self, other: "AxisTrace") -> bool:
        """Merge `other` into this trace; return True if anything changed."""
        before = dict(self.axes), self.is_fully_read
        self.is_fully_read = self.is_fully_read or other.is_fully_read
        for axis, reach in other.axes.items():
            self.axes[axis] = self.axes.get(axis, EMPTY_INTERVAL) | reach
        # a trace of all positions includes all other traces
        if self.is_fully_read:
            self.axes.clear()
        return before != (self.axes, self.is_fully_read)

    @property
    def is_read(self) -> bool:
        """Return True if any position of the axis is read."""
        return self.is_fully_read or bool(self.axes)


def trace_axes(graph: Graph, start: Mapping[Value, AxisTrace]) -> dict[Value, AxisTrace]:
    """Propagate the traced axes of the values in `start` to all values of `graph` that depend on
    them.
    """
    found: dict[Value, AxisTrace] = {
        v: AxisTrace(dict(t.axes), t.is_fully_read) for v, t in start.items()
    }
    for node, results in graph.nodes:
        if found.keys().isdisjoint(node.operands):
            continue
        for link in find_dependences(node, results):
            operand = node.args[link.operand]
            source = found.get(operand) if operand else None
            # a value that uses only the size of an axis does not depend on its elements
            if source is None or not source.is_read or link.kind == "extent":
                continue
            into = found.setdefault(results[link.result], AxisTrace())
            into.join(_extend_trace(link, source))
    return found


def _extend_trace(dependence: Dependence, source: AxisTrace) -> AxisTrace:
    """Compose a trace with a dependence. The offsets of consecutive windows are added; any other
    combination may read all positions.
    """
    reach = source.axes.get(dependence.operand_axis)
    if reach is None:
        return AxisTrace(is_fully_read=source.is_fully_read)
    if dependence.kind in ("same", "window") and dependence.result_axis is not None:
        return AxisTrace({dependence.result_axis: reach + dependence.offsets}, source.is_fully_read)
    return AxisTrace(is_fully_read=True)


def _iterate_scan_dependences(
    op: Scan, args: Sequence[Type | None], results: Sequence[Type]
) -> Iterator[Dependence]:
    if op.has_mask:
        yield from _iterate_mask_dependences(op, len(results))
    for n in range(op.first_body_operand, len(args)):
        arg = args[n]
        assert arg is not None, "a scan has no optional operands"
        scanned = n - op.first_body_operand < op.scanned_count
        for axis in range(arg.rank):
            if scanned and axis == op.axis:
                yield from _iterate_scanned_axis(op, n, axis, len(results))
            else:
                inner = axis - (axis > op.axis) if scanned else axis
                yield from _iterate_body_dependences(op, n, axis, n - op.first_body_operand, inner)


def _iterate_mask_dependences(op: Scan, result_count: int) -> Iterator[Dependence]:
    """Yield the dependences on the mask (operand 0, [batch, position]): the state of an iteration
    depends on the mask at earlier positions.
    """
    yield from _iterate_scanned_axis(op, 0, 1, result_count)
    for r in range(result_count):
        yield make_dependence(
            0, 0, r, _convert_to_outer_axis(op, 0, r >= op.carry_count), "same", SAME_POSITION
        )


def _iterate_scanned_axis(op: Scan, operand: int, axis: int, count: int) -> Iterator[Dependence]:
    """Yield the dependences along the scan axis of the loop."""
    for r in range(count):
        if r < op.carry_count:
            # the final loop-carried value depends on all positions; the last position is the final
            # iteration only in forward direction
            if op.reverse:
                yield make_dependence(operand, axis, r, None, "all")
            else:
                yield make_dependence(operand, axis, r, None, "newest", PAST_POSITIONS)
        elif op.carry_count:
            # a position of a scan output depends on all positions that the loop has read so far
            yield make_dependence(
                operand,
                axis,
                r,
                op.axis,
                "window",
                FUTURE_POSITIONS if op.reverse else PAST_POSITIONS,
            )
        else:
            yield make_dependence(operand, axis, r, op.axis, "same", SAME_POSITION)


def _convert_to_outer_axis(op: Scan, axis: int, collected: bool) -> int:
    """Convert an axis of a body output to the axis of the loop result."""
    return axis + (collected and axis >= op.axis)


def _iterate_body_dependences(
    op: Scan, operand: int, axis: int, body_input: int, inner: int
) -> Iterator[Dependence]:
    """Yield the dependences along an axis other than the scan axis. The body is traced until the
    dependences of the loop-carried values reach a fixpoint.
    """
    inputs, outputs = list(op.body.inputs.values()), list(op.body.outputs.values())
    carried = op.split_body_inputs().initial_carries
    start = {v: AxisTrace() for v in carried}
    start.setdefault(inputs[body_input], AxisTrace()).join(AxisTrace({inner: SAME_POSITION}))
    iteration = 0
    while True:
        traces = trace_axes(op.body, {v: t for v, t in start.items() if t.is_read})
        changed = [
            start[v].join(traces.get(after, AxisTrace()))
            for v, after in zip(carried, outputs, strict=False)
        ]
        if not any(changed):
            break
        iteration += 1
        # a dependence that still grows after three iterations grows in every iteration, e.g. if
        # each position of a loop-carried value reads its left neighbor
        if iteration >= 3:
            for v, grew in zip(carried, changed, strict=True):
                start[v].join(AxisTrace(is_fully_read=grew))
    for r, value in enumerate(outputs):
        state = AxisTrace()
        state.join(traces.get(value, AxisTrace()))
        if r < op.carry_count:
            state.join(start[carried[r]])
        yield from _iterate_trace_dependences(op, operand, axis, r, state)


def _iterate_trace_dependences(
    op: Scan, operand: int, axis: int, result: int, trace: AxisTrace
) -> Iterator[Dependence]:
    """Yield the dependences of a loop result on an operand axis, given the trace of this axis
    through the body.
    """
    if trace.is_fully_read:
        yield make_dependence(operand, axis, result, None, "all")
    for a, reach in trace.axes.items():
        kind: DependenceKind = "same" if reach == SAME_POSITION else "window"
        outer_axis = _convert_to_outer_axis(op, a, result >= op.carry_count)
        yield make_dependence(operand, axis, result, outer_axis, kind, reach)

"""Dependence analysis of nodes and loops: find the operand positions on which each result position
of a node depends, and trace positions through the bodies of loops.

Position `t` of a result axis may depend on position `u` of an operand axis only if a `Dependence`
between the two axes has offsets that include `t - u`. A result does not read operand axes without a
`Dependence`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from specc.ir.dependence_marks import (
    Dependence,
    DependenceKind,
    iterate_op_dependences,
    make_dependence,
)
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op
from specc.ir.ops import Scan
from specc.ir.types import (
    EMPTY_INTERVAL,
    FUTURE_POSITIONS,
    PAST_POSITIONS,
    SAME_POSITION,
    Interval,
    Type,
)


def find_dependences(node: Node, results: Sequence[Value] | None = None) -> tuple[Dependence, ...]:
    """Return all dependences of a node. If `results` is None, the result types are inferred."""
    result_types = node.infer_types() if results is None else tuple(r.type for r in results)
    return find_op_dependences(
        node.op, tuple(a.type if a else None for a in node.args), result_types
    )


def get_operand_axis_size(node: Node, dependence: Dependence) -> Dim:
    """Return the size of the operand axis of a dependence of `node`."""
    return node.get_operand(dependence.operand).shape[dependence.operand_axis]


@lru_cache(maxsize=4096)
def find_op_dependences(
    op: Op, args: tuple[Type | None, ...], results: tuple[Type, ...]
) -> tuple[Dependence, ...]:
    """Return the dependences of an op. The result is cached, because layers often have equal
    ops.
    """
    return tuple(
        _iterate_scan_dependences(op, args, results)
        if isinstance(op, Scan)
        else iterate_op_dependences(op, args, results)
    )


# only dependences along other axes are traced through the body, because a loop reads its scan axis
# in order


@dataclass
class AxisReadSet:
    """The positions of a traced axis that a value reads. The positions are either all positions or,
    for each axis of the value that corresponds to the traced axis, an interval of offsets.
    """

    axes: dict[int, Interval] = field(default_factory=dict)
    is_fully_read: bool = False

    def merge(self, other: "AxisReadSet") -> bool:
        """Add the positions in `other` to this set. Return True if the set changed."""
        previous = dict(self.axes), self.is_fully_read
        self.is_fully_read = self.is_fully_read or other.is_fully_read
        for axis, interval in other.axes.items():
            self.axes[axis] = self.axes.get(axis, EMPTY_INTERVAL) | interval
        # the set of all positions already contains the intervals
        if self.is_fully_read:
            self.axes.clear()
        return previous != (self.axes, self.is_fully_read)

    @property
    def is_empty(self) -> bool:
        """True if the value reads no position of the traced axis."""
        return not (self.is_fully_read or self.axes)


def trace_axis_reads(graph: Graph, start: Mapping[Value, AxisReadSet]) -> dict[Value, AxisReadSet]:
    """Propagate the read sets in `start` to all values that depend on the values in `start`."""
    read_sets: dict[Value, AxisReadSet] = {
        v: AxisReadSet(dict(t.axes), t.is_fully_read) for v, t in start.items()
    }
    for node, results in graph.nodes:
        if read_sets.keys().isdisjoint(node.operands):
            continue
        for dependence in find_dependences(node, results):
            operand = node.args[dependence.operand]
            source = read_sets.get(operand) if operand else None
            # a value that reads only the size of an axis does not depend on its elements
            if source is None or source.is_empty or dependence.kind == "extent":
                continue
            result_reads = read_sets.setdefault(results[dependence.result], AxisReadSet())
            result_reads.merge(_compose_reads(dependence, source))
    return read_sets


def _compose_reads(dependence: Dependence, source: AxisReadSet) -> AxisReadSet:
    """Compose the read set `source` with a dependence. For a window, add the offsets of the window.
    For any other kind of dependence, return all positions.
    """
    interval = source.axes.get(dependence.operand_axis)
    if interval is None:
        return AxisReadSet(is_fully_read=source.is_fully_read)
    if dependence.kind in ("same", "window") and dependence.result_axis is not None:
        return AxisReadSet(
            {dependence.result_axis: interval + dependence.offsets}, source.is_fully_read
        )
    return AxisReadSet(is_fully_read=True)


def _iterate_scan_dependences(
    op: Scan, args: Sequence[Type | None], results: Sequence[Type]
) -> Iterator[Dependence]:
    """Yield the dependences of a `Scan`'s results on its operands."""
    if op.has_mask:
        yield from _iterate_mask_dependences(op, len(results))
    for n in range(op.first_body_operand_index, len(args)):
        arg = args[n]
        assert arg is not None, "a scan has no optional operands"
        is_scanned = n - op.first_body_operand_index < op.scanned_count
        for axis in range(arg.rank):
            if is_scanned and axis == op.axis:
                yield from _iterate_scanned_axis(op, n, axis, len(results))
            else:
                body_axis = axis - (axis > op.axis) if is_scanned else axis
                yield from _iterate_body_dependences(
                    op, n, axis, n - op.first_body_operand_index, body_axis
                )


def _iterate_mask_dependences(op: Scan, result_count: int) -> Iterator[Dependence]:
    """Yield the dependences of loop results on the mask (operand 0, [batch, position]). The state
    of an iteration depends on the mask at earlier positions.
    """
    yield from _iterate_scanned_axis(op, 0, 1, result_count)
    for result in range(result_count):
        batch_axis = _convert_to_outer_axis(op, 0, result >= op.carry_count)
        yield make_dependence(0, 0, result, batch_axis, "same", SAME_POSITION)


def _iterate_scanned_axis(
    op: Scan, operand: int, axis: int, result_count: int
) -> Iterator[Dependence]:
    """Yield the dependences of all loop results on the scan axis `axis` of `operand`."""
    for result in range(result_count):
        if result < op.carry_count:
            # the final loop-carried value depends on all positions, and in forward direction, the
            # last position is read by the final iteration
            if op.reverse:
                yield make_dependence(operand, axis, result, None, "all")
            else:
                yield make_dependence(operand, axis, result, None, "newest", PAST_POSITIONS)
        elif op.carry_count:
            # a position of a scan output depends on all positions that the loop has read before
            offsets = FUTURE_POSITIONS if op.reverse else PAST_POSITIONS
            yield make_dependence(operand, axis, result, op.axis, "window", offsets)
        else:
            yield make_dependence(operand, axis, result, op.axis, "same", SAME_POSITION)


def _convert_to_outer_axis(op: Scan, axis: int, is_scan_output: bool) -> int:
    """Convert an axis of a body output to the corresponding axis of the loop result. The result of
    a scan output has an additional axis, the scan axis.
    """
    return axis + (is_scan_output and axis >= op.axis)


def _iterate_body_dependences(
    op: Scan, operand: int, axis: int, body_input: int, body_axis: int
) -> Iterator[Dependence]:
    """Yield the dependences of loop results on `axis`, an operand axis other than the scan axis. In
    the loop body, the operand axis is axis `body_axis` of the input `body_input`. The body is
    traced until the dependences of the loop-carried values reach a fixed point.
    """
    inputs, outputs = list(op.body.inputs.values()), list(op.body.outputs.values())
    carries = op.split_body_inputs().initial_carries
    input_reads = {v: AxisReadSet() for v in carries}
    input_reads.setdefault(inputs[body_input], AxisReadSet()).merge(
        AxisReadSet({body_axis: SAME_POSITION})
    )
    iteration = 0
    while True:
        read_sets = trace_axis_reads(
            op.body, {v: t for v, t in input_reads.items() if not t.is_empty}
        )
        changed = [
            input_reads[v].merge(read_sets.get(next_carry, AxisReadSet()))
            for v, next_carry in zip(carries, outputs, strict=False)
        ]
        if not any(changed):
            break
        iteration += 1
        # stop after three iterations: a dependence that still grows does so in every iteration,
        # e.g. if position n of a loop-carried value reads position n - 1
        if iteration >= 3:
            for v, has_grown in zip(carries, changed, strict=True):
                input_reads[v].merge(AxisReadSet(is_fully_read=has_grown))
    for result, value in enumerate(outputs):
        output_reads = AxisReadSet()
        output_reads.merge(read_sets.get(value, AxisReadSet()))
        if result < op.carry_count:
            output_reads.merge(input_reads[carries[result]])
        yield from _iterate_read_dependences(op, operand, axis, result, output_reads)


def _iterate_read_dependences(
    op: Scan, operand: int, axis: int, result: int, reads: AxisReadSet
) -> Iterator[Dependence]:
    """Convert the read set of a loop result to dependences on the operand axis `axis`."""
    if reads.is_fully_read:
        yield make_dependence(operand, axis, result, None, "all")
    for body_axis, interval in reads.axes.items():
        kind: DependenceKind = "same" if interval == SAME_POSITION else "window"
        outer_axis = _convert_to_outer_axis(op, body_axis, result >= op.carry_count)
        yield make_dependence(operand, axis, result, outer_axis, kind, interval)

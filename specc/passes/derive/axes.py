"""The axes of a node's operands and results by name: those of one name are equally long."""

from collections.abc import Iterable, Mapping

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.op import Op
from specc.ir.signature import Axis as Mark
from specc.ir.signature import Term, layout
from specc.ir.types import Type
from specc.passes.derive.asked import FOLDS, Axis, along


def axis_names(
    node: Node, results: tuple[Value, ...]
) -> tuple[list[dict[int, Axis]], list[dict[int, Axis]]]:
    """For each operand and each result, the name of every axis; axes of one name are
    equally long.
    """
    if isinstance(node.op, ops.Scan):
        return _scan_names(node, node.op, results)
    rule = node.op.rule()
    types = tuple(a.type if a else None for a in node.args)
    widths: dict[str, int] = {}
    operands: list[dict[int, Axis]] = []
    for n, (term, arg) in enumerate(rule.pair(types)):
        if arg is None:
            operands.append({})
            continue
        marks = layout(term, arg.rank, node.op.at_axis(), n)
        for mark, dims in marks:
            widths[mark.name] = max(widths.get(mark.name, 0), len(dims))
        operands.append(_operand_names(node.op, marks, arg))
    made = [
        _result_names(node.op, term, value, widths)
        for term, value in zip(rule.results, results, strict=True)
    ]
    return operands, made


def _operand_names(
    op: Op, marks: Iterable[tuple[Mark, range]], arg: Type
) -> dict[int, Axis]:
    """The names of an operand's axes."""
    found: dict[int, Axis] = {}
    for mark, dims in marks:
        for axis in dims:
            # An axis of 1 that is repeated has one row, which is no time axis.
            if not mark.one or arg.shape[axis] != 1:
                found[axis] = _name(op, mark.name, dims.stop - axis)
    return found


def _result_names(
    op: Op, term: Term, value: Value, widths: Mapping[str, int]
) -> dict[int, Axis]:
    """The names of a result's axes. One spread whose width no operand says takes what
    the others leave.
    """
    known = sum(widths.get(a.name, 0) if a.spread else 1 for a in term.axes)
    names: dict[int, Axis] = {}
    start = 0
    for a in term.axes:
        width = widths.get(a.name, value.type.rank - known) if a.spread else 1
        for axis in range(start, start + width):
            names[axis] = _name(op, a.name, start + width - axis)
        start += width
    return names


def _name(op: Op, name: str, from_right: int) -> Axis:
    """An axis by its name in the rule; of several under one name, counted from the right."""
    return "rows" if isinstance(op, FOLDS) and name == "t" else (name, from_right)


def _scan_names(
    node: Node, op: ops.Scan, results: tuple[Value, ...]
) -> tuple[list[dict[int, Axis]], list[dict[int, Axis]]]:
    """The loop's own axis is `rows`; another one goes by the length that it has."""
    operands: list[dict[int, Axis]] = []
    for n, arg in enumerate(node.args):
        own = along(node, n)
        assert arg is not None
        operands.append(
            {a: "rows" if a == own else d for a, d in enumerate(arg.type.shape)}
        )
    made: list[dict[int, Axis]] = []
    for r, value in enumerate(results):
        collected = r >= op.carries
        made.append(
            {
                a: "rows" if collected and a == op.axis else d
                for a, d in enumerate(value.type.shape)
            }
        )
    return operands, made

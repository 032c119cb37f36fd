"""Ops whose attributes, or whose rows, are counted: in a step they are made for the rows
that there are.

Row numbers begin at the number of the first row that is asked for. A concatenation that
puts rows before what grows passes on the new rows as they are, and puts its head in front
again where earlier rows are asked for. A length that is said is the length of now.
"""

from dataclasses import replace
from math import inf

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.op import Op
from specc.passes.derive.asked import Asked
from specc.passes.derive.draft import Draft
from specc.passes.derive.plan import Plan
from specc.passes.derive.states import States

SPLICES = (ops.Concat, ops.Slice, ops.Pad)
"""Ops that put rows before what grows, or leave some away there."""


def row_numbers(
    states: States, node: Node, result: Value, asked: Asked
) -> tuple[Value, ...]:
    """Numbers of rows, which do not begin at 0 unless all rows are there."""
    draft, plan = states.draft, states.draft.plan
    (name,) = asked.results[0].values()
    need, track = asked.rows[name], plan.setting.track(result, 0)
    rows = draft.add(node, ops.Range(plan.rows(need, track)))
    if plan.most == inf and need == inf:
        return rows
    return draft.add(node, ops.Arith("add"), *rows, states.first_row(need, track))


def spliced_rows(draft: Draft, node: Node, result: Value, asked: Asked) -> Value:
    """Rows that are put in front of what grows, or left away there: new rows pass as
    they are, and those of before have the head in front of them again.
    """
    plan = draft.plan
    assert isinstance(node.op, SPLICES), "nothing else splices rows"
    axis = node.op.axis
    need = asked.rows[asked.results[0][axis]]
    track = plan.setting.track(result, axis)
    grows = next(n for n, axes in enumerate(asked.operands) if axis in axes)
    put_before = [n for n in range(len(node.args)) if n != grows and need <= 0]
    operands = draft.operands(node, asked, without=put_before)
    x, made = node.args[grows], operands[grows]
    assert x is not None, "what grows is there"
    assert made is not None, "its rows are asked for"
    before = plan.setting.track(x, axis)
    total = plan.rows(asked.rows[asked.operands[grows][axis]], before)
    if need > 0 and not isinstance(node.op, ops.Slice):
        # Where not all rows of `x` are wanted, some may be missing between the head and
        # them; then nothing of the head is among the last.
        (made,) = draft.add(node, node.op, *operands)
        total += track.head - before.head
    return draft.last(made, axis, total, plan.rows(need, track))


def at_rows(plan: Plan, node: Node, results: tuple[Value, ...], asked: Asked) -> Op:
    """An op with the lengths that its attributes say, at as many rows as are asked for."""
    match op := node.op:
        case ops.Expand(axis=axis) if axis in asked.results[0]:
            # The length that is repeated to is that of a time axis.
            track = plan.setting.track(results[0], axis)
            need = asked.rows[asked.results[0][axis]]
            return ops.Expand(axis, plan.rows(need, track))
        case ops.Stride(axis=axis) if axis in asked.results[0]:
            # Every step-th row of those that are there, which are whole steps of them.
            (x,) = (a for a in node.args if a)
            need = asked.rows[asked.operands[0][axis]]
            stop = plan.rows(need, plan.setting.track(x, axis))
            return replace(op, stop=stop)
    return op

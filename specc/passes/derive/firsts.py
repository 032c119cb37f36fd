"""The first row there ever was, in a step: a state of one row, none before the first step.

    x[:, 0:1]    →    first = concat(past.first, new rows of x)[:, 0:1]    next.first = first

It is kept behind all that was made of rows as they come; what is made of it alone is made
again in each step, of one row.
"""

from dataclasses import replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node, Value
from specc.passes.derive.asked import folded
from specc.passes.derive.draft import resized
from specc.passes.derive.states import States


def first_row(
    states: States, node: Node, result: Value, rows: Value
) -> tuple[Value, ...]:
    """What a node that picks the first row gives: of the state, or of the new `rows`
    where nothing has grown yet.
    """
    draft, none = states.draft, Dim.of(0)
    x, axis = folded(node)
    track = draft.plan.setting.track(x, axis)
    name = states.names.of_value(result)
    type = resized(rows.type, {axis: draft.plan.before(1, replace(track, head=none))})
    carried = states.carried(name, type, "", 0)
    like = replace(carried, rows=axis, most=1, role="rows")
    both = draft.b.one(ops.Concat(axis), states.given(like), rows)
    (first,) = draft.add(node, ops.Slice(axis, none, Dim.of(1)), both)
    # It is its own next state.
    states.after[like.next] = first
    if isinstance(node.op, ops.Index):
        return draft.add(node, ops.Squeeze(axis), first)
    return (first,)

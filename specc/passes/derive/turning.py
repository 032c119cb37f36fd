"""A loop over another axis in a step: its body becomes a step itself, whose states go in
and come out turn by turn, stacked along the loop's axis.

On entry: the step of the graph around the loop, in which its operands are built, and one
of the body in which nothing is yet. On leaving: the loop's results in the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specc.ir.derived import State
from specc.ir.graph import Graph, Input, Value
from specc.ir.ops.loop import Loop, without
from specc.ir.types import Type
from specc.passes.derive.asked import Asked
from specc.passes.derive.beginnings import collected
from specc.passes.derive.crossed import Crossed

if TYPE_CHECKING:
    from specc.passes.derive.step import Step


def turned(
    outer: "Step",
    inner: "Step",
    loop: Crossed,
    asked: Asked,
    results: tuple[Value, ...],
) -> tuple[Value, ...]:
    """What stands in the step for the results of a loop."""
    node, op = loop.node, loop.op
    operands = outer.draft.operands(node, asked)
    given = op.parts([a for a in operands if a is not None])
    _enter(inner, loop, given)
    for each, made in loop.body.nodes:
        if each in inner.plan.live:
            inner.node(each, made)
    body = _body(inner, loop, loop.rows(results, outer.plan.needs), len(given.rows))
    met = inner.states.met
    # States of the body are, outside, one tensor with a row a turn.
    past = [outer.states.given(stacked(s, loop.turns, given.rows[0])) for s in met]
    new = replace(
        op,
        body=body,
        scanned=op.scanned + len(met),
        # A row that is done goes on giving rows that later ones may look back at.
        lasting=0 if op.until == -1 else len(met),
    )
    keep = [] if given.keep is None else [given.keep]
    inputs = [*keep, *given.rows, *past, *given.starts, *given.captured]
    made = outer.draft.add(node, new, *inputs)
    outer.states.starts |= collected(loop, inner.states.starts, outer.plan.batch)
    own = len(results)
    afters = zip(met, made[own:], strict=True)
    outer.states.after |= {state.next: value for state, value in afters}
    return made[:own]


def stacked(state: State, axis: int, rows: Value) -> State:
    """The states of one name of all turns of a loop, along its axis, which is `axis` of
    `rows` too.
    """
    turns, shape = rows.type.shape[axis], state.type.shape
    type = Type(state.type.dtype, (*shape[:axis], turns, *shape[axis:]))

    def moved(place: int | None) -> int | None:
        return None if place is None else place + (place >= axis)

    return replace(
        state,
        type=type,
        batch=moved(state.batch),
        rows=moved(state.rows),
        role="carry" if state.rows is None else "rows",
    )


def _enter(inner: "Step", loop: Crossed, given: Loop[Value]) -> None:
    """The inputs of the body: a row of what is read row by row, carries, captures."""
    b, now, kept = inner.draft.b, inner.draft.now, inner.plan.setting.kept
    rows = [without(x.type, loop.turns) for x in given.rows]
    types = [*rows, *(x.type for x in given.starts)]
    fresh = [b.input(f"given {n}", Input(type)) for n, type in enumerate(types)]
    for value, new in zip(loop.inputs, fresh, strict=True):
        now[value] = inner.states.keep(value, new) if value in kept else new
    captured = loop.op.parts(loop.node.args).captured
    for n, (old, outside) in enumerate(zip(captured, given.captured, strict=True)):
        assert old is not None, "a scan has no optional operands"
        now[old] = b.input(f"outer {n}", Input(outside.type))


def _body(
    inner: "Step", loop: Crossed, asked: Sequence[Mapping[int, float]], rows: int
) -> Graph:
    """The finished body, whose inputs stand in the order that a loop wants: rows, states
    among them, then carries and captures.
    """
    draft, outputs = inner.draft, dict[str, Value]()
    for (name, value), axes in zip(loop.body.outputs.items(), asked, strict=True):
        new = draft.now[value]
        for axis, need in axes.items():
            track = inner.plan.setting.track(value, axis)
            new = draft.tail(new, axis, track, inner.plan.needs[value][axis], need)
        outputs[name] = new
    body = draft.b.finish(loop.body.name, {**outputs, **inner.states.nexts()})
    states = [s.name for s in inner.states.met]
    others = [n for n in body.inputs if n not in states]
    # A loop takes first what it reads row by row; states are read so, too.
    order = [*others[:rows], *states, *others[rows:]]
    return replace(
        body,
        inputs={n: body.inputs[n] for n in order},
        input_facts={n: body.input_facts[n] for n in order},
    )

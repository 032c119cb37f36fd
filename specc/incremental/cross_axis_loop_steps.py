"""Build the decode step of a loop over another axis: its states and their initial values.

The encoder graph runs the loop once more and collects the initial values; its body then processes
prefix positions only, or none.

    scan row in memory along src carry y {        scan row in memory along src carry y
      h = gru(y, start=linear(row))         →         collect first {
      y = y + h                                     first = linear(row)  …
    }                                             }

Input: the step of the outer graph, with the operands of the loop, and an empty step of the body.
Output: the results of the loop in the step of the outer graph.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specc.incremental.encoder_graph import InitialValue
from specc.incremental.graph_boundary import find_batch_blocks
from specc.incremental.position_demand_types import CrossAxisLoop, Demand
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Node, NodeResults, Value, collect_needed_nodes
from specc.ir.model import DecodeState
from specc.ir.ops.recurrent import LoopOperands, remove_axis
from specc.ir.types import Type

if TYPE_CHECKING:
    from specc.incremental.step_graph import StepGraphBuilder


def stack_initial_values(
    loop: CrossAxisLoop, starts: Mapping[str, InitialValue], batch: Dim | None
) -> dict[str, InitialValue]:
    """Stack initial values of a loop body along the loop's axis, as values of the outer graph."""
    body = _ClosedBody.of(loop)
    made: dict[str, tuple[InitialValue, Value]] = {}
    for name, first in starts.items():
        value, axis = body.value(first.value), first.axis
        # A batch axis that was merged with others is split, or beams could not be reordered.
        if blocks := find_batch_blocks(value.type, batch):
            # Iteration by iteration, as the state is passed.
            sizes = (blocks.batch, blocks.size)
            value = body.add(ops.Split(blocks.axis, sizes), value)
            axis = None if axis is None else blocks.place(axis)
        made[name] = replace(first, axis=axis), value
    wide = _build_initial_loop(loop, body, {name: value for name, (_, value) in made.items()})
    types = wide.infer_types()
    found: dict[str, InitialValue] = {}
    behind = len(types) - len(made)
    for n, (name, (first, _)) in enumerate(made.items(), behind):
        axis = None if first.axis is None else first.axis + (first.axis >= loop.turns)
        found[name] = replace(first, value=Value(types[n], wide, n), axis=axis)
    return found


def _build_initial_loop(
    loop: CrossAxisLoop, body: "_ClosedBody", wanted: Mapping[str, Value]
) -> Node:
    """Build a loop with only the nodes that these values of its body need."""
    op, plain, given = loop.op, loop.op.body, loop.op.split_operands(loop.node.args)
    needs = _BodyNeeds.of(op, wanted.values())
    starts = _select_outer_values(
        op.split_body_inputs().initial_carries, given.initial_carries, needs.carried
    )
    taken = _select_outer_values(op.split_body_inputs().captured, given.captured, needs.read)
    names = {value: name for name, value in plain.inputs.items()}
    inputs = [names[v] for v in (*op.split_body_inputs().scanned, *starts, *taken)]
    after = {f"next {names[c]}": needs.after[c] for c in starts}
    cut = replace(
        plain,
        inputs={n: plain.inputs[n] for n in inputs},
        input_facts={n: plain.input_facts[n] for n in inputs},
        nodes=tuple(n for n in (*plain.nodes, *body.more) if n[0] in needs.live),
        outputs={**after, **wanted},
    )
    wide = replace(op, body=cut, carry_count=len(starts), end_condition_index=-1)
    keep = () if given.keep is None else (given.keep,)
    return Node(wide, (*keep, *given.scanned, *starts.values(), *taken.values()))


def _select_outer_values(
    inner: Sequence[Value], outer: Sequence[Value | None], some: Container[Value | None]
) -> dict[Value, Value | None]:
    """Return the outer values of some inputs of a body, in order."""
    return {v: x for v, x in zip(inner, outer, strict=True) if v in some}


@dataclass(frozen=True)
class _BodyNeeds:
    """Dependencies of values of a body: carries (`after`: the next value of each), live nodes, and
    all values that they read.
    """

    carried: frozenset[Value]
    live: set[Node]
    read: set[Value | None]
    after: Mapping[Value, Value]

    @classmethod
    def of(cls, op: ops.Scan, wanted: Iterable[Value]) -> "_BodyNeeds":
        """Return the dependencies of these values of the body of `op`, including the updates of
        carries.
        """
        starts, values = op.split_body_inputs().initial_carries, list(wanted)
        after = dict(zip(starts, op.get_next_carries(), strict=True))
        carried: frozenset[Value] = frozenset()
        # The next value of a carry may need other carries: repeated until no more are needed.
        while True:
            ends = [*values, *(after[c] for c in carried)]
            live = collect_needed_nodes(ends)
            read = {a for node in live for a in node.args} | set(ends)
            more = frozenset(s for s in starts if s in read)
            if more <= carried:
                return cls(carried, live, read, after)
            carried |= more


@dataclass
class _ClosedBody:
    """The body of a loop with captures as inputs. `known` maps values of the opened body to its
    values, `more` are nodes to add to it.
    """

    known: dict[Value, Value]
    more: list[tuple[Node, NodeResults]] = field(default_factory=list)

    @classmethod
    def of(cls, loop: CrossAxisLoop) -> "_ClosedBody":
        """Return the closed body of `loop`."""
        op, opened = loop.op, loop.body
        known = {v: v for v in loop.inputs}
        captures = op.map_captures(loop.node.args).items()
        known |= {outer: inner for inner, outer in captures if outer is not None}
        for (_, ours), (_, own) in zip(opened.nodes, op.body.nodes, strict=True):
            known.update(zip(ours, own, strict=True))
        return cls(known)

    def value(self, value: Value) -> Value:
        """Return the value of the closed body for a value of the open body; inner loops that
        collect more results are added.
        """
        if value not in self.known:
            node = value.node
            # A nested loop that collects more than the body did.
            assert node is not None, "every input of a body is known"
            args = [a and self.value(a) for a in node.args]
            results = self.results(Node(node.op, tuple(args)))
            self.known[value] = results[value.index]
        return self.known[value]

    def add(self, op: ops.Split, value: Value) -> Value:
        """Add a node and return its result."""
        return self.results(Node(op, (value,)))[0]

    def results(self, node: Node) -> NodeResults:
        """Add a node and return its results."""
        made = tuple(Value(t, node, n) for n, t in enumerate(node.infer_types()))
        self.more.append((node, made))
        return made


def build_loop_step(
    outer: "StepGraphBuilder",
    inner: "StepGraphBuilder",
    loop: CrossAxisLoop,
    asked: Demand,
    results: NodeResults,
) -> NodeResults:
    """Build the results of a loop in the decode step."""
    node, op = loop.node, loop.op
    operands = outer.draft.operands(node, asked)
    given = op.split_operands([a for a in operands if a is not None])
    _add_body_inputs(inner, loop, given)
    for each, made in loop.body.nodes:
        if each in inner.plan.live:
            inner.node(each, made)
    body = _finish_body(inner, loop, loop.rows(results, outer.plan.needs), len(given.scanned))
    declared = inner.states.declared
    # States of the body are one tensor outside, with one position per iteration.
    past = [outer.states.given(stack_loop_state(s, loop.turns, given.scanned[0])) for s in declared]
    new = replace(
        op,
        body=body,
        scanned_count=op.scanned_count + len(declared),
        # A finished iteration still outputs values that later ones may look back at.
        unfrozen_output_count=0 if op.end_condition_index == -1 else len(declared),
    )
    keep = [] if given.keep is None else [given.keep]
    inputs = [*keep, *given.scanned, *past, *given.initial_carries, *given.captured]
    made = outer.draft.add(node, new, *inputs)
    outer.states.starts |= stack_initial_values(loop, inner.states.starts, outer.plan.batch)
    own = len(results)
    afters = zip(declared, made[own:], strict=True)
    outer.states.after |= {state.next_output: value for state, value in afters}
    return made[:own]


def stack_loop_state(state: DecodeState, axis: int, rows: Value) -> DecodeState:
    """Stack the states of all iterations of a loop along its axis (`axis` of `rows`)."""
    turns, shape = rows.shape[axis], state.type.shape
    type = Type(state.type.dtype, (*shape[:axis], turns, *shape[axis:]))

    def shift_axis(place: int | None) -> int | None:
        return None if place is None else place + (place >= axis)

    return replace(
        state,
        type=type,
        batch_axis=shift_axis(state.batch_axis),
        time_axis=shift_axis(state.time_axis),
        role="carry" if state.time_axis is None else "rows",
    )


def _add_body_inputs(
    inner: "StepGraphBuilder", loop: CrossAxisLoop, given: LoopOperands[Value]
) -> None:
    """Add the inputs of the body: one element of each scanned operand, carries, captures."""
    b, now, kept = inner.draft.b, inner.draft.now, inner.plan.kept
    rows = [remove_axis(x.type, loop.turns) for x in given.scanned]
    types = [*rows, *(x.type for x in given.initial_carries)]
    fresh = [b.add_input(f"given {n}", Input(type)) for n, type in enumerate(types)]
    for value, new in zip(loop.inputs, fresh, strict=True):
        now[value] = inner.states.keep(value, new) if value in kept else new
    captured = loop.op.split_operands(loop.node.args).captured
    for n, (old, outside) in enumerate(zip(captured, given.captured, strict=True)):
        assert old is not None, "a scan has no optional operands"
        now[old] = b.add_input(f"outer {n}", Input(outside.type))


def _finish_body(
    inner: "StepGraphBuilder", loop: CrossAxisLoop, asked: Sequence[Mapping[int, float]], rows: int
) -> Graph:
    """Return the finished body, with inputs in the order of a loop: scanned elements including
    states, carries, captures.
    """
    draft, outputs = inner.draft, dict[str, Value]()
    for (name, value), axes in zip(loop.body.outputs.items(), asked, strict=True):
        new = draft.now[value]
        for axis, need in axes.items():
            new = draft.slice_last(new, value, axis, inner.plan.needs[value][axis], need)
        outputs[name] = new
    body = draft.b.build_graph(loop.body.name, {**outputs, **inner.states.next_states()})
    states = [s.name for s in inner.states.declared]
    others = [n for n in body.inputs if n not in states]
    # A loop's scanned operands come first, and so do such states.
    order = [*others[:rows], *states, *others[rows:]]
    return replace(
        body,
        inputs={n: body.inputs[n] for n in order},
        input_facts={n: body.input_facts[n] for n in order},
    )

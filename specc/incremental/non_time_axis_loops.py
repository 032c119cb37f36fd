"""Build the decode step of a loop over an axis other than the time axis: its states and their
initial values.

The encoder graph also contains the loop and returns the initial values as scan outputs. In the
encoder graph, the body processes only the positions before the first token, or none.

    scan row in memory along src carry y {        scan row in memory along src carry y
      h = gru(y, start=linear(row))         →         collect first {
      y = y + h                                     first = linear(row)  …
    }                                             }

The input is the step of the outer graph, with the operands of the loop, and an empty step of the
body. The output is the values in the outer step that are the results of the loop.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specc.incremental.encoder_graph import InitialValue
from specc.incremental.graph_boundary import find_folded_batch_axis
from specc.incremental.position_demand_types import Demand, NonTimeAxisLoop
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Node, NodeResults, Value, collect_required_nodes
from specc.ir.model import DecodeState
from specc.ir.ops.recurrent import LoopOperands, remove_axis
from specc.ir.types import Type

if TYPE_CHECKING:
    from specc.incremental.step_graph import StepGraphBuilder


def stack_initial_values(
    loop: NonTimeAxisLoop, initial_values: Mapping[str, InitialValue], batch: Dim | None
) -> dict[str, InitialValue]:
    """Stack initial values in a loop body along the scan axis, as values of the outer graph."""
    body = _ClosedBody.from_loop(loop)
    made: dict[str, tuple[InitialValue, Value]] = {}
    for name, first in initial_values.items():
        value, axis = body.get_closed_value(first.value), first.axis
        # A folded batch axis is split, because beam search reorders batch elements.
        if blocks := find_folded_batch_axis(value.type, batch):
            # Like the state, the initial values have one position per iteration.
            sizes = (blocks.batch, blocks.elements_per_sequence)
            value = body.add_node(ops.Split(blocks.axis, sizes), value)
            axis = None if axis is None else blocks.shift_axis(axis)
        made[name] = replace(first, axis=axis), value
    wide = _build_initial_loop(loop, body, {name: value for name, (_, value) in made.items()})
    types = wide.infer_types()
    found: dict[str, InitialValue] = {}
    behind = len(types) - len(made)
    for n, (name, (first, _)) in enumerate(made.items(), behind):
        axis = None if first.axis is None else first.axis + (first.axis >= loop.scan_axis)
        found[name] = replace(first, value=Value(types[n], wide, n), axis=axis)
    return found


def _build_initial_loop(
    loop: NonTimeAxisLoop, body: "_ClosedBody", values: Mapping[str, Value]
) -> Node:
    """Build a loop whose body contains only the nodes that `values` need."""
    op, plain, given = loop.op, loop.op.body, loop.op.split_operands(loop.node.args)
    needs = _BodyDependencies.from_values(op, values.values())
    starts = _select_outer_values(
        op.split_body_inputs().initial_carries, given.initial_carries, needs.carries
    )
    taken = _select_outer_values(op.split_body_inputs().captured, given.captured, needs.read_values)
    names = {value: name for name, value in plain.inputs.items()}
    inputs = [names[v] for v in (*op.split_body_inputs().scanned, *starts, *taken)]
    after = {f"next {names[c]}": needs.next_values[c] for c in starts}
    cut = replace(
        plain,
        inputs={n: plain.inputs[n] for n in inputs},
        input_facts={n: plain.input_facts[n] for n in inputs},
        nodes=tuple(n for n in (*plain.nodes, *body.added_nodes) if n[0] in needs.live_nodes),
        outputs={**after, **values},
    )
    wide = replace(op, body=cut, carry_count=len(starts), end_condition_index=-1)
    keep = () if given.keep is None else (given.keep,)
    return Node(wide, (*keep, *given.scanned, *starts.values(), *taken.values()))


def _select_outer_values(
    inner: Sequence[Value], outer: Sequence[Value | None], selected: Container[Value | None]
) -> dict[Value, Value | None]:
    """Return the outer values that correspond to the `selected` inputs of a body, in order."""
    return {v: x for v, x in zip(inner, outer, strict=True) if v in selected}


@dataclass(frozen=True)
class _BodyDependencies:
    """The dependences of values of a loop body: loop-carried values, live nodes, and all values
    that these nodes read. `next_values` maps each loop-carried value to its next value.
    """

    carries: frozenset[Value]
    live_nodes: set[Node]
    read_values: set[Value | None]
    next_values: Mapping[Value, Value]

    @classmethod
    def from_values(cls, op: ops.Scan, requested_values: Iterable[Value]) -> "_BodyDependencies":
        """Collect the dependences of the given values of the body of `op`, including the next
        loop-carried values.
        """
        starts, values = op.split_body_inputs().initial_carries, list(requested_values)
        after = dict(zip(starts, op.get_next_carries(), strict=True))
        carried: frozenset[Value] = frozenset()
        # The next loop-carried value may depend on other loop-carried values, so iterate to a
        # fixpoint.
        while True:
            ends = [*values, *(after[c] for c in carried)]
            live = collect_required_nodes(ends)
            read = {a for node in live for a in node.args} | set(ends)
            more = frozenset(s for s in starts if s in read)
            if more <= carried:
                return cls(carried, live, read, after)
            carried |= more


@dataclass
class _ClosedBody:
    """The body of a loop with captures as inputs. `closed_values` maps values of the original
    (open) body to values of the closed body; `added_nodes` are nodes to add to the closed body.
    """

    closed_values: dict[Value, Value]
    added_nodes: list[tuple[Node, NodeResults]] = field(default_factory=list)

    @classmethod
    def from_loop(cls, loop: NonTimeAxisLoop) -> "_ClosedBody":
        """Map the values of the (open) body of `loop` to those of its closed body."""
        op, opened = loop.op, loop.body
        known = {v: v for v in loop.body_inputs}
        captures = op.map_captures(loop.node.args).items()
        known |= {outer: inner for inner, outer in captures if outer is not None}
        for (_, ours), (_, own) in zip(opened.nodes, op.body.nodes, strict=True):
            known.update(zip(ours, own, strict=True))
        return cls(known)

    def get_closed_value(self, value: Value) -> Value:
        """Return the value of the closed body that corresponds to a value of the open body. Add
        nested loops with additional scan outputs.
        """
        if value not in self.closed_values:
            node = value.node
            # This node is a nested loop with additional scan outputs.
            assert node is not None, "every input of a body is known"
            args = [a and self.get_closed_value(a) for a in node.args]
            results = self.add_node_results(Node(node.op, tuple(args)))
            self.closed_values[value] = results[value.index]
        return self.closed_values[value]

    def add_node(self, op: ops.Split, value: Value) -> Value:
        """Add a node and return its result."""
        return self.add_node_results(Node(op, (value,)))[0]

    def add_node_results(self, node: Node) -> NodeResults:
        """Add a node and return its results."""
        made = tuple(Value(t, node, n) for n, t in enumerate(node.infer_types()))
        self.added_nodes.append((node, made))
        return made


def build_loop_step(
    outer: "StepGraphBuilder",
    inner: "StepGraphBuilder",
    loop: NonTimeAxisLoop,
    demand: Demand,
    results: NodeResults,
) -> NodeResults:
    """Build the results of a loop in the decode step."""
    node, op = loop.node, loop.op
    operands = outer.draft.slice_operands(node, demand)
    given = op.split_operands([a for a in operands if a is not None])
    _add_body_inputs(inner, loop, given)
    for each, made in loop.body.nodes:
        if each in inner.plan.live_nodes:
            inner.build_node(each, made)
    body = _finish_body(
        inner, loop, loop.get_output_positions(results, outer.plan.needs), len(given.scanned)
    )
    declared = inner.states.states
    # The states of a body value in all iterations are stacked along a new axis of a tensor in the
    # outer graph.
    past = [
        outer.states.add_state_input(stack_loop_state(s, loop.scan_axis, given.scanned[0]))
        for s in declared
    ]
    new = replace(
        op,
        body=body,
        scanned_count=op.scanned_count + len(declared),
        # A finished iteration still computes values that later positions may read.
        unfrozen_output_count=0 if op.end_condition_index == -1 else len(declared),
    )
    keep = [] if given.keep is None else [given.keep]
    inputs = [*keep, *given.scanned, *past, *given.initial_carries, *given.captured]
    made = outer.draft.add_node(node, new, *inputs)
    outer.states.initial_values |= stack_initial_values(
        loop, inner.states.initial_values, outer.plan.batch_size
    )
    result_count = len(results)
    afters = zip(declared, made[result_count:], strict=True)
    outer.states.next_values |= {state.next_output: value for state, value in afters}
    return made[:result_count]


def stack_loop_state(state: DecodeState, axis: int, scanned_operand: Value) -> DecodeState:
    """Stack the states of all iterations of a loop along the scan axis (`axis` of
    `scanned_operand`).
    """
    iterations, shape = scanned_operand.shape[axis], state.type.shape
    type = Type(state.type.dtype, (*shape[:axis], iterations, *shape[axis:]))

    def shift_axis(source_axis: int | None) -> int | None:
        return None if source_axis is None else source_axis + (source_axis >= axis)

    return replace(
        state,
        type=type,
        batch_axis=shift_axis(state.batch_axis),
        time_axis=shift_axis(state.time_axis),
        role="carry" if state.time_axis is None else "rows",
    )


def _add_body_inputs(
    builder: "StepGraphBuilder", loop: NonTimeAxisLoop, operands: LoopOperands[Value]
) -> None:
    """Add the inputs of the body: one slice of each scanned operand, loop-carried values,
    captures.
    """
    b, now, kept = builder.draft.builder, builder.draft.new_values, builder.plan.cached_values
    element_types = [remove_axis(x.type, loop.scan_axis) for x in operands.scanned]
    types = [*element_types, *(x.type for x in operands.initial_carries)]
    new_inputs = [b.add_input(f"given {n}", Input(type)) for n, type in enumerate(types)]
    for value, new in zip(loop.body_inputs, new_inputs, strict=True):
        now[value] = builder.states.append_to_cache(value, new) if value in kept else new
    captured = loop.op.split_operands(loop.node.args).captured
    for n, (old, outside) in enumerate(zip(captured, operands.captured, strict=True)):
        assert old is not None, "a scan has no optional operands"
        now[old] = b.add_input(f"outer {n}", Input(outside.type))


def _finish_body(
    builder: "StepGraphBuilder",
    loop: NonTimeAxisLoop,
    demands: Sequence[Mapping[int, float]],
    scanned_count: int,
) -> Graph:
    """Return the finished body, with inputs in the order of `Scan`: scanned slices (including
    states), loop-carried values, captures.
    """
    draft, outputs = builder.draft, dict[str, Value]()
    for (name, value), axes in zip(loop.body.outputs.items(), demands, strict=True):
        new = draft.new_values[value]
        for axis, need in axes.items():
            new = draft.slice_last_positions(
                new, value, axis, builder.plan.needs[value][axis], need
            )
        outputs[name] = new
    body = draft.builder.build_graph(loop.body.name, {**outputs, **builder.states.next_states()})
    states = [s.name for s in builder.states.states]
    others = [n for n in body.inputs if n not in states]
    # The scanned inputs of a loop body, which include these states, come first.
    order = [*others[:scanned_count], *states, *others[scanned_count:]]
    return replace(
        body,
        inputs={n: body.inputs[n] for n in order},
        input_facts={n: body.input_facts[n] for n in order},
    )

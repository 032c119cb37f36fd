"""Build the decode step of a loop over an axis other than the time axis, together with its states
and their initial values.

The encoder graph also contains the loop and returns the initial values as scan outputs. In the
encoder graph, the loop body processes only the positions before the first token, if any.

    scan row in memory along src carry y {        scan row in memory along src carry y
      h = gru(y, start=linear(row))         →         collect first {
      y = y + h                                     first = linear(row)  …
    }                                             }

The inputs are the outer graph's step, which contains the loop's operands, and an empty step for the
body. The outputs are the loop's results in the outer step.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specc.incremental.demand_propagation import PerStepLoop
from specc.incremental.demanded_positions import DemandedPositions
from specc.incremental.encoder_graph import InitialStateValue
from specc.incremental.graph_boundary import find_folded_batch_axis
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Node, NodeResults, Value, collect_required_nodes
from specc.ir.model_definition import DecodeState
from specc.ir.op import Op
from specc.ir.ops.loop import LoopOperands, remove_axis
from specc.ir.types import Type

if TYPE_CHECKING:
    from specc.incremental.step_graph import StepGraphBuilder


def stack_initial_values(
    loop: PerStepLoop, initial_values: Mapping[str, InitialStateValue], batch: Dim | None
) -> dict[str, InitialStateValue]:
    """Stack the initial states of a loop body along the scan axis. Return the stacked states in the
    outer graph, where they are scan outputs of a loop that computes only initial states.
    """
    body = _ClosedBody.from_loop(loop)
    closed_values: dict[str, tuple[InitialStateValue, Value]] = {}
    for name, initial in initial_values.items():
        value, axis = body.get_closed_value(initial.value), initial.axis
        # A folded batch axis is split, because beam search reorders batch elements.
        if folded := find_folded_batch_axis(value.type, batch):
            # Like the state, the stacked initial values have one position per iteration.
            sizes = (folded.batch, folded.elements_per_sequence)
            (value,) = body.add_node(ops.Split(folded.axis, sizes), value)
            axis = None if axis is None else folded.shift_axis(axis)
        closed_values[name] = replace(initial, axis=axis), value
    initial_loop = _build_initial_loop(
        loop, body, {name: value for name, (_, value) in closed_values.items()}
    )
    types = initial_loop.infer_types()
    stacked: dict[str, InitialStateValue] = {}
    first_result = len(types) - len(closed_values)
    for n, (name, (initial, _)) in enumerate(closed_values.items(), first_result):
        axis = None if initial.axis is None else initial.axis + (initial.axis >= loop.op.axis)
        stacked[name] = replace(initial, value=Value(types[n], initial_loop, n), axis=axis)
    return stacked


def _build_initial_loop(
    loop: PerStepLoop, body: "_ClosedBody", values: Mapping[str, Value]
) -> Node:
    """Build a loop with the scan outputs `values`, and only the body nodes on which they depend."""
    op, op_body, operands = loop.op, loop.op.body, loop.op.split_operands(loop.node.args)
    dependencies = _BodyDependencies.from_values(op, values.values())
    carries = _select_outer_values(
        op.split_body_inputs().initial_carries, operands.initial_carries, dependencies.carries
    )
    captures = _select_outer_values(
        op.split_body_inputs().captured, operands.captured, dependencies.read_values
    )
    names = {value: name for name, value in op_body.inputs.items()}
    inputs = [names[v] for v in (*op.split_body_inputs().scanned, *carries, *captures)]
    next_carries = {f"next {names[c]}": dependencies.next_values[c] for c in carries}
    initial_body = replace(
        op_body,
        inputs={n: op_body.inputs[n] for n in inputs},
        input_facts={n: op_body.input_facts[n] for n in inputs},
        nodes=tuple(
            n for n in (*op_body.nodes, *body.added_nodes) if n[0] in dependencies.live_nodes
        ),
        outputs={**next_carries, **values},
    )
    initial_op = replace(op, body=initial_body, carry_count=len(carries), end_condition_index=-1)
    keep = () if operands.keep is None else (operands.keep,)
    return Node(initial_op, (*keep, *operands.scanned, *carries.values(), *captures.values()))


def _select_outer_values(
    inner: Sequence[Value], outer: Sequence[Value | None], selected: Container[Value | None]
) -> dict[Value, Value | None]:
    """Return the body inputs (`inner`) that are in `selected`, each with its operand (`outer`)."""
    return {v: x for v, x in zip(inner, outer, strict=True) if v in selected}


@dataclass(frozen=True)
class _BodyDependencies:
    """The live part of a loop body: its loop-carried values, its live nodes, and all operands of
    the live nodes. `next_values` maps each loop-carried value to its next value.
    """

    carries: frozenset[Value]
    live_nodes: set[Node]
    read_values: set[Value | None]
    next_values: Mapping[Value, Value]

    @classmethod
    def from_values(cls, op: ops.Scan, requested_values: Iterable[Value]) -> "_BodyDependencies":
        """Collect the nodes and loop-carried values on which `requested_values` in the body of `op`
        depend, over any number of iterations.
        """
        starts, values = op.split_body_inputs().initial_carries, list(requested_values)
        next_values = dict(zip(starts, op.get_next_carries(), strict=True))
        carries: frozenset[Value] = frozenset()
        # The next loop-carried value may depend on other loop-carried values, so iterate to a
        # fixpoint.
        while True:
            roots = [*values, *(next_values[c] for c in carries)]
            live_nodes = collect_required_nodes(roots)
            read_values = {a for node in live_nodes for a in node.args} | set(roots)
            read_carries = frozenset(s for s in starts if s in read_values)
            if read_carries <= carries:
                return cls(carries, live_nodes, read_values, next_values)
            carries |= read_carries


@dataclass
class _ClosedBody:
    """The body of a loop whose captures are replaced by inputs. `closed_values` maps values of the
    original body, which is open, to values of the closed body. `added_nodes` are nodes to add to
    the closed body.
    """

    closed_values: dict[Value, Value]
    added_nodes: list[tuple[Node, NodeResults]] = field(default_factory=list)

    @classmethod
    def from_loop(cls, loop: PerStepLoop) -> "_ClosedBody":
        """Map the values of the open body of `loop` to the values of the closed body."""
        op, open_body = loop.op, loop.body
        closed_values = {v: v for v in loop.body_inputs}
        captures = op.map_captured_inputs(loop.node.args).items()
        closed_values |= {outer: inner for inner, outer in captures if outer is not None}
        for (_, open_results), (_, closed_results) in zip(
            open_body.nodes, op.body.nodes, strict=True
        ):
            closed_values.update(zip(open_results, closed_results, strict=True))
        return cls(closed_values)

    def get_closed_value(self, value: Value) -> Value:
        """Return the value of the closed body that corresponds to a value of the open body. Add
        nested loops with additional scan outputs to the closed body.
        """
        if value not in self.closed_values:
            node = value.node
            # `value` is a result of a nested loop with additional scan outputs.
            assert node is not None, "every input of a body is in `closed_values`"
            results = self.add_node(node.op, *(a and self.get_closed_value(a) for a in node.args))
            self.closed_values[value] = results[value.index]
        return self.closed_values[value]

    def add_node(self, op: Op, *args: Value | None) -> NodeResults:
        """Add a node and return its results."""
        node = Node(op, args)
        results = tuple(Value(t, node, n) for n, t in enumerate(node.infer_types()))
        self.added_nodes.append((node, results))
        return results


def build_loop_decode_step(
    outer: "StepGraphBuilder",
    inner: "StepGraphBuilder",
    loop: PerStepLoop,
    demand: DemandedPositions,
    results: NodeResults,
) -> NodeResults:
    """Build the decode step of a loop. Return the loop's results in the outer step.

    `outer` builds the step of the outer graph, and `inner` builds the step of the body. `demand` is
    the number of needed positions of the loop's operands.
    """
    node, op = loop.node, loop.op
    operands = outer.rewriter.slice_operands(node, demand)
    args = op.split_operands([a for a in operands if a is not None])
    _add_body_inputs(inner, loop, args)
    for body_node, body_results in loop.body.nodes:
        if body_node in inner.plan.live_nodes:
            inner.build_node(body_node, body_results)
    body = _finish_body(
        inner, loop, loop.count_output_positions(results, outer.plan.needs), len(args.scanned)
    )
    body_states = inner.states.states
    # A body value has one state per iteration. The outer graph stacks these states along a new axis
    # of one tensor.
    stacked_states = [
        outer.states.add_state_input(stack_loop_state(s, loop.op.axis, args.scanned[0]))
        for s in body_states
    ]
    new = replace(
        op,
        body=body,
        scanned_count=op.scanned_count + len(body_states),
        # Iterations after the end condition still compute values that later positions may read.
        unfrozen_output_count=0 if op.end_condition_index == -1 else len(body_states),
    )
    keep = [] if args.keep is None else [args.keep]
    inputs = [*keep, *args.scanned, *stacked_states, *args.initial_carries, *args.captured]
    body_results = outer.rewriter.add_node(node, new, *inputs)
    outer.states.initial_values |= stack_initial_values(
        loop, inner.states.initial_values, outer.plan.batch_size
    )
    result_count = len(results)
    next_states = zip(body_states, body_results[result_count:], strict=True)
    outer.states.next_values |= {state.next_output: value for state, value in next_states}
    return body_results[:result_count]


def stack_loop_state(state: DecodeState, axis: int, scanned_operand: Value) -> DecodeState:
    """Stack the states of all iterations along the scan axis, which is `axis` of the operand."""
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
    builder: "StepGraphBuilder", loop: PerStepLoop, operands: LoopOperands[Value]
) -> None:
    """Add the inputs of the body: slices of scanned operands, loop-carried values, captures."""
    b, new_values = builder.rewriter.builder, builder.rewriter.new_values
    element_types = [remove_axis(x.type, loop.op.axis) for x in operands.scanned]
    types = [*element_types, *(x.type for x in operands.initial_carries)]
    new_inputs = [b.add_input(f"given {n}", Input(type)) for n, type in enumerate(types)]
    for value, body_input in zip(loop.body_inputs, new_inputs, strict=True):
        new_values[value] = (
            builder.states.append_to_cache(value, body_input)
            if value in builder.plan.cached_values
            else body_input
        )
    captured = loop.op.split_operands(loop.node.operands).captured
    for n, (capture, outer_value) in enumerate(zip(captured, operands.captured, strict=True)):
        new_values[capture] = b.add_input(f"outer {n}", Input(outer_value.type))


def _finish_body(
    builder: "StepGraphBuilder",
    loop: PerStepLoop,
    output_positions: Sequence[Mapping[int, float]],
    scanned_count: int,
) -> Graph:
    """Build the body graph, with inputs in the order of `Scan`: scanned elements (including
    states), loop-carried values, captures. `output_positions` are the requested positions of each
    body output, keyed by axis.
    """
    rewriter, outputs = builder.rewriter, dict[str, Value]()
    for (name, value), axes in zip(loop.body.outputs.items(), output_positions, strict=True):
        output = rewriter.new_values[value]
        for axis, position_count in axes.items():
            output = rewriter.slice_to_demand(
                output, value, axis, builder.plan.needs[value][axis], position_count
            )
        outputs[name] = output
    body = rewriter.builder.build_graph(
        loop.body.name, {**outputs, **builder.states.build_next_states()}
    )
    states = [s.name for s in builder.states.states]
    other_inputs = [n for n in body.inputs if n not in states]
    # The scanned inputs of a loop body come first and include the states.
    order = [*other_inputs[:scanned_count], *states, *other_inputs[scanned_count:]]
    return replace(
        body,
        inputs={n: body.inputs[n] for n in order},
        input_facts={n: body.input_facts[n] for n in order},
    )

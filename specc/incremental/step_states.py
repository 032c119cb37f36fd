"""States of a decode step (cached positions, loop-carried values, cumulative sums), and their
names.

Each state is an input `past.…` of the step, and an output `next.…`, which becomes the input of the
next step. The initial value of a state is zeros, a tensor with an empty time axis, or an output of
the encoder graph.

    x[:, 0:1]    →    first = concat(past.first, new x)[:, 0:1]    next.first = first

The first position of a value is cached as one position. Values that depend only on the first
position are recomputed in each step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from specc.analysis.time_axis_prefix_and_chunks import TimeAxisLayout
from specc.analysis.value_ranges import is_zero_everywhere
from specc.incremental.demanded_positions import DemandedPositions, get_stateful_operand
from specc.incremental.encoder_graph import InitialStateValue
from specc.incremental.graph_boundary import find_folded_batch_axis, split_folded_batch_axis
from specc.incremental.step_plan import StepGraphRewriter, StepPlan, replace_axis_sizes
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Node, NodeOrigin, NodeResults, Value
from specc.ir.model_definition import DecodeState, StateRole
from specc.ir.ops.loop import remove_axis
from specc.ir.types import Type


@dataclass(kw_only=True)
class StateNameGenerator:
    """A generator of unique state names. `body_input_names` maps inputs of loop bodies to names."""

    graph: Graph
    node_origins: Mapping[Node, NodeOrigin]
    body_input_names: Mapping[Value, str]
    value_users: Mapping[Value, tuple[str, StateRole, int]]
    loop_indices: Mapping[Node, int]
    taken_names: set[str]
    cache_count: int = 0

    @classmethod
    def from_graph(
        cls, graph: Graph, inlined_loop_bodies: Mapping[Node, Graph]
    ) -> "StateNameGenerator":
        """Name states, and number attention layers and loops in graph order."""
        users: dict[Value, tuple[str, StateRole, int]] = {}
        loops: dict[Node, int] = {}
        attentions = 0
        graphs = (graph, *inlined_loop_bodies.values())
        node_origins = {n: origin for g in graphs for n, origin in g.node_origins.items()}
        for node in (n for g in graphs for n, _ in g.nodes):
            if isinstance(node.op, ops.Attend):
                scope = _get_last_scope(node_origins, node) or f"attention.{attentions}"
                users.setdefault(node.op.key(node), (f"{scope}.key", "key", attentions))
                users.setdefault(node.op.value(node), (f"{scope}.value", "value", attentions))
                attentions += 1
            elif isinstance(node.op, ops.Scan | ops.RecurrentLayer):
                loops[node] = len(loops)
        return cls(
            graph=graph,
            node_origins=node_origins,
            body_input_names=_name_body_inputs(inlined_loop_bodies, loops),
            value_users=users,
            loop_indices=loops,
            taken_names={*graph.inputs, *graph.outputs},
        )

    def make_cache_name(self, value: Value) -> tuple[StateRole, int, str]:
        """Return the role, the layer index and the name of the state that caches a value."""
        if value in self.value_users:
            name, role, layer = self.value_users[value]
            return role, layer, self._make_unique(name)
        self.cache_count += 1
        return "rows", self.cache_count - 1, self.make_value_name(value)

    def make_value_name(self, value: Value) -> str:
        """Return a name for a value: the name of the input, of the consumer or of the producer."""
        input_name = next((n for n, v in self.graph.inputs.items() if v is value), "")
        if input_name:
            return input_name
        if value in self.value_users:
            return self._make_unique(self.value_users[value][0])
        if value in self.body_input_names:
            return self._make_unique(self.body_input_names[value])
        node = value.node
        assert node is not None
        scope = _get_last_scope(self.node_origins, node)
        return self._make_unique(f"{scope}.{node.op.name}" if scope else node.op.name)

    def make_carry_name(self, node: Node, result: Value) -> str:
        """Return a unique name for a loop-carried value."""
        scope = (
            _get_last_scope(self.node_origins, node)
            or f"{node.op.name}.{self.get_loop_index(node)}"
        )
        word = "state"
        if isinstance(node.op, ops.Lstm) and result.index == node.op.cell_result:
            word = "cell"
        return self._make_unique(f"{scope}.{word}")

    def get_loop_index(self, node: Node) -> int:
        """Return the index of a loop in graph order."""
        return self.loop_indices.get(node, 0)

    def _make_unique(self, name: str) -> str:
        unique_name, number = name, 1
        while unique_name in self.taken_names:
            number += 1
            unique_name = f"{name}_{number}"
        self.taken_names.add(unique_name)
        return unique_name


def _name_body_inputs(
    inlined_loop_bodies: Mapping[Node, Graph], loop_indices: Mapping[Node, int]
) -> dict[Value, str]:
    """Return the names of all loop body inputs."""
    return {
        value: f"scan.{loop_indices[node]}.{name.replace(' ', '_')}"
        for node, body in inlined_loop_bodies.items()
        for name, value in body.inputs.items()
    }


def _get_last_scope(node_origins: Mapping[Node, NodeOrigin], node: Node) -> str:
    origin = node_origins.get(node)
    return origin.scopes[0] if origin and origin.scopes else ""


@dataclass(kw_only=True)
class StepStateBuilder:
    """The states of a step, in the order of the graph's nodes.

    `initial_values` maps outputs of the encoder graph to initial values, and `next_values` maps
    outputs of the step to next states.
    """

    rewriter: StepGraphRewriter
    names: StateNameGenerator
    states: list[DecodeState] = field(default_factory=list)
    initial_values: dict[str, InitialStateValue] = field(default_factory=dict)
    next_values: dict[str, Value] = field(default_factory=dict)
    past_chunk_count: Value | None = None

    def build_first_position_id(self, demand: float, layout: TimeAxisLayout) -> Value:
        """Build the position id of the first position of a value, which is an int64 scalar.

        If all earlier positions are cached, the id is computed from the size of an input.
        Otherwise, the id is computed from a counter, which is a state.
        """
        plan, b = self.rewriter.plan, self.rewriter.builder
        # A value that contains only the last position starts at the last new position. Any other
        # value starts at its earlier positions.
        rate = layout.rate
        last_offset = plan.new_chunk_count * rate - 1
        first_offset = last_offset if demand < 0 else -plan.count_past_positions(demand, layout)
        offset = layout.prefix_length + first_offset
        if plan.max_cached_chunks == inf:
            return b.add_op(ops.Size(plan.past_chunk_count * rate + offset))
        count = self._get_past_chunk_count()
        if rate != 1:
            count = b.add_op(ops.Arith("mul"), count, b.add_op(ops.Constant(rate, "i64")))
        return increment_count(b, count, offset)

    def _get_past_chunk_count(self) -> Value:
        """Return the number of earlier chunks, which is a decode state."""
        if self.past_chunk_count is None:
            self.past_chunk_count = self.add_state_input(
                self.make_fixed_size_state("rows", Type("i64", ()), "", 0)
            )
        return self.past_chunk_count

    def update_chunk_count(self) -> None:
        """Build the next number of earlier chunks, if this number is a state."""
        if self.past_chunk_count is not None:
            new = self.rewriter.plan.new_chunk_count
            self.next_values["next.rows"] = increment_count(
                self.rewriter.builder, self.past_chunk_count, new
            )

    def append_to_cache(self, value: Value, new_positions: Value) -> Value:
        """Concatenate the cached and the new positions of `value`, and return the result. The next
        state contains the positions that later steps will read.
        """
        plan = self.rewriter.plan
        (axis,) = plan.find_time_axes(value)
        max_positions = max(plan.needs.get(value, {}).get(axis, 0.0), 0.0)
        plan.needs.setdefault(value, {})[axis] = max_positions
        if max_positions == 0:
            return new_positions
        role, layer, name = self.names.make_cache_name(value)
        layout = plan.get_axis_layout(value, axis)
        initial = "" if layout.prefix_length == 0 else f"first.{name}"
        if initial:
            self.initial_values[initial] = InitialStateValue(value, axis, max_positions)
        type = replace_axis_sizes(
            value.type, {axis: plan.count_past_positions(max_positions, layout)}
        )
        state = replace(
            self.make_fixed_size_state(name, type, initial, layer),
            time_axis=axis,
            max_positions=max_positions,
            role=role,
        )
        past = self.add_state_input(state)
        positions = self.rewriter.builder.add_op(ops.Concat(axis), past, new_positions)
        # The state contains all positions, or only the last positions within the maximum look-back.
        total = plan.count_positions(max_positions, layout)
        next_length = plan.count_past_positions_after_step(max_positions, layout)
        last_positions = self.rewriter.select_last_positions(positions, axis, total, next_length)
        self.next_values[state.next_output] = last_positions
        return positions

    def make_loop_state(
        self, node: Node, result: Value, initial_value: Value | None
    ) -> tuple[DecodeState, Value]:
        """Return the decode state of a loop, and the step input that contains its value. The
        initial state is `initial_value`, zeros, or the state after all positions before the first
        token.
        """
        name = self.names.make_carry_name(node, result)
        prefix_length = self.rewriter.plan.get_prefix_length(*get_stateful_operand(node))
        initial = initial_value if prefix_length == 0 else result
        initial_output = ""
        if initial is not None and not is_zero_everywhere(initial):
            initial_output = f"first.{name}"
            self.initial_values[initial_output] = InitialStateValue(initial)
        state = self.make_fixed_size_state(
            name, result.type, initial_output, self.names.get_loop_index(node)
        )
        return state, self.add_state_input(state)

    def build_running_sum(self, node: Node, axis: int, result: Value, sums: Value) -> NodeResults:
        """Add the state, i.e. the sum of all earlier positions, to the cumulative sums `sums` of
        the new positions, and return the result. The last position of the result is the next state.
        """
        name, initial = self.names.make_value_name(result), ""
        if self.rewriter.plan.get_prefix_length(result, axis) != 0:
            initial = f"first.{name}"
            self.initial_values[initial] = InitialStateValue(node.get_operand(), axis, is_sum=True)
        state = self.make_fixed_size_state(name, remove_axis(result.type, axis), initial, 0)
        past_sum = self.rewriter.add_node(node, ops.Insert(axis), self.add_state_input(state))
        total = self.rewriter.add_node(node, ops.Arith("add"), sums, *past_sum)
        (newest,) = self.rewriter.add_node(node, ops.Last(axis), *total)
        self.next_values[state.next_output] = newest
        return total

    def make_fixed_size_state(self, name: str, type: Type, initial: str, layer: int) -> DecodeState:
        """Return a state without a time axis."""
        batch = self.rewriter.plan.batch_size
        return DecodeState(
            name=f"past.{name}",
            next_output=f"next.{name}",
            type=type,
            batch_axis=next((n for n, d in enumerate(type.shape) if d == batch), None),
            time_axis=None,
            max_positions=0,
            initial_output=initial,
            role="carry",
            layer=layer,
        )

    def add_state_input(self, state: DecodeState) -> Value:
        """Add the input for a new state, and return its value in the layout that the step uses."""
        folded = find_folded_batch_axis(state.type, self.rewriter.plan.batch_size)
        if folded is not None:
            time_axis = None if state.time_axis is None else folded.shift_axis(state.time_axis)
            type = folded.unfold_type(state.type)
            state = replace(state, type=type, batch_axis=folded.axis, time_axis=time_axis)
        self.states.append(state)
        state_input = self.rewriter.builder.add_input(state.name, Input(state.type))
        return folded.fold_value(self.rewriter.builder, state_input) if folded else state_input

    def build_next_states(self) -> Mapping[str, Value]:
        """Return the updated value of each state, keyed by output name."""
        b, batch = self.rewriter.builder, self.rewriter.plan.batch_size
        return {
            name: split_folded_batch_axis(b, value, batch)
            for name, value in self.next_values.items()
        }


def increment_count(builder: GraphBuilder, count: Value, increment: Dim) -> Value:
    """Build the sum `count + increment`."""
    return builder.add_op(ops.Arith("add"), count, builder.add_op(ops.Size(increment)))


def build_first_position_slice(
    states: StepStateBuilder, node: Node, result: Value, new_positions: Value
) -> NodeResults:
    """Build a slice or index op that selects the first position. The first position is read from
    the state or, in the first step, from `new_positions`. The first position is the next state.
    """
    rewriter, zero = states.rewriter, Dim.from_value(0)
    x, axis = get_stateful_operand(node)
    layout = rewriter.plan.get_axis_layout(x, axis)
    name = states.names.make_value_name(result)
    type = replace_axis_sizes(
        new_positions.type,
        {axis: rewriter.plan.count_past_positions(1, replace(layout, prefix_length=zero))},
    )
    fixed_state = states.make_fixed_size_state(name, type, "", 0)
    state = replace(fixed_state, time_axis=axis, max_positions=1, role="rows")
    positions = rewriter.builder.add_op(
        ops.Concat(axis), states.add_state_input(state), new_positions
    )
    (first,) = rewriter.add_node(node, ops.Slice(axis, zero, Dim.from_value(1)), positions)
    # The next state is the first position itself.
    states.next_values[state.next_output] = first
    if isinstance(node.op, ops.Index):
        return rewriter.add_node(node, ops.Squeeze(axis), first)
    return (first,)


def add_position_ids(
    states: StepStateBuilder, node: Node, result: Value, demand: DemandedPositions
) -> NodeResults:
    """Build the position ids of a step, which start at 0 if the step has all earlier positions."""
    rewriter, plan = states.rewriter, states.rewriter.plan
    (name,) = demand.result_axes[0].values()
    need, layout = demand.positions[name], plan.get_axis_layout(result, 0)
    ids = rewriter.add_node(node, ops.Range(plan.count_positions(need, layout)))
    if plan.max_cached_chunks == inf and need == inf:
        return ids
    first_id = states.build_first_position_id(need, layout)
    return rewriter.add_node(node, ops.Arith("add"), *ids, first_id)


def map_state_operands(plan: StepPlan, node: Node, results: NodeResults) -> Mapping[int, int]:
    """Map each initial-state operand of a stateful op to the result that holds the next state."""
    if not plan.is_computed_from_state(node, results):
        return {}
    if isinstance(node.op, ops.Scan):
        first = node.op.first_body_operand_index + node.op.scanned_count
        return {first + n: n for n in range(node.op.carry_count)}
    if isinstance(node.op, ops.RecurrentLayer):
        # The first result contains all positions, and the other results are the final states.
        return {state.index: n for n, state in enumerate(node.op.initial_states, start=1)}
    return {}

"""States of a decode step: cached positions, carries, running sums; and their names.

Each state is an input of the step, `past.…`, and an output, `next.…`, which is the input of the
next step. Its initial value is zeros, an empty time axis, or an output of the encoder graph.

    x[:, 0:1]    →    first = concat(past.first, new rows of x)[:, 0:1]    next.first = first

The first position of a value is cached as one position; values computed from it alone are
recomputed in each step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from specc.analysis.time_axis import TimeAxisLayout
from specc.analysis.value_ranges import is_zero_everywhere
from specc.incremental.encoder_graph import InitialValue
from specc.incremental.graph_boundary import find_batch_blocks, split_batch
from specc.incremental.position_demand_types import get_stateful_operand
from specc.incremental.step_plan import StepDraft, resize_type
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Node, NodeOrigin, NodeResults, Value
from specc.ir.model import DecodeState, StateRole
from specc.ir.ops.recurrent import remove_axis
from specc.ir.types import Type


@dataclass(kw_only=True)
class StateNames:
    """Generates unique names; `entering` are those of the inputs of a loop body."""

    graph: Graph
    made: Mapping[Node, NodeOrigin]
    entering: Mapping[Value, str]
    users: Mapping[Value, tuple[str, StateRole, int]]
    loops: Mapping[Node, int]
    taken: set[str]
    others: int = 0

    @classmethod
    def of(cls, graph: Graph, inside: Mapping[Node, Graph]) -> "StateNames":
        """Return the state names of a graph and its loop bodies `inside`; attentions and loops
        are numbered in graph order.
        """
        users: dict[Value, tuple[str, StateRole, int]] = {}
        loops: dict[Node, int] = {}
        attentions = 0
        made = {n: m for g in (graph, *inside.values()) for n, m in g.node_origins.items()}
        nodes = [n for g in (graph, *inside.values()) for n, _ in g.nodes]
        for node in nodes:
            if isinstance(node.op, ops.Attend):
                scope = _get_last_scope(made, node) or f"attention.{attentions}"
                roles: dict[StateRole, Value] = {
                    "key": node.op.key(node),
                    "value": node.op.values(node),
                }
                for role, value in roles.items():
                    users.setdefault(value, (f"{scope}.{role}", role, attentions))
                attentions += 1
            elif isinstance(node.op, ops.Scan | ops.RecurrentLayer):
                loops[node] = len(loops)
        return cls(
            graph=graph,
            made=made,
            entering=_name_body_inputs(inside, loops),
            users=users,
            loops=loops,
            taken={*graph.inputs, *graph.outputs},
        )

    def name_kept_rows(self, value: Value) -> tuple[StateRole, int, str]:
        """Return role, layer and name of a cache."""
        if value in self.users:
            name, role, layer = self.users[value]
            return role, layer, self._make_unique(name)
        self.others += 1
        return "rows", self.others - 1, self.name_value(value)

    def name_value(self, value: Value) -> str:
        """Return the name of a value: an input's own, or that of its user or producer."""
        own = next((n for n, v in self.graph.inputs.items() if v is value), "")
        if own:
            return own
        if value in self.users:
            return self._make_unique(self.users[value][0])
        if value in self.entering:
            return self._make_unique(self.entering[value])
        node = value.node
        assert node is not None
        scope = _get_last_scope(self.made, node)
        return self._make_unique(f"{scope}.{node.op.name}" if scope else node.op.name)

    def name_carry(self, node: Node, result: Value) -> str:
        """Return the name of a loop carry."""
        scope = _get_last_scope(self.made, node) or f"{node.op.name}.{self.loop(node)}"
        word = "state"
        if isinstance(node.op, ops.Lstm) and result.index == node.op.cell_result:
            word = "cell"
        return self._make_unique(f"{scope}.{word}")

    def loop(self, node: Node) -> int:
        """Return the number of a loop in graph order."""
        return self.loops.get(node, 0)

    def _make_unique(self, name: str) -> str:
        made, n = name, 1
        while made in self.taken:
            n += 1
            made = f"{name}_{n}"
        self.taken.add(made)
        return made


def _name_body_inputs(inside: Mapping[Node, Graph], loops: Mapping[Node, int]) -> dict[Value, str]:
    """Return the names of the inputs of loop bodies."""
    return {
        value: f"scan.{loops[node]}.{name.replace(' ', '_')}"
        for node, body in inside.items()
        for name, value in body.inputs.items()
    }


def _get_last_scope(made: Mapping[Node, NodeOrigin], node: Node) -> str:
    known = made.get(node)
    return known.scopes[0] if known and known.scopes else ""


@dataclass(kw_only=True)
class StepStates:
    """The states of a step, in graph order.

    `starts` maps outputs of `encode` to initial values, `after` outputs of the step to the next
    states.
    """

    draft: StepDraft
    names: StateNames
    declared: list[DecodeState] = field(default_factory=list)
    starts: dict[str, InitialValue] = field(default_factory=dict)
    after: dict[str, Value] = field(default_factory=dict)
    offset: Value | None = None

    def first_row(self, need: float, track: TimeAxisLayout) -> Value:
        """Return the position id of the first position of a value, i64[].

        If all earlier positions are cached, it follows from the length of an input; otherwise a
        counter is carried from step to step.
        """
        plan, b = self.draft.plan, self.draft.b
        # The newest position follows the other new ones; any other value begins with its past
        # positions.
        rate = track.rate
        own = plan.new * rate - 1 if need < 0 else -plan.before(need, track)
        behind = track.prefix_length + own
        if plan.most == inf:
            return b.add_op(ops.Size(plan.base * rate + behind))
        return add_length(b, multiply_count(b, self._chunks_before(), rate), behind)

    def _chunks_before(self) -> Value:
        """Return the number of earlier chunks, carried as a state."""
        if self.offset is None:
            self.offset = self.given(self.make_fixed_size_state("rows", Type("i64", ()), "", 0))
        return self.offset

    def count_new_rows(self) -> None:
        """Update the number of chunks, if it is carried."""
        if self.offset is not None:
            new = self.draft.plan.new
            self.after["next.rows"] = add_length(self.draft.b, self.offset, new)

    def keep(self, value: Value, fresh: Value) -> Value:
        """Concatenate positions of a state and new ones; the next state is what is read again."""
        plan = self.draft.plan
        (axis,) = plan.find_time_axes(value)
        need = max(plan.needs.get(value, {}).get(axis, 0.0), 0.0)
        plan.needs.setdefault(value, {})[axis] = need
        if need == 0:
            return fresh
        role, layer, name = self.names.name_kept_rows(value)
        track = plan.track(value, axis)
        initial = "" if track.prefix_length == 0 else f"first.{name}"
        if initial:
            self.starts[initial] = InitialValue(value, axis, need)
        type = resize_type(value.type, {axis: plan.before(need, track)})
        like = replace(
            self.make_fixed_size_state(name, type, initial, layer),
            time_axis=axis,
            max_positions=need,
            role=role,
        )
        both = self.draft.b.add_op(ops.Concat(axis), self.given(like), fresh)
        # All positions, or as many of the last ones as anything looks back at.
        total, after = plan.rows(need, track), plan.after(need, track)
        self.after[like.next_output] = self.draft.last(both, axis, total, after)
        return both

    def make_loop_state(
        self, node: Node, result: Value, first: Value | None
    ) -> tuple[DecodeState, Value]:
        """Return the state of a loop and its input. It starts as `first`, as zeros, or, after a
        prefix, with the value after the prefix.
        """
        name = self.names.name_carry(node, result)
        head = self.draft.plan.head(*get_stateful_operand(node))
        start = first if head == 0 else result
        initial = ""
        if start is not None and not is_zero_everywhere(start):
            initial = f"first.{name}"
            self.starts[initial] = InitialValue(start)
        like = self.make_fixed_size_state(name, result.type, initial, self.names.loop(node))
        return like, self.given(like)

    def running_sum(self, node: Node, axis: int, result: Value, sums: Value) -> NodeResults:
        """Return the cumulative sums at the new positions; the last one is the next state."""
        name, initial = self.names.name_value(result), ""
        if self.draft.plan.head(result, axis) != 0:
            initial = f"first.{name}"
            self.starts[initial] = InitialValue(node.get_operand(), axis, total=True)
        like = self.make_fixed_size_state(name, remove_axis(result.type, axis), initial, 0)
        before = self.draft.add(node, ops.Insert(axis), self.given(like))
        whole = self.draft.add(node, ops.Arith("add"), sums, *before)
        self.after[like.next_output] = self.draft.add(node, ops.Last(axis), *whole)[0]
        return whole

    def make_fixed_size_state(self, name: str, type: Type, initial: str, layer: int) -> DecodeState:
        """Return a state without a time axis."""
        return DecodeState(
            name=f"past.{name}",
            next_output=f"next.{name}",
            type=type,
            batch_axis=self._find_batch_axis(type),
            time_axis=None,
            max_positions=0,
            initial_output=initial,
            role="carry",
            layer=layer,
        )

    def given(self, state: DecodeState) -> Value:
        """Add the input of a new state, in the layout that the step works on."""
        blocks = find_batch_blocks(state.type, self.draft.plan.batch)
        if blocks is not None:
            rows = None if state.time_axis is None else blocks.place(state.time_axis)
            type = blocks.split_batch_of_type(state.type)
            state = replace(state, type=type, batch_axis=blocks.axis, time_axis=rows)
        self.declared.append(state)
        given = self.draft.b.add_input(state.name, Input(state.type))
        return blocks.merge_batch_axes(self.draft.b, given) if blocks else given

    def next_states(self) -> Mapping[str, Value]:
        """Return the updated value of each state, by output name."""
        b, batch = self.draft.b, self.draft.plan.batch
        return {name: split_batch(b, value, batch) for name, value in self.after.items()}

    def _find_batch_axis(self, type: Type) -> int | None:
        """Return the batch axis of a type, or None."""
        batch = self.draft.plan.batch
        return next((n for n, d in enumerate(type.shape) if d == batch), None)


def multiply_count(b: Builder, number: Value, factor: int) -> Value:
    """Return a count times a constant factor."""
    if factor == 1:
        return number
    return b.add_op(ops.Arith("mul"), number, b.add_op(ops.Constant(factor, "i64")))


def add_length(b: Builder, number: Value, length: Dim) -> Value:
    """Return the sum of a count and a length."""
    return b.add_op(ops.Arith("add"), number, b.add_op(ops.Size(length)))


def select_first_position(
    states: StepStates, node: Node, result: Value, rows: Value
) -> NodeResults:
    """Return the first position: from the state, or from the new `rows` in the first step."""
    draft, none = states.draft, Dim.of(0)
    x, axis = get_stateful_operand(node)
    track = draft.plan.track(x, axis)
    name = states.names.name_value(result)
    type = resize_type(rows.type, {axis: draft.plan.before(1, replace(track, prefix_length=none))})
    carried = states.make_fixed_size_state(name, type, "", 0)
    like = replace(carried, time_axis=axis, max_positions=1, role="rows")
    both = draft.b.add_op(ops.Concat(axis), states.given(like), rows)
    (first,) = draft.add(node, ops.Slice(axis, none, Dim.of(1)), both)
    # Its next state is itself.
    states.after[like.next_output] = first
    if isinstance(node.op, ops.Index):
        return draft.add(node, ops.Squeeze(axis), first)
    return (first,)

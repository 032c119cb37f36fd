"""The step graph: every value with as many rows as it needs, kept rows from states, folds going on from theirs.

No op has an incremental form of its own but the folds. Every other op runs as it is on the new rows and as many
before them as it looks back, and the rows nobody needs are dropped. What is built is ordinary IR: every backend runs
it, and shape inference checks it.
"""

from collections.abc import Iterable, Mapping
from math import inf

from specc.ir import ops
from specc.ir.derived import OFFSET, Role, State
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Made, Node, Value
from specc.ir.op import Op
from specc.ir.types import Type
from specc.passes.demand import NEWEST, Asked, ask, folded
from specc.passes.keeping import handed_values
from specc.passes.naming import Names
from specc.passes.plan import Plan
from specc.passes.substitute import at_length

FIRST_STATES: Mapping[type[Op], tuple[int, ...]] = {ops.Rnn: (6,), ops.Gru: (6,), ops.Lstm: (6, 7)}
"""The operands of recurrent layers that are first states; the results behind the first are the states after."""


class Step:
    """A step graph while it is built.

    `states` are in the order in which they were met, `starts` are the values that some begin as, by the names that
    `encode` gives them, `handed` the values that `encode` or the caller hands over.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph, self.setting = plan, plan.graph, plan.setting
        self.needs = plan.needs
        self.names = Names.of(plan.graph)
        self.b = Builder()
        self.now: dict[Value, Value] = {}
        self.states: list[State] = []
        self.starts: dict[str, Value] = {}
        self.handed: dict[str, Value] = {}
        self.after: dict[str, Value] = {}
        self.offset: Value | None = None

    def build(self) -> Graph:
        """Inputs first, then every live node in order, then the outputs and the next states."""
        self._inputs()
        for node, results in self.graph.nodes:
            if node in self.plan.live:
                (self._node if self.plan.moves(results[0]) else self._fixed)(node, results)
        made = {}
        for name, rows in self.plan.outputs.items():
            made[name] = self._asked(self.graph.outputs[name], NEWEST if rows == "newest" else 0.0)
        if self.offset is not None:
            self.after["next.rows"] = self.b.one(ops.Arith("add"), self.offset, self.b.one(ops.Size(self.plan.new)))
        least, facts = self.plan.known_lengths()
        least[str(self.plan.new)] = 1
        return self.b.finish(f"{self.graph.name} step", {**made, **self.after}, least=least, facts=facts)

    def _first(self, need: float) -> Value:
        """The number of the first row of a value of this need, i64[]."""
        if self.plan.most == inf:
            first = self.plan.base + self.plan.new - 1 if need < 0 else self.plan.base - self.plan.before(need)
            return self.b.one(ops.Size(first))
        offset = self._offset()
        step = self.plan.new - 1 if need < 0 else -self.plan.before(need)
        return self.b.one(ops.Arith("add"), offset, self.b.one(ops.Size(step)))

    def _offset(self) -> Value:
        """How many rows there were, as a state of its own: no length of an input tells."""
        if self.offset is None:
            self.offset = self.b.input(OFFSET, Input(Type("i64", ())))
            self.states.append(State(OFFSET, "next.rows", Type("i64", ()), None, None, 0, "", "carry", 0))
        return self.offset

    # Inputs.

    def _inputs(self) -> None:
        """Declare what a step is given."""
        for name, value in self.graph.inputs.items():
            facts = self.graph.input_facts[name]
            if self.setting.flow.state(value).moves and (name == self.plan.growing or value in self.needs):
                self._moving_input(name, value, facts)
        for name, value in self.graph.parameters.items():
            self.now[value] = self.b.parameter(self.graph.parameter_facts[name])
        own = {v: self.graph.input_facts[n] for n, v in self.graph.inputs.items()}
        for value in handed_values(self.graph, self.setting.flow, self._constant_operands()):
            name = self.names.of_value(value)
            self.handed[name] = value
            self.now[value] = self.b.input(name, own.get(value, Input(value.type)))

    def _moving_input(self, name: str, value: Value, facts: Input) -> None:
        need = inf if name in self.plan.whole else 0.0
        type = _resized(value.type, dict.fromkeys(self.setting.times(value), self.plan.rows(need)))
        given = self.b.input(name, Input(type, facts.keep, facts.below, facts.span))
        self.now[value] = given
        if name != self.plan.growing:
            self.needs[value] = dict.fromkeys(self.setting.times(value), need)
        elif value in self.setting.kept:
            self._keep(value, given)
        else:
            self.needs[value] = dict.fromkeys(self.setting.times(value), 0.0)

    def _constant_operands(self) -> Iterable[Value]:
        """The values that stay the same and that a step uses."""
        moves = self.setting.flow.state
        for node, results in self.graph.nodes:
            if node in self.plan.live and moves(results[0]).moves and not isinstance(node.op, ops.Extent):
                skipped = self._start_operands(node, results)
                yield from (a for n, a in enumerate(node.args) if a and not moves(a).moves and n not in skipped)

    def _start_operands(self, node: Node, results: tuple[Value, ...]) -> Mapping[int, int]:
        """Operands that are the first state of a fold, with the result that is the state after."""
        if not self.setting.folds(node, results):
            return {}
        if isinstance(node.op, ops.Scan):
            first = node.op.scanned + (1 if node.op.masked else 0)
            return {first + n: n for n in range(node.op.carries)}
        return {n: r + 1 for r, n in enumerate(FIRST_STATES.get(type(node.op), ()))}

    # Nodes.

    def _fixed(self, node: Node, results: tuple[Value, ...]) -> None:
        """What stays the same is computed in the step, unless it was handed over or is known to `encode` alone."""
        if all(r in self.now for r in results) or any(a and a not in self.now for a in node.args):
            return
        made = self._add(node, node.op, *(a and self.now[a] for a in node.args))
        for old, new in zip(results, made, strict=True):
            self.now.setdefault(old, new)

    def _node(self, node: Node, results: tuple[Value, ...]) -> None:
        asked = ask(self.setting, node, results, self.needs)
        made = (
            self._fold(node, results, asked) if self.setting.folds(node, results) else self._plain(node, results, asked)
        )
        for r, (old, new) in enumerate(zip(results, made, strict=True)):
            kept = old in self.setting.kept
            need = self.needs.get(old, {})
            for axis, name in asked.results[r].items():
                new = self._tail(new, axis, asked.rows[name], 0.0 if kept else need.get(axis, NEWEST))
            if kept:
                self._keep(old, new)
            else:
                self.now[old] = new

    def _plain(self, node: Node, results: tuple[Value, ...], asked: Asked) -> tuple[Value, ...]:
        """The same op on as many rows as are asked for."""
        op = node.op
        lengths = [{a: self.plan.rows(asked.rows[n]) for a, n in axes.items()} for axes in asked.results]
        match op:
            case ops.Extent() | ops.Range():
                (name,) = asked.results[0].values()
                rows = self._add(node, ops.Range(self.plan.rows(asked.rows[name])))[0]
                if self.plan.most == inf and asked.rows[name] == inf:
                    return (rows,)
                return self._add(node, ops.Arith("add"), rows, self._first(asked.rows[name]))
            case ops.Expand(axis=axis) if axis in lengths[0]:
                op = ops.Expand(axis, lengths[0][axis])
            case ops.Scan():
                # another axis is looped over; that all these rows are as many, the proof has seen
                needs = {asked.rows[n] for axes in (*asked.operands, *asked.results) for n in axes.values()}
                assert len(needs) <= 1, "loops that cross the growing axis are refused by the proof"
                if needs:  # none where only the newest row goes into the loop
                    op = at_length(op, self.plan.symbol, self.plan.rows(needs.pop()))
        return self._add(node, op, *self._operands(node, asked))

    def _operands(self, node: Node, asked: Asked) -> list[Value | None]:
        """The operands of a node, cut to the rows it is asked for."""
        given: list[Value | None] = []
        for value, axes in zip(node.args, asked.operands, strict=True):
            if value is None:
                given.append(None)
                continue
            new = self.now[value]
            for axis, name in axes.items():
                new = self._tail(new, axis, self.needs[value][axis], asked.rows[name])
            given.append(new)
        return given

    def _fold(self, node: Node, results: tuple[Value, ...], asked: Asked) -> tuple[Value, ...]:
        """A fold goes on from a state: `asked` is the new rows."""
        if isinstance(node.op, ops.CumSum):
            return (self._running_sum(node, results[0], asked),)
        starts = self._start_operands(node, results)
        absent: list[Value | None] = [None] * (max(starts, default=-1) + 1 - len(node.args))
        given = [*self._operands_but(node, asked, starts), *absent]
        held = []
        for n, r in starts.items():
            first = node.args[n] if n < len(node.args) else None
            held.append((r, self._state(node, results[r], first)))
            given[n] = held[-1][1][1]
        made = self._add(node, node.op, *given)
        for r, (state, _) in held:
            self.after[state.next] = made[r]
        return made

    def _operands_but(self, node: Node, asked: Asked, left_out: Iterable[int]) -> list[Value | None]:
        args = tuple(None if n in set(left_out) else a for n, a in enumerate(node.args))
        return self._operands(Node(node.op, args), asked)

    def _running_sum(self, node: Node, result: Value, asked: Asked) -> Value:
        x, axis = folded(node)
        shape = tuple(d for n, d in enumerate(x.type.shape) if n != axis)
        state, before = self._held(Type(x.type.dtype, shape), "", "carry", self.names.of_value(result), 0)
        sums = self._add(node, node.op, *self._operands(node, asked))[0]
        whole = self._add(node, ops.Arith("add"), sums, self._add(node, ops.Insert(axis), before)[0])[0]
        self.after[state.next] = self._add(node, ops.Last(axis), whole)[0]
        return whole

    # States.

    def _state(self, node: Node, result: Value, first: Value | None) -> tuple[State, Value]:
        """The state of a loop, which starts as `first`, or as zeros."""
        name = self.names.of_carry(node, result)
        initial = ""
        if first is not None and not _is_zero(first):
            initial = f"first.{name}"
            self.starts[initial] = first
        return self._held(result.type, initial, "carry", name, self.names.loop(node))

    def _held(
        self, type: Type, initial: str, role: Role, name: str, layer: int, rows: int | None = None, most: float = 0
    ) -> tuple[State, Value]:
        batch = next((n for n, d in enumerate(type.shape) if d == self.plan.batch), None)
        state = State(f"past.{name}", f"next.{name}", type, batch, rows, most, initial, role, layer)
        self.states.append(state)
        return state, self.b.input(state.name, Input(type))

    def _keep(self, value: Value, fresh: Value) -> None:
        """Rows of before, from a state, and the new ones behind; what will be looked back at is the next state."""
        (axis,) = self.setting.times(value)
        need = self.needs[value][axis] = max(self.needs.get(value, {}).get(axis, 0.0), 0.0)
        if need == 0:
            self.now[value] = fresh
            return
        role, layer, name = self.names.of_kept(value)
        before = self.plan.before(need)
        type = _resized(value.type, {axis: before})
        state, past = self._held(type, "", role, name, layer, axis, need)
        both = self.b.one(ops.Concat(axis), past, fresh)
        self.now[value] = both
        if need == inf:
            self.after[state.next] = both
            return
        total = self.plan.rows(need)
        self.after[state.next] = self.b.one(ops.Slice(axis, total - self.plan.after(need), total), both)

    # Small parts.

    def _tail(self, value: Value, axis: int, has: float, need: float) -> Value:
        """The last rows of a value, as many as are needed."""
        if has == need:
            return value
        assert need < has, f"{need} rows before are needed, {has} are there"
        total = self.plan.rows(has)
        return self.b.one(ops.Slice(axis, total - self.plan.rows(need), total), value)

    def _asked(self, value: Value, need: float) -> Value:
        """An output with the rows that are asked for."""
        new = self.now[value]
        for n, axis in enumerate(self.setting.times(value)):
            if n == 0:
                new = self._tail(new, axis, self.needs[value][axis], need)
        return new

    def _add(self, node: Node, op: Op, *args: Value | None) -> tuple[Value, ...]:
        """A node of the step, which remembers where it came from."""
        made = self.b.add(op, *args)
        known = self.graph.made.get(node)
        if known and made[0].node:
            old = self.b.made.get(made[0].node, Made())
            self.b.made[made[0].node] = Made(
                tuple(dict.fromkeys((*old.scopes, *known.scopes))), tuple(dict.fromkeys((*old.spans, *known.spans)))
            )
        return made


def _is_zero(value: Value) -> bool:
    """Whether a value is zeros in the shape of a state."""
    while value.node and isinstance(value.node.op, ops.Expand | ops.Insert) and value.node.args[0]:
        value = value.node.args[0]
    return bool(value.node) and isinstance(value.node.op, ops.Constant) and not value.node.op.value  # type: ignore[union-attr]


def _resized(type: Type, lengths: Mapping[int, Dim]) -> Type:
    return Type(type.dtype, tuple(lengths.get(n, d) for n, d in enumerate(type.shape)))

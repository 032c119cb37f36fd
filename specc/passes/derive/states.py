"""The states of a step: kept rows, what loops carry, running sums, and the number of
rows there were.

On entry to each function: a draft in which the operands are built. Each state is an
input of the step, `past.…`, and an output, `next.…`, that takes its place in the next
step; it starts as zeros, without rows where it has an axis of them, or as what `encode`
computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from specc.ir import ops
from specc.ir.derived import OFFSET, State
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Input, Node, Value
from specc.ir.heads import Track
from specc.ir.types import Type
from specc.passes.derive.asked import folded
from specc.passes.derive.blocks import apart, blocks_of
from specc.passes.derive.draft import Draft, resized
from specc.passes.derive.encode import First
from specc.passes.derive.naming import Names
from specc.passes.prove.seen import zero_everywhere


@dataclass(kw_only=True)
class States:
    """States in the order in which they were met.

    `starts` say what some begin as, by the names that `encode` gives it; `after` the
    values that take their place, by output.
    """

    draft: Draft
    names: Names
    met: list[State] = field(default_factory=list)
    starts: dict[str, First] = field(default_factory=dict)
    after: dict[str, Value] = field(default_factory=dict)
    offset: Value | None = None

    def first_row(self, need: float, track: Track) -> Value:
        """The number of the first row of a value of this need on such a track, i64[].

        A row's number is how many stand before it. Where all earlier rows are kept their
        count is a length of an input, and the number follows from lengths. Where they
        are not, it is counted from step to step.
        """
        plan, b = self.draft.plan, self.draft.b
        # The newest row alone stands behind the other new ones; any other value begins
        # with its rows from before.
        rate = track.rate
        own = plan.new * rate - 1 if need < 0 else -plan.before(need, track)
        behind = track.head + own
        if plan.most == inf:
            return b.one(ops.Size(plan.base * rate + behind))
        return plus(b, times(b, self._chunks_before(), rate), behind)

    def _chunks_before(self) -> Value:
        """How many chunks there were, as a state: no length of an input tells."""
        if self.offset is None:
            self.offset = self.draft.b.input(OFFSET, Input(Type("i64", ())))
            self.met.append(
                State(
                    name=OFFSET,
                    next="next.rows",
                    type=Type("i64", ()),
                    batch=None,
                    rows=None,
                    most=0,
                    initial="",
                    role="carry",
                    layer=0,
                )
            )
        return self.offset

    def count_new_rows(self) -> None:
        """The next number of chunks, where anything asked for it."""
        if self.offset is not None:
            new = self.draft.plan.new
            self.after["next.rows"] = plus(self.draft.b, self.offset, new)

    def keep(self, value: Value, fresh: Value) -> Value:
        """Rows of before, from a state, and the new ones behind; what will be looked
        back at is the next state.
        """
        plan = self.draft.plan
        (axis,) = plan.setting.times(value)
        need = max(plan.needs.get(value, {}).get(axis, 0.0), 0.0)
        plan.needs.setdefault(value, {})[axis] = need
        if need == 0:
            return fresh
        role, layer, name = self.names.of_kept(value)
        track = plan.setting.track(value, axis)
        initial = "" if track.head == 0 else f"first.{name}"
        if initial:
            self.starts[initial] = First(value, axis, need)
        type = resized(value.type, {axis: plan.before(need, track)})
        like = replace(
            self.carried(name, type, initial, layer), rows=axis, most=need, role=role
        )
        both = self.draft.b.one(ops.Concat(axis), self.given(like), fresh)
        # All rows, or of the last ones as many as anything looks back at.
        total, after = plan.rows(need, track), plan.after(need, track)
        self.after[like.next] = self.draft.last(both, axis, total, after)
        return both

    def carry(
        self, node: Node, result: Value, first: Value | None
    ) -> tuple[State, Value]:
        """The state of a loop, which starts as `first`, or as zeros; behind a head, as
        the rows of the head leave it.
        """
        name = self.names.of_carry(node, result)
        head = self.draft.plan.setting.head(*folded(node))
        start = first if head == 0 else result
        initial = ""
        if start is not None and not zero_everywhere(start):
            initial = f"first.{name}"
            self.starts[initial] = First(start)
        like = self.carried(name, result.type, initial, self.names.loop(node))
        return like, self.given(like)

    def running_sum(
        self, node: Node, axis: int, result: Value, sums: Value
    ) -> tuple[Value, ...]:
        """Sums of the new rows, with what the sum was before them; its last row is the
        state after.
        """
        shape = tuple(d for n, d in enumerate(result.type.shape) if n != axis)
        name, initial = self.names.of_value(result), ""
        if self.draft.plan.setting.head(result, axis) != 0:
            initial, summed = f"first.{name}", node.first
            assert summed is not None, "a running sum has rows"
            self.starts[initial] = First(summed, axis, total=True)
        like = self.carried(name, Type(result.type.dtype, shape), initial, 0)
        before = self.draft.add(node, ops.Insert(axis), self.given(like))
        whole = self.draft.add(node, ops.Arith("add"), sums, *before)
        self.after[like.next] = self.draft.add(node, ops.Last(axis), *whole)[0]
        return whole

    def carried(self, name: str, type: Type, initial: str, layer: int) -> State:
        """A state without an axis of rows."""
        return State(
            name=f"past.{name}",
            next=f"next.{name}",
            type=type,
            batch=self._batch(type),
            rows=None,
            most=0,
            initial=initial,
            role="carry",
            layer=layer,
        )

    def given(self, state: State) -> Value:
        """The input of a state that was not met before, as the step works on it."""
        blocks = blocks_of(state.type, self.draft.plan.batch)
        if blocks is not None:
            rows = None if state.rows is None else blocks.place(state.rows)
            type = blocks.outward(state.type)
            state = replace(state, type=type, batch=blocks.axis, rows=rows)
        self.met.append(state)
        given = self.draft.b.input(state.name, Input(state.type))
        return blocks.together(self.draft.b, given) if blocks else given

    def nexts(self) -> Mapping[str, Value]:
        """What takes the place of each state, by output."""
        b, batch = self.draft.b, self.draft.plan.batch
        return {name: apart(b, value, batch) for name, value in self.after.items()}

    def _batch(self, type: Type) -> int | None:
        """The axis of the batch."""
        batch = self.draft.plan.batch
        return next((n for n, d in enumerate(type.shape) if d == batch), None)


def times(b: Builder, number: Value, factor: int) -> Value:
    """A number of rows, of which each stands for several."""
    if factor == 1:
        return number
    return b.one(ops.Arith("mul"), number, b.one(ops.Constant(factor, "i64")))


def plus(b: Builder, number: Value, length: Dim) -> Value:
    """A number of rows and a length."""
    return b.one(ops.Arith("add"), number, b.one(ops.Size(length)))

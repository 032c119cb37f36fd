"""A step graph while it is built: what stands in it for each value of the whole graph."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Made, Node, Value
from specc.ir.heads import Track
from specc.ir.op import Op
from specc.ir.types import Type
from specc.passes.derive.asked import Asked
from specc.passes.derive.plan import Plan


@dataclass
class Draft:
    """`now` holds the values that are built, each with the rows that `plan.needs` says:
    so many from before, and the new ones behind them.
    """

    plan: Plan
    b: Builder = field(default_factory=Builder)
    now: dict[Value, Value] = field(default_factory=dict)

    def add(self, node: Node, op: Op, *args: Value | None) -> tuple[Value, ...]:
        """A node of the step, which remembers where `node` of the whole graph came from."""
        results = self.b.add(op, *args)
        known, maker = self.plan.graph.made.get(node), results[0].node
        if known and maker:
            old = self.b.made.get(maker, Made())
            self.b.made[maker] = Made(
                tuple(dict.fromkeys((*old.scopes, *known.scopes))),
                tuple(dict.fromkeys((*old.spans, *known.spans))),
            )
        return results

    def tail(
        self, value: Value, axis: int, track: Track, has: float, need: float
    ) -> Value:
        """The last rows of a value, as many as are needed: rows end where the new ones
        do, so what is left over stands in front.
        """
        if has == need:
            return value
        assert need < has, f"{need} rows before are needed, {has} are there"
        total, rows = self.plan.rows(has, track), self.plan.rows(need, track)
        return self.last(value, axis, total, rows)

    def last(self, value: Value, axis: int, total: Dim, rows: Dim) -> Value:
        """The last rows of `total`."""
        if total == rows:
            return value
        return self.b.one(ops.Slice(axis, total - rows, total), value)

    def operands(
        self, node: Node, asked: Asked, without: Collection[int] = ()
    ) -> list[Value | None]:
        """The operands of a node, cut to the rows it is asked for, but for some."""
        cut: list[Value | None] = []
        for n, (value, axes) in enumerate(zip(node.args, asked.operands, strict=True)):
            if value is None or n in without:
                cut.append(None)
                continue
            new = self.now[value]
            for axis, name in axes.items():
                has = self.plan.needs[value][axis]
                track = self.plan.setting.track(value, axis)
                new = self.tail(new, axis, track, has, asked.rows[name])
            cut.append(new)
        return cut

    def output(self, value: Value, need: float) -> Value:
        """An output with the rows that are asked for: of its first time axis; a second
        one, the keys of an attention map, stays whole.
        """
        new = self.now[value]
        for axis in self.plan.setting.times(value)[:1]:
            track = self.plan.setting.track(value, axis)
            new = self.tail(new, axis, track, self.plan.needs[value][axis], need)
        return new


def resized(type: Type, lengths: Mapping[int, Dim]) -> Type:
    """A type with other lengths along some axes."""
    return Type(type.dtype, tuple(lengths.get(n, d) for n, d in enumerate(type.shape)))

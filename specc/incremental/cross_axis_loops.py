"""Demand inside loops over another axis than time.

    scan row in memory along src carry y {       y: f[batch, seq, d], seq grows
      y = … attend(y, y, y, causal) …            keys are kept inside, one state a turn
    }

A carry goes in with the rows that it comes out with: never rows of before, since what
the body looks back at is kept inside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from specc.incremental.demand_types import (
    NEWEST_ONLY,
    AxisName,
    Demand,
    DemandContext,
    PositionNeeds,
)
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value


@dataclass(frozen=True, kw_only=True)
class CrossAxisLoop:
    """A loop over another axis than the one that grows, and what is known of its body.

    `turns` is the axis of what is read row by row that the loop runs along, `starts`
    the body's carries, `inputs` its rows and then those; `outputs` are the next carries
    and then what is collected.
    """

    setting: DemandContext
    node: Node
    body: Graph
    turns: int
    inputs: tuple[Value, ...]
    starts: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @classmethod
    def of(cls, setting: DemandContext, node: Node) -> "CrossAxisLoop":
        """Return the loop at `node`."""
        body, op = setting.flow.inside[node], node.op
        assert isinstance(op, ops.Scan), "no other op has a body"
        inner = op.inner()
        return cls(
            setting=setting,
            node=node,
            body=body,
            turns=op.axis,
            inputs=(*inner.rows, *inner.starts),
            starts=inner.starts,
            outputs=tuple(body.outputs.values()),
        )

    @property
    def op(self) -> ops.Scan:
        """The loop op."""
        op = self.node.op
        assert isinstance(op, ops.Scan), "no other op has a body"
        return op

    def rows(self, results: tuple[Value, ...], needs: PositionNeeds) -> list[Mapping[int, float]]:
        """Return how many positions the loop makes of each result, by axis of the body's output."""
        found: list[Mapping[int, float]] = []
        for r, result in enumerate(results):
            collected = r >= len(self.starts)
            made: dict[int, float] = {}
            for axis in self.setting.times(result):
                inner = axis - (collected and axis > self.turns)
                need = needs.get(result, {}).get(axis, NEWEST_ONLY)
                made[inner] = 0.0 if result in self.setting.kept else need
            if not collected:
                # A carry goes in with as many rows as it comes out with: those of before
                # that are looked back at inside are kept there, where they can be.
                before = needs.get(self.starts[r], {})
                for axis, need in before.items():
                    need = min(need, 0.0) if len(before) == 1 or need <= 0 else inf
                    made[axis] = max(made.get(axis, NEWEST_ONLY), need)
            found.append(made)
        return found

    def asked(self, results: tuple[Value, ...], needs: PositionNeeds) -> Demand:
        """Return the demand of each operand and result, with one name per axis."""
        made = self.rows(results, needs)
        rows: dict[AxisName, float] = {}
        operands: list[dict[int, AxisName]] = []
        for n, operand in enumerate(self.node.args):
            place = n - self.op.first
            names: dict[int, AxisName] = {}
            for axis in self.setting.times(operand):
                names[axis] = ("operand", n, axis)
                rows[names[axis]] = self._given(operand, place, axis, made, needs)
            operands.append(names)
        outside: list[dict[int, AxisName]] = []
        for r, axes in enumerate(made):
            behind = r >= len(self.starts)
            places = {a + (behind and a >= self.turns): ("result", r, a) for a in axes}
            rows.update({("result", r, a): need for a, need in axes.items()})
            outside.append(dict(places))
        return Demand(rows, tuple(operands), tuple(outside))

    def _given(
        self,
        operand: Value | None,
        place: int,
        axis: int,
        made: Sequence[Mapping[int, float]],
        needs: PositionNeeds,
    ) -> float:
        """Return the demand of an operand; `place` counts the operands that the body reads."""
        assert operand is not None, "a scan has no optional operands"
        first = len(self.inputs) - len(self.starts)
        if 0 <= place < first:
            row, inner = self.inputs[place], axis - (axis > self.turns)
            kept = row in self.setting.kept
            return 0.0 if kept else needs.get(row, {}).get(inner, NEWEST_ONLY)
        if first <= place < len(self.inputs):
            return made[place - first][axis]
        # What is captured is given as it is, and cut where it is read.
        return needs.get(operand, {}).get(axis, NEWEST_ONLY)

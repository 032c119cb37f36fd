"""Random graphs, behind heads or none, in which the first row of what grows is picked and
goes into others: added, multiplied, attended to, taken into a loop, or where it must not.
"""

import random

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Input, Value
from specc.ir.types import Type
from support.random_graphs import BATCH, WIDTH
from support.random_heads import NONE, Headed, finished


class Firsts(Headed):
    """What `Headed` draws, and first rows."""

    def step(self) -> Value:
        if self.rng.random() < 0.5:
            return super().step()
        x = self.streams[-1]
        row = self.first_row(super().stream() if self.rng.random() < 0.3 else x)
        if self.rng.random() < 0.4:
            row = self.one(ops.Linear(), row, self.weight(WIDTH, WIDTH), None)
        kind = self.rng.choice(["add", "mul", "read", "taken", "gru", "front", "own"])
        if kind != "own" and self.head(x) != NONE and self.rng.random() < 0.9:
            x = self.behind(x, NONE)  # rows of a head must not meet it
        match kind:
            case "read":
                return self.read(x, row)
            case "taken":
                return self.taken(x, row)
            case "gru" if self.rng.random() < 0.3:
                return self.begun(x, row)
            case "front" if self.rng.random() < 0.3:
                return self.one(ops.Concat(1), row, x)
            case "mul":
                return self.one(ops.Arith("mul"), x, row)
        return self.one(ops.Arith("add"), x, self.one(ops.Pointwise("tanh"), row))

    def first_row(self, x: Value) -> Value:
        """[batch 1 3]: the first of the rows that grow; now and then another one."""
        at = self.head(x)
        if self.rng.random() < 0.08:
            at = at + 1
        if self.rng.random() < 0.5:
            return self.one(ops.Slice(1, at, at + 1), x)
        return self.one(ops.Insert(1), self.one(ops.Index(1, at), x))

    def taken(self, x: Value, row: Value) -> Value:
        """A loop that takes the row from outside."""
        inner = Builder()
        type = Type.of("f64", BATCH, WIDTH)
        one, carry, first = (inner.input(n, Input(type)) for n in ("x", "c", "f"))
        after = inner.one(ops.Arith("add"), one, inner.one(ops.Pointwise("tanh"), carry))
        seen = inner.one(ops.Arith("mul"), after, first)
        body = inner.finish("body", {"c": after, "y": seen})
        zero = self.one(ops.Expand(0, BATCH), self.one(ops.Insert(0), self.first()))
        alone = self.one(ops.Squeeze(1), row)
        return self.build.add(ops.Scan(body, 1, 1, 1), x, zero, alone)[1]

    def begun(self, x: Value, row: Value) -> Value:
        """A running sum in a loop that begins with the row, which is not there before it."""
        inner = Builder()
        type = Type.of("f64", BATCH, WIDTH)
        one, carry = (inner.input(n, Input(type)) for n in ("x", "c"))
        after = inner.one(ops.Arith("add"), one, carry)
        body = inner.finish("body", {"c": after, "y": after})
        alone = self.one(ops.Squeeze(1), row)
        return self.build.add(ops.Scan(body, 1, 1, 1), x, alone)[1]


def first_row_graph(seed: int) -> Graph:
    """Inputs and result as those of `headed_graph`."""
    return finished(Firsts(random.Random(seed)))

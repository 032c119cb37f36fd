"""Random graphs with loops over another axis than the time axis. The bodies are random graphs: they
contain attention, read earlier positions, carry states, and contain loops.
"""

import random
from dataclasses import dataclass, field
from typing import Literal

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Value
from specc.ir.types import Type
from support.random_graphs import BATCH, SEQ, WIDTH, RandomGraphBuilder, finish_random_graph
from support.random_prefix_graphs import PrefixGraphBuilder
from support.random_prefix_graphs import finish_prefix_graph as behind_heads

STREAM_TYPE = Type.of("f64", BATCH, SEQ, WIDTH)
MAX_DEPTH = 2


@dataclass
class LoopGraphBuilder(RandomGraphBuilder):
    """Adds such loops to the nodes of `RandomGraphBuilder`."""

    depth: int = 0

    def step(self) -> Value:
        if self.depth < MAX_DEPTH and self.rng.random() < (0.5, 0.15)[self.depth]:
            return self.add_cross_axis_loop(self.stream(), self.stream())
        return super().step()

    def add_cross_axis_loop(self, x: Value, y: Value) -> Value:
        """Add a loop over rows of a table, over streams, or over numbers."""
        rows = self.get_loop_input(x, y)
        inner = LoopBodyBuilder(self.rng, depth=self.depth + 1, outer=self, template=x)
        row = inner.build.add_input("row", Input(Type(rows.type.dtype, rows.type.shape[1:])))
        carry = inner.build.add_input("carry", Input(x.type))
        done = None
        if self.rng.random() < 0.3:
            done = inner.build.add_input("done", Input(Type("bool", x.type.shape[:2])))
        inner.streams = [carry, inner.combine_row(carry, row)]
        for _ in range(self.rng.randint(1, 3)):
            inner.streams.append(inner.step())
        after = inner.one(ops.Pointwise("tanh"), inner.streams[-1])
        outputs = inner.outputs(carry, after, done)
        body = inner.build.build_graph("body", outputs)
        starts = [x] if done is None else [x, self.has_large_values(y)]
        op = ops.Scan(
            body,
            1,
            len(starts),
            0,
            reverse=self.rng.random() < 0.3,
            end_condition_index=-1 if done is None else 1,
        )
        made = self.build.add_node(op, rows, *starts, *inner.captured)
        if len(outputs) > len(starts) and self.rng.random() < 0.6:
            return self.one(ops.Reduce("sum", 0), made[-1])
        return made[0]

    def get_loop_input(self, x: Value, y: Value) -> Value:
        """Return the input of the loop, sliced along axis 0."""
        match self.rng.choice(["table", "streams", "numbers"]):
            case "table":
                return self.weight(3, WIDTH)
            case "streams":
                both = [self.one(ops.Insert(0), v) for v in (x, y)]
                return self.one(ops.Concat(0), *both)
        return self.one(ops.Cast("f64"), self.one(ops.Range(Dim.from_value(3))))

    def mask_for(self, like: Value) -> Value:
        """Return a mask for the positions of a stream."""
        return self.mask()

    def has_large_values(self, x: Value) -> Value:
        """Return True if a position has a large value, bool[batch seq]."""
        largest = self.one(ops.Reduce("max", 2), x)
        return self.one(ops.Compare("gt"), largest, self.one(ops.Constant(0.9, "f64")))


@dataclass
class LoopBodyBuilder(LoopGraphBuilder):
    """Builder of a loop body; values of `outer` become captures."""

    outer: LoopGraphBuilder = field(default_factory=lambda: LoopGraphBuilder(random.Random(0)))
    template: Value = field(default_factory=lambda: Value(STREAM_TYPE))
    captured: list[Value] = field(default_factory=list)

    def capture(self, value: Value) -> Value:
        """Return the input of the body for a captured value."""
        name = f"outer {len(self.captured)}"
        if value in self.captured:
            return self.build.inputs[f"outer {self.captured.index(value)}"]
        self.captured.append(value)
        return self.build.add_input(name, Input(value.type))

    def weight(self, *shape: int) -> Value:
        return self.capture(self.outer.weight(*shape))

    def mask(self, depth: int = 0) -> Value:
        return self.capture(self.outer.mask_for(self.template))

    def mask_for(self, like: Value) -> Value:
        return self.mask()

    def get_padding_mask(self, x: Value) -> Value:
        return self.capture(self.outer.get_padding_mask(self.template))

    def get_initial_carry(self) -> Value:
        if self.rng.random() < 0.6:
            return self.start_carry()
        zero = self.one(ops.Insert(0), self.one(ops.Constant(0.0, "f64")))
        return self.one(ops.Expand(0, Dim.from_value(WIDTH)), zero)

    def start_carry(self) -> Value:
        """Return values that depend on the iteration, or values that are equal in all iterations."""
        row = self.build.inputs["row"]
        if row.type.rank == 1 and self.rng.random() < 0.6:
            return self.one(ops.Arith("mul"), row, self.weight(WIDTH))
        return self.weight(WIDTH)

    def stream(self) -> Value:
        if self.rng.random() < 0.15:
            other = self.outer.stream()
            if other.type == self.template.type:
                return self.capture(other)
        return super().stream()

    def combine_row(self, carry: Value, row: Value) -> Value:
        return self.one(ops.Arith(self.rng.choice(["add", "mul"])), carry, row)

    def outputs(self, carry: Value, after: Value, done: Value | None) -> dict[str, Value]:
        """Return the next carries, unchanged where they are done, and sometimes a scan output."""
        found, seen = {"next carry": after}, after
        if done is not None:
            held = self.one(ops.Insert(2), done)
            found["next carry"] = self.one(ops.Where(), held, carry, after)
            found["next done"] = self.one(ops.Where(), done, done, self.has_large_values(after))
            zero = self.one(ops.Constant(0.0, "f64"))
            seen = self.one(ops.Where(), held, zero, after)
        if self.rng.random() < 0.5:
            found["seen"] = seen
        return found


def make_loop_graph(seed: int, keep: Literal["left", "right", "any"] = "any") -> Graph:
    """Return a graph of `x: f64[batch, seq, 3]` and `keep` with the output `y`."""
    return finish_random_graph(LoopGraphBuilder(random.Random(seed)), keep)


@dataclass
class PrefixLoopGraphBuilder(PrefixGraphBuilder, LoopGraphBuilder):
    """Adds such loops over streams with prefix positions."""

    def mask_for(self, like: Value) -> Value:
        self.mask_pair = like, like
        made = self.mask()
        self.mask_pair = None
        return made


def make_prefix_loop_graph(seed: int) -> Graph:
    """Return a graph of `x`, `keep` and `memory` with the output `y`."""
    return behind_heads(PrefixLoopGraphBuilder(random.Random(seed)))

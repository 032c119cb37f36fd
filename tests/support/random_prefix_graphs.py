"""Random graphs with prefix positions before the time axis: learned ones, a memory of dynamic
length, several concatenated, removed again, attended to alone; queries and keys with different
prefixes.
"""

import random
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from specc.analysis.time_axis_prefix_and_chunks import TimeAxis
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Value
from specc.ir.types import Type
from support.random_graphs import BATCH, SEQ, WIDTH, RandomGraphBuilder
from support.random_graphs import sample_graph_values as plain_values

MEMORY = Dim.symbol("mem")
NO_PREFIX = Dim.from_value(0)
TIME = TimeAxis(SEQ, frozenset({"seq"}))


@dataclass
class PrefixGraphBuilder(RandomGraphBuilder):
    """Adds prefix positions to the streams of `RandomGraphBuilder`."""

    prefixes: dict[Dim, Value] = field(default_factory=dict)
    mask_pair: tuple[Value, Value] | None = None

    def get_prefix_length(self, x: Value) -> Dim:
        """Return the number of prefix positions of a stream."""
        return x.type.shape[1] - SEQ

    def mask_streams(self) -> tuple[Value, Value]:
        return self.mask_pair or super().mask_streams()

    def get_padding_mask(self, x: Value) -> Value:
        """Return the padding mask; prefix positions are always valid."""
        head, keep = self.get_prefix_length(x), super().get_padding_mask(x)
        if head == NO_PREFIX:
            return keep
        there = self.one(ops.Constant(True, "bool"))
        for axis, length in enumerate((BATCH, head)):
            there = self.one(ops.Expand(axis, length), self.one(ops.Insert(axis), there))
        return self.one(ops.Concat(1), there, keep)

    def get_prefix(self, head: Dim) -> Value:
        """Return prefix positions f[batch head 3]: learned ones, or a memory followed by learned
        ones.
        """
        if head not in self.prefixes:
            number = dict(head.terms).get((), 0)
            parts = []
            if head != number:
                parts.append(self.build.inputs["memory"])
            if number:
                rows = self.one(ops.Insert(0), self.weight(number, WIDTH))
                parts.append(self.one(ops.Expand(0, BATCH), rows))
            if len(parts) > 1:
                parts = [self.one(ops.Concat(1), *parts)]
            self.prefixes[head] = parts[0]
        return self.prefixes[head]

    def replace_prefix(self, y: Value, head: Dim) -> Value:
        """Replace the prefix of a stream."""
        own = self.get_prefix_length(y)
        if own == head:
            return y
        if own != NO_PREFIX:
            y = self.one(ops.Slice(1, own, own + SEQ), y)
        if head == NO_PREFIX:
            return y
        return self.one(ops.Concat(1), self.get_prefix(head), y)

    def stream(self) -> Value:
        """Return a stream with the prefix of the latest one, so that both operands have equal
        lengths.
        """
        return self.replace_prefix(super().stream(), self.get_prefix_length(self.streams[-1]))

    def mask(self, depth: int = 0) -> Value:
        """Return a mask that sometimes compares a key or query position with a length."""
        if self.rng.random() < 0.8:
            return super().mask(depth)
        queries, keys = self.mask_streams()
        end, at = (keys, 0) if self.rng.random() < 0.7 else (queries, 1)
        head = self.rng.choice([self.get_prefix_length(keys), self.get_prefix_length(queries)])
        far = self.one(ops.Size(head))
        shift = self.number(self.rng.choice([-1, 0, 0, 0, 1]))
        far = self.one(ops.Arith("add"), far, shift)
        match self.rng.choice(["first", "first", "moved"]):
            case "first":
                fn = self.rng.choice(["lt", "lt", "le", "ge"])
                return self.one(ops.Compare(fn), self.get_position_ids(end, at), far)
        i, j = self.get_position_ids(queries, 1), self.get_position_ids(keys, 0)
        return self.one(ops.Compare("le"), self.one(ops.Arith("sub"), j, far), i)

    def attend(self, x: Value, y: Value) -> Value:
        y = self._choose_keys(x, y)
        made = super().attend(x, y)
        self.mask_pair = None
        return made

    def weigh(self, x: Value, y: Value) -> Value:
        y = self._choose_keys(x, y)
        made = super().weigh(x, y)
        self.mask_pair = None
        return made

    def reduce_keys(self, x: Value, y: Value) -> Value:
        self.mask_pair = x, y
        made = super().reduce_keys(x, y)
        self.mask_pair = None
        return made

    def _choose_keys(self, x: Value, y: Value) -> Value:
        """Return keys that sometimes have another prefix than the queries."""
        if self.rng.random() < 0.4:
            y = self.replace_prefix(y, self.sample_prefix_length())
        self.mask_pair = x, y
        return y

    def other_scores(self, x: Value, y: Value) -> Value:
        alike = self.get_prefix_length(x) == self.get_prefix_length(y)
        return super().other_scores(x, y) if alike else self.scores(x, y)

    def sample_prefix_length(self) -> Dim:
        """Return a random prefix length: none, learned, memory, or both."""
        some = Dim.from_value(self.rng.randint(1, 5))
        return self.rng.choice([NO_PREFIX, some, some, MEMORY, MEMORY + self.rng.randint(1, 2)])

    def step(self) -> Value:
        x = self.streams[-1]
        head = self.get_prefix_length(x)
        if self.rng.random() < 0.7:
            return super().step()
        match self.rng.choice(["join", "join", "leave", "read", "row", "behind"]):
            case "join":
                more = self.get_prefix(Dim.from_value(self.rng.randint(1, 3)))
                return self.one(ops.Concat(1), more, x)
            case "leave" if (head.number or 0) > 0:
                start = Dim.from_value(self.rng.randint(1, (head.number or 0) + 1))
                if start == head + 1 and self.rng.random() < 0.7:
                    start = head
                return self.one(ops.Slice(1, start, head + SEQ), x)
            case "read" if (head.number or 0) > 0:
                stop = Dim.from_value(self.rng.randint(1, (head.number or 0)))
                return self.attend_to_prefix(x, self.one(ops.Slice(1, Dim.from_value(0), stop), x))
            case "row" if (head.number or 0) > 0:
                row = self.one(ops.Index(1, Dim.from_value(0)), x)
                return self.one(ops.Arith("mul"), x, self.one(ops.Insert(1), row))
            case "behind" if self.rng.random() < 0.3:
                return self.one(ops.Concat(1), x, self.get_prefix(Dim.from_value(1)))
        return self.replace_prefix(x, self.sample_prefix_length())

    def attend_to_prefix(self, x: Value, rows: Value) -> Value:
        """Attend from every position to fixed ones."""
        q, k = (self.one(ops.Insert(1), v) for v in (x, rows))
        return self.one(ops.Squeeze(1), self.one(ops.Attend(0.7), q, k, k))


def make_prefix_graph(seed: int, keep: Literal["left", "right", "any"] = "any") -> Graph:
    """Return a graph of `x: f64[batch, seq, 3]`, `keep: bool[batch, seq]` and `memory: f64[batch,
    mem, 3]` with the output `y: f64[batch, head + seq, 3]`.
    """
    return finish_prefix_graph(PrefixGraphBuilder(random.Random(seed)), keep)


def finish_prefix_graph(
    builder: PrefixGraphBuilder, keep: Literal["left", "right", "any"] = "any"
) -> Graph:
    """Add random streams to a builder and return its graph."""
    b = builder.build
    builder.streams.append(b.add_input("x", Input(Type.of("f64", BATCH, SEQ, WIDTH))))
    b.add_input("keep", Input(Type.of("bool", BATCH, SEQ), padding_side=keep))
    b.add_input("memory", Input(Type.of("f64", BATCH, MEMORY, WIDTH)))
    builder.streams.append(
        builder.replace_prefix(builder.streams[0], builder.sample_prefix_length())
    )
    for _ in range(builder.rng.randint(2, 6)):
        made = builder.step()
        if TIME.get_prefix_length(made.type.shape[1]) is None:
            break
        builder.streams.append(made)
    return b.build_graph("headed", {"y": builder.streams[-1]})


def sample_prefix_values(
    graph: Graph, seed: int, rows: int, memory: int, batch: int = 1
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return inputs and parameters for `graph`, with a memory of length `memory`."""
    inputs, weights = plain_values(graph, seed, rows, batch)
    rng = np.random.default_rng(seed + 7)
    inputs["memory"] = rng.normal(size=(batch, memory, WIDTH))
    return {n: v for n, v in inputs.items() if n in graph.inputs}, weights


def count_prefix_positions(graph: Graph, memory: int) -> int:
    """Return the number of prefix positions of the result."""
    head = TIME.get_prefix_length(graph.outputs["y"].type.shape[1])
    assert head is not None
    return head.evaluate({"mem": memory})


class FirstPositionBuilder(PrefixGraphBuilder):
    """Adds operations that read the first position of the time axis."""

    def step(self) -> Value:
        if self.rng.random() < 0.5:
            return super().step()
        x = self.streams[-1]
        row = self.get_first_position(super().stream() if self.rng.random() < 0.3 else x)
        if self.rng.random() < 0.4:
            row = self.one(ops.Linear(), row, self.weight(WIDTH, WIDTH), None)
        kind = self.rng.choice(["add", "mul", "read", "taken", "gru", "front", "own"])
        if kind != "own" and self.get_prefix_length(x) != NO_PREFIX and self.rng.random() < 0.9:
            x = self.replace_prefix(x, NO_PREFIX)  # prefix positions must not depend on it
        match kind:
            case "read":
                return self.attend_to_prefix(x, row)
            case "taken":
                return self.add_capturing_loop(x, row)
            case "gru" if self.rng.random() < 0.3:
                return self.start_carry(x, row)
            case "front" if self.rng.random() < 0.3:
                return self.one(ops.Concat(1), row, x)
            case "mul":
                return self.one(ops.Arith("mul"), x, row)
        return self.one(ops.Arith("add"), x, self.one(ops.Pointwise("tanh"), row))

    def get_first_position(self, x: Value) -> Value:
        """Return the first position of the time axis, [batch 1 3]; sometimes another one."""
        at = self.get_prefix_length(x)
        if self.rng.random() < 0.08:
            at = at + 1
        if self.rng.random() < 0.5:
            return self.one(ops.Slice(1, at, at + 1), x)
        return self.one(ops.Insert(1), self.one(ops.Index(1, at), x))

    def add_capturing_loop(self, x: Value, row: Value) -> Value:
        """Add a loop that captures the first position."""
        inner = GraphBuilder()
        type = Type.of("f64", BATCH, WIDTH)
        one, carry, first = (inner.add_input(n, Input(type)) for n in ("x", "c", "f"))
        after = inner.add_op(ops.Arith("add"), one, inner.add_op(ops.Pointwise("tanh"), carry))
        seen = inner.add_op(ops.Arith("mul"), after, first)
        body = inner.build_graph("body", {"c": after, "y": seen})
        zero = self.one(ops.Expand(0, BATCH), self.one(ops.Insert(0), self.get_initial_carry()))
        alone = self.one(ops.Squeeze(1), row)
        return self.build.add_node(ops.Scan(body, 1, 1, 1), x, zero, alone)[1]

    def start_carry(self, x: Value, row: Value) -> Value:
        """Add a running sum with the first position as initial carry, which is not available before
        it.
        """
        inner = GraphBuilder()
        type = Type.of("f64", BATCH, WIDTH)
        one, carry = (inner.add_input(n, Input(type)) for n in ("x", "c"))
        after = inner.add_op(ops.Arith("add"), one, carry)
        body = inner.build_graph("body", {"c": after, "y": after})
        alone = self.one(ops.Squeeze(1), row)
        return self.build.add_node(ops.Scan(body, 1, 1, 1), x, alone)[1]


def make_first_position_graph(seed: int) -> Graph:
    """Return a graph with the inputs and outputs of `make_prefix_graph`."""
    return finish_prefix_graph(FirstPositionBuilder(random.Random(seed)))

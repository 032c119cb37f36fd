"""Random graphs with operations along the batch axis: loops over batch elements, merged batch axes,
and loops whose bodies read earlier positions or the whole batch.
"""

import random
from dataclasses import dataclass
from typing import Literal

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Value
from specc.ir.types import Type
from support.random_dataflow_graphs import STREAM_TYPE, DataflowGraphBuilder
from support.random_graphs import BATCH, SEQ, WIDTH

TWO = Dim.from_value(2)


@dataclass
class BatchAxisGraphBuilder(DataflowGraphBuilder):
    """Adds loops and merged batch axes to the nodes of `DataflowGraphBuilder`."""

    def step(self) -> Value:
        if self.rng.random() < 0.5:
            return super().step()
        kinds = [
            self.add_captured_stream_loop,
            self.add_captured_stream_loop,
            self.add_merged_copies,
            self.add_merged_copies,
        ]
        return self.rng.choice(kinds + ([self.add_batch_loop] if self.mixes else []))(self.stream())

    def add_batch_loop(self, x: Value) -> Value:
        """Add a loop over batch elements; return all its outputs, or the last carry."""
        inner = GraphBuilder()
        row, carry = (inner.add_input(n, Input(Type.of("f64", SEQ, WIDTH))) for n in ("x", "c"))
        after = inner.add_op(ops.Pointwise("tanh"), inner.add_op(ops.Arith("add"), row, carry))
        body = inner.build_graph("body", {"c": after, "y": after})
        zero = self.one(ops.Expand(0, SEQ), self.one(ops.Insert(0), self.weight(WIDTH)))
        last, every = self.build.add_node(ops.Scan(body, 1, 1, 0), x, zero)
        if self.rng.random() < 0.5:
            return self.one(ops.Arith("add"), x, self.one(ops.Insert(0), last))
        return every

    def add_captured_stream_loop(self, x: Value) -> Value:
        """Add a loop over `src` that captures a stream and processes it along its time axis in each
        iteration.
        """
        inner = GraphBuilder()
        row = inner.add_input("row", Input(Type.of("f64", BATCH, WIDTH)))
        carry, seen = (
            inner.add_input("y", Input(STREAM_TYPE)),
            inner.add_input("x", Input(STREAM_TYPE)),
        )
        made = self.read_earlier_positions(inner, seen)
        if self.mixes and self.rng.random() < 0.5:
            made = self.read_whole_batch(inner, made)
        made = inner.add_op(ops.Arith("mul"), made, inner.add_op(ops.Insert(1), row))
        after = inner.add_op(ops.Pointwise("tanh"), inner.add_op(ops.Arith("add"), carry, made))
        scan = ops.Scan(inner.build_graph("body", {"y": after}), 1, 1, 1)
        return self.one(scan, self.build.inputs["mem"], self.stream(), x)

    def read_earlier_positions(self, inner: GraphBuilder, x: Value) -> Value:
        """Add an operation of a loop body that reads earlier positions."""
        match self.rng.choice(["back", "far back", "sum", "own", "own", "attend", "flip"]):
            case "back":
                return inner.add_op(ops.Delay(1, 1, 0.5), x)
            case "far back":
                return inner.add_op(ops.Delay(1, 2, 0.0), inner.add_op(ops.Pointwise("tanh"), x))
            case "sum":
                return inner.add_op(ops.CumSum(1), x)
            case "flip":
                return inner.add_op(ops.Flip(1), x)
            case "attend":
                heads = inner.add_op(ops.Insert(1), x)
                return inner.add_op(
                    ops.Squeeze(1), inner.add_op(ops.Attend(0.5), heads, heads, heads, None)
                )
        return inner.add_op(ops.Pointwise("sin"), x)

    def read_whole_batch(self, inner: GraphBuilder, x: Value) -> Value:
        """Add an operation of a loop body that depends on the whole batch."""
        match self.rng.choice(["numbers", "rows", "mean", "size", "turned"]):
            case "numbers":
                at = inner.add_op(ops.Cast("f64"), inner.add_op(ops.Range(BATCH)))
            case "rows":
                at = inner.add_op(ops.Cast("f64"), inner.add_op(ops.Extent(0), x))
            case "mean":
                return inner.add_op(ops.Arith("add"), x, inner.add_op(ops.Reduce("mean", 0), x))
            case "turned":
                return inner.add_op(ops.Arith("add"), x, inner.add_op(ops.Flip(0), x))
            case _:
                return inner.add_op(
                    ops.Arith("mul"),
                    x,
                    inner.add_op(ops.Cast("f64"), inner.add_op(ops.Size(BATCH))),
                )
        return inner.add_op(
            ops.Arith("mul"), x, inner.add_op(ops.Insert(1), inner.add_op(ops.Insert(1), at))
        )

    def add_merged_copies(self, x: Value) -> Value:
        """Duplicate each batch element, merge both axes in either order, process them, and split
        the axes again.
        """
        twice = self.one(ops.Expand(1, TWO), self.one(ops.Insert(1), x))
        leading = self.rng.random() < 0.7 or not self.mixes
        if not leading:
            twice = self.one(ops.Transpose((1, 0, 2, 3)), twice)
        flat = self.one(ops.Merge(0, 2), twice)
        for _ in range(self.rng.randint(0, 2)):
            flat = self.process_merged(flat)
        after = leading if self.rng.random() < 0.8 or not self.mixes else not leading
        back = self.one(ops.Split(0, (BATCH, TWO) if after else (TWO, BATCH)), flat)
        one = self.one(ops.Index(1 if after else 0, Dim.from_value(self.rng.choice([0, 1]))), back)
        return self.one(ops.Arith("add"), x, one)

    def process_merged(self, flat: Value) -> Value:
        """Process [2 batch, seq, d] elementwise, along its features, or along its batch axis."""
        kinds = ["tanh", "linear", "linear"] + (
            ["flip", "delay", "sum", "cut", "numbers"] if self.mixes else []
        )
        match self.rng.choice(kinds):
            case "tanh":
                return self.one(ops.Pointwise("tanh"), flat)
            case "linear":
                return self.one(ops.Linear(), flat, self.weight(WIDTH, WIDTH), None)
            case "flip":
                return self.one(ops.Flip(0), flat)
            case "delay":
                return self.one(ops.Delay(0, 1, 0.0), flat)
            case "sum":
                return self.one(ops.CumSum(0), flat)
            case "numbers":
                at = self.one(ops.Cast("f64"), self.one(ops.Extent(0), flat))
                return self.one(
                    ops.Arith("mul"), flat, self.one(ops.Insert(1), self.one(ops.Insert(1), at))
                )
        half = self.one(ops.Slice(0, Dim.from_value(0), BATCH), flat)
        return self.one(ops.Concat(0), half, half)


def make_batch_axis_graph(
    seed: int, keep: Literal["left", "right", "any"] = "any", *, mixes: bool = False
) -> Graph:
    """Return a graph with the inputs and outputs of `make_dataflow_graph`."""
    builder = BatchAxisGraphBuilder(random.Random(seed), mixes=mixes)
    builder.streams.append(builder.build.add_input("x", Input(STREAM_TYPE)))
    builder.build.add_input("mem", Input(Type.of("f64", BATCH, Dim.symbol("src"), WIDTH)))
    builder.build.add_input("keep", Input(Type.of("bool", BATCH, SEQ), padding_side=keep))
    builder.build.add_input("other", Input(Type.of("bool", BATCH, SEQ)))
    for _ in range(builder.rng.randint(1, 4)):
        builder.streams.append(builder.step())
    return builder.build.build_graph("windowed", {"y": builder.streams[-1]})

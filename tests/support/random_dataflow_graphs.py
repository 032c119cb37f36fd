"""Random graphs with loops over another axis, position ids with factors, large negative scores at
masked positions, merged batch axes, pooling and rotations.
"""

import random
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Value
from specc.ir.types import Type
from support.op_examples import make_sequence_conv
from support.random_graphs import BATCH, SEQ, WIDTH, RandomGraphBuilder

SRC = Dim.symbol("src")
STREAM_TYPE = Type.of("f64", BATCH, SEQ, WIDTH)


@dataclass
class DataflowGraphBuilder(RandomGraphBuilder):
    """Adds further operations to the nodes of `RandomGraphBuilder`; with `mixes` also operations
    across batch elements.
    """

    mixes: bool = False

    def step(self) -> Value:
        if self.rng.random() < 0.45:
            return super().step()
        kinds = [
            self.add_cross_axis_loop,
            self.add_position_ids,
            self.add_low_scores,
            self.add_masked_scan,
            self.merge_batch_and_sequence,
            self.add_pooling,
            self.add_rope,
        ]
        kinds += [self.add_cross_axis_loop, self.add_position_ids, self.add_low_scores] + (
            [self.add_batch_operation] if self.mixes else []
        )
        return self.rng.choice(kinds)(self.stream())

    def sample_padding_mask(self) -> Value:
        """Return `keep`, `other`, or their conjunction."""
        keep, other = self.build.inputs["keep"], self.build.inputs["other"]
        return self.rng.choice([keep, keep, keep, other, self.one(ops.And(), keep, other)])

    def sample_position_ids(self, x: Value) -> Value:
        """Return position ids as f64[seq], sometimes with a factor."""
        at = self.one(ops.Range(SEQ)) if self.rng.random() < 0.5 else self.one(ops.Extent(1), x)
        made = self.one(ops.Cast("f64"), at)
        factor = self.rng.choice([1.0, 1.0, 2.0, -1.0])
        return (
            made
            if factor == 1.0
            else self.one(ops.Arith("mul"), made, self.one(ops.Constant(factor, "f64")))
        )

    def add_cross_axis_loop(self, x: Value) -> Value:
        """Add a loop over `src` that carries a stream; its body may read position ids, earlier
        positions, or the length.
        """
        inner = GraphBuilder()
        row = inner.add_input("row", Input(Type.of("f64", BATCH, WIDTH)))
        carry, at = (
            inner.add_input("y", Input(STREAM_TYPE)),
            inner.add_input("at", Input(Type.of("f64", 1, SEQ, 1))),
        )
        weight = inner.add_input("w", Input(Type.of("f64", WIDTH, WIDTH, 2)))
        other = inner.add_op(ops.Arith("mul"), inner.add_op(ops.Insert(1), row), at)
        after = inner.add_op(ops.Pointwise("tanh"), inner.add_op(ops.Arith("add"), carry, other))
        match self.rng.choice(["plain"] * 5 + ["look back", "ahead and back", "count", "mean"]):
            case "look back":
                after = inner.add_op(ops.Delay(1, 1, 0.5), after)
            case "ahead and back":
                after = inner.add_op(
                    ops.Delay(1, 1, 0.0),
                    inner.add_op(make_sequence_conv(2, 1, 1), after, weight, None),
                )
            case "count":
                copies = inner.add_op(ops.Expand(1, SEQ), inner.add_op(ops.Insert(1), row))
                count = inner.add_op(ops.Insert(1), inner.add_op(ops.Reduce("sum", 1), copies))
                after = inner.add_op(ops.Arith("add"), after, count)
            case "mean":
                mean = inner.add_op(ops.Insert(1), inner.add_op(ops.Reduce("mean", 1), after))
                after = inner.add_op(ops.Arith("add"), after, mean)
        used = {a for n in inner.nodes for a in n.args}
        inputs = {"row": self.build.inputs["mem"], "y": x}
        inputs["at"] = self.one(ops.Insert(2), self.one(ops.Insert(0), self.sample_position_ids(x)))
        inputs["w"] = self.weight(WIDTH, WIDTH, 2)
        for name in [n for n, v in inner.inputs.items() if v not in used]:
            del inner.inputs[name], inner.input_facts[name], inputs[name]
        scan = ops.Scan(inner.build_graph("body", {"y": after}), 1, 1, 1)
        return self.one(scan, *inputs.values())

    def add_position_ids(self, x: Value) -> Value:
        """Compare position ids: as a mask with factors, as a bias, or as a scale of a stream."""
        i, j = (self.one(ops.Insert(at), self.sample_position_ids(x)) for at in (1, 0))
        less = self.one(ops.Arith("sub"), i, j)
        match self.rng.choice(["mask", "mask", "bias", "scale", "cancel"]):
            case "mask":
                seen = self.one(ops.Compare(self.rng.choice(["ge", "gt", "eq"])), i, j)
                if self.rng.random() < 0.3:
                    two = self.one(ops.Constant(2.0, "f64"))
                    seen = self.one(ops.Compare("ge"), self.one(ops.Arith("floordiv"), i, two), j)
                return self.attend_with_mask(x, self.combine_masks(seen), None)
            case "bias":
                return self.attend_with_mask(
                    x, self.combine_masks(self.make_causal_mask(x)), self.rng.choice([less, i, j])
                )
            case "scale":
                return self.one(
                    ops.Arith("mul"), x, self.one(ops.Insert(1), self.sample_position_ids(x))
                )
        none = self.one(ops.Arith("sub"), self.sample_position_ids(x), self.sample_position_ids(x))
        return self.one(ops.Arith("add"), x, self.one(ops.Insert(1), none))

    def make_causal_mask(self, x: Value) -> Value:
        i, j = self.get_position_ids(x, 1), self.get_position_ids(x, 0)
        return self.one(ops.Compare("le"), j, i)

    def combine_masks(self, seen: Value) -> Value:
        """Combine masks [1 q k] and [b 1 k]."""
        keys = self.one(ops.Insert(1), self.sample_padding_mask())
        return (
            self.one(ops.And(), self.one(ops.Insert(0), seen), keys)
            if self.rng.random() < 0.8
            else keys
        )

    def attend_with_mask(self, x: Value, mask: Value, bias: Value | None) -> Value:
        heads = self.one(ops.Insert(1), x)
        while bias is not None and bias.type.rank < 4:
            bias = self.one(ops.Insert(0), bias)
        out = self.one(ops.Attend(0.7), heads, heads, heads, self.one(ops.Insert(1), mask), bias)
        return self.one(ops.Squeeze(1), out)

    def add_low_scores(self, x: Value) -> Value:
        """Add attention with very low scores at masked positions, and a softmax op or its
        decomposition.
        """
        seen = self.combine_masks(self.make_causal_mask(x))
        low = self.one(ops.Constant(self.rng.choice([-1e30, -1e30, float("-inf"), -2e30]), "f64"))
        scores = self.one(ops.Where(), seen, self.scores(x, self.stream()), low)
        if self.rng.random() < 0.5:
            return self.one(ops.MatMul(), self.one(ops.Softmax(2), scores), x)
        largest = self.one(ops.Insert(2), self.one(ops.Reduce("max", 2), scores))
        up = self.one(ops.Pointwise("exp"), self.one(ops.Arith("sub"), scores, largest))
        share = self.one(
            ops.Arith("div"), up, self.one(ops.Insert(2), self.one(ops.Reduce("sum", 2), up))
        )
        return self.one(ops.MatMul(), share, x)

    def add_masked_scan(self, x: Value) -> Value:
        """Add a loop along the sequence that skips padded or other positions."""
        inner = GraphBuilder()
        row, carry = (inner.add_input(n, Input(Type.of("f64", BATCH, WIDTH))) for n in ("x", "c"))
        after = inner.add_op(ops.Pointwise("tanh"), inner.add_op(ops.Arith("add"), row, carry))
        body = inner.build_graph("body", {"c": after, "y": after})
        zero = self.one(ops.Expand(0, BATCH), self.one(ops.Insert(0), self.weight(WIDTH)))
        last, every = self.build.add_node(
            ops.Scan(body, 1, 1, 1, has_mask=True), self.sample_padding_mask(), x, zero
        )
        return every if self.rng.random() < 0.7 else self.add_to_positions(x, last)

    def add_to_positions(self, x: Value, row: Value) -> Value:
        return self.one(ops.Arith("add"), x, self.one(ops.Insert(1), row))

    def add_pooling(self, x: Value) -> Value:
        """Add a vector pooled over all positions to each position: the last valid one, the maximum,
        or the mean.
        """
        kept = self.sample_padding_mask()
        match self.rng.choice(["last", "last", "max", "mean"]):
            case "last":
                least = self.one(ops.Constant(self.rng.choice([-1, -1, 0]), "i64"))
                at = self.one(
                    ops.ArgMax(1), self.one(ops.Where(), kept, self.one(ops.Extent(1), x), least)
                )
                found = self.one(ops.Gather(1), x, self.one(ops.Insert(1), at))
                return self.add_to_positions(x, self.one(ops.Squeeze(1), found))
            case "max":
                low = self.one(ops.Constant(-1e30, "f64"))
                shown = self.one(ops.Where(), self.one(ops.Insert(2), kept), x, low)
                largest = self.one(ops.Reduce("max", 1), shown)
                return self.add_to_positions(x, self.one(ops.Pointwise("tanh"), largest))
        counted = self.one(ops.Cast("f64"), self.one(ops.Insert(2), kept))
        total = self.one(ops.Reduce("sum", 1), self.one(ops.Arith("mul"), x, counted))
        count = self.one(
            ops.Arith("max"),
            self.one(ops.Reduce("sum", 1), counted),
            self.one(ops.Constant(1.0, "f64")),
        )
        return self.add_to_positions(x, self.one(ops.Arith("div"), total, count))

    def add_rope(self, x: Value) -> Value:
        """Add rotated queries and keys (RoPE), with equal or different position ids, and sometimes
        further operations on them.
        """
        at = self.one(ops.Insert(0), self.one(ops.Extent(1), x))
        twice = self.one(ops.Arith("add"), at, at) if self.rng.random() < 0.2 else at
        q, k = (self.one(ops.Insert(1), v) for v in (x, self.stream()))
        q, k = (self.one(ops.Rotate("half"), v, *self.angles(n)) for v, n in ((q, at), (k, twice)))
        two = self.one(ops.Constant(2.0, "f64"))
        match self.rng.choice(["plain", "plain", "scaled", "moved", "cut"]):
            case "scaled":
                q = self.one(ops.Arith("mul"), q, two)
            case "moved":
                q = self.one(ops.Arith("add"), q, two)
            case "cut":
                q, k = (
                    self.one(
                        ops.Slice(3, Dim.from_value(0), Dim.from_value(self.rng.choice([1, 2]))), v
                    )
                    for v in (q, k)
                )
        if q.type.shape != k.type.shape:
            return x
        mask = self.one(ops.Insert(1), self.combine_masks(self.make_causal_mask(x)))
        out = self.one(ops.Attend(0.7), q, k, self.one(ops.Insert(1), x), mask)
        return self.one(ops.Squeeze(1), out)

    def angles(self, at: Value) -> list[Value]:
        return [
            self.one(ops.Cast("f64"), a)
            for a in self.build.add_node(ops.RopeAngles(Dim.from_value(2), 10.0), at)
        ]

    def merge_batch_and_sequence(self, x: Value) -> Value:
        """Merge batch and sequence axis, process the result, and split the axes again."""
        split = self.rng.choice([(BATCH, SEQ)] * 6 + ([(SEQ, BATCH)] if self.mixes else []))
        flat = self.one(ops.Merge(0, 2), x)
        flat = self.one(ops.Linear(), flat, self.weight(WIDTH, WIDTH), None)
        made = self.one(ops.Split(0, split), flat)
        return made if split[0] == BATCH else self.one(ops.Transpose((1, 0, 2)), made)

    def add_batch_operation(self, x: Value) -> Value:
        """Add an operation that depends on the whole batch."""
        match self.rng.choice(["numbers", "extent", "mean", "size"]):
            case "numbers":
                at = self.one(ops.Cast("f64"), self.one(ops.Range(BATCH)))
            case "extent":
                at = self.one(ops.Cast("f64"), self.one(ops.Extent(0), x))
            case "mean":
                return self.one(ops.Arith("add"), x, self.one(ops.Reduce("mean", 0), x))
            case _:
                return self.one(
                    ops.Arith("mul"), x, self.one(ops.Cast("f64"), self.one(ops.Size(BATCH)))
                )
        return self.one(ops.Arith("mul"), x, self.one(ops.Insert(1), self.one(ops.Insert(1), at)))


def make_dataflow_graph(
    seed: int, keep: Literal["left", "right", "any"] = "any", *, mixes: bool = False
) -> Graph:
    """Return a graph of `x`, `mem`, `keep` and `other` with the output `y: f64[batch, seq, 3]`."""
    builder = DataflowGraphBuilder(random.Random(seed), mixes=mixes)
    builder.streams.append(builder.build.add_input("x", Input(STREAM_TYPE)))
    builder.build.add_input("mem", Input(Type.of("f64", BATCH, SRC, WIDTH)))
    builder.build.add_input("keep", Input(Type.of("bool", BATCH, SEQ), padding_side=keep))
    builder.build.add_input("other", Input(Type.of("bool", BATCH, SEQ)))
    for _ in range(builder.rng.randint(1, 4)):
        builder.streams.append(builder.step())
    return builder.build.build_graph("wide", {"y": builder.streams[-1]})


def sample_dataflow_values(
    graph: Graph, seed: int, rows: int, batch: int = 1
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return inputs and parameters for `graph`; `keep` marks all positions as valid."""
    rng = np.random.default_rng(seed)
    inputs = {"x": rng.normal(size=(batch, rows, WIDTH)), "mem": rng.normal(size=(batch, 2, WIDTH))}
    inputs |= {"keep": np.ones((batch, rows), bool), "other": rng.random((batch, rows)) < 0.6}
    weights = {
        n: rng.normal(size=[d.evaluate({}) for d in p.type.shape])
        for n, p in graph.parameters.items()
    }
    return inputs, weights

"""Random small graphs over a time axis: some causal, some not, most with a mask or a loop."""

import random
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter, Value
from specc.ir.op import Op
from specc.ir.types import Type
from support.op_examples import make_sequence_conv
from support.random_key_reductions import add_key_reduction

BATCH, SEQ, WIDTH = Dim.symbol("batch"), Dim.symbol("seq"), 3


@dataclass
class RandomGraphBuilder:
    """A builder with the streams f[batch seq 3] so far."""

    rng: random.Random
    build: GraphBuilder = field(default_factory=GraphBuilder)
    streams: list[Value] = field(default_factory=list)

    def mask_streams(self) -> tuple[Value, Value]:
        """Return the streams that provide the positions of queries and keys of a mask."""
        return self.streams[0], self.streams[0]

    def get_padding_mask(self, x: Value) -> Value:
        """Return the padding mask of a stream, bool[batch seq]."""
        return self.build.inputs["keep"]

    def stream(self) -> Value:
        return self.rng.choice(self.streams[-2:])

    def one(self, op: Op, *args: Value | None) -> Value:
        return self.build.add_op(op, *args)

    def all(self, op: Op, *args: Value | None) -> tuple[Value, ...]:
        return self.build.add_node(op, *args)

    def weight(self, *shape: int) -> Value:
        name = f"w{len(self.build.parameters)}"
        return self.build.add_parameter(
            Parameter(name=name, type=Type.of("f64", *shape), initializer="normal")
        )

    def number(self, value: int) -> Value:
        return self.one(ops.Constant(value, "i64"))

    def get_position_ids(self, x: Value, at: int) -> Value:
        """Return position ids as i[q 1] (`at` 1) or i[1 k] (`at` 0)."""
        return self.one(ops.Insert(at), self.one(ops.Extent(1), x))

    def mask(self, depth: int = 0) -> Value:
        """Return a boolean mask, [q k] or [batch q k]."""
        queries, keys = self.mask_streams()
        i, j = self.get_position_ids(queries, 1), self.get_position_ids(keys, 0)
        kind = self.rng.choice(
            ["and", "and", "or", "not", "where", *["leaf"] * 5] if depth < 3 else ["leaf"]
        )
        if kind in ("and", "or"):
            return self.one(
                ops.And() if kind == "and" else ops.Or(), self.mask(depth + 1), self.mask(depth + 1)
            )
        if kind == "not":
            return self.one(ops.Not(), self.mask(depth + 1))
        if kind == "where":
            return self.one(ops.Where(), *(self.mask(depth + 1) for _ in range(3)))
        shift, width = (
            self.number(self.rng.choice([-1, 0, 0, 0, 1])),
            self.number(self.rng.choice([1, 2, 3])),
        )
        match self.rng.choice(
            ["causal"] * 4 + ["window", "near", "self", "chunk", "keep", "strict", "limit"]
        ):
            case "causal":
                return self.one(ops.Compare("le"), j, self.one(ops.Arith("add"), i, shift))
            case "strict":
                return self.one(ops.Compare("gt"), i, j)
            case "window":
                return self.one(ops.Compare("lt"), self.one(ops.Arith("sub"), i, j), width)
            case "near":
                distance = self.one(ops.Pointwise("abs"), self.one(ops.Arith("sub"), i, j))
                return self.one(ops.Compare(self.rng.choice(["lt", "le"])), distance, width)
            case "self":
                return self.one(ops.Compare(self.rng.choice(["eq", "ne"])), i, j)
            case "chunk":
                chunks = [self.one(ops.Arith("floordiv"), n, width) for n in (i, j)]
                return self.one(ops.Compare("eq"), *chunks)
            case "limit":
                return self.one(
                    ops.Compare("le"), self.one(ops.Arith(self.rng.choice(["min", "max"])), j, i), i
                )
        return self.one(ops.Insert(1), self.get_padding_mask(keys))

    def get_initial_carry(self) -> Value:
        """Return the initial carry of a loop along the sequence, f[3]."""
        return self.weight(WIDTH)

    def gru(self, x: Value) -> Value:
        """Add a GRU; return every state, or add the final one to each position."""
        op = ops.Gru("after", reverse=self.rng.random() < 0.1)
        keep = self.get_padding_mask(x) if self.rng.random() < 0.5 else None
        weights = self.weight(3 * WIDTH, WIDTH), self.weight(3 * WIDTH, WIDTH)
        out, last = self.build.add_node(op, x, *weights, None, None, keep)
        if self.rng.random() < 0.1:
            return self.one(ops.Arith("add"), x, self.one(ops.Insert(1), last))
        return out

    def scores(self, x: Value, y: Value) -> Value:
        return self.one(ops.Einsum("b q d, b k d -> b q k"), x, y)

    def reduce_keys(self, x: Value, y: Value) -> Value:
        """Add a reduction over keys."""
        return add_key_reduction(self, x, y)

    def other_scores(self, x: Value, y: Value) -> Value:
        """Return other scores between queries and keys, [batch q k]."""
        return self.scores(y, x)

    def step(self) -> Value:
        """Return one more stream."""
        x, y = self.stream(), self.stream()
        kinds = ["linear", "add", "delay", "cumsum", "conv", "norm", "gelu", "mul", "gru"]
        kinds += ["attend", "weigh", "scan", "keys"] * 2
        kinds += ["flip", "softmax", "mean", "last", "around"] if self.rng.random() < 0.25 else []
        match self.rng.choice(kinds):
            case "linear":
                return self.one(ops.Linear(), x, self.weight(WIDTH, WIDTH), self.weight(WIDTH))
            case "add":
                return self.one(ops.Arith("add"), x, y)
            case "mul":
                return self.one(
                    ops.Where(),
                    self.one(ops.Compare("gt"), x, y),
                    x,
                    self.one(ops.Pointwise("neg"), y),
                )
            case "delay":
                return self.one(ops.Delay(1, self.rng.choice([1, 2]), 0.5), x)
            case "cumsum":
                return self.one(ops.CumSum(1), x)
            case "conv":
                ahead = self.rng.choice([0, 0, 0, 1])
                op = make_sequence_conv(self.rng.choice([2, 3]), self.rng.choice([1, 2]), ahead)
                return self.one(op, x, self.weight(WIDTH, WIDTH, *op.kernel), None)
            case "norm":
                return self.one(ops.LayerNorm(1e-3), x, None, self.weight(WIDTH))
            case "gelu":
                return self.one(ops.Pointwise("gelu"), x)
            case "attend":
                return self.attend(x, y)
            case "weigh":
                return self.weigh(x, y)
            case "scan":
                return self.scan(x, y)
            case "keys":
                return self.reduce_keys(x, y)
            case "gru":
                return self.gru(x)
            case "flip":
                return self.one(ops.Flip(1), x)
            case "softmax":
                return self.one(ops.Softmax(1), x)
            case "mean":
                every = self.one(ops.Insert(1), self.one(ops.Reduce("mean", 1), x))
                return self.one(ops.Arith("add"), y, every)
            case "last":
                return self.one(
                    ops.Arith("add"), y, self.one(ops.Insert(1), self.one(ops.Last(1), x))
                )
        scores = self.one(ops.Softmax(1), self.scores(x, y))
        return self.one(ops.MatMul(), scores, y)

    def attend(self, x: Value, y: Value) -> Value:
        mask = self.mask()
        while mask.type.rank < 4:
            mask = self.one(ops.Insert(0 if mask.type.rank < 3 else 1), mask)
        q, k = (self.one(ops.Insert(1), v) for v in (x, y))
        out, weights = self.build.add_node(ops.Attend(0.7), q, k, k, mask)
        if self.rng.random() < 0.3:
            return self.one(ops.MatMul(), self.one(ops.Squeeze(1), weights), y)
        return self.one(ops.Squeeze(1), out)

    def weigh(self, x: Value, y: Value) -> Value:
        mask = self.mask()
        op = self.rng.choice(
            [ops.MaskedSoftmax(), ops.MaskedHardmax(), ops.MaskedL1Normalization()]
        )
        weights = self.one(op, self.scores(x, y), mask)
        if self.rng.random() < 0.3:
            weights = self.one(
                ops.Arith("mul"), weights, self.one(ops.Pointwise("abs"), self.other_scores(x, y))
            )
        if self.rng.random() < 0.3:
            gate = self.one(ops.Cast("f64"), self.mask(2))
            weights = self.one(ops.Arith("mul"), weights, gate)
        if self.rng.random() < 0.5:
            return self.one(ops.Einsum("b q k, b k e -> b q e"), weights, y)
        return self.one(self.rng.choice([ops.WeightedSum(), ops.MatMul()]), weights, y)

    def scan(self, x: Value, y: Value) -> Value:
        inner = GraphBuilder()
        row_type = Type.of("f64", BATCH, WIDTH)
        row, other, carry = (inner.add_input(n, Input(row_type)) for n in ("x", "y", "c"))
        after = inner.add_op(ops.Pointwise("tanh"), inner.add_op(ops.Arith("add"), row, carry))
        seen = inner.add_op(ops.Arith("mul"), after, other)
        body = inner.build_graph("body", {"c": after, "y": seen})
        zero = self.one(ops.Expand(0, BATCH), self.one(ops.Insert(0), self.get_initial_carry()))
        reverse = self.rng.random() < 0.1
        return self.build.add_node(ops.Scan(body, 2, 1, 1, reverse=reverse), x, y, zero)[1]


def make_random_graph(seed: int, keep: Literal["left", "right", "any"] = "any") -> Graph:
    """Return a graph of `x: f64[batch, seq, 3]` and `keep: bool[batch, seq]` with the output `y:
    f64[batch, seq, 3]`.
    """
    return finish_random_graph(RandomGraphBuilder(random.Random(seed)), keep)


def finish_random_graph(
    builder: RandomGraphBuilder, keep: Literal["left", "right", "any"] = "any"
) -> Graph:
    """Add random streams to a builder and return its graph."""
    builder.streams.append(builder.build.add_input("x", Input(Type.of("f64", BATCH, SEQ, WIDTH))))
    builder.build.add_input("keep", Input(Type.of("bool", BATCH, SEQ), padding_side=keep))
    for _ in range(builder.rng.randint(2, 6)):
        builder.streams.append(builder.step())
    return builder.build.build_graph("random", {"y": builder.streams[-1]})


def sample_graph_values(
    graph: Graph, seed: int, rows: int, batch: int = 1
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return inputs and parameters for `graph`."""
    rng = np.random.default_rng(seed)
    inputs = {"x": rng.normal(size=(batch, rows, WIDTH)), "keep": rng.random((batch, rows)) < 0.8}
    weights = {
        n: rng.normal(size=[d.evaluate({}) for d in p.type.shape])
        for n, p in graph.parameters.items()
    }
    return inputs, weights

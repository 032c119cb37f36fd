"""Random graphs over streamed input: strided windows, and operations on their results."""

import random
from dataclasses import dataclass, field

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Value
from specc.ir.types import Type
from support.random_graphs import BATCH, SEQ, WIDTH, RandomGraphBuilder

MAX_STRIDE = 12


@dataclass
class StridedGraphBuilder(RandomGraphBuilder):
    """A builder whose later streams may be shorter; `keeps` maps each length to its padding mask."""

    keeps: dict[Dim, Value] = field(default_factory=dict)
    stride: int = 1
    mask_pair: tuple[Value, Value] | None = None

    def length(self) -> Dim:
        return self.streams[-1].type.shape[1]

    def stream(self) -> Value:
        """Return a recent stream with the length of the latest one."""
        alike = [s for s in self.streams if s.type.shape[1] == self.length()]
        return self.rng.choice(alike[-2:])

    def mask_streams(self) -> tuple[Value, Value]:
        return self.mask_pair or (self.streams[-1], self.streams[-1])

    def get_padding_mask(self, x: Value) -> Value:
        return self.keeps[x.type.shape[1]]

    def step(self) -> Value:
        if self.rng.random() < 0.4 and self.stride < MAX_STRIDE:
            return self.add_strided_window()
        if self.rng.random() < 0.07:
            return self.attend_across_lengths()
        if self.rng.random() < 0.07:
            return self.add_position_ids()
        return super().step()

    def add_position_ids(self) -> Value:
        """Add position ids to a stream."""
        x = self.stream()
        number = self.one(ops.Cast("f64"), self.get_position_ids(x, 1))
        return self.one(ops.Arith("add"), x, self.one(ops.Pointwise("sin"), number))

    def attend_across_lengths(self) -> Value:
        """Attend between streams of different lengths: a mask over position ids then hides keys
        that arrive at other times.
        """
        x, y = self.streams[-1], self.rng.choice(self.streams)
        self.mask_pair = x, y
        weights = self.one(ops.MaskedSoftmax(), self.scores(x, y), self.mask())
        self.mask_pair = None
        return self.one(ops.WeightedSum(), weights, y)

    def add_strided_window(self) -> Value:
        """Return a stream shortened by a stride."""
        by = self.rng.choice([2, 2, 3])
        self.stride *= by
        x, kernel = self.stream(), self.rng.choice([1, by, by, by + 1, 2 * by, 5])
        spread = self.rng.choice([1, 1, 2])
        span = spread * (kernel - 1)
        # A window that reads after its chunk is not causal; a window over fewer positions is
        # another model, with more positions at the end of a stream.
        before = span - self.rng.choice([by - 1, by - 1, by - 1, 0, by])
        kind = self.rng.choice(["conv"] * 5 + ["max", "mean", "slice", "pad"])
        if kind == "slice" or before < 0:
            lag = self.rng.randrange(by)
            picked = ops.StridedSlice(1, Dim.from_value(lag), x.type.shape[1], Dim.from_value(by))
            return self.record_mask(x, self.one(picked, x), by, lag)
        if kind == "pad" and before:
            # Equals a padded convolution, in two ops.
            x, before = self.one(ops.Pad(1, Dim.from_value(before), Dim.from_value(0)), x), 0
        # Whole chunks never read trailing padding, except in a model that is not causal.
        after = self.rng.choice([0] * 6 + [1])
        window = {"kernel": (kernel,), "stride": (by,), "pads": (before, after)}
        if kind == "max" and before < kernel:
            op = ops.MaxPool(dilation=(1,), **window)
            return self.record_mask(x, self.one(op, x), by, kernel - 1 - before - after)
        if kind == "mean" and before < kernel:
            op = ops.AveragePool(
                ceil_mode_padding=(0,), count_include_pad=self.rng.random() < 0.5, **window
            )
            return self.record_mask(x, self.one(op, x), by, kernel - 1 - before - after)
        conv = ops.Conv(dilation=(spread,), **window)
        y = self.one(conv, x, self.weight(WIDTH, WIDTH, kernel), None)
        return self.record_mask(x, y, by, span - before - after)

    def record_mask(self, x: Value, y: Value, by: int, lag: int) -> Value:
        """Record the padding mask of `y` and return `y`."""
        keep = self.keeps.get(x.type.shape[1])
        if keep is not None:
            made = self.one(ops.DownsamplePaddingMask(by, lag), keep)
            self.keeps.setdefault(made.type.shape[1], made)
        if y.type.shape[1] not in self.keeps:
            every = self.one(ops.Constant(True, "bool"))
            for axis, length in enumerate((BATCH, y.type.shape[1])):
                every = self.one(ops.Expand(axis, length), self.one(ops.Insert(axis), every))
            self.keeps[y.type.shape[1]] = every
        return y


def make_strided_graph(seed: int) -> Graph:
    """Return a graph of `x: f64[batch, seq, 3]` and `keep: bool[batch, seq]` with the output `y`,
    shortened by its strides.
    """
    builder = StridedGraphBuilder(random.Random(seed))
    b = builder.build
    builder.streams.append(b.add_input("x", Input(Type.of("f64", BATCH, SEQ, WIDTH))))
    builder.keeps[SEQ] = b.add_input("keep", Input(Type.of("bool", BATCH, SEQ), padding_side="any"))
    for _ in range(builder.rng.randint(2, 6)):
        builder.streams.append(builder.step())
    return b.build_graph("random", {"y": builder.streams[-1]})

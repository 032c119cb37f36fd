"""Random graphs that select, shift and resample positions and features."""

import random
from dataclasses import dataclass
from typing import Literal

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Value
from support.random_graphs import SEQ, RandomGraphBuilder, finish_random_graph

D = Dim.from_value


@dataclass
class GatherGraphBuilder(RandomGraphBuilder):
    """Adds such ops along the features, and sometimes along the sequence."""

    def step(self) -> Value:
        """Return one more stream."""
        kind = self.rng.random()
        if kind < 0.45:
            return super().step()
        return self.transform_features() if kind < 0.85 else self.transform_sequence()

    def transform_features(self) -> Value:
        """Apply an op to the three features of each position."""
        x = self.stream()
        match self.rng.choice(["roll", "top", "pad", "resize", "every"]):
            case "roll":
                return self.one(ops.Roll(2, D(self.rng.choice([-1, 1, 2]))), x)
            case "top":
                values, ids = self.build.add_node(ops.TopK(2, D(3)), x)
                if self.rng.random() < 0.5:
                    return values
                return self.one(ops.Cast("f64"), ids)
            case "pad":
                mode = self.rng.choice(["constant", "reflect", "edge"])
                wide = self.one(ops.Pad(2, D(1), D(2), mode), x)
                return self.one(ops.StridedSlice(2, D(0), D(6), D(2)), wide)
            case "resize":
                mode = self.rng.choice(["bilinear", "bicubic", "nearest"])
                wide = self.one(ops.Resize(2, (D(5),), mode), x)
                return self.one(ops.StridedSlice(2, D(0), D(5), D(2)), wide)
        both = self.one(ops.Concat(2), x, self.stream())
        return self.one(ops.StridedSlice(2, D(self.rng.choice([0, 1])), D(6), D(2)), both)

    def transform_sequence(self) -> Value:
        """Apply an op along the sequence; few of these ops are causal."""
        x, y = self.stream(), self.stream()
        match self.rng.choice(["roll", "head", "again", "norm", "half", "top"]):
            case "roll":
                return self.one(ops.Roll(1, D(1)), x)
            case "head":
                # pad one position of zeros, then remove it
                longer = self.one(ops.Pad(1, D(1), D(0)), x)
                return self.one(ops.Slice(1, D(1), SEQ + 1), longer)
            case "again":
                return self.one(ops.Resize(1, (SEQ,), "nearest"), x)
            case "norm":
                return self.one(ops.GroupNorm(2, D(3), 1e-3), x, None, self.weight(3))
            case "half":
                half = self.one(ops.StridedSlice(1, D(0), SEQ, D(2)), x)
                return self.one(ops.Resize(1, (SEQ,), "nearest"), half)
        best = self.one(ops.TopK(1, D(1)), x)
        return self.one(ops.Arith("add"), y, best)


def make_gather_graph(seed: int, keep: Literal["left", "right", "any"] = "any") -> Graph:
    """Return a graph like that of `make_random_graph`, with such ops."""
    return finish_random_graph(GatherGraphBuilder(random.Random(seed)), keep)

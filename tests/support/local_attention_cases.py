"""Graphs of one local attention (band mask), inputs for them, and the peak memory of a run."""

import resource
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Value
from specc.ir.types import Type
from specc_onnx import build_model, get_target
from support.onnx_sessions import open_silent_session

BATCH, SEQ = Dim.symbol("batch"), Dim.symbol("seq")


@dataclass(frozen=True, kw_only=True)
class LocalAttentionCase:
    """One attention: `low` and `high` bound `q - k`, None is unbounded.

    `apart` selects global tokens outside the band: the keys of an input, its queries, both; its
    queries only, without the band; or the first five keys.
    """

    low: int | None
    high: int | None
    heads: tuple[int, int] = (4, 2)
    widths: tuple[int, int] = (8, 6)
    keep: bool = True
    packed: bool = True
    slopes: bool = False
    sinks: bool = False
    cap: float = 0.0
    global_tokens: Literal["", "keys", "queries", "both", "alone", "first"] = ""

    def graph(self) -> Graph:
        """Return the graph with an input for each operand."""
        b = GraphBuilder()
        (h, groups), (d, e) = self.heads, self.widths
        q, k, v = (
            self._heads(b, name, heads, width)
            for name, heads, width in (("q", h, d), ("k", groups, d), ("v", groups, e))
        )
        j = b.add_op(ops.Extent(2), k)
        i = b.add_op(ops.Insert(1), b.add_op(ops.Extent(2), q))
        apart = b.add_op(ops.Arith("sub"), i, j)
        mask = self._beside(b, _in_front(b, self._band(b, apart)), j)
        if self.keep:
            kept = b.add_input("keep", Input(Type.of("bool", BATCH, SEQ), padding_side="any"))
            kept = b.add_op(ops.Insert(1), b.add_op(ops.Insert(1), kept))
            mask = b.add_op(ops.And(), mask, kept)
        added = None
        if self.slopes:
            slopes = b.add_input("slopes", Input(Type.of("f32", h, 1, 1)))
            far = b.add_op(ops.Cast("f32"), apart)
            added = b.add_op(ops.Insert(0), b.add_op(ops.Arith("mul"), slopes, far))
        sinks = b.add_input("sinks", Input(Type.of("f32", h))) if self.sinks else None
        attend = ops.Attend(d**-0.5, self.cap)
        y = b.add_node(attend, q, k, v, mask, added, sinks, scope="layer.attention")[0]
        y = b.add_op(ops.Merge(2, 2), b.add_op(ops.Transpose((0, 2, 1, 3)), y))
        return b.build_graph("attention", {"y": y})

    def _heads(self, b: GraphBuilder, name: str, heads: int, width: int) -> Value:
        if not self.packed:
            return b.add_input(name, Input(Type.of("f32", BATCH, heads, SEQ, width)))
        x = b.add_input(name, Input(Type.of("f32", BATCH, SEQ, heads * width)))
        split = b.add_op(ops.Split(2, (Dim.from_value(heads), Dim.from_value(width))), x)
        return b.add_op(ops.Transpose((0, 2, 1, 3)), split)

    def _band(self, b: GraphBuilder, apart: Value) -> Value:
        sides = []
        for fn, bound in (("ge", self.low), ("le", self.high)):
            if bound is not None:
                number = b.add_op(ops.Constant(bound, "i64"))
                sides.append(b.add_op(ops.Compare(fn), apart, number))
        return b.add_op(ops.And(), *sides) if len(sides) == 2 else sides[0]

    def _beside(self, b: GraphBuilder, mask: Value, j: Value) -> Value:
        if not self.global_tokens:
            return mask
        if self.global_tokens == "first":
            five = b.add_op(ops.Constant(5, "i64"))
            return b.add_op(ops.Or(), mask, b.add_op(ops.Compare("lt"), j, five))
        far = b.add_input("far", Input(Type.of("bool", BATCH, SEQ)))
        keys = b.add_op(ops.Insert(1), b.add_op(ops.Insert(1), far))
        queries = b.add_op(ops.Insert(3), b.add_op(ops.Insert(1), far))
        if self.global_tokens == "alone":
            return queries
        for side, name in ((keys, "keys"), (queries, "queries")):
            if self.global_tokens in (name, "both"):
                mask = b.add_op(ops.Or(), side, mask)
        return mask


def _in_front(b: GraphBuilder, grid: Value) -> Value:
    return b.add_op(ops.Insert(0), b.add_op(ops.Insert(0), grid))


def sample_inputs(graph: Graph, batch: int, rows: int) -> dict[str, Any]:
    """Return random inputs; a padding mask hides some positions, and all of the last batch element."""
    rng = np.random.default_rng(rows)
    env = {"batch": batch, "seq": rows}
    made: dict[str, Any] = {}
    for name, value in graph.inputs.items():
        shape = tuple(d.evaluate(env) for d in value.type.shape)
        made[name] = rng.normal(size=shape).astype("f4") / (100 if name == "slopes" else 1)
        if value.type.dtype == "bool":
            made[name] = rng.random(shape) < (0.03 if name == "far" else 0.6)
            made[name][1:] &= np.arange(rows) < rows // 2
    return made


def measure_peak_memory(case: LocalAttentionCase, rows: int) -> int:
    """Return the peak memory of a run in MB, without the memory of the open session."""
    graph = case.graph()
    inputs = sample_inputs(graph, 1, rows)
    session = open_silent_session(build_model(graph, get_target("ort-cpu")).model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session.run(["y"], inputs)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (after - before) // 1024

"""Slices that partition an axis become one `Split`; other slices remain. All results equal the
reference.
"""

import numpy as np
import pytest
from support.onnx_sessions import assert_outputs_match, open_silent_session

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input
from specc.ir.types import Type
from specc_onnx import build_model, get_target

WIDTH = 6
ROWS = Type("f32", (Dim.symbol("b"), Dim.symbol("t"), Dim.from_value(WIDTH)))
Pieces = list[tuple[int | str, int]]
PIECES: dict[str, tuple[Pieces, int]] = {
    "in order": ([(0, 2), (2, 3), (3, 6)], 1),
    "the last first": ([(4, 6), (0, 4)], 1),
    "with a rest": ([(0, 2), (2, 5)], 0),
    "with a gap": ([(0, 2), (3, 6)], 0),
    "over each other": ([(0, 4), (2, 6)], 0),
    "over each other, ends as a cut has them": ([(0, 4), (4, 6), (0, 6), (2, 4)], 0),
    "two ways": ([(0, 2), (2, 6), (0, 4), (4, 6)], 0),
    "one of no rows among them": ([(0, 3), (2, 2), (3, 6)], 0),
    "from where an input says": ([("t", 4), (4, 6)], 0),
    "one": ([(1, 6)], 0),
}


def make_dim(number: int | str) -> Dim:
    return Dim.from_value(number) if isinstance(number, int) else Dim.symbol(number)


def build_slices(pieces: Pieces) -> Graph:
    made = GraphBuilder()
    x = made.add_input("x", Input(ROWS))
    parts = [made.add_op(ops.Slice(2, make_dim(a), make_dim(b)), x) for a, b in pieces]
    return made.build_graph("g", {f"y{n}": part for n, part in enumerate(parts)})


@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_an_axis(name: str) -> None:
    pieces, splits = PIECES[name]
    graph = build_slices(pieces)
    x = np.random.default_rng(0).normal(size=(2, 3, WIDTH)).astype(np.float32)
    model = build_model(graph, get_target("ort-cpu")).model
    wanted = specc_numpy.evaluate_graph(graph, {"x": x}, {})
    assert_outputs_match(wanted, open_silent_session(model).run([*wanted], {"x": x}))
    assert sum(n.op_type == "Split" for n in model.graph.node) == splits

"""Scan in ONNX: carries, captures, both directions, masked positions, empty axes."""

import itertools

import numpy as np
import onnx
import pytest
from support.onnx_sessions import assert_outputs_match, open_silent_session

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input
from specc.ir.types import Type
from specc_onnx import build_model, get_target

B, T = Dim.symbol("b"), Dim.symbol("t")
LOOPS = {"onnx": "Scan", "openvino": "Loop"}
"""Targets, and the operator by which each runs over all rows."""


def build_body() -> Graph:
    """Return a body with the collected carry `h' = tanh(x w + h u)`, a step counter and a collected
    constant.
    """
    b = GraphBuilder()
    x = b.add_input("x", Input(Type.of("f32", B, 3)))
    h = b.add_input("h", Input(Type.of("f32", B, 4)))
    n = b.add_input("n", Input(Type.of("i64", B)))
    w = b.add_input("w", Input(Type.of("f32", 4, 3)))
    u = b.add_input("u", Input(Type.of("f32", 4, 4)))
    sum_ = b.add_op(
        ops.Arith("add"), b.add_op(ops.Linear(), x, w, None), b.add_op(ops.Linear(), h, u, None)
    )
    new = b.add_op(ops.Pointwise("tanh"), sum_)
    one, two = (b.add_op(ops.Constant(v, "i64")) for v in (1, 2))
    count = b.add_op(ops.Arith("add"), n, one)
    odd = b.add_op(ops.Compare("eq"), b.add_op(ops.Arith("mod"), n, two), one)
    return b.build_graph("step", {"h": new, "n": count, "y": new, "odd": odd, "w": h})


def build_graph(reverse: bool, masked: bool) -> Graph:
    b = GraphBuilder()
    keep = [b.add_input("keep", Input(Type.of("bool", B, T)))] if masked else []
    x = b.add_input("x", Input(Type.of("f32", B, T, 3)))
    h = b.add_input("h", Input(Type.of("f32", B, 4)))
    n = b.add_input("n", Input(Type.of("i64", B)))
    w = b.add_input("w", Input(Type.of("f32", 4, 3)))
    u = b.add_input("u", Input(Type.of("f32", 4, 4)))
    op = ops.Scan(build_body(), 1, 2, 1, reverse, masked)
    results = b.add_node(op, *keep, x, h, n, w, u, scope="decoder.cell")
    return b.build_graph(
        "scan", dict(zip(("last", "count", "y", "odd", "before"), results, strict=True))
    )


def make_inputs(batch: int, length: int, masked: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"x": (batch, length, 3), "h": (batch, 4), "w": (4, 3), "u": (4, 4)}
    found = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    found["n"] = np.arange(batch)
    if masked:
        found["keep"] = rng.random((batch, length)) < 0.6
    return found


@pytest.mark.parametrize(("reverse", "masked"), [*itertools.product((False, True), repeat=2)])
@pytest.mark.parametrize("opset", [17, 23, 26])
@pytest.mark.parametrize(("where", "kind"), LOOPS.items())
def test_scan_equals_the_reference(
    reverse: bool, masked: bool, opset: int, where: str, kind: str
) -> None:
    made = build_graph(reverse, masked)
    model = build_model(made, get_target(where), opset).model
    assert {n.op_type for n in model.graph.node} & {"Loop", "Scan"} == {kind}
    onnx.checker.check_model(model, full_check=True)
    session = open_silent_session(model)
    for batch, length in ((3, 5), (1, 1), (2, 0), (0, 3)):
        inputs = make_inputs(batch, length, masked)
        assert_outputs_match(
            specc_numpy.evaluate_graph(made, inputs, {}), session.run(None, inputs)
        )


@pytest.mark.parametrize("where", LOOPS)
def test_nested_scans(where: str) -> None:
    """The inner scan iterates over the features of a position and captures values of both outer
    graphs.
    """
    inner = GraphBuilder()
    x = inner.add_input("x", Input(Type.of("f32", B)))
    s = inner.add_input("s", Input(Type.of("f32", B)))
    k = inner.add_input("k", Input(Type.of("f32")))
    total = inner.add_op(ops.Arith("add"), s, inner.add_op(ops.Arith("mul"), x, k))
    step = inner.build_graph("inner", {"s": total, "y": total})
    outer = GraphBuilder()
    row = outer.add_input("row", Input(Type.of("f32", B, 3)))
    start = outer.add_input("start", Input(Type.of("f32", B)))
    scale = outer.add_input("scale", Input(Type.of("f32")))
    end, sums = outer.add_node(ops.Scan(step, 1, 1, 1), row, start, scale)
    b = GraphBuilder()
    rows = b.add_input("rows", Input(Type.of("f32", B, T, 3)))
    first = b.add_input("first", Input(Type.of("f32", B)))
    factor = b.add_input("factor", Input(Type.of("f32")))
    whole = b.add_node(
        ops.Scan(outer.build_graph("outer", {"s": end, "y": sums}), 1, 1, 1), rows, first, factor
    )
    made = b.build_graph("nested", {"end": whole[0], "sums": whole[1]})
    session = open_silent_session(build_model(made, get_target(where)).model)
    rng = np.random.default_rng(0)
    inputs = {
        "rows": rng.standard_normal((2, 5, 3)).astype(np.float32),
        "first": np.ones(2, np.float32),
        "factor": np.array(0.5, np.float32),
    }
    assert_outputs_match(specc_numpy.evaluate_graph(made, inputs, {}), session.run(None, inputs))

"""Experts in ONNX: invalid expert ids, repeated experts, tokens of any rank, narrow weights."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from support.onnx_sessions import assert_outputs_match, open_silent_session

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter
from specc.ir.types import Type
from specc_onnx import build_model, get_target
from specc_onnx.lower.onnx_targets import NUMPY_DTYPES, ONNX_TYPE_CODES

N, K = Dim.symbol("n"), Dim.symbol("k")
FORMS = pytest.mark.parametrize("experts", [5, 18], ids=["one by one", "loop"])


def build_body(axes: int) -> Graph:
    """Return a body that computes `tanh(x · wᵀ + shared)` with leading axes of length 1."""
    b = GraphBuilder()
    shape = (*[Dim.from_value(1)] * axes, Dim.symbol("routed"), Dim.from_value(3))
    x = b.add_input("rows", Input(Type("f32", shape)))
    w = b.add_input("own w", Input(Type.of("f32", 4, 3)))
    shared = b.add_input("shared", Input(Type.of("f32", 4)))
    made = b.add_op(ops.Linear(), x, w, shared)
    return b.build_graph("body", {"y": b.add_op(ops.Pointwise("tanh"), made)})


def build_graph(experts: int, *lead: Dim, ids: str = "i64", masked: bool = False) -> Graph:
    b = GraphBuilder()
    x = b.add_input("x", Input(Type("f32", (*lead, Dim.from_value(3)))))
    numbers = b.add_input("ids", Input(Type(ids, (*lead, K))))
    gates = b.add_input("gates", Input(Type("f32", (*lead, K))))
    keep = [b.add_input("keep", Input(Type("bool", lead)))] if masked else []
    w = b.add_parameter(
        Parameter(name="w", type=Type.of("f32", experts, 4, 3), initializer="zeros")
    )
    shared = b.add_input("shared", Input(Type.of("f32", 4)))
    op = ops.MixtureOfExperts(build_body(len(lead) - 1), Dim.from_value(experts), 1, masked)
    made = b.add_op(op, x, numbers, gates, *keep, w, shared, scope="moe")
    return b.build_graph("routed", {"y": made})


def make_inputs(lead: tuple[int, ...], k: int, low: int, high: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "x": rng.normal(size=(*lead, 3)).astype(np.float32),
        "ids": rng.integers(low, high, (*lead, k)),
        "gates": rng.normal(size=(*lead, k)).astype(np.float32),
        "keep": rng.random(lead) < 0.6,
        "shared": rng.normal(size=4).astype(np.float32),
    }


WEIGHT = np.random.default_rng(4).normal(size=(18, 4, 3)).astype(np.float32)


def compute_expected(made: Graph, x: dict[str, np.ndarray], w: np.ndarray) -> np.ndarray:
    """Compute token by token and expert by expert."""
    lead = x["x"].shape[:-1]
    y = np.zeros((*lead, 4))
    for at in np.ndindex(*lead):
        if "keep" in made.inputs and not x["keep"][at]:
            continue
        for e, gate in zip(x["ids"][at], x["gates"][at], strict=True):
            if 0 <= e < len(w):
                y[at] += gate * np.tanh(w[e].astype(float) @ x["x"][at] + x["shared"])
    return y


LEADS = [
    ((N,), (7,)),
    ((N, Dim.from_value(2)), (3, 2)),
    ((N, Dim.from_value(2), Dim.from_value(2)), (2, 2, 2)),
]


@FORMS
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("lead", "sizes"), LEADS, ids=["n", "n 2", "n 2 2"])
@pytest.mark.parametrize("opset", [17, 23, 26])
def test_invalid_and_repeated_expert_ids(
    opset: int, lead: tuple[Dim, ...], sizes: tuple[int, ...], masked: bool, experts: int
) -> None:
    made, weight = build_graph(experts, *lead, masked=masked), WEIGHT[:experts]
    built = build_model(made, get_target("onnx"), opset)
    built.weights["w"].raw_data = weight.tobytes()
    onnx.checker.check_model(built.model, full_check=True)
    session = open_silent_session(built.model)
    for k, low, high in ((3, -2, experts + 2), (2, 1, 2), (1, experts, experts + 1), (0, 0, 1)):
        x = make_inputs(sizes, k, low, high)
        x = {n: v for n, v in x.items() if n in made.inputs}
        wanted = compute_expected(made, x, weight)
        found = specc_numpy.evaluate_graph(made, x, {"w": weight})["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)
        assert_outputs_match({"y": wanted}, session.run(None, x))


@FORMS
def test_int32_expert_ids(experts: int) -> None:
    made, weight = build_graph(experts, N, ids="i32"), WEIGHT[:experts]
    built = build_model(made, get_target("onnx"), 20)
    built.weights["w"].raw_data = weight.tobytes()
    x = make_inputs((6,), 2, 0, experts)
    x = {n: v for n, v in x.items() if n in made.inputs}
    x["ids"] = x["ids"].astype(np.int32)
    assert_outputs_match(
        {"y": compute_expected(made, x, weight)}, open_silent_session(built.model).run(None, x)
    )


@FORMS
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_only_the_slice_of_an_expert_is_widened(dtype: str, experts: int) -> None:
    made = build_graph(experts, N)
    built = build_model(made, get_target("onnx"), 20, storage_dtypes={"w": dtype})
    short = WEIGHT[:experts].astype(NUMPY_DTYPES[dtype])
    assert built.weights["w"].data_type == ONNX_TYPE_CODES[dtype]
    built.weights["w"].raw_data = short.tobytes()
    readers = [n.op_type for n in built.model.graph.node if "w" in n.input]
    assert readers == (["Split"] if experts == 5 else [])
    x = make_inputs((6,), 2, 0, experts)
    x = {n: v for n, v in x.items() if n in made.inputs}
    wanted = compute_expected(made, x, short.astype(np.float32))
    assert_outputs_match({"y": wanted}, open_silent_session(built.model).run(None, x))


def test_target_limits_unrolled_experts() -> None:
    made = build_graph(5, N)
    for few, form in ((5, "If"), (4, "Loop")):
        built = build_model(made, replace(get_target("onnx"), max_unrolled_experts=few), 20)
        kinds = {n.op_type for n in built.model.graph.node}
        assert kinds & {"If", "Loop"} == {form}


@pytest.mark.parametrize(("width", "form"), [(8, "If"), (1 << 22, "Loop")])
def test_large_experts_are_a_loop(width: int, form: str) -> None:
    """16 experts of 16 Mi elements take more than 256 MiB."""
    b = GraphBuilder()
    x = b.add_input("x", Input(Type("f32", (N, Dim.from_value(width)))))
    ids = b.add_input("ids", Input(Type("i64", (N, K))))
    gates = b.add_input("gates", Input(Type("f32", (N, K))))
    inner = GraphBuilder()
    shape = (Dim.symbol("routed"), Dim.from_value(width))
    rows = inner.add_input("rows", Input(Type("f32", shape)))
    own = inner.add_input("own", Input(Type.of("f32", 4, width)))
    made = inner.build_graph("body", {"y": inner.add_op(ops.Linear(), rows, own, None)})
    facts = Parameter(name="w", type=Type.of("f32", 16, 4, width), initializer="zeros")
    op = ops.MixtureOfExperts(made, Dim.from_value(16), 1)
    y = b.add_op(op, x, ids, gates, b.add_parameter(facts))
    built = build_model(b.build_graph("routed", {"y": y}), get_target("onnx"), 20)
    kinds = {n.op_type for n in built.model.graph.node}
    assert kinds & {"If", "Loop"} == {form}

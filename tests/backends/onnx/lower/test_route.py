"""Experts in ONNX, from the op alone: numbers that name nobody, experts named twice, rows
of any form, weights that lie in fewer bits.
"""

import ml_dtypes
import numpy as np
import onnx
import pytest
from support.onnx_runtime import agree, open_quietly

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Parameter
from specc.ir.types import Type
from specc_onnx import build, target
from specc_onnx.lower.elements import CODE

N, K = Dim.symbol("n"), Dim.symbol("k")
EXPERTS = 5


def body(axes: int) -> Graph:
    """`tanh(rows · wᵀ + shared)` behind axes of 1."""
    b = Builder()
    shape = (*[Dim.of(1)] * axes, Dim.symbol("routed"), Dim.of(3))
    x = b.input("rows", Input(Type("f32", shape)))
    w = b.input("own w", Input(Type.of("f32", 4, 3)))
    shared = b.input("shared", Input(Type.of("f32", 4)))
    made = b.one(ops.Linear(), x, w, shared)
    return b.finish("body", {"y": b.one(ops.Pointwise("tanh"), made)})


def graph(*lead: Dim, ids: str = "i64", masked: bool = False) -> Graph:
    b = Builder()
    x = b.input("x", Input(Type("f32", (*lead, Dim.of(3)))))
    numbers = b.input("ids", Input(Type(ids, (*lead, K))))
    gates = b.input("gates", Input(Type("f32", (*lead, K))))
    keep = [b.input("keep", Input(Type("bool", lead)))] if masked else []
    w = b.parameter(
        Parameter(name="w", type=Type.of("f32", EXPERTS, 4, 3), initial="zeros")
    )
    shared = b.input("shared", Input(Type.of("f32", 4)))
    op = ops.Route(body(len(lead) - 1), Dim.of(EXPERTS), 1, masked)
    made = b.one(op, x, numbers, gates, *keep, w, shared, scope="moe")
    return b.finish("routed", {"y": made})


def given(lead: tuple[int, ...], k: int, low: int, high: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "x": rng.normal(size=(*lead, 3)).astype(np.float32),
        "ids": rng.integers(low, high, (*lead, k)),
        "gates": rng.normal(size=(*lead, k)).astype(np.float32),
        "keep": rng.random(lead) < 0.6,
        "shared": rng.normal(size=4).astype(np.float32),
    }


WEIGHT = np.random.default_rng(4).normal(size=(EXPERTS, 4, 3)).astype(np.float32)


def by_hand(made: Graph, x: dict[str, np.ndarray], w: np.ndarray) -> np.ndarray:
    """One row and one of its experts after the other."""
    lead = x["x"].shape[:-1]
    y = np.zeros((*lead, 4))
    for at in np.ndindex(*lead):
        if "keep" in made.inputs and not x["keep"][at]:
            continue
        for e, gate in zip(x["ids"][at], x["gates"][at], strict=True):
            if 0 <= e < EXPERTS:
                y[at] += gate * np.tanh(w[e].astype(float) @ x["x"][at] + x["shared"])
    return y


LEADS = [((N,), (7,)), ((N, Dim.of(2)), (3, 2)), ((N, Dim.of(2), Dim.of(2)), (2, 2, 2))]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("lead", "sizes"), LEADS, ids=["n", "n 2", "n 2 2"])
@pytest.mark.parametrize("opset", [17, 23, 26])
def test_numbers_that_name_nobody_and_experts_named_twice(
    opset: int, lead: tuple[Dim, ...], sizes: tuple[int, ...], masked: bool
) -> None:
    made = graph(*lead, masked=masked)
    built = build(made, target("onnx"), opset)
    built.weights["w"].raw_data = WEIGHT.tobytes()
    onnx.checker.check_model(built.model, full_check=True)
    session = open_quietly(built.model)
    for k, low, high in (
        (3, -2, EXPERTS + 2),
        (2, 1, 2),
        (1, EXPERTS, EXPERTS + 1),
        (0, 0, 1),
    ):
        x = given(sizes, k, low, high)
        x = {n: v for n, v in x.items() if n in made.inputs}
        wanted = by_hand(made, x, WEIGHT)
        found = specc_numpy.run(made, x, {"w": WEIGHT})["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)
        agree({"y": wanted}, session.run(None, x))


def test_whole_numbers_of_32_bits() -> None:
    made = graph(N, ids="i32")
    built = build(made, target("onnx"), 20)
    built.weights["w"].raw_data = WEIGHT.tobytes()
    x = given((6,), 2, 0, EXPERTS)
    x = {n: v for n, v in x.items() if n in made.inputs}
    x["ids"] = x["ids"].astype(np.int32)
    agree({"y": by_hand(made, x, WEIGHT)}, open_quietly(built.model).run(None, x))


def test_of_weights_in_fewer_bits_only_the_part_of_an_expert_is_widened() -> None:
    made = graph(N)
    built = build(made, target("onnx"), 20, stored={"w": "f16"})
    half = WEIGHT.astype(np.float16)
    built.weights["w"].raw_data = half.tobytes()
    assert not [n for n in built.model.graph.node if "w" in n.input]
    x = given((6,), 2, 0, EXPERTS)
    x = {n: v for n, v in x.items() if n in made.inputs}
    agree({"y": by_hand(made, x, half)}, open_quietly(built.model).run(None, x))


def test_bfloat16_too() -> None:
    made = graph(N)
    built = build(made, target("onnx"), 20, stored={"w": "bf16"})
    short = WEIGHT.astype(ml_dtypes.bfloat16)
    built.weights["w"].raw_data = short.tobytes()
    assert built.weights["w"].data_type == CODE["bf16"]
    x = given((6,), 2, 0, EXPERTS)
    x = {n: v for n, v in x.items() if n in made.inputs}
    wanted = by_hand(made, x, short.astype(np.float32))
    agree({"y": wanted}, open_quietly(built.model).run(None, x))

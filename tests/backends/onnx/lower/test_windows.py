"""Convolutions and pooling of every form in ONNX Runtime equal the reference at every opset, also
for empty batches and sequences that are too short.
"""

import random

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from support.onnx_sessions import assert_outputs_match, open_silent_session
from support.parameter_sweeps import sample_sweep

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input
from specc.ir.op import Op
from specc.ir.types import Type
from specc_onnx import build_model, get_target

B, N, M = Dim.symbol("b"), Dim.symbol("n"), Dim.symbol("m")
Array = NDArray[np.float32]


def sample_window_op(rng: random.Random, axes: int) -> tuple[Op, tuple[int, ...] | None]:
    """Return a random op over sequences or images of four channels, and the shape of its weight."""
    kernel = tuple(rng.randint(1, 4) for _ in range(axes))
    stride = tuple(rng.randint(1, 3) for _ in range(axes))
    dilation = tuple(rng.randint(1, 2) for _ in range(axes))
    kind = rng.choice(("conv", "transposed", "max", "average"))
    plain = kind == "average"
    spans = [(k - 1) * (1 if plain else d) for k, d in zip(kernel, dilation, strict=True)]
    most = spans if kind in ("max", "average") else [3] * axes
    pads = tuple(rng.randint(0, n) for n in (*most, *most))
    groups = rng.choice((1, 2, 4))
    match kind:
        case "conv":
            op: Op = ops.Conv(kernel, stride, dilation, pads, Dim.from_value(groups))
            return op, (8, 4 // groups, *kernel)
        case "transposed":
            cut = tuple(min(p, n // 2) for p, n in zip(pads, (*spans, *spans), strict=True))
            op = ops.ConvTranspose(kernel, stride, dilation, cut, Dim.from_value(groups))
            return op, (4, 8 // groups, *kernel)
        case "max":
            return ops.MaxPool(kernel, stride, dilation, pads), None
    room = [min(s - 1, n - p) for s, n, p in zip(stride, spans, pads[axes:], strict=True)]
    extra = tuple(rng.randint(0, n) for n in room)
    return ops.AveragePool(kernel, stride, pads, extra, rng.random() < 0.5), None


def build_graph(op: Op, weight: tuple[int, ...] | None, axes: int) -> Graph:
    shape = (B, N, Dim.from_value(4)) if axes == 1 else (B, Dim.from_value(4), N, M)
    made = GraphBuilder()
    x = made.add_input("x", Input(Type("f32", shape)))
    args = [x]
    if weight is not None:
        args.append(made.add_input("w", Input(Type.of("f32", *weight))))
        args.append(made.add_input("bias", Input(Type.of("f32", 8))))
    return made.build_graph("g", {"y": made.add_op(op, *args)})


def make_values(graph: Graph, sizes: dict[str, int], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal([d.evaluate(sizes) for d in v.type.shape]).astype(np.float32)
        for name, v in graph.inputs.items()
    }


SIZES = ({"b": 2, "n": 9, "m": 8}, {"b": 1, "n": 13, "m": 16}, {"b": 0, "n": 9, "m": 9})
FEW = (*({"b": 2, "n": n, "m": 9} for n in range(4)),)


@pytest.mark.parametrize("opset", sample_sweep(range(17, 27)))
@pytest.mark.parametrize("axes", [1, 2])
def test_random_windows_equal_the_reference(opset: int, axes: int) -> None:
    rng = random.Random(100 * opset + axes)
    for seed in range(6):
        op, weight = sample_window_op(rng, axes)
        graph = build_graph(op, weight, axes)
        session = open_silent_session(build_model(graph, get_target("onnx"), opset=opset).model)
        for sizes in (*SIZES, *FEW):
            given = make_values(graph, sizes, seed)
            if has_too_few_positions(graph, given):
                with pytest.raises(STOPS):
                    session.run(None, given)
            else:
                wanted = specc_numpy.evaluate_graph(graph, given, {})
                assert_outputs_match(wanted, session.run(None, given))


STOPS = (
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
)


def has_too_few_positions(graph: Graph, given: dict[str, Array]) -> bool:
    """Return True if the reference rejects these inputs because they have too few positions."""
    try:
        specc_numpy.evaluate_graph(graph, given, {})
    except SpeccError as refused:
        return [d.code for d in refused.diagnostics] == ["E0912"]
    return False

"""Models for CUDA compute the same results on the CPU, and contain only nodes that have a CUDA
kernel for their dtype.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from support.cuda_kernels import (
    COMPUTE_DTYPES,
    build_op_models,
    build_spec_models,
    list_missing_kernels,
    read_signatures,
)
from support.onnx_sessions import assert_outputs_match, open_silent_session
from support.small_configs import SMALL_CONFIGS

import specc
import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input
from specc.ir.types import Type
from specc.transforms.mixed_precision import HalfDtype
from specc_onnx import build_model, get_target
from specc_onnx.lower.onnx_targets import MIN_OPSET

INT4 = onnx.TensorProto.INT4
SOME = ("bert", "dates", "detr", "llama", "rnn_attention", "t5", "wav2vec2")
UNMEASURED = {
    "GridSample 22 float>float",
    "Gather 13 double,int64>double",
    *(f"MatMulNBits 1 {t},uint8,{t},uint8>{t}" for t in ("float", "float16", "bfloat16")),
}
"""Of ops added since the list was read on a GPU. `benchmarks/gpu_kernels.py` renews the list."""
B, N, M = Dim.symbol("b"), Dim.symbol("n"), Dim.symbol("m")


@pytest.mark.parametrize(
    "width", [pytest.param(w, marks=[pytest.mark.parity] * (w != "bf16")) for w in COMPUTE_DTYPES]
)
def test_every_op_has_kernels(width: HalfDtype) -> None:
    """Includes ops that no built-in spec uses, or not in this dtype."""
    found = {
        name: lack
        for name, model in build_op_models(width)
        if (lack := list_missing_kernels(model) - UNMEASURED)
    }
    assert not found


@pytest.mark.parametrize("width", ["f16", "bf16"])
def test_every_op_is_valid_at_the_oldest_opset(width: HalfDtype) -> None:
    """Operators got bfloat16 support in different opsets. 4-bit weights in the standard's form are
    rejected at the oldest opset (E0851).
    """
    for name, model in build_op_models(width, opset=MIN_OPSET):
        if any(t.type.tensor_type.elem_type == INT4 for t in model.graph.input):
            continue
        onnx.checker.check_model(model, full_check=True)
        assert model.opset_import[0].version == MIN_OPSET, name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(s, marks=pytest.mark.parity if s in SOME else pytest.mark.slow)
        for s in SMALL_CONFIGS
    ],
)
def test_every_spec_has_kernels(name: str) -> None:
    for width in COMPUTE_DTYPES:
        for label, model in build_spec_models(name, width):
            assert not list_missing_kernels(model), (label, width)


def test_missing_kernel_is_detected() -> None:
    """The list of missing kernels is not empty for these nodes."""
    made = GraphBuilder()
    x = made.add_input("x", Input(Type("f32", (B, Dim.from_value(4), N, M))))
    pool = made.add_op(ops.MaxPool((2, 2), (1, 1), (1, 1), (0, 0, 0, 0)), x)
    graph = made.build_graph("g", {"y": pool})
    assert list_missing_kernels(build_model(graph, get_target("onnx")).model) == {
        "MaxPool 22 float>float"
    }
    assert not list_missing_kernels(build_model(graph, get_target("ort-cuda")).model)
    assert len(read_signatures()) > 200


def list_pooling_cases() -> list[tuple[ops.MaxPool, Graph]]:
    """Pooling over sequences and images with all kinds of strides, dilations and padding."""
    rng = np.random.default_rng(0)
    found = []
    for axes in (1, 2) * 5:
        kernel, stride, dilation, *pads = (
            tuple(map(int, rng.integers(low, high, axes)))
            for low, high in ((1, 5), (1, 4), (1, 3), (0, 6), (0, 6))
        )
        op = ops.MaxPool(kernel, stride, dilation, (*pads[0], *pads[1]))
        shape = (B, N, Dim.from_value(4)) if axes == 1 else (B, Dim.from_value(4), N, M)
        made = GraphBuilder()
        x = made.add_input("x", Input(Type("f32", shape)))
        found.append((op, made.build_graph("g", {"y": made.add_op(op, x)})))
    return found


@pytest.mark.parametrize(("op", "graph"), list_pooling_cases())
def test_max_pool_from_slices(op: ops.MaxPool, graph: Graph) -> None:
    """In f32 and f16, whose padding value has its own dtype."""
    for dtype in ("f32", "f16"):
        made = GraphBuilder()
        x = graph.inputs["x"].type
        given = made.add_input("x", Input(replace(x, dtype=dtype)))
        of_type = made.build_graph("g", {"y": made.add_op(op, given)})
        # of a window of nothing but padding the processor's f32 kernel gives a number
        names = ("ort-cuda",) if dtype == "f32" else ("onnx", "ort-cuda")
        for name in names:
            session = open_silent_session(build_model(of_type, get_target(name)).model)
            kind = np.float32 if dtype == "f32" else np.float16
            shape = [d.evaluate({"b": 2, "n": 12, "m": 15}) for d in x.shape]
            drawn = np.random.default_rng(1).standard_normal(shape).astype(kind)
            want = specc_numpy.evaluate_graph(of_type, {"x": drawn}, {})
            assert_outputs_match(want, session.run(None, {"x": drawn}))


@pytest.mark.parametrize("dtype", ["i64", "i32"])
def test_arg_max_of_integers_returns_the_first_maximum(dtype: str) -> None:
    made = GraphBuilder()
    x = made.add_input("x", Input(Type(dtype, (B, Dim.from_value(6), N))))
    graph = made.build_graph("g", {"y": made.add_op(ops.ArgMax(1), x)})
    session = open_silent_session(build_model(graph, get_target("ort-cuda")).model)
    kind = np.int64 if dtype == "i64" else np.int32
    drawn = np.random.default_rng(0).integers(-2, 2, (3, 6, 50)).astype(kind)
    assert_outputs_match(
        specc_numpy.evaluate_graph(graph, {"x": drawn}, {}), session.run(None, {"x": drawn})
    )


class TopK(OpRun):
    """The kernel of the CUDA provider, as measured on an H200: the axis is padded with the lowest
    number up to a power of two, and equal elements of more than 256 are in an arbitrary order.
    """

    op_domain = ""

    def _run(
        self, x: np.ndarray, k: np.ndarray, axis: int = -1, largest: int = 1, sorted: int = 1
    ) -> tuple[np.ndarray, ...]:
        assert sorted
        rows = np.moveaxis(x, axis, -1)
        length = rows.shape[-1]
        limits = np.finfo(x.dtype) if x.dtype.kind == "f" else np.iinfo(x.dtype)
        ends = [(0, 0)] * (x.ndim - 1) + [(0, 2 ** max(length - 1, 1).bit_length() - length)]
        padded = np.pad(rows, ends, constant_values=limits.min if largest else limits.max)
        tie_order = np.arange(padded.shape[-1])
        if length > 256:
            tie_order = np.random.default_rng(length).permutation(tie_order)
        keys = padded[..., tie_order].astype(np.float64)
        order = tie_order[np.argsort(-keys if largest else keys, axis=-1, kind="stable")]
        order = order[..., : int(k[0])]
        values = np.take_along_axis(padded, order, -1)
        return np.moveaxis(values, -1, axis), np.moveaxis(order, -1, axis).astype(np.int64)


class GatherElements(OpRun):
    """The operator for more than 64 indices, which the evaluator of ONNX does not support."""

    op_domain = ""

    def _run(self, x: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray, ...]:
        return (np.take_along_axis(x, indices, axis),)


TOP_K_CASES = [
    (op, dtype, width)
    for op in (
        *(ops.Sort(1, descending=descending) for descending in (False, True)),
        *(ops.TopK(1, Dim.from_value(5), largest=largest) for largest in (False, True)),
    )
    for dtype in ("f32", "i64")
    for width in (7, 200, 300, None)
]


@pytest.mark.parametrize(("op", "dtype", "width"), TOP_K_CASES)
def test_top_k_is_stable_and_accepts_infinities(
    op: ops.Sort | ops.TopK, dtype: str, width: int | None
) -> None:
    made = GraphBuilder()
    axis = N if width is None else Dim.from_value(width)
    x = made.add_input("x", Input(Type(dtype, (B, axis, M))))
    values, indices = made.add_node(op, x)
    graph = made.build_graph("g", {"values": values, "indices": indices})
    model = build_model(graph, get_target("ort-cuda")).model
    shape = (2, width or 400, 3)
    rng = np.random.default_rng(0)
    if dtype == "f32":
        drawn = rng.choice([-np.inf, -1.0, 0.5, 2.0, np.inf], shape).astype(np.float32)
    else:
        drawn = rng.integers(-2, 3, shape)
    computed = ReferenceEvaluator(model, new_ops=[TopK, GatherElements]).run(None, {"x": drawn})
    assert_outputs_match(specc_numpy.evaluate_graph(graph, {"x": drawn}, {}), computed)
    # the kernels of the CPU give the same results
    session = open_silent_session(model)
    assert_outputs_match(
        specc_numpy.evaluate_graph(graph, {"x": drawn}, {}), session.run(None, {"x": drawn})
    )


def test_used_attention_weights_are_computed_without_the_kernel(tmp_path: Path) -> None:
    """The CUDA kernel of `Attention` returns no weights, so attention is decomposed if its weights
    are used.
    """
    path = tmp_path / "bert.onnx"
    tap = "bert.encoder.layer.0.attention:weights"
    options = {"init": 1, "target": "ort-cuda", "taps": [tap]}
    specc.compile("bert", path, set=SMALL_CONFIGS["bert"], **options)
    nodes = onnx.load(path).graph.node
    modes = [a.name for n in nodes for a in n.attribute if n.op_type == "Attention"]
    assert "qk_matmul_output_mode" not in modes
    assert len([n for n in nodes if n.op_type == "Softmax"]) == 1

"""Opening and running models: input checks before ONNX Runtime, and diagnostics for its errors."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from support.decoder_graphs import build_decoder, sample_parameters

from specc.diagnostics.diagnostic import SpeccError
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Input
from specc.ir.types import Type
from specc_onnx import build_model, get_target
from specc_onnx.execution_providers import get_ort_provider
from specc_onnx.ort_model import OrtModel
from specc_onnx.ort_session import open_serialized_ort_model


def open_two_input_model() -> OrtModel:
    b = GraphBuilder()
    n = Dim.symbol("n")
    x = b.add_input("left", Input(Type.of("f32", n, 2)))
    y = b.add_input("right", Input(Type.of("f32", n, 2)))
    graph = b.build_graph(
        "sum", {"sum": b.add_op(ops.Arith("add"), x, y), "rest": b.add_op(ops.Arith("sub"), x, y)}
    )
    return open_serialized_ort_model(
        build_model(graph, get_target("onnx")).model.SerializeToString(), name="sum.onnx"
    )


@pytest.mark.skipif(os.name != "posix", reason="names are text there")
def test_directory_name_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"bad\xff")
    model = build_model(
        GraphBuilder().build_graph("g", {}), get_target("onnx")
    ).model.SerializeToString()
    with pytest.raises(SpeccError, match=r"E0923(.|\n)*is not UTF-8"):
        open_serialized_ort_model(model, directory=directory)


def make_f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_all_or_selected_outputs_by_name() -> None:
    model = open_two_input_model()
    assert set(model.run({"left": make_f32(3, 2), "right": make_f32(3, 2)})) == {"sum", "rest"}
    assert set(
        model.run({"left": make_f32(3, 2), "right": make_f32(3, 2)}, output_names=("rest",))
    ) == {"rest"}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"left": make_f32(3, 2)}, "E0910: missing model input `right`"),
        (
            {"left": make_f32(3, 2), "right": make_f32(3, 2), "rihgt": make_f32(1)},
            "E0910: unknown model input `rihgt`",
        ),
        (
            {"left": make_f32(3, 2), "right": make_f32(1, 2)},
            "E0912: `n` is 3 in `left` but 1 in `right`",
        ),
        (
            {"left": make_f32(3, 4), "right": make_f32(3, 2)},
            "E0912: `left` has length 4 along axis 1, expected 2",
        ),
        ({"left": make_f32(3), "right": make_f32(3, 2)}, "E0911: `left` has 1 axes, expected 2"),
        (
            {"left": np.ones((3, 2)), "right": make_f32(3, 2)},
            "E0907: the input `left` has element type float64, expected float32",
        ),
    ],
)
def test_errors_name_invalid_inputs(inputs: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(SpeccError) as caught:
        open_two_input_model().run(inputs)
    (found,) = caught.value.diagnostics
    assert f"{found.code}: {found.title}" == message


def test_any_byte_order_and_strides() -> None:
    model = open_two_input_model()
    x = np.arange(6, dtype=np.float32).reshape(2, 3).T
    got = model.run({"left": x.astype(">f4"), "right": x})["sum"]
    assert (got == 2 * x).all()


def test_unknown_provider_gets_a_suggestion() -> None:
    with pytest.raises(SpeccError, match=r"E0921\]: unknown execution provider `cdua`") as caught:
        get_ort_provider("cdua")
    assert caught.value.diagnostics[0].helps == ("did you mean `cuda`?",)
    with pytest.raises(SpeccError) as caught:
        get_ort_provider("gpu")
    assert caught.value.diagnostics[0].helps == ("did you mean `cuda`?",)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="needs an ONNX Runtime without CUDA",
)
def test_missing_provider_is_an_error_without_fallback() -> None:
    with pytest.raises(
        SpeccError, match=r"E0922\]: the execution provider `cuda` is not available"
    ):
        open_serialized_ort_model(b"", "cuda")


def test_invalid_model_is_a_one_line_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpeccError, match=r"E0923\]: ONNX Runtime cannot load"):
        open_serialized_ort_model(b"no protobuf at all")
    assert capfd.readouterr() == ("", "")


def test_run_time_error_is_a_diagnostic_without_output(capfd: pytest.CaptureFixture[str]) -> None:
    """An id outside the table cannot be detected before the run."""
    graph = build_decoder()
    built = build_model(graph, get_target("onnx"))
    for name, array in sample_parameters(graph).items():
        built.weights[name].raw_data = array.tobytes()
    model = open_serialized_ort_model(built.model.SerializeToString(), name="decoder.onnx")
    with pytest.raises(
        SpeccError, match=r"E0924\]: `decoder\.onnx` failed while running"
    ) as caught:
        model.run({"tokens": np.array([[11]])})
    assert "indices element out of data bounds" in caught.value.diagnostics[0].notes[0]
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def enable_interrupts() -> Iterator[None]:
    """Enable Ctrl-C, also if the parent process ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("enable_interrupts")
def test_interrupt_stops_a_long_run() -> None:
    """A loop that would run for minutes; the thread that handles Ctrl-C is not blocked."""
    value = helper.make_tensor_value_info
    turn, more = value("i", onnx.TensorProto.INT64, []), onnx.TensorProto.BOOL
    inside = [turn, value("more", more, []), value("x", onnx.TensorProto.FLOAT, ["n"])]
    after = [value("more.after", more, []), value("x.after", onnx.TensorProto.FLOAT, ["n"])]
    nodes = [
        helper.make_node("Identity", ["more"], ["more.after"]),
        helper.make_node("Sin", ["x"], ["x.after"]),
    ]
    body = helper.make_graph(nodes, "body", inside, after)
    loop = helper.make_node("Loop", ["turns", "", "start"], ["end"], body=body)
    given = [
        value("turns", onnx.TensorProto.INT64, []),
        value("start", onnx.TensorProto.FLOAT, ["n"]),
    ]
    result = [value("end", onnx.TensorProto.FLOAT, ["n"])]
    graph = helper.make_graph([loop], "long", given, result)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = open_serialized_ort_model(made.SerializeToString())
    start = np.ones(1000, np.float32)
    short = {"turns": np.array(3), "start": start}
    np.testing.assert_array_equal(model.run_interruptibly(short)["end"], model.run(short)["end"])
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        model.run_interruptibly({"turns": np.array(10**9), "start": start})
    assert time.monotonic() - began < 20

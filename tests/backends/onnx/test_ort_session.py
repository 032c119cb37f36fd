"""Opening and running: what is checked before ONNX Runtime sees it, and what is said
when it refuses.
"""

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

from specc.diagnostics.diagnostic import Failed
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Input
from specc.ir.types import Type
from specc_onnx import build_model, get_target
from specc_onnx.execution_providers import get_ort_provider
from specc_onnx.ort_session import OrtModel, open_ort_model, open_ort_model_bytes


def two_inputs() -> OrtModel:
    b = Builder()
    n = Dim.symbol("n")
    x = b.input("left", Input(Type.of("f32", n, 2)))
    y = b.input("right", Input(Type.of("f32", n, 2)))
    graph = b.finish(
        "sum", {"sum": b.one(ops.Arith("add"), x, y), "rest": b.one(ops.Arith("sub"), x, y)}
    )
    return open_ort_model_bytes(
        build_model(graph, get_target("onnx")).model.SerializeToString(), name="sum.onnx"
    )


@pytest.mark.skipif(os.name != "posix", reason="names are text there")
def test_a_folder_whose_name_is_no_text_is_told(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"bad\xff")
    model = build_model(Builder().finish("g", {}), get_target("onnx")).model.SerializeToString()
    with pytest.raises(Failed, match=r"E0923(.|\n)*is not UTF-8"):
        open_ort_model_bytes(model, directory=directory)


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_outputs_come_by_name_all_or_those_wanted() -> None:
    model = two_inputs()
    assert set(model.run({"left": f32(3, 2), "right": f32(3, 2)})) == {"sum", "rest"}
    assert set(model.run({"left": f32(3, 2), "right": f32(3, 2)}, output_names=("rest",))) == {
        "rest"
    }


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"left": f32(3, 2)}, "E0910: the input `right` is missing"),
        (
            {"left": f32(3, 2), "right": f32(3, 2), "rihgt": f32(1)},
            "E0910: the model has no input called `rihgt`",
        ),
        ({"left": f32(3, 2), "right": f32(1, 2)}, "E0912: `n` is 3 in `left` but 1 in `right`"),
        (
            {"left": f32(3, 4), "right": f32(3, 2)},
            "E0912: `left` has length 4 along axis 2, expected 2",
        ),
        ({"left": f32(3), "right": f32(3, 2)}, "E0911: `left` has 1 axes, expected 2"),
        (
            {"left": np.ones((3, 2)), "right": f32(3, 2)},
            "E0907: the input `left` has element type float64, expected float32",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(Failed) as caught:
        two_inputs().run(inputs)
    (found,) = caught.value.diagnostics
    assert f"{found.code}: {found.title}" == message


def test_byte_order_and_strides_make_no_difference() -> None:
    model = two_inputs()
    x = np.arange(6, dtype=np.float32).reshape(2, 3).T
    got = model.run({"left": x.astype(">f4"), "right": x})["sum"]
    assert (got == 2 * x).all()


def test_a_provider_nobody_knows_is_refused_with_a_guess() -> None:
    with pytest.raises(Failed, match=r"E0921\]: unknown provider `cdua`") as caught:
        get_ort_provider("cdua")
    assert caught.value.diagnostics[0].helps == ("did you mean `cuda`?",)
    with pytest.raises(Failed) as caught:
        get_ort_provider("gpu")
    assert caught.value.diagnostics[0].helps == ("did you mean `cuda`?",)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="needs an ONNX Runtime without CUDA",
)
def test_a_provider_that_is_not_here_is_an_error_and_no_other_is_taken(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"E0922\]: the provider `cuda` is not available"):
        open_ort_model(tmp_path / "m.onnx", "cuda")


def test_what_is_no_model_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no protobuf at all")
    with pytest.raises(Failed, match=r"E0923\]: ONNX Runtime cannot load"):
        open_ort_model(path)
    assert capfd.readouterr() == ("", "")


def test_a_fault_while_running_is_a_diagnostic_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """An id beyond the table: nothing before the run can know it."""
    graph = build_decoder()
    built = build_model(graph, get_target("onnx"))
    for name, array in sample_parameters(graph).items():
        built.weights[name].raw_data = array.tobytes()
    model = open_ort_model_bytes(built.model.SerializeToString(), name="decoder.onnx")
    with pytest.raises(Failed, match=r"E0924\]: `decoder\.onnx` stopped while running") as caught:
        model.run({"tokens": np.array([[11]])})
    assert "indices element out of data bounds" in caught.value.diagnostics[0].notes[0]
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C is heeded, also where who started the tests lets it be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
def test_an_interrupt_ends_a_long_run() -> None:
    """A loop that would turn for minutes; the thread that listens for Ctrl-C is free
    while it does.
    """
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
    model = open_ort_model_bytes(made.SerializeToString())
    start = np.ones(1000, np.float32)
    short = {"turns": np.array(3), "start": start}
    np.testing.assert_array_equal(model.run_interruptibly(short)["end"], model.run(short)["end"])
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        model.run_interruptibly({"turns": np.array(10**9), "start": start})
    assert time.monotonic() - began < 20

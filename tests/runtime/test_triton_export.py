"""A model repository of Triton: its configuration says what the model takes and gives,
and the model in it is the one that was given.
"""

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import specc
from specc.cli.main import main
from specc.diagnostics.diagnostic import Failed
from specc.runtime.triton_export import MARK

SPEC = """specc 1
model small

dims batch

graph g(x: float[batch, 3], id: int[batch]) -> (y: float[batch, 2, 2], first: float[batch]) {
  h = linear(x, out=2) @ w + (embedding(id, size=5, dim=2) @ table)
  return insert(h, axis=1) * insert(h, axis=2), h[:, 0]
}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "small.specc").write_text(SPEC)
    specc.compile(tmp_path / "small.specc", tmp_path / "m.onnx", init=0)
    words = ["export", "triton", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "r")]
    assert main([*words, "--max-batch-size", "8"]) == 0
    return tmp_path / "r" / "small"


def test_the_configuration_is_that_of_the_model(repository: Path) -> None:
    text = (repository / "config.pbtxt").read_text()
    assert text.startswith(MARK)
    ports = re.findall(r'name: "(\w+)" data_type: (\w+) dims: \[ ([\d, ]+) \](.*)\}', text)
    assert [(n, t, d, bool(r.strip())) for n, t, d, r in ports] == [
        ("x", "TYPE_FP32", "3", False),
        ("id", "TYPE_INT64", "1", True),
        ("y", "TYPE_FP32", "2, 2", False),
        ("first", "TYPE_FP32", "1", True),
    ]
    assert "max_batch_size: 8\n" in text
    model = onnx.load(repository / "1" / "model.onnx")
    assert [i.name for i in model.graph.input] == ["x", "id"]


def test_the_model_runs_where_it_lies(repository: Path) -> None:
    given = {"x": np.ones((2, 3), np.float32), "id": np.array([1, 4])}
    session = onnxruntime.InferenceSession(repository / "1" / "model.onnx")
    want = specc.load(repository.parents[1] / "m.onnx").run(**given)
    for name, value in zip(want, session.run(None, given), strict=True):
        np.testing.assert_array_equal(value, want[name])


def test_weights_beside_the_model_come_along(tmp_path: Path) -> None:
    (tmp_path / "wide.specc").write_text(
        SPEC.replace("x: float[batch, 3]", "x: float[batch, 9999]")
    )
    specc.compile(tmp_path / "wide.specc", tmp_path / "m.onnx", init=0, weights_as="copy")
    main(["export", "triton", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "r")])
    files = {p.name for p in (tmp_path / "r/small/1").iterdir()}
    assert files == {p.name for p in tmp_path.glob("m-*")} | {"model.onnx"}
    onnxruntime.InferenceSession(tmp_path / "r/small/1/model.onnx")


def test_someone_elses_configuration_stays(repository: Path) -> None:
    (repository / "config.pbtxt").write_text('name: "mine"\n')
    model = str(repository.parents[1] / "m.onnx")
    words = ["export", "triton", model, "-o", str(repository.parent)]
    assert main(words) == 1
    assert (repository / "config.pbtxt").read_text() == 'name: "mine"\n'
    assert main([*words, "--force"]) == 0


@pytest.mark.scale
def test_the_server_s_own_form_reads_it(repository: Path) -> None:
    text_format = pytest.importorskip("google.protobuf.text_format")
    stubs = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    text = (repository / "config.pbtxt").read_text()
    read = text_format.Parse(text, stubs.ModelConfig())
    assert [i.name for i in read.input] == ["x", "id"]
    assert read.max_batch_size == 8


def test_lengths_that_are_not_fixed(tmp_path: Path) -> None:
    specc.compile(
        "bert",
        tmp_path / "m.onnx",
        init=0,
        set={"d": 8, "heads": 2, "layers": 1, "hidden": 8, "vocab": 9},
    )
    from specc.runtime.open_model import open_compiled
    from specc.runtime.triton_export import write_triton_repository

    with pytest.raises(Failed, match="E0889"):
        write_triton_repository(open_compiled(tmp_path / "m.onnx").whole, "b", tmp_path / "r", 4)
    assert not (tmp_path / "r").exists()

"""Triton model repositories: the configuration describes inputs and outputs, and the model is the
given one.
"""

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import specc
from specc.cli.compile_and_export import FILE_HEADER
from specc.cli.main import main

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


def test_the_configuration_describes_the_model(repository: Path) -> None:
    text = (repository / "config.pbtxt").read_text()
    assert text.startswith(FILE_HEADER)
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


def test_the_exported_model_runs_in_place(repository: Path) -> None:
    given = {"x": np.ones((2, 3), np.float32), "id": np.array([1, 4])}
    session = onnxruntime.InferenceSession(repository / "1" / "model.onnx")
    want = specc.load(repository.parents[1] / "m.onnx").run(**given)
    for name, value in zip(want, session.run(None, given), strict=True):
        np.testing.assert_array_equal(value, want[name])


def test_external_weights_are_exported(tmp_path: Path) -> None:
    (tmp_path / "wide.specc").write_text(
        SPEC.replace("x: float[batch, 3]", "x: float[batch, 9999]")
    )
    specc.compile(tmp_path / "wide.specc", tmp_path / "m.onnx", init=0, weights_as="copy")
    main(["export", "triton", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "r")])
    files = {p.name for p in (tmp_path / "r/small/1").iterdir()}
    assert files == {p.name for p in tmp_path.glob("m-*")} | {"model.onnx"}
    onnxruntime.InferenceSession(tmp_path / "r/small/1/model.onnx")


def test_another_configuration_is_not_overwritten(repository: Path) -> None:
    (repository / "config.pbtxt").write_text('name: "mine"\n')
    model = str(repository.parents[1] / "m.onnx")
    words = ["export", "triton", model, "-o", str(repository.parent)]
    assert main(words) == 1
    assert (repository / "config.pbtxt").read_text() == 'name: "mine"\n'
    assert main([*words, "--force"]) == 0


LENGTHS = """specc 1
model small
dims batch, n

graph g(x: float[batch, n, 3], id: int[batch]) -> (y: float[batch, n, 2]) {
  return (linear(x, out=2) @ w) + insert(embedding(id, size=5, dim=2) @ table, axis=1)
}
"""
NO_BATCH = """specc 1
model small
dims n, m

graph g(x: float[n, 3], z: float[m]) -> (y: float[n, m]) {
  return insert(sum(x, axis=1), axis=1) * insert(z, axis=0)
}
"""
CASES = {
    "fixed": (SPEC, "8", {"x": [3], "id": [1], "y": [2, 2], "first": [1]}),
    "lengths": (LENGTHS, "8", {"x": [-1, 3], "id": [1], "y": [-1, 2]}),
    "not joined": (LENGTHS, "0", {"x": [-1, -1, 3], "id": [-1], "y": [-1, -1, 2]}),
    "no batch": (NO_BATCH, "0", {"x": [-1, 3], "z": [-1], "y": [-1, -1]}),
}


def export_model(spec: str, most: str, directory: Path) -> int:
    """Compile a spec, export it, and return the exit status."""
    (directory / "small.specc").write_text(spec)
    specc.compile(directory / "small.specc", directory / "m.onnx", init=0)
    words = ["export", "triton", str(directory / "m.onnx"), "-o", str(directory / "r")]
    return main([*words, "--max-batch-size", most])


@pytest.mark.parametrize("name", CASES)
def test_the_configuration_parses_as_model_config(name: str, tmp_path: Path) -> None:
    """Triton parses `config.pbtxt` as the message ModelConfig."""
    spec, most, wanted = CASES[name]
    assert export_model(spec, most, tmp_path) == 0
    text = (tmp_path / "r/small/config.pbtxt").read_text()
    dims = dict(re.findall(r'name: "(\w+)" data_type: \w+ dims: \[ ([-\d, ]+) \]', text))
    assert {n: [int(d) for d in found.split(",")] for n, found in dims.items()} == wanted
    text_format = pytest.importorskip("google.protobuf.text_format")
    stubs = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    read = text_format.Parse(text, stubs.ModelConfig())
    assert {p.name: [*p.dims] for p in (*read.input, *read.output)} == wanted
    assert read.max_batch_size == int(most)
    assert read.HasField("dynamic_batching") == (most != "0")


def test_a_graph_without_batch_axis_has_no_dynamic_batching(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export_model(NO_BATCH, "4", tmp_path) == 1
    assert "`--max-batch-size 0`" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_requests_that_affect_each_other_are_not_joined(tmp_path: Path) -> None:
    text = "graph g(x: float[batch, 3]) -> (y: float[batch, 3]) { return softmax(x, axis=0) }"
    (tmp_path / "m.specc").write_text(f"specc 1\nmodel m\ndims batch\n{text}\n")
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0)
    words = ["export", "triton", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "r")]
    assert main(words) == 1
    assert not (tmp_path / "r").exists()
    assert main([*words, "--max-batch-size", "0"]) == 0

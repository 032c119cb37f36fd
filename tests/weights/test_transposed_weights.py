"""Transposed checkpoint matrices stay transposed in the model if only matrix products read them."""

import json
from pathlib import Path

import numpy as np
import pytest

import specc
from specc.cli.main import main
from specc.weights.formats.safetensors import write_safetensors

SPEC = """specc 1
model m
dims batch >= 1, seq >= 1
graph f(ids: int[batch, seq]) -> (y: float[batch, seq, 7]) {
  x = embedding(ids, size=7, dim=6) @ words
  x = relu(linear(x, out=10) @ up)
  x = linear(x, out=6, bias=false) @ down
  x = x + matmul(x, parameter(shape=[6, 6]) @ mixed)
  return linear(x, out=7, bias=false) @ head
}
weights {
  tie head.weight = words.weight
  load up.weight = transpose("up.kernel")
  load down.weight = transpose(slice("wide.kernel", axis=0, start=10, stop=20))
  load words.weight = transpose("words.kernel")
  load mixed = transpose("mixed")
  ignore "wide.bias"
}
"""
SHAPES = {
    "up.kernel": (6, 10),
    "up.bias": (10,),
    "wide.kernel": (20, 6),
    "words.kernel": (6, 7),
    "mixed": (6, 6),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write a checkpoint and a spec."""
    rng = np.random.default_rng(0)
    numbers = {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
    write_safetensors(tmp_path / "w.safetensors", numbers, {})
    (tmp_path / "m.specc").write_text(SPEC, encoding="utf-8")
    return tmp_path


def compile_as(directory: Path, how: str, **options: object) -> specc.Model:
    specc.compile(
        directory / "m.specc",
        directory / f"{how}.onnx",
        weights=directory / "w.safetensors",
        weights_as=how,
        **options,
    )
    return specc.load(directory / f"{how}.onnx")


def test_matrices_read_by_products_stay_transposed(directory: Path) -> None:
    model = compile_as(directory, "inline")
    shapes = {n: array.shape for n, array in model.weights().items()}
    assert shapes["up.weight"] == (6, 10)
    assert shapes["down.weight"] == (10, 6)
    # an embedding, and a matrix that is no weight of a linear layer, have the layout of the
    # spec
    assert shapes["words.weight"] == (7, 6)
    told = json.dumps(model.manifest.dump())
    assert "transpose" in told


def test_transposed_results(directory: Path) -> None:
    ids = np.array([[3, 1, 4], [1, 5, 6]])
    with np.load(convert_to_float64(directory)) as w:
        x = w["words.kernel"].T[ids]
        x = np.maximum(x @ w["up.kernel"] + w["up.bias"], 0) @ w["wide.kernel"][10:]
        x = x + x @ w["mixed"].T
        wanted = x @ w["words.kernel"]
    for how in ("auto", "copy", "inline"):
        given = compile_as(directory, how).run(ids=ids)["y"]
        assert np.abs(given - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_diff_ignores_transposition(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_as(directory, "copy")
    specc.compile(directory / "m.specc", directory / "drawn.onnx", init=0)
    assert not main(["diff", str(directory / "drawn.onnx"), str(directory / "copy.onnx")])
    assert "→ [" not in capsys.readouterr().out


def convert_to_float64(directory: Path) -> Path:
    """Write the checkpoint in float64, read without specc."""
    raw = (directory / "w.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name in SHAPES:
            begin, end = entry["data_offsets"]
            data = np.frombuffer(raw[start + begin : start + end], "<f4")
            found[name] = data.reshape(entry["shape"]).astype(np.float64)
    np.savez(directory / "w.npz", **found)
    return directory / "w.npz"


def test_quantized_weights_have_the_layout_of_the_spec(directory: Path) -> None:
    model = compile_as(directory, "copy", quantize="int8")
    assert model.weights()["up.weight"].shape == (10, 6)

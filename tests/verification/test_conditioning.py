"""Differences that float32 rounding explains are none of the model's; all others are."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.changed_models import save_with_hash

import specc
from specc import backend
from specc.diagnostics.diagnostic import Failed
from specc.ir.array import Array
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.random_inputs import random_inputs
from specc.verification.conditioning import rounding_bounds
from specc.verification.verify_model import iterate_rounds
from specc.weights.formats.safetensors import write_safetensors

LLAMA = {"vocab": 97, "d": 32, "heads": 4, "kv_heads": 2, "layers": 2, "hidden": 48}


def with_outliers(weights: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """An eighth of the rows of each matrix times 100, zero, and denormal."""
    rng, found = np.random.default_rng(seed), {}
    for name, value in weights.items():
        made = np.array(value, np.float32)
        if made.ndim == 2:
            rows = rng.permutation(len(made))
            few = max(1, len(rows) // 8)
            made[rows[:few]] *= 100
            made[rows[few : 2 * few]] = 0
            made[rows[2 * few : 3 * few]] *= np.float32(1e-40)
        found[name] = made
    return found


def llama(folder: Path, seed: int) -> Path:
    """A small Llama with outlier rows."""
    specc.compile("llama", folder / "plain.onnx", init=0, set=LLAMA)
    weights = specc.load(folder / "plain.onnx").weights()
    write_safetensors(folder / "w.safetensors", with_outliers(weights, seed))
    path = folder / "m.onnx"
    options = {"weights": folder / "w.safetensors", "weights_as": "inline"}
    specc.compile("llama", path, set=LLAMA, **options)
    return path


def test_outlier_zero_and_denormal_rows_agree(tmp_path: Path) -> None:
    found = list(iterate_rounds(specc.load(llama(tmp_path, 0)).scoring))
    assert all(one.agrees for one in found)
    long = found[-1]
    assert long.worst > 1e-5
    assert ", of which float32 rounding explains" in str(long)


@pytest.mark.parametrize("by", [1e-2, 1e-3])
def test_a_mistake_in_an_ill_conditioned_model_is_found(by: float, tmp_path: Path) -> None:
    """Positions that are well-conditioned show it."""
    path = llama(tmp_path, 0)
    model: LoadedModel = specc.load(path).scoring
    changed = onnx.load(path)
    for tensor in changed.graph.initializer:
        if tensor.name == model.manifest.stored["lm_head.weight"]:
            value = numpy_helper.to_array(tensor) * np.float32(1 + by)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    save_with_hash(changed, path)
    wrong = specc.load(path).scoring
    right = model.weights()
    wrong.weights = lambda: right
    with pytest.raises(Failed, match="E0930"):
        list(iterate_rounds(wrong))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_bounds_hold_for_float32_arithmetic(scale: float, tmp_path: Path) -> None:
    """NumPy in float32 is within the bounds, whose size follows the condition number:
    `tanh` of sums of large terms.
    """
    text = """specc 1
model m
dims batch
graph g(x: float[batch, 64]) -> (y: float[batch, 16]) {
  return tanh(linear(x, out=16, bias=false) @ a)
}
"""
    (tmp_path / "m.specc").write_text(text)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0)
    model = specc.load(tmp_path / "m.onnx").scoring
    graph, (name,) = model.manifest.graph, model.weights()
    rng = np.random.default_rng(0)
    w = (rng.normal(size=(16, 64)) * scale).astype("f4")
    inputs = random_inputs(graph, {"batch": 200}, rng)
    want = backend.load_reference().evaluate_graph(graph, inputs, {name: w})
    (bound,) = rounding_bounds(graph, inputs, {name: w}, want).values()
    got = np.tanh(inputs["x"] @ w.T)
    error = np.abs(got - want["y"])
    assert (error <= bound).all()
    assert error.max() >= bound.max() / 1000

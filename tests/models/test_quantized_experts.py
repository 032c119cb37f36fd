"""Experts with quantized weights: the result of each expert equals integer arithmetic, unrolled and
in a loop, for both targets.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS
from support.verification_lines import list_model_lines

import specc
from specc.api import Model
from specc.cli.main import main
from specc.ir.array import Array

SPEC = """\
specc 1
model m
config { experts: int = 3 }
dims batch, n

graph g(x: float[batch, n, 24], ids: int[batch, n, 2], gates: float[batch, n, 2])
    -> (y: float[batch, n, 5]) {
  return route(x, ids, gates, to=expert, experts=experts) @ all
}

block expert(x: float[b, n, 24]) -> float[b, n, 5] {
  return linear(x, out=5) @ w
}
"""
MORE = {
    "int8": [],
    "int8-weights": ["--group-size=16"],
    "int4": ["--group-size=16", "--quantize-all"],
}
"""Config values with which small layers are quantized like large ones."""
FEW, MANY = 3, 17
"""Numbers of experts: unrolled, and in a loop."""


def compiled(directory: Path, experts: int, *given: str) -> Model:
    (directory / "m.specc").write_text(SPEC)
    args = ["compile", str(directory / "m.specc"), "--init=0", f"--set=experts={experts}"]
    assert main([*args, *given, "-o", str(directory / "m.onnx")]) == 0
    return specc.load(directory / "m.onnx")


def compute_experts(
    x: Array, ids: Array, gates: Array, weights: dict[str, Array], rounds: bool
) -> Array:
    """Return each expert's linear layer for each of its tokens, in float64."""
    if rounds:
        scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
        x = np.rint(x / scale).astype(np.float64) * scale
    w, b = (weights[f"all.w.{n}"].astype(np.float64) for n in ("weight", "bias"))
    result = np.zeros((*x.shape[:-1], w.shape[1]))
    for place in np.ndindex(ids.shape):
        row, expert = place[:-1], ids[place]
        result[row] += gates[place] * (w[expert] @ x[row] + b[expert])
    return result


@pytest.mark.parametrize("experts", [FEW, MANY])
@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
@pytest.mark.parametrize("kind", sample_sweep(["int8", "int8-weights", "int4"]))
def test_quantized_experts_agree_with_integer_arithmetic(
    kind: str, target: str, experts: int, tmp_path: Path
) -> None:
    given = ["--quantize", kind, "--target", target, *MORE[kind]]
    model = compiled(tmp_path, experts, *given)
    form = model.manifest.quantized["all.w.weight"].format
    # standard ONNX cannot slice a stack of int4 values
    assert form.bits == (4 if (kind, target) == ("int4", "ort-cpu") else 8)
    assert form.rounding == ("row" if kind == "int8" or target == "onnx" else "none")
    rng = np.random.default_rng(experts)
    x = rng.normal(size=(2, 6, 24)).astype(np.float32)
    ids = rng.integers(0, experts, (2, 6, 2))
    gates = rng.random((2, 6, 2)).astype(np.float32)
    got = model.run(x=x, ids=ids, gates=gates)["y"]
    want = compute_experts(x, ids, gates, model.weights(), form.rounding == "row")
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    assert all("agree" in line for line in list_model_lines(model.selected_model, rounds=1))


@pytest.mark.parametrize("spec", ["gpt_oss", pytest.param("mixtral", marks=pytest.mark.slow)])
def test_quantized_stacks_equal_their_matrices(spec: str, tmp_path: Path) -> None:
    """Each expert alone, with its matrix in rows or transposed."""
    plain, low = (
        specc.load(small(spec, tmp_path / f"{kind}.onnx", kind)).weights()
        for kind in ("none", "int8")
    )
    names = [n for n, w in plain.items() if w.ndim == 3 and "experts" in n]
    assert names
    for name in names:
        step = np.abs(plain[name]).max() / 127
        assert 0 < np.abs(low[name] - plain[name]).max() <= 0.51 * step


@pytest.mark.parametrize(
    "spec",
    [
        "mixtral",
        pytest.param("deepseek_v2", marks=pytest.mark.slow),
        pytest.param("gpt_oss", marks=pytest.mark.slow),
    ],
)
def test_mixtures_of_built_in_specs_are_quantized(spec: str, tmp_path: Path) -> None:
    path = small(spec, tmp_path / "m.onnx", "int4", "--quantize-all", "--group-size", "16")
    model = specc.load(path)
    bits = {n: one.format.bits for n, one in model.manifest.quantized.items()}
    assert {b for n, b in bits.items() if "experts" in n} == {4}
    assert all("agree" in line for line in list_model_lines(model.selected_model, rounds=1))


def small(spec: str, path: Path, kind: str, *given: str) -> Path:
    values = [f"--set={n}={json.dumps(v)}" for n, v in SMALL_CONFIGS[spec].items()]
    args = ["compile", spec, *values, "--init=0", "--quantize", kind, *given]
    assert main([*args, "-o", str(path)]) == 0
    return path


def test_a_pattern_excludes_experts_from_quantization(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(SPEC)
    with pytest.raises(specc.SpeccError, match="E0852"):
        specc.compile(
            tmp_path / "m.specc",
            tmp_path / "m.onnx",
            init=0,
            quantize="int8",
            quantize_exclude=["all.*"],
        )

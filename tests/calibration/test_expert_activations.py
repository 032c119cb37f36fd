"""Calibration of expert matrices: the activations of the tokens routed to each expert, against
experts in NumPy."""

from pathlib import Path

import numpy as np
import pytest
from support.calibration_factors import compute_weight_factors

import specc
from specc.calibration import calibration_stages_and_gram_matrices as gram_matrices
from specc.calibration.calibration_activations import find_calibration_targets
from specc.driver.compile_job import open_compile_job, prepare_lowering
from specc.driver.compile_options import CompileOptions
from specc.driver.quantize_section import QuantizeOptions
from specc.driver.spec_loader import open_spec
from specc.ir.array import Array
from specc.weights import int_quantization
from specc.weights.int_quantization import compute_inverse_cholesky_factor
from specc.weights.parameter_sources import read_parameter

EXPERTS, NOBODY = 4, 2
"""Experts, and the one that no row is sent to."""
SPEC = f"""
specc 1
model m
dims batch, n
graph g(x: float[batch, n, 8], ids: int[batch, n, 2], gates: float[batch, n, 2],
        keep: keep[batch, n]) -> (y: float[batch, n, 6]) {{
  return route(x, ids, gates, to=expert, experts={EXPERTS}, keep=keep) @ all
}}
block expert(x: float[b, n, 8]) -> float[b, n, 6] {{
  h = tanh(linear(x, out=16, bias=false) @ up)
  return linear(h * (linear(x, out=16) @ gate), out=6) @ down
}}
"""
RNG = np.random.default_rng(4)
X = RNG.normal(size=(2, 9, 8)).astype(np.float32)
# two experts per token, never the unused one
IDS = np.array([[0, 1], [1, 3], [3, 0]])[RNG.integers(0, 3, (2, 9))]
GATES = RNG.random((2, 9, 2)).astype(np.float32)
KEEP = np.arange(9) < np.array([[9], [5]])
SAMPLE = {"x": X, "ids": IDS, "gates": GATES, "keep": KEEP}


def collect_activations(weights: dict[str, Array]) -> dict[str, list[Array]]:
    """Return the activations of each expert's matrices, in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    up, gate, bias = (w[f"all.{n}"] for n in ("up.weight", "gate.weight", "gate.bias"))
    activations_by_output: dict[str, list[Array]] = {
        f"all.{n}.weight": [] for n in ("up", "gate", "down")
    }
    for expert in range(EXPERTS):
        rows = X[KEEP & (expert == IDS).any(-1)].astype(np.float64)
        inner = np.tanh(rows @ up[expert].T) * (rows @ gate[expert].T + bias[expert])
        for name, seen in (("up", rows), ("gate", rows), ("down", inner)):
            activations_by_output[f"all.{name}.weight"].append(seen)
    return activations_by_output


def test_activations_per_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with one stage per expert; the Gram matrix of an unused expert is zero."""
    (tmp_path / "m.specc").write_text(SPEC)
    asked = QuantizeOptions(quantize="int4", quantize_all=True, group_size=16)
    options = CompileOptions(output="", init=3, precision=asked)
    with open_compile_job(open_spec(str(tmp_path / "m.specc")), options) as opened:
        job = prepare_lowering(opened)
        weights = {
            n: read_parameter(job.parameter_source, n) for n in job.parameter_source.parameters
        }
        readers = find_calibration_targets(job.simplified_graph, job.quantization_decision.plan, {})
    assert readers.expert_counts.keys() == job.quantization_decision.plan.keys()
    wanted = collect_activations(weights)
    for least in (1, 1 << 30):
        directory = tmp_path / f"{least}"
        directory.mkdir()
        monkeypatch.setattr(gram_matrices, "STAGE_WEIGHT_BYTES", least)
        found = compute_weight_factors(readers, weights, SAMPLE, directory)
        assert set(found) == set(wanted)
        for name, rows in wanted.items():
            for expert, x in enumerate(rows):
                want = compute_inverse_cholesky_factor(x.T @ x)
                assert np.allclose(found[name][expert], want, rtol=1e-6), name
        # activations that experts waited for are removed
        assert not list(directory.iterdir())
    assert not wanted["all.up.weight"][NOBODY].size


@pytest.mark.parametrize("kind", ["npz", pytest.param("none", marks=pytest.mark.parity)])
def test_stacked_experts_are_calibrated(kind: str, tmp_path: Path) -> None:
    """The stored codes equal those of each matrix alone with its own activations."""
    (tmp_path / "m.specc").write_text(SPEC)
    np.savez(tmp_path / "x.npz", **SAMPLE)
    given = {"quantize": "int4", "quantize_all": True, "group_size": 16}
    files = {"calibration_data": tmp_path / "x.npz"} if kind == "npz" else {}
    specc.compile(tmp_path / "m.specc", tmp_path / "full.onnx", init=3)
    specc.compile(tmp_path / "m.specc", tmp_path / "q.onnx", init=3, **given, **files)
    full, low = (specc.load(tmp_path / f"{n}.onnx") for n in ("full", "q"))
    activations_by_output = collect_activations(dict(full.weights()))
    for name, rows in activations_by_output.items():
        one = low.manifest.quantized[name]
        assert one.recipe == ("gptq" if kind == "npz" else "nearest")
        for expert, x in enumerate(rows):
            matrix = full.weights()[name][expert]
            blocks = int_quantization.split_weight_groups(matrix, 16)
            if kind == "npz":
                numbers, units = int_quantization.quantize_weight_gptq(
                    matrix, compute_inverse_cholesky_factor(x.T @ x), 16
                )
            else:
                units = int_quantization.compute_group_scales(blocks, 4)
                numbers = int_quantization.round_to_integers(blocks, units, 4)
            want = (numbers * units[..., None]).reshape(len(matrix), -1)
            got = low.weights()[name][expert]
            # a value at a rounding boundary may go either way: sums in float32 and float64 differ
            assert np.mean(np.abs(got - want[:, : got.shape[1]]) > 1e-6) < 0.02

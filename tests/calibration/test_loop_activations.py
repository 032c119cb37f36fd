"""Calibration of loop weights: the activations of every iteration, against a recurrence in
NumPy."""

from pathlib import Path

import numpy as np
import pytest
from support.calibration_factors import compute_weight_factors

from specc.calibration import calibration_stages_and_gram_matrices as gram_matrices
from specc.calibration.calibration_activations import find_calibration_targets
from specc.driver.compile_job import open_compile_job, prepare_lowering
from specc.driver.compile_options import CompileOptions
from specc.driver.quantize_section import QuantizeOptions
from specc.driver.spec_loader import open_spec
from specc.ir.array import Array
from specc.weights.int_quantization import compute_inverse_cholesky_factor
from specc.weights.parameter_sources import read_parameter

SPEC = """
specc 1
model m
dims batch, n
graph g(x: float[batch, n, 3], keep: keep[batch, n]) -> (y: float[batch, n, 2]) {
  h = zeros(shape=[batch, 5])
  scan row in x along n carry h collect out keep keep {
    h = tanh(linear(concat([row, h]), out=5) @ cell)
    scan step in 2 carry h {
      h = tanh(linear(h, out=5, bias=false) @ again)
    }
    out = h
  }
  z, _ = rnn(out, hidden=4, act=tanh, keep=keep) @ rnn
  return linear(z, out=2) @ out
}
"""
RNG = np.random.default_rng(4)
X = RNG.normal(size=(2, 6, 3)).astype(np.float32)
KEEP = np.arange(6) < np.array([[6], [4]])


def test_activations_of_every_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop, in a nested loop, in a layer and after it; with padding, and with one stage per
    weight."""
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
        monkeypatch.setattr(gram_matrices, "STAGE_WEIGHT_BYTES", least)
        found = compute_weight_factors(readers, weights, {"x": X, "keep": KEEP}, tmp_path)
        assert set(found) == set(wanted)
        for name, rows in wanted.items():
            x = np.array(rows)
            assert np.allclose(
                found[name][0], compute_inverse_cholesky_factor(x.T @ x), rtol=1e-6
            ), name


def collect_activations(weights: dict[str, Array]) -> dict[str, list[Array]]:
    """Return the activations of each weight, one sequence after the other, in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    activations_by_output: dict[str, list[Array]] = {}

    def apply_linear(name: str, x: Array, bias: str = "") -> Array:
        activations_by_output.setdefault(name, []).append(x)
        return w[name] @ x + (w[bias] if bias else 0)

    for text, keep in zip(X.astype(np.float64), KEEP, strict=True):
        h, z = np.zeros(5), np.zeros(4)
        for row in text[keep]:
            joined = np.concatenate([row, h])
            h = np.tanh(apply_linear("cell.weight", joined, "cell.bias"))
            for _ in range(2):
                h = np.tanh(apply_linear("again.weight", h))
            inner = apply_linear("rnn.weight_ih_l0", h, "rnn.bias_ih_l0")
            z = np.tanh(inner + apply_linear("rnn.weight_hh_l0", z, "rnn.bias_hh_l0"))
            apply_linear("out.weight", z, "out.bias")
    return activations_by_output

"""A multiplicative mask does not hide division by zero, because 0 × NaN is NaN."""

from pathlib import Path

import numpy as np
import pytest
from support.decode_steps import run_steps
from support.derived_graphs import derive_encoder_and_step

import specc_numpy
from specc.analysis.causality import check_causality
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph

SPEC = """specc 1
model m
dims batch, n
graph g(x: float[batch, n, 4]) -> (y: float[batch, n, 4]) {{
  at = insert(positions(x), axis=1)
  key = insert(positions(x), axis=0)
  seen = cast(key <= at, to=float)
  i = float(at)
  j = float(key)
  return einsum("q k, b k d -> b q d", {gate}, x)
}}
generate text of x from y {{ stop = 0 }}
"""


def elaborate_gate(directory: Path, gate: str) -> Graph:
    (directory / "m.specc").write_text(SPEC.format(gate=gate), encoding="utf-8")
    return elaborate_spec(open_spec(str(directory / "m.specc"))).graph


def run_full_forward(graph: Graph, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return specc_numpy.evaluate_graph(graph, {"x": x}, {})["y"]


@pytest.mark.parametrize(
    "gate", ["seen / (i - j + 1.0)", "seen * (1.0 / (i - j + 1.0))", "seen * (1.0 / (j - 3.0))"]
)
def test_division_by_zero_at_masked_positions(gate: str, tmp_path: Path) -> None:
    graph = elaborate_gate(tmp_path, gate)
    assert [d.code for d in check_causality(graph, "n", "x", ["y"])] == ["E0712"]
    x = np.random.default_rng(0).normal(size=(1, 4, 4))
    assert not np.array_equal(
        run_full_forward(graph, x)[:, :1], run_full_forward(graph, x[:, :1]), equal_nan=True
    )


@pytest.mark.parametrize(
    "gate", ["where(key <= at, 1.0 / (i - j + 1.0), 0.0)", "seen / (i + 1.0)", "seen * exp(j - i)"]
)
def test_finite_gates_decode_in_steps(gate: str, tmp_path: Path) -> None:
    graph = elaborate_gate(tmp_path, gate)
    assert check_causality(graph, "n", "x", ["y"]) == []
    x = np.random.default_rng(0).normal(size=(1, 5, 4))
    made = [
        r["y"]
        for r in run_steps(
            derive_encoder_and_step(graph, "x", {"y": "new"}), graph, {"x": x}, {}, [2, 1, 2]
        )
    ]
    np.testing.assert_allclose(np.concatenate(made, axis=1), run_full_forward(graph, x), rtol=1e-12)

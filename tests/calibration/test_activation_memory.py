"""Gram matrices are accumulated a few at a time: memory does not depend on the number of weights,
and temporary files are removed."""

import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from specc import backend
from specc.backend import TensorSpec
from specc.calibration import calibration_stages_and_gram_matrices as gram_matrices
from specc.calibration.calibration_activations import find_calibration_targets
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter
from specc.ir.ops.quantized import QuantizationFormat
from specc.ir.types import Type
from specc.weights import int_quantization
from specc.weights.int_quantization import QuantizationErrorStats
from specc.weights.parameter_sources import RandomInitWeights, read_parameter
from specc.weights.quantized_weights import (
    GetFactor,
    QuantizedWeightFiles,
    QuantizedWeights,
    quantize_weight_to_files,
)
from specc.weights.weight_rules_and_initializers import ModelParameter

WIDE, MANY = 160, 8
SUM = 8 * WIDE**2
"""Bytes of the sums of one weight."""
SLACK = 1 << 17
FORM = QuantizationFormat(bits=4, group_size=32, layout="rows", rounding="none")
BASE = RandomInitWeights(
    1,
    {f"w{n}": ModelParameter(name=f"w{n}", shape=(WIDE, WIDE)) for n in range(MANY)},
    {f"w{n}": "normal(0.1)" for n in range(MANY)},
)
RNG = np.random.default_rng(2)
SEEN = RNG.normal(size=(2, 30, WIDE)).astype(np.float32)


@cache
def read_weight(name: str) -> Array:
    """Return the values of one linear layer."""
    return read_parameter(BASE, name)


def build_chain() -> Graph:
    """Build a chain of linear layers."""
    b = GraphBuilder()
    x = b.add_input("x", Input(Type.of("f32", 30, WIDE)))
    for n in range(MANY):
        facts = Parameter(name=f"w{n}", type=Type.of("f32", WIDE, WIDE), initializer="")
        x = b.add_op(ops.Linear(), x, b.add_parameter(facts), None)
    return b.build_graph("chain", {"y": x})


PLAN = {f"w{n}": FORM for n in range(MANY)}
READERS = find_calibration_targets(build_chain(), PLAN, {})


@dataclass(frozen=True)
class ReferencePart:
    """A part of the chain, run by the reference backend."""

    graph: Graph
    outputs: Mapping[str, TensorSpec] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = {name: read_weight(name) for name in self.graph.parameters}
        return backend.load_reference_backend().evaluate_graph(self.graph, inputs, given)


def list_samples() -> list[dict[str, Array]]:
    return [{"x": rows} for rows in SEEN]


def quantize_chain(directory: Path) -> dict[str, QuantizedWeightFiles]:
    def round_one(name: str, factor: GetFactor, stem: Path) -> QuantizedWeightFiles:
        return quantize_weight_to_files(BASE, name, FORM, factor, stem)

    return gram_matrices.quantize_with_gptq(open_part, READERS, list_samples, directory, round_one)


@contextmanager
def open_part(graph: Graph) -> Iterator[ReferencePart]:
    yield ReferencePart(graph)


class EmptyPart(ReferencePart):
    """A part that uses no memory and returns constant activations."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict.fromkeys(self.graph.outputs, SEEN[0])


def measure_peak_memory(directory: Path) -> int:
    """Return the peak memory in bytes of Gram matrices and their factors."""

    @contextmanager
    def open_part(graph: Graph) -> Iterator[ReferencePart]:
        yield EmptyPart(graph)

    def skip_quantization(name: str, factor: GetFactor, stem: Path) -> QuantizedWeightFiles:
        return QuantizedWeightFiles(stem, stem, QuantizationErrorStats())

    tracemalloc.start()
    gram_matrices.quantize_with_gptq(open_part, READERS, list_samples, directory, skip_quantization)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_peak_memory_of_gram_matrices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram_matrices, "STAGE_GRAM_BYTES", SUM)
    monkeypatch.setattr(int_quantization, "MAX_DIRECT_INVERSE", 16)
    few = measure_peak_memory(tmp_path)
    # the Gram matrices, the products of a sample, and temporaries of the factorization
    assert few < 3 * SUM + SLACK
    # planted bug: all Gram matrices in one stage
    monkeypatch.setattr(gram_matrices, "STAGE_GRAM_BYTES", MANY * SUM)
    assert measure_peak_memory(tmp_path) > few + (MANY - 3) * SUM


@pytest.mark.parametrize("least", [1, 3 * 4 * WIDE**2, 1 << 30])
def test_stages_equal_a_single_pass(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any stage size, compare with products of the layers in NumPy."""
    monkeypatch.setattr(gram_matrices, "STAGE_WEIGHT_BYTES", least)
    parts = list(gram_matrices.iterate_calibration_stages(READERS))
    assert len(parts) == {1: MANY - 1, 1 << 30: 1}.get(least, 3)
    held = [4 * WIDE**2 * len(part.graph.parameters) for part in parts]
    assert max(held) <= max(least, 4 * WIDE**2)
    found: dict[str, Array] = {}

    def round_one(name: str, factor: GetFactor, stem: Path) -> QuantizedWeightFiles:
        found[name] = factor(0)
        return QuantizedWeightFiles(stem, stem, QuantizationErrorStats())

    gram_matrices.quantize_with_gptq(open_part, READERS, list_samples, tmp_path, round_one)
    x = np.concatenate(SEEN).astype(np.float64)
    for n in range(MANY):
        assert np.allclose(
            found[f"w{n}"], int_quantization.compute_inverse_cholesky_factor(x.T @ x), rtol=1e-5
        )
        x = x @ read_weight(f"w{n}").astype(np.float64).T
    # what stages keep for each other is gone
    assert not list(tmp_path.iterdir())


def test_prequantized_values_equal_quantization_on_the_fly(tmp_path: Path) -> None:
    ready = quantize_chain(tmp_path)
    whole = QuantizedWeights(BASE, dict.fromkeys(ready, FORM), ready)
    x = np.concatenate(SEEN).astype(np.float64)
    factor = int_quantization.compute_inverse_cholesky_factor(x.T @ x)
    one = QuantizedWeights(BASE, {"w0": FORM}, get_inverse_cholesky_factor=lambda _: factor)
    for part, dtype in (
        (FORM.format_tensor_name("w0", "codes"), "u8"),
        (FORM.format_tensor_name("w0", "scales"), "f32"),
    ):
        want = b"".join(bytes(c) for c in one.iterate_chunks(part, dtype))
        assert b"".join(bytes(c) for c in whole.iterate_chunks(part, dtype)) == want
    assert whole.states["w0"].recipe == "gptq"
    assert whole.states["w0"].error == one.states["w0"].error
    kept = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert kept == MANY * WIDE * (WIDE // 2 + 4 * WIDE // 32)

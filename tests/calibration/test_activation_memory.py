"""What weights meet is summed up a few at a time: memory is that of the largest, however
many there are, and nothing of it is left on the disk.
"""

import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from specc import backend
from specc.backend import TensorSlot
from specc.calibration import gram_matrices
from specc.calibration.activation_taps import find_weight_readers
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Builder, Graph, Input, Parameter
from specc.ir.ops.quantized import QuantizationFormat
from specc.ir.types import Type
from specc.weights import int_quantization
from specc.weights.parameter_values import SeededValues, read_parameter
from specc.weights.quantized_values import (
    GetFactor,
    PrequantizedWeight,
    QuantizedValues,
    WeightQuantizationError,
    quantize_to_files,
)
from specc.weights.weight_rules import RequiredParameter

WIDE, MANY = 160, 8
SUM = 8 * WIDE**2
"""Bytes of the sums of one weight."""
SLACK = 1 << 17
FORM = QuantizationFormat(bits=4, group_size=32, layout="rows", rounding="none")
BASE = SeededValues(
    1,
    {f"w{n}": RequiredParameter(name=f"w{n}", shape=(WIDE, WIDE)) for n in range(MANY)},
    {f"w{n}": "normal(0.1)" for n in range(MANY)},
)
RNG = np.random.default_rng(2)
SEEN = RNG.normal(size=(2, 30, WIDE)).astype(np.float32)


@cache
def weight(name: str) -> Array:
    """The numbers of one map."""
    return read_parameter(BASE, name)


def chain() -> Graph:
    """One linear map behind the other."""
    b = Builder()
    x = b.input("x", Input(Type.of("f32", 30, WIDE)))
    for n in range(MANY):
        facts = Parameter(name=f"w{n}", type=Type.of("f32", WIDE, WIDE), initial="")
        x = b.one(ops.Linear(), x, b.parameter(facts), None)
    return b.finish("chain", {"y": x})


PLAN = {f"w{n}": FORM for n in range(MANY)}
READERS = find_weight_readers(chain(), PLAN, {})


@dataclass(frozen=True)
class Part:
    """A part of the chain by the reference."""

    graph: Graph
    outputs: Mapping[str, TensorSlot] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = {name: weight(name) for name in self.graph.parameters}
        return backend.load_reference().evaluate_graph(self.graph, inputs, given)


def samples() -> list[dict[str, Array]]:
    return [{"x": rows} for rows in SEEN]


def rounded(directory: Path) -> dict[str, PrequantizedWeight]:
    def round_one(name: str, factor: GetFactor, stem: Path) -> PrequantizedWeight:
        return quantize_to_files(BASE, name, FORM, factor, stem)

    return gram_matrices.quantize_calibrated(opened, READERS, samples, directory, round_one)


@contextmanager
def opened(graph: Graph) -> Iterator[Part]:
    yield Part(graph)


class Empty(Part):
    """A part that takes no memory and gives some rows."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict.fromkeys(self.graph.outputs, SEEN[0])


def peak(directory: Path) -> int:
    """The most bytes that sums and their factors take."""

    @contextmanager
    def opened(graph: Graph) -> Iterator[Part]:
        yield Empty(graph)

    def nothing(name: str, factor: GetFactor, stem: Path) -> PrequantizedWeight:
        return PrequantizedWeight(stem, stem, WeightQuantizationError())

    tracemalloc.start()
    gram_matrices.quantize_calibrated(opened, READERS, samples, directory, nothing)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_no_more_than_a_few_sums_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gram_matrices, "STAGE_GRAM_BYTES", SUM)
    monkeypatch.setattr(int_quantization, "MAX_DIRECT_INVERSE", 16)
    few = peak(tmp_path)
    # the sums, what a sample adds to them, and parts of their factor while it is made
    assert few < 3 * SUM + SLACK
    # a mistake that the law would see: all of them at once
    monkeypatch.setattr(gram_matrices, "STAGE_GRAM_BYTES", MANY * SUM)
    assert peak(tmp_path) > few + (MANY - 3) * SUM


@pytest.mark.parametrize("least", [1, 3 * 4 * WIDE**2, 1 << 30])
def test_what_is_met_stage_by_stage_is_what_is_met_at_once(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many weights a stage may hold: beside the products of the maps in NumPy."""
    monkeypatch.setattr(gram_matrices, "STAGE_WEIGHT_BYTES", least)
    parts = list(gram_matrices.split_stages(READERS))
    assert len(parts) == {1: MANY - 1, 1 << 30: 1}.get(least, 3)
    held = [4 * WIDE**2 * len(part.graph.parameters) for part in parts]
    assert max(held) <= max(least, 4 * WIDE**2)
    found: dict[str, Array] = {}

    def round_one(name: str, factor: GetFactor, stem: Path) -> PrequantizedWeight:
        found[name] = factor(0)
        return PrequantizedWeight(stem, stem, WeightQuantizationError())

    gram_matrices.quantize_calibrated(opened, READERS, samples, tmp_path, round_one)
    x = np.concatenate(SEEN).astype(np.float64)
    for n in range(MANY):
        assert np.allclose(
            found[f"w{n}"], int_quantization.compute_cholesky_factor(x.T @ x), rtol=1e-5
        )
        x = x @ weight(f"w{n}").astype(np.float64).T
    # what stages keep for each other is gone
    assert not list(tmp_path.iterdir())


def test_what_is_ready_is_what_would_be_written(tmp_path: Path) -> None:
    ready = rounded(tmp_path)
    whole = QuantizedValues(BASE, dict.fromkeys(ready, FORM), ready)
    x = np.concatenate(SEEN).astype(np.float64)
    factor = int_quantization.compute_cholesky_factor(x.T @ x)
    one = QuantizedValues(BASE, {"w0": FORM}, get_factor=lambda _: factor)
    for part, dtype in (
        (FORM.format_codes_name("w0"), "u8"),
        (FORM.format_scales_name("w0"), "f32"),
    ):
        want = b"".join(bytes(c) for c in one.chunks(part, dtype))
        assert b"".join(bytes(c) for c in whole.chunks(part, dtype)) == want
    assert whole.streams["w0"].recipe == "gptq"
    assert whole.streams["w0"].error == one.streams["w0"].error
    kept = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert kept == MANY * WIDE * (WIDE // 2 + 4 * WIDE // 32)

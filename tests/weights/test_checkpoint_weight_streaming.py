"""Parameters are streamed in blocks: random and large transposed parameters are complete and use
little memory."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.weights.checkpoint_binding import bind_parameters
from specc.weights.checkpoint_files import open_checkpoint
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.parameter_sources import RandomInitWeights, make_initial_values, read_parameter
from specc.weights.weight_expressions import StackExpr, TensorExpr, TransposeExpr
from specc.weights.weight_rules_and_initializers import (
    Initializer,
    LoadRule,
    ModelParameter,
    WeightRules,
)


def test_seeded_parameters() -> None:
    want = {n: ModelParameter(name=n, shape=(3, 4)) for n in ("wte", "head", "q")}
    seeded = RandomInitWeights(7, want, dict.fromkeys(want, "normal(0.02)"), {"head": "wte"})
    assert seeded.get_tied_source("head") == "wte"
    assert seeded.get_tied_source("wte") is None
    assert seeded.find_byte_range("q") is None
    assert np.array_equal(
        read_parameter(seeded, "q"),
        make_initial_values(Initializer("normal", 0.02), 7, "q", (3, 4)),
    )
    assert np.array_equal(read_parameter(seeded, "head"), read_parameter(seeded, "wte"))
    assert read_parameter(seeded, "q", "f16").dtype == np.float16


def test_memory_of_a_large_transposed_tensor(tmp_path: Path) -> None:
    big = np.arange(3000 * 2000, dtype=np.float32).reshape(3000, 2000)
    write_safetensors(tmp_path / "a.safetensors", {"a": big})
    with open_checkpoint(tmp_path) as checkpoint:
        rules = WeightRules(loads=(LoadRule("a", TransposeExpr(TensorExpr("a"))),))
        binding = bind_parameters([ModelParameter(name="a", shape=(2000, 3000))], rules, checkpoint)
        assert np.array_equal(read_parameter(binding, "a"), big.T)
        tracemalloc.start()
        for _ in binding.iterate_chunks("a", "f32"):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.6 * big.nbytes


def test_memory_of_an_unchanged_tensor(tmp_path: Path) -> None:
    big = np.ones(6_000_000, np.float32)
    write_safetensors(tmp_path / "a.safetensors", {"a": big})
    with open_checkpoint(tmp_path) as checkpoint:
        binding = bind_parameters(
            [ModelParameter(name="a", shape=big.shape)], WeightRules(), checkpoint
        )
        tracemalloc.start()
        total = sum(len(chunk) for chunk in binding.iterate_chunks("a", "f32"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == big.nbytes
        assert peak < big.nbytes / 2


def write_experts(directory: Path, count: int, each: np.ndarray) -> list[LoadRule]:
    """Write a file with a tensor per expert and return the rule that stacks them."""
    write_safetensors(directory / "a.safetensors", {f"e.{n}.w": each + n for n in range(count)})
    parts = tuple(TensorExpr(f"e.{n}.w") for n in range(count))
    return [LoadRule("e.w", StackExpr(parts))]


def test_memory_of_stacked_tensors(tmp_path: Path) -> None:
    one = np.arange(600_000, dtype=np.float32).reshape(600, 1000)
    rules = WeightRules(loads=tuple(write_experts(tmp_path, 12, one)))
    with open_checkpoint(tmp_path) as checkpoint:
        binding = bind_parameters(
            [ModelParameter(name="e.w", shape=(12, 600, 1000))], rules, checkpoint
        )
        assert binding.find_byte_range("e.w") is None
        wanted = np.stack([one + n for n in range(12)])
        assert np.array_equal(read_parameter(binding, "e.w"), wanted)
        tracemalloc.start()
        total = sum(len(chunk) for chunk in binding.iterate_chunks("e.w", "f32"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == wanted.nbytes
        assert peak < wanted.nbytes / 2


def test_nan_names_the_stacked_tensor(tmp_path: Path) -> None:
    one = np.ones((2, 3), np.float32)
    rules = WeightRules(loads=tuple(write_experts(tmp_path, 3, one)))
    bad = {f"e.{n}.w": one * (np.nan if n == 1 else 1) for n in range(3)}
    write_safetensors(tmp_path / "a.safetensors", bad)
    with open_checkpoint(tmp_path) as checkpoint:
        binding = bind_parameters([ModelParameter(name="e.w", shape=(3, 2, 3))], rules, checkpoint)
        with pytest.raises(SpeccError) as failed:
            read_parameter(binding, "e.w")
    (fault,) = failed.value.diagnostics
    assert fault.code == "E0507"
    assert "`e.1.w`" in fault.notes[0]


def test_single_expert_is_linked(tmp_path: Path) -> None:
    one = np.ones((2, 3), np.float32)
    rules = WeightRules(loads=tuple(write_experts(tmp_path, 1, one)))
    with open_checkpoint(tmp_path) as checkpoint:
        binding = bind_parameters([ModelParameter(name="e.w", shape=(1, 2, 3))], rules, checkpoint)
        assert binding.find_byte_range("e.w") is not None

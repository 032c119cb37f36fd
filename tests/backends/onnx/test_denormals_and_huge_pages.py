"""Denormals are flushed to zero while a model runs, and only then; the memory of a session is moved to
huge pages without a change of its contents."""

import mmap
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.decoder_graphs import build_decoder, sample_parameters
from support.elaborated_specs import elaborate_with_config as spec_opened
from support.local_attention_cases import LocalAttentionCase, sample_inputs
from support.small_configs import SMALL_CONFIGS

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.graph import Graph
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs
from specc.transforms import pass_pipeline
from specc_onnx import build_model, get_target, ort_model, ort_session
from specc_onnx.denormals_and_huge_pages import (
    HUGE_PAGE_BYTES,
    RUNS_BEFORE_MOVE,
    Interval,
    SessionMemoryMappings,
    align_to_huge_pages,
    flush_denormals,
    get_flush_to_zero_mode,
    is_flush_to_zero_enabled,
    list_anonymous_mappings,
    subtract_intervals,
)
from specc_onnx.ort_model import OrtModel
from specc_onnx.ort_session import open_serialized_ort_model

HERE = pytest.mark.skipif(get_flush_to_zero_mode() is None, reason="this platform has no such mode")


def open_graph(graph: Graph, threads: int = 1) -> OrtModel:
    built = build_model(graph, get_target("ort-cpu"))
    values = sample_parameters(graph)
    for name, tensor in built.weights.items():
        tensor.raw_data = values[name].tobytes()
    return open_serialized_ort_model(built.model.SerializeToString(), threads=threads)


@HERE
def test_mode_is_on_inside_the_context_also_when_nested() -> None:
    with flush_denormals():
        assert is_flush_to_zero_enabled()
        assert np.float32(1e-38) * np.float32(0.5) == 0
        with flush_denormals():
            assert is_flush_to_zero_enabled()
        assert is_flush_to_zero_enabled()
    assert not is_flush_to_zero_enabled()
    assert np.float32(1e-38) * np.float32(0.5) > 0


@HERE
def test_exception_restores_the_mode() -> None:
    def stop() -> None:
        with flush_denormals():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert not is_flush_to_zero_enabled()


@HERE
def test_other_threads_are_not_affected() -> None:
    seen, go = [], threading.Event()

    def look() -> None:
        go.wait()
        seen.append(is_flush_to_zero_enabled())

    # One that is started inside would inherit the mode.
    thread = threading.Thread(target=look)
    thread.start()
    with flush_denormals():
        go.set()
        thread.join()
    assert not seen[0]


def test_opening_and_running_models_keeps_denormals() -> None:
    model = open_graph(build_decoder())
    model.run({"tokens": np.array([[1, 2, 3]])})
    assert not is_flush_to_zero_enabled()
    model.run_interruptibly({"tokens": np.array([[1, 2, 3]])})
    model.run_on_device({"tokens": np.array([[1, 2, 3]])})
    assert not is_flush_to_zero_enabled()
    with pytest.raises(SpeccError):
        model.run({"tokens": np.array([[10**6]])})
    assert not is_flush_to_zero_enabled()


@HERE
def test_model_runs_with_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Watching:
        """A session that records whether denormals are flushed while it runs."""

        def run(self, *_: Any) -> list[Any]:
            seen.append(is_flush_to_zero_enabled())
            return []

    plain = open_graph(build_decoder())
    model = OrtModel(session=Watching(), name="m", provider="cpu", inputs=plain.inputs, outputs={})
    model.run({"tokens": np.array([[1]])})
    model.run_interruptibly({"tokens": np.array([[1]])})
    assert seen == [True, True]


@contextmanager
def nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("graph", ["decoder", "window", "causal", "sinks"])
def test_results_are_bitwise_equal(
    graph: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {
        "decoder": build_decoder,
        "window": LocalAttentionCase(low=0, high=20).graph,
        "causal": LocalAttentionCase(low=0, high=None, slopes=True).graph,
        "sinks": LocalAttentionCase(low=-5, high=5, sinks=True, cap=3.0).graph,
    }[graph]()
    inputs = sample_inputs(made, 2, 150)
    if graph == "decoder":
        inputs = {"tokens": np.random.default_rng(0).integers(0, 11, (2, 150))}
    on = open_graph(made, threads).run(inputs)
    for module in (ort_model, ort_session):
        monkeypatch.setattr(module, "flush_denormals", nothing)
    monkeypatch.setattr(ort_session, "FLUSH_DENORMALS_OPTION", "none.such")
    off = open_graph(made, threads).run(inputs)
    for name, result in off.items():
        assert result.tobytes() == on[name].tobytes()


FEW = ("gpt2", "longformer", "luong_local_p", "t5")


@pytest.mark.parametrize("spec", FEW)
def test_results_of_specs_are_bitwise_equal(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bitwise_equal(spec, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted(set(SMALL_CONFIGS) - {*FEW}))
def test_results_of_all_specs_are_bitwise_equal(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bitwise_equal(spec, monkeypatch)


def check_bitwise_equal(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with and without the mode on random weights and a batch of inputs."""
    sets = {key.replace(".", "__"): value for key, value in SMALL_CONFIGS[spec].items()}
    graph = pass_pipeline.simplify_graph(spec_opened(spec, **sets).model.graph)
    inputs = make_random_inputs(graph, choose_dim_sizes(graph, 2), np.random.default_rng(0))
    on = open_graph(graph).run(inputs)
    for module in (ort_model, ort_session):
        monkeypatch.setattr(module, "flush_denormals", nothing)
    monkeypatch.setattr(ort_session, "FLUSH_DENORMALS_OPTION", "none.such")
    off = open_graph(graph).run(inputs)
    for name, result in off.items():
        assert result.tobytes() == on[name].tobytes(), name


def test_platform_without_the_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specc_onnx.denormals_and_huge_pages.FLUSH_CONTROL_BITS", {})
    get_flush_to_zero_mode.cache_clear()
    assert get_flush_to_zero_mode() is None
    with flush_denormals():
        assert not is_flush_to_zero_enabled()
    monkeypatch.undo()
    get_flush_to_zero_mode.cache_clear()


SPEC = """specc 1
model wide
dims batch
graph g(x: float[batch, 1024]) -> (y: float[batch, 2048]) {
  return linear(x, out=2048) @ layer
}
"""


def test_differences_of_intervals_equal_differences_of_sets() -> None:
    random.seed(0)
    for _ in range(200):
        edges = [sorted(random.sample(range(40), 8)) for _ in range(2)]
        first, second = ([(e[n], e[n + 1]) for n in range(0, 8, 2)] for e in edges)
        rest = subtract_intervals(first, second)
        expected = {n for s, e in first for n in range(s, e)}
        expected -= {n for s, e in second for n in range(s, e)}
        assert [n for s, e in rest for n in range(s, e)] == sorted(expected)


def test_intervals_shrink_to_whole_huge_pages() -> None:
    page = HUGE_PAGE_BYTES
    given = [(1, page), (page, 3 * page), (4 * page - 1, 6 * page + 1), (7 * page + 1, 9 * page)]
    expected = [(page, 3 * page), (4 * page, 6 * page), (8 * page, 9 * page)]
    assert align_to_huge_pages(given) == expected


@pytest.mark.skipif(not list_anonymous_mappings(), reason="this system has no huge pages")
def test_contents_do_not_change() -> None:
    memory = SessionMemoryMappings()
    with memory.record_mappings():
        area = mmap.mmap(-1, 4 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        values = np.frombuffer(area, np.uint8)
        values[:] = np.arange(len(values)) % 251
    address = values.ctypes.data
    assert any(s < address + len(values) and e > address for s, e in memory.intervals)
    memory.move_to_huge_pages()
    assert np.array_equal(values, np.arange(len(values)) % 251)


def test_a_session_moves_once_and_its_outputs_stay_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []
    move = SessionMemoryMappings.move_to_huge_pages

    def record_move(self: SessionMemoryMappings) -> None:
        move(self)
        moved.append(len(self.intervals))

    monkeypatch.setattr(SessionMemoryMappings, "move_to_huge_pages", record_move)
    found: list[Interval] = []

    def record_intervals(intervals: list[Interval]) -> list[Interval]:
        # a session may fit into memory that was mapped before
        found[:] = align_to_huge_pages(intervals)
        return found

    monkeypatch.setattr("specc_onnx.denormals_and_huge_pages.align_to_huge_pages", record_intervals)
    # the move runs on the calling thread
    monkeypatch.setattr(threading, "Thread", _RunAtStart)
    spec = tmp_path / "wide.specc"
    spec.write_text(SPEC)
    specc.compile(spec, tmp_path / "wide.onnx", init=0)
    model = specc.load(tmp_path / "wide.onnx")
    x = np.random.default_rng(0).standard_normal((3, 1024), np.float32)
    results = [model.run(x=x)["y"] for _ in range(2 * RUNS_BEFORE_MOVE)]
    assert all(np.array_equal(r, results[0]) for r in results)
    assert len(moved) == bool(found)


def test_other_systems_have_no_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert list_anonymous_mappings() == []


class _RunAtStart:
    def __init__(self, target: object, daemon: bool) -> None:
        assert daemon
        self.start = target

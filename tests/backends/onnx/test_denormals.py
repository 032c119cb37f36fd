"""Denormals are flushed to zero while a model runs, and only then."""

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

from specc.diagnostics.diagnostic import Failed
from specc.ir.graph import Graph
from specc.runtime.random_inputs import choose_lengths, make_random_inputs
from specc.transforms import pass_pipeline
from specc_onnx import build_model, denormals, get_target, ort_session
from specc_onnx.denormals import compute_half_min_normal, flush_denormals, get_float_mode
from specc_onnx.ort_session import OrtModel, open_ort_model_bytes

HERE = pytest.mark.skipif(get_float_mode() is None, reason="this platform has no such mode")


def open_graph(graph: Graph, threads: int = 1) -> OrtModel:
    built = build_model(graph, get_target("ort-cpu"))
    values = sample_parameters(graph)
    for name, tensor in built.weights.items():
        tensor.raw_data = values[name].tobytes()
    return open_ort_model_bytes(built.model.SerializeToString(), threads=threads)


@HERE
def test_mode_is_on_inside_the_context_also_when_nested() -> None:
    with flush_denormals():
        assert compute_half_min_normal() == 0
        assert np.float32(1e-38) * np.float32(0.5) == 0
        with flush_denormals():
            assert compute_half_min_normal() == 0
        assert compute_half_min_normal() == 0
    assert compute_half_min_normal() > 0
    assert np.float32(1e-38) * np.float32(0.5) > 0


@HERE
def test_exception_restores_the_mode() -> None:
    def stop() -> None:
        with flush_denormals():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert compute_half_min_normal() > 0


@HERE
def test_other_threads_are_not_affected() -> None:
    seen, go = [], threading.Event()

    def look() -> None:
        go.wait()
        seen.append(compute_half_min_normal())

    # One that is started inside would inherit the mode.
    thread = threading.Thread(target=look)
    thread.start()
    with flush_denormals():
        go.set()
        thread.join()
    assert seen[0] > 0


def test_opening_and_running_models_keeps_denormals() -> None:
    model = open_graph(build_decoder())
    model.run({"tokens": np.array([[1, 2, 3]])})
    assert compute_half_min_normal() > 0
    model.run_interruptibly({"tokens": np.array([[1, 2, 3]])})
    model.run_on_device({"tokens": np.array([[1, 2, 3]])})
    assert compute_half_min_normal() > 0
    with pytest.raises(Failed):
        model.run({"tokens": np.array([[10**6]])})
    assert compute_half_min_normal() > 0


@HERE
def test_model_runs_with_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Watching:
        """A session that records whether denormals are flushed while it runs."""

        def run(self, *_: Any) -> list[Any]:
            seen.append(compute_half_min_normal())
            return []

    plain = open_graph(build_decoder())
    model = OrtModel(session=Watching(), name="m", provider="cpu", inputs=plain.inputs, outputs={})
    model.run({"tokens": np.array([[1]])})
    model.run_interruptibly({"tokens": np.array([[1]])})
    assert seen == [0, 0]


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
    monkeypatch.setattr(ort_session, "flush_denormals", nothing)
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
    inputs = make_random_inputs(graph, choose_lengths(graph, 2), np.random.default_rng(0))
    on = open_graph(graph).run(inputs)
    monkeypatch.setattr(ort_session, "flush_denormals", nothing)
    monkeypatch.setattr(ort_session, "FLUSH_DENORMALS_OPTION", "none.such")
    off = open_graph(graph).run(inputs)
    for name, result in off.items():
        assert result.tobytes() == on[name].tobytes(), name


def test_platform_without_the_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(denormals, "FLUSH_CONTROL_BITS", {})
    get_float_mode.cache_clear()
    assert get_float_mode() is None
    with flush_denormals():
        assert compute_half_min_normal() > 0
    monkeypatch.undo()
    get_float_mode.cache_clear()

"""Attention around a predicted center reads only the keys near it and equals attention over all
keys.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.elaborated_specs import elaborate_with_config
from support.onnx_sessions import open_silent_session
from support.small_configs import SMALL_CONFIGS

import specc_numpy
from specc.ir.graph import Graph
from specc.runtime.random_inputs import make_random_inputs
from specc.transforms import pass_pipeline
from specc_onnx import build_model, get_target
from specc_onnx.lower import predictive_local_attention
from specc_onnx.lower.blocked_attention_slices import PositionSpan
from specc_onnx.write.onnx_verifier import verify_built_model


def build_translator() -> tuple[Graph, dict[str, Any]]:
    graph = elaborate_with_config("luong_local_p", **SMALL_CONFIGS["luong_local_p"]).model.graph
    rng = np.random.default_rng(0)
    shapes = {n: [d.number for d in p.type.shape] for n, p in graph.parameters.items()}
    weights = {n: rng.normal(size=s).astype("f4") * 0.3 for n, s in shapes.items()}
    return pass_pipeline.simplify_graph(graph), weights


def measure_max_error(opset: int, *sizes: Mapping[str, int]) -> float:
    """Return the maximum error of the model against the reference over several lengths."""
    graph, weights = build_translator()
    built = build_model(graph, get_target("onnx"), opset)
    verify_built_model(built)
    for name, tensor in built.weights.items():
        tensor.raw_data = weights[name].tobytes()
    session = open_silent_session(built.model)
    worst = 0.0
    for at in sizes:
        given = make_random_inputs(graph, at, np.random.default_rng(at["src"]))
        want = specc_numpy.evaluate_graph(graph, given, weights)
        got = session.run(list(want), given)
        for made, (_, right) in zip(got, want.items(), strict=True):
            assert made.shape == right.shape
            assert np.isfinite(made).all()
            worst = max(worst, float(np.abs(made - right).max(initial=0)))
    return worst


def lengths(batch: int, src: int, tgt: int = 3) -> dict[str, int]:
    return {"batch": batch, "src": src, "tgt": tgt}


@pytest.mark.parametrize("opset", [17, 23])
def test_near_keys_equal_all_keys(opset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Lengths above the fewest and below, also such that texts are centered far apart.
    monkeypatch.setattr(predictive_local_attention, "MIN_KEYS", 10)
    several = [lengths(b, n) for b in (0, 1, 3) for n in (0, 1, 9, 11, 13, 60)]
    assert measure_max_error(opset, *several) < 3e-6


def test_lengths_around_the_threshold() -> None:
    assert measure_max_error(23, lengths(2, 1000), lengths(1, 1001), lengths(2, 1300)) < 3e-5


def test_wrong_near_keys_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    right = predictive_local_attention._emit_window_keys

    def wrong(*args: Any) -> predictive_local_attention.WindowKeys:
        near, g, offset = right(*args), args[0], [3]
        begin = g.emit_node("Min", near.keys.start + offset, near.keys.stop - [1])
        return predictive_local_attention.WindowKeys(
            PositionSpan(begin, near.keys.stop, predictive_local_attention.WINDOW_KEYS_DIM),
            near.reads_window_only,
        )

    monkeypatch.setattr(predictive_local_attention, "MIN_KEYS", 10)
    monkeypatch.setattr(predictive_local_attention, "_emit_window_keys", wrong)
    assert measure_max_error(23, lengths(1, 60)) > 1e-3


def test_other_masks_are_not_matched() -> None:
    graph = elaborate_with_config("luong_local_m", **SMALL_CONFIGS["luong_local_m"]).model.graph
    made = build_model(pass_pipeline.simplify_graph(graph), get_target("onnx")).model
    assert str(predictive_local_attention.WINDOW_KEYS_DIM) not in str(made.graph)

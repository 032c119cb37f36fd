"""Weighted sums with any score function are computed in blocks if their mask is local."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto
from support.onnx_sessions import open_silent_session

import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph
from specc.transforms import pass_pipeline
from specc_onnx import build_model, get_target
from specc_onnx.lower import blocked_attention_loop
from specc_onnx.lower.blocked_attention_slices import PositionSpan
from specc_onnx.lower.subgraphs import iterate_node_subgraphs
from specc_onnx.write.onnx_verifier import verify_built_model

SPEC = """specc 1
model seen "Attention by a score of its own"
dims batch >= 0, seq >= 0

graph seen(x: float[batch, seq, 6], keep: keep[batch, seq]) -> (y: float[batch, seq, 6]) {{
  mixed, weights = attend_by({score}, x, x, x, mask={mask} & visible(keep))
  return {result}
}}
"""


def build_spec(directory: Path, score: str, mask: str, result: str = "mixed") -> Graph:
    path = directory / "seen.specc"
    text = SPEC.format(score=score, mask=mask, result=result)
    path.write_text(text, encoding="utf-8")
    return pass_pipeline.simplify_graph(elaborate_spec(open_spec(str(path)), "").graph)


def list_op_types(graph: GraphProto) -> list[str]:
    inner = [k for n in graph.node for b in iterate_node_subgraphs(n) for k in list_op_types(b)]
    return [*(n.op_type for n in graph.node), *inner]


def measure_max_error(graph: Graph, opset: int, *sizes: tuple[int, int]) -> float:
    """Return the maximum error of the model against the reference over several lengths."""
    rng = np.random.default_rng(0)
    shapes = {n: [d.number for d in p.type.shape] for n, p in graph.parameters.items()}
    weights: dict[str, Any] = {n: rng.normal(size=s).astype("f4") for n, s in shapes.items()}
    built = build_model(graph, get_target("onnx"), opset)
    verify_built_model(built)
    for name, tensor in built.weights.items():
        tensor.raw_data = weights[name].tobytes()
    session, worst = open_silent_session(built.model), 0.0
    for batch, n in sizes:
        x = rng.normal(size=(batch, n, 6)).astype("f4")
        keep = np.arange(n) < np.arange(n, n - batch * 30, -30)[:batch, None]
        given = {"x": x, "keep": keep}
        want = specc_numpy.evaluate_graph(graph, given, weights)["y"]
        (got,) = session.run(["y"], given)
        assert got.shape == want.shape
        worst = max(worst, float(np.abs(got - want).max(initial=0)))
    return worst


SHORT_AND_LONG = ((0, 200), (2, 0), (1, 1), (2, 128), (2, 144), (3, 201))


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("score", ["additive(4)", "dot"])
def test_windows_equal_the_reference(opset: int, score: str, tmp_path: Path) -> None:
    for mask in ("window(8)", "window(5, ahead=4)"):
        graph = build_spec(tmp_path, score, mask)
        assert "Loop" in list_op_types(build_model(graph, get_target("onnx"), opset).model.graph)
        assert measure_max_error(graph, opset, *SHORT_AND_LONG) < 1e-5


def test_one_sided_window_equals_the_reference(tmp_path: Path) -> None:
    assert measure_max_error(build_spec(tmp_path, "dot", "causal"), 23, (1, 512), (2, 513)) < 1e-5


def test_weights_with_other_users_are_dense(tmp_path: Path) -> None:
    result = "mixed + insert(max(weights, axis=2), axis=2)"
    graph = build_spec(tmp_path, "dot", "window(8)", result)
    assert "Loop" not in list_op_types(build_model(graph, get_target("onnx")).model.graph)
    assert measure_max_error(graph, 23, (2, 200)) < 1e-5


def test_long_sequence_has_no_full_attention_grid(tmp_path: Path) -> None:
    graph = build_spec(tmp_path, "additive(4)", "window(8)")
    main = build_model(graph, get_target("onnx")).model.graph
    made = {n.op_type for n in main.node}
    assert not made & {"Tanh", "Softmax"}


def test_wrong_keys_of_a_block_are_detected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = blocked_attention_loop._emit_key_span

    def wrong(*args: Any) -> PositionSpan:
        span, offset = right(*args), [2]
        return PositionSpan(span.start + offset, span.stop + offset, span.length)

    monkeypatch.setattr(blocked_attention_loop, "_emit_key_span", wrong)
    with pytest.raises(AssertionError):
        assert measure_max_error(build_spec(tmp_path, "dot", "window(8)"), 23, (2, 200)) < 1e-3

"""Blocked attention attends exactly to the visible keys at any length, without a tensor of length²
elements.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto
from support.decoder_graphs import build_decoder
from support.local_attention_cases import LocalAttentionCase, sample_inputs
from support.onnx_sessions import open_silent_session
from support.parameter_sweeps import sample_sweep

import specc_numpy
from specc.analysis.local_attention_plan import plan_blocked_attention
from specc.ir import ops
from specc.ir.graph import Graph
from specc_onnx import build_model, get_target
from specc_onnx.lower import blocked_attention_loop, blocked_attention_slices
from specc_onnx.lower.blocked_attention_slices import PositionSpan
from specc_onnx.lower.onnx_values import OnnxValue
from specc_onnx.lower.subgraphs import iterate_node_subgraphs
from specc_onnx.write.instrumentation import add_attention_outputs
from specc_onnx.write.onnx_verifier import (
    convert_weights_to_inputs,
    infer_onnx_value_types,
    verify_built_model,
)


def measure_max_error(graph: Graph, opset: int | Sequence[int], batch: int, *rows: int) -> float:
    """Return the maximum error of the model against the reference over several lengths and opsets."""
    opsets = [opset] if isinstance(opset, int) else opset
    sessions = [
        open_silent_session(build_model(graph, get_target("onnx"), o).model) for o in opsets
    ]
    worst = 0.0
    for n in rows:
        inputs = sample_inputs(graph, batch, n)
        want = specc_numpy.evaluate_graph(graph, inputs, {})["y"]
        for session in sessions:
            (got,) = session.run(["y"], inputs)
            assert got.shape == want.shape
            assert np.isfinite(got).all()
            worst = max(worst, float(np.abs(got - want).max(initial=0)))
    return worst


WINDOWS = [(0, 0), (0, 15), (-7, 8), (3, 20), (-30, -5)]


@pytest.mark.parametrize(("low", "high"), sample_sweep([*WINDOWS]))
@pytest.mark.parametrize("packed", [True, False])
def test_windows_equal_the_reference(low: int, high: int, packed: bool) -> None:
    """Windows include queries without visible keys, keys outside the sequence, and empty windows."""
    setup = LocalAttentionCase(low=low, high=high, packed=packed)
    assert measure_max_error(setup.graph(), (17, 23, 26), 2, 0, 1, 129, 144, 145, 200) < 3e-6


@pytest.mark.parametrize(("low", "high"), [(0, None), (None, 0), (1, None), (-3, None)])
@pytest.mark.parametrize("opset", [17, 23])
def test_one_sided_bands_equal_the_reference(low: int | None, high: int | None, opset: int) -> None:
    setup = LocalAttentionCase(low=low, high=high, heads=(2, 1), packed=opset == 23)
    assert measure_max_error(setup.graph(), opset, 1, 0, 513, 520) < 3e-6


@pytest.mark.parametrize("high", [15, None])
@pytest.mark.parametrize("opset", [17, 24])
def test_bias_sinks_and_softcap_are_sliced_with_the_mask(opset: int, high: int | None) -> None:
    lengths = (1, 130) if high else (1, 513)
    usual = LocalAttentionCase(low=0, high=high, heads=(2, 1))
    for setup in (
        replace(usual, slopes=True),
        replace(usual, slopes=True, keep=False, cap=5.0),
        replace(usual, sinks=True),
    ):
        assert measure_max_error(setup.graph(), opset, 1, *lengths) < 5e-6


@pytest.mark.parametrize("apart", sample_sweep(["keys", "queries", "both", "alone", "first"]))
@pytest.mark.parametrize(("opset", "packed"), [(17, True), (23, True), (24, False)])
def test_global_tokens_equal_the_reference(apart: Any, opset: int, packed: bool) -> None:
    usual = LocalAttentionCase(low=-7, high=8, global_tokens=apart, packed=packed)
    graph = usual.graph()
    local = plan_blocked_attention(_attention(graph), [graph.inputs["keep"]])
    assert local is not None
    assert bool(local.decomposition.key_conditions) == (apart in ("keys", "both", "first"))
    assert bool(local.decomposition.query_conditions) == (apart in ("queries", "both", "alone"))
    assert measure_max_error(graph, opset, 2, 0, 1, 144, 145, 200) < 3e-6
    assert measure_max_error(graph, opset, 0, 200) == 0
    for setup in (
        replace(usual, low=0, high=None, heads=(2, 1)),
        replace(usual, slopes=True, keep=False, heads=(2, 1)),
    ):
        lengths = (1, 513) if setup.high is None else (1, 150)
        assert measure_max_error(setup.graph(), opset, 1, *lengths) < 5e-6


@pytest.mark.parametrize("share", [0.0, 0.2, 0.3, 1.0])
def test_any_number_of_global_tokens(share: float) -> None:
    graph = LocalAttentionCase(low=-7, high=8, global_tokens="both").graph()
    session = open_silent_session(build_model(graph, get_target("onnx")).model)
    inputs = sample_inputs(graph, 2, 160)
    inputs["far"] = np.arange(160) >= np.full((2, 1), round(160 * (1 - share)))
    want = specc_numpy.evaluate_graph(graph, inputs, {})["y"]
    assert np.abs(session.run(["y"], inputs)[0] - want).max() < 3e-6


def test_duplicated_global_keys_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(keys: PositionSpan, global_positions: OnnxValue) -> OnnxValue:
        return global_positions.g.emit_constant(True, "bool")

    monkeypatch.setattr(blocked_attention_slices, "_emit_not_duplicated", twice)
    with pytest.raises(AssertionError):
        assert (
            measure_max_error(
                LocalAttentionCase(low=-7, high=8, global_tokens="keys").graph(), 23, 2, 160
            )
            < 1e-3
        )


def test_padding_does_not_count_as_a_global_token() -> None:
    graph = LocalAttentionCase(low=None, high=2**60, global_tokens="alone").graph()
    keep, far = graph.inputs["keep"], graph.inputs["far"]
    assert plan_blocked_attention(_attention(graph), [keep]) is not None
    assert plan_blocked_attention(_attention(graph), [keep, far]) is None


def test_empty_batch_of_long_sequences() -> None:
    assert measure_max_error(LocalAttentionCase(low=0, high=15).graph(), 23, 0, 0, 7, 500) == 0


def test_windows_at_least_as_wide_as_the_sequence() -> None:
    for high in (299, 600):
        graph = LocalAttentionCase(low=0, high=high, heads=(2, 1)).graph()
        assert measure_max_error(graph, 23, 1, 299, 513, 640) < 3e-6


def list_nodes(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for body in iterate_node_subgraphs(node):
            yield from list_nodes(body)


def test_blocks_use_standard_operators_only_above_the_threshold() -> None:
    local = list(
        list_nodes(
            build_model(LocalAttentionCase(low=0, high=9).graph(), get_target("onnx")).model.graph
        )
    )
    assert local.count("Loop") == 1
    free = LocalAttentionCase(low=None, high=None, keep=False)
    assert plan_blocked_attention(_attention(LocalAttentionCase(low=0, high=9).graph())) is not None
    no_band = replace(free, low=-(2**60), high=2**60).graph()
    assert "Loop" not in set(list_nodes(build_model(no_band, get_target("onnx")).model.graph))
    cuda = build_model(
        LocalAttentionCase(low=0, high=9).graph(), get_target("ort-cuda")
    ).model.graph
    assert "Loop" not in set(list_nodes(cuda))


def _attention(graph: Graph) -> Any:
    return next(n for n, _ in graph.nodes if isinstance(n.op, ops.Attend))


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("high", [15, None])
def test_only_the_short_branch_has_square_values(opset: int, high: int | None) -> None:
    built = build_model(
        LocalAttentionCase(low=0, high=high, slopes=True).graph(), get_target("onnx"), opset
    )
    verify_built_model(built)
    model = convert_weights_to_inputs(built)
    found = infer_onnx_value_types(model, {"batch": 3, "seq": 1009}, {})
    kept = [n for name in found.types if (n := name) not in _list_short_branch_values(model.graph)]
    assert len(kept) > 20
    for name in kept:
        assert (found.get_shape(name) or ()).count(1009) < 2, name


def test_sliced_full_grid_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        blocked_attention_slices.QueryKeySlicer,
        "_slice_all_operands",
        lambda self, value, axes: None,
    )
    with pytest.raises(AssertionError, match="assert 2 < 2"):
        test_only_the_short_branch_has_square_values(23, 15)


def _list_short_branch_values(graph: GraphProto) -> set[str]:
    """Return the values of the branches for short sequences."""
    found: set[str] = set()
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "else_branch":
                found |= {o for n in attribute.g.node for o in n.output}
                found |= {o for n in _list_subgraphs(attribute.g) for o in n}
    return found


def _list_subgraphs(graph: GraphProto) -> Iterator[list[str]]:
    for node in graph.node:
        for body in iterate_node_subgraphs(node):
            yield [o for n in body.node for o in n.output]
            yield from _list_subgraphs(body)


def test_layers_share_the_mask_of_the_short_branch() -> None:
    main = build_model(build_decoder(layers=3), get_target("onnx")).model.graph.node
    # one for the mask, one for each attention
    assert sum(n.op_type == "If" for n in main) == 1 + 3


@pytest.mark.parametrize("opset", [17, 23])
def test_weights_of_blocked_attention_are_exposed(opset: int) -> None:
    graph = LocalAttentionCase(low=0, high=15, slopes=True).graph()
    built = build_model(graph, get_target("onnx"), opset)
    names = add_attention_outputs(built.model, built.attention_weight_locations)
    assert list(names) == ["layer.attention"]
    inputs = sample_inputs(graph, 2, 150)
    y, weights = open_silent_session(built.model).run(["y", *names.values()], inputs)
    assert np.abs(y - specc_numpy.evaluate_graph(graph, inputs, {})["y"]).max() < 3e-6
    seen = np.tril(np.ones((150, 150))) - np.tril(np.ones((150, 150)), -16)
    assert weights.shape == (2, 4, 150, 150)
    assert (weights[:, :, seen == 0] == 0).all()


def test_missing_key_of_a_block_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    right = blocked_attention_loop._emit_key_span

    def wrong(*args: Any) -> PositionSpan:
        span, offset = right(*args), [1]
        return PositionSpan(span.start + offset, span.stop + offset, span.length)

    monkeypatch.setattr(blocked_attention_loop, "_emit_key_span", wrong)
    with pytest.raises(AssertionError):
        assert measure_max_error(LocalAttentionCase(low=0, high=15).graph(), 23, 2, 160) < 1e-3


def test_memory_use_of_8192_positions() -> None:
    """One boolean tensor of 8192² elements would take 67 MB, one of position ids 537 MB."""
    program = (
        "from support.local_attention_cases import LocalAttentionCase, measure_peak_memory; "
        "print(measure_peak_memory(LocalAttentionCase(low=0, high=63), 8192))"
    )
    where = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=where, capture_output=True, check=True, text=True
    )
    assert int(done.stdout) < 60

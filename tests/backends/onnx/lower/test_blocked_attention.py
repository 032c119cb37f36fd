"""Attention in blocks: what the mask shows and no more, for any length, without a tensor
of as many numbers as the length squared.
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

import specc_numpy
from specc.analysis.local_attention import plan_local_attention
from specc.ir import ops
from specc.ir.graph import Graph
from specc_onnx import build_model, get_target
from specc_onnx.emit.instrumentation import add_attention_outputs
from specc_onnx.lower import blocked_attention, grid_slices
from specc_onnx.lower.onnx_nodes import iterate_node_bodies
from specc_onnx.verifier.onnx_verifier import (
    infer_model_types,
    make_weights_inputs,
    verify_built_model,
)


def off(graph: Graph, opset: int | Sequence[int], batch: int, *rows: int) -> float:
    """How far the model is from the reference, at the worst of some lengths and opsets."""
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


@pytest.mark.parametrize(("low", "high"), WINDOWS)
@pytest.mark.parametrize("packed", [True, False])
def test_windows_equal_the_reference(low: int, high: int, packed: bool) -> None:
    """Also with keys that do not exist, with queries that see none, and with nothing."""
    setup = LocalAttentionCase(low=low, high=high, packed=packed)
    assert off(setup.graph(), (17, 23, 26), 2, 0, 1, 129, 144, 145, 200) < 3e-6


@pytest.mark.parametrize(("low", "high"), [(0, None), (None, 0), (1, None), (-3, None)])
@pytest.mark.parametrize("opset", [17, 23])
def test_halves_equal_the_reference(low: int | None, high: int | None, opset: int) -> None:
    setup = LocalAttentionCase(low=low, high=high, heads=(2, 1), packed=opset == 23)
    assert off(setup.graph(), opset, 1, 0, 513, 520) < 3e-6


@pytest.mark.parametrize("high", [15, None])
@pytest.mark.parametrize("opset", [17, 24])
def test_added_scores_sinks_and_caps_are_cut_as_the_mask_is(opset: int, high: int | None) -> None:
    lengths = (1, 130) if high else (1, 513)
    usual = LocalAttentionCase(low=0, high=high, heads=(2, 1))
    for setup in (
        replace(usual, slopes=True),
        replace(usual, slopes=True, keep=False, cap=5.0),
        replace(usual, sinks=True),
    ):
        assert off(setup.graph(), opset, 1, *lengths) < 5e-6


@pytest.mark.parametrize("apart", ["keys", "queries", "both", "alone", "first"])
@pytest.mark.parametrize(("opset", "packed"), [(17, True), (23, True), (24, False)])
def test_rows_apart_see_all_and_are_seen_by_all(apart: Any, opset: int, packed: bool) -> None:
    usual = LocalAttentionCase(low=-7, high=8, global_tokens=apart, packed=packed)
    graph = usual.graph()
    local = plan_local_attention(_attention(graph), [graph.inputs["keep"]])
    assert local is not None
    assert bool(local.parts.key_conditions) == (apart in ("keys", "both", "first"))
    assert bool(local.parts.query_conditions) == (apart in ("queries", "both", "alone"))
    assert off(graph, opset, 2, 0, 1, 144, 145, 200) < 3e-6
    assert off(graph, opset, 0, 200) == 0
    for setup in (
        replace(usual, low=0, high=None, heads=(2, 1)),
        replace(usual, slopes=True, keep=False, heads=(2, 1)),
    ):
        lengths = (1, 513) if setup.high is None else (1, 150)
        assert off(setup.graph(), opset, 1, *lengths) < 5e-6


@pytest.mark.parametrize("share", [0.0, 0.2, 0.3, 1.0])
def test_however_many_stand_apart(share: float) -> None:
    graph = LocalAttentionCase(low=-7, high=8, global_tokens="both").graph()
    session = open_silent_session(build_model(graph, get_target("onnx")).model)
    inputs = sample_inputs(graph, 2, 160)
    inputs["far"] = np.arange(160) >= np.full((2, 1), round(160 * (1 - share)))
    want = specc_numpy.evaluate_graph(graph, inputs, {})["y"]
    assert np.abs(session.run(["y"], inputs)[0] - want).max() < 3e-6


def test_keys_that_are_counted_twice_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(g: Any, keys: grid_slices.PositionSpan) -> str:
        every: str = g.constant(True, "bool")
        return every

    monkeypatch.setattr(grid_slices, "_emit_not_duplicated", twice)
    with pytest.raises(AssertionError):
        assert (
            off(LocalAttentionCase(low=-7, high=8, global_tokens="keys").graph(), 23, 2, 160) < 1e-3
        )


def test_padding_is_no_part_of_a_mask() -> None:
    graph = LocalAttentionCase(low=None, high=2**60, global_tokens="alone").graph()
    keep, far = graph.inputs["keep"], graph.inputs["far"]
    assert plan_local_attention(_attention(graph), [keep]) is not None
    assert plan_local_attention(_attention(graph), [keep, far]) is None


def test_an_empty_batch_of_long_texts_gives_nothing() -> None:
    assert off(LocalAttentionCase(low=0, high=15).graph(), 23, 0, 0, 7, 500) == 0


def test_windows_as_wide_as_the_axis_and_wider() -> None:
    for high in (299, 600):
        graph = LocalAttentionCase(low=0, high=high, heads=(2, 1)).graph()
        assert off(graph, 23, 1, 299, 513, 640) < 3e-6


def nodes(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for body in iterate_node_bodies(node):
            yield from nodes(body)


def test_only_standard_operators_and_only_where_it_pays() -> None:
    local = list(
        nodes(
            build_model(LocalAttentionCase(low=0, high=9).graph(), get_target("onnx")).model.graph
        )
    )
    assert local.count("Loop") == 1
    free = LocalAttentionCase(low=None, high=None, keep=False)
    assert plan_local_attention(_attention(LocalAttentionCase(low=0, high=9).graph())) is not None
    no_band = replace(free, low=-(2**60), high=2**60).graph()
    assert "Loop" not in set(nodes(build_model(no_band, get_target("onnx")).model.graph))
    cuda = build_model(
        LocalAttentionCase(low=0, high=9).graph(), get_target("ort-cuda")
    ).model.graph
    assert "Loop" not in set(nodes(cuda))


def _attention(graph: Graph) -> Any:
    return next(n for n, _ in graph.nodes if isinstance(n.op, ops.Attend))


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("high", [15, None])
def test_nothing_outside_the_short_form_has_the_length_twice(opset: int, high: int | None) -> None:
    built = build_model(
        LocalAttentionCase(low=0, high=high, slopes=True).graph(), get_target("onnx"), opset
    )
    verify_built_model(built)
    model = make_weights_inputs(built)
    found = infer_model_types(model, {"batch": 3, "seq": 1009}, {})
    kept = [n for name in found.types if (n := name) not in _short(model.graph)]
    assert len(kept) > 20
    for name in kept:
        assert (found.get_shape(name) or ()).count(1009) < 2, name


def test_a_grid_that_is_cut_instead_of_made_in_portions_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        grid_slices.GridSlice, "_slice_all_operands", lambda self, value, axes: None
    )
    with pytest.raises(AssertionError, match="assert 2 < 2"):
        test_nothing_outside_the_short_form_has_the_length_twice(23, 15)


def _short(graph: GraphProto) -> set[str]:
    """Values of the branches that are taken where it is short."""
    found: set[str] = set()
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "else_branch":
                found |= {o for n in attribute.g.node for o in n.output}
                found |= {o for n in _inner(attribute.g) for o in n}
    return found


def _inner(graph: GraphProto) -> Iterator[list[str]]:
    for node in graph.node:
        for body in iterate_node_bodies(node):
            yield [o for n in body.node for o in n.output]
            yield from _inner(body)


def test_layers_share_the_mask_of_the_short_form() -> None:
    main = build_model(build_decoder(layers=3), get_target("onnx")).model.graph.node
    # one for the mask, one for each attention
    assert sum(n.op_type == "If" for n in main) == 1 + 3


@pytest.mark.parametrize("opset", [17, 23])
def test_weights_can_be_read_of_texts_that_are_done_in_blocks(opset: int) -> None:
    graph = LocalAttentionCase(low=0, high=15, slopes=True).graph()
    built = build_model(graph, get_target("onnx"), opset)
    names = add_attention_outputs(built.model, built.attention_notes)
    assert list(names) == ["layer.attention"]
    inputs = sample_inputs(graph, 2, 150)
    y, weights = open_silent_session(built.model).run(["y", *names.values()], inputs)
    assert np.abs(y - specc_numpy.evaluate_graph(graph, inputs, {})["y"]).max() < 3e-6
    seen = np.tril(np.ones((150, 150))) - np.tril(np.ones((150, 150)), -16)
    assert weights.shape == (2, 4, 150, 150)
    assert (weights[:, :, seen == 0] == 0).all()


def test_a_block_that_looks_at_one_key_too_few_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = blocked_attention._emit_key_span

    def wrong(*args: Any) -> blocked_attention.PositionSpan:
        span = right(*args)
        g = args[0]
        later = g.node("Add", span.start, [1])
        return blocked_attention.PositionSpan(later, g.node("Add", span.stop, [1]), span.length)

    monkeypatch.setattr(blocked_attention, "_emit_key_span", wrong)
    with pytest.raises(AssertionError):
        assert off(LocalAttentionCase(low=0, high=15).graph(), 23, 2, 160) < 1e-3


def test_8192_rows_take_little_memory() -> None:
    """One tensor of 8192² flags would be 67 MB, one of row numbers 537."""
    program = (
        "from support.local_attention_cases import LocalAttentionCase, measure_peak_memory; "
        "print(measure_peak_memory(LocalAttentionCase(low=0, high=63), 8192))"
    )
    where = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=where, capture_output=True, check=True, text=True
    )
    assert int(done.stdout) < 60

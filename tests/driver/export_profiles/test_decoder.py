"""A hand-built decoder: caches of other layouts, masks of new positions, position ids, and
unsupported inputs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.hf_decoder_profile import build_decoder
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter, Value
from specc.ir.model_definition import DecodeState, DerivedGraphs
from specc.ir.types import Type

BATCH, NEW, PAST = (Dim.symbol(n) for n in ("batch", "new", "past"))
CACHES = {
    "[batch, heads, rows, features]": (Type.of("f32", BATCH, 2, PAST, 3), 2),
    "[batch, rows, heads, features]": (Type.of("f32", BATCH, PAST, 2, 3), 1),
    "[batch, rows, features]": (Type.of("f32", BATCH, PAST, 6), 1),
}


def convert_cache_to_heads(b: GraphBuilder, x: Value, rank: int, rows: int) -> Value:
    """Convert a cache to the layout of the attention."""
    if rank == 3:
        x = b.add_op(ops.Split(2, (Dim.from_value(2), Dim.from_value(3))), x)
    return b.add_op(ops.Transpose((0, 2, 1, 3)), x) if rows == 1 else x


def convert_features_to_cache(b: GraphBuilder, x: Value, rank: int, rows: int) -> Value:
    """Convert new positions to the layout of the cache."""
    if rank == 3:
        return x
    x = b.add_op(ops.Split(2, (Dim.from_value(2), Dim.from_value(3))), x)
    return b.add_op(ops.Transpose((0, 2, 1, 3)), x) if rows == 2 else x


def build_step(layout: str = "[batch, heads, rows, features]", *beside: str) -> DerivedGraphs:
    """Build a decode step: embedding, one attention over all cached positions, and inputs that are
    added to the embeddings."""
    kept, rows = CACHES[layout]
    b = GraphBuilder()
    ids = b.add_input("ids", Input(Type.of("i64", BATCH, NEW)))
    x = b.add_op(
        ops.Embedding(),
        ids,
        b.add_parameter(Parameter(name="table", type=Type.of("f32", 9, 6), initializer="ones")),
    )
    for name in beside:
        keep = name.startswith("keep")
        given = b.add_input(
            name,
            Input(
                Type.of("bool" if keep else "i64", BATCH, NEW), padding_side="any" if keep else ""
            ),
        )
        x = b.add_op(ops.Arith("mul"), x, b.add_op(ops.Insert(2), b.add_op(ops.Cast("f32"), given)))
    past = {n: b.add_input(f"past.{n}", Input(kept)) for n in ("key", "value")}
    after = {
        n: b.add_op(ops.Concat(rows), p, convert_features_to_cache(b, x, kept.rank, rows))
        for n, p in past.items()
    }
    k, v = (convert_cache_to_heads(b, a, kept.rank, rows) for a in after.values())
    y = b.add_op(
        ops.Attend(1.0),
        convert_cache_to_heads(b, convert_features_to_cache(b, x, 4, 1), 4, 1),
        k,
        v,
    )
    logits = b.add_op(ops.Merge(2, 2), b.add_op(ops.Transpose((0, 2, 1, 3)), y))
    graph = b.build_graph("step", {"scores": logits, **{f"next.{n}": v for n, v in after.items()}})
    states = tuple(
        DecodeState(
            name=f"past.{n}",
            next_output=f"next.{n}",
            type=kept,
            batch_axis=0,
            time_axis=rows,
            max_positions=float("inf"),
            initial_output="",
            role=n,
            layer=3,
        )  # type: ignore[arg-type]
        for n in ("key", "value")
    )
    return DerivedGraphs(
        encode=None,
        step=graph,
        states=states,
        loop_invariant_inputs=(),
        full_length_inputs=(),
        sequence_input="ids",
    )


def run_graph(graph: Graph, **given: Any) -> dict[str, Any]:
    table = np.random.default_rng(1).normal(size=(9, 6)).astype(np.float32)
    return specc_numpy.evaluate_graph(graph, given, {"table": table})


@pytest.mark.parametrize("layout", CACHES)
def test_cache_layouts_are_converted(layout: str) -> None:
    derived_graphs = build_step(layout)
    graph, states = build_decoder("hf", derived_graphs, "scores")
    heads, features = (1, 6) if layout == "[batch, rows, features]" else (2, 3)
    kind = f"f32[batch_size, {heads}, past_sequence_length, {features}]"
    assert str(graph.inputs["past_key_values.0.key"].type) == kind
    assert [(s.name, str(s.type), s.time_axis, s.layer) for s in states] == [
        ("past_key_values.0.key", kind, 2, 0), ("past_key_values.0.value", kind, 2, 0)
    ]  # fmt: skip
    key, value = np.random.default_rng(0).normal(size=(2, 2, 2, 4, 3))
    ids = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 0, 1]])

    def convert_layout(cache: Any) -> Any:
        """Merge the heads if the layout has one head."""
        return cache.transpose(0, 2, 1, 3).reshape(2, 1, 4, 6) if heads == 1 else cache

    past = {
        "past_key_values.0.key": convert_layout(key),
        "past_key_values.0.value": convert_layout(value),
    }
    made = run_graph(graph, input_ids=ids, **past)
    plain = run_graph(build_step().step, ids=ids, **{"past.key": key, "past.value": value})
    np.testing.assert_allclose(made["logits"], plain["scores"], rtol=1e-12)
    for word in ("key", "value"):
        assert str(graph.outputs[f"present.0.{word}"].type).startswith(
            f"f32[batch_size, {heads}, past_sequence"
        )
        wanted = plain[f"next.{word}"]
        if heads == 1:
            wanted = wanted.transpose(0, 2, 1, 3).reshape(2, 9, 6)[:, None]
        np.testing.assert_allclose(made[f"present.0.{word}"], wanted, rtol=1e-12)


def test_attention_mask_includes_past_positions() -> None:
    graph, _ = build_decoder(
        "genai", build_step("[batch, heads, rows, features]", "keep"), "scores"
    )
    assert (
        str(graph.inputs["attention_mask"].type)
        == "i64[batch_size, past_sequence_length + sequence_length]"
    )
    past = {f"past_key_values.0.{n}": np.ones((1, 2, 2, 3)) for n in ("key", "value")}
    ids = np.array([[4, 5]])
    seen = run_graph(graph, input_ids=ids, attention_mask=np.array([[0, 0, 1, 1]]), **past)[
        "logits"
    ]
    hidden = run_graph(graph, input_ids=ids, attention_mask=np.array([[1, 1, 1, 0]]), **past)[
        "logits"
    ]
    plain = run_graph(build_decoder("genai", build_step(), "scores")[0], input_ids=ids, **past)[
        "logits"
    ]
    np.testing.assert_allclose(seen, plain)
    assert not np.allclose(hidden, plain)


def test_position_ids_input() -> None:
    graph, _ = build_decoder(
        "hf", build_step("[batch, heads, rows, features]", "position_ids"), "scores"
    )
    assert str(graph.inputs["position_ids"].type) == "i64[batch_size, sequence_length]"


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        (("kinds",), "the profile has no name for the input `kinds`"),
        (("keep", "keep_too"), "`keep_too` is a second mask"),
    ],
)
def test_unsupported_input(beside: tuple[str, ...], why: str) -> None:
    with pytest.raises(SpeccError, match=rf"E0752\]: .*: {why}"):
        build_decoder("hf", build_step("[batch, heads, rows, features]", *beside), "scores")


def test_shared_keys_and_values() -> None:
    derived_graphs = build_step()
    shared = replace(derived_graphs, states=derived_graphs.states[:1])
    with pytest.raises(SpeccError, match="`key` caches only keys, without values"):
        build_decoder("hf", shared, "scores")


def test_step_without_states() -> None:
    with pytest.raises(SpeccError, match="the step graph has no state"):
        build_decoder("hf", replace(build_step(), states=()), "scores")


def test_unsupported_cache_layout() -> None:
    derived_graphs = build_step()
    odd = tuple(replace(s, time_axis=3) for s in derived_graphs.states)
    with pytest.raises(SpeccError, match=r"`key` has the type f32\[batch, 2, past, 3\]"):
        build_decoder("hf", replace(derived_graphs, states=odd), "scores")

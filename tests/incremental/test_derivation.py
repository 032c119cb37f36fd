"""Derived graphs: encoder outputs, states and their sizes, against a design by hand."""

from collections import Counter
from typing import Any

from support.derived_graphs import derive_encoder_and_step

from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.spec_inheritance_and_config_overrides import (
    iterate_config_literals as config_literals,
)
from specc.ir import ops
from specc.ir.graph import Graph
from specc.ir.model_definition import DerivedGraphs
from specc.transforms.fuse_scan import fuse_scan
from specc.transforms.graph_rewrite import rewrite_graph
from specc.transforms.split_scan import split_scan

GPT2 = {"vocab": 17, "d": 16, "heads": 2, "layers": 2, "context": 32}
TRANSLATOR = {"vocab": 17, "width": 16, "heads": 2, "encoder.layers": 1, "decoder.layers": 2}


def derive_spec(name: str, rows: Any = "newest", **sets: Any) -> DerivedGraphs:
    model = elaborate_spec(
        open_spec(
            name, config_settings=[f"{key}={text}" for key, text in config_literals("", sets)]
        )
    )
    assert model.generation
    graph = rewrite_graph(model.graph, [fuse_scan, split_scan])
    return derive_encoder_and_step(
        graph, model.generation.sequence_input, {model.generation.logits_output: rows}
    )


def count_ops(graph: Graph) -> Counter[str]:
    """Count the ops in a graph and its loop bodies."""
    found = Counter(node.op.name for node, _ in graph.nodes)
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Scan):
            found += count_ops(node.op.body)
    return found


def test_decoder_caches_keys_and_values() -> None:
    made = derive_spec("gpt2", **GPT2)
    assert made.encode is None
    assert [(s.name, str(s.type)) for s in made.states[:2]] == [
        ("past.h.0.attn.key", "f32[batch, 2, past, 8]"),
        ("past.h.0.attn.value", "f32[batch, 2, past, 8]"),
    ]
    assert [(s.role, s.layer) for s in made.states] == [
        ("key", 0),
        ("value", 0),
        ("key", 1),
        ("value", 1),
    ]
    assert made.full_length_inputs == ("attention_mask",)
    assert str(made.step.inputs["attention_mask"].type) == "bool[batch, new + past]"


def test_only_the_last_logits_are_computed() -> None:
    newest, every = derive_spec("gpt2", **GPT2), derive_spec("gpt2", "new", **GPT2)
    assert str(newest.step.outputs["logits"].type) == "f32[batch, 1, 17]"
    assert str(every.step.outputs["logits"].type) == "f32[batch, new, 17]"
    rows = [r[0].type.shape[1] for node, r in newest.step.nodes if isinstance(node.op, ops.Linear)]
    assert [str(d) for d in rows] == ["new"] * 5 + [
        "1"
    ] * 4  # the last layer's keys and values are the last projections for all positions


def test_cross_attention_keys_are_encoder_outputs() -> None:
    made = derive_spec("encoder_decoder", **TRANSLATOR)
    assert made.encode
    assert made.loop_invariant_inputs == (
        "source_keep",
        "decoder.layers.0.encoder_attn.key",
        "decoder.layers.0.encoder_attn.value",
        "decoder.layers.1.encoder_attn.key",
        "decoder.layers.1.encoder_attn.value",
    )
    full = elaborate_spec(
        open_spec(
            "encoder_decoder",
            config_settings=[f"{k}={t}" for k, t in config_literals("", TRANSLATOR)],
        )
    ).graph
    assert (
        count_ops(full)["linear"]
        == count_ops(made.encode)["linear"] + count_ops(made.step)["linear"]
    )
    # self-attention; query and output of cross-attention; MLP; lm_head
    assert count_ops(made.step)["linear"] == 2 * (4 + 2 + 2) + 1


def test_additive_attention_keys_are_encoder_outputs() -> None:
    made = derive_spec(
        "rnnsearch", src_vocab=13, tgt_vocab=11, embed_dim=5, hidden=6, attention_dim=4, readout=3
    )
    assert made.encode
    assert "decoder.align.U.linear" in made.loop_invariant_inputs
    (state,) = made.states
    assert (state.name, str(state.type), state.time_axis) == (
        "past.decoder.rnn.state",
        "f32[batch, 6]",
        None,
    )
    assert state.initial_output in made.encode.outputs


def test_sliding_window_limits_the_cache() -> None:
    made = derive_spec("encoder_decoder", **TRANSLATOR, **{"decoder.attention.mask": "window(3)"})
    assert [s.max_positions for s in made.states] == [2, 2, 2, 2]
    assert (
        str(made.step.outputs[made.states[0].next_output].type)
        == "f32[batch, 2, min(2, new + past), 8]"
    )


def test_grouped_query_attention_cache() -> None:
    made = derive_spec("encoder_decoder", **TRANSLATOR, kv_heads=1)
    assert str(made.states[0].type) == "f32[batch, 1, past, 8]"


def test_recurrent_states() -> None:
    made = derive_spec("lstm_lm", vocab=17, width=6)
    assert made.encode is None
    assert [s.name for s in made.states] == [
        "past.rnn.state",
        "past.rnn.cell",
        "past.rnn.state_2",
        "past.rnn.cell_2",
    ]
    assert all(
        s.time_axis is None and s.initial_output == "" and s.batch_axis == 0 for s in made.states
    )

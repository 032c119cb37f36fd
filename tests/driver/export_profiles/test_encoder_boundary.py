"""The encoder output is found in the graph regardless of names; also which values may be passed to
the decoder."""

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.hf_encoder_decoder_profile import (
    build_encoder_decoder_graphs,
    find_cross_attention_inputs,
    find_encoder_output,
)
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter, Value
from specc.ir.model_definition import DecodeState, DerivedGraphs
from specc.ir.types import Type

BATCH, SRC, NEW, PAST = (Dim.symbol(n) for n in ("batch", "src", "new", "past"))


def add_weight(b: GraphBuilder, name: str, *shape: int) -> Value:
    return b.add_parameter(Parameter(name=name, type=Type.of("f32", *shape), initializer="ones"))


def add_linear(b: GraphBuilder, x: Value, name: str) -> Value:
    return b.add_op(ops.Linear(), x, add_weight(b, name, 4, 4))


def split_heads(b: GraphBuilder, x: Value) -> Value:
    return b.add_op(
        ops.Transpose((0, 2, 1, 3)),
        b.add_op(ops.Split(2, (Dim.from_value(2), Dim.from_value(2))), x),
    )


def build_encoder(also: str = "") -> tuple[Graph, Value, Value]:
    """Build an embedding, two layers, keys and values. Return the graph, its input and the output
    of the second layer."""
    b = GraphBuilder()
    words = b.add_input("words", Input(Type.of("i64", BATCH, SRC)))
    keep = b.add_input("keep", Input(Type.of("bool", BATCH, SRC), padding_side="any"))
    x = b.add_op(ops.Embedding(), words, add_weight(b, "table", 9, 4))
    x = b.add_op(ops.Where(), b.add_op(ops.Insert(2), keep), x, b.add_op(ops.Constant(0.0, "f32")))
    end = add_linear(b, add_linear(b, x, "one"), "two")
    made = {
        "k": split_heads(b, add_linear(b, end, "key")),
        "v": split_heads(b, add_linear(b, end, "value")),
    }
    made["seen"] = b.add_op(ops.Insert(1), b.add_op(ops.Insert(1), keep))
    if also == "early":
        made["v"] = split_heads(b, add_linear(b, x, "value"))
    if also == "more":
        made["sum"] = b.add_op(ops.Reduce("sum", 1), end)
    return b.build_graph("encode", made), words, end


def build_step(encode: Graph) -> DerivedGraphs:
    """Build self-attention over the generated tokens and cross-attention over the encoder
    output."""
    b = GraphBuilder()
    ids = b.add_input("ids", Input(Type.of("i64", BATCH, NEW)))
    given = {n: b.add_input(n, Input(v.type)) for n, v in encode.outputs.items()}
    past = {
        n: b.add_input(f"past.{n}", Input(Type.of("f32", BATCH, 2, PAST, 2)))
        for n in ("key", "value")
    }
    x = b.add_op(ops.Embedding(), ids, add_weight(b, "table", 9, 4))
    after = {
        n: b.add_op(ops.Concat(2), p, split_heads(b, add_linear(b, x, n))) for n, p in past.items()
    }
    y = b.add_op(ops.Attend(1.0), split_heads(b, x), after["key"], after["value"])
    y = b.add_op(ops.Attend(1.0), y, given["k"], given["v"], given["seen"])
    out = b.add_op(ops.Merge(2, 2), b.add_op(ops.Transpose((0, 2, 1, 3)), y))
    if "sum" in given:
        out = b.add_op(ops.Arith("add"), out, b.add_op(ops.Insert(1), given["sum"]))
    graph = b.build_graph("step", {"logits": out, **{f"next.{n}": v for n, v in after.items()}})
    types = {n: v.type for n, v in past.items()}
    states = tuple(
        DecodeState(
            name=f"past.{n}",
            next_output=f"next.{n}",
            type=types[n],
            batch_axis=0,
            time_axis=2,
            max_positions=float("inf"),
            initial_output="",
            role=n,
            layer=0,
        )  # type: ignore[arg-type]
        for n in ("key", "value")
    )
    return DerivedGraphs(
        encode=encode,
        step=graph,
        states=states,
        loop_invariant_inputs=tuple(given),
        full_length_inputs=(),
        sequence_input="ids",
    )


def test_encoder_output_dominates_all_passed_values() -> None:
    graph, words, end = build_encoder()
    assert find_encoder_output(graph, words, graph.outputs.values()) is end


def test_value_from_an_earlier_layer_moves_the_encoder_output() -> None:
    graph, words, end = build_encoder("early")
    found = find_encoder_output(graph, words, graph.outputs.values())
    assert found is not None
    assert found is not end
    assert found.node
    assert isinstance(found.node.op, ops.Where)


def test_cross_attention_keys_and_values() -> None:
    derived_graphs = build_step(build_encoder()[0])
    assert find_cross_attention_inputs(
        derived_graphs.step, derived_graphs.loop_invariant_inputs
    ) == [{"key": "k", "value": "v"}]


def test_encoder_decoder_graphs() -> None:
    made = build_encoder_decoder_graphs(build_step(build_encoder()[0]), "logits").graphs
    assert list(made["decoder_with_past_model"].inputs) == [
        "input_ids", "encoder_attention_mask", "past_key_values.0.decoder.key", "past_key_values.0.decoder.value",
        "past_key_values.0.encoder.key", "past_key_values.0.encoder.value",
    ]  # fmt: skip
    assert "table" in made["encoder_model"].parameters
    assert {"key", "value", "table"} == made["decoder_with_past_model"].parameters.keys()


def test_passed_value_must_be_a_key_or_value() -> None:
    with pytest.raises(SpeccError) as caught:
        build_encoder_decoder_graphs(build_step(build_encoder("more")[0]), "logits")
    (found,) = caught.value.diagnostics
    assert found.code == "E0752"
    assert "`sum` is passed to the decoder and is not a key or value of an attention" in found.title

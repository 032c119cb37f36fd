"""Where the encoder ends is found in the graph, whatever its parts are called; and what
may go over to a decoder.
"""

import pytest

from specc.diagnostics.diagnostic import Failed
from specc.driver.profiles.hf_encoder_decoder import (
    build_encoder_decoder,
    find_cross_attention,
    find_encoder_output,
)
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Parameter, Value
from specc.ir.model import DecodeState, DerivedGraphs
from specc.ir.types import Type

BATCH, SRC, NEW, PAST = (Dim.symbol(n) for n in ("batch", "src", "new", "past"))


def weight(b: Builder, name: str, *shape: int) -> Value:
    return b.parameter(Parameter(name=name, type=Type.of("f32", *shape), initial="ones"))


def linear(b: Builder, x: Value, name: str) -> Value:
    return b.one(ops.Linear(), x, weight(b, name, 4, 4))


def heads(b: Builder, x: Value) -> Value:
    return b.one(ops.Transpose((0, 2, 1, 3)), b.one(ops.Split(2, (Dim.of(2), Dim.of(2))), x))


def encoder(also: str = "") -> tuple[Graph, Value, Value]:
    """Words, two layers, keys and values; gives the graph, the words and what the
    second layer makes.
    """
    b = Builder()
    words = b.input("words", Input(Type.of("i64", BATCH, SRC)))
    keep = b.input("keep", Input(Type.of("bool", BATCH, SRC), keep="any"))
    x = b.one(ops.Embedding(), words, weight(b, "table", 9, 4))
    x = b.one(ops.Where(), b.one(ops.Insert(2), keep), x, b.one(ops.Constant(0.0, "f32")))
    end = linear(b, linear(b, x, "one"), "two")
    made = {"k": heads(b, linear(b, end, "key")), "v": heads(b, linear(b, end, "value"))}
    made["seen"] = b.one(ops.Insert(1), b.one(ops.Insert(1), keep))
    if also == "early":
        made["v"] = heads(b, linear(b, x, "value"))
    if also == "more":
        made["sum"] = b.one(ops.Reduce("sum", 1), end)
    return b.finish("encode", made), words, end


def step(encode: Graph) -> DerivedGraphs:
    """An attention over what was written and one over what is handed over."""
    b = Builder()
    ids = b.input("ids", Input(Type.of("i64", BATCH, NEW)))
    given = {n: b.input(n, Input(v.type)) for n, v in encode.outputs.items()}
    past = {
        n: b.input(f"past.{n}", Input(Type.of("f32", BATCH, 2, PAST, 2))) for n in ("key", "value")
    }
    x = b.one(ops.Embedding(), ids, weight(b, "table", 9, 4))
    after = {n: b.one(ops.Concat(2), p, heads(b, linear(b, x, n))) for n, p in past.items()}
    y = b.one(ops.Attend(1.0), heads(b, x), after["key"], after["value"])
    y = b.one(ops.Attend(1.0), y, given["k"], given["v"], given["seen"])
    out = b.one(ops.Merge(2, 2), b.one(ops.Transpose((0, 2, 1, 3)), y))
    if "sum" in given:
        out = b.one(ops.Arith("add"), out, b.one(ops.Insert(1), given["sum"]))
    graph = b.finish("step", {"logits": out, **{f"next.{n}": v for n, v in after.items()}})
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
        static_inputs=tuple(given),
        full_length_inputs=(),
        growing="ids",
    )


def test_the_encoder_ends_where_all_that_is_handed_over_comes_together() -> None:
    graph, words, end = encoder()
    assert find_encoder_output(graph, words, graph.outputs.values()) is end


def test_a_value_taken_from_further_up_moves_the_end_up() -> None:
    graph, words, end = encoder("early")
    found = find_encoder_output(graph, words, graph.outputs.values())
    assert found is not None
    assert found is not end
    assert found.node
    assert isinstance(found.node.op, ops.Where)


def test_keys_and_values_are_known_by_the_attention_that_reads_them() -> None:
    derived = step(encoder()[0])
    assert find_cross_attention(derived.step, derived.static_inputs) == [{"key": "k", "value": "v"}]


def test_the_three_graphs_of_a_decoder_made_by_hand() -> None:
    made = build_encoder_decoder(step(encoder()[0]), "logits").graphs
    assert list(made["decoder_with_past_model"].inputs) == [
        "input_ids", "encoder_attention_mask", "past_key_values.0.decoder.key", "past_key_values.0.decoder.value",
        "past_key_values.0.encoder.key", "past_key_values.0.encoder.value",
    ]  # fmt: skip
    assert "table" in made["encoder_model"].parameters
    assert {"key", "value", "table"} == made["decoder_with_past_model"].parameters.keys()


def test_what_is_no_key_or_value_cannot_go_over() -> None:
    with pytest.raises(Failed) as caught:
        build_encoder_decoder(step(encoder("more")[0]), "logits")
    (found,) = caught.value.diagnostics
    assert found.code == "E0752"
    assert "`sum` is passed to the decoder and is not a key or value of an attention" in found.title

"""Attention weights can be read from any compiled model, however its attentions were lowered."""

from dataclasses import replace

import numpy as np
import pytest
from support.decoder_graphs import build_decoder, sample_parameters
from support.onnx_sessions import assert_outputs_match, open_silent_session

import specc_numpy
from specc.ir import ops
from specc.ir.graph import Graph, NodeOrigin
from specc_onnx import build_model, get_target
from specc_onnx.write.instrumentation import add_attention_outputs


def add_weight_outputs(graph: Graph) -> Graph:
    """Return the graph with the weights of each attention as an additional output."""
    outputs = {"logits": graph.outputs["logits"]}
    for node, results in graph.nodes:
        if isinstance(node.op, ops.Attend):
            outputs[graph.node_origins[node].scopes[0]] = results[1]
    return Graph(
        **{**{f: getattr(graph, f) for f in Graph.__dataclass_fields__}, "outputs": outputs}
    )


@pytest.mark.parametrize("opset", [17, 23, 24])
@pytest.mark.parametrize("least", [{}, {"batch": 1, "seq": 1}], ids=["may be empty", "not empty"])
def test_weights_of_every_attention_are_exposed(opset: int, least: dict[str, int]) -> None:
    graph = build_decoder(least=least)
    values = sample_parameters(graph)
    built = build_model(graph, get_target("onnx"), opset)
    for name, tensor in built.weights.items():
        tensor.raw_data = values[name].tobytes()
    names = add_attention_outputs(built.model, built.attention_weight_locations)
    assert list(names) == ["layers.0.self_attn", "layers.1.self_attn"]
    given = {"tokens": np.random.default_rng(0).integers(0, 11, (2, 5))}
    wanted = specc_numpy.evaluate_graph(add_weight_outputs(graph), given, values)
    got = open_silent_session(built.model).run(["logits", *names.values()], given)
    assert_outputs_match(wanted, got)
    assert np.allclose(got[1].sum(-1), 1)


def test_existing_weights_output_is_unchanged() -> None:
    graph = add_weight_outputs(build_decoder())
    values = sample_parameters(graph)
    built = build_model(graph, get_target("onnx"))
    for name, tensor in built.weights.items():
        tensor.raw_data = values[name].tobytes()
    given = {"tokens": np.array([[1, 2, 3]])}
    assert_outputs_match(
        specc_numpy.evaluate_graph(graph, given, values),
        open_silent_session(built.model).run(None, given),
    )
    names = add_attention_outputs(built.model, built.attention_weight_locations)
    assert set(names) == {"layers.0.self_attn", "layers.1.self_attn"}
    got = open_silent_session(built.model).run(list(names.values()), given)
    assert [a.shape for a in got] == [(1, 4, 3, 3)] * 2


def test_notes_without_a_matching_node_are_ignored() -> None:
    built = build_model(build_decoder(), get_target("onnx"))
    assert add_attention_outputs(built.model, [{"scope": "gone", "node": "nothing/like/it"}]) == {}


def test_attention_in_two_scopes_is_listed_under_both() -> None:
    graph = build_decoder(layers=1)
    made = {
        n: NodeOrigin(("a", "b"), m.spans) if isinstance(n.op, ops.Attend) else m
        for n, m in graph.node_origins.items()
    }
    twice = replace(graph, node_origins=made)
    built = build_model(twice, get_target("onnx"))
    assert [a["scope"] for a in built.attention_weight_locations] == ["a", "b"]
    names = add_attention_outputs(built.model, built.attention_weight_locations)
    assert names["a"] == names["b"]

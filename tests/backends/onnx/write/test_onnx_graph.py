"""Built ONNX graphs: names, shared nodes, and the effects of target and opset."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from support.decoder_graphs import build_decoder, sample_parameters
from support.onnx_sessions import assert_outputs_match, open_silent_session
from support.parameter_sweeps import sample_sweep

import specc_numpy
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Input, Parameter
from specc.ir.types import Type
from specc_onnx import TARGETS, OnnxBuildResult, build_model, get_target
from specc_onnx.write.onnx_verifier import verify_built_model

ONES = {"batch": 1, "seq": 1}
WHOLE = replace(get_target("onnx"), uses_blocked_attention=False)
"""Attention as one node, whatever its mask: `test_blocks.py` has the other form."""


def list_op_types(built: OnnxBuildResult) -> Counter[str]:
    return Counter(n.op_type for n in built.model.graph.node)


def fill_weights(built: OnnxBuildResult, values: dict[str, np.ndarray]) -> onnx.ModelProto:
    for name, tensor in built.weights.items():
        tensor.raw_data = values[name].tobytes()
    return built.model


@pytest.mark.parametrize("where", sample_sweep([*sorted(TARGETS)]))
@pytest.mark.parametrize("opset", [17, 20, 23, 24, 26])
def test_decoder_equals_the_reference_and_is_verified(where: str, opset: int) -> None:
    graph = build_decoder()
    values = sample_parameters(graph)
    built = build_model(graph, get_target(where), opset)
    verify_built_model(built)
    session = open_silent_session(fill_weights(built, values))
    rng = np.random.default_rng(0)
    for shape in ((3, 5), (1, 1), (2, 0), (0, 4)):
        given = {"tokens": rng.integers(0, 11, shape)}
        assert_outputs_match(
            specc_numpy.evaluate_graph(graph, given, values), session.run(None, given)
        )


def test_attention_is_one_node_on_packed_heads() -> None:
    """No transpose remains: the kernel splits and merges heads."""
    found = list_op_types(build_model(build_decoder(least=ONES), WHOLE, 23))
    assert found["Attention"] == found["RotaryEmbedding"] / 2 == 2
    assert found["Transpose"] == found["If"] == 0
    assert list_op_types(build_model(build_decoder(least=ONES), WHOLE, 22))["Attention"] == 0


def test_attention_over_possibly_empty_inputs_is_inside_an_if() -> None:
    found = list_op_types(build_model(build_decoder(), WHOLE, 23))
    assert found["If"] == 2
    assert found["Attention"] == 0


def test_layers_share_mask_and_rotary_tables() -> None:
    found = list_op_types(build_model(build_decoder(layers=4), WHOLE, 23))
    assert found["LessOrEqual"] == found["Cos"] == found["Sin"] == 1


def test_linear_layers_keep_the_layout_of_the_checkpoint() -> None:
    built = build_model(build_decoder(), get_target("onnx"), 23)
    assert list(built.weights["layers.0.mlp.up.weight"].dims) == [32, 16]
    assert "Transpose" not in list_op_types(built)


def test_only_onnx_runtime_targets_use_contrib_operators() -> None:
    for name, wanted in (("onnx", set()), ("ort-cpu", {"FusedMatMul"})):
        built = build_model(build_decoder(), get_target(name), 23)
        assert {n.op_type for n in built.model.graph.node if n.domain} == wanted
        assert len(built.model.opset_import) == 1 + len(wanted)


def test_nodes_are_numbered_within_their_scope() -> None:
    names = [n.name for n in build_model(build_decoder(least=ONES), WHOLE, 23).model.graph.node]
    assert len(set(names)) == len(names)
    assert "layers/0/self_attn/Attention" in names
    assert "layers/1/mlp/up/Gemm" in names
    assert "layers/0/self_attn/RotaryEmbedding" in names
    assert "layers/0/self_attn/RotaryEmbedding_3" not in names


def test_weights_and_outputs_keep_their_names() -> None:
    graph = build_decoder()
    model = build_model(graph, get_target("onnx")).model
    assert [t.name for t in model.graph.initializer][: len(graph.parameters)] == list(
        graph.parameters
    )
    assert [o.name for o in model.graph.output] == ["logits"]
    assert [
        d.dim_param or d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim
    ] == ["batch", "seq", 11]


@pytest.mark.parity
def test_model_bytes_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "import hashlib, specc_onnx; from support import decoder_graphs; "
        "m = specc_onnx.build_model(decoder_graphs.build_decoder(), specc_onnx.get_target('onnx')).model; "
        "print(hashlib.sha256(m.SerializeToString(deterministic=True)).hexdigest())"
    )
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(seen) == 1


def test_inputs_and_shared_values_can_be_outputs() -> None:
    b = GraphBuilder()
    x = b.add_input("x", Input(Type.of("f32", Dim.symbol("n"))))
    y = b.add_op(ops.Pointwise("exp"), x)
    w = b.add_parameter(Parameter(name="w", type=Type.of("f32", 2), initializer=""))
    graph = b.build_graph("same", {"again": x, "y": y, "also_y": y, "weight": w})
    built = build_model(graph, get_target("onnx"))
    values = {"w": np.array([1.0, 2.0], np.float32)}
    given = {"x": np.arange(3, dtype=np.float32)}
    assert_outputs_match(
        specc_numpy.evaluate_graph(graph, given, values),
        open_silent_session(fill_weights(built, values)).run(None, given),
    )


def test_weight_with_the_name_of_an_input_is_renamed() -> None:
    b = GraphBuilder()
    x = b.add_input("x", Input(Type.of("f32", 2)))
    w = b.add_parameter(Parameter(name="x", type=Type.of("f32", 2), initializer=""))
    graph = b.build_graph("names", {"y": b.add_op(ops.Arith("add"), x, w)})
    built = build_model(graph, get_target("onnx"))
    assert built.weights["x"].name != "x"
    verify_built_model(built)


def test_narrow_weights_are_widened_and_tied_weights_stored_once() -> None:
    b = GraphBuilder()
    x = b.add_input("x", Input(Type.of("f32", Dim.symbol("n"), 2)))
    one, two = (
        b.add_parameter(Parameter(name=n, type=Type.of("f32", 2, 2), initializer=""))
        for n in ("one", "two")
    )
    y = b.add_op(ops.Linear(), b.add_op(ops.Linear(), x, one, None), two, None)
    built = build_model(
        b.build_graph("tied", {"y": y}),
        get_target("onnx"),
        storage_dtypes={"one": "bf16"},
        ties={"two": "one"},
    )
    assert list(built.weights) == ["one"]
    assert built.weights["one"].data_type == onnx.TensorProto.BFLOAT16
    assert list_op_types(built)["Cast"] == 1
    verify_built_model(built)

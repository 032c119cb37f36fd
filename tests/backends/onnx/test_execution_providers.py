"""What may stay on the processor when another provider was asked for: lengths, and nothing else."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.verification_lines import list_model_lines

import specc
from specc.diagnostics.diagnostic import Failed
from specc_onnx import execution_providers
from specc_onnx.execution_providers import NodeKey, find_computing_nodes


def model(
    *nodes: onnx.NodeProto, given: list[onnx.ValueInfoProto] | None = None
) -> onnx.ModelProto:
    """`nodes` over `x` f32[n, 3], a weight `w`, `axis` and a number `limit`."""
    inputs = given or [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("limit", TensorProto.INT64, []),
    ]
    weights = [onnx.numpy_helper.from_array(np.ones((3, 3), np.float32), "w")]
    weights += [
        onnx.numpy_helper.from_array(np.array(n, np.int64), name)
        for name, n in (("one", 1), ("axis", [0]))
    ]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.UNDEFINED, None)]
    return helper.make_model(helper.make_graph(list(nodes), "g", inputs, outputs, weights))


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"n/{output}", **attributes)


LENGTHS = [
    node("Shape", "x", "shape"),
    node("Gather", "shape axis", "rows"),
    node("Add", "rows one", "more"),
    node("Less", "more limit", "short"),
]
REST = [node("MatMul", "x w", "h"), node("Reshape", "h more", "y")]


def keys(nodes: list[onnx.NodeProto]) -> list[NodeKey]:
    return [(n.op_type, n.name) for n in nodes]


def test_what_comes_of_lengths_and_single_numbers_alone_may_stay() -> None:
    assert find_computing_nodes(model(*LENGTHS, *REST), keys(LENGTHS)) == []


def test_whatever_reads_a_number_of_the_model_is_named_once() -> None:
    left = keys([*LENGTHS, *REST, *REST])
    assert find_computing_nodes(model(*LENGTHS, *REST), left) == [
        ("MatMul", "n/h"),
        ("Reshape", "n/y"),
    ]


def test_an_input_of_several_numbers_is_no_length() -> None:
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    embedding = node("Gather", "w ids", "y")
    assert find_computing_nodes(model(embedding, given=[ids]), keys([embedding])) == [
        ("Gather", "n/y")
    ]


def test_a_node_that_nobody_knows_is_named() -> None:
    assert find_computing_nodes(model(*LENGTHS), [("FusedConv", "made up")]) == [
        ("FusedConv", "made up")
    ]


def test_the_graphs_inside_a_loop_are_judged_as_well() -> None:
    i, going = (
        helper.make_tensor_value_info(n, t, [])
        for n, t in (("i", TensorProto.INT64), ("go", TensorProto.BOOL))
    )
    state = helper.make_tensor_value_info("s", TensorProto.FLOAT, ["n", 3])
    inside = [
        node("Add", "i one", "next"),
        node("Less", "next limit", "going"),
        node("Mul", "s s", "square"),
    ]
    results = [helper.make_tensor_value_info(n, t, None) for n, t in (("going", 9), ("square", 1))]
    body = helper.make_graph(inside, "body", [i, going, state], results)
    loop = node("Loop", "limit  x", "y", body=body)
    left = keys([*inside, loop])
    assert find_computing_nodes(model(loop), left) == [("Mul", "n/square"), ("Loop", "n/y")]


@dataclass
class Place:
    """As ONNX Runtime tells of the nodes of a provider."""

    ep_name: str
    nodes: list[Any]

    def get_nodes(self) -> list[Any]:
        return self.nodes


@dataclass
class Session:
    """A session that left the `left` nodes to the processor."""

    left: list[onnx.NodeProto]

    def get_provider_graph_assignment_info(self) -> list[Place]:
        return [Place("CPUExecutionProvider", self.left), Place("CUDAExecutionProvider", REST)]


def test_a_model_of_which_a_part_was_left_to_the_processor_is_refused_by_name() -> None:
    given = model(*LENGTHS, *REST).SerializeToString()
    execution_providers.check_node_placement(Session(LENGTHS), given, "m.onnx", "cuda")
    with pytest.raises(Failed, match=r"E0923\]: cuda cannot compute all of `m\.onnx`") as caught:
        execution_providers.check_node_placement(
            Session([*LENGTHS, REST[0]]), given, "m.onnx", "cuda"
        )
    assert caught.value.diagnostics[0].notes == ("assigned to the CPU: `n/h` (MatMul)",)


@pytest.mark.skipif(
    not execution_providers.can_report_placement(), reason="needs ONNX Runtime 1.24"
)
def test_onnx_runtime_tells_of_nodes_under_our_names() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(execution_providers.RECORD_PLACEMENT_OPTION, "1")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    made = model(node("MatMul", "x w", "y"), given=[x])
    made.ir_version, made.opset_import[0].version = 8, 17
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    told = [
        (n.op_type, n.name)
        for p in session.get_provider_graph_assignment_info()
        for n in p.get_nodes()
    ]
    assert told == [("MatMul", "n/y")]


@pytest.mark.parametrize(("spec", "layer"), [("gru_lm", "GRU"), ("elman", "RNN")])
def test_layers_that_a_card_has_no_kernel_for_become_loops_there(
    spec: str, layer: str, tmp_path: Any
) -> None:
    small: dict[str, dict[str, object]] = {
        "gru_lm": {"vocab": 17, "hidden": 5, "layers": 1, "reset": "before"},
        "elman": {"inputs": 4, "hidden": 6, "outputs": 3},
    }
    for target, expected in (("ort-cpu", layer), ("ort-cuda", "Scan")):
        path = tmp_path / f"{target}.onnx"
        specc.compile(spec, path, set=small[spec], init=0, target=target)
        kinds = {n.op_type for n in onnx.load(path).graph.node}
        assert {layer, "Scan"} & kinds == {expected}
        assert list(list_model_lines(specc.load(path, execution_provider="cpu").whole, rounds=2))

"""With another execution provider, only nodes that compute lengths may run on the CPU."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.verification_lines import list_model_lines

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc_onnx import execution_providers
from specc_onnx.execution_providers import NodeKey, find_cpu_compute_nodes


def build_model_proto(
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


def make_op(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"n/{output}", **attributes)


LENGTHS = [
    make_op("Shape", "x", "shape"),
    make_op("Gather", "shape axis", "rows"),
    make_op("Add", "rows one", "more"),
    make_op("Less", "more limit", "short"),
]
REST = [make_op("MatMul", "x w", "h"), make_op("Reshape", "h more", "y")]


def list_keys(nodes: list[onnx.NodeProto]) -> list[NodeKey]:
    return [(n.op_type, n.name) for n in nodes]


def test_lengths_and_scalars_may_run_on_the_cpu() -> None:
    assert find_cpu_compute_nodes(build_model_proto(*LENGTHS, *REST), list_keys(LENGTHS)) == []


def test_computing_nodes_are_listed_once() -> None:
    left = list_keys([*LENGTHS, *REST, *REST])
    assert find_cpu_compute_nodes(build_model_proto(*LENGTHS, *REST), left) == [
        ("MatMul", "n/h"),
        ("Reshape", "n/y"),
    ]


def test_vector_inputs_are_no_scalars() -> None:
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    embedding = make_op("Gather", "w ids", "y")
    assert find_cpu_compute_nodes(
        build_model_proto(embedding, given=[ids]), list_keys([embedding])
    ) == [("Gather", "n/y")]


def test_unknown_nodes_are_listed() -> None:
    assert find_cpu_compute_nodes(build_model_proto(*LENGTHS), [("FusedConv", "made up")]) == [
        ("FusedConv", "made up")
    ]


def test_nodes_inside_loops_are_classified() -> None:
    i, going = (
        helper.make_tensor_value_info(n, t, [])
        for n, t in (("i", TensorProto.INT64), ("go", TensorProto.BOOL))
    )
    state = helper.make_tensor_value_info("s", TensorProto.FLOAT, ["n", 3])
    inside = [
        make_op("Add", "i one", "next"),
        make_op("Less", "next limit", "going"),
        make_op("Mul", "s s", "square"),
    ]
    results = [helper.make_tensor_value_info(n, t, None) for n, t in (("going", 9), ("square", 1))]
    body = helper.make_graph(inside, "body", [i, going, state], results)
    loop = make_op("Loop", "limit  x", "y", body=body)
    left = list_keys([*inside, loop])
    assert find_cpu_compute_nodes(build_model_proto(loop), left) == [
        ("Mul", "n/square"),
        ("Loop", "n/y"),
    ]


@dataclass
class Place:
    """The nodes of one provider, as ONNX Runtime reports them."""

    ep_name: str
    nodes: list[Any]

    def get_nodes(self) -> list[Any]:
        return self.nodes


@dataclass
class Session:
    """A session that assigned the nodes `left` to the CPU."""

    left: list[onnx.NodeProto]

    def get_provider_graph_assignment_info(self) -> list[Place]:
        return [Place("CPUExecutionProvider", self.left), Place("CUDAExecutionProvider", REST)]


def test_cpu_fallback_is_rejected_with_node_names() -> None:
    given = build_model_proto(*LENGTHS, *REST).SerializeToString()
    execution_providers.check_node_placement(Session(LENGTHS), given, "m.onnx", "cuda")
    with pytest.raises(
        SpeccError, match=r"E0923\]: cuda does not support all nodes of `m\.onnx`"
    ) as caught:
        execution_providers.check_node_placement(
            Session([*LENGTHS, REST[0]]), given, "m.onnx", "cuda"
        )
    assert caught.value.diagnostics[0].notes == ("unsupported nodes: `n/h` (MatMul)",)


@pytest.mark.skipif(
    not execution_providers.can_report_node_placement(), reason="needs ONNX Runtime 1.24"
)
def test_onnx_runtime_reports_our_node_names() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(execution_providers.RECORD_PLACEMENT_OPTION, "1")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    made = build_model_proto(make_op("MatMul", "x w", "y"), given=[x])
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
def test_layers_without_a_cuda_kernel_become_loops(spec: str, layer: str, tmp_path: Any) -> None:
    small: dict[str, dict[str, object]] = {
        "gru_lm": {"vocab": 17, "hidden": 5, "layers": 1, "reset": "before"},
        "elman": {"inputs": 4, "hidden": 6, "outputs": 3},
    }
    for target, expected in (("ort-cpu", layer), ("ort-cuda", "Scan")):
        path = tmp_path / f"{target}.onnx"
        specc.compile(spec, path, set=small[spec], init=0, target=target)
        kinds = {n.op_type for n in onnx.load(path).graph.node}
        assert {layer, "Scan"} & kinds == {expected}
        assert list(
            list_model_lines(specc.load(path, execution_provider="cpu").selected_model, rounds=2)
        )

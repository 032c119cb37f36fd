"""Compute int8 products exactly on x86 CPUs without VNNI.

On these CPUs, ONNX Runtime multiplies uint8 activations by int8 weights with `pmaddubsw`, which
saturates the sum of two products at 16 bits. The measured errors were up to 0.3 times the largest
result. The kernels for uint8 weights are exact, so int8 weights are converted to uint8 before a
session is created. ONNX Runtime's option `session.x64quantprecision` also avoids saturation.
However, it rejects models that share weights or zero points between nodes, and it ignores weights
in subgraphs and computed weights.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from specc.ir.array import Array
from specc_onnx.execution_providers import SILENT_LOG_LEVEL

OFFSET_NAME, OFFSETS_NAME = "uint8 weights:offset", "uint8 weights:offsets"
SCALE_NAME = "uint8 weights:scale"
"""The names of the initializers that the conversion adds: 128 as a scalar, 128 as a vector `[1]`,
and the scale 1.0.
"""

WEIGHT_OPERANDS = {
    "DynamicQuantizeLSTM": ((1, 9, OFFSETS_NAME), (2, 11, OFFSETS_NAME)),
    "MatMulInteger": ((1, 3, OFFSET_NAME),),
    "MatMulIntegerToFloat": ((1, 5, OFFSET_NAME),),
    "QGemm": ((3, 5, OFFSET_NAME),),
}
"""For each operator, tuples of three items: the operand index of the int8 weights, the operand
index of their zero point, and the initializer that contains the zero point of the uint8 weights.
"""


def avoid_int8_saturation(
    model: bytes, provider: str, directory: str, options: onnxruntime.SessionOptions
) -> tuple[bytes, Sequence[onnxruntime.OrtValue]]:
    """Return the serialized model and the converted external weights. The weights are added to
    `options` and must outlive the session. If products saturate on this CPU, int8 weights are
    replaced with uint8 weights in integer products. Return an unreadable model unchanged, so that
    ONNX Runtime reports the error. `directory` contains the external weights.
    """
    if (
        provider != "cpu"
        or not any(op.encode() in model for op in WEIGHT_OPERANDS)
        or not has_saturating_int8_products()
        or (proto := parse_model_proto(model)) is None
    ):
        return model, ()
    if (external_weights := convert_weights_to_uint8(proto, directory)) is None:
        return model, ()
    ort_values = [
        onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in external_weights.values()
    ]
    options.add_external_initializers(list(external_weights), ort_values)
    return proto.SerializeToString(), ort_values


def parse_model_proto(model: bytes) -> ModelProto | None:
    """Parse a serialized model. Return None if the model cannot be read."""
    try:
        proto: ModelProto = ModelProto.FromString(model)
    except DecodeError:
        return None
    return proto


@cache
def has_saturating_int8_products() -> bool:
    """Return True if ONNX Runtime's `MatMulInteger` of uint8 by int8 saturates on this CPU."""
    activations = np.full((4, 64), 255, np.uint8)
    weights = np.full((64, 16), 127, np.int8)
    info = helper.make_tensor_value_info
    graph = GraphProto(
        name="product",
        node=[helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        input=[info("x", TensorProto.UINT8, [4, 64])],
        output=[info("y", TensorProto.INT32, [4, 16])],
        initializer=[numpy_helper.from_array(weights, "w")],
    )
    model = ModelProto(ir_version=8, graph=graph, opset_import=[helper.make_opsetid("", 17)])
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = SILENT_LOG_LEVEL, 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    products: Array = session.run(None, {"x": activations})[0]
    return bool((products != 255 * 127 * 64).any())


def convert_weights_to_uint8(model: ModelProto, directory: str = "") -> dict[str, Array] | None:
    """Add 128 to the int8 weights of integer products, and set the zero points of these weights to
    128.

    Return the converted weights, keyed by initializer name, if they are stored as external data in
    `directory`. Return None if the model has no integer products. Weights that a node computes are
    converted at run time by additional nodes.
    """
    constants = {t.name: t for t in model.graph.initializer}
    converted_initializers: dict[str, str] = {}
    has_products = False
    for graph in _iterate_graphs(model.graph):
        converted_values: dict[str, str] = {}
        nodes: list[NodeProto] = []
        for node in graph.node:
            for index, zero_point_index, offset in WEIGHT_OPERANDS.get(node.op_type, ()):
                name = node.input[index]
                is_uint8 = name in constants and constants[name].data_type != TensorProto.INT8
                # the name of a computed weight contains `:uint8` if the weight has already been
                # converted
                if is_uint8 or name.startswith(f"{node.output[0]}:uint8"):
                    continue
                names = converted_initializers if name in constants else converted_values
                if name not in names:
                    names[name] = f"{node.output[0]}:uint8 {index}"
                    nodes += [] if name in constants else _make_uint8_nodes(name, names[name])
                _set_operand(node, index, names[name])
                _set_operand(node, zero_point_index, offset)
                has_products = True
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
    return _add_uint8_constants(model, directory, converted_initializers) if has_products else None


def _add_uint8_constants(
    model: ModelProto, directory: str, names: dict[str, str]
) -> dict[str, Array]:
    """Add uint8 copies of int8 initializers (`names` maps each original name to the name of the
    copy), and the constants of the conversion. Return the values of copies whose originals are
    external data, keyed by the name of the copy.
    """
    constants = {t.name: t for t in model.graph.initializer}
    external_weights = {}
    for name, new_name in names.items():
        initializer = constants[name]
        copy = TensorProto(name=new_name, data_type=TensorProto.UINT8, dims=initializer.dims)
        values = _read_int8(initializer, directory).view(np.uint8) ^ np.uint8(128)
        if initializer.data_location == TensorProto.EXTERNAL:
            copy.data_location = TensorProto.EXTERNAL
            copy.external_data.extend(initializer.external_data)
            external_weights[new_name] = values
        else:
            copy.raw_data = values.tobytes()
        model.graph.initializer.append(copy)
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(128, np.uint8), OFFSET_NAME),
            numpy_helper.from_array(np.array([128], np.uint8), OFFSETS_NAME),
            numpy_helper.from_array(np.array(1, np.float32), SCALE_NAME),
        ]
    )
    return external_weights


def _iterate_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and its subgraphs. The caller may change a graph before the next iteration."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _iterate_graphs(attribute.g)


def _read_int8(tensor: TensorProto, directory: str) -> Array:
    """Return the values of an int8 initializer, which may be external data in `directory`."""
    copy = TensorProto.FromString(tensor.SerializeToString())
    if tensor.data_location == TensorProto.EXTERNAL:
        load_external_data_for_tensor(copy, directory)
    return numpy_helper.to_array(copy)


def _make_uint8_nodes(name: str, result: str) -> list[NodeProto]:
    """Return nodes that add 128 to int8 values. The ONNX operator `Add` has no 8-bit kernel. ONNX
    Runtime constant-folds these nodes if the values are constant.
    """
    floats = f"{result}:floats"
    return [
        helper.make_node("Cast", [name], [floats], to=TensorProto.FLOAT),
        helper.make_node("QuantizeLinear", [floats, SCALE_NAME, OFFSET_NAME], [result]),
    ]


def _set_operand(node: NodeProto, index: int, name: str) -> None:
    """Set an operand of a node. If the node has too few operands, append empty names first."""
    node.input.extend([""] * (index + 1 - len(node.input)))
    node.input[index] = name

"""Modify a copy of a model to measure its quantization error. Activation quantization is removed,
or the operands and results of quantized MatMuls are added as outputs.
"""

from collections.abc import Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from specc.backend import QuantizedMatMul
from specc_onnx.lower.subgraphs import (
    EXPERT_LOOP_NAME,
    iterate_nested_graphs,
    iterate_node_subgraphs,
)

EXACT_ACCURACY_LEVEL = 1
"""The accuracy level of `MatMulNBits` at which activations are not quantized."""
FIRST_SCALE_OPERAND = 8
"""The index of the first operand of `DynamicQuantizeLSTM` that `LSTM` does not have."""
QUANTIZED_OPERANDS = {
    "DynamicQuantizeLSTM": {
        "x": (0, TensorProto.FLOAT),
        "w": (1, TensorProto.INT8),
        "u": (2, TensorProto.INT8),
        "b": (3, TensorProto.FLOAT),
        "lengths": (4, TensorProto.INT32),
        "state": (5, TensorProto.FLOAT),
        "cell": (6, TensorProto.FLOAT),
        "peepholes": (7, TensorProto.FLOAT),
        "w scales": (8, TensorProto.FLOAT),
        "u scales": (10, TensorProto.FLOAT),
    },
    "MatMulIntegerToFloat": {
        "x": (0, TensorProto.UINT8),
        "w": (1, TensorProto.INT8),
        "token scales": (2, TensorProto.FLOAT),
        "scales": (3, TensorProto.FLOAT),
    },
    "QGemm": {"x": (0, TensorProto.UINT8), "w": (3, TensorProto.INT8)},
    "MatMulNBits": {
        "x": (0, TensorProto.FLOAT),
        "w": (1, TensorProto.UINT8),
        "scales": (2, TensorProto.FLOAT),
        "zero points": (3, TensorProto.UINT8),
    },
}
"""The operand index and element type of each quantized operand, keyed by operator and role."""
PER_TENSOR_ACTIVATION_OPS = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "QAttention"}
)
"""Operators that quantize their activations with one scale per tensor."""
UNROUNDED_TYPES = frozenset({TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL})
"""Element types that quantization does not affect."""


def has_per_tensor_activation_scales(model: ModelProto) -> bool:
    """Return True if a node quantizes activations with one scale per tensor."""
    return any(
        node.op_type in PER_TENSOR_ACTIVATION_OPS
        for graph in iterate_nested_graphs(model.graph)
        for node in graph.node
    )


def remove_activation_quantization(model: ModelProto) -> None:
    """Replace activation quantization in a model with identities, and integer MatMuls with float
    MatMuls of the weight codes, in place. The weight scales are still applied.
    """
    for graph in iterate_nested_graphs(model.graph):
        nodes = [replacement for node in graph.node for replacement in _make_exact_product(node)]
        del graph.node[:]
        graph.node.extend(nodes)
        # After the replacement, some values with declared integer types are floats.
        unchanged_infos = [
            v for v in graph.value_info if v.type.tensor_type.elem_type in UNROUNDED_TYPES
        ]
        del graph.value_info[:]
        graph.value_info.extend(unchanged_infos)


def _make_exact_product(node: NodeProto) -> Iterator[NodeProto]:
    """Yield the nodes that replace `node` and that do not quantize activations."""
    match node.op_type:
        case "QuantizeLinear":
            yield helper.make_node("Identity", node.input[:1], node.output)
        case "DynamicQuantizeLinear":
            codes, scale, zero_point = node.output
            yield helper.make_node("Identity", node.input[:1], [codes])
            # the value is not quantized, so the scale is 1 and the zero point is unused
            yield helper.make_node("Constant", [], [scale], value_float=1.0)
            yield helper.make_node("Constant", [], [zero_point], value_int=0)
        case "DynamicQuantizeLSTM":
            yield from _make_exact_lstm(node)
        case "MatMulInteger":
            cast, operands = _cast_weights(node, node.input[1])
            yield cast
            yield helper.make_node("MatMul", operands, node.output)
        case "MatMulIntegerToFloat":
            cast, operands = _cast_weights(node, node.input[1])
            sums, scaled = (f"{node.output[0]}:{step}" for step in ("sums", "scaled"))
            yield cast
            yield helper.make_node("MatMul", operands, [sums])
            yield helper.make_node("Mul", [sums, node.input[3]], [scaled])
            yield helper.make_node("Mul", [scaled, node.input[2]], node.output)
        case "QGemm":
            cast, operands = _cast_weights(node, node.input[3])
            yield cast
            yield helper.make_node("Gemm", operands, node.output, transB=1)
        case _:
            for attribute in node.attribute:
                if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                    attribute.i = EXACT_ACCURACY_LEVEL
            yield node


def _cast_weights(node: NodeProto, weights: str) -> tuple[NodeProto, list[str]]:
    """Return a `Cast` of MatMul weights to float, and the operands of the MatMul."""
    float_weights = f"{node.output[0]}:weights"
    cast = helper.make_node("Cast", [weights], [float_weights], to=TensorProto.FLOAT)
    return cast, [node.input[0], float_weights]


def _make_exact_lstm(node: NodeProto) -> Iterator[NodeProto]:
    """Yield an `LSTM` node and nodes that dequantize and transpose its weights `[1, in, gates]`."""
    operands = [*node.input[:FIRST_SCALE_OPERAND]]
    for index, scale in ((1, FIRST_SCALE_OPERAND), (2, FIRST_SCALE_OPERAND + 2)):
        name = f"{node.output[0]}:weights {index}"
        steps = [f"{name} {step}" for step in ("codes", "scales", "values")]
        yield helper.make_node("Cast", [node.input[index]], steps[:1], to=TensorProto.FLOAT)
        axis = f"{name} axis"
        yield helper.make_node("Constant", [], [axis], value_ints=[1])
        yield helper.make_node("Unsqueeze", [node.input[scale], axis], steps[1:2])
        yield helper.make_node("Mul", steps[:2], steps[2:])
        yield helper.make_node("Transpose", steps[2:], [name], perm=[0, 2, 1])
        operands[index] = name
    while not operands[-1]:
        operands.pop()
    lstm = helper.make_node("LSTM", operands, node.output)
    lstm.attribute.extend(node.attribute)
    yield lstm


def add_quantized_matmul_outputs(model: ModelProto) -> tuple[QuantizedMatMul, ...]:
    """Add the operands and results of quantized MatMuls as graph outputs, except for MatMuls in
    branches and experts. Return each MatMul with the names of the added outputs, keyed by operand
    or result role.
    """
    matmuls: list[tuple[str, dict[str, str], Mapping[str, int]]] = []
    probe_types: dict[str, int] = {}
    results: list[QuantizedMatMul] = []
    graphs = list(iterate_nested_graphs(model.graph))
    constant_types = {t.name: t.data_type for graph in graphs for t in graph.initializer}
    for graph in graphs:
        for node in graph.node:
            if (roles := _find_operand_roles(node, constant_types)) is not None:
                names = {role: name for role, (name, _) in roles.items()}
                probe_types.update(dict(roles.values()))
                matmuls.append((node.op_type, names, _get_integer_attributes(node)))
    probes = _add_graph_outputs(model.graph, probe_types)
    for operator, names, attributes in matmuls:
        if all(name in probes for name in names.values()):
            values = {role: probes[name] for role, name in names.items()}
            results.append(QuantizedMatMul(operator, values, attributes))
    return tuple(results)


def _get_integer_attributes(node: NodeProto) -> dict[str, int]:
    """Return a node's integer attributes and `reverse` (1 for the reverse direction)."""
    attributes = {a.name: a.i for a in node.attribute if a.type == a.INT}
    is_reverse = any(a.name == "direction" and a.s == b"reverse" for a in node.attribute)
    return {**attributes, "reverse": int(is_reverse)}


def _find_operand_roles(
    node: NodeProto, constant_types: Mapping[str, int]
) -> dict[str, tuple[str, int]] | None:
    """Map each role to the name and element type of a quantized node's operand or result."""
    result, inputs = node.output[0] if node.output else "", node.input
    match node.op_type:
        case "QuantizeLinear":
            return {"x": (inputs[0], TensorProto.FLOAT), "y": (result, constant_types[inputs[2]])}
        case "MatMulInteger":
            # activations without a zero point are signed integers
            code_type = TensorProto.UINT8 if len(inputs) > 2 else TensorProto.INT8
            # a zero point that is not constant is a result of `DynamicQuantizeLinear`
            is_dynamic_zero_point = len(inputs) > 2 and inputs[2] not in constant_types
            return {
                "x": (inputs[0], code_type),
                "w": (inputs[1], TensorProto.INT8),
                "y": (result, TensorProto.INT32),
                **({"middle": (inputs[2], code_type)} if is_dynamic_zero_point else {}),
            }
        case "DynamicQuantizeLinear":
            return {
                "x": (inputs[0], TensorProto.FLOAT),
                "y": (result, TensorProto.UINT8),
                "scale": (node.output[1], TensorProto.FLOAT),
            }
    if (operands := QUANTIZED_OPERANDS.get(node.op_type)) is None:
        return None
    # an absent operand has an empty name
    operand_roles = {
        role: (inputs[index], code_type)
        for role, (index, code_type) in operands.items()
        if index < len(inputs) and inputs[index]
    }
    return {**operand_roles, "y": (result, TensorProto.FLOAT)}


def _add_graph_outputs(graph: GraphProto, probe_types: Mapping[str, int]) -> dict[str, str]:
    """Add the values in `probe_types` as graph outputs. Values in a loop body become scan outputs
    of the loop. Return the output names, keyed by value name.
    """
    graph_values = _collect_defined_names(graph)
    probes: dict[str, str] = {}
    for node in list(graph.node):
        if node.op_type in ("Scan", "Loop"):
            (body,) = iterate_node_subgraphs(node)
            if body.name.rpartition("/")[2] != EXPERT_LOOP_NAME:
                probes |= _collect_loop_outputs(node, probe_types)
    for name in (n for n in probe_types if n in graph_values):
        probes[name] = f"{name}:probe"
        graph.node.append(helper.make_node("Identity", [name], [probes[name]]))
    for name, output in probes.items():
        type_code = probe_types[name]
        graph.output.append(helper.make_tensor_value_info(output, type_code, None))
    return probes


def _collect_defined_names(graph: GraphProto) -> set[str]:
    """Return the names of a graph's inputs, initializers and node results, but no subgraphs'."""
    results = {name for node in graph.node for name in node.output}
    return results | {t.name for t in graph.initializer} | {v.name for v in graph.input}


def _collect_loop_outputs(node: NodeProto, probe_types: Mapping[str, int]) -> dict[str, str]:
    """Add a scan output to the loop `node` for each value of `probe_types` in its body. Return the
    names of the scan outputs, keyed by value name.
    """
    (body,) = iterate_node_subgraphs(node)
    previous_count = len(body.output)
    body_outputs = _add_graph_outputs(body, probe_types)
    value_names = {loop_output: name for name, loop_output in body_outputs.items()}
    loop_outputs: dict[str, str] = {}
    for value in body.output[previous_count:]:
        loop_output = f"{node.output[0]}/{value.name}"
        node.output.append(loop_output)
        loop_outputs[value_names[value.name]] = loop_output
    for attribute in node.attribute:
        if attribute.name == "scan_output_directions":
            attribute.ints.extend([0] * len(loop_outputs))
    return loop_outputs

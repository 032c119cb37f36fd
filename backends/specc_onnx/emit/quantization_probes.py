"""Copies of a model to measure quantization error: without activation rounding, or
with the quantized products as outputs.
"""

from collections.abc import Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from specc.backend import QuantizedProduct
from specc_onnx.lower.onnx_nodes import EXPERT_LOOP_NAME, iterate_node_bodies

EXACT_ACCURACY_LEVEL = 1
"""The accuracy level of `MatMulNBits` that does not quantize activations."""
FIRST_SCALE_OPERAND = 8
"""Index of the first operand that `DynamicQuantizeLSTM` has after those of `LSTM`."""
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
    "QGemm": {"x": (0, TensorProto.UINT8), "w": (3, TensorProto.INT8)},
    "MatMulNBits": {
        "x": (0, TensorProto.FLOAT),
        "w": (1, TensorProto.UINT8),
        "scales": (2, TensorProto.FLOAT),
    },
}
"""Quantized operands of operators with float results, by role, and their element types."""
PER_TENSOR_ROUNDING_OPS = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "QAttention"}
)
"""Operators that quantize their activations with one scale per tensor."""
UNROUNDED_TYPES = frozenset({TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL})
"""Types of values that quantization does not affect."""


def iterate_model_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Yield the main graph and every body in it."""
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += [body for node in graph.node for body in iterate_node_bodies(node)]


def has_per_tensor_rounding(model: ModelProto) -> bool:
    """Return True if a node quantizes activations with one scale per tensor."""
    return any(
        node.op_type in PER_TENSOR_ROUNDING_OPS
        for graph in iterate_model_graphs(model)
        for node in graph.node
    )


def remove_activation_rounding(model: ModelProto) -> None:
    """Remove activation rounding: quantized activations become the floats they were rounded from,
    integer products float products; scales stay.
    """
    for graph in iterate_model_graphs(model):
        nodes = [made for node in graph.node for made in _make_exact_product(node)]
        del graph.node[:]
        graph.node.extend(nodes)
        # Some integers become floats here.
        known = [v for v in graph.value_info if v.type.tensor_type.elem_type in UNROUNDED_TYPES]
        del graph.value_info[:]
        graph.value_info.extend(known)


def _make_exact_product(node: NodeProto) -> Iterator[NodeProto]:
    match node.op_type:
        case "QuantizeLinear":
            yield helper.make_node("Identity", node.input[:1], node.output)
        case "DynamicQuantizeLinear":
            whole, scale, middle = node.output
            yield helper.make_node("Identity", node.input[:1], [whole])
            # factors of a float, and values that nothing reads any more
            yield helper.make_node("Constant", [], [scale], value_float=1.0)
            yield helper.make_node("Constant", [], [middle], value_int=0)
        case "DynamicQuantizeLSTM":
            yield from _make_exact_lstm(node)
        case "MatMulInteger":
            cast, given = _cast_weights(node, node.input[1])
            yield cast
            yield helper.make_node("MatMul", given, node.output)
        case "QGemm":
            cast, given = _cast_weights(node, node.input[3])
            yield cast
            yield helper.make_node("Gemm", given, node.output, transB=1)
        case _:
            for attribute in node.attribute:
                if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                    attribute.i = EXACT_ACCURACY_LEVEL
            yield node


def _cast_weights(node: NodeProto, weights: str) -> tuple[NodeProto, list[str]]:
    """Return a cast of a product's weights to floats, and the operands of the product."""
    wide = f"{node.output[0]}:weights"
    cast = helper.make_node("Cast", [weights], [wide], to=TensorProto.FLOAT)
    return cast, [node.input[0], wide]


def _make_exact_lstm(node: NodeProto) -> Iterator[NodeProto]:
    """Yield an `LSTM` with dequantized weights, transposed from `[1, in, gates]`."""
    given = [*node.input[:FIRST_SCALE_OPERAND]]
    for place, scale in ((1, FIRST_SCALE_OPERAND), (2, FIRST_SCALE_OPERAND + 2)):
        name = f"{node.output[0]}:weights {place}"
        steps = [f"{name} {step}" for step in ("whole", "scales", "numbers")]
        yield helper.make_node("Cast", [node.input[place]], steps[:1], to=TensorProto.FLOAT)
        axis = f"{name} axis"
        yield helper.make_node("Constant", [], [axis], value_ints=[1])
        yield helper.make_node("Unsqueeze", [node.input[scale], axis], steps[1:2])
        yield helper.make_node("Mul", steps[:2], steps[2:])
        yield helper.make_node("Transpose", steps[2:], [name], perm=[0, 2, 1])
        given[place] = name
    while not given[-1]:
        given.pop()
    made = helper.make_node("LSTM", given, node.output)
    made.attribute.extend(node.attribute)
    yield made


def expose_quantized_products(model: ModelProto) -> tuple[QuantizedProduct, ...]:
    """Output the operands and results of each quantized product and activation quantization, those
    in branches and experts aside.
    """
    found: list[tuple[str, dict[str, str], Mapping[str, int]]] = []
    wanted: dict[str, int] = {}
    made: list[QuantizedProduct] = []
    stored = {t.name: t.data_type for g in iterate_model_graphs(model) for t in g.initializer}
    for graph in iterate_model_graphs(model):
        for node in graph.node:
            if (roles := _find_operand_roles(node, stored)) is not None:
                names = {role: name for role, (name, _) in roles.items()}
                wanted.update(dict(roles.values()))
                found.append((node.op_type, names, _get_integer_attributes(node)))
    shown = _add_graph_outputs(model.graph, wanted)
    for kind, names, facts in found:
        if all(name in shown for name in names.values()):
            values = {role: shown[name] for role, name in names.items()}
            made.append(QuantizedProduct(kind, values, facts))
    return tuple(made)


def _get_integer_attributes(node: NodeProto) -> dict[str, int]:
    """Return the integer attributes of a node, and whether it runs in reverse."""
    found = {a.name: a.i for a in node.attribute if a.type == a.INT}
    back = any(a.name == "direction" and a.s == b"reverse" for a in node.attribute)
    return {**found, "reverse": int(back)}


def _find_operand_roles(
    node: NodeProto, stored: Mapping[str, int]
) -> dict[str, tuple[str, int]] | None:
    """Return operands and results by role with element types; `stored` are the constants'."""
    out, given = node.output[0] if node.output else "", node.input
    match node.op_type:
        case "QuantizeLinear":
            return {"x": (given[0], TensorProto.FLOAT), "y": (out, stored[given[2]])}
        case "MatMulInteger":
            # activations without a zero point are signed
            kind = TensorProto.UINT8 if len(given) > 2 else TensorProto.INT8
            # a non-constant scale is combined with the scale of all rows
            own = len(given) > 2 and given[2] not in stored
            return {
                "x": (given[0], kind),
                "w": (given[1], TensorProto.INT8),
                "y": (out, TensorProto.INT32),
                **({"middle": (given[2], kind)} if own else {}),
            }
        case "DynamicQuantizeLinear":
            return {
                "x": (given[0], TensorProto.FLOAT),
                "y": (out, TensorProto.UINT8),
                "scale": (node.output[1], TensorProto.FLOAT),
            }
    if (operands := QUANTIZED_OPERANDS.get(node.op_type)) is None:
        return None
    # an absent operand has an empty name
    read = {role: (given[place], kind) for role, (place, kind) in operands.items() if given[place]}
    return {**read, "y": (out, TensorProto.FLOAT)}


def _add_graph_outputs(graph: GraphProto, wanted: Mapping[str, int]) -> dict[str, str]:
    """Make values outputs of a graph, collected by its loops, and return their new names."""
    here = {t.name for t in graph.initializer}
    here |= {v.name for v in graph.input}
    here |= {name for node in graph.node for name in node.output}
    shown: dict[str, str] = {}
    for node in list(graph.node):
        if node.op_type in ("Scan", "Loop") and not _is_expert_loop(node):
            shown |= _collect_loop_outputs(node, wanted)
    for name in (n for n in wanted if n in here):
        # A graph input or output is never a probe under its own name.
        shown[name] = f"{name}:seen"
        graph.node.append(helper.make_node("Identity", [name], [shown[name]]))
    for name, outer in shown.items():
        kind = wanted[name]
        graph.output.append(helper.make_tensor_value_info(outer, kind, None))
    return shown


def _is_expert_loop(node: NodeProto) -> bool:
    """Return True for a loop over experts."""
    return any(
        body.name.rpartition("/")[2] == EXPERT_LOOP_NAME for body in iterate_node_bodies(node)
    )


def _collect_loop_outputs(node: NodeProto, wanted: Mapping[str, int]) -> dict[str, str]:
    """Make a loop collect the outputs of its body; return their names outside."""
    (body,) = iterate_node_bodies(node)
    before = len(body.output)
    inner = _add_graph_outputs(body, wanted)
    # The body's outputs are in the order of the loop's new results.
    names = {outer: name for name, outer in inner.items()}
    found: dict[str, str] = {}
    for value in body.output[before:]:
        outer = f"{node.output[0]}/{value.name}"
        node.output.append(outer)
        found[names[value.name]] = outer
    for attribute in node.attribute:
        if attribute.name == "scan_output_directions":
            attribute.ints.extend([0] * len(found))
    return found

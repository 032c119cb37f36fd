"""Exact int8 matrix products on x86 CPUs without VNNI.

On these CPUs ONNX Runtime multiplies uint8 activations by int8 weights with `pmaddubsw`, which
saturates the sum of two products at 16 bits. Results differed by up to 0.3 of their largest value.
With a session option, ONNX Runtime converts the weights to uint8, for which its kernel is exact.
ONNX Runtime 1.32 converts a weight only if the graph of the product contains it and no other
product reads it, and block-wise `DequantizeLinear` only with zero points, so a copy of the model is
changed before it is opened.
"""

import math
import platform
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from specc_onnx.lower.onnx_nodes import iterate_nested_graphs

INT8_OPERANDS = {
    "DynamicQuantizeLSTM": (1, 2, 9, 11),
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "QGemm": (3, 5),
}
"""Operators that multiply uint8 activations by int8 weights, with the indices of the weights and
their zero points.
"""


@cache
def is_int8_saturating() -> bool:
    """Return True if int8 products may saturate: on x86 CPUs without VNNI or of unknown type."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        return "vnni" not in Path("/proc/cpuinfo").read_text("ascii", "replace")
    except OSError:
        return True


def has_int8_products(model: ModelProto) -> bool:
    """Return True if a node multiplies uint8 activations by int8 weights."""
    graphs = iterate_nested_graphs(model.graph)
    return any(node.op_type in INT8_OPERANDS for graph in graphs for node in graph.node)


def isolate_int8_weights(model: ModelProto) -> None:
    """Give each integer product its own weights in its graph, and each block-wise
    `DequantizeLinear` of int8 zero points. Copies of weights refer to the same external data.
    """
    tensors = {t.name: t for t in model.graph.initializer}
    sources = {name: node for node in model.graph.node for name in node.output}
    read: set[str] = set()
    for depth, graph in enumerate(iterate_nested_graphs(model.graph)):
        copier = _ConstantCopier(graph, tensors, sources)
        for node in [*graph.node]:
            _add_zero_points(graph, node, tensors)
            for index in INT8_OPERANDS.get(node.op_type, ()):
                name = node.input[index] if index < len(node.input) else ""
                if (depth or name in read) and copier.is_constant(name):
                    node.input[index] = copier.copy_constant(name, f"{node.output[0]}:{index}")
                read.add(name)
        nodes = [*copier.nodes, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)


@dataclass
class _ConstantCopier:
    """Copies constants of the main graph to `graph`: initializers, and results of nodes that read
    only constants, such as the slices of a weight.
    """

    graph: GraphProto
    tensors: dict[str, TensorProto]
    sources: dict[str, NodeProto]
    nodes: list[NodeProto] = field(default_factory=list)

    def is_constant(self, name: str) -> bool:
        """Return True if a value of the main graph is constant."""
        source = self.sources.get(name)
        is_computed = source is not None and all(map(self.is_constant, source.input))
        return name in self.tensors or is_computed

    def copy_constant(self, name: str, prefix: str) -> str:
        """Copy a constant; return the name of the copy."""
        new_name = f"{prefix}/{name}"
        if name in self.tensors:
            self.graph.initializer.add().CopyFrom(self.tensors[name])
            self.graph.initializer[-1].name = new_name
            return new_name
        copy = NodeProto()
        copy.CopyFrom(self.sources[name])
        copy.name = new_name
        for index, operand in enumerate(copy.input):
            copy.input[index] = self.copy_constant(operand, f"{new_name}:{index}")
        for index, result in enumerate(copy.output):
            copy.output[index] = f"{prefix}/{result}"
        self.nodes.append(copy)
        return new_name


def _add_zero_points(graph: GraphProto, node: NodeProto, tensors: dict[str, TensorProto]) -> None:
    """Add zero points of 0, in the shape of the scales, to a block-wise `DequantizeLinear`."""
    is_blocked = any(a.name == "block_size" and a.i for a in node.attribute)
    if node.op_type != "DequantizeLinear" or not is_blocked or len(node.input) > 2:
        return
    codes, scales = (tensors.get(name) for name in node.input)
    if codes and scales and codes.data_type == TensorProto.INT8:
        zeros, name = bytes(math.prod(scales.dims)), f"{node.output[0]}:zero point"
        graph.initializer.add(
            name=name, data_type=TensorProto.INT8, dims=scales.dims, raw_data=zeros
        )
        node.input.append(name)

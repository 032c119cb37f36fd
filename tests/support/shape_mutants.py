"""ONNX models with one changed number: an axis, a permutation, a part of a shape, a bound, a
declared length.

A mutant counts if it changes a length or rank of a value, or if a node becomes invalid.
`find_changed_types` infers this from the nodes alone, without declared types.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

from specc_onnx.write.onnx_value_types import InferredTypes, InvalidModelError
from specc_onnx.write.onnx_verifier import infer_onnx_value_types


@dataclass(frozen=True)
class ShapeMutation:
    """One change: `kind` is what changes, the other fields are where and to which value."""

    kind: str
    graph: int
    node: int
    element: str | int
    new: Any

    def apply(self, model: ModelProto) -> ModelProto:
        """Return the model with this change."""
        made = ModelProto()
        made.CopyFrom(model)
        graph = list(iterate_graphs(made.graph))[self.graph]
        if self.kind.startswith("declared"):
            dim = getattr(graph, self.kind.split()[1])[self.node].type.tensor_type.shape.dim[
                self.element
            ]
            if dim.HasField("dim_value"):
                dim.dim_value += self.new
            else:
                dim.dim_param += f" + {self.new}"
            return made
        node = graph.node[self.node]
        if isinstance(self.element, int):
            made.graph.initializer.append(numpy_helper.from_array(self.new, "mutated"))
            node.input[self.element] = "mutated"
            return made
        attribute = next(a for a in node.attribute if a.name == self.element)
        if isinstance(self.new, list):
            attribute.ints[:] = self.new
        else:
            attribute.i = self.new
        return made


def iterate_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and the subgraphs of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from iterate_graphs(attribute.g)


def iterate_shape_mutations(model: ModelProto) -> list[ShapeMutation]:
    """Yield all mutations of a model."""
    constants = {
        t.name: numpy_helper.to_array(t)
        for t in model.graph.initializer
        if t.data_type == TensorProto.INT64
    }
    found = []
    for g, graph in enumerate(iterate_graphs(model.graph)):
        for n, node in enumerate(graph.node):
            for attribute in node.attribute:
                kind = f"{node.op_type}.{attribute.name}"
                found += [
                    ShapeMutation(kind, g, n, attribute.name, new) for new in _attributes(attribute)
                ]
            for place, name in enumerate(node.input):
                if name in constants and constants[name].size <= 16:
                    kind = f"{node.op_type} operand {place}"
                    found += [
                        ShapeMutation(kind, g, n, place, new) for new in _arrays(constants[name])
                    ]
        for field in ("input", "output", "value_info"):
            for n, value in enumerate(getattr(graph, field)):
                axes = range(len(value.type.tensor_type.shape.dim))
                found += [ShapeMutation(f"declared {field}", g, n, axis, 1) for axis in axes]
    return found


def _attributes(attribute: AttributeProto) -> Iterator[Any]:
    if attribute.type == AttributeProto.INT and attribute.name not in ("to", "is_causal"):
        yield from (attribute.i + 1, attribute.i - 1)
    for k, number in enumerate(attribute.ints):
        whole = list(attribute.ints)
        if attribute.name == "perm":
            yield (
                [*whole[: k - 1], whole[k], whole[k - 1], *whole[k + 1 :]]
                if k
                else [whole[-1], *whole[1:-1], number]
            )
        else:
            yield from ([*whole[:k], number + by, *whole[k + 1 :]] for by in (1, -1))


def _arrays(array: Any) -> Iterator[Any]:
    for k in range(array.size):
        for by in (1, -1):
            made = array.copy()
            with np.errstate(over="ignore"):  # the largest int64
                made.reshape(-1)[k] += by
            yield made
    if array.size > 1:
        yield np.roll(array.reshape(-1), 1).reshape(array.shape)


def strip_declared_types(model: ModelProto) -> ModelProto:
    """Return the model with declared types of inputs and of body inputs only."""
    made = ModelProto()
    made.CopyFrom(model)
    for graph in iterate_graphs(made.graph):
        del graph.value_info[:]
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")
    return made


def find_changed_types(mutant: ModelProto, before: InferredTypes) -> list[str]:
    """Return the values whose type changed; `[""]` if a node is invalid."""
    try:
        after = infer_onnx_value_types(
            strip_declared_types(mutant),
            before.lengths,
            {n: int(v) for n, v in before.constants.items() if v.ndim == 0},
        )
    except InvalidModelError:
        return [""]
    return [n for n, type in before.types.items() if n in after.types and after.types[n] != type]

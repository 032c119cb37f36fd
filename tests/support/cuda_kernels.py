"""The nodes and element types for which the CUDA execution provider has kernels.

`kernel_lists/cuda.json` contains the answers of a released provider about the placement of each
node of models without graph optimizations; the provider's own list of kernels contains no more.
`benchmarks/gpu_kernels.py` renews it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from specc.ir import ops
from specc.ir.graph import Graph, GraphBuilder, Input
from specc.ir.model_definition import DerivedGraphs, KVBufferGraph
from specc.ir.op import Op
from specc.ir.types import ShapeError
from specc.transforms import pass_pipeline
from specc.transforms.mixed_precision import (
    HalfDtype,
    convert_derived_graphs_to_half,
    convert_graph_to_half,
)
from specc_onnx import build_model, get_target
from specc_onnx.execution_providers import find_cpu_compute_nodes
from specc_onnx.lower.kv_buffer_attention import find_in_place_kv_caches
from specc_onnx.lower.onnx_targets import DEFAULT_OPSET
from specc_onnx.write.onnx_verifier import convert_weights_to_inputs
from support.elaborated_specs import elaborate_with_config
from support.op_examples import EXAMPLES
from support.provider_operators import CONTROL_FLOW, LIST_DIRECTORY
from support.small_configs import SMALL_CONFIGS

KERNEL_LIST = LIST_DIRECTORY.parent / "kernel_lists" / "cuda.json"
COMPUTE_DTYPES: tuple[Literal["f32"] | HalfDtype, ...] = ("f32", "f16", "bf16")
DTYPE_NAMES = {number: name.lower() for name, number in TensorProto.DataType.items()}


@cache
def read_signatures() -> frozenset[str]:
    """Return the signatures in the list."""
    listed: Mapping[str, list[str]] = json.loads(KERNEL_LIST.read_text("utf-8"))["kernels"]
    return frozenset(f"{kind} {types}" for kind, all_ in listed.items() for types in all_)


def list_missing_kernels(model: ModelProto) -> set[str]:
    """Return the nodes that the list does not contain, except nodes that compute lengths only."""
    nodes = list(iterate_signatures(model))
    keys = set(find_cpu_compute_nodes(model, [(node.op_type, node.name) for node, _ in nodes]))
    return {
        text
        for node, text in nodes
        if (node.op_type, node.name) in keys and text not in read_signatures()
    }


def iterate_signatures(model: ModelProto) -> Iterator[tuple[NodeProto, str]]:
    """Yield each node with its operator, the opset that last defined it, and element types: `Where
    16 bool,float>float`.

    Control-flow nodes have no signature.
    """
    versions = {o.domain: o.version for o in model.opset_import}
    inferred = onnx.shape_inference.infer_shapes(model)
    for node, input_types, output_types in _typed(inferred.graph, {}):
        operator = node.op_type
        opset_version = 1
        if not node.domain:
            opset_version = onnx.defs.get_schema(operator, versions[""]).since_version
        if operator not in CONTROL_FLOW:
            yield node, f"{operator} {opset_version} {_short(input_types)}>{_short(output_types)}"


def _short(types: list[str]) -> str:
    """Return types with equal neighbors merged: there may be any number of operands."""
    return ",".join(t for n, t in enumerate(types) if not n or types[n - 1] != t)


def _typed(
    graph: GraphProto, outside: Mapping[str, int]
) -> Iterator[tuple[NodeProto, list[str], list[str]]]:
    types = dict(outside)
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        # ONNX infers no types for ONNX Runtime's own operators; their results have the type of the first input
        if node.domain:
            own = {name: types.get(node.input[0], 0) for name in node.output}
            types = {**own, **types}
        input_types, output_types = (
            [DTYPE_NAMES[types.get(name, 0)] for name in names if name]
            for names in (node.input, node.output)
        )
        yield node, input_types, output_types
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _typed(attribute.g, types)


def build_spec_models(
    name: str, width: Literal["f32"] | HalfDtype
) -> Iterator[tuple[str, ModelProto]]:
    """Yield the models of a small built-in spec in a dtype: full graph, encoder, step, step with KV
    buffers.
    """
    sets = {key.replace(".", "__"): value for key, value in SMALL_CONFIGS[name].items()}
    model = elaborate_with_config(name, **sets).model
    graph = pass_pipeline.simplify_graph(model.graph)
    yield (name, _for_card(graph if width == "f32" else convert_graph_to_half(graph, width)))
    if model.generation is None:
        return
    work = pass_pipeline.CompilerPassState(
        graph=graph, defaults=model.defaults, generation=model.generation
    )
    derived_graphs: DerivedGraphs = pass_pipeline.run_decode_step_passes(work)
    if width != "f32":
        derived_graphs = convert_derived_graphs_to_half(derived_graphs, width)
    for role, part in (("encode", derived_graphs.encode), ("step", derived_graphs.step)):
        if part is not None:
            yield f"{name} {role}", _for_card(part)
    card = get_target("ort-cuda")
    if caches := find_in_place_kv_caches(
        derived_graphs.step, derived_graphs.states, card, DEFAULT_OPSET
    ):
        built = build_model(KVBufferGraph(derived_graphs.step, caches), card)
        yield f"{name} buffers", convert_weights_to_inputs(built)


def build_op_models(
    width: Literal["f32"] | HalfDtype, opset: int = DEFAULT_OPSET
) -> Iterator[tuple[str, ModelProto]]:
    """Yield a model of each op, in f32 or in a narrower dtype."""
    for example in EXAMPLES:
        if _rounds_together(example.op):
            continue
        builder = GraphBuilder()
        types = [
            a and (replace(a, dtype="f32") if a.dtype == "f64" else a) for a in example.operands
        ]
        given = [builder.add_input(f"x{n}", Input(a)) if a else None for n, a in enumerate(types)]
        try:
            results = builder.add_node(example.op, *given)
        except ShapeError:
            continue  # a body with f64 values
        graph = builder.build_graph("op", {f"y{n}": r for n, r in enumerate(results)})
        if width != "f32":
            graph = convert_graph_to_half(graph, width)
        yield str(example), _for_card(graph, opset)


def _rounds_together(op: Op) -> bool:
    """Whether tokens share an activation scale, which CUDA rejects (E0964)."""
    return isinstance(op, ops.QuantizedLstm) or (
        isinstance(op, ops.QuantizedLinear) and op.rounding == "tensor"
    )


def _for_card(graph: Graph, opset: int = DEFAULT_OPSET) -> ModelProto:
    return convert_weights_to_inputs(build_model(graph, get_target("ort-cuda"), opset=opset))

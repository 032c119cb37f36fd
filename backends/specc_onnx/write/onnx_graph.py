"""Build an ONNX model from an IR graph: lower the graph, remove unused nodes, name values and add
doc strings.

Unused nodes are removed before nodes get their final names, so that a scope's first attention node
is named e.g. `h/3/attn/Attention`. Weights are initializers without data, which
`specc_onnx.write.model_writer` adds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from specc.analysis.length_limits import find_length_limits
from specc.ir.graph import Graph, Input, Value
from specc.ir.model_definition import PAST_LENGTH_INPUT, KVBufferGraph, KVCacheNames
from specc.ir.target import Target
from specc.ir.types import Type
from specc.version import __version__
from specc_onnx.lower import (  # noqa: F401  each module registers the rules of a family of ops
    attention,
    conv,
    elementwise,
    indexing,
    interpolation,
    loop,
    mixture_of_experts,
    nn,
    onnx_targets,
    quantized,
    recurrent,
    tensor,
)
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import (
    CONTRIB_DOMAIN,
    Emitter,
    LoweringContext,
    NameTable,
    make_unique_name,
)
from specc_onnx.lower.kv_buffer_attention import get_kv_buffer_type
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES
from specc_onnx.lower.onnx_values import OnnxValue, Tensor, UnrankedTensor
from specc_onnx.lower.registry import lower_nodes
from specc_onnx.lower.subgraphs import (
    find_live_nodes,
    iterate_nested_graphs,
    iterate_node_inputs,
    iterate_node_subgraphs,
    make_value_info,
    make_value_infos,
)

PADDING_SIDE_TEXT = {"left": " on the left", "right": " on the right", "any": ""}
"""Descriptions of the padding side for the doc strings of inputs."""


def set_doc_strings(model: ModelProto, graph: Graph, doc: str) -> None:
    """Set the doc strings of the model and of its graph to `doc`, and describe each input in the
    doc string of the input.
    """
    model.doc_string = model.graph.doc_string = doc
    for value in model.graph.input:
        if (facts := graph.input_facts.get(value.name)) is not None:
            value.doc_string = format_input_doc(facts)


def format_input_doc(graph_input: Input) -> str:
    """Return the doc string of an input, such as `i64[batch, seq], from 0 to 50256`."""
    if graph_input.padding_side:
        side = PADDING_SIDE_TEXT[graph_input.padding_side]
        return f"{graph_input.type}: false at padded positions; padding{side or ' on any side'}"
    limit = graph_input.upper_bound.number if graph_input.upper_bound is not None else None
    return str(graph_input.type) if limit is None else f"{graph_input.type}, from 0 to {limit - 1}"


def assign_final_names(
    nodes: Iterable[NodeProto],
    names: dict[str, str],
    preferred_names: Mapping[str, str],
    used_names: set[str],
) -> None:
    """Add the final names of all nodes and values, including those inside subgraphs, to `names`. A
    final name is the preferred name, with a numeric suffix if that name is already used.
    """
    for node in nodes:
        final_name = make_unique_name(preferred_names.get(node.name, node.name), used_names)
        for name in node.output:
            if name and name not in names:
                is_first = name == node.output[0]
                names[name] = (
                    final_name
                    if is_first
                    else make_unique_name(f"{final_name}:{len(names)}", used_names)
                )
        names[f"node {node.name}"] = final_name
        for body in iterate_node_subgraphs(node):
            for name in (value.name for value in body.input):
                names[name] = make_unique_name(preferred_names.get(name, name), used_names)
            assign_final_names(body.node, names, preferred_names, used_names)


def rename_nodes_and_values(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> None:
    """Rename nodes and values, including those inside subgraphs."""
    for node in nodes:
        node.name = names.get(f"node {node.name}", node.name)
        _rename_list(node.input, names)
        _rename_list(node.output, names)
        for body in iterate_node_subgraphs(node):
            for value in (*body.input, *body.output, *body.value_info):
                value.name = names.get(value.name, value.name)
            rename_nodes_and_values(body.node, names)


def _rename_list(field: Any, names: Mapping[str, str]) -> None:
    """Rename the values whose names are in a repeated protobuf field."""
    for n, name in enumerate(field):
        if name in names:
            field[n] = names[name]


LOCATION_NAME_FIELDS = frozenset({"node", "guard", "weights", "blocks", "mask", "added"})
"""The fields of an attention weight location whose values are names of ONNX values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxBuildResult:
    """A built ONNX model without the data of its weights.

    `weights` maps each stored parameter to its initializer (dtype and shape, no data).
    `attention_weight_locations` describes where the attention weights of each layer are. An entry
    has the keys `scope` and `dtype`, then `weights` (a value) or `node` (the result of an
    `Attention`), and `guard` if the node is inside an `If`. `types` maps the names of inputs,
    outputs and stored weights to their IR types. `length_inputs` maps symbolic dimensions to scalar
    inputs that contain their sizes. `branch_thresholds` maps each symbolic dimension to the sizes
    above which the model takes a different branch.
    """

    model: ModelProto
    graph: Graph
    target: Target
    opset: int
    weights: Mapping[str, TensorProto]
    attention_weight_locations: tuple[Mapping[str, str], ...]
    types: Mapping[str, Type]
    length_inputs: Mapping[str, str]
    branch_thresholds: Mapping[str, int]


def build_model(
    graph: Graph | KVBufferGraph,
    target: Target,
    opset: int = onnx_targets.DEFAULT_OPSET,
    storage_dtypes: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> OnnxBuildResult:
    """Build the ONNX model of `graph`. The input `PAST_LENGTH_INPUT` is the number of positions
    that KV buffers contain. `storage_dtypes` maps parameters to a different storage dtype. `ties`
    maps tied parameters to the parameter that stores their values.
    """
    onnx_targets.check_opset(opset)
    caches: tuple[KVCacheNames, ...] = ()
    buffers: tuple[str, ...] = ()
    if isinstance(graph, KVBufferGraph):
        caches, buffers, graph = graph.caches, graph.buffer_names, graph.graph
    types, length_inputs = _list_model_inputs(graph, caches, buffers)
    g = Emitter(
        target=target,
        opset=opset,
        lengths=DimResolver(types, graph.length_equations, graph.min_lengths, length_inputs),
        name_table=NameTable({*types, *graph.outputs}, graph_name=graph.name),
    )
    limits = find_length_limits(graph)
    g.analysis.max_lengths = {symbol: limit.max_length for symbol, limit in limits.items()}
    for name, value in graph.inputs.items():
        g.values.tensors[value] = Tensor(g, name, value.type, value)
        g.analysis.padding_sides[value] = graph.input_facts[name].padding_side
    g.values.kv_buffers.update(graph.inputs[name] for name in buffers)
    weights = add_initializers(g, graph.parameters, storage_dtypes or {}, ties or {})
    lower_nodes(g, graph)
    return finish_model(g, graph, types, _map_model_outputs(g, graph, caches), weights)


def _list_model_inputs(
    graph: Graph, caches: Sequence[KVCacheNames], buffers: Sequence[str]
) -> tuple[dict[str, Type], dict[str, str]]:
    """Return input types by name, and map each dimension to the scalar input with its size."""
    types = {name: value.type for name, value in graph.inputs.items()}
    types |= {name: get_kv_buffer_type(types[name]) for name in buffers}
    if not caches:
        return types, {}
    # The size of a buffer axis is its capacity, so the number of past positions is a separate
    # input.
    types[PAST_LENGTH_INPUT] = Type("i64", ())
    past = graph.inputs[caches[0].key].type.shape[2]
    return types, {str(past): PAST_LENGTH_INPUT}


def _map_model_outputs(
    g: Emitter, graph: Graph, caches: Sequence[KVCacheNames]
) -> dict[str, Tensor]:
    """Return the output tensors by name. The length of a KV buffer is its capacity."""
    outputs = {n: g.values.tensors[v] for n, v in graph.outputs.items()}
    for name in (n for cache in caches for n in (cache.present_key, cache.present_value)):
        outputs[name] = outputs[name].with_type(get_kv_buffer_type(outputs[name].type))
    return outputs


def finish_model(
    g: Emitter,
    graph: Graph,
    inputs: Mapping[str, Type],
    outputs: Mapping[str, Tensor],
    weights: Mapping[str, TensorProto],
) -> OnnxBuildResult:
    """Remove unused nodes, assign final names and build the model of a lowered graph. `inputs`
    contains the input types, and `outputs` contains the returned tensors, by name. `weights`
    contains the initializers that `add_initializers` returned.
    """
    output_names = _name_outputs(g, inputs, outputs)
    used_names = {*inputs, *outputs, *g.values.constants, *(t.name for t in weights.values())}
    names = _rename_values(g, output_names, used_names)
    graph_proto = _make_graph_proto(g, graph.name, inputs, outputs, weights)
    imports = [helper.make_opsetid("", g.opset)]
    if any(n.domain for subgraph in iterate_nested_graphs(graph_proto) for n in subgraph.node):
        imports.append(helper.make_opsetid(CONTRIB_DOMAIN, 1))
    model = ModelProto(
        ir_version=onnx_targets.get_ir_version(g.opset),
        producer_name="specc",
        producer_version=__version__,
        graph=graph_proto,
        opset_import=imports,
    )
    # protobuf copies initializers, so the weights are looked up in the model
    stored_weights = dict(zip(weights, model.graph.initializer, strict=False))
    types = {**inputs, **{n: t.type for n, t in outputs.items()}, **g.values.stored_types}
    return OnnxBuildResult(
        model=model,
        graph=graph,
        target=g.target,
        opset=g.opset,
        weights=stored_weights,
        attention_weight_locations=_list_attention_weight_locations(g, names),
        types=types,
        length_inputs=g.lengths.length_inputs,
        branch_thresholds=g.analysis.branch_thresholds,
    )


def _make_graph_proto(
    g: Emitter,
    name: str,
    inputs: Mapping[str, Type],
    outputs: Mapping[str, Tensor],
    weights: Mapping[str, TensorProto],
) -> GraphProto:
    """Return a graph with the emitted nodes and the constants that the nodes use."""
    nodes = g.bodies.open_bodies[0].nodes
    used_names = {name for node in nodes for name in iterate_node_inputs(node)}
    constants = [t for name, t in g.values.constants.items() if name in used_names]
    return GraphProto(
        name=name or "main",
        node=nodes,
        input=[make_value_info(n, t) for n, t in inputs.items()],
        output=[make_value_info(n, t.type) for n, t in outputs.items()],
        initializer=[*weights.values(), *constants],
        value_info=make_value_infos(g.bodies.open_bodies[0], list(outputs)),
    )


def _list_attention_weight_locations(
    g: Emitter, final_names: Mapping[str, str]
) -> tuple[Mapping[str, str], ...]:
    """Return the attention weight locations in the final model, with their final names."""
    return tuple(
        {k: final_names[v] if k in LOCATION_NAME_FIELDS else v for k, v in location.items()}
        for location in g.attention_weight_locations
        if all(location[key] in final_names for key in LOCATION_NAME_FIELDS & location.keys())
    )


def add_initializers(
    g: Emitter,
    parameters: Mapping[str, Value],
    storage_dtypes: Mapping[str, str],
    ties: Mapping[str, str],
) -> dict[str, TensorProto]:
    """Add an initializer for each stored parameter, and a cast if the storage dtype differs from
    the parameter's type. Return the initializers, keyed by parameter name. See `build_model` for
    `storage_dtypes` and `ties`.
    """
    weights: dict[str, TensorProto] = {}
    for name, value in parameters.items():
        stored_name = ties.get(name, name)
        dtype = storage_dtypes.get(stored_name, value.type.dtype)
        if stored_name not in weights:
            sizes = [d.number for d in value.type.shape]
            assert None not in sizes, f"{name} has a dynamic shape: {value.type}"
            weights[stored_name] = TensorProto(
                name=g.reserve_name(stored_name),
                data_type=ONNX_TYPE_CODES[dtype],
                dims=[d or 0 for d in sizes],
            )
        initializer: OnnxValue = UnrankedTensor(g, weights[stored_name].name, dtype)
        g.values.stored_types[initializer.name] = Type(dtype, value.type.shape)
        if dtype != value.type.dtype:
            g.context = LoweringContext((name.rpartition(".")[0],))
            widened = initializer.cast(value.type.dtype)
            g.values.narrow_weights[widened.name], initializer = initializer, widened
        parameter = initializer.with_type(value.type, value)
        g.values.parameters[name] = g.values.tensors[value] = parameter
    return weights


def _name_outputs(
    g: Emitter, inputs: Mapping[str, Type], outputs: Mapping[str, Tensor]
) -> dict[str, str]:
    """Return output names, keyed by value name. Copy a value with an `Identity` if it cannot be
    renamed.
    """
    node_results = {name for node in g.bodies.open_bodies[0].nodes for name in node.output}
    names: dict[str, str] = {}
    g.context = LoweringContext(("outputs",))
    for name, output in outputs.items():
        assert name not in inputs, f"{name} is an input and an output"
        result: OnnxValue = output
        if result.name not in node_results or result.name in names:
            result = g.emit_identity(result, name)
        names[result.name] = name
    return names


def _rename_values(g: Emitter, outputs: Mapping[str, str], used_names: set[str]) -> dict[str, str]:
    """Remove unused nodes and rename all values. Return the final names, keyed by old name."""
    main = g.bodies.open_bodies[0]
    main.nodes = find_live_nodes(main.nodes, outputs)
    names = dict(outputs)
    assign_final_names(main.nodes, names, g.name_table.preferred, used_names)
    rename_nodes_and_values(main.nodes, names)
    main.types = {names[name]: type for name, type in main.types.items() if name in names}
    return names

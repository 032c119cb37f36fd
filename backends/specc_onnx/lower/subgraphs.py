"""Build branches of `If` and bodies of loops, remove unused nodes, and traverse subgraphs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onnx import GraphProto, NodeProto, ValueInfoProto, helper

from specc.ir.types import Type
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES

if TYPE_CHECKING:
    from specc_onnx.lower.emitter import Emitter, GraphBody
    from specc_onnx.lower.onnx_values import OnnxValue, Tensor

EXPERT_LOOP_NAME = "experts"
"""The name of the loop body that runs experts, i.e. the last component of its scoped name."""


def iterate_node_subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def iterate_nested_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and every subgraph in it."""
    pending = [graph]
    while pending:
        yield (subgraph := pending.pop())
        pending += [body for node in subgraph.node for body in iterate_node_subgraphs(node)]


def iterate_node_inputs(node: NodeProto) -> Iterator[str]:
    """Yield the operand names of a node and of all nodes in the node's subgraphs."""
    yield from node.input
    for body in iterate_node_subgraphs(node):
        for body_node in body.node:
            yield from iterate_node_inputs(body_node)
        for result in body.output:
            yield result.name


def make_value_info(name: str, type: Type) -> ValueInfoProto:
    """Return a ValueInfoProto. The `dim_param` of a dynamic dimension contains its formula."""
    dims = [d.number if d.number is not None else str(d) for d in type.shape]
    info: ValueInfoProto = helper.make_tensor_value_info(name, ONNX_TYPE_CODES[type.dtype], dims)
    return info


def find_live_nodes(nodes: list[NodeProto], required_names: Iterable[str]) -> list[NodeProto]:
    """Return the nodes that compute the values `required_names`, in graph order."""
    used_names, live_nodes = set(required_names), []
    for node in reversed(nodes):
        if not used_names.isdisjoint(node.output):
            live_nodes.append(node)
            used_names.update(iterate_node_inputs(node))
    return live_nodes[::-1]


def make_subgraph_proto(
    name: str,
    body: "GraphBody",
    results: "Sequence[OnnxValue]",
    types: Sequence[Type],
    inputs: "Sequence[Tensor]" = (),
) -> GraphProto:
    """Return a GraphProto with the nodes of a finished body, without unused nodes."""
    names = [result.name for result in results]
    body.nodes = find_live_nodes(body.nodes, names)
    return GraphProto(
        name=name,
        node=body.nodes,
        input=[make_value_info(t.name, t.type) for t in inputs],
        output=[make_value_info(n, t) for n, t in zip(names, types, strict=True)],
        value_info=make_value_infos(body, names),
    )


def emit_subgraph_outputs(g: "Emitter", results: "Sequence[OnnxValue]") -> "list[OnnxValue]":
    """Return `results` as distinct values that are defined in the innermost body, as ONNX requires.
    Unchanged loop-carried values and outer values are copied.
    """
    usable_names = {name for node in g.innermost_body.nodes for name in node.output}
    values = []
    for value in results:
        if value.name not in usable_names:
            value = g.emit_identity(value, "result")
        usable_names.discard(value.name)
        values.append(value)
    return values


def make_branch(
    g: "Emitter",
    name: str,
    types: Sequence[Type],
    emit_results: "Callable[[], Sequence[OnnxValue]]",
    *,
    is_isolated: bool = False,
) -> GraphProto:
    """Return a branch of an `If`. The outputs of the branch are the values that `emit_results`
    returns, of the types `types`. An isolated branch does not reuse nodes outside the branch.
    """
    with g.open_body(is_isolated=is_isolated) as body:
        results = emit_subgraph_outputs(g, emit_results())
    return make_subgraph_proto(name, body, results, types)


def emit_if(
    g: "Emitter",
    condition: "OnnxValue",
    types: Sequence[Type],
    branches: "Mapping[str, Callable[[], Sequence[OnnxValue]]]",
    isolated_branches: Collection[str] = (),
) -> "tuple[OnnxValue, ...]":
    """Emit an `If`. `branches` maps the names of the true and the false branch to functions that
    emit their results. Branches in `isolated_branches` do not reuse outer values.
    """
    graphs = [
        make_branch(g, name, types, emit_results, is_isolated=name in isolated_branches)
        for name, emit_results in branches.items()
    ]
    return g.emit_multi_output_node(
        "If", len(types), condition, then_branch=graphs[0], else_branch=graphs[1]
    )


def make_value_infos(body: "GraphBody", results: Sequence[str]) -> list[ValueInfoProto]:
    """Return a ValueInfoProto for each value of known type in a body, except the body's results."""
    names = dict.fromkeys(name for node in body.nodes for name in node.output if name in body.types)
    return [make_value_info(name, body.types[name]) for name in names if name not in results]

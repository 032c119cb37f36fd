"""Nested graphs of ONNX models, and markers that lowering writes for readers of models."""

from collections.abc import Iterator

from onnx import GraphProto, NodeProto

PROBABILITIES_OUTPUT_MODE = 3
"""`qk_matmul_output_mode` of the attention weights after softcap, mask and softmax."""

EXPERT_LOOP_NAME = "experts"
"""Name of the body of a loop over experts, after its scope."""


def iterate_node_bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def iterate_nested_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and every subgraph in it."""
    pending = [graph]
    while pending:
        yield (current := pending.pop())
        pending += [body for node in current.node for body in iterate_node_bodies(node)]


def iterate_node_inputs(node: NodeProto) -> Iterator[str]:
    """Yield every name that a node reads, also in its bodies."""
    yield from node.input
    for body in iterate_node_bodies(node):
        for inner in body.node:
            yield from iterate_node_inputs(inner)
        for result in body.output:
            yield result.name

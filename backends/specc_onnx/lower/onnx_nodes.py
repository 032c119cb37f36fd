"""Facts of ONNX nodes that lowering writes and readers of a compiled model look for."""

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


def iterate_node_inputs(node: NodeProto) -> Iterator[str]:
    """Return every name that a node reads, also in its bodies."""
    yield from node.input
    for body in iterate_node_bodies(node):
        for inner in body.node:
            yield from iterate_node_inputs(inner)
        for result in body.output:
            yield result.name

"""Which nodes of an ONNX graph are read, by nodes and by the bodies inside them."""

from collections.abc import Iterable, Iterator

from onnx import GraphProto, NodeProto


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g


def inputs_of(node: NodeProto) -> Iterator[str]:
    """Every name a node reads, also from within its bodies."""
    yield from node.input
    for body in bodies_of(node):
        for inner in body.node:
            yield from inputs_of(inner)
        for result in body.output:
            yield result.name


def live(nodes: list[NodeProto], wanted: Iterable[str]) -> list[NodeProto]:
    """The nodes that `wanted` is made from."""
    read, kept = set(wanted), []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(inputs_of(node))
    return kept[::-1]

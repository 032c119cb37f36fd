"""Liveness of ONNX nodes, including reads from nested bodies."""

from collections.abc import Iterable, Iterator

from onnx import GraphProto, NodeProto


def iterate_node_bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g


def iterate_node_inputs(node: NodeProto) -> Iterator[str]:
    """Every name a node reads, also from within its bodies."""
    yield from node.input
    for body in iterate_node_bodies(node):
        for inner in body.node:
            yield from iterate_node_inputs(inner)
        for result in body.output:
            yield result.name


def find_live_nodes(nodes: list[NodeProto], wanted: Iterable[str]) -> list[NodeProto]:
    """The nodes that `wanted` is made from."""
    read, kept = set(wanted), []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(iterate_node_inputs(node))
    return kept[::-1]

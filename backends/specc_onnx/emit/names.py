"""The names in a finished graph: outputs by what the spec calls them, the rest counted
without gaps.

While rules run, nodes are written that nobody reads in the end, and names are taken by
them. When only the living are left they are named again, in order, so that
`h/3/attn/Attention` is really the first.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from onnx import NodeProto

from specc_onnx.lower.emitter import unique
from specc_onnx.lower.reading import bodies_of


def domains_of(nodes: Iterable[NodeProto]) -> set[str]:
    """The operator sets that nodes and the bodies inside them are from."""
    return {node.domain for node in nodes} | {
        d for node in nodes for b in bodies_of(node) for d in domains_of(b.node)
    }


def settled(
    nodes: Iterable[NodeProto],
    fixed: Mapping[str, str],
    wishes: Mapping[str, str],
    taken: set[str],
) -> dict[str, str]:
    """New names of all values: `fixed` ones as given, the others by their wishes in order."""
    names = dict(fixed)
    _settle(nodes, names, wishes, taken)
    return names


def _settle(
    nodes: Iterable[NodeProto],
    names: dict[str, str],
    wishes: Mapping[str, str],
    taken: set[str],
) -> None:
    """Add the names of these nodes, and of those in the bodies inside them."""
    for node in nodes:
        first = node.output[0]
        own = unique(wishes.get(node.name, node.name), taken)
        for name in node.output:
            if name and name not in names:
                names[name] = (
                    own if name == first else unique(f"{own}:{len(names)}", taken)
                )
        names[f"node {node.name}"] = own
        for body in bodies_of(node):
            for value in body.input:
                names[value.name] = unique(wishes.get(value.name, value.name), taken)
            _settle(body.node, names, wishes, taken)


def rename(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> None:
    """Call nodes and values by other names, in the bodies inside them too."""
    for node in nodes:
        node.name = names.get(f"node {node.name}", node.name)
        _rename_all(node.input, names)
        _rename_all(node.output, names)
        for body in bodies_of(node):
            for value in (*body.input, *body.output, *body.value_info):
                value.name = names.get(value.name, value.name)
            rename(body.node, names)


def _rename_all(field: Any, names: Mapping[str, str]) -> None:
    """`field` is a protobuf list of names."""
    for n, name in enumerate(field):
        if name in names:
            field[n] = names[name]

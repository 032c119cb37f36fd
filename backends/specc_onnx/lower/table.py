"""The table of lowering rules, and the walk that applies it.

A rule takes the op, the emitter and one `Tensor` per operand (None where an optional
one is missing) and gives the names of the results. What it needs to know of the results
is in `g.site`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from onnx import NodeProto

from specc.ir.graph import Graph, Node, Value
from specc.ir.rules import Rules
from specc.text.summary import summary
from specc_onnx.lower.emitter import Emitter, Site, Tensor

Lowered: TypeAlias = str | tuple[str, ...]
Rule: TypeAlias = Callable[..., Lowered]

lower: Rules[Rule] = Rules("onnx")
"""One rule per op; complete once `specc_onnx` is imported."""


def lower_nodes(g: Emitter, graph: Graph, only: Collection[Node] | None = None) -> None:
    """Lower the nodes of `graph`, or `only` some; `g` knows what they read that they do
    not make.
    """
    used = _used(graph)
    # What was counted for a whole graph stands, also where a portion of it is made again.
    g.readers.update({v: n for v, n in used.items() if v not in g.readers})
    for node, results in graph.nodes:
        if only is not None and node not in only:
            continue
        made = graph.made.get(node)
        scopes = made.scopes if made else ()
        g.site = Site(
            scopes, tuple(r.type for r in results), tuple(r in used for r in results)
        )
        nodes = g.bodies[-1].nodes
        before = len(nodes)
        names = lower[node.op](
            node.op, g, *(None if a is None else g.tensors[a] for a in node.args)
        )
        if node.op.heavy:
            _document(nodes[before:], summary(type(node.op).__doc__), g.folder)
        for result, name in zip(
            results, (names,) if isinstance(names, str) else names, strict=True
        ):
            g.tensors[result] = Tensor(name, result.type, result)
            g.bodies[-1].types[name] = result.type


def _document(nodes: Sequence[NodeProto], doc: str, folder: str) -> None:
    """Say on the first node of an operation what that is, to whoever looks: on one that
    stands in its scope, as lengths that it needs stand elsewhere.
    """
    own = [n for n in nodes if n.name.rpartition("/")[0] == folder]
    for node in (own or nodes)[:1]:
        node.doc_string = doc


def _used(graph: Graph) -> Counter[Value]:
    """The values that something reads, and how often."""
    read = Counter(a for node, _ in graph.nodes for a in node.args if a is not None)
    read.update(graph.outputs.values())
    return read

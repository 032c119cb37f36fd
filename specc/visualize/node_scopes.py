"""The scope in which each node of a graph is drawn."""

from collections.abc import Iterator, Mapping

from specc.ir.graph import Graph, Node


def find_node_scopes(graph: Graph) -> dict[Node, str]:
    """Return the scope of each node: the path it was built under; what several scopes
    share belongs to the scope around them.

    A node without weights whose result is read only inside a deeper scope, which
    computes one of its operands too, is drawn there: `x + dense(h)` in front of a norm
    belongs to `output`, not to the scope around `output.dense` and `output.LayerNorm`.
    """
    homes = {node: _built_under(graph, node) for node, _ in graph.nodes}
    readers = _readers_of(graph)
    weights = {*graph.parameters.values()}
    for node, _ in reversed(graph.nodes):
        if not readers[node] or weights.intersection(node.args):
            continue
        inner = _common([homes[reader] for reader in readers[node]])
        read = [homes[arg.node] for arg in node.args if arg and arg.node]
        for scope in _up_to(inner, homes[node]):
            if any(is_inside(other, scope) for other in read):
                homes[node] = scope
                break
    return homes


def _built_under(graph: Graph, node: Node) -> str:
    made = graph.made.get(node)
    return _common(made.scopes) if made and made.scopes else ""


def _readers_of(graph: Graph) -> Mapping[Node, list[Node]]:
    """Return the nodes that read each node; none for what is a result of the graph."""
    found: dict[Node, list[Node]] = {node: [] for node, _ in graph.nodes}
    for node, _ in graph.nodes:
        for arg in node.args:
            if arg and arg.node:
                found[arg.node].append(node)
    for value in graph.outputs.values():
        if value.node:
            found[value.node] = []
    return found


def _up_to(inner: str, outer: str) -> Iterator[str]:
    """Yield the scopes from the inner one up to, but without, one around it."""
    while inner != outer and is_inside(inner, outer):
        yield inner
        inner = inner.rpartition(".")[0]


def is_inside(scope: str, of: str) -> bool:
    """Return whether a scope is another or below it."""
    return not of or scope == of or scope.startswith(f"{of}.")


def common_scope(a: str, b: str) -> str:
    """Return the innermost scope that both are inside of."""
    while not is_inside(b, a):
        a = a.rpartition(".")[0]
    return a


def _common(scopes: list[str] | tuple[str, ...]) -> str:
    found = scopes[0]
    for scope in scopes[1:]:
        found = common_scope(found, scope)
    return found

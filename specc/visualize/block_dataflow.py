"""Determine the scope in which each node is drawn, and build the dataflow graph of a scope."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal, TypeAlias

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.types import KIND_BY_DTYPE


def find_node_scopes(graph: Graph) -> dict[Node, str]:
    """Return the scope in which each node is drawn. This scope is the path in which the node was
    built, or the common ancestor of several such paths.

    A node without weights is drawn in a deeper scope if all its consumers are in that scope and the
    scope also computes an operand of the node. For example, in `x + dense(h)` before a norm, the
    sum is drawn in the scope `output`, which contains `output.dense`.
    """
    node_scopes = {
        node: _find_common_scope_of_all(graph.get_origin(node).scopes) for node, _ in graph.nodes
    }
    consumers = _find_consumers(graph)
    weights = {*graph.parameters.values()}
    for node, _ in reversed(graph.nodes):
        if not consumers[node] or weights.intersection(node.args):
            continue
        consumer_scope = _find_common_scope_of_all(
            [node_scopes[consumer] for consumer in consumers[node]]
        )
        node_scopes[node] = _choose_inner_scope(node, consumer_scope, node_scopes)
    return node_scopes


def _choose_inner_scope(node: Node, consumer_scope: str, node_scopes: Mapping[Node, str]) -> str:
    """Return the innermost scope that encloses `consumer_scope` and computes an operand of the
    node. If there is none, return the node's own scope.
    """
    operand_scopes = [node_scopes[arg.node] for arg in node.args if arg and arg.node]
    for scope in _iterate_outer_scopes(consumer_scope, node_scopes[node]):
        if any(is_scope_inside(operand_scope, scope) for operand_scope in operand_scopes):
            return scope
    return node_scopes[node]


def _find_consumers(graph: Graph) -> Mapping[Node, list[Node]]:
    """Return the consumers of each node (an empty list for a node that computes a graph output)."""
    consumers: dict[Node, list[Node]] = {node: [] for node, _ in graph.nodes}
    for node, _ in graph.nodes:
        for arg in node.args:
            if arg and arg.node:
                consumers[arg.node].append(node)
    for value in graph.outputs.values():
        if value.node:
            consumers[value.node] = []
    return consumers


def _iterate_outer_scopes(inner: str, outer: str) -> Iterator[str]:
    """Yield the scopes from `inner` outward, up to but excluding `outer`."""
    while inner != outer and is_scope_inside(inner, outer):
        yield inner
        inner = inner.rpartition(".")[0]


def is_scope_inside(scope: str, outer: str) -> bool:
    """Return True if a scope is equal to `outer` or nested in `outer`."""
    return not outer or scope == outer or scope.startswith(f"{outer}.")


def find_common_scope(a: str, b: str) -> str:
    """Return the innermost scope that contains both `a` and `b`."""
    while not is_scope_inside(b, a):
        a = a.rpartition(".")[0]
    return a


def _find_common_scope_of_all(scopes: Sequence[str]) -> str:
    """Return the innermost scope that contains all scopes, or "" if there are no scopes."""
    return reduce(find_common_scope, scopes) if scopes else ""


Role: TypeAlias = Literal["block", "op", "port", "result"]

VIEW_OPERATIONS = (
    ops.Cast, ops.Constant, ops.Split, ops.Merge, ops.Transpose, ops.Insert, ops.Squeeze,
    ops.Expand, ops.RopeAngles, ops.Extent, ops.Size, ops.Range, ops.DownsamplePaddingMask,
)  # fmt: skip
"""Operations that are not drawn: tensor views, constants and position ids."""

LENGTH_OPERATIONS = (ops.Extent, ops.Size)
"""Operations whose results depend only on the size of a tensor."""

ARITHMETIC_SIGNS = {"add": "+", "sub": "−", "mul": "×", "div": "÷", "pow": "^"}


@immutable_dataclass(kw_only=True)
class DiagramItem:
    """An item of a dataflow diagram: a nested block, an operation, an input or an output."""

    role: Role
    name: str
    node: Node | None = None


@immutable_dataclass(kw_only=True)
class BlockDataflow:
    """A dataflow graph. `items` are in topological order, and each edge is a pair of producer and
    consumer indices. A back edge closes a cycle.
    """

    items: tuple[DiagramItem, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()


NODE_RANKS: dict[Role, int] = {"port": 0, "block": 1, "op": 1, "result": 2}
"""The order in which items of a cycle are placed, by role."""

Values: TypeAlias = frozenset[Value]
NO_VALUES: Values = frozenset()


@dataclass(kw_only=True)
class _DataflowBuilder:
    """A builder of the dataflow graph of a scope.

    `sources` maps each value to the drawn values from which it is computed. `item_indices_by_value`
    maps a drawn value to the index of its item. `value_order` maps each value to its index in
    topological order.
    """

    graph: Graph
    node_scopes: Mapping[Node, str]
    scope: str
    get_block: Callable[[str], str]
    items: list[DiagramItem] = field(default_factory=list)
    item_indices: dict[DiagramItem, int] = field(default_factory=dict)
    edges: dict[tuple[int, int], None] = field(default_factory=dict)
    sources: dict[Value, Values] = field(default_factory=dict)
    item_indices_by_value: dict[Value, int] = field(default_factory=dict)
    inputs: dict[Value, str] = field(default_factory=dict)
    value_order: dict[Value, int] = field(default_factory=dict)

    def get_item_index(self, item: DiagramItem) -> int:
        """Return the index of an item in `items`, after appending the item if it is new."""
        if item not in self.item_indices:
            self.item_indices[item] = len(self.items)
            self.items.append(item)
        return self.item_indices[item]

    def add_edges(self, sources: Values, index: int) -> None:
        """Add edges from the items that compute `sources` to the item with the given index."""
        for value in sorted(sources, key=self.value_order.__getitem__):
            source = self.item_indices_by_value.get(value)
            if source is None:
                source = self.item_indices_by_value[value] = self.get_item_index(
                    self._make_port(value)
                )
            if source != index:
                self.edges[source, index] = None

    def _make_port(self, value: Value) -> DiagramItem:
        """Return the port item for a value that is computed outside the scope."""
        value = self._find_scaled_operand(value)
        if value.node is None:
            return DiagramItem(role="port", name=self.inputs[value])
        label = get_operation_label(value.node)
        name = _get_relative_path(self.node_scopes[value.node], self.scope)
        return DiagramItem(role="port", name=name or (label if len(label) > 1 else ""))

    def _find_scaled_operand(self, value: Value) -> Value:
        """If `value` is the product of a tensor and scalars that are computed outside the scope,
        return this tensor. Otherwise return `value`.
        """
        while (node := value.node) and isinstance(node.op, ops.Arith):
            sources = [v for a in node.args if a for v in self.sources.get(a, NO_VALUES)]
            is_outer = is_scope_inside(self.scope, self.node_scopes[node])
            if not is_outer or len(sources) != 1 or sources[0] in self.item_indices_by_value:
                break
            (value,) = sources
        return value

    def visit_graph(self) -> None:
        """Add items and edges for all nodes of the graph."""
        self.inputs |= {v: n for n, v in self.graph.inputs.items()}
        self.value_order |= {v: n for n, v in enumerate(self.inputs)}
        self.sources = {v: frozenset([v]) for v in self.inputs}
        for node, results in self.graph.nodes:
            for result in results:
                self.value_order[result] = len(self.value_order)
            self._visit_node(node, results)

    def _visit_node(self, node: Node, results: tuple[Value, ...]) -> None:
        """Add an item if a node is drawn, otherwise propagate the node's sources to its results."""
        sources = self._collect_sources(node, results[0])
        is_drawn = is_float_value(results[0]) and not isinstance(node.op, VIEW_OPERATIONS)
        scope = self.node_scopes[node]
        if is_drawn and is_scope_inside(scope, self.scope):
            # The following operations are not drawn: arithmetic with constants, and operations
            # whose operands are all weights.
            is_shown = len(sources) > isinstance(node.op, ops.Arith)
            is_drawn = is_shown or bool(self.get_block(scope))
            if is_drawn:
                number = self.get_item_index(self._make_item(node))
                self.add_edges(sources, number)
                self.item_indices_by_value |= dict.fromkeys(results, number)
        for result in results:
            self.sources[result] = frozenset([result]) if is_drawn else sources

    def _collect_sources(self, node: Node, result: Value) -> Values:
        """Return the drawn values on which a node depends, but no masks without float sources."""
        if isinstance(node.op, LENGTH_OPERATIONS):
            return NO_VALUES
        sources: set[Value] = set()
        for arg in node.args:
            arg_sources = self.sources.get(arg, NO_VALUES) if arg is not None else NO_VALUES
            if arg is not None and is_float_value(result) and KIND_BY_DTYPE[arg.type.dtype] == "b":
                arg_sources = frozenset(v for v in arg_sources if is_float_value(v))
            sources |= arg_sources
        return frozenset(sources)

    def _make_item(self, node: Node) -> DiagramItem:
        """Return the item of a node: the nested block that contains it, or the operation."""
        block = self.get_block(self.node_scopes[node])
        if block:
            return DiagramItem(role="block", name=block)
        return DiagramItem(role="op", name=get_operation_label(node), node=node)


def is_float_value(value: Value) -> bool:
    """Return True if a tensor has a floating-point type."""
    return KIND_BY_DTYPE[value.type.dtype] == "f"


def get_operation_label(node: Node) -> str:
    """Return the label of an operation in a diagram: a word or a symbol."""
    match node.op:
        case ops.Arith(fn):
            return ARITHMETIC_SIGNS.get(fn, fn)
        case ops.Pointwise(fn) | ops.Reduce(fn):
            return fn
    return node.op.spec_name.replace("_", " ")


def build_block_dataflow(
    graph: Graph, node_scopes: Mapping[Node, str], scope: str, get_block: Callable[[str], str]
) -> BlockDataflow:
    """Build a scope's dataflow graph. `get_block` maps an inner scope to the path of its block, or
    to "".
    """
    builder = _DataflowBuilder(
        graph=graph, node_scopes=node_scopes, scope=scope, get_block=get_block
    )
    builder.visit_graph()
    for name, value in _iterate_results(graph, node_scopes, scope):
        index = builder.get_item_index(DiagramItem(role="result", name=name))
        sources = builder.sources.get(value, NO_VALUES)
        # the masks and position ids of a block are drawn only if they are computed from activations
        drawn_sources = frozenset(v for v in sources if not scope or is_float_value(v))
        builder.add_edges(drawn_sources, index)
    return _order_items(builder.items, builder.edges)


def _iterate_results(
    graph: Graph, node_scopes: Mapping[Node, str], scope: str
) -> Iterator[tuple[str, Value]]:
    """Yield the name and value of each graph output for the root scope. For any other scope, yield
    each value that leaves the scope, with the name "".
    """
    if not scope:
        yield from graph.outputs.items()
        return
    inner_nodes = {n for n, _ in graph.nodes if is_scope_inside(node_scopes[n], scope)}
    values_read = [a for n, _ in graph.nodes if n not in inner_nodes for a in n.args if a]
    # remove duplicates, but keep the topological order
    leaving_values = dict.fromkeys([*values_read, *graph.outputs.values()])
    yield from (("", value) for value in leaving_values if value.node in inner_nodes)


def _order_items(
    items: Sequence[DiagramItem], edges: Mapping[tuple[int, int], None]
) -> BlockDataflow:
    """Return the dataflow graph of the items on which a result depends. Ports come first."""
    connected = _find_connected_items(items, edges)
    inner_edges = [(a, b) for a, b in edges if {a, b} <= connected]
    remaining = sorted(connected, key=lambda n: (NODE_RANKS[items[n].role], n))
    order = _sort_topologically(remaining, inner_edges)
    new_indices = {old: new for new, old in enumerate(order)}
    return BlockDataflow(
        items=tuple(items[n] for n in order),
        edges=tuple((new_indices[a], new_indices[b]) for a, b in inner_edges),
    )


def _sort_topologically(items: list[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Sort items topologically. A cycle begins at the item that comes first in `items`."""
    predecessors = {n: {a for a, b in edges if b == n} for n in items}
    remaining = [*items]
    order: list[int] = []
    while remaining:
        ready = (n for n in remaining if predecessors[n] <= {*order})
        order.append(next(ready, remaining[0]))
        remaining.remove(order[-1])
    return order


def _find_connected_items(
    items: Sequence[DiagramItem], edges: Mapping[tuple[int, int], None]
) -> set[int]:
    """Return the indices of the items on which a result depends."""
    connected = {n for n, item in enumerate(items) if item.role == "result"}
    while predecessors := {a for a, b in edges if b in connected and a not in connected}:
        connected |= predecessors
    return connected


def _get_relative_path(scope: str, base: str) -> str:
    """Return a scope name relative to `base`, or "" for an outer scope. If the name is a number, it
    is prefixed with the name of its parent.
    """
    common = find_common_scope(scope, base)
    name = scope.removeprefix(common).lstrip(".").split(".")[0]
    parent = common.rpartition(".")[2]
    return f"{parent}.{name}" if name.isdecimal() and parent else name

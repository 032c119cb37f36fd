"""Rewrite a graph with a list of rules.

The arguments of a rule are the builder, the op and its operands in the new graph. The rule returns
the values that replace the results of the node, or None if the rule does not apply. The builder
merges equal nodes and drops unused nodes. Names, scopes and source spans are copied to the nodes
that replace a node.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

from specc.ir.graph import Graph, GraphBuilder, Node, NodeOperands, NodeOrigin, NodeResults, Value
from specc.ir.op import Op

RewriteRule: TypeAlias = Callable[[GraphBuilder, Op, NodeOperands], NodeResults | None]


def rewrite_graph(graph: Graph, rules: Sequence[RewriteRule]) -> Graph:
    """Rewrite each node of `graph`, in topological order, by the first rule that applies."""
    builder = GraphBuilder()
    return rewrite_graph_into_builder(
        graph, builder, builder.copy_inputs_and_parameters(graph), rules
    )


def rewrite_graph_into_builder(
    graph: Graph,
    builder: GraphBuilder,
    new_values: dict[Value, Value],
    rules: Sequence[RewriteRule] = (),
) -> Graph:
    """Rewrite a graph into `builder`. `new_values` maps graph inputs to values of `builder`."""
    for node, results in graph.nodes:
        args = tuple(new_values[a] if a else None for a in node.args)
        count = len(builder.nodes)
        rule_results = (rule(builder, node.op, args) for rule in rules)
        new_results = next((r for r in rule_results if r is not None), None)
        if new_results is None:
            new_results = builder.add_node(node.op, *args)
        for value, new_value in zip(results, new_results, strict=True):
            assert value.type == new_value.type, (
                f"{node.op.name} of type {value.type} was replaced by {new_value.type}"
            )
            new_values[value] = new_value
        _copy_node_origin(builder, graph.node_origins.get(node, NodeOrigin()), new_results, count)
    return builder.clone_graph(graph, new_values)


def _copy_node_origin(
    builder: GraphBuilder, origin: NodeOrigin, values: NodeResults, count: int
) -> None:
    """Add `origin` to all nodes after the first `count`, and to nodes that compute `values`."""
    # Dictionaries do not support slicing, so the new nodes are iterated in reverse order from the
    # end.
    new_nodes_reversed = islice(reversed(builder.nodes), len(builder.nodes) - count)
    new_nodes: list[Node] = list(new_nodes_reversed)[::-1]
    for node in dict.fromkeys([*new_nodes, *(v.node for v in values if v.node)]):
        merged_origin = builder.node_origins.get(node, NodeOrigin()).merge(origin)
        if merged_origin != NodeOrigin():
            builder.node_origins[node] = merged_origin

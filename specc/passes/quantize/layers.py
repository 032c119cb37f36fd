"""Recurrent layers as the loops that they stand for, so that their products can be by
rounded weights: no target has a layer that rounds each row by itself. One has a layer
that rounds many rows by one scale: which weights it can read.
"""

from collections.abc import Collection, Sequence

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Node, Value
from specc.ir.op import Op
from specc.ir.recurrence import as_scan
from specc.passes.simplify.rewrite import rewrite


def opened(graph: Graph, wanted: Collection[str] | None = None) -> Graph:
    """The graph with every layer as a loop, or those that read a weight of `wanted`."""
    layers = (ops.Rnn, ops.Gru, ops.Lstm)
    if not any(isinstance(node.op, layers) for node, _ in graph.nodes):
        return graph

    def rule(
        b: Builder, op: Op, args: Sequence[Value | None]
    ) -> tuple[Value, ...] | None:
        if not isinstance(op, layers):
            return None
        read = [v for n, v in b.parameters.items() if wanted is None or n in wanted]
        # The matrices themselves, or what was put together of several.
        if wanted is None or any(source(a) in read for a in args[1:3]):
            return as_scan(b, op, args)
        return None

    return rewrite(graph, [rule])


def layer_pairs(graph: Graph) -> list[tuple[str, str]]:
    """Both weights of each LSTM that has no projection, where they are parameters."""
    names = {value: name for name, value in graph.parameters.items()}
    found: list[tuple[str, str]] = []
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Lstm) and node.op.projection(node) is None:
            read = node.op.weights(node), node.op.state_weights(node)
            if names.keys() >= set(read):
                found.append((names[read[0]], names[read[1]]))
    return found


def layer_weights(graph: Graph) -> frozenset[str]:
    """The weights that nothing reads but such layers."""
    inside = {name for pair in layer_pairs(graph) for name in pair}
    elsewhere = set(graph.outputs.values())
    for node, _ in graph.nodes:
        elsewhere.update(_read_otherwise(node))
    return frozenset(n for n in inside if graph.parameters[n] not in elsewhere)


def _read_otherwise(node: Node) -> list[Value]:
    """The operands of a node but for the weights of a layer without a projection."""
    if isinstance(node.op, ops.Lstm) and node.op.projection(node) is None:
        weights = node.op.weights.place, node.op.state_weights.place
        return [a for n, a in enumerate(node.args) if a and n not in weights]
    return [a for a in node.args if a]


def source(value: Value | None) -> Value | None:
    """The weight that a value is a view of; itself where it is none."""
    while value is not None and value.node is not None:
        if not isinstance(value.node.op, ops.Slice | ops.Transpose):
            break
        value = value.node.args[0]
    return value

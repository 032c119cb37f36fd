"""Recurrent layers as the loops that they stand for, so that their products can be by
rounded weights: no target has a layer that rounds each row by itself.
"""

from collections.abc import Collection, Sequence

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Value
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


def source(value: Value | None) -> Value | None:
    """The weight that a value is a view of; itself where it is none."""
    while value is not None and value.node is not None:
        if not isinstance(value.node.op, ops.Slice | ops.Transpose):
            break
        value = value.node.args[0]
    return value

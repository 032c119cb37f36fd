"""Store the weights of linear layers as `[in, out]`, as some checkpoints do.

    y = linear(x, w:[out, in])    →    y = linear(x, transpose(w:[in, out]))

A product reads a matrix in either order, so that what lies in a file as `[in, out]`
need not be turned over, nor copied.
"""

from collections.abc import Collection
from dataclasses import replace

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Node, Value
from specc.ir.op import Op
from specc.ir.types import Type
from specc.transforms.graph_rewrite import NodeOperands, NodeResults, rewrite_into_builder


def find_linear_weights(graph: Graph) -> frozenset[str]:
    """Return the parameters that only linear layers read."""
    elsewhere = set(graph.outputs.values())
    for node, _ in graph.nodes:
        matrix = _find_matrix_operand(node)
        elsewhere |= {a for n, a in enumerate(node.args) if a and n != matrix}
    return frozenset(n for n, v in graph.parameters.items() if v not in elsewhere)


def _find_matrix_operand(node: Node) -> int | None:
    """Return the operand of a linear layer that may be stored transposed, or None."""
    return 1 if isinstance(node.op, ops.Linear) else None


def transpose_stored_weights(graph: Graph, names: Collection[str]) -> Graph:
    """`graph` with these parameters, matrices all of them, stored as `[in, out]`."""
    made = Builder()
    now = {v: made.input(n, graph.input_facts[n]) for n, v in graph.inputs.items()}
    for name, value in graph.parameters.items():
        facts = graph.parameter_facts[name]
        if name not in names:
            now[value] = made.parameter(facts)
            continue
        rows, columns = facts.type.shape
        stored = replace(facts, type=Type(facts.type.dtype, (columns, rows)))
        now[value] = made.one(ops.Transpose((1, 0)), made.parameter(stored))
    return rewrite_into_builder(graph, made, now)


MATRIX_TRANSPOSE = ops.Transpose((1, 0))


def restore_transposed_weights(graph: Graph) -> Graph:
    """Undo `transpose_stored_weights`: restore the orientation of weights that only linear layers
    read. The storage layout of a checkpoint is not part of the architecture.
    """
    types = _find_transposed_types(graph)
    if not types:
        return graph
    made = Builder()
    parameters = {
        n: replace(facts, type=types.get(n, facts.type))
        for n, facts in graph.parameter_facts.items()
    }
    now = made.copy_ports(replace(graph, parameter_facts=parameters))
    back = {now[graph.parameters[name]] for name in types}

    def rule(builder: Builder, op: Op, args: NodeOperands) -> NodeResults | None:
        first = args[0] if args else None
        return (first,) if op == MATRIX_TRANSPOSE and first in back else None

    return rewrite_into_builder(graph, made, now, [rule])


def _find_transposed_types(graph: Graph) -> dict[str, Type]:
    """Return the types in which linear layers read weights that are read in no other way."""
    read = {n.args[0]: r[0] for n, r in graph.nodes if n.op == MATRIX_TRANSPOSE}
    elsewhere: set[Value | None] = {*graph.outputs.values()}
    for node, _ in graph.nodes:
        over = node.op == MATRIX_TRANSPOSE
        # neither the weight as stored, nor transposed for another use
        kept = 0 if over else _find_matrix_operand(node)
        elsewhere.update(
            a for n, a in enumerate(node.args) if n != kept or (a in read and not over)
        )
    alone = {v: r for v, r in read.items() if not elsewhere & {v, r}}
    return {n: alone[v].type for n, v in graph.parameters.items() if v in alone}

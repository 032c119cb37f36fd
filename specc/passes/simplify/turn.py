"""Weights of linear maps as a checkpoint has them that stores them the other way round.

    y = linear(x, w:[out, in])    →    y = linear(x, transpose(w:[in, out]))

A product reads a matrix in either order, so that what lies in a file as `[in, out]`
need not be turned over, nor copied.
"""

from collections.abc import Collection
from dataclasses import replace

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Node
from specc.ir.types import Type
from specc.passes.simplify.rewrite import rewritten


def of_products(graph: Graph) -> frozenset[str]:
    """The parameters that are read as the matrices of linear maps and nowhere else."""
    elsewhere = set(graph.outputs.values())
    for node, _ in graph.nodes:
        matrix = _matrix(node)
        elsewhere |= {a for n, a in enumerate(node.args) if a and n != matrix}
    return frozenset(n for n, v in graph.parameters.items() if v not in elsewhere)


def _matrix(node: Node) -> int | None:
    """Which operand a linear map takes the other way round as well."""
    return 1 if isinstance(node.op, ops.Linear) else None


def turn(graph: Graph, names: Collection[str]) -> Graph:
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
    return rewritten(graph, made, now)

"""Substitute lengths for symbols in a graph."""

from collections.abc import Mapping

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Value
from specc.ir.op import Op
from specc.ir.types import Type


def substitute_op_symbol(op: Op, symbol: str, length: Dim) -> Op:
    """`op` with `length` wherever its attributes, or the body of a loop, say `symbol`."""
    return _substitute_op(op, {symbol: length})


def substitute_graph_symbols(graph: Graph, lengths: Mapping[str, Dim]) -> Graph:
    """`graph` with these lengths in place of the symbols; the types are inferred anew."""
    b, now = Builder(), dict[Value, Value]()
    for name, value in graph.inputs.items():
        old, type = graph.input_facts[name], _substitute_type(value.type, lengths)
        now[value] = b.input(name, Input(type, old.keep, old.below, old.span))
    for name, value in graph.parameters.items():
        now[value] = b.parameter(graph.parameter_facts[name])
    for node, results in graph.nodes:
        made = b.copy_node(graph, node, now, _substitute_op(node.op, lengths))
        now.update(zip(results, made, strict=True))
    b.names = {n: now[v] for n, v in graph.names.items() if v in now}
    outputs = {n: now[v] for n, v in graph.outputs.items()}
    # Of a symbol that means another length now, nothing is known.
    least = {n: rows for n, rows in graph.least.items() if n not in lengths}
    facts = {n: dim.substitute(lengths) for n, dim in graph.facts.items() if n not in lengths}
    return b.finish(graph.name, outputs, least=least, facts=facts)


def _substitute_op(op: Op, lengths: Mapping[str, Dim]) -> Op:
    def change(attribute: object) -> object:
        if isinstance(attribute, Dim):
            return attribute.substitute(lengths)
        if isinstance(attribute, tuple):
            return tuple(change(a) for a in attribute)
        if isinstance(attribute, Graph):
            return substitute_graph_symbols(attribute, lengths)
        return attribute

    attributes = op.attributes().values()
    has_lengths = any(isinstance(v, Dim | tuple) for v in attributes)
    # most ops have no length among their attributes, and are the same op still
    if not isinstance(op, ops.Scan) and not has_lengths:
        return op
    return op.map_dims(change)


def _substitute_type(type: Type, lengths: Mapping[str, Dim]) -> Type:
    return Type(type.dtype, tuple(d.substitute(lengths) for d in type.shape))

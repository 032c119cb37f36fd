"""Inline the defaults of inputs into the graph.

graph g(source, source_keep)          graph g(source)
  … source_keep …              →        k = ne(source, 1)
                                         … k …
"""

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Value
from specc.ir.input_defaults import resolve_absent_inputs


def inline_defaults(graph: Graph, defaults: Graph) -> Graph:
    """`graph` with the outputs of `defaults` in place of the inputs of those names."""
    defaults = resolve_absent_inputs(defaults, defaults.outputs)
    made = Builder()
    for name, facts in graph.input_facts.items():
        if name not in defaults.outputs:
            made.input(name, facts)
    for parameter in graph.parameter_facts.values():
        made.parameter(parameter)
    inside = _list_kept_inputs(defaults, made)
    made.copy_nodes(defaults, inside)
    now = _list_kept_inputs(graph, made)
    now |= {graph.inputs[n]: inside[v] for n, v in defaults.outputs.items() if n in graph.inputs}
    for name in defaults.outputs:
        if name in graph.inputs and graph.input_facts[name].keep:
            _zero_padding_ids(made, graph, now, graph.inputs[name])
    now |= {v: made.parameters[n] for n, v in graph.parameters.items()}
    made.copy_nodes(graph, now)
    return made.finish_copy(graph, now)


def _zero_padding_ids(made: Builder, graph: Graph, known: dict[Value, Value], keep: Value) -> None:
    """Ids below 0 in rows that, by `keep`, do not exist become 0: nobody reads those
    rows, no table has such ones.
    """
    for name, facts in graph.input_facts.items():
        ids = graph.inputs[name]
        if facts.below is None or ids not in known or ids.type.shape != keep.type.shape:
            continue
        zero = made.one(ops.Constant(0, ids.type.dtype))
        below = made.one(ops.Compare("lt"), known[ids], zero)
        unread = made.one(ops.And(), made.one(ops.Not(), known[keep]), below)
        known[ids] = made.one(ops.Where(), unread, zero, known[ids])


def _list_kept_inputs(graph: Graph, made: Builder) -> dict[Value, Value]:
    return {v: made.inputs[n] for n, v in graph.inputs.items() if n in made.inputs}

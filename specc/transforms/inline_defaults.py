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
    inside = _copy_nodes(made, defaults, dict(_add_inputs(defaults, made)))
    known = dict(_add_inputs(graph, made))
    known.update(
        {graph.inputs[n]: inside[v] for n, v in defaults.outputs.items() if n in graph.inputs}
    )
    for name in defaults.outputs:
        if name in graph.inputs and graph.input_facts[name].keep:
            _zero_padding_ids(made, graph, known, graph.inputs[name])
    known.update({v: made.parameters[n] for n, v in graph.parameters.items()})
    now = _copy_nodes(made, graph, known)
    made.names = {n: now[v] for n, v in graph.names.items() if v in now}
    outputs = {n: now[v] for n, v in graph.outputs.items()}
    return made.finish(graph.name, outputs, least=graph.least, facts=graph.facts)


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


def _add_inputs(graph: Graph, made: Builder) -> list[tuple[Value, Value]]:
    return [(v, made.inputs[n]) for n, v in graph.inputs.items() if n in made.inputs]


def _copy_nodes(made: Builder, graph: Graph, now: dict[Value, Value]) -> dict[Value, Value]:
    for node, results in graph.nodes:
        new = made.add(node.op, *(a and now[a] for a in node.args))
        now.update(zip(results, new, strict=True))
        if (known := graph.made.get(node)) and new[0].node:
            made.made[new[0].node] = known
    return now

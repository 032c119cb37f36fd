"""Defaults of inputs that are computed from other inputs: resolve them, and inline them
into the graph.

keep = ids != 0                     keep = ids != 0 at = positions(keep)        →
at = positions(ids != 0)         for a caller who gives neither
"""

from collections.abc import Collection

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Value, collect_needed_nodes


def resolve_absent_inputs(defaults: Graph, absent: Collection[str]) -> Graph:
    """Return the defaults of the inputs `absent`, reading each other's defaults; inputs in a
    circle, and all others, stay inputs.
    """
    made, now = Builder(), dict[Value, Value]()
    for name, facts in defaults.input_facts.items():
        if name not in absent:
            now[defaults.inputs[name]] = made.input(name, facts)
    waiting = [n for n in defaults.outputs if n in absent]
    outputs: dict[str, Value] = {}
    while waiting:
        # In a circle nobody is first: one is taken, and what it reads becomes an input.
        ready = (n for n in waiting if not find_default_sources(defaults, n) & {*waiting})
        name = next(ready, waiting[0])
        waiting.remove(name)
        for other in find_default_sources(defaults, name) - {*made.inputs} - {*outputs}:
            now[defaults.inputs[other]] = made.input(other, defaults.input_facts[other])
        value = defaults.outputs[name]
        made.copy_nodes(defaults, now, collect_needed_nodes([value]))
        outputs[name] = now[value]
        # Whoever reads it later reads the default, unless it already is such an input.
        if name in defaults.inputs:
            now.setdefault(defaults.inputs[name], outputs[name])
    ordered = {n: outputs[n] for n in defaults.outputs if n in outputs}
    return made.finish(defaults.name, ordered, least=defaults.least)


def find_default_sources(defaults: Graph, name: str) -> set[str]:
    """Return the inputs that the default of `name` depends on."""
    value = defaults.outputs[name]
    used = {value, *(a for node in collect_needed_nodes([value]) for a in node.args)}
    return {n for n, v in defaults.inputs.items() if v in used}


TOKENWISE_OPS = (
    *(ops.Constant, ops.Pointwise, ops.Arith, ops.Compare, ops.Cast, ops.Where),
    *(ops.And, ops.Or, ops.Not),
)
"""Elementwise ops."""


def extract_tokenwise_default(defaults: Graph, name: str, growing: str) -> Graph | None:
    """Return the default of `name` if it is token-wise (each position depends only on its own
    token).
    """
    value = defaults.outputs[name]
    if find_default_sources(defaults, name) != {growing}:
        return None
    if value.type.shape != defaults.inputs[growing].type.shape:
        return None
    if not all(isinstance(node.op, TOKENWISE_OPS) for node in collect_needed_nodes([value])):
        return None
    return resolve_absent_inputs(defaults, (name,))


def find_circular_default(defaults: Graph) -> str:
    """Return an input whose default depends on itself, or ""."""
    waiting = set(defaults.outputs)
    while ready := {n for n in waiting if not find_default_sources(defaults, n) & waiting}:
        waiting -= ready
    return next((n for n in defaults.outputs if n in waiting), "")


def inline_defaults(graph: Graph, defaults: Graph) -> Graph:
    """Replace inputs of `graph` by the outputs of `defaults` with the same names."""
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
    """Replace negative ids at padded positions by 0."""
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

"""Defaults of inputs that are computed from other inputs.

keep = ids != 0                     keep = ids != 0 at = positions(keep)        →
at = positions(ids != 0)         for a caller who gives neither
"""

from collections.abc import Collection

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Value, collect_needed_nodes


def resolve_absent_inputs(defaults: Graph, absent: Collection[str]) -> Graph:
    """The defaults of the inputs `absent`; where one of them reads another, it reads
    its default.

    What is left of its inputs is given. Those that need each other in a circle stay
    inputs.
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
    """The inputs that the default of `name` follows from."""
    value = defaults.outputs[name]
    used = {value, *(a for node in collect_needed_nodes([value]) for a in node.args)}
    return {n for n, v in defaults.inputs.items() if v in used}


TOKENWISE_OPS = (
    *(ops.Constant, ops.Pointwise, ops.Arith, ops.Compare, ops.Cast, ops.Where),
    *(ops.And, ops.Or, ops.Not),
)
"""Operations that make each number of the numbers in its place."""


def extract_tokenwise_default(defaults: Graph, name: str, growing: str) -> Graph | None:
    """The default of `name`, where it makes each row of that row's token alone."""
    value = defaults.outputs[name]
    if find_default_sources(defaults, name) != {growing}:
        return None
    if value.type.shape != defaults.inputs[growing].type.shape:
        return None
    if not all(isinstance(node.op, TOKENWISE_OPS) for node in collect_needed_nodes([value])):
        return None
    return resolve_absent_inputs(defaults, (name,))


def find_circular_default(defaults: Graph) -> str:
    """An input whose default follows from itself, by way of others or not; empty where
    there is none.
    """
    waiting = set(defaults.outputs)
    while ready := {n for n in waiting if not find_default_sources(defaults, n) & waiting}:
        waiting -= ready
    return next((n for n in defaults.outputs if n in waiting), "")

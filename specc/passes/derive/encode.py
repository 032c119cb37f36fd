"""What does not depend on the growing input, computed once: results for every step, and
first states.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Input, Node, Value
from specc.passes.derive.blocks import apart
from specc.passes.derive.demand import wanted
from specc.passes.derive.plan import Plan


def encode_graph(plan: Plan, targets: Mapping[str, Value]) -> Graph | None:
    """The graph of `targets`, values that stay the same; None where there are none.

    Where a length, such as the batch, is told by no input of it, it takes the growing
    input, of which nothing else is read: with as many rows as there are, or none.
    """
    if not targets:
        return None
    b, now = _copied(plan, wanted(targets.values()))
    least, facts = plan.known_lengths()
    outputs = {
        name: apart(b, now[value], plan.batch) for name, value in targets.items()
    }
    name = f"{plan.graph.name} encode"
    graph = without_unread(b.finish(name, outputs, least=least, facts=facts))
    if _symbols(targets.values()) <= _symbols(graph.inputs.values()):
        return graph
    return with_input(graph, plan.growing, plan.graph.input_facts[plan.growing])


def _copied(plan: Plan, live: set[Node]) -> tuple[Builder, dict[Value, Value]]:
    """These nodes of the whole graph, none of which depends on what grows."""
    b, now = Builder(), dict[Value, Value]()
    for name, value in plan.graph.inputs.items():
        if not plan.moves(value):
            now[value] = b.input(name, plan.graph.input_facts[name])
    for name, value in plan.graph.parameters.items():
        now[value] = b.parameter(plan.graph.parameter_facts[name])
    for node, results in plan.graph.nodes:
        if node in live:
            # What is only measured may have been left out: `wanted` does not ask for it.
            op, args = node.op, [a and now.get(a) for a in node.args]
            if isinstance(op, ops.Extent) and args[0] is None:
                op, args = ops.Range(results[0].type.shape[0]), []
            new = b.add(op, *args)
            now.update(zip(results, new, strict=True))
            if (known := plan.graph.made.get(node)) and new[0].node:
                b.made[new[0].node] = known
    return b, now


def _symbols(values: Iterable[Value]) -> set[str]:
    """The symbols in the lengths of some values."""
    return {s for v in values for d in v.type.shape for s in d.symbols()}


def without_unread(graph: Graph, always: frozenset[str] = frozenset()) -> Graph:
    """Without inputs that nothing reads; a length may be read off any that is left."""
    read = {a for node, _ in graph.nodes for a in node.args if a}
    read |= set(graph.outputs.values())
    kept = {n for n, v in graph.inputs.items() if v in read or n in always}
    told = _symbols(graph.inputs[n] for n in kept)
    lengths = _symbols(read) | computed_with(graph)
    for name, value in graph.inputs.items():
        # One that is not read stays where it alone tells a length that is needed.
        own = _symbols([value])
        if name not in kept and (own & lengths) - told:
            kept.add(name)
            told |= own
    return replace(
        graph,
        inputs={n: v for n, v in graph.inputs.items() if n in kept},
        input_facts={n: f for n, f in graph.input_facts.items() if n in kept},
    )


def with_lengths(graph: Graph, whole: Graph, fixed: Iterable[str]) -> Graph:
    """With those of the inputs `fixed` of the whole graph that alone tell a length
    which is computed with: `x / float(length(memory))`.
    """
    for name in fixed:
        told = _symbols(graph.inputs.values()) | graph.facts.keys()
        if _symbols([whole.inputs[name]]) & (computed_with(graph) - told):
            graph = with_input(graph, name, whole.input_facts[name])
    return graph


def computed_with(graph: Graph) -> set[str]:
    """The symbols of the lengths that nodes make or say, in the bodies of loops too."""
    found = set[str]()
    for node, results in graph.nodes:
        found |= _symbols(results) | _said(node.op.attributes().values())
    return found


def _said(attributes: Iterable[object]) -> set[str]:
    found = set[str]()
    for value in attributes:
        if isinstance(value, Dim):
            found |= value.symbols()
        elif isinstance(value, tuple):
            found |= _said(value)
        elif isinstance(value, Graph):
            found |= computed_with(value)
    return found


def with_input(graph: Graph, name: str, facts: Input) -> Graph:
    """With one more input, of which only the lengths are read."""
    return replace(
        graph,
        inputs={**graph.inputs, name: Value(facts.type)},
        input_facts={**graph.input_facts, name: facts},
    )

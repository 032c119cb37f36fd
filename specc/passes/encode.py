"""What does not depend on the growing input, computed once: results for every step, and first states."""

from collections.abc import Mapping

from specc.ir.graph import Builder, Graph, Input, Value
from specc.passes.demand import wanted
from specc.passes.plan import Plan


def encode_graph(plan: Plan, targets: Mapping[str, Value]) -> Graph | None:
    """The graph of `targets`, values that stay the same; None where there are none.

    Where a length, such as the batch, is told by no input of it, it takes the growing input, of which nothing
    else is read: with as many rows as there are, or none.
    """
    if not targets:
        return None
    live = wanted(targets.values())
    b, now = Builder(), dict[Value, Value]()
    for name, value in plan.graph.inputs.items():
        if not plan.moves(value):
            now[value] = b.input(name, plan.graph.input_facts[name])
    for name, value in plan.graph.parameters.items():
        now[value] = b.parameter(plan.graph.parameter_facts[name])
    for node, results in plan.graph.nodes:
        if node in live:
            # what is only measured may have been left out
            new = b.add(node.op, *(a and now.get(a) for a in node.args))
            now.update(zip(results, new, strict=True))
            if (known := plan.graph.made.get(node)) and new[0].node:
                b.made[new[0].node] = known
    least, facts = plan.known_lengths()
    made = b.finish(f"{plan.graph.name} encode", {n: now[v] for n, v in targets.items()}, least=least, facts=facts)
    made = without_unread(made)
    wanted_lengths = {s for v in targets.values() for d in v.type.shape for s in d.symbols()}
    told = {s for v in made.inputs.values() for d in v.type.shape for s in d.symbols()}
    return _with_input(made, plan.growing, plan.graph.input_facts[plan.growing]) if wanted_lengths - told else made


def without_unread(graph: Graph, always: frozenset[str] = frozenset()) -> Graph:
    """Without inputs that nothing reads; a length may be read off any that is left."""
    read = {a for node, _ in graph.nodes for a in node.args} | set(graph.outputs.values())
    lengths = {s for v in read if v for d in v.type.shape for s in d.symbols()}
    told: set[str] = set()
    kept = {}
    for name, value in graph.inputs.items():
        if value in read or name in always:
            kept[name] = value
            told |= {s for d in value.type.shape for s in d.symbols()}
    for name, value in graph.inputs.items():
        own = {s for d in value.type.shape for s in d.symbols()}
        if name not in kept and (own & lengths) - told:
            kept[name] = value
            told |= own
    facts = {n: f for n, f in graph.input_facts.items() if n in kept}
    return Graph(
        **{**graph.__dict__, "inputs": {n: v for n, v in graph.inputs.items() if n in kept}, "input_facts": facts}
    )


def _with_input(graph: Graph, name: str, facts: Input) -> Graph:
    """With one more input, of which only the lengths are read."""
    return Graph(
        **{
            **graph.__dict__,
            "inputs": {**graph.inputs, name: Value(facts.type)},
            "input_facts": {**graph.input_facts, name: facts},
        }
    )

"""Which parameters share another's numbers, known without reading any weights."""

from dataclasses import replace

from specc.compiler.rules import holds
from specc.elaborate.config import Reader
from specc.elaborate.context import Env, Library
from specc.elaborate.model import context_of, requirements
from specc.elaborate.modules import Program
from specc.ir.dim import Dim, product, total
from specc.ir.graph import Graph, Parameter
from specc.ir.model import Model
from specc.lang import tree
from specc.weights.names import Pattern


def own_parameters(graph: Graph) -> Dim:
    """How many numbers the weights of a graph `with_ties` hold, those that are shared
    counted once.
    """
    facts = graph.parameter_facts.values()
    return total(product(f.type.shape) for f in facts if not f.tied_to)


def with_ties(
    program: Program, library: Library, reader: Reader, model: Model
) -> Model:
    """The model, each tied weight of its graph noting the one that it shares the
    numbers of.

    A tie of weights that this graph does not have notes nothing: it is another graph's.
    """
    every = [r for item, _ in program.items(tree.Weights) for r in item.rules]
    rules = [r for r in every if isinstance(r, tree.Tie)]
    if not rules:
        return model
    context = context_of(library)
    env = Env(module=program.module, config=requirements(context, program, reader))
    facts = dict(model.graph.parameter_facts)
    for rule in rules:
        if holds(rule.condition, context, env):
            _note(rule, facts)
    return replace(model, graph=replace(model.graph, parameter_facts=facts))


def _note(rule: tree.Tie, facts: dict[str, Parameter]) -> None:
    """The source of each parameter that a rule ties. The first rule that fits counts."""
    pattern = Pattern(rule.name.text)
    for name, known in facts.items():
        captures = None if known.tied_to else pattern.captures(name)
        source = captures.fill(rule.source.text) if captures is not None else ""
        if source in facts and source != name:
            facts[name] = replace(known, tied_to=source)

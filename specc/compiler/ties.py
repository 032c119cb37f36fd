"""Which parameters share another's numbers, known without reading any weights."""

from collections.abc import Iterator
from dataclasses import replace

from specc.compiler.rules import rules_of
from specc.elaborate.config import Reader
from specc.elaborate.context import Env, Library
from specc.elaborate.model import context_of, requirements
from specc.elaborate.modules import Program
from specc.ir.dim import Dim, product, total
from specc.ir.graph import Graph, Parameter
from specc.ir.model import Model
from specc.lang import tree
from specc.weights.names import Pattern
from specc.weights.rules import TieRule


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
    every = [program, *(part for part in _used(program))]
    if not any(_ties(one) for one in every):
        return model
    context = context_of(library)
    env = Env(module=program.module, config=requirements(context, program, reader))
    facts = dict(model.graph.parameter_facts)
    for rule in rules_of(context, program, env).ties:
        _note(rule, facts)
    return replace(model, graph=replace(model.graph, parameter_facts=facts))


def _used(program: Program) -> Iterator[Program]:
    """The specs that a spec uses, and those that they use."""
    for part in program.parts:
        yield part.program
        yield from _used(part.program)


def _ties(program: Program) -> bool:
    rules = [r for item, _ in program.items(tree.Weights) for r in item.rules]
    return any(isinstance(rule, tree.Tie) for rule in rules)


def _note(rule: TieRule, facts: dict[str, Parameter]) -> None:
    """The source of each parameter that a rule ties. The first rule that fits counts."""
    pattern = Pattern(rule.name)
    for name, known in facts.items():
        captures = None if known.tied_to else pattern.captures(name)
        source = captures.fill(rule.source) if captures is not None else ""
        if source in facts and source != name:
            facts[name] = replace(known, tied_to=source)

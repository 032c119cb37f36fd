"""Tied weights: parameters that share the values of another."""

from collections.abc import Iterator
from dataclasses import replace

from specc.driver.spec_weight_rules import read_weight_rules
from specc.frontend.config_values import ConfigReader
from specc.frontend.context import Env, Library
from specc.frontend.spec_modules import Program
from specc.frontend.spec_to_graph import create_context, evaluate_and_check_config
from specc.ir.dim import Dim, multiply_dims, sum_dims
from specc.ir.graph import Graph, Parameter
from specc.ir.model import ModelDefinition
from specc.syntax import ast
from specc.weights.parameter_names import NamePattern
from specc.weights.weight_rules import TieRule


def count_own_parameters(graph: Graph) -> Dim:
    """How many numbers the weights of a graph `mark_ties` hold, those that are shared
    counted once.
    """
    facts = graph.parameter_facts.values()
    return sum_dims(multiply_dims(f.type.shape) for f in facts if not f.tied_to)


def mark_ties(
    program: Program, library: Library, reader: ConfigReader, model: ModelDefinition
) -> ModelDefinition:
    """The model, each tied weight of its graph noting the one that it shares the
    numbers of.

    A tie of weights that this graph does not have notes nothing: it is another graph's.
    """
    every = [program, *(part for part in _used(program))]
    if not any(_ties(one) for one in every):
        return model
    context = create_context(library)
    env = Env(module=program.module, config=evaluate_and_check_config(context, program, reader))
    facts = dict(model.graph.parameter_facts)
    for rule in read_weight_rules(context, program, env).ties:
        _note(rule, facts)
    return replace(model, graph=replace(model.graph, parameter_facts=facts))


def _used(program: Program) -> Iterator[Program]:
    """The specs that a spec uses, and those that they use."""
    for part in program.parts:
        yield part.program
        yield from _used(part.program)


def _ties(program: Program) -> bool:
    rules = [r for item, _ in program.items(ast.Weights) for r in item.rules]
    return any(isinstance(rule, ast.Tie) for rule in rules)


def _note(rule: TieRule, facts: dict[str, Parameter]) -> None:
    """The source of each parameter that a rule ties. The first rule that fits counts."""
    pattern = NamePattern(rule.name)
    for name, known in facts.items():
        captures = None if known.tied_to else pattern.captures(name)
        source = captures.fill(rule.source) if captures is not None else ""
        if source in facts and source != name:
            facts[name] = replace(known, tied_to=source)

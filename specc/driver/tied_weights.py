"""Tied weights: parameters that share their values with another parameter."""

from collections.abc import Iterator
from dataclasses import replace

from specc.driver.weights_section import read_weight_rules
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
    """Return the number of parameters of a graph from `mark_ties`; tied weights count once."""
    facts = graph.parameter_facts.values()
    return sum_dims(multiply_dims(f.type.shape) for f in facts if not f.tied_to)


def mark_ties(
    program: Program, library: Library, reader: ConfigReader, model: ModelDefinition
) -> ModelDefinition:
    """Return the model with `tied_to` set on each tied parameter of its graph.

    A tie rule whose weights are not in this graph is ignored: it applies to another graph.
    """
    every = [program, *(part for part in _iterate_used_programs(program))]
    if not any(map(_has_tie_rules, every)):
        return model
    context = create_context(library)
    env = Env(module=program.module, config=evaluate_and_check_config(context, program, reader))
    facts = dict(model.graph.parameter_facts)
    for rule in read_weight_rules(context, program, env).ties:
        _apply_tie_rule(rule, facts)
    return replace(model, graph=replace(model.graph, parameter_facts=facts))


def _iterate_used_programs(program: Program) -> Iterator[Program]:
    """Yield the specs that a spec uses, recursively."""
    for part in program.used_specs:
        yield part.program
        yield from _iterate_used_programs(part.program)


def _has_tie_rules(program: Program) -> bool:
    rules = [r for item, _ in program.iterate_items(ast.Weights) for r in item.rules]
    return any(isinstance(rule, ast.Tie) for rule in rules)


def _apply_tie_rule(rule: TieRule, facts: dict[str, Parameter]) -> None:
    """Set `tied_to` on each parameter that a rule matches. The first matching rule wins."""
    pattern = NamePattern(rule.name)
    for name, known in facts.items():
        captures = None if known.tied_to else pattern.captures(name)
        source = captures.fill(rule.source) if captures is not None else ""
        if source in facts and source != name:
            facts[name] = replace(known, tied_to=source)

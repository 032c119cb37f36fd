"""Which values of a graph meet the weights that are rounded to 4 bits."""

from collections.abc import Mapping
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Value, needed
from specc.ir.precision import Plan
from specc.passes.quantize.layers import source

BITS = 4
"""Numbers of 8 bits lose so little that nothing is to be made up for."""
WIDEST = 16_384
"""Products of so many inputs by each other take 2 GB, and five times as much beside them
while their factor is made.
"""


@dataclass(frozen=True)
class Readers:
    """`spots` are the values that weights meet, with the weights: those that meet the same
    share what is measured. `left` are weights of 4 bits that are rounded by themselves.
    """

    spots: Mapping[tuple[Value, ...], tuple[str, ...]]
    left: tuple[str, ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """Each value once."""
        return tuple(dict.fromkeys(v for spot in self.spots for v in spot))


def readers_of(graph: Graph, plan: Plan, ties: Mapping[str, str]) -> Readers:
    """Those of a graph as every target gets it; `ties` names the weight whose numbers
    another has.

    What a loop reads changes from turn to turn and cannot be looked at from outside.
    """
    met = _met(graph, plan, ties)
    spots: dict[tuple[Value, ...], list[str]] = {}
    left: list[str] = []
    for name, values in met.items():
        wide = values[0].type.shape[-1].number or 0 if values else 0
        if 0 < wide <= WIDEST:
            spots.setdefault(tuple(dict.fromkeys(values)), []).append(name)
        else:
            left.append(name)
    return Readers({spot: tuple(each) for spot, each in spots.items()}, tuple(left))


def _met(graph: Graph, plan: Plan, ties: Mapping[str, str]) -> dict[str, list[Value]]:
    """What each weight of 4 bits is multiplied by outside of loops."""
    wanted = [n for n, form in plan.items() if form.bits == BITS and n not in ties]
    names = {v: ties.get(n, n) for n, v in graph.parameters.items()}
    met: dict[str, list[Value]] = {name: [] for name in wanted}
    for node, _ in graph.nodes:
        if not isinstance(node.op, ops.Linear):
            continue
        x, weight = node.args[0], source(node.args[1])
        name = names.get(weight, "") if weight is not None else ""
        if x is not None and name in met:
            met[name].append(x)
    return met


def tapped(graph: Graph, values: tuple[Value, ...]) -> Graph:
    """A graph that gives these values, as `x0`, `x1`, …, and computes nothing else."""
    live = needed(values)
    made = Builder()
    now = {v: made.input(n, graph.input_facts[n]) for n, v in graph.inputs.items()}
    used = {a for node in live for a in node.args}
    for name, value in graph.parameters.items():
        if value in used:
            now[value] = made.parameter(graph.parameter_facts[name])
    for node, results in graph.nodes:
        if node in live:
            new = made.add(node.op, *(a and now[a] for a in node.args))
            now.update(zip(results, new, strict=True))
    outputs = {f"x{n}": now[value] for n, value in enumerate(values)}
    return made.finish(graph.name, outputs, least=graph.least, facts=graph.facts)

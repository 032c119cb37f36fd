"""Which values of a graph meet the weights that are rounded to 4 bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from specc.calibrate.loops import shown
from specc.ir.graph import Graph, Value
from specc.ir.precision import Plan
from specc.passes.quantize.layers import opened

BITS = 4
"""Numbers of 8 bits lose so little that nothing is to be made up for."""
WIDEST = 16_384
"""Products of so many inputs by each other take 2 GB, and three quarters as much beside
them while their factor is made.
"""
Spot: TypeAlias = tuple[Value, ...]
"""The values that a weight meets."""


@dataclass(frozen=True)
class Readers:
    """`spots` are the values of `graph` that weights meet, with the weights: those that
    meet the same share what is measured. `left` are weights of 4 bits that are rounded by
    themselves.
    """

    graph: Graph
    spots: Mapping[Spot, tuple[str, ...]]
    left: tuple[str, ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """Each value once."""
        return tuple(dict.fromkeys(v for spot in self.spots for v in spot))


def readers_of(graph: Graph, plan: Plan, ties: Mapping[str, str]) -> Readers:
    """Those of a graph as every target gets it; `ties` names the weight whose numbers
    another has. Layers are the loops that they stand for, which show what they read.
    """
    wanted = [n for n, form in plan.items() if form.bits == BITS and n not in ties]
    graph = opened(graph, {n for n in plan if ties.get(n, n) in wanted})
    names = {v: ties.get(n, n) for n, v in graph.parameters.items()}
    found = shown(graph, {v: n for v, n in names.items() if n in wanted})
    spots: dict[Spot, list[str]] = {}
    left: list[str] = []
    for name in wanted:
        spot = tuple(found.met.get(name, ()))
        # Nothing is met by a table that tokens are looked up in, nor seen by a loop
        # whose rows cannot be collected.
        wide = wide_of(spot) if spot else 0
        if 0 < wide <= WIDEST:
            spots.setdefault(spot, []).append(name)
        else:
            left.append(name)
    found_spots = {spot: tuple(each) for spot, each in spots.items()}
    return Readers(found.graph, found_spots, tuple(left))


def wide_of(spot: Spot) -> int:
    """How many inputs a weight has that meets this."""
    return spot[0].type.shape[-1].number or 0


def keep_of(graph: Graph, value: Value) -> str:
    """The input that says which rows of a value exist, empty where none does: it has its
    axes but the last ones, and is the only one.
    """
    found = [
        name
        for name, facts in graph.input_facts.items()
        if facts.keep and facts.type.shape == value.type.shape[: facts.type.rank]
    ]
    return found[0] if len(found) == 1 and value.type.rank > 1 else ""

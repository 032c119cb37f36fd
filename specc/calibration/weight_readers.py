"""Find the activations that meet each int4 weight."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from specc.calibration.activation_taps import WeightMatrix, expose_loop_activations
from specc.ir.graph import Graph, Value
from specc.ir.quantization_format import QuantizationPlan
from specc.transforms.quantize import expand_recurrent_layers

BITS = 4
"""Numbers of 8 bits lose so little that nothing is to be made up for."""
WIDEST = 16_384
"""Products of so many inputs by each other take 2 GB, and three quarters as much beside
them while their factor is made.
"""
Spot: TypeAlias = tuple[Value, ...]
"""The values that a weight meets."""


@dataclass(frozen=True)
class WeightReaders:
    """`spots` are the values of `graph` that weights meet, with the weights: those that
    meet the same share what is measured. `left` are weights of 4 bits that are rounded by
    themselves.
    """

    graph: Graph
    spots: Mapping[Spot, tuple[WeightMatrix, ...]]
    left: tuple[str, ...]

    @property
    def experts(self) -> Mapping[str, int]:
        """How many matrices each weight is a stack of; 1 for one alone."""
        every = [matrix for spot in self.spots.values() for matrix in spot]
        return Counter(matrix.name for matrix in every)

    @property
    def values(self) -> tuple[Value, ...]:
        """Each value once."""
        return tuple(dict.fromkeys(v for spot in self.spots for v in spot))


def find_weight_readers(
    graph: Graph, plan: QuantizationPlan, ties: Mapping[str, str]
) -> WeightReaders:
    """Those of a graph as every target gets it; `ties` names the weight whose numbers
    another has. Layers are the loops that they stand for, which show what they read.
    """
    wanted = [n for n, form in plan.items() if form.bits == BITS and n not in ties]
    graph = expand_recurrent_layers(graph, {n for n in plan if ties.get(n, n) in wanted})
    names = {v: ties.get(n, n) for n, v in graph.parameters.items()}
    found = expose_loop_activations(graph, {v: n for v, n in names.items() if n in wanted})
    spots = _spots(found.met, wanted)
    held = {matrix.name for names in spots.values() for matrix in names}
    return WeightReaders(found.graph, spots, tuple(n for n in wanted if n not in held))


def _spots(
    met: Mapping[WeightMatrix, list[Value]], wanted: list[str]
) -> dict[Spot, tuple[WeightMatrix, ...]]:
    """The weights by what they meet, in the order in which they are `wanted`."""
    # Nothing is met by a table that tokens are looked up in, nor seen by a loop whose
    # rows cannot be collected.
    wide = {matrix: input_width(tuple(values)) for matrix, values in met.items()}
    too_wide = {matrix.name for matrix, many in wide.items() if many > WIDEST}
    order = {name: n for n, name in enumerate(wanted)}
    spots: dict[Spot, tuple[WeightMatrix, ...]] = {}
    for matrix in sorted(wide, key=lambda m: (order[m.name], m.expert)):
        if matrix.name not in too_wide:
            spot = tuple(met[matrix])
            spots[spot] = (*spots.get(spot, ()), matrix)
    return spots


def input_width(spot: Spot) -> int:
    """How many inputs a weight has that meets this."""
    return spot[0].type.shape[-1].number or 0


def find_padding_mask(graph: Graph, value: Value) -> str:
    """The input that says which rows of a value exist, empty where none does: it has its
    axes but the last ones, and is the only one.
    """
    found = [
        name
        for name, facts in graph.input_facts.items()
        if facts.keep and facts.type.shape == value.type.shape[: facts.type.rank]
    ]
    return found[0] if len(found) == 1 and value.type.rank > 1 else ""

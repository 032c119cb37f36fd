"""Split a graph into stages that bound the memory of calibration."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeAlias

from specc.calibration.activation_taps import WeightReaders, input_width
from specc.ir.graph import Builder, Graph, Input, Node, Value, collect_needed_nodes

STAGE_WEIGHT_BYTES = 256 << 20
"""Maximum float32 size of the weights of a stage, unless a single operation has more."""
STAGE_GRAM_BYTES = 512 << 20
"""Maximum size of the Gram matrices of a stage, unless a single weight has more."""
Made: TypeAlias = tuple[Node, tuple[Value, ...]]


@dataclass(frozen=True)
class CalibrationStage:
    """`graph` gives what weights meet by the names in `met`, as values of the whole graph,
    and those values that it `gives` to later stages; it `takes` what earlier ones gave,
    beside the inputs. What is `over` no later stage takes.
    """

    graph: Graph
    met: Mapping[str, Value]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    over: tuple[str, ...]


def split_stages(readers: WeightReaders) -> Iterator[CalibrationStage]:
    """The stages in which the values of `readers` are computed, in order."""
    whole = _Whole(readers)
    groups = list(whole.groups()) or [[]]
    order = _Order()
    for n, group in enumerate(groups):
        order.first |= {v: n for _, results in group for v in results}
        order.last |= dict.fromkeys(whole.read(group), n)
    for n, group in enumerate(groups):
        yield _stage(n, group, whole, order)


@dataclass
class _Order:
    """The numbers of the stages that compute a value, and that read it last."""

    first: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)

    @cached_property
    def kept(self) -> dict[Value, str]:
        """What a later stage reads, and what it is called meanwhile."""
        found = [v for v, n in self.last.items() if self.first[v] < n]
        return {v: f"kept {n}" for n, v in enumerate(found)}


def _stage(n: int, group: list[Made], whole: "_Whole", order: _Order) -> CalibrationStage:
    """The stage of one group of nodes, the one of number `n`."""
    first, kept = order.first, order.kept
    # what needs no weight at all is met in the first
    here = [v for v in whole.readers.values if first.get(v, 0) == n]
    met = {f"met {k}": v for k, v in enumerate(here)}
    takes = {kept[v]: v for v in whole.read(group) if first[v] < n}
    gives = {name: v for v, name in kept.items() if first[v] == n}
    return CalibrationStage(
        graph=whole.part(group, takes, {**met, **gives}),
        met=met,
        takes=tuple(takes),
        gives=tuple(gives),
        over=tuple(name for v, name in kept.items() if order.last[v] == n),
    )


@dataclass
class _Whole:
    """The graph, and what of it must be computed once: `heavy` nodes, that read what
    depends on inputs and what depends on weights.
    """

    readers: WeightReaders

    @property
    def graph(self) -> Graph:
        """The whole graph."""
        return self.readers.graph

    @cached_property
    def _kinds(self) -> dict[Value, frozenset[str]]:
        """Of each value, the weights that it is made of, and `""` for inputs."""
        found = {v: frozenset([""]) for v in self.graph.inputs.values()}
        found |= {v: frozenset([n]) for n, v in self.graph.parameters.items()}
        for node, results in self.graph.nodes:
            read: frozenset[str] = frozenset().union(*(found[a] for a in node.args if a))
            # of what is computed once it does not matter any more which weights
            made = frozenset(["", "…"]) if "" in read and len(read) > 1 else read
            found |= dict.fromkeys(results, made)
        return found

    def _is_heavy(self, value: Value) -> bool:
        kinds = self._kinds[value]
        return "" in kinds and len(kinds) > 1

    def groups(self) -> Iterator[list[Made]]:
        """The heavy nodes that are needed, in order, as many together as fit."""
        live = collect_needed_nodes(self.readers.values)
        # float64, a number for each pair of inputs; begun with the first value met
        begins = {spot[0]: 8 * input_width(spot) ** 2 for spot in self.readers.spots}
        group: list[Made] = []
        held: set[str] = set()
        sums = 0
        for node, results in self.graph.nodes:
            if node not in live or not any(map(self._is_heavy, results)):
                continue
            read, begun = self._weights(node), sum(begins.get(v, 0) for v in results)
            # one operation may be too much alone: it has a group of its own
            full = self._bytes(held | read) > STAGE_WEIGHT_BYTES or (
                sums and sums + begun > STAGE_GRAM_BYTES
            )
            if group and full:
                yield group
                group, held, sums = [], set(), 0
            group.append((node, results))
            held |= read
            sums += begun
        if group:
            yield group

    def _weights(self, node: Node) -> set[str]:
        """The weights that a node needs beside heavy values."""
        light = [a for a in node.args if a and not self._is_heavy(a)]
        return {name for a in light for name in self._kinds[a]} - {""}

    def _bytes(self, names: Iterable[str]) -> int:
        shapes = (self.graph.parameters[name].type.shape for name in names)
        return sum(4 * prod(d.number or 0 for d in shape) for shape in shapes)

    def read(self, group: Iterable[Made]) -> list[Value]:
        """The heavy values that nodes read."""
        read = dict.fromkeys(a for node, _ in group for a in node.args if a)
        return [a for a in read if self._is_heavy(a)]

    def part(
        self, group: list[Made], takes: Mapping[str, Value], gives: Mapping[str, Value]
    ) -> Graph:
        """The graph of a group of nodes, and of all light ones that it needs."""
        graph, made = self.graph, Builder()
        # parameters that nothing reads are left out in the end
        now = made.copy_ports(graph)
        now |= {value: made.input(name, Input(value.type)) for name, value in takes.items()}
        here = self._with_light(group, gives.values())
        made.copy_nodes(graph, now, here)
        return made.finish_copy(graph, now, {name: now[value] for name, value in gives.items()})

    def _with_light(self, group: list[Made], gives: Iterable[Value]) -> set[Node]:
        """The nodes of a group, and the light ones that these and results are made of."""
        read = (a for node, _ in group for a in node.args if a)
        light = [v for v in (*read, *gives) if not self._is_heavy(v)]
        return {node for node, _ in group} | collect_needed_nodes(light)

"""What to keep and what to do again: one minimum cut, for caches and for what `encode`
hands over.

Some values are wanted later (`sinks`). A wanted value is kept, at the cost of its
bytes, or done again, at the cost of the work, for which its operands are then wanted
too. The cheapest choice is a minimum cut in a network with two nodes a value: "it is
there" and "it is done again". Among equally cheap choices the one nearest the sinks is
taken. Nothing here knows what a graph is.
"""

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Choice(Generic[T]):
    """One value: what it costs to keep, what it costs to do again, and what it is done
    again from.

    `again = inf` means that it must be kept if it is wanted.
    """

    keep: float
    again: float
    operands: Sequence[T] = ()


def cheapest(choices: Mapping[T, Choice[T]], sinks: Sequence[T]) -> list[T]:
    """The values to keep so that every sink is there, in the order of `choices`."""
    net = _Network[tuple[str, T | None]]()
    source, sink = ("source", None), ("sink", None)
    for value, choice in choices.items():
        there, again = ("there", value), ("again", value)
        net.edge(again, there, choice.keep)
        net.edge(source, again, choice.again)
        for operand in choice.operands:
            net.edge(("there", operand), again, inf)
    for value in sinks:
        net.edge(("there", value), sink, inf)
    wanted = net.sink_side(source, sink)
    return [v for v in choices if ("there", v) in wanted and ("again", v) not in wanted]


N = TypeVar("N", bound=Hashable)


@dataclass
class _Network(Generic[N]):
    """Capacities that are left, by node and by neighbor."""

    left: dict[N, dict[N, float]] = field(default_factory=dict)

    def edge(self, a: N, b: N, capacity: float) -> None:
        out = self.left.setdefault(a, {})
        out[b] = out.get(b, 0.0) + capacity
        self.left.setdefault(b, {}).setdefault(a, 0.0)

    def sink_side(self, source: N, sink: N) -> set[N]:
        """The nodes from which the sink can still be reached once no more fits through
        (Edmonds and Karp 1972).
        """
        while (path := self._path(source, sink)) is not None:
            room = min(self.left[a][b] for a, b in path)
            assert room < inf, "a sink can be neither kept nor done again"
            for a, b in path:
                self.left[a][b] -= room
                self.left[b][a] += room
        reached, todo = {sink}, [sink]
        while todo:
            at = todo.pop()
            before = [
                n
                for n in self.left.get(at, {})
                if n not in reached and self.left[n][at] > 0
            ]
            reached.update(before)
            todo += before
        return reached

    def _path(self, source: N, sink: N) -> list[tuple[N, N]] | None:
        came: dict[N, N] = {}
        todo = deque([source])
        while todo:
            at = todo.popleft()
            for to, room in self.left.get(at, {}).items():
                if room <= 0 or to in came or to == source:
                    continue
                came[to] = at
                if to == sink:
                    path = []
                    while to != source:
                        path.append((came[to], to))
                        to = came[to]
                    return path[::-1]
                todo.append(to)
        return None

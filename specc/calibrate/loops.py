"""What weights meet inside of loops, shown outside: a loop also collects it of every turn.

    y, … = scan(body, …)        →        y, …, met = scan(body that also gives x, …)

Rows that a mask leaves out are zeros there, as all that is collected.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from specc.ir import ops
from specc.ir.graph import Builder, Graph, Node, Value
from specc.passes.quantize.layers import source
from specc.passes.quantize.uses import captured

Names: TypeAlias = Mapping[Value, str]
"""The names of weights by the values that are these in a graph, or in a body."""


@dataclass
class Shown:
    """A graph that gives what weights meet: the values by the weights' names."""

    graph: Graph
    met: Mapping[str, list[Value]]


def shown(graph: Graph, names: Names) -> Shown:
    """`graph` with loops that collect what the weights of `names` meet in them; values
    of experts are not among them, each of which has rows of its own.
    """
    made = Builder()
    walk = _Walk(made)
    for name, value in graph.inputs.items():
        walk.now[value] = made.input(name, graph.input_facts[name])
    for name, value in graph.parameters.items():
        walk.now[value] = made.parameter(graph.parameter_facts[name])
    walk.nodes(graph, names)
    outputs = {name: walk.now[value] for name, value in graph.outputs.items()}
    outputs |= {
        f"met {name} {n}": value
        for name, values in walk.met.items()
        for n, value in enumerate(values)
    }
    finished = made.finish(graph.name, outputs, least=graph.least, facts=graph.facts)
    return Shown(finished, walk.met)


@dataclass
class _Walk:
    """Writes nodes again; `now` are the values that are there, `met` what each weight
    meets among them.
    """

    made: Builder
    now: dict[Value, Value] = field(default_factory=dict)
    met: dict[str, list[Value]] = field(default_factory=dict)

    def nodes(self, graph: Graph, names: Names) -> None:
        """Every node of a graph, in order."""
        for node, results in graph.nodes:
            name = _read(node, names)
            if name and (x := node.args[0]):
                self._note(name, self.now[x])
            if isinstance(node.op, ops.Scan):
                new = self._loop(node, node.op, names)
            else:
                new = self.made.add(node.op, *(a and self.now[a] for a in node.args))
            self.now.update(zip(results, new, strict=True))

    def _note(self, name: str, value: Value) -> None:
        values = self.met.setdefault(name, [])
        if value not in values:
            values.append(value)

    def _loop(self, node: Node, op: ops.Scan, names: Names) -> tuple[Value, ...]:
        """A loop, and what its body collects for us noted."""
        inner = _Walk(Builder())
        for name, value in op.body.inputs.items():
            inner.now[value] = inner.made.input(name, op.body.input_facts[name])
        outside = captured(op, node)
        inside = list(op.body.inputs.values())[op.scanned + op.carries :]
        known = {
            i: names[root]
            for i, o in zip(inside, outside, strict=True)
            if (root := source(o)) is not None and root in names
        }
        inner.nodes(op.body, known)
        args = [a and self.now[a] for a in node.args]
        # rows are put together along an axis in front of the one that is multiplied
        more = [v for values in inner.met.values() for v in values]
        more = [v for v in dict.fromkeys(more) if v.type.rank > op.axis]
        if not more:
            return self.made.add(op, *args)
        given = {n: inner.now[v] for n, v in op.body.outputs.items()}
        first = list(given.items())[: op.carries]
        # behind the carries: the last of what is collected are told by their number
        outputs = {**dict(first), **{f"met {n}": v for n, v in enumerate(more)}}
        body = inner.made.finish(
            op.body.name,
            {**outputs, **given},
            least=op.body.least,
            facts=op.body.facts,
        )
        new = self.made.add(replace(op, body=body), *args)
        seen = dict(zip(more, new[op.carries :], strict=False))
        for name, values in inner.met.items():
            for value in values:
                if value in seen:
                    self._note(name, seen[value])
        return (*new[: op.carries], *new[op.carries + len(more) :])


def _read(node: Node, names: Names) -> str:
    """The weight that a linear map reads, empty where it is none of `names`."""
    weight = source(node.args[1]) if isinstance(node.op, ops.Linear) else None
    return names.get(weight, "") if weight is not None else ""

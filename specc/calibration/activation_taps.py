"""Expose activations inside loops as graph outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from specc.calibration.expert_activations import collect_expert_activations
from specc.ir import ops
from specc.ir.graph import Builder, Graph, Node, Value
from specc.transforms.quantize import find_viewed_weight
from specc.transforms.weight_uses import find_matrix_product, list_captured_operands

Names: TypeAlias = Mapping[Value, str]
"""The names of weights by the values that are these in a graph, or in a body."""


class WeightMatrix(NamedTuple):
    """A weight, or what one `expert` has of a stack of them."""

    name: str
    expert: int = 0


@dataclass
class TappedGraph:
    """A graph that gives what weights meet."""

    graph: Graph
    met: Mapping[WeightMatrix, list[Value]]


def expose_loop_activations(graph: Graph, names: Names) -> TappedGraph:
    """`graph` with loops that collect what the weights of `names` meet in them, and with
    what each expert meets.
    """
    made = Builder()
    walk = _Walk(made)
    walk.now |= made.copy_ports(graph)
    walk.nodes(graph, names)
    outputs = {name: walk.now[value] for name, value in graph.outputs.items()}
    outputs |= {
        f"met {matrix.name} {matrix.expert} {n}": value
        for matrix, values in walk.met.items()
        for n, value in enumerate(values)
    }
    finished = made.finish(graph.name, outputs, least=graph.least, facts=graph.facts)
    return TappedGraph(finished, walk.met)


@dataclass
class _Walk:
    """Writes nodes again; `now` are the values that are there, `met` what each weight
    meets among them.
    """

    made: Builder
    now: dict[Value, Value] = field(default_factory=dict)
    met: dict[WeightMatrix, list[Value]] = field(default_factory=dict)

    def nodes(self, graph: Graph, names: Names) -> None:
        """Every node of a graph, in order."""
        for node, results in graph.nodes:
            name, x = _read(node, names)
            if name and x:
                self._note(WeightMatrix(name), self.now[x])
            args = [a and self.now[a] for a in node.args]
            if isinstance(node.op, ops.Scan):
                new = self._loop(node, node.op, names)
            else:
                new = self.made.add(node.op, *args)
            if isinstance(node.op, ops.Route):
                there = [a for a in args if a]
                for name, expert, value in collect_expert_activations(
                    self.made, node, there, names
                ):
                    self._note(WeightMatrix(name, expert), value)
            self.now.update(zip(results, new, strict=True))

    def _note(self, matrix: WeightMatrix, value: Value) -> None:
        values = self.met.setdefault(matrix, [])
        if value not in values:
            values.append(value)

    def _loop(self, node: Node, op: ops.Scan, names: Names) -> tuple[Value, ...]:
        """A loop, and what its body collects for us noted."""
        inner = _Walk(Builder())
        inner.now |= inner.made.copy_ports(op.body)
        inner.nodes(op.body, _inside(node, op, names))
        args = [a and self.now[a] for a in node.args]
        more = inner.rows(node, op)
        if not more:
            return self.made.add(op, *args)
        new = self.made.add(inner.collecting(op, more), *args)
        # In front of what the body collected already, and behind the carries, whose
        # number the loop says: so no result that was there needs another number.
        first, behind = op.carries, op.carries + len(more)
        seen = dict(zip(more, new[first:behind], strict=True))
        for matrix, values in inner.met.items():
            for value in values:
                if value in seen:
                    self._note(matrix, self._turned(seen[value], op.axis))
        return *new[:first], *new[behind:]

    def _turned(self, value: Value, axis: int) -> Value:
        """What a loop collected, the axis of its turns in front of the one that is
        multiplied: a loop around it takes the first axis for that of the batch.
        """
        order = [n for n in range(value.type.rank) if n != axis]
        order.insert(value.type.rank - 2, axis)
        if order == sorted(order):
            return value
        return self.made.one(ops.Transpose(tuple(order)), value)

    def rows(self, node: Node, op: ops.Scan) -> list[Value]:
        """What is met in this body and can be collected, each value once.

        Rows are put together along an axis that must stand in front of the one that is
        multiplied, and are masked by their first.
        """
        every = dict.fromkeys(v for values in self.met.values() for v in values)
        every_wide = [v for v in every if v.type.rank > op.axis]
        keep = node.args[0] if op.masked else None
        if keep is None:
            return every_wide
        batch = keep.type.shape[0]
        return [v for v in every_wide if v.type.shape[0] == batch]

    def collecting(self, op: ops.Scan, more: list[Value]) -> ops.Scan:
        """The loop over this body, which also collects these values of it."""
        given = {name: self.now[v] for name, v in op.body.outputs.items()}
        outputs = dict(list(given.items())[: op.carries])
        outputs |= {f"met {n}": v for n, v in enumerate(more)}
        facts, least = op.body.facts, op.body.least
        outputs = {**outputs, **given}
        body = self.made.finish(op.body.name, outputs, least=least, facts=facts)
        return replace(op, body=body)


def _inside(node: Node, op: ops.Scan, names: Names) -> Names:
    """The same names for what a body calls them."""
    inside = list(op.body.inputs.values())[op.scanned + op.carries :]
    known = {}
    for inner, outer in zip(inside, list_captured_operands(op, node), strict=True):
        root = find_viewed_weight(outer)
        if root is not None and root in names:
            known[inner] = names[root]
    return known


def _read(node: Node, names: Names) -> tuple[str, Value | None]:
    """The weight that rows are multiplied by, empty where it is none of `names`; and the
    rows.
    """
    product = find_matrix_product(node)
    weight = find_viewed_weight(node.args[product.matrix]) if product else None
    if product is None or weight is None:
        return "", None
    return names.get(weight, ""), node.args[product.rows]

"""What does not depend on the growing input, computed once: results for every step, and
first states.

Behind a head states begin as what they hold of it. That is what the whole graph gives
where no row grows: the same ops over the rows of the head alone, both ways where a mask
says so. Parts of a concatenation that have no rows then are left out, so that what
grows is not read at all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from specc.ir import ops
from specc.ir.dim import Dim, smallest
from specc.ir.graph import Builder, Graph, Node, Value
from specc.ir.substitute import at_length
from specc.ir.types import Type
from specc.passes.derive.blocks import apart
from specc.passes.derive.enough import enough_keys
from specc.passes.derive.newest import LastRow
from specc.passes.derive.plan import Plan
from specc.passes.derive.tellers import symbols, told, with_input, without_unread


@dataclass(frozen=True)
class First:
    """A value of the whole graph where no row grows; of its rows along `axis` the last
    `most`, or their `total`, or the `newest` alone, which is not made of more than it
    needs.
    """

    value: Value
    axis: int | None = None
    most: float = inf
    total: bool = False
    newest: bool = False


def encode_graph(plan: Plan, targets: Mapping[str, First]) -> Graph | None:
    """The graph of `targets`; None where there are none.

    Where a length, such as the batch, is told by no input of it, it takes the growing
    input, of which nothing else is read: with as many rows as there are, or none.
    """
    if not targets:
        return None
    beginning = Beginning(plan)
    beginning.copy(targets.values())
    outputs = {name: beginning.output(first) for name, first in targets.items()}
    b, (least, facts) = beginning.b, plan.known_lengths()
    name = f"{plan.graph.name} encode"
    graph = without_unread(b.finish(name, outputs, least=least, facts=facts))
    read = symbols(r for _, results in graph.nodes for r in results)
    lengths = read | symbols(graph.outputs.values())
    if lengths <= told(graph.inputs.values(), facts):
        return graph
    return with_input(graph, plan.growing, plan.graph.input_facts[plan.growing])


class Beginning:
    """A copy of a graph at the length 0 of what grows, while it is built."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.b = Builder()
        self.now: dict[Value, Value] = {}
        self.rows: dict[Value, LastRow] = {}

    def copy(self, targets: Iterable[First]) -> None:
        """Every node that these are made from, but for what the newest row alone is
        wanted of. A loop that collects more than that of the graph is no node of it, and
        comes last.
        """
        b, graph, now = self.b, self.plan.graph, self.now
        values = self._whole(list(targets))
        live = self._live(values)
        self._given({a for node in live for a in node.args if a})
        for node, results in graph.nodes:
            if node in live:
                made = self._node(node, results)
                now.update(zip(results, made, strict=True))
                if (known := graph.made.get(node)) and made[0].node:
                    b.made.setdefault(made[0].node, known)
        self._beside(values)

    def _given(self, read: Collection[Value]) -> None:
        """Inputs and parameters; of the growing inputs that are `read`, the rows that
        they have before anything has grown.
        """
        b, graph, now = self.b, self.plan.graph, self.now
        for name, value in graph.inputs.items():
            if not self.plan.moves(value):
                now[value] = b.input(name, graph.input_facts[name])
        for name, value in graph.parameters.items():
            now[value] = b.parameter(graph.parameter_facts[name])
        for value in graph.inputs.values():
            if value not in now and value in read:
                nothing = False if value.type.dtype == "bool" else 0
                now[value] = self._filled(value.type, nothing)

    def _whole(self, targets: Sequence[First]) -> list[Value]:
        """The values of which more than the newest row is wanted, or read for such a row."""
        values = [first.value for first in targets if not first.newest]
        there = self._live(values)
        for first in targets:
            if first.newest and first.axis is not None:
                row = LastRow(
                    value=first.value,
                    axis=first.axis,
                    there=there,
                    symbol=self.plan.symbol,
                )
                self.rows[first.value] = row
                values += row.whole
        return values

    def _beside(self, values: Iterable[Value]) -> None:
        """Values of nodes that the graph lacks."""
        for value in values:
            if value not in self.now and value.node:
                made = self._node(value.node, (value,))
                self.now[value] = made[value.index]

    def output(self, first: First) -> Value:
        """A result, with the rows of it that are asked for."""
        if first.newest and first.axis is not None:
            return self.rows[first.value].build(self.b, self.now)
        value, axis = self.now[first.value], first.axis
        if first.total and axis is not None:
            value = self.b.one(ops.Reduce("sum", axis), value)
        elif first.most != inf and axis is not None:
            rows = value.type.shape[axis]
            kept = self._at_most(rows, int(first.most))
            if kept != rows:
                value = self.b.one(ops.Slice(axis, rows - kept, rows), value)
        return apart(self.b, value, self.plan.batch)

    def _at_most(self, rows: Dim, most: int) -> Dim:
        """The least of both, where it is known which that is."""
        clock = self.plan.setting.flow.clock
        if clock.sure(rows - most):
            return Dim.of(most)
        return rows if clock.sure(most - rows) else smallest(rows, most)

    def _live(self, values: Iterable[Value]) -> set[Node]:
        live: set[Node] = set()
        todo = [v.node for v in values]
        while todo:
            node = todo.pop()
            if node is not None and node not in live:
                live.add(node)
                todo += [a.node for a in self._read(node) if a]
        return live

    def _read(self, node: Node) -> list[Value | None]:
        """The operands that are read where nothing grows: of what an `extent` measures
        none, of a concatenation those with rows, of what is padded what has some.
        """
        if isinstance(node.op, ops.Extent) or self._all_padding(node):
            return []
        if isinstance(node.op, ops.Concat):
            axis = node.op.axis
            full = [a for a in node.args if a and self._length(a.type.shape[axis]) != 0]
            return [*(full or node.args)]
        return [*node.args]

    def _length(self, length: Dim) -> Dim:
        """A length where nothing grows."""
        return length.substitute({self.plan.symbol: 0})

    def _node(self, node: Node, results: tuple[Value, ...]) -> tuple[Value, ...]:
        """The same op, on rows of the head alone."""
        op = at_length(node.op, self.plan.symbol, Dim.of(0))
        # An `extent` reads its operand for nothing but a length, which is known here.
        if isinstance(op, ops.Extent):
            return self.b.add(ops.Range(self._length(results[0].type.shape[0])))
        if isinstance(op, ops.Pad) and self._all_padding(node):
            return (self._filled(results[0].type, op.value),)
        args = [a and self.now[a] for a in self._read(node)]
        if isinstance(op, ops.Concat) and len(args) == 1 and args[0]:
            return (args[0],)
        # The first k of fewer than k rows: as many as there are, filled up.
        if isinstance(op, ops.TopK) and args[0] and self._grows(node, op.axis):
            args = [enough_keys(self.b, op, args[0])]
        return self.b.add(op, *args)

    def _grows(self, node: Node, axis: int) -> bool:
        """Whether rows of its operand are of those that grow."""
        x = node.first
        return x is not None and self.plan.symbol in x.type.shape[axis].symbols()

    def _all_padding(self, node: Node) -> bool:
        """Whether a node puts rows beside none."""
        x = node.first
        if x is None or not isinstance(node.op, ops.Pad) or node.op.mode != "constant":
            return False
        return self._length(x.type.shape[node.op.axis]) == 0

    def _filled(self, type: Type, number: float | bool) -> Value:
        """One number at every row of the head; of an input along the growing axis,
        before anything has grown, there are none.
        """
        value = self.b.one(ops.Constant(number, type.dtype))
        for axis, length in enumerate(type.shape):
            value = self.b.one(ops.Insert(axis), value)
            value = self.b.one(ops.Expand(axis, self._length(length)), value)
        return value

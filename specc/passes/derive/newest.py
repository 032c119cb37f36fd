"""The newest row of a result where nothing has grown: the last row of its head, off which
the first token of an empty text is drawn.

A value whose rows are each made of the same rows of others is made again for that row
alone, from its operands' rows; what `encode` makes anyway is cut. So of a head of many
rows, such as those of a picture, one goes through the last layer's network and into the
vocabulary.

    x = linear(y) @ norm           x' = linear(y[:, -1:]) @ norm
    logits = linear(x) @ head  →   logits' = linear(x') @ head
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Node, Value
from specc.ir.reach import Link, known, links
from specc.ir.substitute import at_length
from specc.passes.derive.demand import wanted
from specc.passes.prove.flow import Flow

Row: TypeAlias = tuple[Value, int]
"""The last row of a value along an axis."""


def has_first(graph: Graph, flow: Flow, source: str) -> bool:
    """Whether a result surely has a newest row where nothing has grown."""
    value, clock = graph.outputs[source], flow.clock
    axes = [*flow.state(value).axes]
    if not all(clock.begun(value.type.shape[axis]) for axis in axes):
        return False
    # Each newest row on the way to it is one of a head then.
    live = wanted([value], flow)
    newest = [
        (operand, link.operand_axis)
        for node, results in graph.nodes
        if node in live
        for link in links(node, results)
        if link.kind == "newest" and (operand := node.args[link.operand])
    ]
    return all(
        clock.begun(x.type.shape[axis])
        for x, axis in newest
        if axis in flow.state(x).axes
    )


@dataclass(kw_only=True)
class LastRow:
    """The last row of a value along `axis` where `symbol` is 0: made of rows of its
    operands where nobody else needs all of it, else cut from it; `there` has what is
    made anyway. `whole` are the values that are needed with all their rows.
    """

    value: Value
    axis: int
    there: set[Node]
    symbol: str
    whole: list[Value] = field(default_factory=list)
    order: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Decide how far back rows are made again: each once, operands first."""
        seen: set[Row] = set()
        todo: list[tuple[Row, bool]] = [((self.value, self.axis), False)]
        while todo:
            row, done = todo.pop()
            if done:
                self.order.append(row)
            elif row not in seen:
                seen.add(row)
                rows, others = self._operands(row)
                self.whole += others if rows else [row[0]]
                if rows:
                    todo += [(row, True), *((r, False) for r in rows.values())]

    def _operands(self, row: Row) -> tuple[dict[int, Row], list[Value]]:
        """The rows that a row is made of, by operand, and what is read with all its rows;
        no rows where it is cut from its value.
        """
        value, axis = row
        node = value.node
        if node is None or node in self.there or isinstance(node.op, ops.Scan):
            return {}, []
        if (passed := self._passed(node, axis)) is not None:
            return {passed[0]: passed[1]}, []
        rows = self._same_row(node, row)
        return rows, [a for n, a in enumerate(node.args) if a and n not in rows]

    def _same_row(self, node: Node, row: Row) -> dict[int, Row]:
        """The operands of which the same row makes a row of a result. None where others
        are read for it, but through a mask, or where the op says how many rows have grown.
        """
        value, axis = row
        found = _links_to(node, value.index, axis)
        says = at_length(node.op, self.symbol, Dim.of(0)) != node.op
        if says or any(link.kind not in ("same", "band") for link in found):
            return {}
        length, rows = value.type.shape[axis], dict[int, Row]()
        for link in found:
            x, own = node.args[link.operand], link.operand_axis
            # one row for all is read as it is
            if x and link.kind == "same" and x.type.shape[own] == length:
                rows[link.operand] = x, own
        return rows

    def _passed(self, node: Node, axis: int) -> tuple[int, Row] | None:
        """The operand whose last row the last row of a result is, where rows are put side
        by side, or left away in front.
        """
        match node:
            case Node(ops.Slice(axis=n, stop=stop), (Value() as x,)) if n == axis:
                return (0, (x, axis)) if stop == x.type.shape[axis] else None
            case Node(ops.Concat(axis=n)) if n == axis:
                # the last part that has rows where nothing has grown
                for place, a in reversed([*enumerate(node.args)]):
                    if a and a.type.shape[axis].substitute({self.symbol: 0}) != 0:
                        return place, (a, axis)
        return None

    def build(self, b: Builder, now: Mapping[Value, Value]) -> Value:
        """The row, in a graph where these values stand for those of the whole one."""
        made: dict[Row, Value] = {}

        def last(row: Row) -> Value:
            if row not in made:
                value, axis = now[row[0]], row[1]
                rows = value.type.shape[axis]
                cut = ops.Slice(axis, rows - 1, rows)
                made[row] = value if rows == 1 else b.one(cut, value)
            return made[row]

        for row in self.order:
            node = row[0].node
            assert node is not None, "what is made again has a maker"
            rows, _ = self._operands(row)
            if self._passed(node, row[1]) is not None:
                (made[row],) = (last(r) for r in rows.values())
                continue
            args = [
                last(rows[n]) if n in rows else a and now[a]
                for n, a in enumerate(node.args)
            ]
            made[row] = b.add(node.op, *args)[row[0].index]
        return last((self.value, self.axis))


def _links_to(node: Node, result: int, axis: int) -> list[Link]:
    """The links to one axis of one result. The node may be none of its graph any more:
    its results are known by their types alone.
    """
    types = tuple(a.type if a else None for a in node.args)
    every = known(node.op, types, node.op.infer(*types))
    return [link for link in every if (link.result, link.result_axis) == (result, axis)]

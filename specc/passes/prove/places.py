"""Where padded rows stand on axes that hold others too: behind rows of a head, or before
a text that goes on from them.

    concat([memory, x])      behind the rows of `memory`, which are always there
    concat([prompt, x])      for padding of `prompt`: at the front, rows of `x` behind
    concat([memory, x])[:, m:]   at the front again

A length tells where: `m + n` has one place in a graph, or none where it has two.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from specc.ir import ops
from specc.ir.dim import Dim, total
from specc.ir.graph import Graph, Node, Value
from specc.ir.least import never_negative
from specc.ir.link import Link
from specc.ir.op import Op
from specc.ir.types import Type


@dataclass(frozen=True)
class Places:
    """The rows before padded ones, by the length of the axis; `rows` are those that may
    be padded, on the `side`; `least` bounds lengths from below.
    """

    rows: Dim
    least: Mapping[str, int]
    side: str
    before: Mapping[Dim, Dim] = field(default_factory=dict)

    @property
    def joined(self) -> frozenset[Dim]:
        """The lengths of axes that hold other rows too."""
        return frozenset(self.before) - {self.rows}

    def behind(self, length: Dim) -> Dim:
        """The rows behind those that may be padded."""
        if length not in self.before:
            return Dim.of(0)
        return length - self.rows - self.before[length]

    def among(self, length: Dim) -> bool:
        """Whether rows that exist stand on both sides of where padding may be counted:
        their numbers then do not all count it.
        """
        return length in self.joined

    def link(self, node: Node, link: Link) -> Link | None:
        """A link as it is for padded rows: those of a part go where the part goes, and
        of other rows none is read.
        """
        operand = node.args[link.operand]
        if operand is None or not _splices(node.op, link.operand_axis):
            return link
        length = operand.type.shape[link.operand_axis]
        if length not in self.before or link.kind != "all":
            return link
        if self._passes_by(node, self.before[length]):
            return None
        to = _result_of(node, link.operand, self.before[length])
        if to is None or self.before.get(to[0]) != to[1]:
            return link
        return replace(link, kind="same", result_axis=link.operand_axis)

    def _passes_by(self, node: Node, before: Dim) -> bool:
        """Whether rows are picked by number, and none of them may be padded."""
        match node.op:
            case ops.Slice(start=start, stop=stop):
                pass
            case ops.Index(at=at):
                start, stop = at, at + 1
            case _:
                return False
        # Of rows that may be padded on the left the last exists, on the right the first.
        first, last = int(self.side == "right"), int(self.side == "left")
        ends = before + first - stop, start - before - self.rows + last
        return any(never_negative(d, self.least) for d in ends)


def places_of(graph: Graph, keep: Value, side: str) -> Places:
    """The places of the rows of which `keep` says whether they exist."""
    rows = keep.type.shape[-1]
    before, twice = {rows: Dim.of(0)}, set[Dim]()
    for node, _ in graph.nodes:
        for length, place in _made(node, before, rows, graph.least):
            if before.setdefault(length, place) != place:
                twice.add(length)
    known = {d: p for d, p in before.items() if d not in twice}
    return Places(rows, graph.least, side, known)


def _made(
    node: Node, before: Mapping[Dim, Dim], rows: Dim, least: Mapping[str, int]
) -> Iterator[tuple[Dim, Dim]]:
    """The axis that a node makes of one with padded rows, and their place on it."""
    for n, operand in enumerate(node.args):
        axis = _axis(node.op)
        if axis is None or operand is None:
            return
        length = operand.type.shape[axis]
        to = _result_of(node, n, before[length]) if length in before else None
        # All rows that may be padded are still there.
        if to and all(never_negative(d, least) for d in (to[1], to[0] - to[1] - rows)):
            yield to


def _result_of(node: Node, operand: int, before: Dim) -> tuple[Dim, Dim] | None:
    """The length of the result's axis, and the rows before those that may be padded."""
    axis = _axis(node.op)
    types = [a.type for a in node.args if a]
    if axis is None:
        return None
    (made,) = node.op.infer(*types)
    match node.op:
        case ops.Concat():
            return made.shape[axis], before + _rows(types[:operand], axis)
        case ops.Pad(before=added):
            return made.shape[axis], before + added
        case ops.Slice(start=start):
            return made.shape[axis], before - start
    return None


def _rows(types: list[Type], axis: int) -> Dim:
    return total(t.shape[axis] for t in types)


def _axis(op: Op) -> int | None:
    match op:
        case ops.Concat(axis=axis) | ops.Slice(axis=axis) | ops.Index(axis=axis):
            return axis
        case ops.Pad(axis=axis, mode="constant"):
            return axis
    return None


def _splices(op: Op, axis: int) -> bool:
    return _axis(op) == axis

"""A portion of a grid of queries and keys, made again from portions of what it is made
of.

On entry: a value, its axis of queries and its axis of keys. Ops that read row for row
along both commute with taking rows, so `j <= i` over 32 queries and 95 keys is the
comparison of 32 row numbers with 95. What has one of the two axes, or is made in another
way, is a leaf: the caller says what stands for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Graph, Node, Value
from specc.ir.interval import EMPTY, Interval
from specc.ir.link import Link
from specc.ir.op import Op
from specc.ir.reach import known
from specc.ir.types import ShapeError
from specc.passes.prove.bands import band

Axes: TypeAlias = tuple[int | None, int | None]
"""Which axis of a value is that of the queries, and which that of the keys."""

Leaf: TypeAlias = Callable[[Value, Axes], Value]
"""What stands for a value that is not made again: rows of it."""


@dataclass(kw_only=True)
class Portion:
    """Grids over `queries` and `keys`, which are lengths, with `leaf` at their ends.

    `grids` are leaves that have both axes: as many numbers as the whole grid. With
    `one_axis` what has one of them is made again too, up to heavy ops that are no
    products. Weights are made again of some keys if their mask shows no others: where
    `q - k` of all that it shows lies `within` what is taken.
    """

    queries: Dim
    keys: Dim
    leaf: Leaf
    scope: str = ""
    one_axis: bool = False
    within: Interval = EMPTY
    builder: Builder = field(default_factory=Builder)
    grids: list[Value] = field(default_factory=list)
    _made: dict[tuple[Value, Axes], Value] = field(default_factory=dict)

    def of(self, value: Value, axes: Axes) -> Value:
        """The portion of one value."""
        todo = [(value, axes)]
        # An explicit stack: masks may be made of thousands of nodes.
        while todo:
            at = todo[-1]
            if at in self._made:
                todo.pop()
                continue
            operands = self._operands(*at)
            if operands is None:
                self._made[at] = self._end(*at)
                continue
            missing = [o for o in operands if o and o not in self._made]
            if missing:
                todo += missing
                continue
            made = [self._made[o] if o else None for o in operands]
            self._made[at] = self._again(*at, made) or self._end(*at)
        return self._made[value, axes]

    def graph(self, value: Value) -> Graph:
        """What makes a portion, as nodes to lower; what it reads is known outside."""
        return self.builder.finish("portion", {"portion": value})

    def _operands(
        self, value: Value, axes: Axes
    ) -> list[tuple[Value, Axes] | None] | None:
        """The operands, each with its axes of queries and keys; None for a leaf."""
        node = value.node
        there = [axis for axis in axes if axis is not None]
        if node is None or not self._opened(node.op, len(there)):
            return None
        links = _links(node, value.index)
        if self._whole(node, axes):
            return [_aligned(a) for a in node.args if a]
        if not all(_row_for_row(node.op, links, axis) for axis in there):
            return None
        return [
            None if a is None else (a, _axes(links, n, axes))
            for n, a in enumerate(node.args)
        ]

    def _opened(self, op: Op, axes: int) -> bool:
        """Whether the results of an op are made again that have so many of the two axes."""
        if isinstance(op, ops.Scan):
            return False
        return axes == 2 or (axes == 1 and self.one_axis and _light(op))

    def _whole(self, node: Node, axes: Axes) -> bool:
        """Whether these are weights of keys all of which are taken."""
        op = node.op
        if not isinstance(op, ops.MaskedSoftmax | ops.Hard | ops.Share):
            return False
        mask = op.mask(node)
        last = op.scores(node).type.rank - 1
        seen = band(mask, mask.type.rank - 2, mask.type.rank - 1)
        inside = self.within.lo <= seen.lo and seen.hi <= self.within.hi
        return inside and axes == (last - 1, last)

    def _end(self, value: Value, axes: Axes) -> Value:
        if axes == (None, None):
            return value
        if None not in axes:
            self.grids.append(value)
        return self.leaf(value, axes)

    def _again(
        self, value: Value, axes: Axes, operands: Sequence[Value | None]
    ) -> Value | None:
        """The node over other rows; None where the result is not the portion after all."""
        node = value.node
        assert node is not None, "what no node makes is a leaf"
        wanted = list(value.type.shape)
        for axis, length in zip(axes, (self.queries, self.keys), strict=True):
            if axis is not None:
                wanted[axis] = length
        op = node.op
        if isinstance(op, ops.Expand) and op.axis in axes:
            op = replace(op, length=wanted[op.axis])
        try:
            made = self.builder.add(op, *operands, scope=self.scope)[value.index]
        except ShapeError:
            return None
        return made if made.type.shape == tuple(wanted) else None


def _links(node: Node, result: int) -> list[Link]:
    """How one result of a node reads its operands."""
    types = tuple(a.type if a else None for a in node.args)
    found = known(node.op, types, node.op.infer(*types))
    return [link for link in found if link.result == result]


def _row_for_row(op: Op, links: Sequence[Link], axis: int) -> bool:
    """Whether rows along an axis of the result are made each of the same row alone."""
    own = [link for link in links if link.result_axis == axis]
    repeats = isinstance(op, ops.Expand) and op.axis == axis
    return all(link.kind == "same" for link in own) and bool(own or repeats)


def _aligned(operand: Value) -> tuple[Value, Axes]:
    """Scores or a mask, whose last two axes are queries and keys."""
    last = operand.type.rank - 1
    rows = (
        axis if operand.type.shape[axis] != 1 else None for axis in (last - 1, last)
    )
    query, key = rows
    return operand, (query, key)


def _light(op: Op) -> bool:
    return not op.heavy or isinstance(op, ops.MatMul | ops.Einsum)


def _axes(links: Sequence[Link], operand: int, axes: Axes) -> Axes:
    """The axes of an operand that become those of the result."""
    query, key = (None if a is None else _axis(links, operand, a) for a in axes)
    return query, key


def _axis(links: Sequence[Link], operand: int, axis: int) -> int | None:
    """The axis of an operand that becomes `axis` of the result; none where its one row
    is repeated.
    """
    return next(
        (
            link.operand_axis
            for link in links
            if link.operand == operand
            and link.result_axis == axis
            and link.kind == "same"
        ),
        None,
    )

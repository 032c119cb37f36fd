"""Whether an op that reads other rows sees nothing of those that are padded.

What it reads there must be surely zero, or surely low under a maximum or a softmax; or
it must never look there, because a mask hides them or because they all stand on the
side that it looks away from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.graph import Node
from specc.ir.link import Link
from specc.passes.prove.flow import resolve
from specc.passes.prove.padded import passes_over
from specc.passes.prove.rows import Rows

WEIGHTS = (ops.MaskedSoftmax, ops.Hard, ops.Share)
"""Ops with a mask whose result is weights: what they are given where the mask is false
is not looked at, not even to multiply it by zero.
"""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One link through which a result may depend on padded rows, with what is known of
    the operands, and the side on which padding may stand, maybe `among` rows that exist.
    """

    node: Node
    link: Link
    given: Sequence[Rows]
    side: str
    among: bool

    def clean(self) -> bool:
        """Whether the rows that exist in the result do not depend on padded rows
        through this link.
        """
        if passes_over(self.node, self.given):
            return True
        match self.link.kind:
            case "same" | "extent":
                # Row by row, what is padded stays where it is. An extent reads no row.
                return True
            case "newest":
                # Padding on the left ends before the newest row.
                newest = self.side == "left" and self.link.hi == 0
                return self._skipped() or newest
            case "window":
                # Padding on the right stands behind every row that exists: what only
                # looks back never meets it.
                back = self.side == "right" and self.link.lo >= 0
                return back or self._skipped() or self._window()
            case "strided":
                return self._strided()
            case "band":
                return self._band()
        return self._all()

    @property
    def _read(self) -> Rows:
        """What is known of the operand that is read."""
        return self.given[self.link.operand]

    @property
    def _zero(self) -> bool:
        return self.link.operand_axis in self._read.zero

    def _skipped(self) -> bool:
        """Whether a loop passes over every padded row: what it is told to keep implies
        that a row exists.
        """
        op = self.node.op
        return isinstance(op, ops.Scan) and op.masked and 1 in self.given[0].zero

    def _window(self) -> bool:
        if self.among:
            return isinstance(self.node.op, ops.CumSum) and self._zero
        match self.node.op:
            case ops.Delay(first=first):
                # Before the first row that exists a delay reads padding or `first`,
                # which must not differ.
                return self._zero and not first
            case ops.Conv() | ops.CumSum() | ops.AveragePool(counted=True):
                return self._zero
            case ops.MaxPool(dilation=dilation) if max(dilation) == 1:
                # A window of a row that exists holds one that does.
                return self.link.operand_axis in self._read.floor
        return False

    def _strided(self) -> bool:
        """Through a window behind which there are not as many rows."""
        if self.shifted:
            return False
        match op := self.node.op:
            case ops.KeepRows():
                return True
            case ops.Stride(start=start):
                # The first rows are others where padding stands before them.
                return to_the_end(self.node) and (start == 0 or self.side == "right")
            case ops.Conv() | ops.MaxPool() | ops.AveragePool():
                n = self.link.operand_axis - len(op.kernel)
                over = self.side != "left" and op.ends[n] > 0
                under = self.side != "right" and op.before[n] > 0
                return not (over or under) or self._window()
        return False

    @property
    def shifted(self) -> bool:
        """Whether padding on the left decides which rows a stride takes."""
        return (
            self.link.kind == "strided"
            and self.link.stride > 1
            and self.side != "right"
        )

    def _band(self) -> bool:
        """Through a mask that is false, or weights or values that are zero, at padded keys."""
        _, reach = resolve(self.node, self.link)
        if self.side == "right" and reach.lo >= 0:
            return True
        if any(g.key in self.given[g.operand].zero for g in self.link.gates):
            # Zero times what is no number is no number.
            return isinstance(self.node.op, WEIGHTS) or not self._read.broken
        if isinstance(self.node.op, ops.Weigh | ops.MatMul | ops.Einsum):
            return self._product()
        return False

    def _product(self) -> bool:
        """Whether one factor of a sum of products is zero at padded rows, and the
        others are numbers.
        """
        zero = {o for o, axes in enumerate(self._summed()) if self.given[o].zero & axes}
        others = [r for o, r in enumerate(self.given) if o not in zero]
        return bool(zero) and not any(r.broken for r in others)

    def _summed(self) -> list[set[int]]:
        """The axes of each operand of a sum of products along which it is summed."""
        match self.node.op:
            case ops.Weigh() | ops.MatMul():
                # [… m k] by [… k n]: the last axis of one, the last but one of the other.
                left, right = (a.type.rank for a in self.node.args if a)
                return [{left - 1}, {right - 2}]
            case ops.Einsum(equation=equation):
                terms = [t.split() for t in equation.split("->")[0].split(",")]
                name = terms[self.link.operand][self.link.operand_axis]
                return [{n for n, x in enumerate(t) if x == name} for t in terms]
        return []

    def _all(self) -> bool:
        """Through an op that reads every row of the axis."""
        rows, axis = self._read, self.link.operand_axis
        match self.node.op:
            case ops.Reduce(fn="sum" | "any"):
                return self._zero
            case ops.Reduce(fn="max"):
                return rows.covered(axis)
            case ops.Softmax():
                # Where no row is left, a softmax over low scores is 1/n, and n counts
                # padding.
                return axis in rows.low and axis in rows.peaks
            case ops.ArgMax():
                # Of equals it takes the first, which behind no padding exists.
                first = self.side == "right" or axis in rows.peaks
                return rows.covered(axis) and first
            case ops.Gather():
                return self.given[1].points
            case ops.Index(at=at):
                # Row 0 exists if padding stands on the right.
                return self.side == "right" and at.number == 0
            case ops.Einsum() | ops.MatMul():
                return self._product()
        return False


def to_the_end(node: Node) -> bool:
    """Whether a node takes every so many rows up to the last: then as many come out as
    windows that reach so far would give, and its rows exist where theirs do.
    """
    op, x = node.op, node.first
    return (
        isinstance(op, ops.Stride)
        and x is not None
        and op.stop == x.type.shape[op.axis]
    )

"""Whether an op that reads other rows sees nothing of those that are padded.

What it reads there must be surely zero, or surely low under a maximum or a softmax; or
it must never look there, because a mask hides them or because they all stand on the
side that it looks away from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from specc.ir import ops
from specc.ir.graph import Node
from specc.ir.link import Link
from specc.passes.prove.beyond import sorts_last
from specc.passes.prove.flow import resolve
from specc.passes.prove.held import in_order
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
        if self.side != "right" and self.link.operand_axis in self.read.ranked:
            return self._ranks()
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
        return _all(self) or self._later()

    @property
    def read(self) -> Rows:
        """What is known of the operand that is read."""
        return self.given[self.link.operand]

    @property
    def zero(self) -> bool:
        """Whether what is read is zero where it is padded."""
        return self.link.operand_axis in self.read.zero

    @property
    def held(self) -> float | None:
        """The number that is read wherever a row is padded, if it is one."""
        return self.read.held.get(self.link.operand_axis)

    def _ranks(self) -> bool:
        """Whether what goes along ranks, of which padded ones are the last, does not
        meet those.
        """
        if self.link.kind in ("same", "extent") or isinstance(self.node.op, ops.CumSum):
            return True
        return isinstance(self.node.op, ops.Reduce | ops.Sort) and _all(self)

    def _later(self) -> bool:
        """Whether padding stands on the right, behind every row that is looked at: of
        rows with themselves a query that exists reads keys before it.
        """
        to, reach = resolve(self.node, self.link)
        operand, key = self.node.args[self.link.operand], self.link.operand_axis
        if self.side != "right" or to is None or operand is None:
            return False
        if isinstance(self.node.op, ops.Gather):
            return False  # what it picks, its row numbers say
        gone = isinstance(self.node.op, ops.Reduce | ops.ArgMax) and to >= key
        shape = operand.type.shape
        return reach.lo >= 0 and shape[to + gone] == shape[key]

    def _skipped(self) -> bool:
        """Whether a loop passes over every padded row: what it is told to keep implies
        that a row exists.
        """
        op = self.node.op
        return isinstance(op, ops.Scan) and op.masked and 1 in self.given[0].zero

    def _window(self) -> bool:
        if self.among:
            return isinstance(self.node.op, ops.CumSum) and self.zero
        match self.node.op:
            case ops.Delay(first=first):
                # Before the first row that exists a delay reads padding or `first`,
                # which must not differ.
                return self.zero and not first
            case ops.Conv() | ops.CumSum() | ops.AveragePool(counted=True):
                return self.zero
            case ops.MaxPool(dilation=dilation) if max(dilation) == 1:
                # A window of a row that exists holds one that does.
                return self.link.operand_axis in self.read.floor
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
        if self.side == "right" and reach.lo >= 0 and self._among_themselves():
            return True
        if any(g.key in self.given[g.operand].zero for g in self.link.gates):
            # Zero times what is no number is no number.
            sound = self.held is not None or not self.read.broken
            return isinstance(self.node.op, WEIGHTS) or sound
        if isinstance(self.node.op, ops.MaskedSoftmax) and _low_scores(self):
            return True
        if isinstance(self.node.op, ops.Weigh | ops.MatMul | ops.Einsum):
            return _product(self)
        return False

    def _among_themselves(self) -> bool:
        """Whether queries and keys are rows of one axis: only then does a key before a
        query that exists exist, too.
        """
        operand, to = self.node.args[self.link.operand], self.link.result_axis
        if operand is None or to is None:
            return False
        types = self.node.op.infer(*(a.type if a else None for a in self.node.args))
        made = types[self.link.result].shape[to]
        return made == operand.type.shape[self.link.operand_axis]


def _low_scores(reading: Reading) -> bool:
    """Whether the scores of a masked softmax are minus infinity at padded keys."""
    scores = reading.node.first
    last = scores.type.rank - 1 if scores else 0
    return reading.given[0].held.get(last) == -inf


def _product(reading: Reading) -> bool:
    """Whether one factor of a sum of products is zero at padded rows, and the
    others are numbers.
    """
    zero = {
        o for o, axes in enumerate(_summed(reading)) if reading.given[o].zero & axes
    }
    others = [r for o, r in enumerate(reading.given) if o not in zero]
    return bool(zero) and not any(r.broken for r in others)


def _summed(reading: Reading) -> list[set[int]]:
    """The axes of each operand of a sum of products along which it is summed."""
    match reading.node.op:
        case ops.Weigh() | ops.MatMul():
            # [… m k] by [… k n]: the last axis of one, the last but one of the other.
            left, right = (a.type.rank for a in reading.node.args if a)
            return [{left - 1}, {right - 2}]
        case ops.Einsum(equation=equation):
            terms = [t.split() for t in equation.split("->")[0].split(",")]
            name = terms[reading.link.operand][reading.link.operand_axis]
            return [{n for n, x in enumerate(t) if x == name} for t in terms]
    return []


def _reduced(reading: Reading, fn: str) -> bool:
    """Whether what stands where rows are padded makes no difference to a reduction."""
    match fn:
        case "sum" | "any":
            return reading.zero
        case "max":
            return reading.read.covered(reading.link.operand_axis)
        case "min":
            return reading.held == inf
        case "all":
            return reading.held == 1
    return False


def _all(reading: Reading) -> bool:
    """Through an op that reads every row of the axis."""
    rows, axis = reading.read, reading.link.operand_axis
    match reading.node.op:
        case ops.Reduce(fn=fn):
            return _reduced(reading, fn)
        case ops.Sort(axis=along):
            number = reading.held
            last = number is not None and sorts_last(reading.node, number)
            return last and along == axis
        case ops.Softmax():
            # Where no row is left, a softmax over low scores is 1/n, and n counts
            # padding.
            return axis in rows.low and axis in rows.peaks
        case ops.ArgMax():
            # Of equals it takes the first, which behind no padding exists.
            first = reading.side == "right" or axis in rows.peaks
            return rows.covered(axis) and first
        case ops.Gather():
            return reading.given[1].points or in_order(reading.node, reading.given)
        case ops.Index(at=at):
            # Row 0 exists if padding stands on the right.
            return reading.side == "right" and at.number == 0
        case ops.Einsum() | ops.MatMul():
            return _product(reading)
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

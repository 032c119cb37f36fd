"""What is asked of a value or a node: rows along its time axes; and which ops go on from
a state.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from math import ceil, inf

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.heads import Track
from specc.ir.ops.recurrent import KEEP, ROWS
from specc.passes.prove.flow import Flow
from specc.passes.prove.spliced import is_first

NEWEST = -1.0
"""The need for the newest row only."""

FOLDS = (ops.CumSum, ops.Rnn, ops.Gru, ops.Lstm, ops.Scan)
"""Ops that read every earlier row through a state that is carried on. What picks the
first row does so too.
"""

ROWS_AXIS = 1
"""Recurrent layers read [batch, rows, features]."""

Axis = Hashable
Needs = Mapping[Value, Mapping[int, float]]


@dataclass(frozen=True)
class Asked:
    """What one node is asked for: the rows of each axis name, and which axes of
    operands and results bear it.
    """

    rows: Mapping[Axis, float]
    operands: tuple[Mapping[int, Axis], ...]
    results: tuple[Mapping[int, Axis], ...]


@dataclass(frozen=True)
class Setting:
    """What a demand is made for: the graph and its flow, values that are kept, those
    whose rows cost nothing.

    Unless it is `bounded`, an attention through a window keeps all rows, as readers of
    such caches may expect.
    """

    graph: Graph
    flow: Flow
    kept: Collection[Value] = ()
    free: Collection[Value] = ()
    bounded: bool = True

    def times(self, value: Value | None) -> tuple[int, ...]:
        """The time axes of a value."""
        return tuple(sorted(self.flow.state(value).axes)) if value else ()

    def track(self, value: Value, axis: int) -> Track:
        """The rows of a time axis of a value."""
        found = self.flow.clock.track(value.type.shape[axis])
        assert found is not None, "a time axis has rows that grow"
        return found

    def head(self, value: Value, axis: int) -> Dim:
        """How many rows stand before those that grow along a time axis of a value."""
        return self.track(value, axis).head

    def folds(self, node: Node, results: tuple[Value, ...]) -> bool:
        """Whether the node goes on from a state; what is free is computed anew from its
        first row.
        """
        if any(r in self.free for r in results):
            return False
        if is_first(node, self.flow.clock):
            return self._moves(node)
        if not isinstance(node.op, FOLDS):
            return False
        if isinstance(node.op, ops.CumSum) and len(self.times(node.first)) > 1:
            return False  # over the keys of a grid, all of which are there in each step
        return any(
            along(node, a) is not None for a in range(min(2, len(node.args)))
        ) and self._moves(node)

    def _moves(self, node: Node) -> bool:
        x, axis = folded(node)
        return axis in self.times(x)


def whole_chunks(need: float, track: Track) -> float:
    """A need that can be met of rows that come in chunks: of what a chunk brings as many
    rows as are wanted, of what several bring all.

    So the number of rows is always that of the chunks times another, and windows that
    move by strides find them as they would in the full pass.
    """
    if track.rate == 1 or need <= 0 or need == inf:
        return need
    if track.head.number is None:
        return inf  # of nothing else is known whether some of it are rows of the head
    lacking = need - track.head.number
    if lacking <= track.rate:
        return need
    return track.head.number + ceil(lacking / track.rate) * track.rate


def folded(node: Node) -> tuple[Value, int]:
    """The operand whose rows a fold reads one after the other, and their axis."""
    match node.op:
        case ops.Slice(axis=axis) | ops.Index(axis=axis):
            x = node.first
            assert x is not None
            return x, axis
        case ops.Scan(axis=axis):
            return node.op.row(node), axis
        case ops.CumSum(axis=axis):
            x = node.first
            assert x is not None
            return x, axis
    return ROWS(node), ROWS_AXIS


def along(node: Node, operand: int) -> int | None:
    """The axis of an operand that a fold runs along; None for what it does not read row by row."""
    match node.op:
        case ops.Scan(axis=axis, scanned=scanned, first=first):
            if operand < first:
                return ROWS_AXIS  # `keep` is [batch, rows] whatever is looped over
            return axis if operand < first + scanned else None
        case ops.CumSum(axis=axis):
            return axis if operand == 0 else None
        case ops.Slice(axis=axis) | ops.Index(axis=axis):
            return axis
        case ops.Rnn() | ops.Gru() | ops.Lstm():
            return ROWS_AXIS if operand in (ROWS.place, KEEP.place) else None
    return None

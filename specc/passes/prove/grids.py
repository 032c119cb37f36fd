"""A value seen as a grid over the rows of a query and of a key, and the views through
which it is followed.

On entry: a value, and which of its axes are those rows. A view moves axes about, so what
is behind it is the same grid with its axes elsewhere: `[n, n]` behind an `insert` at 0 is
seen along its axes 0 and 1 where the result is seen along 1 and 2.
"""

from dataclasses import dataclass, field

from specc.ir import ops
from specc.ir.graph import Value
from specc.ir.types import Type

MOST_STEPS = 5_000
MOST_DEPTH = 200


@dataclass
class Budget:
    """How much of a graph is looked at for one band, so that no graph makes it slow."""

    steps: int = MOST_STEPS


@dataclass(frozen=True, slots=True)
class Grid:
    """A value seen as a grid: which of its axes are the query's and the key's rows, if
    they are its own.
    """

    value: Value
    query: int | None
    key: int | None
    budget: Budget = field(default_factory=Budget, compare=False)
    depth: int = field(default=0, compare=False)

    def at(self, operand: Value, query: int | None, key: int | None) -> "Grid":
        """An operand with its axes; one of length 1 is repeated, hence no axis of rows."""
        return Grid(
            operand,
            _proper(operand, query),
            _proper(operand, key),
            self.budget,
            self.depth + 1,
        )

    def spent(self) -> bool:
        """Whether to give up here."""
        self.budget.steps -= 1
        return self.budget.steps < 0 or self.depth > MOST_DEPTH


def grid_of(value: Value, query: int | None, key: int | None) -> Grid:
    """A value with its axes, and a budget of its own."""
    return Grid(value, _proper(value, query), _proper(value, key))


def _proper(value: Value, axis: int | None) -> int | None:
    if axis is None or not 0 <= axis < value.type.rank or value.type.shape[axis] == 1:
        return None
    return axis


def through(grid: Grid) -> Grid | None:
    """The operand of an op that only moves axes about, or works along another axis;
    None for other ops.
    """
    node = grid.value.node
    x = node.first if node is not None else None
    if node is None or x is None:
        return None
    q, k = grid.query, grid.key
    match node.op:
        case ops.Insert(axis=axis):
            return grid.at(x, _removed(q, axis), _removed(k, axis))
        case ops.Squeeze(axis=axis) | ops.Index(axis=axis):
            return grid.at(x, added(q, axis), added(k, axis))
        case ops.Transpose(order=order):
            query = None if q is None else order[q]
            return grid.at(x, query, None if k is None else order[k])
        case ops.Expand(axis=axis):
            # Along the axis that was repeated there was one row, the same for all.
            return grid.at(x, None if q == axis else q, None if k == axis else k)
        case ops.Slice(axis=axis) | ops.Stride(axis=axis) if axis not in (q, k):
            return grid.at(x, q, k)
        case ops.Cast() if not _rounds(x.type, grid.value.type):
            return grid.at(x, q, k)
    return None


def _rounds(given: Type, to: Type) -> bool:
    """Whether a cast makes whole numbers of fractions: 0.5 becomes 0, which is false."""
    return given.dtype.startswith(("f", "bf")) and to.dtype in ("i64", "i32")


def _removed(axis: int | None, inserted: int) -> int | None:
    return None if axis is None or axis == inserted else axis - (axis > inserted)


def added(axis: int | None, removed: int) -> int | None:
    """An axis counted in a value that has one more, at `removed`."""
    return None if axis is None else axis + (axis >= removed)


def aligned(grid: Grid, operand: Value) -> Grid:
    """An operand whose axes are aligned with the result's from the right."""
    shift = grid.value.type.rank - operand.type.rank
    query = None if grid.query is None else grid.query - shift
    key = None if grid.key is None else grid.key - shift
    return grid.at(operand, query, key)

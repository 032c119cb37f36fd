"""View a value as a grid over query and key positions, through views and broadcasts.

Input: a value and its query and key axes. A view moves axes, so its operand is the same grid
with other axis indices: a value `[n, n]` before an `insert` at 0 is seen along its axes 0 and 1,
the result along 1 and 2.

Recursive rules over grids are generators: a rule yields the questions whose answers it needs,
receives them, and returns its own answer. `solve_memoized` evaluates them on a stack of its own,
so that graphs may be arbitrarily deep, once each: a chain of thirty `where` nodes, each reading
its predecessor twice, needs thirty answers instead of 2^30, and within a budget.
"""

from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

from specc.analysis.time_axis import TimeAxis
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node, Value
from specc.ir.types import Type

GridSide: TypeAlias = Literal["keys", "queries"]
"""Whether prefix queries or prefix keys are excluded."""


@dataclass(frozen=True, slots=True)
class QueryKeyGrid:
    """A value seen as a grid, with its query and key axes if it has them.

    With a `clock` positions are counted in time, from the end of the prefix. Positions before
    time 0 of one `side` are ignored.
    """

    value: Value
    query: int | None
    key: int | None
    clock: TimeAxis | None = field(default=None, compare=False)
    side: GridSide = field(default="keys", compare=False)

    def at(self, operand: Value, query: int | None, key: int | None) -> "QueryKeyGrid":
        """Return an operand with these axes; an axis of length 1 is broadcast and dropped."""
        return replace(
            self,
            value=operand,
            query=_keep_axis_of(operand, query),
            key=_keep_axis_of(operand, key),
        )

    def operands(self) -> list["QueryKeyGrid"]:
        """Return the operands of its op, aligned from the right (broadcasting)."""
        node = self.value.node
        return [align_operand(self, a) for a in node.operands] if node else []

    def head(self, axis: int) -> Dim | None:
        """Return the number of prefix positions along an axis; None if it is not a time axis."""
        if self.clock is None:
            return Dim.of(0)
        return self.clock.get_prefix_length(self.value.shape[axis])


def has_equal_rates(grid: QueryKeyGrid) -> bool:
    """Return True if both axes gain equally many positions per chunk: `q - k` is defined."""
    if grid.clock is None:
        return True
    shape = grid.value.shape
    axes = [a for a in (grid.query, grid.key) if a is not None]
    return len({grid.clock.get_rate(shape[axis]) for axis in axes} - {0}) < 2


def make_grid(
    value: Value, query: int | None, key: int | None, clock: TimeAxis | None = None
) -> QueryKeyGrid:
    """Return a value as a grid over a query and a key axis."""
    return QueryKeyGrid(value, _keep_axis_of(value, query), _keep_axis_of(value, key), clock)


def _keep_axis_of(value: Value, axis: int | None) -> int | None:
    if axis is None or not 0 <= axis < value.rank or value.shape[axis] == 1:
        return None
    return axis


def follow_view(grid: QueryKeyGrid) -> QueryKeyGrid | None:
    """Return the operand of an op that moves axes or works along another axis, or None."""
    node = grid.value.node
    x = node.first if node is not None else None
    if node is None or x is None:
        return None
    q, k = grid.query, grid.key
    match node.op:
        case ops.Insert(axis):
            return grid.at(x, _remove_inserted_axis(q, axis), _remove_inserted_axis(k, axis))
        case ops.Squeeze(axis) | ops.Index(axis) | ops.Last(axis):
            return grid.at(x, shift_axis(q, axis), shift_axis(k, axis))
        case ops.Transpose(order):
            query, key = (None if a is None else order[a] for a in (q, k))
            return grid.at(x, query, key)
        case ops.Expand(axis):
            # Along a broadcast axis there was one position, the same for all.
            query, key = (None if a == axis else a for a in (q, k))
            return grid.at(x, query, key)
        case ops.Split(axis, sizes):
            return _match_reshape(grid, x, axis, len(sizes), 1)
        case ops.Merge(axis, count):
            return _match_reshape(grid, x, axis, 1, count)
    return grid.at(x, q, k) if _is_transparent_view(grid, node, x) else None


def is_mirrored_pair(left: QueryKeyGrid, right: QueryKeyGrid) -> bool:
    """Return True if both sides are the same value at the query's and the key's position, as in
    `segment[:, i] == segment[:, j]`: equal for a position and itself.
    """
    a, b = _follow_grid_views(left), _follow_grid_views(right)
    apart = (a.query is None) != (a.key is None)
    return a.value is b.value and (a.query, a.key) == (b.key, b.query) and apart


def _follow_grid_views(grid: QueryKeyGrid) -> QueryKeyGrid:
    while (inner := follow_view(grid)) is not None:
        grid = inner
    return grid


def _match_reshape(
    grid: QueryKeyGrid, x: Value, axis: int, made: int, read: int
) -> QueryKeyGrid | None:
    """Return the grid of `x`, of which `read` axes at `axis` became `made`; None if one of them is
    the query or key axis.
    """
    rows = [a for a in (grid.query, grid.key) if a is not None]
    if any(axis <= a < axis + made for a in rows):
        return None
    query, key = (a if a is None or a < axis else a - made + read for a in (grid.query, grid.key))
    return grid.at(x, query, key)


def _is_transparent_view(grid: QueryKeyGrid, node: Node, x: Value) -> bool:
    """Return True if a node keeps the axes of the grid and its values."""
    match node.op:
        case ops.Slice(axis) | ops.Stride(axis) if axis not in (grid.query, grid.key):
            return True
        case ops.Slice():
            return _is_time_preserving_slice(grid, node.op)
        case ops.Cast():
            return not _is_rounding_cast(x.type, grid.value.type)
    return False


def _is_time_preserving_slice(grid: QueryKeyGrid, op: ops.Slice) -> bool:
    """Return True if a slice drops prefix positions only, so that time `t` stays time `t`."""
    node = grid.value.node
    x = node.first if node is not None else None
    if grid.clock is None or x is None or op.stop != x.shape[op.axis]:
        return False
    # Both lengths must have a head: they differ by what was sliced off.
    lengths = x.shape[op.axis], grid.value.shape[op.axis]
    return None not in [grid.clock.get_prefix_length(n) for n in lengths]


def split_concat(grid: QueryKeyGrid) -> list[QueryKeyGrid] | None:
    """Return the parts of a concatenation along the query or key axis; None for other ops.

    The part with the time axis keeps its times. Prefix parts get no query or key axis, since they
    have no time; on the side that does not read prefix positions they are left out.
    """
    node = grid.value.node
    if node is None or not isinstance(node.op, ops.Concat) or grid.clock is None:
        return None
    axis = node.op.axis
    if axis not in (grid.query, grid.key):
        return None
    hidden = axis == (grid.key if grid.side == "keys" else grid.query)
    parts = []
    for part in node.args:
        assert part is not None, "a concatenation has no optional operands"
        if grid.clock.get_prefix_length(part.shape[axis]) is not None:
            parts.append(grid.at(part, grid.query, grid.key))
        elif not hidden:
            query, key = (None if n == axis else n for n in (grid.query, grid.key))
            parts.append(grid.at(part, query, key))
    return parts


def _is_rounding_cast(given: Type, to: Type) -> bool:
    """Return True for a cast from float to integer: 0.5 becomes 0, which is false."""
    return given.dtype.startswith(("f", "bf")) and to.dtype in ("i64", "i32")


def _remove_inserted_axis(axis: int | None, inserted: int) -> int | None:
    return None if axis is None or axis == inserted else axis - (axis > inserted)


def shift_axis(axis: int | None, removed: int) -> int | None:
    """Return the index of an axis in a value that has one more axis, at `removed`."""
    return None if axis is None else axis + (axis >= removed)


def align_operand(grid: QueryKeyGrid, operand: Value) -> QueryKeyGrid:
    """Return an operand with its axes aligned to the result's from the right (broadcasting)."""
    shift = grid.value.rank - operand.rank
    query = None if grid.query is None else grid.query - shift
    key = None if grid.key is None else grid.key - shift
    return grid.at(operand, query, key)


MAX_TRAVERSAL_STEPS = 50_000
"""Maximum number of queries about one grid before the proof gives up."""

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")
TraversalRule: TypeAlias = Callable[[Q], Generator[Q, A, A]]


@dataclass
class TraversalBudget:
    """A limit on the number of values inspected for one band."""

    steps: int = MAX_TRAVERSAL_STEPS

    @property
    def spent(self) -> bool:
        """True once more values were requested than the budget allows."""
        return self.steps < 0

    def take(self) -> bool:
        """Count a query against the budget; return whether it may be evaluated."""
        self.steps -= 1
        return not self.spent


def solve_memoized(
    question: Q, rule: TraversalRule[Q, A], known: dict[Q, A], budget: TraversalBudget, otherwise: A
) -> A:
    """Return the answer to a question, and store in `known` the answers to all questions it asked.
    Beyond the budget the answer is `otherwise`, which must hold of every value.
    """
    if question in known:
        return known[question]
    if not budget.take():
        return otherwise
    # A stack of open queries, each above the one that asked it. `given` is sent to the top; a new
    # generator takes nothing yet.
    open_ = [(question, rule(question))]
    given, fresh = otherwise, True
    while open_:
        here, work = open_[-1]
        try:
            asked = next(work) if fresh else work.send(given)
        except StopIteration as done:
            known[here] = given = done.value
            open_.pop()
            fresh = False
            continue
        fresh = asked not in known and budget.take()
        if fresh:
            open_.append((asked, rule(asked)))
        else:
            given = known.get(asked, otherwise)
    return known[question]


def solve_each(questions: Iterable[Q]) -> Generator[Q, A, list[A]]:
    """Return the answers to several questions, for a rule that needs them all."""
    answers: list[A] = []
    for question in questions:
        answers.append((yield question))
    return answers


def solve_any(questions: Iterable[Q]) -> Generator[Q, bool, bool]:
    """Return True if the answer to any question is; the rest is not asked then."""
    for question in questions:
        if (yield question):
            return True
    return False


def solve_all(questions: Iterable[Q]) -> Generator[Q, bool, bool]:
    """Return True if the answers to all questions are; the rest is not asked otherwise."""
    for question in questions:
        if not (yield question):
            return False
    return True

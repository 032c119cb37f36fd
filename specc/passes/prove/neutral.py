"""Ops that read every key of a grid, and to which those that a mask hid make no difference.

On entry: a node that reads an axis whole, as a sum over keys does, and that link. On
leaving: the axis of the result along which it goes row by row all the same, and the
interval of `q - k` within which keys matter. What a grid holds at the others, `beyond`
says; here stands which number does not count for which op.

    sum                     0
    max, argmax             what no element is below: -inf, or 0 among weights
    softmax                 -inf
    sort                    what comes last in its order
    topk                    -inf, of which steps put more behind what there is
    gather                  any number, so long as every row that is picked exists

Equal numbers are told apart by their place, the lower first, so that `argmax` and `sort`
find what is shown before what is hidden behind it. Of hidden ones `topk` takes those of
the lowest numbers, which more keys do not change.
"""

from collections.abc import Iterable

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.heads import Clock
from specc.ir.interval import ALL, Interval
from specc.ir.link import Link
from specc.passes.prove.bands import narrowed
from specc.passes.prove.beyond import beyond, since, sorts_last
from specc.passes.prove.extremes import extremes
from specc.passes.prove.grids import added, grid_of, through
from specc.passes.prove.pairs import Pairs

Through = tuple[int, Interval]
"""An axis of the result, and which keys matter to its rows."""


def neutral(node: Node, link: Link, clock: Clock | None = None) -> Iterable[Through]:
    """The axes of the result along which what is hidden does not count."""
    x = node.args[link.operand]
    if x is None or link.kind != "all":
        return
    key = link.operand_axis
    for query, length in enumerate(x.type.shape):
        # The batch is no query, whatever a mask says of keys alone.
        timed = clock.head(length) is not None if clock else length == x.type.shape[key]
        if query != key and timed:
            reach = _reach(node, link, beyond(x, query, key, clock), clock)
            if reach != ALL:
                yield _result_axis(node, query, key), reach
    if isinstance(node.op, ops.Gather) and link.operand == ops.Gather.table.place:
        yield from _pointed(node, node.op.axis, key, clock)


def _result_axis(node: Node, query: int, key: int) -> int:
    gone = isinstance(node.op, ops.Reduce | ops.ArgMax) and query > key
    return query - gone


def _reach(node: Node, link: Link, pairs: Pairs, clock: Clock | None) -> Interval:
    """Which keys matter to an op, of a grid that holds these numbers elsewhere."""
    if not pairs:
        return ALL
    ordinary = [i for n, i in pairs.items() if _counts_for_nothing(node, n)]
    reach = ALL
    for interval in ordinary:
        reach = narrowed(reach, interval, clock)
    match node.op:
        case ops.Gather(axis=axis):
            own = link.operand == ops.Gather.table.place and axis == link.operand_axis
            return since(reach) if own and _rows_exist(node) else ALL
        case ops.Sort(axis=axis) | ops.Softmax(axis=axis) | ops.TopK(axis=axis) if (
            axis != link.operand_axis
        ):
            return ALL
        case ops.Sort() | ops.ArgMax() | ops.TopK():
            # Row numbers count from the first: all rows are wanted.
            return ALL if reach == ALL else since(reach)
    return reach


def _counts_for_nothing(node: Node, number: float) -> bool:
    """Whether more of a number leaves a result as it is."""
    least, most = extremes(node.first)
    match node.op:
        case ops.Reduce(fn="sum" | "any"):
            return number == 0
        case ops.Reduce(fn="all"):
            return number == 1
        case ops.Reduce(fn="max") | ops.ArgMax():
            return number <= least
        case ops.Reduce(fn="min"):
            return number >= most
        case ops.Softmax():
            return number == -ALL.hi
        case ops.Sort():
            return sorts_last(node, number)
        case ops.TopK(largest=largest):
            # Where fewer are shown than are taken, hidden ones are, the first of them.
            return number == (-ALL.hi if largest else ALL.hi)
    return isinstance(node.op, ops.Gather)


def _picked(ids: Value | None) -> Value | None:
    """The row numbers behind views that only move them about."""
    while ids and ids.node and ids.node.op.view and ids.node.first:
        if isinstance(ids.node.op, ops.Extent):
            break
        ids = ids.node.first
    return ids


def _rows_exist(node: Node) -> bool:
    """Whether what a gather picks are numbers of rows of an axis as long as its own."""
    op, table = node.op, node.first
    assert isinstance(op, ops.Gather)
    ids = _picked(ops.Gather.ids(node))
    if table is None or ids is None or ids.node is None or ids.node.first is None:
        return False
    match ids.node.op:
        case ops.Sort(axis=axis) if ids.index == 1:
            pass
        case ops.ArgMax(axis=axis):
            pass
        case _:
            return False
    return ids.node.first.type.shape[axis] == table.type.shape[op.axis]


def _pointed(node: Node, axis: int, key: int, clock: Clock | None) -> Iterable[Through]:
    """Rows picked by the greatest of a grid: one that its mask shows, or the first."""
    if axis != key or not _rows_exist(node):
        return
    ids = ops.Gather.ids(node)
    grid = grid_of(ids, axis, None)
    while (inner := through(grid)) is not None:
        grid = inner
    made = grid.value.node
    if made is None or made.first is None or grid.query is None:
        return
    match made.op:
        case ops.ArgMax(axis=over):
            query = added(grid.query, over)
            assert query is not None
            for number, reach in beyond(made.first, query, over, clock).items():
                if _counts_for_nothing(made, number) and not reach.empty:
                    yield axis, Interval(min(reach.lo, 0), ALL.hi)

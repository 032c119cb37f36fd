"""Scores that are low on purpose: which rows a softmax or a maximum skips, and whether
any row is left that it does not.

Low is -1e30 and below; a floor is lower than every row that exists, whatever those
hold, such as -1 for row numbers. Either is worth something only as long as nothing
ordinary was made as low: `wild` values may be, at rows that exist, `stained` ones at
padded rows.
"""

from collections.abc import Generator, Iterable, Iterator

from specc.ir import ops
from specc.ir.graph import Node
from specc.passes.prove.bands import band_of
from specc.passes.prove.grids import Grid, aligned, through
from specc.passes.prove.once import Budget, answered
from specc.passes.prove.seen import least_of, number_or_infinity
from specc.passes.prove.standing import Standing

LOW = -1e30
"""What is at most this is taken for minus infinity: no number a model computes in f32
with any accuracy left.
"""

TAMED = (
    *(ops.Softmax, ops.MaskedSoftmax, ops.Hard, ops.Share),
    *(ops.Compare, ops.ArgMax, ops.Extent),
)
"""Ops whose results are ordinary numbers whatever they are given; so are these
functions of `Pointwise`.
"""

TAMING = ("exp", "sigmoid", "tanh")


def low(standing: Standing, axis: int) -> bool:
    """Whether a result is very low where `axis` is padded."""
    fallen = standing.at("low", axis)
    match standing.node.op:
        case ops.Where():
            return standing.at("zero", axis)[0] and _filled(standing) <= LOW
        case ops.Arith(fn="sub"):
            # What is low stays so less an ordinary number. Less another low one it is
            # about 0: `s - max(s)` where a whole row of scores is hidden.
            return fallen[0] and _plain(standing, 1, axis)
        case ops.Arith(fn="add"):
            one = fallen[0] and _plain(standing, 1, axis)
            return one or (fallen[1] and _plain(standing, 0, axis))
        case ops.Cast(to=to):
            # Whole numbers do not go as low.
            return fallen[0] and to.startswith(("f", "bf"))
    return standing.node.op.view and any(fallen)


def _filled(standing: Standing) -> float:
    """The number that a `where` puts where its condition is false; infinity, which is
    not low, where none is seen.
    """
    number = number_or_infinity(ops.Where.no(standing.node))
    return float("inf") if number is None else number


def _plain(standing: Standing, n: int, axis: int) -> bool:
    """Whether an operand holds ordinary numbers, where `axis` is padded too."""
    rows = standing.given[n]
    if rows.wild or rows.broken:
        return False
    return not (rows.stained and standing.along(axis)[n])


def floor(standing: Standing, axis: int) -> bool:
    """Whether what stands where `axis` is padded is less than at every row that
    exists, or equal to what hides.
    """
    if not isinstance(standing.node.op, ops.Where):
        return standing.node.op.view and any(standing.at("floor", axis))
    filled, least = _filled(standing), least_of(ops.Where.yes(standing.node))
    # -1 is enough below `arange(n)`, whose least is 0.
    below = filled <= LOW or (least is not None and filled < least)
    return standing.at("zero", axis)[0] and below and not standing.given[1].wild


def peaks(standing: Standing, axes: Iterable[int]) -> Iterator[int]:
    """Axes along which at least one row that exists surely holds an ordinary number."""
    match standing.node.op:
        case ops.Where() if not standing.given[1].wild:
            yield from _shown(standing, axes)
        case ops.Arith(fn="add" | "sub"):
            # With one wild side, where that has its peak; with both, the peaks may
            # stand at different rows.
            wild = [r.wild for r in standing.given]
            if not all(wild):
                side = wild.index(True) if any(wild) else 0
                yield from (a for a in axes if standing.at("peaks", a)[side])
        case op if op.view or isinstance(op, ops.Cast):
            yield from (a for a in axes if any(standing.at("peaks", a)))


def _shown(standing: Standing, axes: Iterable[int]) -> Iterator[int]:
    """Axes along which the condition of a `where` shows at least one row that
    exists, itself if no other.
    """
    found = sorted(axes)
    # Scores of a sequence with itself have the padded axis twice, first as queries:
    # under `causal & keep` each row still sees itself.
    pairs = len(found) == 2 and _condition(standing, found[0], found[1])
    if shows_all(standing) or pairs:
        yield from found


def shows_all(standing: Standing) -> bool:
    """Whether a result is what a `where` takes at every row that exists."""
    is_where = isinstance(standing.node.op, ops.Where)
    return is_where and _condition(standing, None, None)


def _condition(standing: Standing, query: int | None, key: int | None) -> bool:
    condition = ops.Where.condition(standing.node)
    grid = aligned(Grid(standing.value, query, key), condition)
    return surely(standing, grid)


def surely(standing: Standing, grid: Grid) -> bool:
    """Whether a mask is surely true at rows that exist, between a row and itself if
    it compares rows.
    """

    def rule(grid: Grid) -> Generator[Grid, bool, bool]:
        node = grid.value.node
        if grid.value is standing.keep:
            return True
        # A mask that is an input may be false anywhere.
        if node is None:
            return False
        if (inner := through(grid)) is not None:
            return (yield inner)
        operands = [aligned(grid, a) for a in node.args if a]
        match node.op:
            case ops.Constant(value=value):
                return bool(value)
            case ops.And() | ops.Concat():
                for operand in operands:
                    if not (yield operand):
                        return False
                return True
            case ops.Or():
                return (yield operands[0]) or (yield operands[1])
            case ops.Compare(fn="eq" | "le" | "ge") if _mirrored(*operands):
                return True
        # `i - j >= 0` and the like: a comparison whose opposite leaves out the distance
        # 0.
        compares = grid.query is not None and grid.key is not None
        return compares and 0 not in band_of(grid, negated=True)

    return answered(grid, rule, {}, Budget(), False)


def _mirrored(left: Grid, right: Grid) -> bool:
    """Whether two sides are one value, seen at the query's row and at the key's: of
    `segment[:, i] == segment[:, j]` a row and itself have the same.
    """
    a, b = _within(left), _within(right)
    apart = (a.query is None) != (a.key is None)
    return a.value is b.value and (a.query, a.key) == (b.key, b.query) and apart


def _within(grid: Grid) -> Grid:
    while (inner := through(grid)) is not None:
        grid = inner
    return grid


def wild(standing: Standing) -> bool:
    """Whether rows that exist may hold numbers that are low on purpose."""
    given = standing.given
    match standing.node.op:
        case ops.Where():
            # The low side is never taken at rows that exist under `keep` alone; under
            # `causal` it is.
            return given[1].wild or (given[2].wild and not shows_all(standing))
        case ops.Reduce(fn="max", axis=axis):
            # One ordinary row is the greatest; it hides those that are low.
            return given[0].wild and axis not in given[0].peaks
    if _low_itself(standing.node):
        return True
    return not _tamed(standing.node) and any(r.wild for r in given)


def stained(standing: Standing) -> bool:
    """Whether any row may hold such numbers."""
    if _low_itself(standing.node):
        return True
    return not _tamed(standing.node) and any(r.stained for r in standing.given)


def _low_itself(node: Node) -> bool:
    """Whether a number is written down that is low, or would be with a minus before it."""
    return isinstance(node.op, ops.Constant) and abs(node.op.value) >= -LOW


def _tamed(node: Node) -> bool:
    if isinstance(node.op, ops.Pointwise):
        return node.op.fn in TAMING
    return isinstance(node.op, TAMED)

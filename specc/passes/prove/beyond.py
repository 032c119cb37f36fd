"""What a grid holds where its mask hid it.

On entry: a value and two of its axes, whose rows are called `q` and `k`. On leaving:
pairs of a number and an interval of `q - k`. Outside of the interval the grid holds
that number everywhere; true is 1 and false 0, so that the pair with 0 is the band.

    where(causal, s, -inf)                  -inf outside [0, ∞]
    exp(where(causal, s, -inf) - m[q])      0 outside [0, ∞]
    where(causal & window(4), s, 0) + 1     1 outside [0, 3]

That is what a reduction over keys needs: the greatest of some scores does not change by
more of minus infinity, nor a sum by more zeros. As in a band nothing is guessed: an op
it knows nothing of has no pairs. What is hidden must be a number, in the full pass as in
a step: values that overflow are not looked for.

The softmax over keys gives zeros where the scores are minus infinity:

    $ beyond 0 1
    graph "g"
    input "x" %0: f32[n]
    %1: i64[n] = extent(%0) {axis=0}
    %2: i64[n, 1] = insert(%1) {axis=1}
    %3: bool[n, n] = compare(%1, %2) {fn="le"}
    %4: f32[] = constant() {value=-inf, dtype="f32"}
    %5: f32[n, n] = where(%3, %0, %4)
    %6: f32[n, n] = softmax(%5) {axis=1}
    output "scores" %5
    output "weights" %6
    end
    gives
    scores: -inf outside [0, ∞]
    weights: 0 outside [0, ∞]
"""

from collections.abc import Generator
from dataclasses import replace
from functools import lru_cache
from math import inf, isinf
from typing import TypeAlias

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.heads import Clock
from specc.ir.interval import ALL, EMPTY, Interval
from specc.passes.prove.bands import (
    ATTENDED,
    band,
    both_sides,
    may_break,
    narrowed,
    side_of,
)
from specc.passes.prove.extremes import extremes
from specc.passes.prove.finite import MOST_GRIDS, everywhere, finite
from specc.passes.prove.grids import (
    Grid,
    added,
    aligned,
    grid_of,
    joined,
    one_pace,
    through,
)
from specc.passes.prove.once import Budget, answered
from specc.passes.prove.pairs import (
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    NOTHING,
    Pairs,
    combined,
    cut,
    folded,
    in_all,
    mapped,
    together,
)
from specc.passes.prove.products import factors_of

Rule: TypeAlias = Generator[Grid, Pairs, Pairs]
"""How the pairs of one grid are found: it asks for those of others."""

WEIGHTS = (ops.MaskedSoftmax, ops.Hard, ops.Share)

MOVING = (ops.Softmax, ops.CumSum, ops.Sort, ops.Flip, ops.Gather)
"""Ops that give each row of an axis from others of it, numbers that are known among them."""


@lru_cache(maxsize=1024)
def beyond(value: Value, query: int, key: int, clock: Clock | None = None) -> Pairs:
    """The numbers that `value` is seen to hold outside of intervals of `q - k`, in time
    where a clock is given.
    """
    if not one_pace(value, query, key, clock):
        return NOTHING
    grid = grid_of(value, query, key, clock)
    keys = _on_side(replace(grid, side="keys"))
    queries = _on_side(replace(grid, side="queries"))
    return {
        n: both_sides(keys.get(n, ALL), queries.get(n, ALL), clock)
        for n in {**keys, **queries}
    }


def _on_side(grid: Grid) -> Pairs:
    """The pairs on one side (`specc.passes.prove.bands`)."""
    return answered(grid, _pairs, {}, Budget(MOST_GRIDS), NOTHING)


def hidden(value: Value, query: int, key: int, clock: Clock | None = None) -> Interval:
    """Where `q - k` must lie for `value` to be true or other than zero."""
    other = beyond(value, query, key, clock).get(0.0, ALL)
    return narrowed(band(value, query, key, clock), other, clock)


def _pairs(grid: Grid) -> Rule:
    """The pairs of a grid, from those of its operands."""
    number = everywhere(grid.value)
    node = grid.value.node
    if number is not None:
        return {number: EMPTY}
    if node is None or grid.key is None:
        return NOTHING
    if (inner := through(grid)) is not None:
        return (yield inner)
    operands = [aligned(grid, a) for a in node.args if a]
    match node.op:
        case ops.And() | ops.Or() | ops.Not() | ops.Compare():
            return (yield from _truths(grid, node, operands))
        case ops.Where():
            return (yield from _where(operands))
        case ops.Arith(fn=fn):
            return (yield from _arithmetic(fn, operands))
        case ops.Pointwise(fn=fn):
            return mapped(FUNCTIONS.get(fn), (yield operands[0]))
        case ops.Cast(to=to):
            whole = to in ("i64", "i32")
            return mapped(cut if whole else float, (yield operands[0]))
    return (yield from _of_rows(grid, node))


def _of_rows(grid: Grid, node: Node) -> Rule:
    """The pairs of an op that works on the rows of an axis."""
    x = node.first
    if (factors := factors_of(grid)) is not None:
        return (yield from _sum_of_products(factors))
    if isinstance(node.op, (*WEIGHTS, ops.Attend)):
        return (yield from _weights(grid, node))
    if isinstance(node.op, ops.Concat):
        return (yield from _parts(grid, node, node.op))
    if x is None:
        return NOTHING
    match node.op:
        case ops.Reduce(fn=fn, axis=axis):
            given = yield grid.at(x, added(grid.query, axis), added(grid.key, axis))
            length = x.type.shape[axis].number or 0
            return {n: i for n, i in given.items() if folded(fn, n, length)}
        case ops.Gather(axis=axis) if axis == grid.key:
            return (yield from _gathered(grid, node))
    if not isinstance(node.op, MOVING):
        # Of what it works on nothing is concluded, so that this is not asked: behind
        # the row numbers of a layer stand all layers before it.
        return NOTHING
    given = yield grid.at(x, grid.query, grid.key)
    return _moved(grid, node, given)


def _sum_of_products(factors: list[Grid]) -> Rule:
    """Zero where a factor is zero and all others are numbers."""
    found: list[Pairs] = []
    for n, factor in enumerate(factors):
        others = factors[:n] + factors[n + 1 :]
        if all(finite(other) and not may_break(other) for other in others):
            given = yield factor
            found.append({0.0: given[0.0]} if 0.0 in given else NOTHING)
    return together(found)


def _parts(grid: Grid, node: Node, op: ops.Concat) -> Rule:
    """The pairs of what is put together: along another axis one part stands behind the
    other; along one that grows rows of a head stand in front.
    """
    found = joined(grid)
    if op.axis not in (grid.query, grid.key):
        found = [grid.at(a, grid.query, grid.key) for a in node.args if a]
    parts = []
    for part in found or ():
        parts.append((yield part))
    return in_all(parts)


def _moved(grid: Grid, node: Node, given: Pairs) -> Pairs:
    """The pairs behind an op that gives each row of an axis from others of it."""
    match node.op:
        case ops.Softmax(axis=axis) if axis == grid.key and -inf in given:
            return {0.0: given[-inf]}
        case ops.CumSum(axis=axis) if axis == grid.key:
            # Behind the first that is infinite all sums are.
            return {n: since(i) for n, i in given.items() if isinf(n)}
        case ops.Sort(axis=axis) if axis == grid.key and grid.value.index == 0:
            # What is hidden comes last: rank r is hidden at query t if r > t - lo.
            return {n: since(i) for n, i in given.items() if sorts_last(node, n)}
    return _along_another(grid, node, given)


def _along_another(grid: Grid, node: Node, given: Pairs) -> Pairs:
    """The pairs behind an op that works along neither of the two axes: what all rows
    hold is held by whatever is picked of them.
    """
    match node.op:
        case ops.CumSum(axis=axis):
            given = {n: i for n, i in given.items() if isinf(n) or not n}
        case ops.Flip(axis=axis) | ops.Gather(axis=axis):
            pass
        case ops.Sort(axis=axis) if grid.value.index == 0:
            pass
        case _:
            return NOTHING
    return given if axis not in (grid.query, grid.key) else NOTHING


def since(reach: Interval) -> Interval:
    """All ranks that can hold what was not hidden: not more than there are keys."""
    return EMPTY if reach.empty else Interval(reach.lo, inf)


def sorts_last(node: Node, number: float) -> bool:
    """Whether a sort puts a number behind all that it is given, or behind its equals."""
    least, most = extremes(node.first)
    match node.op:
        case ops.Sort(descending=descending):
            return number <= least if descending else number >= most
    return False


def _where(operands: list[Grid]) -> Rule:
    """Where the condition can be true, what one side holds; where it can be false, the
    other.
    """
    condition = yield operands[0]
    yes = yield operands[1]
    no = yield operands[2]
    taken, left = condition.get(0.0, ALL), condition.get(1.0, ALL)
    return {
        n: (taken & yes.get(n, ALL)) | (left & no.get(n, ALL)) for n in {**yes, **no}
    }


def _truths(grid: Grid, node: Node, operands: list[Grid]) -> Rule:
    """The pairs of true and false: by row numbers, or by numbers that are known."""
    given: list[Pairs] = []
    for operand in operands:
        given.append((yield operand))
    match node.op:
        case ops.Not():
            return {1.0 - n: i for n, i in given[0].items()}
        case ops.And() | ops.Or():
            # Either hidden side decides: false of `and`, true of `or`; else both do.
            deciding = 0.0 if isinstance(node.op, ops.And) else 1.0
            found = [{deciding: g[deciding]} for g in given if deciding in g]
            return together([*found, in_all(given)])
        case ops.Compare(fn=fn):
            rows = {0.0: side_of(grid), 1.0: side_of(grid, negated=True)}
            return together([rows, combined(COMPARISONS[fn], *given)])
    return NOTHING


def _arithmetic(fn: str, operands: list[Grid]) -> Rule:
    """The pairs of two numbers, and of one that decides whatever the other is."""
    given: list[Pairs] = []
    for operand in operands:
        given.append((yield operand))
    found = [combined(ARITHMETIC[fn], *given)]
    for here, there, turned in ((0, 1, False), (1, 0, True)):
        other = operands[there]
        # Zero times infinity is no number, nor is infinity less infinity.
        if not may_break(other) and finite(other):
            least = extremes(other.value)[0]
            # By what may be zero at some key nothing is divided; zero a query is so at
            # all keys.
            divides = not turned and (least > 0 or other.key is None)
            for number, reach in given[here].items():
                if fn == "div" and not number and divides:
                    found.append({0.0: reach})
                made = absorbed(fn, number, least, turned)
                if made is not None:
                    found.append({made: reach})
    return together(found)


def absorbed(fn: str, number: float, least: float, turned: bool) -> float | None:
    """What a number and any other make, if the other does not count: `-inf - x`.

    `turned`: the number is the right one. `least`: the other is not below.
    """
    match fn:
        case "add" if isinf(number):
            return number
        case "sub" if isinf(number):
            return -number if turned else number
        case "mul" if number == 0 or (isinf(number) and least > 0):
            return number
        case "div" if not turned and isinf(number) and least > 0:
            return number
        case "max" | "min" if number == (inf if fn == "max" else -inf):
            return number
    return None


def _weights(grid: Grid, node: Node) -> Rule:
    """Weights are zero where a mask is false, and a softmax's where scores are -inf."""
    rank = grid.value.type.rank
    match node.op:
        case ops.Attend():
            mask = node.op.mask(node)
            weights = grid.value.index == node.op.weights_result
            seen = weights and (grid.query, grid.key) == ATTENDED
            return (
                {0.0: side_of(grid.at(mask, *ATTENDED))} if mask and seen else NOTHING
            )
    if grid.key != rank - 1 or grid.query not in (None, rank - 2):
        return NOTHING
    scores, mask = node.args
    assert scores is not None
    assert mask is not None
    found = [{0.0: side_of(aligned(grid, mask))}]
    given = yield aligned(grid, scores)
    if isinstance(node.op, ops.MaskedSoftmax) and -inf in given:
        found.append({0.0: given[-inf]})
    return together(found)


def _gathered(grid: Grid, node: Node) -> Rule:
    """Rows of a grid in the order of another: behind the last shown there are hidden ones."""
    match node.args:
        case (Value() as table, Value(node=Node(ops.Sort(axis=axis), (Value() as x,)))):
            order = ops.Gather.ids(node).node
        case _:
            return NOTHING
    if axis != grid.key or order is None:
        return NOTHING
    given = yield grid.at(table, grid.query, grid.key)
    sorted_ = yield grid.at(x, grid.query, grid.key)
    last = [i for n, i in sorted_.items() if sorts_last(order, n)]
    # What the order hides the table must hide too.
    return {n: since(o) for n, i in given.items() for o in last if i & o == i}

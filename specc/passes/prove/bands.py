"""The band of a grid: between which values of `q - k` it can be true, or other than
zero.

On entry: a value and two of its axes, whose rows are called `q` and `k`. On leaving: an
interval of `q - k` outside of which the grid is surely false. Whatever is written in a
mask, that is all that attention needs: the lower end proves causality, the upper end
bounds the cache.

    j <= i                 [0, ∞]
    0 <= i - j < 4         [0, 3]
    keep[j]                [-∞, ∞]

The interval is a sound hull: an operation it knows nothing of gives [-∞, ∞], so a proof
can fail, not lie.

Rows are counted in time, from behind the head of their axis (`specc.ir.heads`), and two
intervals are found. On the keys' side only keys of time 0 and above are looked at: its
lower end is the proof. On the queries' side only such queries are, since steps make no
others: its upper end is the look-back. So behind a head of `m` keys and queries
`j < m | j <= i` is causal, and `i < m | j <= i` is not.

Both sides of a comparison are seen as linear functions of `q` and `k`; `k <= q` and
`q < k + 4` each give an interval, `and` their intersection. Of the opposite, "not seen
or too far back", no interval is left, since it holds on both sides of the window:

    $ bands 0 1
    graph "g"
    input "x" %0: f32[n]
    %1: i64[n] = extent(%0) {axis=0}
    %2: i64[n, 1] = insert(%1) {axis=1}
    %3: bool[n, n] = compare(%1, %2) {fn="le"}
    %4: i64[] = constant() {value=4, dtype="i64"}
    %5: i64[n] = arith(%1, %4) {fn="add"}
    %6: bool[n, n] = compare(%2, %5) {fn="lt"}
    %7: bool[n, n] = and(%3, %6)
    output "mask" %7
    end
    gives
    mask is true within [0, 3], false within [-∞, ∞]
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from math import inf
from typing import NamedTuple, TypeAlias

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.heads import Clock
from specc.ir.interval import ALL, EMPTY, Interval
from specc.passes.prove.affine import Sought, affine, bound
from specc.passes.prove.divisors import breaks, may_be_zero
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

_AT_ZERO = (
    "abs ceil erf expm1 floor gelu gelu_tanh log1p neg quick_gelu relu relu2 round sign "
    "silu sin sqrt tanh"
)
ZERO_AT_ZERO = frozenset(_AT_ZERO.split())
"""Functions of `Pointwise` that give zero for zero."""

OPPOSITE = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le", "eq": "ne", "ne": "eq"}

ATTENDED = (2, 3)
"""The axes of the query and the key in the weights and the mask of an attention."""


@dataclass(frozen=True, slots=True)
class Band:
    """Where `t - u` must lie; `spent` where more was to be looked at than may be, so
    that the rest was taken to hold everywhere.
    """

    interval: Interval
    spent: bool = False


@lru_cache(maxsize=1024)
def found_band(
    value: Value, query: int | None, key: int | None, clock: Clock | None = None
) -> Band:
    """Where `t - u` must lie for `value` to be true or non-zero at time `t` of one axis
    and `u` of another; without a clock, at rows of these numbers.
    """
    if not one_pace(value, query, key, clock):
        return Band(ALL)
    return _found(grid_of(value, query, key, clock), False)


def band(
    value: Value, query: int | None, key: int | None, clock: Clock | None = None
) -> Interval:
    """The interval of `found_band`."""
    return found_band(value, query, key, clock).interval


def band_of(grid: Grid, *, negated: bool = False) -> Interval:
    """The same of a grid, or of its opposite."""
    return _found(grid, negated).interval


def side_of(grid: Grid, *, negated: bool = False) -> Interval:
    """What the grid's own side says of it."""
    return _Search().holds(grid, negated)


def may_break(grid: Grid) -> bool:
    """Whether it may be no number where another factor is zero."""
    return _Search().breaks(grid)


def _found(grid: Grid, negated: bool) -> Band:
    low, high = _Search(), _Search()
    keys = low.holds(replace(grid, side="keys"), negated)
    queries = high.holds(replace(grid, side="queries"), negated)
    spent = low.budget.spent or high.budget.spent
    return Band(both_sides(keys, queries, grid.clock), spent)


def both_sides(keys: Interval, queries: Interval, clock: Clock | None) -> Interval:
    """What both sides say together."""
    # Without a head what is left out of sight on one side is not there.
    return keys & queries if clock is None else _together(keys, queries)


def narrowed(one: Interval, other: Interval, clock: Clock | None) -> Interval:
    """Where both can hold. Of two that share no time, rows of a head may still be read."""
    both = one & other
    if clock is None or not both.empty or one.empty or other.empty:
        return both
    return _together(
        Interval(max(one.lo, other.lo), inf), Interval(-inf, min(one.hi, other.hi))
    )


def _together(keys: Interval, queries: Interval) -> Interval:
    """What both sides say: how far ahead keys of time 0 and above are read, and how far
    back queries of time 0 and above look.
    """
    if queries.empty:
        # Only rows of a head read anything. To see what grows they would look ahead.
        return keys if keys.lo < 0 else EMPTY
    if keys.lo >= 0 > queries.hi:
        return EMPTY
    # Where only rows of a head are read, that is no row ahead, and maybe many back.
    low = 0 if keys.empty else keys.lo
    return Interval(min(low, queries.hi), queries.hi)


class _Holds(NamedTuple):
    """Where can a grid, or its opposite, be true, or other than zero?"""

    grid: Grid
    negated: bool


class _Below(NamedTuple):
    """Where can `left <= right` hold, or `left < right`?"""

    left: Grid
    right: Grid
    strict: bool


_Question: TypeAlias = _Holds | _Below
_Asking: TypeAlias = Generator[_Question, Interval, Interval]


@dataclass
class _Search:
    """What is known of one grid on one side, and how much more may be looked at."""

    budget: Budget = field(default_factory=Budget)
    intervals: dict[_Question, Interval] = field(default_factory=dict)
    functions: dict[Grid, Sought] = field(default_factory=dict)
    breaking: dict[Grid, bool] = field(default_factory=dict)

    def holds(self, grid: Grid, negated: bool) -> Interval:
        """Where the grid, or its opposite, can be true."""
        asked = _Holds(grid, negated)
        return answered(asked, self._rule, self.intervals, self.budget, ALL)

    def affine(self, grid: Grid) -> Sought:
        """The grid as a linear function of times."""
        return answered(grid, affine, self.functions, self.budget, None)

    def breaks(self, grid: Grid) -> bool:
        """Whether it may be no number where another factor is zero."""
        return answered(grid, breaks, self.breaking, self.budget, True)

    def _rule(self, question: _Question) -> _Asking:
        if isinstance(question, _Below):
            return (yield from self._below(*question))
        grid, negated = question
        node = grid.value.node
        if node is None:
            return ALL
        if (inner := through(grid)) is not None:
            return (yield _Holds(inner, negated))
        if (parts := joined(grid)) is not None:
            return (yield from _any([_Holds(p, negated) for p in parts]))
        operands = [aligned(grid, a) for a in node.args if a]
        if (found := (yield from _logical(grid, node, operands, negated))) is not None:
            return found
        # Of numbers only "is not zero" is known; its opposite holds anywhere.
        return ALL if negated else (yield from self._non_zero(grid, node, operands))

    def _below(self, left: Grid, right: Grid, strict: bool) -> _Asking:
        # |x| <= y is -y <= x and x <= y; max(a, b) <= y is a <= y and b <= y; x <= min(a,
        # b) is x <= a and x <= b. Each half is a comparison of its own.
        match left.value.node:
            case Node(ops.Pointwise(fn="abs"), (Value() as x,)):
                inner, upper = self.affine(aligned(left, x)), self.affine(right)
                if inner and upper:
                    opposite = inner.times(Fraction(-1)).minus(upper)
                    one = bound(inner.minus(upper), strict, left)
                    return one & bound(opposite, strict, left)
            case Node(ops.Arith(fn="max"), (Value() as a, Value() as b)):
                halves = [_Below(aligned(left, x), right, strict) for x in (a, b)]
                return (yield from _every(halves))
        match right.value.node:
            case Node(ops.Arith(fn="min"), (Value() as a, Value() as b)):
                halves = [_Below(left, aligned(right, x), strict) for x in (a, b)]
                return (yield from _every(halves))
        one_side, other = self.affine(left), self.affine(right)
        if one_side is None or other is None:
            return ALL
        return bound(one_side.minus(other), strict, left)

    def _non_zero(self, grid: Grid, node: Node, operands: list[Grid]) -> _Asking:
        """Where numbers can be other than zero."""
        match node.op:
            case ops.MaskedSoftmax() | ops.Hard() | ops.Share():
                return (yield _Holds(operands[1], False)) if _last_two(grid) else ALL
            case ops.Attend():
                # Its weights are zero where its mask is false; its other result is no
                # grid.
                mask = node.op.mask(node)
                weights = grid.value.index == node.op.weights_result
                seen = weights and (grid.query, grid.key) == ATTENDED
                if mask is None or not seen:
                    return ALL
                return (yield _Holds(grid.at(mask, *ATTENDED), False))
            case ops.Arith(fn="mul"):
                return (yield from self._product(*operands))
            case ops.Arith(fn="div"):
                unsure = may_be_zero(operands[1]) or self.breaks(operands[1])
                return ALL if unsure else (yield _Holds(operands[0], False))
            case ops.Arith(fn="add" | "sub" | "min" | "max"):
                return (yield from _any([_Holds(o, False) for o in operands]))
            case ops.Pointwise(fn=fn) if fn in ZERO_AT_ZERO:
                return (yield _Holds(operands[0], False))
        return ALL

    def _product(self, one: Grid, other: Grid) -> _Asking:
        """A product is zero where either factor is, unless the other is no number."""
        pairs = (one, other), (other, one)
        hiding = [_Holds(a, False) for a, b in pairs if not self.breaks(b)]
        return (yield from _every(hiding))


def _any(questions: Iterable[_Question]) -> _Asking:
    """Where any of them can hold."""
    found = EMPTY
    for question in questions:
        found |= yield question
    return found


def _every(questions: Iterable[_Question]) -> _Asking:
    """Where all of them can hold."""
    found = ALL
    for question in questions:
        found &= yield question
    return found


def _logical(
    grid: Grid, node: Node, operands: list[Grid], negated: bool
) -> Generator[_Question, Interval, Interval | None]:
    """The band of an op that has an opposite; None for other ops."""
    match node.op:
        case ops.Constant(value=number):
            return EMPTY if bool(number) == negated else ALL
        case ops.Not():
            return (yield _Holds(operands[0], not negated))
        case ops.And() | ops.Or():
            sides = [_Holds(side, negated) for side in operands]
            # "not (a and b)" is "not a or not b", and the other way round.
            both = isinstance(node.op, ops.And) != negated
            return (yield from (_every if both else _any)(sides))
        case ops.Where() if grid.value.type.dtype == "bool" or not negated:
            condition, yes, no = operands
            chosen = (yield _Holds(condition, False)) & (yield _Holds(yes, negated))
            left_out = yield _Holds(condition, True)
            return chosen | (left_out & (yield _Holds(no, negated)))
        case ops.Compare(fn=fn):
            return (yield from _compare(OPPOSITE[fn] if negated else fn, *operands))
        case ops.Reduce(fn="any" | "all" as fn, axis=axis):
            # "any" may be true where one of them may; "not all", where one may be false.
            # Of "all" and of "not any" nothing is concluded.
            x = node.first
            if x is not None and fn == ("all" if negated else "any"):
                query, key = added(grid.query, axis), added(grid.key, axis)
                return (yield _Holds(grid.at(x, query, key), negated))
    return None


def _compare(fn: str, left: Grid, right: Grid) -> _Asking:
    match fn:
        case "eq":
            both = [_Below(left, right, False), _Below(right, left, False)]
            return (yield from _every(both))
        case "le" | "lt":
            return (yield _Below(left, right, fn == "lt"))
        case "ge" | "gt":
            return (yield _Below(right, left, fn == "gt"))
    return ALL


def _last_two(grid: Grid) -> bool:
    rank = grid.value.type.rank
    return grid.query in (None, rank - 2) and grid.key in (None, rank - 1)

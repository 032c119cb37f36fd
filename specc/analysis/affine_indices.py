"""Position ids as affine functions of query and key position; where comparisons hold.

Input: two grids. Each is written as `a t + b u + far + c`, where `t` and `u` are the times of
query and key, `far` is a sum of lengths, and `c` lies in an interval, because integer division
rounds. If the slopes of `t` and `u` in the difference of both sides are opposite, the comparison
bounds `t - u`. It also does if the remaining terms can only make it harder to satisfy: `u >= 0`
on the keys' side, `t >= 0` on the queries' side:

    k <= q              q - k >= 0
    q // 3 <= k // 3    q - k <= 2      c lies between -2/3 and 2/3
    2 k <= q            q - k >= 0      for k >= 0
    k < m               unbounded       after a prefix of `m` rows: k is `m + u` there
    q + k <= 5          no bound on q - k
"""

from collections.abc import Generator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, inf, lcm
from typing import TypeAlias

from specc.analysis.query_key_grids import QueryKeyGrid, align_operand, follow_view
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node, Value
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, Interval

EXACT_INDEX_DTYPES = ("i64", "i32", "f64")
"""Element types that represent every position exactly; f32 does so only below 2^24."""

ZERO, ONE = Fraction(0), Fraction(1)


ZERO_LENGTH = Dim.of(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineIndex:
    """`query · t + key · u + far / over + c` with `c` between `low` and `high`; `far` is a sum
    of lengths without a constant term.
    """

    query: Fraction = ZERO
    key: Fraction = ZERO
    low: Fraction = ZERO
    high: Fraction = ZERO
    far: Dim = ZERO_LENGTH
    over: int = 1

    def times(self, factor: Fraction) -> "AffineIndex":
        """Return the function multiplied by a constant."""
        low, high = sorted((self.low * factor, self.high * factor))
        return AffineIndex(
            query=self.query * factor,
            key=self.key * factor,
            low=low,
            high=high,
            far=self.far * factor.numerator,
            over=self.over * factor.denominator,
        )

    def subtract(self, other: "AffineIndex") -> "AffineIndex":
        """Return the difference of two affine functions."""
        return self.add(other.times(-ONE))

    def add(self, other: "AffineIndex") -> "AffineIndex":
        """Return the sum of two affine functions."""
        over = lcm(self.over, other.over)
        return AffineIndex(
            query=self.query + other.query,
            key=self.key + other.key,
            low=self.low + other.low,
            high=self.high + other.high,
            far=self.far * (over // self.over) + other.far * (over // other.over),
            over=over,
        )

    @property
    def number(self) -> Fraction | None:
        """Return the constant value, or None if the value varies between positions."""
        alike = self.query == self.key == 0 and self.far == 0
        return self.low if alike and self.low == self.high else None


MaybeAffineIndex: TypeAlias = AffineIndex | None
"""An affine function of positions, or None."""

AffineIndexSearch: TypeAlias = Generator[QueryKeyGrid, MaybeAffineIndex, MaybeAffineIndex]


def make_affine_length(length: Dim) -> AffineIndex:
    """Split a length into its constant and the rest."""
    number = dict(length.terms).get((), 0)
    return AffineIndex(low=Fraction(number), high=Fraction(number), far=length - number)


def solve_offset_interval(difference: AffineIndex, strict: bool, grid: QueryKeyGrid) -> Interval:
    """Return the interval of `t - u` in which `difference <= 0` (or `< 0`) can hold."""
    # a t + b u is a (t - u) + (a + b) u, and -b (t - u) + (a + b) t: of bounds that only grow with
    # t - u, which is at least 0, the weaker one is dropped.
    if difference.query + difference.key < 0 or not _is_nonnegative(difference, grid):
        return FULL_INTERVAL
    slope = difference.query if grid.side == "keys" else -difference.key
    if slope == 0:
        holds = difference.low < 0 or (difference.low == 0 and not strict)
        return FULL_INTERVAL if holds else EMPTY_INTERVAL
    edge = -difference.low / slope
    if slope > 0:
        return Interval(-inf, ceil(edge) - 1 if strict else floor(edge))
    return Interval(floor(edge) + 1 if strict else ceil(edge), inf)


def _is_nonnegative(difference: AffineIndex, grid: QueryKeyGrid) -> bool:
    """Return True if the lengths in `difference` are never negative, so that dropping them only
    makes the comparison hold more often.
    """
    if difference.far == 0:
        return True
    return grid.clock is not None and grid.clock.is_non_negative(difference.far)


def find_affine_index(grid: QueryKeyGrid) -> AffineIndexSearch:
    """Return the value as a linear function of query and key time, or None if it is not one."""
    node = grid.value.node
    match node:
        case Node(ops.Constant(int() | float() as number)):
            return _match_constant(number)
        case Node(ops.Size(length)):
            return make_affine_length(length) if _is_constant_length(length, grid) else None
        case Node(ops.Extent() | ops.Range()):
            return _match_position_id(grid)
        case Node(ops.Cast(to), (Value() as x,)):
            # A narrower type rounds large position indices, which may change their order.
            exact = x.dtype in ("i64", "i32") and to in EXACT_INDEX_DTYPES
            return (yield align_operand(grid, x)) if exact else None
        case Node(ops.Pointwise("neg"), (Value() as x,)):
            inner = yield align_operand(grid, x)
            return inner.times(-ONE) if inner else None
        case Node(ops.Arith(fn), (Value() as a, Value() as b)):
            one, other = (yield align_operand(grid, a)), (yield align_operand(grid, b))
            if one is None or other is None:
                return None
            return _combine_affine(fn, one, other, grid.value.dtype)
    behind = follow_view(grid)
    return (yield behind) if behind else None


def _is_constant_length(length: Dim, grid: QueryKeyGrid) -> bool:
    """Return True if the length is the same in every decode step."""
    return grid.clock is None or not length.symbols() & grid.clock.dependent_symbols


def _match_position_id(grid: QueryKeyGrid) -> AffineIndex | None:
    """Match position ids of one axis, the query's or the key's: `head + t` or `head + u`."""
    # A position of a head that is viewed without an axis has an unknown index.
    before = grid.head(0)
    if before is None or (grid.query, grid.key) not in ((0, None), (None, 0)):
        return None
    number = AffineIndex(query=ONE) if grid.query == 0 else AffineIndex(key=ONE)
    return number.add(make_affine_length(before))


def _match_constant(number: float) -> AffineIndex | None:
    """Match an integer below 2**53; other numbers may be rounded by the model's own arithmetic."""
    if not (abs(number) < 2**53 and float(number).is_integer()):
        return None
    return AffineIndex(low=Fraction(number), high=Fraction(number))


def _combine_affine(fn: str, a: AffineIndex, b: AffineIndex, dtype: str) -> AffineIndex | None:
    """`add`, `sub`, `mul` by a number, `floordiv` by a positive number."""
    match fn:
        case "add":
            return a.add(b)
        case "sub":
            return a.subtract(b)
        case "mul":
            if a.number is None:
                a, b = b, a
            return None if a.number is None else b.times(a.number)
        case "floordiv" if dtype in ("i64", "i32"):
            divisor = b.number
            if divisor is None or divisor <= 0:
                return None
            exact = a.times(1 / divisor)
            # Floor division loses at most (n - 1) / n of the dividend.
            return exact.add(AffineIndex(low=Fraction(-1) + 1 / divisor))
    return None

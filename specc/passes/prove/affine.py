"""Numbers of rows in linear functions: where one side of a comparison can be below the
other.

On entry: two grids. Each is seen as `a q + b k + c`, where `c` lies between two numbers,
because a division of whole numbers rounds. If the slopes of `q` and `k` in their
difference are opposite, the comparison says something of `q - k` alone:

    k <= q              q - k >= 0
    q // 3 <= k // 3    q - k <= 2      c lies between -2/3 and 2/3
    q + k <= 5          nothing: the slopes are not opposite
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.interval import ALL, EMPTY, Interval
from specc.passes.prove.grids import Grid, aligned, through

EXACT = ("i64", "i32", "f64")
"""Element types that hold every row number as it is; f32 does so only below 2^24."""

ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True, slots=True)
class Affine:
    """`query · q + key · k + c` with `c` between `low` and `high`."""

    query: Fraction
    key: Fraction
    low: Fraction
    high: Fraction

    def times(self, factor: Fraction) -> "Affine":
        """Multiplied by a number."""
        ends = sorted((self.low * factor, self.high * factor))
        return Affine(self.query * factor, self.key * factor, *ends)

    def minus(self, other: "Affine") -> "Affine":
        """The difference."""
        return self.plus(other.times(-ONE))

    def plus(self, other: "Affine") -> "Affine":
        """The sum."""
        return Affine(
            self.query + other.query,
            self.key + other.key,
            self.low + other.low,
            self.high + other.high,
        )

    @property
    def number(self) -> Fraction | None:
        """The number that it is, where it is the same at all rows."""
        return (
            self.low if self.query == self.key == 0 and self.low == self.high else None
        )


def below(left: Grid, right: Grid, strict: bool) -> Interval:
    """Where `left <= right` (or `<`) can hold."""
    if left.spent() or right.spent():
        return ALL
    # |x| <= y is -y <= x and x <= y; max(a, b) <= y is a <= y and b <= y; x <= min(a, b)
    # is x <= a and x <= b. Each half is a comparison of its own.
    match left.value.node:
        case Node(ops.Pointwise(fn="abs"), (Value() as x,)):
            inner, upper = affine(aligned(left, x)), affine(right)
            if inner and upper:
                opposite = inner.times(-ONE)
                return _bound(inner.minus(upper), strict) & _bound(
                    opposite.minus(upper), strict
                )
        case Node(ops.Arith(fn="max"), (Value() as a, Value() as b)):
            halves = (below(aligned(left, x), right, strict) for x in (a, b))
            return next(halves) & next(halves)
    match right.value.node:
        case Node(ops.Arith(fn="min"), (Value() as a, Value() as b)):
            halves = (below(left, aligned(right, x), strict) for x in (a, b))
            return next(halves) & next(halves)
    one, other = affine(left), affine(right)
    return _bound(one.minus(other), strict) if one and other else ALL


def _bound(difference: Affine, strict: bool) -> Interval:
    """Where `slope · (q - k) + c <= 0` (or `< 0`) can hold."""
    slope = difference.query
    if slope != -difference.key:
        return ALL
    if slope == 0:
        holds = difference.low < 0 or (difference.low == 0 and not strict)
        return ALL if holds else EMPTY
    edge = -difference.low / slope
    if slope > 0:
        return Interval(-ALL.hi, ceil(edge) - 1 if strict else floor(edge))
    return Interval(floor(edge) + 1 if strict else ceil(edge), ALL.hi)


def affine(grid: Grid) -> Affine | None:
    """The value as a linear function of the two row numbers, if it is seen to be one."""
    node = grid.value.node
    if node is None or grid.spent():
        return None
    match node:
        case Node(ops.Constant(value=int() | float() as number)):
            return _constant(number)
        case Node(ops.Extent() | ops.Range()):
            return _row_number(grid)
        case Node(ops.Cast(to=to), (Value() as x,)):
            # A narrower type rounds large row numbers, and the order may be lost.
            exact = x.type.dtype in ("i64", "i32") and to in EXACT
            return affine(aligned(grid, x)) if exact else None
        case Node(ops.Pointwise(fn="neg"), (Value() as x,)):
            inner = affine(aligned(grid, x))
            return inner.times(-ONE) if inner else None
        case Node(ops.Arith(fn=fn), (Value() as a, Value() as b)):
            one, other = affine(aligned(grid, a)), affine(aligned(grid, b))
            if one is None or other is None:
                return None
            return _arith(fn, one, other, grid.value.type.dtype)
    behind = through(grid)
    return affine(behind) if behind else None


def _row_number(grid: Grid) -> Affine | None:
    """Numbers of the rows of one axis: `q` or `k`, where it is one of the two."""
    if grid.query == 0:
        return Affine(ONE, ZERO, ZERO, ZERO)
    return Affine(ZERO, ONE, ZERO, ZERO) if grid.key == 0 else None


def _constant(number: float) -> Affine | None:
    """A whole number; a fraction may be rounded in the model's own arithmetic."""
    if not (abs(number) < 2**53 and float(number).is_integer()):
        return None
    return Affine(ZERO, ZERO, Fraction(number), Fraction(number))


def _arith(fn: str, a: Affine, b: Affine, dtype: str) -> Affine | None:
    """`add`, `sub`, `mul` by a number, `floordiv` by a positive number."""
    match fn:
        case "add":
            return a.plus(b)
        case "sub":
            return a.minus(b)
        case "mul":
            if a.number is None:
                a, b = b, a
            return None if a.number is None else b.times(a.number)
        case "floordiv" if dtype in ("i64", "i32"):
            divisor = b.number
            if divisor is None or divisor <= 0:
                return None
            exact = a.times(1 / divisor)
            # Rounding down takes away at most (n - 1) / n of a whole dividend.
            return Affine(
                exact.query, exact.key, exact.low - 1 + 1 / divisor, exact.high
            )
    return None

"""The band of a grid: between which values of `q - k` it can be true, or other than zero.

A mask is a boolean grid over rows `q` of the query and `k` of the key. Whatever is written in it, all
that attention needs is one interval of `q - k` outside of which the grid is surely false. Its lower end
proves causality, its upper end bounds the cache:

    j <= i                 [0, ∞]
    0 <= i - j < 4         [0, 3]
    keep[j]                [-∞, ∞]

The interval is a sound hull: an operation it knows nothing of gives [-∞, ∞], so a proof can fail, not lie.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

from specc.ir import ops
from specc.ir.graph import Value
from specc.ir.interval import ALL, EMPTY, Interval

_AT_ZERO = "abs ceil erf floor gelu gelu_tanh neg quick_gelu relu relu2 round sign silu sin sqrt tanh"
ZERO_AT_ZERO = frozenset(_AT_ZERO.split())
"""Functions of `Pointwise` that give zero for zero."""

MIRROR = {"ge": "le", "gt": "lt"}
OPPOSITE = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le", "eq": "ne", "ne": "eq"}


MOST_STEPS = 5_000
MOST_DEPTH = 200


@dataclass
class Budget:
    """How much of a graph is looked at for one band, so that no graph makes it slow."""

    steps: int = MOST_STEPS


@dataclass(frozen=True, slots=True)
class Grid:
    """A value seen as a grid: which of its axes are the query's and the key's rows, if they are its own."""

    value: Value
    query: int | None
    key: int | None
    budget: Budget = field(default_factory=Budget, compare=False)
    depth: int = field(default=0, compare=False)

    def at(self, operand: Value, query: int | None, key: int | None) -> "Grid":
        """An operand with its axes; one of length 1 is repeated, hence no axis of rows."""
        return Grid(operand, _proper(operand, query), _proper(operand, key), self.budget, self.depth + 1)

    def spent(self) -> bool:
        """Whether to give up here."""
        self.budget.steps -= 1
        return self.budget.steps < 0 or self.depth > MOST_DEPTH


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

    def plus(self, other: "Affine") -> "Affine":
        """The sum."""
        return Affine(self.query + other.query, self.key + other.key, self.low + other.low, self.high + other.high)


@lru_cache(maxsize=1024)
def band(value: Value, query: int, key: int) -> Interval:
    """Where `q - k` must lie for `value` to be true or non-zero at row `q` of one axis and `k` of another."""
    return _band(Grid(value, _proper(value, query), _proper(value, key)), False)


def band_of(grid: Grid, *, negated: bool = False) -> Interval:
    """Where `q - k` must lie for a grid, or its opposite, to be true or non-zero."""
    return _band(grid, negated)


def _proper(value: Value, axis: int | None) -> int | None:
    if axis is None or not 0 <= axis < value.type.rank or value.type.shape[axis] == 1:
        return None
    return axis


def _band(grid: Grid, negated: bool) -> Interval:
    """Where the grid, or its opposite, can be true."""
    node = grid.value.node
    if node is None or grid.spent():
        return ALL
    if (inner := through(grid)) is not None:
        return _band(inner, negated)
    operands = [aligned(grid, a) for a in node.args if a]
    match node.op:
        case ops.Constant(value=number):
            return EMPTY if bool(number) == negated else ALL
        case ops.Not():
            return _band(operands[0], not negated)
        case ops.And() | ops.Or():
            left, right = _band(operands[0], negated), _band(operands[1], negated)
            return left & right if isinstance(node.op, ops.And) != negated else left | right
        case ops.Where() if grid.value.type.dtype == "bool" or not negated:
            condition, yes, no = operands
            chosen = _band(condition, False) & _band(yes, negated)
            return chosen | (_band(condition, True) & _band(no, negated))
        case ops.Compare(fn=fn):
            return _compare(OPPOSITE[fn] if negated else fn, *operands)
        case ops.Reduce(fn=fn, axis=axis) if node.args[0] and fn == ("all" if negated else "any"):
            inner = grid.at(node.args[0], _added(grid.query, axis), _added(grid.key, axis))
            return _band(inner, negated)
    if negated:
        return ALL
    match node.op:
        case ops.MaskedSoftmax() | ops.Hard() | ops.Share():
            return _band(operands[1], False) if _last_two(grid) else ALL
        case ops.Attend():
            mask = node.args[3] if len(node.args) > 3 else None
            weights = grid.value.type.rank == 4 and (grid.query, grid.key) == (2, 3) and _is_second(grid.value)
            return band(mask, 2, 3) if mask and weights else ALL
        case ops.Arith(fn="mul"):
            one, other = operands
            hidden = ALL if breaks(other) else _band(one, False)
            return hidden & (ALL if breaks(one) else _band(other, False))
        case ops.Arith(fn="div"):
            return ALL if _may_be_zero(operands[1]) or breaks(operands[1]) else _band(operands[0], False)
        case ops.Arith(fn="add" | "sub" | "min" | "max"):
            return _band(operands[0], False) | _band(operands[1], False)
        case ops.Pointwise(fn=fn) if fn in ZERO_AT_ZERO:
            return _band(operands[0], False)
    return ALL


def breaks(grid: Grid) -> bool:
    """Whether it divides by what may be zero at some key: zero times that is no number, and hides nothing."""
    node = grid.value.node
    if node is None:
        return False
    if grid.spent():
        return True
    if (inner := through(grid)) is not None:
        return breaks(inner)
    operands = [aligned(grid, a) for a in node.args if a]
    match node.op:
        case ops.Arith(fn="div" | "floordiv" | "mod"):
            return _may_be_zero(operands[1]) or any(map(breaks, operands))
        case ops.Pointwise(fn="log" | "reciprocal"):
            return _may_be_zero(operands[0]) or breaks(operands[0])
        case ops.Arith() | ops.Pointwise() | ops.Where() | ops.Cast():
            return any(map(breaks, operands))
    return False


def _may_be_zero(grid: Grid) -> bool:
    """Whether a divisor varies from key to key and is not seen to stay away from zero."""
    if grid.key is None:
        return False
    if (inner := through(grid)) is not None:
        return _may_be_zero(inner)
    match grid.value.node and grid.value.node.op:
        case ops.Constant(value=value):
            return not value
        case ops.Pointwise(fn="exp" | "sigmoid" | "softplus"):
            return False
    return True


def _is_second(value: Value) -> bool:
    """Whether a result of `Attend` is its weights: the two differ in the last axis, or are told by it."""
    assert value.node is not None
    query, key, values = value.node.args[:3]
    assert query is not None
    assert key is not None
    assert values is not None
    return value.type.shape[3] == key.type.shape[2] and value.type.shape[3] != values.type.shape[3]


def _last_two(grid: Grid) -> bool:
    rank = grid.value.type.rank
    return grid.query in (None, rank - 2) and grid.key in (None, rank - 1)


def through(grid: Grid) -> Grid | None:
    """The operand of an op that only moves axes about, or works along another axis; None for other ops."""
    node = grid.value.node
    if node is None or not node.args or node.args[0] is None:
        return None
    x, q, k = node.args[0], grid.query, grid.key
    match node.op:
        case ops.Insert(axis=axis):
            return grid.at(x, _removed(q, axis), _removed(k, axis))
        case ops.Squeeze(axis=axis) | ops.Index(axis=axis):
            return grid.at(x, _added(q, axis), _added(k, axis))
        case ops.Transpose(order=order):
            return grid.at(x, None if q is None else order[q], None if k is None else order[k])
        case ops.Expand(axis=axis):
            return grid.at(x, None if q == axis else q, None if k == axis else k)
        case ops.Slice(axis=axis) if axis not in (q, k):
            return grid.at(x, q, k)
        case ops.Cast() if not (x.type.dtype.startswith(("f", "bf")) and grid.value.type.dtype in ("i64", "i32")):
            return grid.at(x, q, k)
    return None


def _removed(axis: int | None, inserted: int) -> int | None:
    return None if axis is None or axis == inserted else axis - (axis > inserted)


def _added(axis: int | None, removed: int) -> int | None:
    return None if axis is None else axis + (axis >= removed)


def aligned(grid: Grid, operand: Value) -> Grid:
    """An operand whose axes are aligned with the result's from the right."""
    shift = grid.value.type.rank - operand.type.rank
    query = None if grid.query is None else grid.query - shift
    key = None if grid.key is None else grid.key - shift
    return grid.at(operand, query, key)


def _compare(fn: str, left: Grid, right: Grid) -> Interval:
    match fn:
        case "eq":
            return _below(left, right, False) & _below(right, left, False)
        case "le" | "lt":
            return _below(left, right, fn == "lt")
        case "ge" | "gt":
            return _below(right, left, fn == "gt")
    return ALL


def _below(left: Grid, right: Grid, strict: bool) -> Interval:
    """Where `left <= right` (or `<`) can hold."""
    if left.spent() or right.spent():
        return ALL
    node, other = left.value.node, right.value.node
    if node is not None:
        match node.op:
            case ops.Pointwise(fn="abs") if node.args[0]:
                inner = aligned(left, node.args[0])
                negative = affine(inner)
                upper = affine(right)
                if negative and upper:
                    return _bound(_minus(negative, upper), strict) & _bound(
                        _minus(negative.times(Fraction(-1)), upper), strict
                    )
            case ops.Arith(fn="max"):
                parts = [_below(aligned(left, a), right, strict) for a in node.args if a]
                return parts[0] & parts[1]
    if other is not None:
        match other.op:
            case ops.Arith(fn="min"):
                parts = [_below(left, aligned(right, a), strict) for a in other.args if a]
                return parts[0] & parts[1]
    a, b = affine(left), affine(right)
    return _bound(_minus(a, b), strict) if a and b else ALL


def _minus(a: Affine, b: Affine) -> Affine:
    return a.plus(b.times(Fraction(-1)))


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
    zero, one = Fraction(0), Fraction(1)
    match node.op:
        case ops.Constant(value=int() | float() as number):
            if not (
                abs(number) < 2**53 and float(number).is_integer()
            ):  # a fraction may be rounded in the model's own arithmetic
                return None
            return Affine(zero, zero, Fraction(number), Fraction(number))
        case ops.Extent() | ops.Range():
            if grid.query == 0:
                return Affine(one, zero, zero, zero)
            return Affine(zero, one, zero, zero) if grid.key == 0 else None
        case ops.Cast(to=to):
            exact = node.args[0] is not None and node.args[0].type.dtype in ("i64", "i32") and to in EXACT
            return affine(aligned(grid, node.args[0])) if exact and node.args[0] else None
        case ops.Pointwise(fn="neg") if node.args[0]:
            inner = affine(aligned(grid, node.args[0]))
            return inner.times(-one) if inner else None
        case ops.Arith(fn=fn):
            parts = [affine(aligned(grid, a)) for a in node.args if a]
            if parts[0] is None or parts[1] is None:
                return None
            return _arith(fn, parts[0], parts[1], grid.value.type.dtype)
    inner_grid = through(grid)
    return affine(inner_grid) if inner_grid else None


EXACT = ("i64", "i32", "f64")
"""Element types that hold every row number as it is; f32 does so only below 2^24."""


def _arith(fn: str, a: Affine, b: Affine, dtype: str) -> Affine | None:
    """`add`, `sub`, `mul` by a number, `floordiv` by a positive number."""
    match fn:
        case "add":
            return a.plus(b)
        case "sub":
            return _minus(a, b)
        case "mul":
            if _number(a) is None:
                a, b = b, a
            factor = _number(a)
            return None if factor is None else b.times(factor)
        case "floordiv" if dtype in ("i64", "i32"):
            divisor = _number(b)
            if divisor is None or divisor <= 0:
                return None
            exact = a.times(1 / divisor)
            # Rounding down takes away at most (n - 1) / n of a whole dividend.
            return Affine(exact.query, exact.key, exact.low - 1 + 1 / divisor, exact.high)
    return None


def _number(a: Affine) -> Fraction | None:
    return a.low if a.query == a.key == 0 and a.low == a.high else None

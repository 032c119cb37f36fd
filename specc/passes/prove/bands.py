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

from functools import lru_cache

from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.interval import ALL, EMPTY, Interval
from specc.passes.prove.affine import below
from specc.passes.prove.grids import Grid, added, aligned, grid_of, through

_AT_ZERO = (
    "abs ceil erf floor gelu gelu_tanh neg quick_gelu relu relu2 round sign "
    "silu sin sqrt tanh"
)
ZERO_AT_ZERO = frozenset(_AT_ZERO.split())
"""Functions of `Pointwise` that give zero for zero."""

OPPOSITE = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le", "eq": "ne", "ne": "eq"}

ATTENDED = (2, 3)
"""The axes of the query and the key in the weights and the mask of an attention."""


@lru_cache(maxsize=1024)
def band(value: Value, query: int, key: int) -> Interval:
    """Where `q - k` must lie for `value` to be true or non-zero at row `q` of one axis
    and `k` of another.
    """
    return _band(grid_of(value, query, key), False)


def band_of(grid: Grid, *, negated: bool = False) -> Interval:
    """Where `q - k` must lie for a grid, or its opposite, to be true or non-zero."""
    return _band(grid, negated)


def _band(grid: Grid, negated: bool) -> Interval:
    """Where the grid, or its opposite, can be true."""
    node = grid.value.node
    if node is None or grid.spent():
        return ALL
    if (inner := through(grid)) is not None:
        return _band(inner, negated)
    operands = [aligned(grid, a) for a in node.args if a]
    if (found := _logical(grid, node, operands, negated)) is not None:
        return found
    # Of numbers only "is not zero" is known; its opposite holds anywhere.
    return ALL if negated else _non_zero(grid, node, operands)


def _logical(
    grid: Grid, node: Node, operands: list[Grid], negated: bool
) -> Interval | None:
    """The band of an op that has an opposite; None for other ops."""
    match node.op:
        case ops.Constant(value=number):
            return EMPTY if bool(number) == negated else ALL
        case ops.Not():
            return _band(operands[0], not negated)
        case ops.And() | ops.Or():
            left, right = (_band(side, negated) for side in operands)
            # "not (a and b)" is "not a or not b", and the other way round.
            both = isinstance(node.op, ops.And) != negated
            return left & right if both else left | right
        case ops.Where() if grid.value.type.dtype == "bool" or not negated:
            condition, yes, no = operands
            chosen = _band(condition, False) & _band(yes, negated)
            return chosen | (_band(condition, True) & _band(no, negated))
        case ops.Compare(fn=fn):
            return _compare(OPPOSITE[fn] if negated else fn, *operands)
        case ops.Reduce(fn="any" | "all" as fn, axis=axis):
            # "any" may be true where one of them may; "not all", where one may be false.
            # Of "all" and of "not any" nothing is concluded.
            x = node.first
            if x is not None and fn == ("all" if negated else "any"):
                query, key = added(grid.query, axis), added(grid.key, axis)
                return _band(grid.at(x, query, key), negated)
    return None


def _non_zero(grid: Grid, node: Node, operands: list[Grid]) -> Interval:
    """Where numbers can be other than zero."""
    match node.op:
        case ops.MaskedSoftmax() | ops.Hard() | ops.Share():
            return _band(operands[1], False) if _last_two(grid) else ALL
        case ops.Attend():
            # Its weights are zero where its mask is false; its other result is no grid.
            mask = node.op.mask(node)
            weights = grid.value.index == node.op.weights_result
            seen = weights and (grid.query, grid.key) == ATTENDED
            return band(mask, *ATTENDED) if mask and seen else ALL
        case ops.Arith(fn="mul"):
            # A product is zero where either factor is, unless the other is no number.
            one, other = operands
            hidden = ALL if breaks(other) else _band(one, False)
            return hidden & (ALL if breaks(one) else _band(other, False))
        case ops.Arith(fn="div"):
            unsure = _may_be_zero(operands[1]) or breaks(operands[1])
            return ALL if unsure else _band(operands[0], False)
        case ops.Arith(fn="add" | "sub" | "min" | "max"):
            return _band(operands[0], False) | _band(operands[1], False)
        case ops.Pointwise(fn=fn) if fn in ZERO_AT_ZERO:
            return _band(operands[0], False)
    return ALL


def breaks(grid: Grid) -> bool:
    """Whether it divides by what may be zero at some key: zero times that is no number,
    and hides nothing.
    """
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


def _last_two(grid: Grid) -> bool:
    rank = grid.value.type.rank
    return grid.query in (None, rank - 2) and grid.key in (None, rank - 1)


def _compare(fn: str, left: Grid, right: Grid) -> Interval:
    match fn:
        case "eq":
            return below(left, right, False) & below(right, left, False)
        case "le" | "lt":
            return below(left, right, fn == "lt")
        case "ge" | "gt":
            return below(right, left, fn == "gt")
    return ALL

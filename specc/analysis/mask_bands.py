"""Find the band of a mask: the interval of offsets `q - k` in which the mask can be true.

The analysis finds, for a value with a query axis (position `q`) and a key axis (position `k`), an
interval of `q - k`. The value is provably false or zero outside this interval. A lower end of at
least 0 proves causality, and the upper end bounds the size of the KV cache.

    j <= i                 [0, ∞]
    0 <= i - j < 4         [0, 3]
    keep[j]                [-∞, ∞]

    same group             [0, 0] in time: a group arrives in one step; else [-∞, ∞]

The interval is a sound over-approximation. An unknown op has the interval [-∞, ∞]. A proof may
therefore fail although the property holds, but a proof is never wrong.

Positions are times, i.e. they are relative to the end of the prefix of their axis. The analysis
finds two intervals. The first interval considers only keys at times >= 0, and its lower end proves
causality. The second interval considers only queries at times >= 0, because decode steps compute no
other queries, and its upper end is the look-back. With a prefix of `m` keys and queries, the mask
`j < m | j <= i` is causal, but `i < m | j <= i` is not.

Each side of a comparison is represented as an affine function of `q` and `k`. In the following
graph, `k <= q` has the interval [0, ∞] and `q < k + 4` has the interval [-∞, 3]. The interval of a
conjunction is the intersection of the intervals of its operands. The negation of a window has no
bounded interval, because the negation is true on both sides of the window:

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

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from math import inf
from typing import NamedTuple, TypeAlias

from specc.analysis.affine_indices import (
    AffineIndex,
    MaybeAffineIndex,
    find_affine_index,
    solve_offset_inequality,
)
from specc.analysis.attention_matrices import (
    AttentionMatrix,
    TraversalBudget,
    align_broadcast_operand,
    has_equal_downsampling_rates,
    is_transposed_pair,
    list_concat_operands,
    make_attention_matrix,
    solve_memoized,
    unwrap_view,
)
from specc.analysis.query_key_products import can_divisor_be_zero, can_have_zero_divisor
from specc.analysis.time_axis_prefix_and_chunks import TimeAxis
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, SAME_POSITION, Interval

ZERO_PRESERVING_FUNCTIONS = frozenset(
    (
        *("abs", "ceil", "erf", "expm1", "floor", "gelu", "gelu_tanh", "log1p", "neg"),
        *("quick_gelu", "relu", "relu2", "round", "sign", "silu", "sin", "sqrt", "tanh"),
    )
)
"""`Pointwise` functions that map zero to zero."""

NEGATED_COMPARISONS = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le", "eq": "ne", "ne": "eq"}

ATTENTION_AXES = (2, 3)
"""The indices of the query axis and the key axis in attention weights and masks."""


@dataclass(frozen=True, slots=True)
class MaskBand:
    """The interval of offsets `t - u` (query time minus key time) within which a mask can be true.
    If the search was stopped at its limit, `is_budget_exhausted` is True and the interval is
    conservative.
    """

    interval: Interval
    is_budget_exhausted: bool = False


@lru_cache(maxsize=1024)
def find_mask_band(
    value: Value, query_axis: int | None, key_axis: int | None, time_axis: TimeAxis | None = None
) -> MaskBand:
    """Return the interval of offsets `t - u` at which `value` can be true or nonzero. `t` and `u`
    are query and key times on `time_axis`, or query and key positions if `time_axis` is None.
    """
    qk = make_attention_matrix(value, query_axis, key_axis, time_axis)
    return _search_band(qk, False) if has_equal_downsampling_rates(qk) else MaskBand(FULL_INTERVAL)


def find_band_interval(
    value: Value, query_axis: int | None, key_axis: int | None, time_axis: TimeAxis | None = None
) -> Interval:
    """Return the interval of the `MaskBand` that `find_mask_band` returns."""
    return find_mask_band(value, query_axis, key_axis, time_axis).interval


def find_query_key_band(qk: AttentionMatrix, *, is_negated: bool = False) -> Interval:
    """Return the offsets at which an attention matrix, or its negation, can be nonzero."""
    return _search_band(qk, is_negated).interval


def find_one_sided_band(qk: AttentionMatrix, *, is_negated: bool = False) -> Interval:
    """Return the interval of offsets at which an attention matrix, or its negation, can be nonzero,
    considering only keys or only queries (`qk.side`) at times >= 0.
    """
    return _BandSearch().find_true_interval(qk, is_negated)


def can_be_nan(qk: AttentionMatrix) -> bool:
    """Return True if a division by zero may cause NaN or infinity in an attention matrix."""
    return _BandSearch().can_divide_by_zero(qk)


def _search_band(qk: AttentionMatrix, is_negated: bool) -> MaskBand:
    key_search, query_search = _BandSearch(), _BandSearch()
    key_band = key_search.find_true_interval(replace(qk, side="keys"), is_negated)
    query_band = query_search.find_true_interval(replace(qk, side="queries"), is_negated)
    is_exhausted = key_search.budget.is_exhausted or query_search.budget.is_exhausted
    return MaskBand(intersect_one_sided_bands(key_band, query_band, qk.time_axis), is_exhausted)


def intersect_one_sided_bands(
    key_band: Interval, query_band: Interval, time_axis: TimeAxis | None
) -> Interval:
    """Return the intersection of the bands for keys at times >= 0 and for queries at times >= 0."""
    # without a time axis, there are no prefix positions and both intervals are equal
    return key_band & query_band if time_axis is None else _intersect_sides(key_band, query_band)


def intersect_bands(left: Interval, right: Interval, time_axis: TimeAxis | None) -> Interval:
    """Return the intersection of two intervals of offsets on `time_axis`. If the intersection is
    empty, return the offsets at which prefix positions may be visible.
    """
    intersection = left & right
    if time_axis is None or not intersection.is_empty or left.is_empty or right.is_empty:
        return intersection
    return _intersect_sides(
        Interval(max(left.low, right.low), inf), Interval(-inf, min(left.high, right.high))
    )


def _intersect_sides(keys: Interval, queries: Interval) -> Interval:
    """Return the smallest interval of offsets at which a key or a query has a time >= 0."""
    if queries.is_empty:
        # If only prefix queries have visible keys, the visible keys after the prefix are
        # look-ahead.
        return keys if keys.low < 0 else EMPTY_INTERVAL
    if keys.low >= 0 > queries.high:
        return EMPTY_INTERVAL
    # If only prefix keys are visible, no later key is visible, but the look-back is unbounded.
    low = 0 if keys.is_empty else keys.low
    return Interval(min(low, queries.high), queries.high)


class _NonZeroBandKey(NamedTuple):
    """A memo key for the interval in which an attention matrix, or its negation, can be nonzero."""

    qk: AttentionMatrix
    is_negated: bool


class _ComparisonBandKey(NamedTuple):
    """A memo key for the interval in which `left <= right` or `left < right` can hold."""

    left: AttentionMatrix
    right: AttentionMatrix
    is_strict: bool


_BandKey: TypeAlias = _NonZeroBandKey | _ComparisonBandKey
_BandSolver: TypeAlias = Generator[_BandKey, Interval, Interval]


@dataclass
class _BandSearch:
    """A search for one band, which memoizes its subproblems and limits their number."""

    budget: TraversalBudget = field(default_factory=TraversalBudget)
    known_intervals: dict[_BandKey, Interval] = field(default_factory=dict)
    known_affine_indices: dict[AttentionMatrix, MaybeAffineIndex] = field(default_factory=dict)
    known_zero_divisors: dict[AttentionMatrix, bool] = field(default_factory=dict)

    def find_true_interval(self, qk: AttentionMatrix, is_negated: bool) -> Interval:
        """Return the offsets at which an attention matrix, or its negation, can be nonzero."""
        subproblem = _NonZeroBandKey(qk, is_negated)
        return solve_memoized(
            subproblem, self._solve_subproblem, self.known_intervals, self.budget, FULL_INTERVAL
        )

    def find_affine_function(self, qk: AttentionMatrix) -> MaybeAffineIndex:
        """Return a matrix as an affine function of query and key time, None if not affine."""
        return solve_memoized(qk, find_affine_index, self.known_affine_indices, self.budget, None)

    def can_divide_by_zero(self, qk: AttentionMatrix) -> bool:
        """Return True if a division by zero may cause NaN in an attention matrix."""
        return solve_memoized(
            qk, can_have_zero_divisor, self.known_zero_divisors, self.budget, True
        )

    def _solve_subproblem(self, subproblem: _BandKey) -> _BandSolver:
        if isinstance(subproblem, _ComparisonBandKey):
            return (yield from self._solve_less_than(*subproblem))
        qk, is_negated = subproblem
        node = qk.value.node
        if node is None:
            return FULL_INTERVAL
        if (operand := unwrap_view(qk)) is not None:
            return (yield _NonZeroBandKey(operand, is_negated))
        if (parts := list_concat_operands(qk)) is not None:
            return (yield from _solve_any([_NonZeroBandKey(p, is_negated) for p in parts]))
        operands = qk.align_operands()
        if (interval := (yield from _solve_logical(qk, node, operands, is_negated))) is not None:
            return interval
        # a number may be zero at any offset, so the negation (the number is zero) has an unbounded
        # interval
        return FULL_INTERVAL if is_negated else (yield from self._solve_nonzero(qk, node, operands))

    def _solve_less_than(
        self, left: AttentionMatrix, right: AttentionMatrix, is_strict: bool
    ) -> _BandSolver:
        # |x| <= y is -y <= x and x <= y; max(a, b) <= y is a <= y and b <= y; x <= min(a, b) is x
        # <= a and x <= b. Each conjunct is a separate comparison.
        match left.value.node:
            case Node(ops.Pointwise("abs"), (Value() as x,)):
                argument = self.find_affine_function(align_broadcast_operand(left, x))
                upper = self.find_affine_function(right)
                if argument and upper:
                    return _solve_absolute(argument, upper, is_strict, left)
            case Node(ops.Arith("max"), (Value() as a, Value() as b)):
                sides = (align_broadcast_operand(left, x) for x in (a, b))
                keys = (_ComparisonBandKey(side, right, is_strict) for side in sides)
                return (yield from _solve_all(keys))
        match right.value.node:
            case Node(ops.Arith("min"), (Value() as a, Value() as b)):
                sides = (align_broadcast_operand(right, x) for x in (a, b))
                keys = (_ComparisonBandKey(left, side, is_strict) for side in sides)
                return (yield from _solve_all(keys))
        left_index, right_index = self.find_affine_function(left), self.find_affine_function(right)
        if left_index is None or right_index is None:
            return FULL_INTERVAL
        return solve_offset_inequality(left_index.subtract(right_index), is_strict, left)

    def _solve_nonzero(
        self, qk: AttentionMatrix, node: Node, operands: list[AttentionMatrix]
    ) -> _BandSolver:
        """Return the offsets at which the non-boolean result of `node` can be nonzero."""
        match node.op:
            case ops.AttentionNormalizer():
                if not has_trailing_query_key_axes(qk):
                    return FULL_INTERVAL
                return (yield _NonZeroBandKey(operands[1], False))
            case ops.Attend():
                # Attention weights are zero where the mask is false. The attention output has no
                # key axis.
                mask = node.op.mask(node)
                if mask is None or not is_attention_weights(qk, node.op):
                    return FULL_INTERVAL
                return (yield _NonZeroBandKey(qk.make_operand_matrix(mask, *ATTENTION_AXES), False))
            case ops.Arith("mul"):
                return (yield from self._multiply_intervals(*operands))
            case ops.Arith("div"):
                dividend, divisor = operands
                if can_divisor_be_zero(divisor) or self.can_divide_by_zero(divisor):
                    return FULL_INTERVAL
                return (yield _NonZeroBandKey(dividend, False))
            case ops.Arith("add" | "sub" | "min" | "max"):
                return (yield from _solve_any([_NonZeroBandKey(o, False) for o in operands]))
            case ops.Pointwise(fn) if fn in ZERO_PRESERVING_FUNCTIONS:
                return (yield _NonZeroBandKey(operands[0], False))
        return FULL_INTERVAL

    def _multiply_intervals(self, left: AttentionMatrix, right: AttentionMatrix) -> _BandSolver:
        """Intersect the intervals of two factors. Ignore the interval of a factor if the other
        factor may be NaN.
        """
        pairs = (left, right), (right, left)
        factors = (a for a, b in pairs if not self.can_divide_by_zero(b))
        return (yield from _solve_all(_NonZeroBandKey(factor, False) for factor in factors))


def _solve_absolute(
    argument: AffineIndex, upper: AffineIndex, is_strict: bool, qk: AttentionMatrix
) -> Interval:
    """Return the interval in which `|argument| <= upper` (`<` if `is_strict`) can hold."""
    opposite = argument.multiply(Fraction(-1)).subtract(upper)
    positive_side = solve_offset_inequality(argument.subtract(upper), is_strict, qk)
    return positive_side & solve_offset_inequality(opposite, is_strict, qk)


def has_trailing_query_key_axes(qk: AttentionMatrix) -> bool:
    """Return True if the query axis and the key axis are the last two axes, or are broadcast."""
    rank = qk.value.rank
    return qk.query_axis in (None, rank - 2) and qk.key_axis in (None, rank - 1)


def is_attention_weights(qk: AttentionMatrix, op: ops.Attend) -> bool:
    """Return True if `qk` contains the attention weights of `op`, with their query and key axes."""
    is_weights = qk.value.index == op.weights_result
    return is_weights and (qk.query_axis, qk.key_axis) == ATTENTION_AXES


def _solve_any(subproblems: Iterable[_BandKey]) -> _BandSolver:
    """Return the union of the intervals of several subproblems."""
    union = EMPTY_INTERVAL
    for subproblem in subproblems:
        union |= yield subproblem
    return union


def _solve_all(subproblems: Iterable[_BandKey]) -> _BandSolver:
    """Return the intersection of the intervals of several subproblems."""
    intersection = FULL_INTERVAL
    for subproblem in subproblems:
        intersection &= yield subproblem
    return intersection


def _solve_logical(
    qk: AttentionMatrix, node: Node, operands: list[AttentionMatrix], is_negated: bool
) -> Generator[_BandKey, Interval, Interval | None]:
    """Return the interval of a logical op or its negation, or None for other ops."""
    match node.op:
        case ops.Constant(number):
            return EMPTY_INTERVAL if bool(number) == is_negated else FULL_INTERVAL
        case ops.Not():
            return (yield _NonZeroBandKey(operands[0], not is_negated))
        case ops.And() | ops.Or():
            # Negated conjunctions and disjunctions follow De Morgan's laws.
            solve = _solve_all if isinstance(node.op, ops.And) != is_negated else _solve_any
            return (yield from solve(_NonZeroBandKey(o, is_negated) for o in operands))
        case ops.Where() if qk.value.dtype == "bool" or not is_negated:
            return (yield from _solve_where(operands, is_negated))
        case ops.Compare(fn):
            comparison = NEGATED_COMPARISONS.get(fn, "") if is_negated else fn
            return (yield from _solve_comparison(comparison, *operands))
        case ops.Reduce("any" | "all" as fn, axis):
            # `any` can be true wherever an element of the operand can be true. `not all` can be
            # true wherever an element of the operand can be false. The intervals of `all` and `not
            # any` are unknown.
            if fn == ("all" if is_negated else "any"):
                operand = qk.restore_removed_axis(node.get_operand(), axis)
                return (yield _NonZeroBandKey(operand, is_negated))
    return None


def _solve_where(operands: Sequence[AttentionMatrix], is_negated: bool) -> _BandSolver:
    """Return the interval of a `where` op, or of its negation."""
    condition, yes, no = operands
    true_band = yield _NonZeroBandKey(condition, False)
    true_band &= yield _NonZeroBandKey(yes, is_negated)
    false_band = yield _NonZeroBandKey(condition, True)
    return true_band | (false_band & (yield _NonZeroBandKey(no, is_negated)))


def _solve_comparison(fn: str, left: AttentionMatrix, right: AttentionMatrix) -> _BandSolver:
    match fn:
        case "eq":
            pairs = (left, right), (right, left)
            return (yield from _solve_all(_ComparisonBandKey(*pair, False) for pair in pairs))
        case "le" | "lt":
            return (yield _ComparisonBandKey(left, right, fn == "lt"))
        case "ge" | "gt":
            return (yield _ComparisonBandKey(right, left, fn == "gt"))
        case "same_group" if left.time_axis is not None and is_transposed_pair(left, right):
            return SAME_POSITION  # all positions of a group are passed in the same step
    return FULL_INTERVAL

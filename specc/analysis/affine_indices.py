"""Represent position ids as affine functions of query and key position, and solve comparisons of
position ids for the offset `q - k`.

The inputs are the two sides of a comparison. Each side has the form `a t + b u + far + c`. `t` is
the query time, `u` is the key time, and `far` is a sum of symbolic dimensions. `c` lies in an
interval, because integer division rounds down. If the coefficients of `t` and `u` in the difference
of the two sides have opposite signs and equal magnitudes, the comparison bounds `t - u`. It also
bounds `t - u` if, for keys with `u >= 0` or queries with `t >= 0`, the remaining terms can only
make the comparison harder to satisfy:

    k <= q              q - k >= 0
    q // 3 <= k // 3    q - k <= 2      c lies between -2/3 and 2/3
    2 k <= q            q - k >= 0      for k >= 0
    k < m               unbounded       after a prefix of `m` positions: k is `m + u`
    q + k <= 5          no bound on q - k
"""

from collections.abc import Generator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, inf, lcm
from typing import TypeAlias

from specc.analysis.attention_matrices import AttentionMatrix, align_broadcast_operand, unwrap_view
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node, Value
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, Interval

EXACT_INDEX_DTYPES = ("i64", "i32", "f64")
"""Element types that can represent every position id exactly. (f32 is exact only up to 2^24.)"""

ZERO, ONE = Fraction(0), Fraction(1)


ZERO_LENGTH = Dim.from_value(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineIndex:
    """The affine function `query_coefficient · t + key_coefficient · u +
    symbolic_length / length_divisor + c` of query time `t` and key time `u`, where
    `min_offset <= c <= max_offset`. `symbolic_length` is a sum of
    symbolic dimensions without a constant term.
    """

    query_coefficient: Fraction = ZERO
    key_coefficient: Fraction = ZERO
    min_offset: Fraction = ZERO
    max_offset: Fraction = ZERO
    symbolic_length: Dim = ZERO_LENGTH
    length_divisor: int = 1

    def multiply(self, factor: Fraction) -> "AffineIndex":
        """Return this affine function multiplied by a constant factor."""
        low, high = sorted((self.min_offset * factor, self.max_offset * factor))
        return AffineIndex(
            query_coefficient=self.query_coefficient * factor,
            key_coefficient=self.key_coefficient * factor,
            min_offset=low,
            max_offset=high,
            symbolic_length=self.symbolic_length * factor.numerator,
            length_divisor=self.length_divisor * factor.denominator,
        )

    def subtract(self, other: "AffineIndex") -> "AffineIndex":
        """Return the difference of two affine functions."""
        return self.add(other.multiply(-ONE))

    def add(self, other: "AffineIndex") -> "AffineIndex":
        """Return the sum of two affine functions."""
        divisor = lcm(self.length_divisor, other.length_divisor)
        return AffineIndex(
            query_coefficient=self.query_coefficient + other.query_coefficient,
            key_coefficient=self.key_coefficient + other.key_coefficient,
            min_offset=self.min_offset + other.min_offset,
            max_offset=self.max_offset + other.max_offset,
            symbolic_length=self.symbolic_length * (divisor // self.length_divisor)
            + other.symbolic_length * (divisor // other.length_divisor),
            length_divisor=divisor,
        )

    @property
    def constant_value(self) -> Fraction | None:
        """The value of the function if the value is the same at all positions, otherwise None."""
        is_constant = (
            self.query_coefficient == self.key_coefficient == 0 and self.symbolic_length == 0
        )
        return self.min_offset if is_constant and self.min_offset == self.max_offset else None


MaybeAffineIndex: TypeAlias = AffineIndex | None
"""An affine function of query and key time, or None if the value is not affine."""

AffineIndexSearch: TypeAlias = Generator[AttentionMatrix, MaybeAffineIndex, MaybeAffineIndex]


def convert_length_to_affine_index(length: Dim) -> AffineIndex:
    """Return an axis size as an affine function with separate constant and symbolic terms."""
    number = dict(length.terms).get((), 0)
    return AffineIndex(
        min_offset=Fraction(number), max_offset=Fraction(number), symbolic_length=length - number
    )


def solve_offset_inequality(
    difference: AffineIndex, is_strict: bool, qk: AttentionMatrix
) -> Interval:
    """Return the interval of `t - u` (query time minus key time) in which `difference <= 0`
    (`difference < 0` if `is_strict`) can hold.
    """
    # a t + b u equals a (t - u) + (a + b) u and also -b (t - u) + (a + b) t. A non-negative term
    # only makes `difference <= 0` harder to satisfy, so it is dropped.
    if difference.query_coefficient + difference.key_coefficient < 0 or not _is_nonnegative(
        difference, qk
    ):
        return FULL_INTERVAL
    slope = difference.query_coefficient if qk.side == "keys" else -difference.key_coefficient
    if slope == 0:
        can_hold = difference.min_offset < 0 or (difference.min_offset == 0 and not is_strict)
        return FULL_INTERVAL if can_hold else EMPTY_INTERVAL
    bound = -difference.min_offset / slope
    if slope > 0:
        return Interval(-inf, ceil(bound) - 1 if is_strict else floor(bound))
    return Interval(floor(bound) + 1 if is_strict else ceil(bound), inf)


def _is_nonnegative(difference: AffineIndex, qk: AttentionMatrix) -> bool:
    """Return True if the symbolic terms of `difference` are never negative and can be dropped."""
    if difference.symbolic_length == 0:
        return True
    return qk.time_axis is not None and qk.time_axis.is_non_negative(difference.symbolic_length)


def find_affine_index(qk: AttentionMatrix) -> AffineIndexSearch:
    """Return `qk` as an affine function of query and key time, or None if it is not affine."""
    node = qk.value.node
    match node:
        case Node(ops.Constant(int() | float() as number)):
            return _match_constant(number)
        case Node(ops.Size(length)):
            return (
                convert_length_to_affine_index(length) if _is_constant_length(length, qk) else None
            )
        case Node(ops.Extent() | ops.Range()):
            return _match_position_id(qk)
        case Node(ops.Cast(to), (Value() as x,)):
            # A narrower type rounds large position ids, which may change their order.
            is_exact = x.dtype in ("i64", "i32") and to in EXACT_INDEX_DTYPES
            return (yield align_broadcast_operand(qk, x)) if is_exact else None
        case Node(ops.Pointwise("neg"), (Value() as x,)):
            operand_index = yield align_broadcast_operand(qk, x)
            return operand_index.multiply(-ONE) if operand_index else None
        case Node(ops.Arith(function), (Value() as a, Value() as b)):
            left, right = (
                (yield align_broadcast_operand(qk, a)),
                (yield align_broadcast_operand(qk, b)),
            )
            if left is None or right is None:
                return None
            return _combine_affine_indices(function, left, right, qk.value.dtype)
    operand = unwrap_view(qk)
    return (yield operand) if operand else None


def _is_constant_length(length: Dim, qk: AttentionMatrix) -> bool:
    """Return True if an axis has the same size in every decode step."""
    return qk.time_axis is None or not length.symbols() & qk.time_axis.dependent_symbols


def _match_position_id(qk: AttentionMatrix) -> AffineIndex | None:
    """Match the position ids of the query axis (`prefix + t`) or of the key axis (`prefix + u`)."""
    # if the prefix length is unknown, the relation between position ids and times is also unknown
    prefix_length = qk.get_prefix_length(0)
    if prefix_length is None or (qk.query_axis, qk.key_axis) not in ((0, None), (None, 0)):
        return None
    index = (
        AffineIndex(query_coefficient=ONE)
        if qk.query_axis == 0
        else AffineIndex(key_coefficient=ONE)
    )
    return index.add(convert_length_to_affine_index(prefix_length))


def _match_constant(number: float) -> AffineIndex | None:
    """Match an integer below 2**53, because larger integers may be rounded at run time."""
    if not (abs(number) < 2**53 and float(number).is_integer()):
        return None
    return AffineIndex(min_offset=Fraction(number), max_offset=Fraction(number))


def _combine_affine_indices(
    function: str, a: AffineIndex, b: AffineIndex, dtype: str
) -> AffineIndex | None:
    """Return the result of `add`, `sub`, `mul` by a constant, or `floordiv` by a positive constant.
    Return None for other functions.
    """
    match function:
        case "add":
            return a.add(b)
        case "sub":
            return a.subtract(b)
        case "mul":
            factor, multiplied = (b, a) if a.constant_value is None else (a, b)
            number = factor.constant_value
            return None if number is None else multiplied.multiply(number)
        case "floordiv" if dtype in ("i64", "i32"):
            divisor = b.constant_value
            if divisor is None or divisor <= 0:
                return None
            exact = a.multiply(1 / divisor)
            # Floor division by n rounds down by at most (n - 1) / n.
            return exact.add(AffineIndex(min_offset=Fraction(-1) + 1 / divisor))
    return None

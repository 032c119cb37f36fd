"""Analyze query-key tensors (attention scores, masks and attention weights): constants, divisions
by zero, infinities, factors of contractions.

A tensor with a query axis and a key axis may be a contraction of factors with the same two axes,
such as `einsum("b h i j, h g -> b g i j", w, mix)`, which sums over heads. If one factor is zero
for a (query, key) pair, the result is also zero, unless another factor is infinite or NaN.

The analysis tracks only constants that every dtype represents exactly (halves of integers up to
256, and infinity), so that the results also hold in the compiled model.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import reduce
from math import ceil, floor, inf, isclose, isinf, isnan, nan
from operator import and_, or_
from typing import TypeAlias

from specc.analysis.query_key_tensors import (
    QueryKeyTensor,
    TraversalBudget,
    align_operand,
    solve_all,
    solve_any,
    solve_memoized,
    unwrap_view,
)
from specc.analysis.value_ranges import COMPARISON_FUNCTIONS, find_uniform_value, find_value_range
from specc.ir import ops
from specc.ir.dependence import find_dependences
from specc.ir.graph import Node, Value
from specc.ir.op import Op
from specc.ir.types import FULL_INTERVAL, SAME_POSITION, Interval

SUM_OF_PRODUCTS_OPS: tuple[type[Op], ...] = (ops.Einsum, ops.Linear, ops.MatMul, ops.Conv)
ELEMENTWISE_OPS: tuple[type[Op], ...] = (
    *(ops.Arith, ops.Pointwise, ops.Where, ops.Cast, ops.Concat),
)


def split_product_factors(qk: QueryKeyTensor) -> list[QueryKeyTensor] | None:
    """Return the factors of a contraction. Return None if the tensor is no contraction, has a bias,
    or reads a factor at other query or key positions.
    """
    node = qk.value.node
    if node is None or not isinstance(node.op, SUM_OF_PRODUCTS_OPS):
        return None
    if _has_bias(node):
        return None  # A matrix product with a bias is not zero if the operands are zero.
    axes = _find_factor_axes(qk, node)
    if axes is None:
        return None
    return [
        qk.view_operand(factor, at.get(qk.query_axis), at.get(qk.key_axis))
        for factor, at in zip(node.args, axes, strict=True)
        if factor is not None
    ]


def _find_factor_axes(qk: QueryKeyTensor, node: Node) -> list[dict[int | None, int]] | None:
    """Return, for each factor, its axes by the result axis that they become. Return None if a
    factor is read at other query or key positions.
    """
    axes: list[dict[int | None, int]] = [{} for _ in node.args]
    for link in find_dependences(node):
        if link.kind in ("same", "window", "strided") and link.result_axis is not None:
            if link.offsets == SAME_POSITION and link.kind != "strided":
                axes[link.operand][link.result_axis] = link.operand_axis
            elif link.result_axis in (qk.query_axis, qk.key_axis):
                return None
    return axes


def _has_bias(node: Node) -> bool:
    """Return True if the op adds a bias, so that the result for zero operands may be nonzero."""
    return isinstance(node.op, ops.Linear | ops.Conv) and node.op.bias(node) is not None


MAX_QUERY_KEY_TENSORS = 5_000
"""Maximum number of tensors that are analyzed per query of the analysis."""


def has_no_key_dependent_infinities(qk: QueryKeyTensor) -> bool:
    """Return True if no infinite constant occurs at some keys but not at others."""
    return solve_memoized(qk, _solve_finite, {}, TraversalBudget(MAX_QUERY_KEY_TENSORS), False)


def _solve_finite(qk: QueryKeyTensor) -> Generator[QueryKeyTensor, bool, bool]:
    node = qk.value.node
    if qk.key_axis is None or node is None:
        return True
    if (inner := unwrap_view(qk)) is not None:
        return (yield inner)
    if (factors := split_product_factors(qk)) is not None:
        return (yield from solve_all(factors))
    match node.op:
        case ops.Pointwise("exp" | "sigmoid" | "tanh"):
            return True
        case op if isinstance(op, ELEMENTWISE_OPS):
            # Infinity may occur at some keys but not at others.
            operands = node.operands
            if any(map(_is_uniformly_infinite, operands)):
                return False
            return (yield from solve_all([align_operand(qk, a) for a in operands]))
        case ops.CumSum() | ops.Sort() | ops.Gather() | ops.Reduce() | ops.Delay():
            return not any(_has_infinity_constant(a) for a in node.args)
    return True


def _is_uniformly_infinite(value: Value) -> bool:
    return isinf(find_uniform_value(value) or 0.0)


def _has_infinity_constant(value: Value | None) -> bool:
    """Return True if a value that the analysis inspects is an infinite constant."""
    worklist, seen = [value], set()
    while worklist:
        here = worklist.pop()
        if here is None or here.node is None or here in seen:
            continue
        if not here.dtype.startswith(("f", "bf")):
            continue  # position indices and booleans are never infinite
        seen.add(here)
        match here.node.op:
            case ops.Constant(number) if isinf(number):
                return True
            case ops.Compare() | ops.Softmax() | ops.MaskedSoftmax():
                continue
        if len(seen) > MAX_QUERY_KEY_TENSORS:
            return True
        worklist += here.node.args
    return False


def solve_division_by_zero(qk: QueryKeyTensor) -> Generator[QueryKeyTensor, bool, bool]:
    """Return True if the tensor contains a quotient whose divisor may be zero at some keys."""
    node = qk.value.node
    if node is None:
        return False
    if (inner := unwrap_view(qk)) is not None:
        return (yield inner)
    operands = split_product_factors(qk)
    if operands is None:
        operands = qk.align_operands()
    match node.op:
        case ops.Arith("div" | "floordiv" | "mod") if can_be_zero(operands[1]):
            return True
        case ops.Pointwise("log" | "reciprocal") if can_be_zero(operands[0]):
            return True
        case ops.Pointwise("log1p") if find_value_range(operands[0].value)[0] <= -1:
            return True
        case op if isinstance(op, (*SUM_OF_PRODUCTS_OPS, *ELEMENTWISE_OPS)):
            return (yield from solve_any(operands))
    return False


def can_be_zero(qk: QueryKeyTensor) -> bool:
    """Return True if a divisor varies along the key axis and may be zero."""
    inner: QueryKeyTensor | None = qk
    while inner is not None:
        if inner.key_axis is None:
            return False
        qk, inner = inner, unwrap_view(inner)
    match qk.value.node and qk.value.node.op:
        case ops.Constant(value):
            return not value
        case ops.Pointwise("exp" | "sigmoid" | "softplus"):
            return False
    return True


MaskedConstants: TypeAlias = Mapping[float, Interval]
"""Each constant with the interval of `q - k` outside which a query-key tensor equals the
constant.
"""

NO_MASKED_CONSTANTS: MaskedConstants = {}


def propagate_unary_constants(
    function: Callable[[float], float] | None, masked_values: MaskedConstants
) -> MaskedConstants:
    """Apply a unary function to the constants."""
    if function is None:
        return NO_MASKED_CONSTANTS
    # several constants may have the same result; their intervals are then joined, and NaN is
    # dropped
    made = [{function(n): i} for n, i in masked_values.items()]
    return intersect_masked_constants(
        {n: i for n, i in pair.items() if not isnan(n)} for pair in made
    )


def propagate_binary_constants(
    function_name: str, left: MaskedConstants, right: MaskedConstants
) -> MaskedConstants:
    """Return the constants after a binary arithmetic op or a comparison. Each holds outside the
    union of the operands' intervals.
    """
    function = BINARY_FUNCTIONS[function_name]
    return intersect_masked_constants(
        {made: i | j}
        for n, i in left.items()
        for m, j in right.items()
        if _is_exact_in_all_dtypes(made := float(function(n, m)), n, m)
        or (function_name in COMPARISON_FUNCTIONS and _is_distinct_in_all_dtypes(n, m))
    )


def intersect_masked_constants(all_values: Iterable[MaskedConstants]) -> MaskedConstants:
    """Combine several results: a constant holds outside the intersection of its intervals."""
    joined: dict[float, Interval] = {}
    for pairs in all_values:
        for number, reach in pairs.items():
            joined[number] = joined.get(number, FULL_INTERVAL) & reach
    return joined


def find_common_constants(grids_values: list[MaskedConstants]) -> MaskedConstants:
    """Return the constants that all concatenated operands share."""
    if not grids_values:
        return NO_MASKED_CONSTANTS
    common = reduce(and_, (set(p) for p in grids_values))
    # a constant holds outside the union of the intervals, because an operand may differ inside its
    # interval
    return {n: reduce(or_, (p[n] for p in grids_values)) for n in common}


def is_reduction_fixed_point(function_name: str, number: float, length: int) -> bool:
    """Return True if reducing `length` elements equal to `number` returns `number`; length 0
    represents an unknown length, which may be 0.
    """
    nothing = {"sum": 0.0, "max": -inf, "min": inf, "any": 0.0, "all": 1.0}.get(function_name)
    if number == nothing:
        return True
    # A sum of n equal constants is n times the constant, except for infinity.
    return length > 0 and (function_name != "sum" or isinf(number))


def _is_exact_in_all_dtypes(*numbers: float) -> bool:
    """Return True if every dtype represents the numbers exactly, i.e. as `p / 2**k` with 8 bits for
    `p`.
    """
    if any(isnan(n) for n in numbers):
        return False
    ratios = [n.as_integer_ratio() for n in numbers if not isinf(n)]
    return all(abs(p) <= 256 and q <= 1024 for p, q in ratios)


def _is_distinct_in_all_dtypes(n: float, m: float) -> bool:
    """Return True if `n` is less than `m` after rounding to any dtype."""
    largest = max(abs(x) for x in (n, m, 0.0) if not isinf(x))
    return largest < 6e4 and not isclose(n, m, rel_tol=0.01, abs_tol=1e-4)


def _divide(a: float, b: float) -> float:
    return a / b if b else nan


def _compute_power(a: float, b: float) -> float:
    # Other powers are rounded differently in each dtype.
    return a**b if b in (1, 2) and not isinf(a) else nan


BINARY_FUNCTIONS: Mapping[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "min": min,
    "max": max,
    "pow": _compute_power,
    "floordiv": lambda a, b: nan,
    "mod": lambda a, b: nan,
    **COMPARISON_FUNCTIONS,
}

EXACT_UNARY_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "abs": abs,
    "ceil": lambda x: x if isinf(x) else float(ceil(x)),
    # below about -745 the result underflows to 0 even in float64
    "exp": lambda x: {0.0: 1.0, inf: inf}.get(x, 0.0 if x < -1000 else nan),
    "expm1": lambda x: {0.0: 0.0, inf: inf}.get(x, -1.0 if x < -1000 else nan),
    "floor": lambda x: x if isinf(x) else float(floor(x)),
    "log": lambda x: {0.0: -inf, 1.0: 0.0, inf: inf}.get(x, nan),
    "log1p": lambda x: {-1.0: -inf, 0.0: 0.0, inf: inf}.get(x, nan),
    "neg": lambda x: -x,
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: {-inf: 0.0, inf: 1.0}.get(x, nan),
    "sign": lambda x: float((x > 0) - (x < 0)),
    "sqrt": lambda x: x if x in (0.0, 1.0, inf) else nan,
    "tanh": lambda x: {-inf: -1.0, 0.0: 0.0, inf: 1.0}.get(x, nan),
    **dict.fromkeys(
        ("erf", "gelu", "gelu_tanh", "quick_gelu", "relu2", "silu", "sin"),
        lambda x: 0.0 if x == 0 else nan,
    ),
}
"""Functions whose results on the tracked constants are exact in every element type."""

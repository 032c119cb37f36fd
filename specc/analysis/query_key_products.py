"""Analyze products with a query axis and a key axis (attention scores, masks and attention
weights): find their factors, prove that factors are finite, and propagate constants at masked
positions.

An attention matrix may be a contraction, such as `einsum("b h i j, h g -> b g i j", w, mix)`, which
sums over heads and whose factor `w` has the same query and key axes. If one factor is zero for a
(query, key) pair, the result is also zero, unless another factor is infinite or NaN.

The analysis tracks only constants that every dtype represents exactly: halves of integers up to
256, and infinity. The results are therefore also valid for compiled models in any dtype.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import reduce
from math import ceil, floor, inf, isclose, isinf, isnan, nan
from operator import and_, or_
from typing import TypeAlias

from specc.analysis.attention_matrices import (
    AttentionMatrix,
    TraversalBudget,
    are_all_subproblems_true,
    is_any_subproblem_true,
    solve_memoized,
    unwrap_view,
)
from specc.analysis.value_ranges import COMPARISON_FUNCTIONS, find_splat_value, find_value_range
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.loop_dependence import find_dependences
from specc.ir.op import Op
from specc.ir.types import FULL_INTERVAL, SAME_POSITION, Interval

SUM_OF_PRODUCTS_OPS: tuple[type[Op], ...] = (ops.Einsum, ops.Linear, ops.MatMul, ops.Conv)
ELEMENTWISE_OPS: tuple[type[Op], ...] = (
    *(ops.Arith, ops.Pointwise, ops.Where, ops.Cast, ops.Concat),
)


def split_contraction_factors(qk: AttentionMatrix) -> list[AttentionMatrix] | None:
    """Return the factors of a contraction. Return None if the matrix is not a contraction, if it
    includes a bias, or if it combines different query or key positions of a factor.
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
        qk.make_operand_matrix(factor, factor_axes.get(qk.query_axis), factor_axes.get(qk.key_axis))
        for factor, factor_axes in zip(node.args, axes, strict=True)
        if factor is not None
    ]


def _find_factor_axes(qk: AttentionMatrix, node: Node) -> list[dict[int | None, int]] | None:
    """Return one dictionary per factor of a contraction. Each dictionary maps result axes to the
    corresponding axes of the factor. Return None if a result position depends on a different query
    or key position of a factor.
    """
    axes: list[dict[int | None, int]] = [{} for _ in node.args]
    for dependence in find_dependences(node):
        if dependence.kind in ("same", "window", "strided") and dependence.result_axis is not None:
            if dependence.offsets == SAME_POSITION and dependence.kind != "strided":
                axes[dependence.operand][dependence.result_axis] = dependence.operand_axis
            elif dependence.result_axis in (qk.query_axis, qk.key_axis):
                return None
    return axes


def _has_bias(node: Node) -> bool:
    """Return True if the op adds a bias, so that the result for zero operands may be nonzero."""
    return isinstance(node.op, ops.Linear | ops.Conv) and node.op.bias(node) is not None


MAX_ATTENTION_MATRICES = 5_000
"""Maximum number of attention matrices that one call of the analysis visits."""


def has_no_key_dependent_infinities(qk: AttentionMatrix) -> bool:
    """Return True if no infinite constant occurs at some keys but not at others."""
    return solve_memoized(qk, _solve_finite, {}, TraversalBudget(MAX_ATTENTION_MATRICES), False)


def _solve_finite(qk: AttentionMatrix) -> Generator[AttentionMatrix, bool, bool]:
    node = qk.value.node
    if qk.key_axis is None or node is None:
        return True
    if (operand := unwrap_view(qk)) is not None:
        return (yield operand)
    if (factors := split_contraction_factors(qk)) is not None:
        return (yield from are_all_subproblems_true(factors))
    match node.op:
        case ops.Pointwise("exp" | "sigmoid" | "tanh"):
            return True
        case op if isinstance(op, ELEMENTWISE_OPS):
            # A key-dependent operand may be infinite at only some keys.
            if any(isinf(find_splat_value(a) or 0.0) for a in node.operands):
                return False
            return (yield from are_all_subproblems_true(qk.align_operands()))
        case ops.CumSum() | ops.Sort() | ops.Gather() | ops.Reduce() | ops.Delay():
            return not any(_has_infinity_constant(a) for a in node.args)
    return True


def _has_infinity_constant(value: Value | None) -> bool:
    """Return True if `value` may be infinite. Softmax results and comparisons are always finite."""
    worklist, visited = [value], set()
    while worklist:
        current = worklist.pop()
        if current is None or current.node is None or current in visited:
            continue
        if not current.dtype.startswith(("f", "bf")):
            continue  # position indices and booleans are never infinite
        visited.add(current)
        match current.node.op:
            case ops.Constant(number) if isinf(number):
                return True
            case ops.Compare() | ops.Softmax() | ops.MaskedSoftmax():
                continue
        if len(visited) > MAX_ATTENTION_MATRICES:
            return True
        worklist += current.node.args
    return False


def can_have_zero_divisor(qk: AttentionMatrix) -> Generator[AttentionMatrix, bool, bool]:
    """Return True if an attention matrix contains a quotient whose divisor may be zero at some
    keys.
    """
    node = qk.value.node
    if node is None:
        return False
    if (operand := unwrap_view(qk)) is not None:
        return (yield operand)
    operands = split_contraction_factors(qk)
    if operands is None:
        operands = qk.align_operands()
    match node.op:
        case ops.Arith("div" | "floordiv" | "mod") if can_divisor_be_zero(operands[1]):
            return True
        case ops.Pointwise("log" | "reciprocal") if can_divisor_be_zero(operands[0]):
            return True
        case ops.Pointwise("log1p") if find_value_range(operands[0].value)[0] <= -1:
            return True
        case op if isinstance(op, (*SUM_OF_PRODUCTS_OPS, *ELEMENTWISE_OPS)):
            return (yield from is_any_subproblem_true(operands))
    return False


def can_divisor_be_zero(qk: AttentionMatrix) -> bool:
    """Return True if a divisor may be zero at some keys but not at others."""
    operand: AttentionMatrix | None = qk
    while operand is not None:
        if operand.key_axis is None:
            return False
        qk, operand = operand, unwrap_view(operand)
    match qk.value.node and qk.value.node.op:
        case ops.Constant(value):
            return not value
        case ops.Pointwise("exp" | "sigmoid" | "softplus"):
            return False
    return True


MaskedConstants: TypeAlias = Mapping[float, Interval]
"""Maps each constant to the interval of `q - k` outside which the matrix equals the constant."""

NO_MASKED_CONSTANTS: MaskedConstants = {}


def propagate_constants_through_unary_op(
    function: Callable[[float], float] | None, constants: MaskedConstants
) -> MaskedConstants:
    """Return the constants after an elementwise `function`. If `function` is None, return no
    constants.
    """
    if function is None:
        return NO_MASKED_CONSTANTS
    # Intervals of constants with the same result are merged, and NaN results are dropped.
    results = [{function(n): i} for n, i in constants.items()]
    return intersect_masked_constants(
        {n: i for n, i in pair.items() if not isnan(n)} for pair in results
    )


def propagate_constants_through_binary_op(
    function_name: str, left: MaskedConstants, right: MaskedConstants
) -> MaskedConstants:
    """Return the constants of the result of a binary arithmetic op or a comparison. Each constant
    of the result holds outside the union of the intervals of two operand constants.
    """
    function = BINARY_FUNCTIONS[function_name]
    return intersect_masked_constants(
        {result: i | j}
        for n, i in left.items()
        for m, j in right.items()
        if _is_exact_in_all_dtypes(result := float(function(n, m)), n, m)
        or (function_name in COMPARISON_FUNCTIONS and _is_distinct_in_all_dtypes(n, m))
    )


def intersect_masked_constants(results: Iterable[MaskedConstants]) -> MaskedConstants:
    """Combine the results of several analyses of one matrix. A constant holds outside the
    intersection of its intervals in the results.
    """
    intersections: dict[float, Interval] = {}
    for constants in results:
        for number, interval in constants.items():
            intersections[number] = intersections.get(number, FULL_INTERVAL) & interval
    return intersections


def find_common_constants(operand_constants: list[MaskedConstants]) -> MaskedConstants:
    """Return the constants that are shared by all concatenated operands."""
    if not operand_constants:
        return NO_MASKED_CONSTANTS
    common = reduce(and_, (set(constants) for constants in operand_constants))
    # A constant holds outside the union of the intervals, because an operand may differ from the
    # constant inside its interval.
    return {n: reduce(or_, (constants[n] for constants in operand_constants)) for n in common}


NEUTRAL_ELEMENTS = {"sum": 0.0, "max": -inf, "min": inf, "any": 0.0, "all": 1.0}
"""The neutral element of each reduction, except of `mean`."""


def is_preserved_by_reduction(function_name: str, constant: float, length: int) -> bool:
    """Return True if a reduction returns `constant` when all of its `length` elements are
    `constant`. A `length` of 0 means that the number of elements is unknown and may be 0.
    """
    if constant == NEUTRAL_ELEMENTS.get(function_name):
        return True
    # A sum of n constants `c` is `n * c`, which differs from `c` unless `c` is 0 or infinite.
    return length > 0 and (function_name != "sum" or isinf(constant))


def _is_exact_in_all_dtypes(*numbers: float) -> bool:
    """Return True if every dtype represents the numbers exactly (`p / 2**k` with an 8-bit `p`)."""
    if any(isnan(n) for n in numbers):
        return False
    ratios = [n.as_integer_ratio() for n in numbers if not isinf(n)]
    return all(abs(p) <= 256 and q <= 1024 for p, q in ratios)


def _is_distinct_in_all_dtypes(n: float, m: float) -> bool:
    """Return True if `n` is less than `m` even after both are rounded to any dtype."""
    largest = max(abs(x) for x in (n, m, 0.0) if not isinf(x))
    return largest < 6e4 and not isclose(n, m, rel_tol=0.01, abs_tol=1e-4)


BINARY_FUNCTIONS: Mapping[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b else nan,
    "min": min,
    "max": max,
    # Powers with other exponents are rounded differently in each dtype.
    "pow": lambda a, b: a**b if b in (1, 2) and not isinf(a) else nan,
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
"""Functions whose results for the tracked constants are exact in every element type."""

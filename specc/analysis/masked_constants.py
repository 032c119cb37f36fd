"""Infer the constant that an attention matrix holds at masked positions.

For a value with a query axis (position `q`) and a key axis (position `k`), the result is a mapping
from constants to intervals of `q - k`. Outside the interval of a constant, the value equals the
constant. True counts as 1 and false as 0, so the interval of the constant 0 is the band of a mask.

    where(causal, s, -inf)                  -inf outside [0, ∞]
    exp(where(causal, s, -inf) - m[q])      0 outside [0, ∞]
    where(causal & window(4), s, 0) + 1     1 outside [0, 3]

Reductions over keys use the constants at masked positions: additional elements of -inf do not
change a maximum, and zeros do not change a sum. The analysis is sound: it returns no constants for
the result of an unknown op. Values that a mask replaces are assumed to be finite. Overflow is
ignored.

The softmax over keys returns zeros where the scores are -inf:

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
from functools import lru_cache, partial
from math import inf, isinf
from typing import TypeAlias

from specc.analysis.attention_matrices import (
    AttentionMatrix,
    AxisSide,
    TraversalBudget,
    align_broadcast_operand,
    collect_subproblem_results,
    has_equal_downsampling_rates,
    list_concat_operands,
    make_attention_matrix,
    solve_memoized,
    unwrap_view,
)
from specc.analysis.mask_bands import (
    ATTENTION_AXES,
    can_be_nan,
    find_band_interval,
    find_one_sided_band,
    has_trailing_query_key_axes,
    intersect_bands,
    intersect_one_sided_bands,
    is_attention_weights,
)
from specc.analysis.query_key_products import (
    EXACT_UNARY_FUNCTIONS,
    MAX_ATTENTION_MATRICES,
    NO_MASKED_CONSTANTS,
    MaskedConstants,
    find_common_constants,
    has_no_key_dependent_infinities,
    intersect_masked_constants,
    is_preserved_by_reduction,
    propagate_constants_through_binary_op,
    propagate_constants_through_unary_op,
    split_contraction_factors,
)
from specc.analysis.time_axis_prefix_and_chunks import TimeAxis
from specc.analysis.value_ranges import cast_number, find_splat_value, find_value_range
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, Interval

MaskedConstantRule: TypeAlias = Generator[AttentionMatrix, MaskedConstants, MaskedConstants]
"""A rule that computes the constants of a value from those of other values."""

SIDES: tuple[AxisSide, AxisSide] = ("keys", "queries")

REORDERING_OPS = (ops.Softmax, ops.CumSum, ops.Pad, ops.Delay)
"""Ops that permute or combine the positions of an axis, except selections."""


@lru_cache(maxsize=1024)
def find_masked_constants(
    value: Value, query_axis: int, key_axis: int, time_axis: TimeAxis | None = None
) -> MaskedConstants:
    """Return the constants of `value`, each with the interval of `q - k` outside which `value`
    equals the constant. If `time_axis` is not None, the intervals contain time differences.
    """
    qk = make_attention_matrix(value, query_axis, key_axis, time_axis)
    if not has_equal_downsampling_rates(qk):
        return NO_MASKED_CONSTANTS
    keys, queries = (
        solve_memoized(
            replace(qk, side=side),
            _infer_constants,
            {},
            TraversalBudget(MAX_ATTENTION_MATRICES),
            NO_MASKED_CONSTANTS,
        )
        for side in SIDES
    )
    return {
        n: intersect_one_sided_bands(
            keys.get(n, FULL_INTERVAL), queries.get(n, FULL_INTERVAL), time_axis
        )
        for n in {**keys, **queries}
    }


def find_nonzero_interval(
    value: Value, query_axis: int, key_axis: int, time_axis: TimeAxis | None = None
) -> Interval:
    """Return the interval of `q - k` in which `value` can be true or nonzero."""
    constants = find_masked_constants(value, query_axis, key_axis, time_axis)
    band = find_band_interval(value, query_axis, key_axis, time_axis)
    return intersect_bands(band, constants.get(0.0, FULL_INTERVAL), time_axis)


def _infer_constants(qk: AttentionMatrix) -> MaskedConstantRule:
    """Infer the constants of an attention matrix from those of its operands."""
    number = find_splat_value(qk.value)
    node = qk.value.node
    if number is not None:
        return {number: EMPTY_INTERVAL}
    if node is None or qk.key_axis is None:
        return NO_MASKED_CONSTANTS
    if (operand := unwrap_view(qk)) is not None:
        return (yield operand)
    operands = qk.align_operands()
    match node.op:
        case ops.And() | ops.Or() | ops.Not() | ops.Compare():
            return (yield from _infer_boolean_constants(qk, node, operands))
        case ops.Where():
            return (yield from _infer_where_constants(operands))
        case ops.Arith(function_name):
            return (yield from _infer_arithmetic_constants(function_name, operands))
        case ops.Pointwise(function_name):
            return propagate_constants_through_unary_op(
                EXACT_UNARY_FUNCTIONS.get(function_name), (yield operands[0])
            )
        case ops.Cast(to):
            return propagate_constants_through_unary_op(
                partial(cast_number, dtype=to), (yield operands[0])
            )
    return (yield from _infer_axis_op_constants(qk, node))


def _infer_axis_op_constants(qk: AttentionMatrix, node: Node) -> MaskedConstantRule:
    """Return the constants after an op along an axis, such as a softmax or a reduction."""
    x = node.first_operand
    if (factors := split_contraction_factors(qk)) is not None:
        return (yield from _infer_product_constants(factors))
    if isinstance(node.op, ops.AttentionNormalizer | ops.Attend):
        return (yield from _infer_weight_constants(qk, node))
    if isinstance(node.op, ops.Concat):
        return (yield from _infer_concat_constants(qk, node, node.op))
    if x is None:
        return NO_MASKED_CONSTANTS
    match node.op:
        case ops.Reduce(function_name, axis):
            constants = yield qk.restore_removed_axis(x, axis)
            length = x.shape[axis].number or 0
            return {
                n: interval
                for n, interval in constants.items()
                if is_preserved_by_reduction(function_name, n, length)
            }
        case ops.Gather(axis) if axis == qk.key_axis:
            return (yield from _infer_gathered_constants(qk, node))
    if not (node.op.is_selection or isinstance(node.op, REORDERING_OPS)):
        # Do not analyze gate, key and value operands: their constants are irrelevant, and an
        # analysis of these operands would visit all earlier layers.
        return NO_MASKED_CONSTANTS
    constants = yield qk.make_operand_matrix(x, qk.query_axis, qk.key_axis)
    return _infer_reordered_constants(qk, node, constants)


def _infer_product_constants(factors: list[AttentionMatrix]) -> MaskedConstantRule:
    """Return the interval outside which one factor of a product is 0 and all other factors are
    finite.
    """
    results: list[MaskedConstants] = []
    for n, factor in enumerate(factors):
        other_factors = factors[:n] + factors[n + 1 :]
        if all(has_no_key_dependent_infinities(f) and not can_be_nan(f) for f in other_factors):
            constants = yield factor
            results.append({0.0: constants[0.0]} if 0.0 in constants else NO_MASKED_CONSTANTS)
    return intersect_masked_constants(results)


def _infer_concat_constants(qk: AttentionMatrix, node: Node, op: ops.Concat) -> MaskedConstantRule:
    """Return the constants of a concatenation, which may only prepend a prefix along time."""
    operands = list_concat_operands(qk)
    if op.axis not in (qk.query_axis, qk.key_axis):
        operands = [qk.make_operand_matrix(a, qk.query_axis, qk.key_axis) for a in node.operands]
    return find_common_constants((yield from collect_subproblem_results(operands or ())))


def _infer_reordered_constants(
    qk: AttentionMatrix, node: Node, constants: MaskedConstants
) -> MaskedConstants:
    """Return the constants after an op that selects or permutes positions along the key axis."""
    match node.op:
        case ops.Softmax(axis) if axis == qk.key_axis and -inf in constants:
            return {0.0: constants[-inf]}
        case ops.CumSum(axis) if axis == qk.key_axis:
            # all elements of a cumulative sum after the first infinite element are infinite
            return {n: compute_argsort_interval(i) for n, i in constants.items() if isinf(n)}
        case ops.Sort(axis) if axis == qk.key_axis and qk.value.index == 0:
            # Masked keys are sorted last: rank r is masked at query t if r > t - lo, where lo is
            # the lowest offset.
            return {
                n: compute_argsort_interval(i)
                for n, i in constants.items()
                if is_sorted_last(node, n)
            }
    return _filter_unrelated_axis_values(qk, node, constants)


def _filter_unrelated_axis_values(
    qk: AttentionMatrix, node: Node, constants: MaskedConstants
) -> MaskedConstants:
    """Return the constants that are preserved by an op along an axis other than the query and key
    axes.
    """
    match node.op:
        case ops.CumSum(axis):
            constants = {n: i for n, i in constants.items() if isinf(n) or not n}
        case ops.Pad(axis=axis, value=fill_value) | ops.Delay(axis=axis, fill_value=fill_value):
            constants = {n: i for n, i in constants.items() if n == fill_value}
        case ops.Flip(axis) | ops.Roll(axis) | ops.Gather(axis):
            pass
        case ops.Sort(axis) | ops.TopK(axis) if qk.value.index == 0:
            pass
        case _:
            return NO_MASKED_CONSTANTS
    return constants if axis not in (qk.query_axis, qk.key_axis) else NO_MASKED_CONSTANTS


def compute_argsort_interval(interval: Interval) -> Interval:
    """Return the interval of the sort indices of visible positions (positions in `interval`)."""
    return EMPTY_INTERVAL if interval.is_empty else Interval(interval.low, inf)


def is_sorted_last(node: Node, constant: float) -> bool:
    """Return True if `node` sorts elements equal to `constant` after all other elements."""
    lower_bound, upper_bound = find_value_range(node.first_operand)
    match node.op:
        case ops.Sort(descending=descending):
            return constant <= lower_bound if descending else constant >= upper_bound
    return False


def _infer_where_constants(operands: list[AttentionMatrix]) -> MaskedConstantRule:
    """Return the constants of a `where`. A constant of a branch applies only at positions where the
    condition can select the branch.
    """
    operand_constants: list[MaskedConstants] = yield from collect_subproblem_results(operands)
    condition, yes, no = operand_constants
    true_band, false_band = condition.get(0.0, FULL_INTERVAL), condition.get(1.0, FULL_INTERVAL)
    return {
        n: (true_band & yes.get(n, FULL_INTERVAL)) | (false_band & no.get(n, FULL_INTERVAL))
        for n in {**yes, **no}
    }


def _infer_boolean_constants(
    qk: AttentionMatrix, node: Node, operands: list[AttentionMatrix]
) -> MaskedConstantRule:
    """Return the interval outside which a boolean tensor, such as a comparison, is constant."""
    operand_constants: list[MaskedConstants] = yield from collect_subproblem_results(operands)
    match node.op:
        case ops.Not():
            return {1.0 - n: i for n, i in operand_constants[0].items()}
        case ops.And() | ops.Or():
            # One false operand determines the result of `and`, and one true operand determines the
            # result of `or`. If no single operand determines the result, both operands must be
            # constant.
            absorbing = 0.0 if isinstance(node.op, ops.And) else 1.0
            results = [{absorbing: c[absorbing]} for c in operand_constants if absorbing in c]
            return intersect_masked_constants([*results, find_common_constants(operand_constants)])
        case ops.Compare(function_name):
            bands = {0.0: find_one_sided_band(qk), 1.0: find_one_sided_band(qk, is_negated=True)}
            return intersect_masked_constants(
                [bands, propagate_constants_through_binary_op(function_name, *operand_constants)]
            )
    return NO_MASKED_CONSTANTS


def _infer_arithmetic_constants(
    function_name: str, operands: list[AttentionMatrix]
) -> MaskedConstantRule:
    """Return the constants of arithmetic on two constants, or an absorbing constant such as
    -inf.
    """
    operand_constants: list[MaskedConstants] = yield from collect_subproblem_results(operands)
    results = [propagate_constants_through_binary_op(function_name, *operand_constants)]
    for n, is_right_operand in ((0, False), (1, True)):
        other = operands[1 - n]
        # `0 * inf` and `inf - inf` are NaN.
        if not can_be_nan(other) and has_no_key_dependent_infinities(other):
            lower_bound = find_value_range(other.value)[0]
            # The divisor must be zero at all keys or at no key. A divisor that has no key axis has
            # the same value at all keys of a query.
            is_nonzero = not is_right_operand and (lower_bound > 0 or other.key_axis is None)
            for number, interval in operand_constants[n].items():
                if function_name == "div" and not number and is_nonzero:
                    results.append({0.0: interval})
                result = fold_absorbing_constant(
                    function_name, number, lower_bound, is_right_operand
                )
                if result is not None:
                    results.append({result: interval})
    return intersect_masked_constants(results)


def fold_absorbing_constant(
    function_name: str, constant: float, lower_bound: float, is_right_operand: bool
) -> float | None:
    """Return the result of a function if `constant` absorbs the other operand, as in `-inf - x`,
    otherwise None.

    `is_right_operand` is true if `constant` is the right operand. `lower_bound` is a lower bound of
    the other operand.
    """
    match function_name:
        case "add" if isinf(constant):
            return constant
        case "sub" if isinf(constant):
            return -constant if is_right_operand else constant
        case "mul" if constant == 0 or (isinf(constant) and lower_bound > 0):
            return constant
        case "div" if not is_right_operand and isinf(constant) and lower_bound > 0:
            return constant
        case "max" | "min" if (
            constant == inf if function_name == "max" else constant <= lower_bound
        ):
            return constant
    return None


def _infer_weight_constants(qk: AttentionMatrix, node: Node) -> MaskedConstantRule:
    """Return the interval outside which attention weights are 0 (masked out or -inf scores)."""
    if isinstance(node.op, ops.Attend):
        mask = node.op.mask(node)
        if mask is None or not is_attention_weights(qk, node.op):
            return NO_MASKED_CONSTANTS
        return {0.0: find_one_sided_band(qk.make_operand_matrix(mask, *ATTENTION_AXES))}
    if qk.key_axis is None or not has_trailing_query_key_axes(qk):
        return NO_MASKED_CONSTANTS
    scores, mask = node.operands
    results = [{0.0: find_one_sided_band(align_broadcast_operand(qk, mask))}]
    score_constants = yield align_broadcast_operand(qk, scores)
    if isinstance(node.op, ops.MaskedSoftmax) and -inf in score_constants:
        results.append({0.0: score_constants[-inf]})
    return intersect_masked_constants(results)


def _infer_gathered_constants(qk: AttentionMatrix, node: Node) -> MaskedConstantRule:
    """Return the constants of a gather whose sort indices order masked positions last."""
    match node.args:
        case (Value() as table, Value(node=Node(ops.Sort(axis), (Value() as x,)))):
            sort = ops.Gather.ids(node).node
        case _:
            return NO_MASKED_CONSTANTS
    if axis != qk.key_axis or sort is None:
        return NO_MASKED_CONSTANTS
    table_constants = yield qk.make_operand_matrix(table, qk.query_axis, qk.key_axis)
    key_constants = yield qk.make_operand_matrix(x, qk.query_axis, qk.key_axis)
    last_intervals = [i for n, i in key_constants.items() if is_sorted_last(sort, n)]
    # Positions at which the sort keys are masked must also be masked in the gathered tensor.
    return {
        n: compute_argsort_interval(o)
        for n, i in table_constants.items()
        for o in last_intervals
        if i & o == i
    }

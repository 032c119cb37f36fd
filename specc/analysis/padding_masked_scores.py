"""Find the positions that a softmax or maximum ignores because a mask sets their scores to a
constant.

A mask fill value is at most -1e30. A smaller fill value than all values at valid positions, such as
-1 for position ids, is also ignored by a maximum. This is sound only if all other scores are finite
and above the fill value: `can_hold_mask_constants` checks valid positions, and
`can_padding_hold_mask_constants` checks all positions.
"""

from collections.abc import Generator, Iterable, Iterator
from math import inf

from specc.analysis.mask_bands import find_query_key_band
from specc.analysis.padding_facts import PaddedResult
from specc.analysis.query_key_tensors import (
    QueryKeyTensor,
    TraversalBudget,
    align_operand,
    is_mirrored_pair,
    solve_all,
    solve_any,
    solve_memoized,
    unwrap_view,
)
from specc.analysis.value_ranges import (
    find_constant_value,
    find_uniform_value,
    find_value_range,
    get_viewed_op,
    skip_views,
)
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.op import Op

LOW_SCORE = -1e30
"""Scores up to this value are treated as -inf. No model computes meaningful scores of this
magnitude."""

UNDERFLOW_DISTANCE = 1000.0
"""For x from 746 on, `exp(-x)` is 0 in float64; for x from 104 on, it is 0 in float32."""

FINITE_RESULT_OPS = (*(ops.Softmax, ops.MaskedWeights), *(ops.Compare, ops.ArgMax, ops.Extent))
"""Ops and `Pointwise` functions whose results are never mask fill values."""

FINITE_RESULT_FUNCTIONS = ("exp", "sigmoid", "tanh")


def is_mask_constant_at_padding(padded_result: PaddedResult, axis: int) -> bool:
    """Return True if a result is a mask fill value where `axis` is padded."""
    fallen = padded_result.list_operands_with_fact("mask_constant_axes", axis)
    match padded_result.op:
        case ops.Where():
            return _is_filled_with_mask_constant(padded_result, axis)
        case ops.Arith("sub"):
            # A mask fill value minus a finite score is a mask fill value. The difference of two
            # mask fill values is about 0, e.g. in `s - max(s)` if all scores of a query are masked.
            return fallen[0] and _has_no_mask_constants(padded_result, 1, axis)
        case ops.Arith("add"):
            return _is_sum_mask_constant(padded_result, fallen, axis)
        case ops.Cast(to):
            # integers are never mask fill values
            return fallen[0] and to.startswith(("f", "bf"))
        case ops.Reduce("max"):
            return fallen[0]
    return padded_result.op.is_view and any(fallen)


def _is_filled_with_mask_constant(padded_result: PaddedResult, axis: int) -> bool:
    """Return True if the result of a `where` is a mask fill value where the condition is padded."""
    filled = _get_fill_number(padded_result.node)
    return (
        padded_result.list_operands_with_fact("zero_pad_axes", axis)[0]
        and filled is not None
        and filled <= LOW_SCORE
    )


def _is_sum_mask_constant(
    padded_result: PaddedResult, is_mask_constant: list[bool], axis: int
) -> bool:
    """Return True if one operand is a mask fill value at padded positions and the other has finite
    scores.
    """
    one = is_mask_constant[0] and _has_no_mask_constants(padded_result, 1, axis)
    return one or (is_mask_constant[1] and _has_no_mask_constants(padded_result, 0, axis))


def _get_fill_number(node: Node) -> float | None:
    """Return the constant that a `where` selects where its condition is false, or None."""
    return find_constant_value(ops.Where.no(node))


def _has_no_mask_constants(padded_result: PaddedResult, n: int, axis: int) -> bool:
    """Return True if an operand holds no mask fill values, including where `axis` is padded."""
    rows = padded_result.operand_facts[n]
    if rows.has_mask_value or rows.can_be_nan:
        return False
    return not (rows.has_mask_value_at_padding and padded_result.list_operands_with_axis(axis)[n])


def is_extreme_at_padding(padded_result: PaddedResult, axis: int, *, lowest: bool) -> bool:
    """Return True if the values at padded positions of `axis` are mask fill values, or are less
    than (`lowest`) or greater than all other values.
    """
    op = padded_result.op
    if isinstance(op, ops.Where):
        return _is_filled_with_extreme(padded_result, axis, lowest=lowest)
    if lowest and isinstance(op, ops.Cast) and _is_padding_mask(padded_result):
        # The padding mask is 0 at padded positions and 1 elsewhere.
        return padded_result.list_operands_with_fact("zero_pad_axes", axis)[0]
    if lowest and isinstance(op, ops.CumSum) and op.axis == axis:
        # A cumulative sum of positive values is positive.
        facts = padded_result.operand_facts[0]
        return axis in facts.zero_pad_axes & facts.minimum_pad_axes
    same = op.is_view or (lowest and isinstance(op, ops.Reduce) and op.fn == "max")
    return same and any(
        padded_result.list_operands_with_fact(
            "minimum_pad_axes" if lowest else "maximum_pad_axes", axis
        )
    )


def _is_padding_mask(padded_result: PaddedResult) -> bool:
    """Return True if the operand is the padding mask or a view of it."""
    return skip_views(padded_result.node.first_operand) is padded_result.padding_mask


def _is_filled_with_extreme(padded_result: PaddedResult, axis: int, *, lowest: bool) -> bool:
    """Return True if a `where` fills padded positions with a constant below (`lowest`) or above all
    other values.
    """
    node, filled = padded_result.node, _get_fill_number(padded_result.node)
    if filled is None or padded_result.operand_facts[1].has_mask_value:
        return False
    # -1 is below all values of `arange(n)`, whose minimum is 0
    least, most = find_value_range(ops.Where.yes(node))
    beyond = filled < least if lowest else filled > most
    extreme = filled <= LOW_SCORE if lowest else filled >= -LOW_SCORE
    return padded_result.list_operands_with_fact("zero_pad_axes", axis)[0] and (beyond or extreme)


def is_fill_underflowing(scores: Value | None) -> bool:
    """Return True if `exp(fill - s)` is 0 for the fill value of a `where` and every score `s` that
    it keeps.
    """
    scores = skip_views(scores)
    if scores is None or scores.node is None or not isinstance(scores.node.op, ops.Where):
        return False
    filled, least = _get_fill_number(scores.node), find_value_range(ops.Where.yes(scores.node))[0]
    return filled is not None and filled <= least - UNDERFLOW_DISTANCE


def iterate_finite_score_axes(padded_result: PaddedResult, axes: Iterable[int]) -> Iterator[int]:
    """Yield the axes along which at least one valid position has a finite score."""
    match padded_result.op:
        case ops.Where() if not padded_result.operand_facts[1].has_mask_value:
            yield from _iterate_visible_axes(padded_result, axes)
        case ops.Arith("add" | "sub"):
            yield from (a for a in axes if _has_finite_sum(padded_result, a))
        case ops.CumSum() if not padded_result.operand_facts[0].has_mask_value:
            yield from (a for a in axes if a in padded_result.operand_facts[0].finite_pad_axes)
        case op if op.is_view or isinstance(op, ops.Cast) or _keeps_finite_scores(padded_result):
            yield from (
                a for a in axes if any(padded_result.list_operands_with_fact("finite_pad_axes", a))
            )


def _has_finite_sum(padded_result: PaddedResult, axis: int) -> bool:
    """Return True if a sum has a finite score along `axis`."""
    # If only one operand may hold mask fill values, the sum has a finite score wherever this
    # operand has one. If both may, their finite scores may be at different positions.
    has_mask_value = [r.has_mask_value for r in padded_result.operand_facts]
    finite_pad_axes = padded_result.list_operands_with_fact("finite_pad_axes", axis)
    return (
        any(finite_pad_axes)
        if not any(has_mask_value)
        else not all(has_mask_value) and finite_pad_axes[has_mask_value.index(True)]
    )


def _keeps_finite_scores(padded_result: PaddedResult) -> bool:
    """Return True if an op keeps at least one finite score: it scales the scores, or computes their
    maximum while no score is a mask fill value.
    """
    match padded_result.op:
        case ops.Reduce("max"):
            return not padded_result.operand_facts[0].has_mask_value
    return _is_scaled(padded_result)


def _is_scaled(padded_result: PaddedResult) -> bool:
    """Return True if a result is a product or quotient of scores and a positive constant."""
    node, dividing = padded_result.node, padded_result.op == ops.Arith("div")
    factors = node.args[1:] if dividing else node.args
    return (dividing or node.op == ops.Arith("mul")) and any(
        0 < (find_constant_value(f) or 0) < inf for f in factors
    )


def _iterate_visible_axes(padded_result: PaddedResult, axes: Iterable[int]) -> Iterator[int]:
    """Yield the axes along which the condition of a `where` selects `then` for at least one valid
    position.
    """
    found = sorted(axes)
    # Self-attention scores have the padded axis twice, first for the queries: with `causal & keep`,
    # each query still attends to itself.
    pairs = len(found) == 2 and _is_condition_true(padded_result, found[0], found[1])
    if is_condition_always_true(padded_result) or pairs:
        yield from found


def is_condition_always_true(padded_result: PaddedResult) -> bool:
    """Return True if the condition of a `where` is true at every valid position."""
    is_where = isinstance(padded_result.op, ops.Where)
    return is_where and _is_condition_true(padded_result, None, None)


def _is_condition_true(padded_result: PaddedResult, query: int | None, key: int | None) -> bool:
    condition = ops.Where.condition(padded_result.node)
    grid = align_operand(QueryKeyTensor(padded_result.value, query, key), condition)
    return is_true_at_valid_positions(padded_result, grid)


def is_true_at_valid_positions(padded_result: PaddedResult, qk: QueryKeyTensor) -> bool:
    """Return True if a mask is true at valid positions. A mask that compares positions must be true
    between each position and itself.
    """

    def rule(qk: QueryKeyTensor) -> Generator[QueryKeyTensor, bool, bool]:
        node = qk.value.node
        if _is_known_true_mask(padded_result, qk.value):
            return True
        # a mask input may be false at any position
        if node is None or (known := find_uniform_value(qk.value)) is not None:
            return node is not None and known == 1
        if (inner := unwrap_view(qk)) is not None:
            return (yield inner)
        operands = [align_operand(qk, a) for a in node.operands]
        if _is_repeated_mask(node):
            return (yield operands[0])
        if _keeps_truth(node.op):
            return (yield from solve_all(operands))
        match node.op:
            case ops.Or():
                return (yield from solve_any(operands))
            case ops.Compare("eq" | "le" | "ge") if is_mirrored_pair(*operands):
                return True
        return _is_true_on_diagonal(qk)

    return solve_memoized(qk, rule, {}, TraversalBudget(), False)


def _is_known_true_mask(padded_result: PaddedResult, value: Value) -> bool:
    return value is padded_result.padding_mask or value in padded_result.always_true_masks


def _is_true_on_diagonal(qk: QueryKeyTensor) -> bool:
    """Return True for a comparison such as `i - j >= 0` that is true at distance 0."""
    compares = qk.query_axis is not None and qk.key_axis is not None
    return compares and 0 not in find_query_key_band(qk, is_negated=True)


def _keeps_truth(op: Op) -> bool:
    """Return True if a boolean op is true wherever all its operands are true."""
    nearest = isinstance(op, ops.Resize) and not op.interpolates
    return nearest or isinstance(op, ops.And | ops.Concat | ops.DownsamplePaddingMask | ops.Cast)


def _is_repeated_mask(node: Node) -> bool:
    """Return True for `resize(float(mask), …) > 0.5`, which repeats the positions of a mask."""
    if not (isinstance(node.op, ops.Compare) and node.op.fn in ("gt", "ge")):
        return False
    bound = find_constant_value(ops.Compare.right(node))
    resized = get_viewed_op(ops.Compare.left(node))
    return isinstance(resized, ops.Resize) and bound is not None and bound < 1


def can_hold_mask_constants(padded_result: PaddedResult) -> bool:
    """Return True if valid positions may hold mask fill values."""
    given = padded_result.operand_facts
    match padded_result.op:
        case ops.Where():
            # At valid positions, `keep` never selects the mask fill value, but `causal` may.
            return given[1].has_mask_value or (
                given[2].has_mask_value and not is_condition_always_true(padded_result)
            )
        case ops.Reduce("max", axis):
            # a finite score is the maximum, so mask fill values have no effect
            return given[0].has_mask_value and axis not in given[0].finite_pad_axes
    if _is_mask_constant(padded_result.node):
        return True
    return not _never_holds_mask_constants(padded_result.node) and any(
        r.has_mask_value for r in given
    )


def can_padding_hold_mask_constants(padded_result: PaddedResult) -> bool:
    """Return True if any position may hold mask fill values."""
    if _is_mask_constant(padded_result.node):
        return True
    return not _never_holds_mask_constants(padded_result.node) and any(
        r.has_mask_value_at_padding for r in padded_result.operand_facts
    )


def _is_mask_constant(node: Node) -> bool:
    """Return True for a mask fill value or its negation."""
    return isinstance(node.op, ops.Constant) and abs(node.op.value) >= -LOW_SCORE


def _never_holds_mask_constants(node: Node) -> bool:
    if isinstance(node.op, ops.Pointwise):
        return node.op.fn in FINITE_RESULT_FUNCTIONS
    return isinstance(node.op, FINITE_RESULT_OPS)

"""Find the positions that a softmax or maximum ignores because a mask sets their scores to a fill
value such as -inf.

A masked fill value is at most -1e30. A maximum ignores any fill value that is smaller than all
values at valid positions, such as -1 for position ids. A softmax or maximum can ignore a fill value
only if all other scores are finite and above the fill value. `can_contain_masked_fill` checks valid
positions, and `can_contain_masked_fill_at_padding` checks all positions.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from math import inf

from specc.analysis.attention_matrices import (
    AttentionMatrix,
    TraversalBudget,
    align_broadcast_operand,
    are_all_subproblems_true,
    is_any_subproblem_true,
    is_transposed_pair,
    solve_memoized,
    unwrap_view,
)
from specc.analysis.mask_bands import find_query_key_band
from specc.analysis.padding_facts import PaddedOpResult
from specc.analysis.value_ranges import (
    find_constant_value,
    find_op_behind_views,
    find_splat_value,
    find_value_range,
    skip_views,
)
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc.ir.op import Op

LOW_SCORE = -1e30
"""Scores less than or equal to this value are treated as -inf. No meaningful score of a model is
below -1e30.
"""

UNDERFLOW_DISTANCE = 1000.0
"""`exp(-x)` is 0 in float64 for x >= 746, and 0 in float32 for x >= 104."""

FINITE_RESULT_OPS = (
    *(ops.Softmax, ops.AttentionNormalizer),
    *(ops.Compare, ops.ArgMax, ops.Extent),
)
"""Ops whose results are never masked fill values."""

FINITE_RESULT_FUNCTIONS = ("exp", "sigmoid", "tanh")


def is_masked_fill_at_padding(result: PaddedOpResult, axis: int) -> bool:
    """Return True if a result holds a masked fill value at padded positions of `axis`."""
    filled = result.find_operands_with_fact("masked_fill_axes", axis)
    match result.op:
        case ops.Where():
            fill = _get_fill_number(result.node)
            is_filled = 0 in result.find_operands_with_fact("zero_pad_axes", axis)
            return is_filled and fill is not None and fill <= LOW_SCORE
        case ops.Arith("sub"):
            # A masked fill value minus a finite score is a masked fill value. The difference of two
            # masked fill values is about 0, e.g. in `s - max(s)` if all scores of a query are
            # masked.
            return 0 in filled and _has_no_masked_fill(result, 1, axis)
        case ops.Arith("add"):
            return any(_has_no_masked_fill(result, 1 - n, axis) for n in filled)
        case ops.Cast(to):
            # integers are never masked fill values
            return 0 in filled and to.startswith(("f", "bf"))
        case ops.Reduce("max"):
            return 0 in filled
        case ops.Pad(axis=pad_axis) if pad_axis == axis:
            return 0 in filled  # the added positions are not padded positions
    return result.op.is_view and bool(filled)


def _get_fill_number(node: Node) -> float | None:
    """Return the constant that a `where` selects if its condition is false, or None."""
    return find_constant_value(ops.Where.y(node))


def _has_no_masked_fill(result: PaddedOpResult, operand: int, axis: int) -> bool:
    """Return True if an operand holds no masked fill values, even at padded positions of `axis`."""
    facts = result.operand_facts[operand]
    if facts.has_masked_fill or facts.can_be_nan:
        return False
    is_padded = operand in result.find_operands_with_axis(axis)
    return not (facts.has_masked_fill_at_padding and is_padded)


def is_min_or_max_at_padding(result: PaddedOpResult, axis: int, *, lowest: bool) -> bool:
    """Return True if values at padded positions are masked fill values, or are lower (if `lowest`)
    or higher (otherwise) than all values at valid positions.
    """
    op = result.op
    if isinstance(op, ops.Where):
        return _is_filled_with_extreme(result, axis, lowest=lowest)
    if lowest and isinstance(op, ops.Cast) and _is_padding_mask(result):
        # The padding mask is 0 at padded positions and 1 elsewhere.
        return 0 in result.find_operands_with_fact("zero_pad_axes", axis)
    if lowest and isinstance(op, ops.CumSum) and op.axis == axis:
        # A cumulative sum of positive values is positive.
        facts = result.operand_facts[0]
        return axis in facts.zero_pad_axes & facts.minimum_pad_axes
    keeps_order = op.is_view or (lowest and isinstance(op, ops.Reduce) and op.fn == "max")
    return keeps_order and bool(
        result.find_operands_with_fact("minimum_pad_axes" if lowest else "maximum_pad_axes", axis)
    )


def _is_padding_mask(result: PaddedOpResult) -> bool:
    """Return True if the operand is the padding mask itself or a view of it."""
    return skip_views(result.node.first_operand) is result.padding_mask


def _is_filled_with_extreme(result: PaddedOpResult, axis: int, *, lowest: bool) -> bool:
    """Return True if a `where` fills padding with a constant that is lower (if `lowest`) or higher
    (otherwise) than all values at valid positions.
    """
    node, fill = result.node, _get_fill_number(result.node)
    if fill is None or result.operand_facts[1].has_masked_fill:
        return False
    # -1 is below all values of `arange(n)`, whose minimum is 0
    minimum, maximum = find_value_range(ops.Where.x(node))
    is_beyond = fill < minimum if lowest else fill > maximum
    is_masked_fill = fill <= LOW_SCORE if lowest else fill >= -LOW_SCORE
    is_filled = 0 in result.find_operands_with_fact("zero_pad_axes", axis)
    return is_filled and (is_beyond or is_masked_fill)


def has_underflowing_fill(scores: Value | None) -> bool:
    """Return True if `exp(fill - s)` is 0 for the fill value and all scores `s` of a `where`."""
    match skip_views(scores):
        case Value(node=Node(ops.Where()) as node):
            fill, minimum = _get_fill_number(node), find_value_range(ops.Where.x(node))[0]
            return fill is not None and fill <= minimum - UNDERFLOW_DISTANCE
    return False


def iterate_axes_with_finite_scores(result: PaddedOpResult, axes: Iterable[int]) -> Iterator[int]:
    """Yield the axes along which at least one valid position has a finite score."""
    match result.op:
        case ops.Where() if not result.operand_facts[1].has_masked_fill:
            yield from _iterate_visible_axes(result, axes)
        case ops.Arith("add" | "sub"):
            yield from (a for a in axes if _has_finite_sum(result, a))
        case ops.CumSum() if not result.operand_facts[0].has_masked_fill:
            yield from (a for a in axes if a in result.operand_facts[0].finite_pad_axes)
        case op if op.is_view or isinstance(op, ops.Cast | ops.Pad) or _keeps_finite_scores(result):
            yield from (a for a in axes if result.find_operands_with_fact("finite_pad_axes", a))


def _has_finite_sum(result: PaddedOpResult, axis: int) -> bool:
    """Return True if a sum has a finite score at some position along `axis`."""
    # If only one operand may hold masked fill values, the sum has a finite score wherever this
    # operand has a finite score. If both operands may hold masked fill values, their finite scores
    # may be at different positions.
    has_masked_fill = [r.has_masked_fill for r in result.operand_facts]
    finite_operands = result.find_operands_with_fact("finite_pad_axes", axis)
    return (
        bool(finite_operands)
        if not any(has_masked_fill)
        else not all(has_masked_fill) and has_masked_fill.index(True) in finite_operands
    )


def _keeps_finite_scores(result: PaddedOpResult) -> bool:
    """Return True if an op preserves the property that at least one valid position has a finite
    score: the op multiplies or divides the scores by a positive constant, or computes a maximum of
    scores without masked fill values.
    """
    match result.op:
        case ops.Reduce("max"):
            return not result.operand_facts[0].has_masked_fill
    return _is_scaled(result)


def _is_scaled(result: PaddedOpResult) -> bool:
    """Return True if a result is a product or quotient of scores and a positive constant."""
    node, is_quotient = result.node, result.op == ops.Arith("div")
    factors = node.args[1:] if is_quotient else node.args
    return (is_quotient or node.op == ops.Arith("mul")) and any(
        0 < (find_constant_value(f) or 0) < inf for f in factors
    )


def _iterate_visible_axes(result: PaddedOpResult, axes: Iterable[int]) -> Iterator[int]:
    """Yield the axes along which a `where` selects `then` for at least one valid position."""
    sorted_axes = sorted(axes)
    # In self-attention scores, the first padded axis is the query axis. With `causal & keep`, each
    # query attends to itself.
    is_self_attention = len(sorted_axes) == 2 and _is_condition_true(result, *sorted_axes)
    if is_condition_always_true(result) or is_self_attention:
        yield from sorted_axes


def is_condition_always_true(result: PaddedOpResult) -> bool:
    """Return True if the condition of a `where` is true at every valid position."""
    is_where = isinstance(result.op, ops.Where)
    return is_where and _is_condition_true(result, None, None)


def _is_condition_true(result: PaddedOpResult, query: int | None, key: int | None) -> bool:
    condition = ops.Where.condition(result.node)
    qk = align_broadcast_operand(AttentionMatrix(result.value, query, key), condition)
    return is_true_at_valid_positions(result, qk)


def is_true_at_valid_positions(result: PaddedOpResult, qk: AttentionMatrix) -> bool:
    """Return True if a mask is true at valid positions. If the mask compares positions, it must be
    true where query and key positions are equal.
    """

    def solve_truth(qk: AttentionMatrix) -> Generator[AttentionMatrix, bool, bool]:
        node = qk.value.node
        if qk.value is result.padding_mask or qk.value in result.always_true_masks:
            return True
        # a mask input may be false at any position
        constant = find_splat_value(qk.value)
        if node is None or constant is not None:
            return constant == 1
        if (operand := unwrap_view(qk)) is not None:
            return (yield operand)
        operands = [align_broadcast_operand(qk, a) for a in node.operands]
        if _is_repeated_mask(node):
            return (yield operands[0])
        if _keeps_truth(node.op):
            return (yield from are_all_subproblems_true(operands))
        match node.op:
            case ops.Or():
                return (yield from is_any_subproblem_true(operands))
            case ops.Compare("eq" | "le" | "ge") if is_transposed_pair(*operands):
                return True
        return _is_true_on_diagonal(qk)

    return solve_memoized(qk, solve_truth, {}, TraversalBudget(), False)


def _is_true_on_diagonal(qk: AttentionMatrix) -> bool:
    """Return True for a comparison that is true at distance 0, such as `i - j >= 0`."""
    has_both_axes = qk.query_axis is not None and qk.key_axis is not None
    return has_both_axes and 0 not in find_query_key_band(qk, is_negated=True)


def _keeps_truth(op: Op) -> bool:
    """Return True if a boolean op is true wherever all its operands are true."""
    match op:
        case ops.Pad(value=value, mode=mode):
            return mode != "constant" or value == 1
        case ops.Resize():
            return not op.is_interpolating
    return isinstance(op, ops.And | ops.Concat | ops.DownsamplePaddingMask | ops.Cast)


def _is_repeated_mask(node: Node) -> bool:
    """Return True for `resize(float(mask), …) > 0.5`, which repeats each position of a mask."""
    if not (isinstance(node.op, ops.Compare) and node.op.fn in ("gt", "ge")):
        return False
    bound = find_constant_value(ops.Compare.right(node))
    source_op = find_op_behind_views(ops.Compare.left(node))
    return isinstance(source_op, ops.Resize) and bound is not None and bound < 1


def can_contain_masked_fill(result: PaddedOpResult) -> bool:
    """Return True if valid positions may hold masked fill values."""
    operand_facts = result.operand_facts
    match result.op:
        case ops.Where():
            # At valid positions, the condition `keep` never selects the masked fill value, but the
            # condition `causal` may.
            return operand_facts[1].has_masked_fill or (
                operand_facts[2].has_masked_fill and not is_condition_always_true(result)
            )
        case ops.Reduce("max", axis):
            # a finite score is the maximum, so masked fill values have no effect
            return operand_facts[0].has_masked_fill and axis not in operand_facts[0].finite_pad_axes
    return _may_hold_masked_fill(result.node, [r.has_masked_fill for r in operand_facts])


def can_contain_masked_fill_at_padding(result: PaddedOpResult) -> bool:
    """Return True if any position may hold masked fill values."""
    has_masked_fill = [r.has_masked_fill_at_padding for r in result.operand_facts]
    return _may_hold_masked_fill(result.node, has_masked_fill)


def _may_hold_masked_fill(node: Node, has_masked_fill: Sequence[bool]) -> bool:
    """Return True if the result of a node may hold a masked fill value. This is the case if the
    node creates such a value or its negation, pads with such a value, or has an operand that holds
    one. `has_masked_fill` is true for each operand with masked fill values.
    """
    match node.op:
        case ops.Constant(value) | ops.Pad(value=value) if abs(value) >= -LOW_SCORE:
            return True
        case ops.Pointwise(fn) if fn in FINITE_RESULT_FUNCTIONS:
            return False
    return not isinstance(node.op, FINITE_RESULT_OPS) and any(has_masked_fill)

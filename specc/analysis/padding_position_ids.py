"""Track position ids that count padding, and find uses of these ids that padding does not affect.

Every padded position increases each later position id `i` by 1, and `2 * i` by 2. The *padding
count* of a value is the amount that padding adds to the value. The padding count is the number of
padded positions times a factor, which may contain other values. The difference or comparison of two
values with equal padding counts does not depend on padding. Softmax weights do not depend on
padding if padding increases the scores of all positions by the same amount. An example is ALiBi
with scores of the form `slope * j`. All other uses of position ids depend on the amount of padding.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from specc.analysis.value_ranges import find_op_behind_views, find_rational_constant, skip_views
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Node, Value

PaddingTerms: TypeAlias = Mapping[tuple[object, ...], Fraction]
PaddingCount: TypeAlias = PaddingTerms | None
"""The amount that each earlier padded position adds to a value: a sum of products of values, each
product with a coefficient. None means that the amount is not the same at all positions.
"""


@immutable_dataclass
class InteriorPaddingCount:
    """The padding count of position ids on an axis that has padding between valid positions. Only
    the ids after the padding include the number of padded positions. Padding therefore changes the
    distances between position ids, but not their order.
    """

    length: Dim
    padding_start: Dim
    padding_end: Dim
    padding_terms: tuple[tuple[tuple[object, ...], Fraction], ...] = ()
    """The amount that each earlier padded position adds to values at positions that may be
    padded."""


@immutable_dataclass
class RelativePositionPaddingCount:
    """The padding count of position ids that are relative to the start or end of the padding.
    Relative ids are negative before this start or end. Padding adds `padding_terms` to all later
    relative ids.
    """

    padding_terms: tuple[tuple[tuple[object, ...], Fraction], ...]

    @property
    def count(self) -> "PaddingCount":
        """The padding count of positions whose relative position id is not negative."""
        return dict(self.padding_terms)


@immutable_dataclass
class AxisSizePaddingCount:
    """The number of padded positions included in an axis size."""

    length: Dim


NO_PADDING_COUNT: PaddingCount = {}
EVERY_POSITION: PaddingTerms = {(): Fraction(1)}
LINEAR_OPS = (ops.Where, ops.Cast, ops.Arith)


def merge_padding_counts(left: PaddingCount, right: PaddingCount) -> PaddingCount:
    """Return the padding count of two alternatives, or None if it differs between them."""
    return left if left == right else None


def infer_padding_count(
    node: Node, counts: Sequence[PaddingCount], padded_length: Dim
) -> PaddingCount:
    """Infer the padding count of a node's result from the `counts` of its operands."""
    if not any(counts):
        return NO_PADDING_COUNT
    if None in counts or any(map(_is_order_only, counts)):
        return _infer_order_count(node, counts)
    first, second = _get_first_terms(counts)
    match node.op:
        case ops.Arith(function_name):
            return _infer_arithmetic_count(node, function_name, first, second, padded_length)
        case ops.Where():
            # a condition that depends on the amount of padding may select another branch
            return merge_padding_counts(second, counts[2]) if not first else None
        case ops.Cast(to):
            return first if _is_id_preserving_cast(node, to) else None
        case ops.Pointwise("neg"):
            return _add_counts({}, first, -1)
        case ops.Reduce("max" | "min"):
            return first
    if _is_selection(node) or (node.op.is_view and not isinstance(node.op, ops.Extent)):
        return _apply_view_to_count(node, first)
    return NO_PADDING_COUNT


def _is_selection(node: Node) -> bool:
    """Return True if an op selects elements along an unpadded axis of constant size."""
    match node.op:
        case ops.Index(axis) | ops.Slice(axis):
            return node.get_operand().shape[axis].number is not None
    return False


def _get_first_terms(counts: Sequence[PaddingCount]) -> tuple[PaddingTerms, PaddingTerms]:
    """Return the padding terms of the first two operands. If there is no second operand, its terms
    are empty.
    """
    first, second = (*(c or {} for c in counts[:2]), {})[:2]
    return first, second


def _infer_arithmetic_count(
    node: Node, function_name: str, first: PaddingTerms, second: PaddingTerms, padded_length: Dim
) -> PaddingCount:
    """Return the padding count of a binary arithmetic op, such as a sum, product or quotient."""
    left, right = ops.Arith.left(node), ops.Arith.right(node)
    match function_name:
        case "add" | "sub":
            return _add_counts(first, second, 1 if function_name == "add" else -1)
        case "mul" if not (first and second):
            return _scale_count(first or second, left if second else right, padded_length)
        case "div" if not second and (divisor := find_rational_constant(right)):
            return _add_counts({}, first, 1 / divisor)
        case "min" | "max":
            return merge_padding_counts(first, second)
    return None


def _is_id_preserving_cast(node: Node, to: str) -> bool:
    """Return True if a cast preserves position ids. Casts to bool and from float to int do not."""
    is_integer = node.get_operand().dtype in ("i64", "i32")
    return to != "bool" and (is_integer or to not in ("i64", "i32"))


def _add_counts(left: PaddingTerms, right: PaddingTerms, factor: Fraction | int) -> PaddingTerms:
    """Return `left + factor * right`."""
    total = dict(left)
    for product, number in right.items():
        total[product] = total.get(product, Fraction(0)) + number * factor
    return {p: n for p, n in total.items() if n}


def _scale_count(count: PaddingTerms, factor: Value | None, padded_length: Dim) -> PaddingCount:
    """Return the product of a padding count and `factor`, or None if `factor` varies along the
    padded axis.
    """
    number = find_rational_constant(factor)
    if number is not None:
        return _add_counts({}, count, number)
    if factor is None or padded_length in factor.shape:
        return None
    return {(*p, factor): n for p, n in count.items()}


def _apply_view_to_count(node: Node, count: PaddingTerms) -> PaddingCount:
    """Return the padding count after a view, with the same view applied to the factors."""
    return {((node.op, p),) if p else p: n for p, n in count.items()}


def _is_compared_with_edge(node: Node, counts: Sequence[PaddingCount]) -> bool:
    """Return True if a comparison of position ids with the start or end of the padding has a result
    that does not depend on the amount of padding.
    """
    for n, (count, right) in enumerate(zip(counts, reversed(node.args), strict=True)):
        factor, bound = _get_only_factor(count), _find_constant_length(right)
        if isinstance(factor, RelativePositionPaddingCount) and counts[1 - n] == factor.count:
            # Relative ids before the padding are negative, and the compared value is not negative.
            return _are_position_ids(right)
        if isinstance(factor, InteriorPaddingCount) and bound is not None:
            return bound == factor.padding_end or (
                bound == factor.padding_start and _is_excluding_start(node, n)
            )
    return False


def _is_excluding_start(node: Node, operand: int) -> bool:
    """Return True if a comparison of `operand` with the start of the padding has the same result at
    padded positions and at the first valid position after the padding.
    """
    excluding_functions = ("gt", "le") if operand else ("lt", "ge")
    return node.op in [ops.Compare(function_name) for function_name in excluding_functions]


def _get_only_factor(count: PaddingCount) -> object:
    """Return the factor if a padding count has exactly one term with one factor, otherwise None."""
    factors = [f for product in count or () for f in product]
    return factors[0] if len(factors) == 1 else None


def _infer_relative_count(node: Node, counts: Sequence[PaddingCount]) -> PaddingCount:
    """Return the padding count of position ids minus the start or end of the padding, else None."""
    factor, bound = _get_only_factor(counts[0]), _find_constant_length(node.args[-1])
    if node.op != ops.Arith("sub") or not isinstance(factor, InteriorPaddingCount):
        return None
    if bound == factor.padding_end:
        return {(RelativePositionPaddingCount(()),): Fraction(1)}
    if bound == factor.padding_start:
        return {(RelativePositionPaddingCount(factor.padding_terms),): Fraction(1)}
    return None


def _are_position_ids(value: Value | None) -> bool:
    """Return True if a value contains position ids."""
    return isinstance(find_op_behind_views(value), ops.Extent | ops.Range)


def _find_constant_length(value: Value | None) -> Dim | None:
    """Return the axis size that all elements of a value equal, or None if there is none."""
    match find_op_behind_views(value):
        case ops.Size(length):
            return length
        case ops.Constant(int() as number, "i64" | "i32"):
            return Dim.from_value(number)
    return None


def _infer_order_count(node: Node, counts: Sequence[PaddingCount]) -> PaddingCount:
    """Return the padding count of an op on position ids, if padding does not change their order."""
    if isinstance(node.op, ops.Compare):
        return NO_PADDING_COUNT
    if None in counts:
        return None
    is_order_kept = isinstance(node.op, ops.Cast) and _is_id_preserving_cast(node, node.op.to)
    return counts[0] if is_order_kept or node.op.is_view else _infer_relative_count(node, counts)


def _is_order_only(count: PaddingCount) -> bool:
    """Return True if padding changes values with this padding count but preserves their order."""
    return any(
        isinstance(f, InteriorPaddingCount | AxisSizePaddingCount | RelativePositionPaddingCount)
        for product in count or ()
        for f in product
    )


def is_last_valid_index(node: Node, padding_mask: Value) -> bool:
    """Return True for `sum(cast(keep, to=int), axis=1) - 1`, the last index with right padding."""
    if node.op != ops.Arith("sub") or find_rational_constant(node.args[1]) != 1:
        return False
    match skip_views(node.first_operand):
        case Value(node=Node(ops.Reduce("sum", axis), (Value(node=Node(ops.Cast(), (mask,))),))):
            return mask is padding_mask and axis == padding_mask.rank - 1
    return False


def depends_on_absolute_position_ids(
    node: Node, counts: Sequence[PaddingCount], padded_length: Dim
) -> bool:
    """Return True if an op depends on absolute position ids, not only on differences."""
    if None in counts:
        return True
    if not any(counts):
        return False
    match node.op:
        case ops.Compare():
            return counts[0] != counts[1] and not _is_compared_with_edge(node, counts)
        case _ if any(map(_is_order_only, counts)):
            return infer_padding_count(node, counts, padded_length) is None
        case ops.RopeAngles() | ops.Extent():
            return False
        case ops.ArgMax() | ops.Reduce("max" | "min"):
            # the argmax does not change if all scores are shifted by the same amount
            return set(counts[0] or {}) != {()}
        case ops.Attend() | ops.MaskedSoftmax() | ops.MaskedHardmax() | ops.Softmax():
            return not _is_uniform_shift(node, counts, padded_length)
    if isinstance(node.op, LINEAR_OPS) or node.op == ops.Pointwise("neg"):
        return infer_padding_count(node, counts, padded_length) is None
    return not (node.op.is_view or _is_selection(node))


def _is_uniform_shift(node: Node, counts: Sequence[PaddingCount], padded_length: Dim) -> bool:
    """Return True if padding adds the same amount to all scores of a softmax without a sink."""
    score_operand, keys, sinks = 0, node.get_operand(), None
    match node.op:
        case ops.Softmax(axis):
            pass
        case ops.Attend():
            score_operand, keys, axis = node.op.bias.index, node.op.key(node), 2
            sinks = node.op.sinks(node)  # padding shifts the scores but does not shift the sink
        case _:
            axis = -1
    if any(count for n, count in enumerate(counts) if n != score_operand):
        return False
    return keys.shape[axis] == padded_length and sinks is None

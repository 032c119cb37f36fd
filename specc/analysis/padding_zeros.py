"""Infer zeros and other properties of values at padded positions.

The input is a node, and the properties of its operands along one padded axis. The output consists
of the properties of each result at padded positions. The analysis is sound: the result of an
unknown op has no guaranteed properties.

In the following graph, scores are filled with -inf where `keep` is false. The masked fill values
are lower than the scores at every valid position (`is_min_or_max_at_padding`), and at least one
valid position has a finite score (`iterate_axes_with_finite_scores`). The softmax divides by a
nonzero sum and therefore returns zeros at padded positions. The values at padded positions then
have no effect on the weighted sum:

    $ padded keep
    graph "g"
    input "x" %0: f32[b, n]
    input "keep" %1: bool[b, n] keep="right"
    %2: f32[] = constant() {value=-1e+38, dtype="f32"}
    %3: f32[b, n] = where(%1, %0, %2)
    %4: f32[b, n] = softmax(%3) {axis=1}
    %5: f32[b, n] = arith(%4, %0) {fn="mul"}
    %6: f32[b] = reduce(%5) {fn="sum", axis=1}
    output "y" %6
    end
    gives
    %1 zero_pad_axes 1, finite_pad_axes 1
    %2 has_masked_fill, has_masked_fill_at_padding
    %3 masked_fill_axes 1, minimum_pad_axes 1, finite_pad_axes 1, has_masked_fill_at_padding
    %4 zero_pad_axes 1
    %5 zero_pad_axes 1
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from specc.analysis.mask_bands import ZERO_PRESERVING_FUNCTIONS
from specc.analysis.padding_constants import infer_fill_values, infer_padding_values
from specc.analysis.padding_facts import PaddedOpResult, PaddedUse, PaddingFacts
from specc.analysis.padding_masked_scores import (
    can_contain_masked_fill,
    can_contain_masked_fill_at_padding,
    has_underflowing_fill,
    is_masked_fill_at_padding,
    is_min_or_max_at_padding,
    iterate_axes_with_finite_scores,
)
from specc.analysis.padding_nonfinite import (
    can_be_nan_at_padding,
    can_be_zero_at_padding,
    find_edge_padded_axes,
    find_infinite_fill_mask,
    find_infinity_signs,
)
from specc.analysis.padding_order_and_windows import (
    find_argsort_axes,
    find_preserved_padding_sides,
    find_sorted_axes,
)
from specc.analysis.padding_position_ids import NO_PADDING_COUNT
from specc.analysis.value_ranges import is_zero_everywhere
from specc.ir import ops
from specc.ir.graph import Node

MASK_QUERY_AXIS, MASK_KEY_AXIS = 2, 3
"""Axis indices of an attention mask with the shape [batch, head, query, key]."""

PRODUCT_OPS = (ops.Arith, ops.MatMul, ops.Einsum, ops.WeightedSum)
"""Ops that may multiply a zero by an element of another operand that may be infinite or NaN."""

ZERO_MOVING_OPS = (
    *(ops.Cast, ops.Rotate, ops.DownsamplePaddingMask, ops.StridedSlice, ops.Slice),
    *(ops.AveragePool, ops.CumSum, ops.Flip, ops.Roll, ops.Resize),
)
"""Ops that map a zero at each position to a zero at the same position."""

ZERO_PRESERVING_REDUCTIONS = ("sum", "any", "max", "min", "mean")
"""Reductions that map zeros to zero along an axis without padding. `all` is excluded, because `all`
is true for an empty axis.
"""


def infer_padding_facts(result: PaddedOpResult) -> PaddingFacts:
    """Infer the properties of a result at padded positions, except its padding count."""
    axes = result.find_inherited_padded_axes()
    constants = infer_padding_values(result)
    zero_axes = _find_zero_pad_axes(result, constants)
    lowest = {a for a in axes if is_min_or_max_at_padding(result, a, lowest=True)}
    highest = {a for a in axes if is_min_or_max_at_padding(result, a, lowest=False)}
    sort_index_axes = find_argsort_axes(result)
    infinite_axes = {a for a, n in constants.items() if n == -inf}
    # After batch and position axes are merged, it is unknown whether padding repeats the last valid
    # position, and whether a valid position has a finite score.
    is_reshape = isinstance(result.op, ops.Merge | ops.Split)
    return PaddingFacts(
        zero_pad_axes=frozenset(zero_axes),
        masked_fill_axes=frozenset(
            infinite_axes.union(a for a in axes if is_masked_fill_at_padding(result, a))
        ),
        minimum_pad_axes=frozenset(infinite_axes | lowest),
        maximum_pad_axes=frozenset(highest) | sort_index_axes,
        padding_values=constants,
        fill_values=infer_fill_values(result, {**dict.fromkeys(zero_axes, 0.0), **constants}),
        sorted_axes=find_sorted_axes(result),
        repeated_axes=frozenset() if is_reshape else find_edge_padded_axes(result),
        infinity_mask=find_infinite_fill_mask(result),
        finite_pad_axes=frozenset(
            () if is_reshape else iterate_axes_with_finite_scores(result, axes)
        ),
        has_masked_fill=can_contain_masked_fill(result),
        has_masked_fill_at_padding=can_contain_masked_fill_at_padding(result),
        possible_infinity_signs=find_infinity_signs(result),
        can_be_nan=can_be_nan_at_padding(result),
        padding_count=NO_PADDING_COUNT,
        # Indices of valid positions remain valid in any view.
        is_valid_index=bool(sort_index_axes)
        or (result.op.is_view and any(r.is_valid_index for r in result.operand_facts)),
    )


def _find_zero_pad_axes(result: PaddedOpResult, constants: Mapping[int, float]) -> set[int]:
    """Return the axes whose padded positions hold zero, given the `constants` keyed by axis."""
    zero_axes = {a for a in result.find_inherited_padded_axes() if is_zero_at_padding(result, a)}
    if is_zero_everywhere(result.value):
        zero_axes |= result.find_padded_axes()
    return zero_axes.union(
        (a for a, n in constants.items() if n == 0), _iterate_masked_axes(result)
    )


def _iterate_masked_axes(result: PaddedOpResult) -> Iterator[int]:
    """Yield the axes along which an op returns zeros where its mask operand is false."""
    node, value, operand_facts = (result.node, result.value, result.operand_facts)
    key_axis = value.rank - 1
    match node.op:
        case ops.AttentionNormalizer():
            # For any number of leading axes, the key axis is the last axis of masks and attention
            # weights.
            mask = node.op.mask
            masked_axes = mask.get_entry(operand_facts).zero_pad_axes
            if mask(node).rank - 1 in masked_axes:
                yield key_axis
            if mask(node).rank - 2 in masked_axes:
                yield key_axis - 1  # the result is zero for a query without visible keys
        case ops.Attend():
            yield from _iterate_masked_attention_axes(result, node.op)
        case ops.Softmax(axis) if is_padding_ignored_by_softmax(node, operand_facts[0], axis):
            # exp(-1e30 - max) is 0 if max is a finite score. If all scores were masked fill values,
            # each of n keys would have the attention weight 1/n.
            yield axis
        case ops.Pointwise("exp"):
            yield from operand_facts[0].masked_fill_axes
        case ops.Scan(has_mask=True, axis=axis) if 1 in operand_facts[0].zero_pad_axes:
            # A masked loop returns zeros at skipped positions. Final loop-carried values have no
            # loop axis.
            is_stacked = value.index >= node.op.carry_count
            if is_stacked and value.rank > axis and value.shape[axis] in result.padded_lengths:
                yield axis
        case ops.MixtureOfExperts() as op if (
            keep := op.split_operands(operand_facts).keep
        ) is not None:
            yield from keep.zero_pad_axes  # masked positions are not routed to any expert
        case ops.RecurrentLayer() if value.rank == 3 and has_recurrent_padding_mask(
            node, operand_facts
        ):
            yield 1


def _iterate_masked_attention_axes(result: PaddedOpResult, op: ops.Attend) -> Iterator[int]:
    """Yield the axes along which attention is zero because the mask is false."""
    value, operand_facts = result.value, result.operand_facts
    mask_facts = op.mask.get_entry(operand_facts)
    masked_axes = mask_facts.zero_pad_axes if op.mask(result.node) and mask_facts else ()
    # The second result contains the attention weights. The last axis of the first result is the
    # feature axis, not the key axis.
    if value.shape[-1] in result.padded_lengths and MASK_KEY_AXIS in masked_axes:
        yield value.rank - 1
    # Zero times NaN is NaN.
    is_finite = value.index == op.weights_result or op.value.get_entry(operand_facts).is_finite
    if MASK_QUERY_AXIS in masked_axes and is_finite:
        yield MASK_QUERY_AXIS


def is_padding_ignored_by_softmax(node: Node, scores: PaddingFacts, axis: int) -> bool:
    """Return True if a softmax is zero at padded positions of its axis. Padded scores must be mask
    fill values, or so far below all other scores that the exponential underflows to zero.
    """
    fill_axes = scores.masked_fill_axes or (
        scores.minimum_pad_axes if has_underflowing_fill(node.first_operand) else frozenset()
    )
    return axis in fill_axes & scores.finite_pad_axes


def has_recurrent_padding_mask(node: Node, operand_facts: Sequence[PaddingFacts]) -> bool:
    """Return True if a recurrent layer has a padding mask."""
    if not isinstance(node.op, ops.RecurrentLayer):
        return False
    keep = node.op.keep.get_entry(operand_facts)
    return keep is not None and 1 in keep.zero_pad_axes


def infer_zero_padded_sides(
    result: PaddedOpResult, uses: Iterable[PaddedUse]
) -> dict[int, frozenset[str]]:
    """Return the sides on which the padding of each axis is false, for slices of a mask and for
    conjunctions of slices, e.g. `keep[:, 1:] & keep[:, :-1]`.
    """
    op, sides = result.op, dict[int, frozenset[str]]()
    if isinstance(op, ops.Slice):
        sliced = (u for u in uses if u.axis == op.axis and u.is_zero_padded)
        unsorted = (u for u in sliced if u.axis not in u.facts.sorted_axes)
        return {u.axis: find_preserved_padding_sides(u) for u in unsorted}
    if isinstance(op, ops.And):
        for k in result.dependences:
            zero_padded_sides = result.operand_facts[k.operand].zero_padded_sides.get(
                k.operand_axis
            )
            if k.result_axis is not None and zero_padded_sides:
                sides[k.result_axis] = sides.get(k.result_axis, frozenset()) | zero_padded_sides
    return sides


def is_zero_at_padding(result: PaddedOpResult, axis: int) -> bool:
    """Return True if a result is zero at padded positions of `axis`."""
    operands = range(len(result.operand_facts))
    zero_operands = result.find_operands_with_fact("zero_pad_axes", axis)
    padded_operands = result.find_operands_with_axis(axis)
    is_zero = [n in zero_operands for n in operands]
    has_axis = [n in padded_operands for n in operands]
    if len(infer_zero_padded_sides(result, ()).get(axis, ())) == 2:
        return True
    if isinstance(result.op, ops.Concat):
        # An operand of `concat` that has no padded positions adds always-valid positions to the
        # axis.
        is_zero = [z or not is_padded for z, is_padded in zip(is_zero, has_axis, strict=True)]
    if isinstance(result.op, ops.Pad) and result.op.axis == axis:
        return is_zero[0]  # the added positions are next to padded positions
    if isinstance(result.op, PRODUCT_OPS) and not all(
        z or facts.is_finite for z, facts in zip(is_zero, result.operand_facts, strict=True)
    ):
        return False  # zero times infinity or NaN is NaN
    return _is_zero_result(result, is_zero, has_axis)


def _is_zero_result(result: PaddedOpResult, is_zero: list[bool], has_padding: list[bool]) -> bool:
    """Return True if the result is zero at padded positions. `is_zero` is true for each operand
    that is zero at padded positions, and `has_padding` is true for each operand with padded
    positions.
    """
    node = result.node
    match node.op:
        case ops.And() | ops.Arith("mul") | ops.MatMul() | ops.Einsum() | ops.WeightedSum():
            return any(is_zero)  # one zero factor makes a product zero
        case ops.Or() | ops.Concat() | ops.Where() | ops.Arith("add" | "sub" | "min" | "max"):
            return _are_operands_zero(node, is_zero)
        case ops.Arith("div" | "floordiv"):
            # Zero divided by zero is NaN, and a divisor with padded positions may be zero.
            return is_zero[0] and not (has_padding[1] and can_be_zero_at_padding(result, 1))
    return (is_zero[0] and is_zero_preserving(node)) or (node.op.is_view and any(is_zero))


def is_zero_preserving(node: Node) -> bool:
    """Return True if an op with one operand maps zeros to zeros."""
    match node.op:
        case ops.Pointwise(fn):
            return fn in ZERO_PRESERVING_FUNCTIONS
        case ops.Linear() | ops.Conv():
            # A bias is also added at padded positions, so the result is not zero there.
            return node.op.bias(node) is None
        case ops.RMSNorm(eps):
            return eps > 0
        case ops.Delay(fill_value=fill_value) | ops.Pad(value=fill_value):
            return not fill_value
        case ops.Reduce(fn):
            return fn in ZERO_PRESERVING_REDUCTIONS
    return isinstance(node.op, ZERO_MOVING_OPS)


def _are_operands_zero(node: Node, is_zero: list[bool]) -> bool:
    """Return True if every operand whose elements may be selected is zero at padded positions.
    `is_zero` is true for each operand that is zero or false at padded positions.
    """
    zeros = [z or is_zero_everywhere(a) for z, a in zip(is_zero, node.args, strict=True)]
    if isinstance(node.op, ops.Where):
        # `where(keep, x, 0)` selects `0` at padded positions, because `keep` is false at padding.
        return (is_zero[0] or zeros[1]) and zeros[2]
    return all(zeros)

"""Find padded axes that are reversed, rolled or sorted, and ops whose operands have different
orders. Prove that padding does not affect windows (convolution, pooling), slices and `pad`.

An axis consists of always-valid positions, a padded sequence, and further always-valid positions. A
window across the borders of the padded sequence is unaffected by padding if padded positions and
the positions that were added next to the padding hold the same constant
(`PaddingFacts.fill_values`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf, nan

from specc.analysis.masked_constants import is_sorted_last
from specc.analysis.padding_facts import PaddedOpResult, PaddedUse, PaddingFacts, PaddingSource
from specc.analysis.value_ranges import find_splat_value
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op
from specc.ir.types import SAME_POSITION


def is_output_order_changed(graph: Graph, name: str, value: Value, facts: PaddingFacts) -> bool:
    """Return True if the positions of the output `value` are in reverse order, or are sorted along
    an axis whose padding does not follow all valid positions. `name` is the name of the padding
    mask input.
    """
    length = graph.inputs[name].shape[-1:]
    is_right_padded = graph.input_facts[name].padding_side == "right"
    return bool(facts.reversed_axes) or any(
        not is_right_padded or value.shape[axis : axis + 1] != length for axis in facts.sorted_axes
    )


def find_reversed_axes(padded_uses: Sequence[PaddedUse]) -> frozenset[int]:
    """Return the axes of a result that are in reverse order because `flip` reversed an operand."""
    reversed_axes = {
        u.dependence.result_axis
        for u in padded_uses
        if (u.axis in u.facts.reversed_axes) != (u.op == ops.Flip(u.axis))
    }
    return frozenset(a for a in reversed_axes if a is not None)


def has_mixed_axis_order(padded_uses: Sequence[PaddedUse], is_in_loop: bool) -> bool:
    """Return True if an op combines a reversed axis with an unreversed axis, or if the op reads a
    reversed axis and is not elementwise, a window op or a reduction. In a loop body (`is_in_loop`),
    return True for every `flip` and every `roll`.
    """
    if any(isinstance(u.op, ops.Flip | ops.Roll) for u in padded_uses):
        return is_in_loop
    has_reversed_operand = any(f.reversed_axes for u in padded_uses for f in u.operand_facts)
    return has_reversed_operand and any(
        u.axis not in u.facts.reversed_axes
        or not (
            isinstance(u.op, ops.Reduce | ops.Softmax)
            or u.dependence.kind in ("same", "window", "newest")
        )
        for u in padded_uses
    )


def find_order_dependent_roll(
    node: Node, operand_facts: Sequence[PaddingFacts], dependences: Iterable[Dependence]
) -> PaddingSource | None:
    """Return the padding source of a rolled axis if an op depends on its order of positions: the op
    is neither elementwise nor a reduction, or combines the axis with an axis that is rolled by a
    different amount. Return None for other ops.
    """
    links = list(dependences)
    sources = [operand_facts[k.operand].rolled_axes.get(k.operand_axis) for k in links]
    for link, source in zip(links, sources, strict=True):
        is_elementwise = link.kind == "same" and not isinstance(node.op, ops.Scan)
        joined_ops = {
            other and other.node.op
            for k, other in zip(links, sources, strict=True)
            if k.result_axis is not None and k.result_axis == link.result_axis
        }
        is_order_independent = (
            is_elementwise
            or reads_last_sorted_position(node, source)
            or _is_reduction_without_copies(node.op, source)
        )
        if source and (not is_order_independent or len(joined_ops) > 1):
            return source
    return None


def _is_reduction_without_copies(op: Op, source: PaddingSource | None) -> bool:
    """Return True for a reduction that is unaffected by repeated elements, e.g. a maximum."""
    is_extended = source is not None and isinstance(source.node.op, ops.Pad)
    return isinstance(op, ops.Reduce) and (not is_extended or op.fn in ("all", "any", "max", "min"))


def reads_last_sorted_position(node: Node, source: PaddingSource | None) -> bool:
    """Return True if an op reads only the last position of an axis sorted with padding first."""
    match node.op:
        case ops.Last(axis):
            pass
        case ops.Index(axis, index=index) if index == node.get_operand().shape[axis] - 1:
            pass
        case _:
            return False
    sort = source.node.op if source else None
    return isinstance(sort, ops.Sort) and axis == sort.axis


def sorts_padding_first(node: Node, facts: PaddingFacts) -> bool:
    """Return True if a sort orders all padded positions before all valid positions."""
    match node.op:
        case ops.Sort(descending=descending) if not sorts_padding_last(node, facts):
            reversed_sort = replace(node, op=replace(node.op, descending=not descending))
            return sorts_padding_last(reversed_sort, facts)
    return False


def sorts_padding_last(node: Node, facts: PaddingFacts) -> bool:
    """Return True if a sort orders all padded positions after all valid positions."""
    match node.op:
        case ops.Sort(axis, descending):
            number = facts.get_padding_value(axis)
            last_axes = facts.minimum_pad_axes if descending else facts.maximum_pad_axes
            return axis in last_axes or (number is not None and is_sorted_last(node, number))
    return False


def find_argsort_axes(result: PaddedOpResult) -> frozenset[int]:
    """Return the axes of sort indices (the result of an argsort) if the sort keeps right padding
    last, so that the indices of padded positions are the largest and are also last.
    """
    node = result.node
    match node.op:
        case ops.Sort(axis) if result.value.index == 1 and result.is_right_padded:
            if sorts_padding_last(node, result.operand_facts[0]):
                return frozenset({axis} & result.find_padded_axes())
    return frozenset()


def find_sorted_axes(result: PaddedOpResult) -> frozenset[int]:
    """Return the result axes whose positions are sort indices (ranks)."""
    node, operand_facts = result.node, result.operand_facts
    sorted_axes = {
        k.result_axis
        for k in result.dependences
        if k.result_axis is not None and k.operand_axis in operand_facts[k.operand].sorted_axes
    }
    match node.op:
        case ops.Sort(axis) if axis in result.find_padded_axes():
            if not sorts_padding_first(node, operand_facts[0]):
                sorted_axes.add(axis)
        case ops.CumSum(axis) if axis in operand_facts[0].sorted_axes:
            sorted_axes.add(axis)
        case ops.Extent(axis) if axis in operand_facts[0].sorted_axes:
            sorted_axes.add(0)
        case ops.Gather(axis) if gathers_by_argsort(node, operand_facts):
            sorted_axes.add(axis)
    return frozenset(sorted_axes)


def mixes_sorted_axes(result: PaddedOpResult) -> bool:
    """Return True if an elementwise op combines a sorted axis with an unsorted axis."""
    return any(
        not _counts_sort_indices(result, k)
        for k in result.dependences
        if k.operand_axis not in result.operand_facts[k.operand].sorted_axes
        and _has_sorted_operand(result, k.result_axis)
    )


def find_sorted_position_ids(result: PaddedOpResult) -> set[int]:
    """Return the indices of operands that are position ids of a sorted axis, i.e. sort indices."""
    return {
        k.operand
        for k in result.dependences
        if _has_sorted_operand(result, k.result_axis) and _counts_sort_indices(result, k)
    }


def _counts_sort_indices(result: PaddedOpResult, dependence: Dependence) -> bool:
    """Return True if the operand is computed from position ids and has exactly one padded axis."""
    value = result.node.args[dependence.operand]
    shape = value.shape if value else ()
    return is_computed_from_positions(value) and sum(d in result.padded_lengths for d in shape) == 1


def _has_sorted_operand(result: PaddedOpResult, axis: int | None) -> bool:
    """Return True if an operand is sorted along `axis` of the result."""
    return any(
        k.result_axis == axis and k.operand_axis in result.operand_facts[k.operand].sorted_axes
        for k in result.dependences
    )


def gathers_by_argsort(node: Node, operand_facts: Sequence[PaddingFacts]) -> bool:
    """Return True if padding is last and a gather reads a value that holds a constant at padded
    positions.
    """
    match node:
        case Node(ops.Gather(axis), (_, Value(node=Node(ops.Sort()), index=1))):
            return axis in operand_facts[0].padding_values and axis in operand_facts[1].sorted_axes
    return False


MAX_POSITION_SEARCH_DEPTH = 20
"""Maximum depth of the search for position ids in the operands of a value."""


def is_computed_from_positions(value: Value | None, depth: int = 0) -> bool:
    """Return True if a value is computed only from position ids and constants."""
    if value is None or value.node is None or depth > MAX_POSITION_SEARCH_DEPTH:
        return False
    op = value.node.op
    if isinstance(op, ops.Extent | ops.Range | ops.Constant):
        return True
    elementwise = ops.Arith | ops.Compare | ops.Cast | ops.Pointwise | ops.And | ops.Or
    return (isinstance(op, elementwise) or op.is_view) and all(
        is_computed_from_positions(a, depth + 1) for a in value.node.operands
    )


def preserves_padding(use: PaddedUse) -> bool:
    """Return True if properties at padded positions of the operand also hold for the result."""
    if use.dependence.kind == "same":
        return True
    match use.op:
        case ops.DownsamplePaddingMask() | ops.Flip() | ops.Roll():
            return True
        case ops.StridedSlice():
            return is_slice_to_end(use.node)
        case ops.Slice():
            # On the padded side, the slice drops padding, or valid positions of unpadded sequences.
            return all(excess <= 0 for excess in _iterate_dropped_counts(use))
        case ops.Pad() | ops.Concat():
            return use.dependence.kind == "strided"
        case ops.Conv() | ops.AveragePool() | ops.CumSum() | ops.Delay():
            return use.dependence.kind == "window" and _is_reading_only_padding(use)
    return False


def find_preserved_padding_sides(use: PaddedUse) -> frozenset[str]:
    """Return the sides on which a slice drops always-valid positions and no padded positions."""
    dropped = zip(("left", "right"), _iterate_dropped_counts(use), strict=True)
    return frozenset(side for side, excess in dropped if excess <= 0)


def _is_reading_only_padding(use: PaddedUse) -> bool:
    """Return True if padded results of a window op depend only on padded positions."""
    is_sorted = use.axis in use.facts.sorted_axes  # a sort places padding last
    is_first = use.is_left_padded and not is_sorted
    reads_only_before = is_first and use.dependence.min_offset >= 0
    reads_only_after = use.is_right_padded and use.dependence.max_offset <= 0
    return (reads_only_before or reads_only_after) and not use.is_merged


def is_window_padding_invariant(use: PaddedUse) -> bool:
    """Return True if padding does not affect a window op that preserves the size of the axis."""
    if use.dependence.offsets == SAME_POSITION:
        return True
    match use.op:
        case ops.Delay(fill_value=fill_value):
            # A delay reads padding or its fill value before the first valid position, so both must
            # be equal.
            return use.fill_value == float(fill_value)
        case ops.CumSum():
            return use.is_zero_padded
    return not use.has_interior_padding and _is_same_at_ends(use)


def _is_same_at_ends(use: PaddedUse) -> bool:
    """Return True if windows over padding and windows beyond the end of the axis have the same
    result.
    """
    match use.op:
        case ops.Conv() | ops.ConvTranspose() | ops.AveragePool(count_include_pad=True):
            return use.fill_value == 0
        case ops.MaxPool(dilation=dilation) if use.has_interior_padding:
            return use.fill_value == -inf and max(dilation) == 1
        case ops.MaxPool(dilation=dilation) if max(dilation) == 1:
            # Each window at a valid output position contains a valid input position.
            return use.axis in use.facts.minimum_pad_axes
    return False


def is_resize_padding_invariant(use: PaddedUse) -> bool:
    """Return True if padding does not affect an op that changes the size of an axis (window, `pad`,
    …).
    """
    op = use.op
    if use.is_shifted or use.result_has_interior_padding:
        return False
    if isinstance(op, ops.Slice):
        return use.fill_value is not None or _is_one_sided_slice(use)
    if use.has_interior_padding and use.fill_value is None:
        return False
    match op:
        case ops.DownsamplePaddingMask():
            return not use.has_interior_padding or use.fill_value == 0
        case ops.StridedSlice(start=start):
            # Left padding changes which positions a strided slice selects.
            is_first = start.number in range(use.dependence.stride)
            return is_slice_to_end(use.node) and (is_first or not use.can_be_left_padded)
        case ops.Conv() | ops.ConvTranspose() | ops.MaxPool() | ops.AveragePool():
            return not _is_reading_ends(use, op) or _is_same_at_ends(use)
    return isinstance(op, ops.Pad | ops.Concat) and _is_fill_matching(use)


def _is_one_sided_slice(use: PaddedUse) -> bool:
    """Return True if a slice drops all always-valid positions after the padding."""
    dropped = _iterate_dropped_counts(use, inf)
    return not use.has_interior_padding or all(excess >= 0 for excess in dropped)


def _is_reading_ends(use: PaddedUse, op: ops.SlidingWindowOp | ops.ConvTranspose) -> bool:
    """Return True if windows extend beyond an end of the axis that may be padded."""
    if isinstance(op, ops.ConvTranspose):
        return _is_transposed_conv_reading_ends(use, op)
    dim = use.axis - len(op.kernel)
    reads_right_end = use.can_be_right_padded and op.end_padding[dim] > 0
    return reads_right_end or (use.can_be_left_padded and op.padding_before[dim] > 0)


def _is_transposed_conv_reading_ends(use: PaddedUse, op: ops.ConvTranspose) -> bool:
    """Return True if a transposed convolution reads beyond an end that may be padded."""
    dim = use.axis - len(op.kernel)
    span = op.dilation[dim] * (op.kernel[dim] - 1)
    reads_right_end = use.can_be_right_padded and span - op.padding_after[dim] >= op.stride[dim]
    return reads_right_end or (
        use.can_be_left_padded and span - op.padding_before[dim] >= op.stride[dim]
    )


def _is_fill_matching(use: PaddedUse) -> bool:
    """Return True if positions added next to padding hold the same constant as the padding."""
    op, operand = use.op, use.dependence.operand
    added_constants: list[float | None] = []
    if isinstance(op, ops.Pad) and op.mode != "constant":
        # Copied positions at the end of an axis are reported at the op that reads them
        # (`PaddingDataflow`).
        return op.mode == "edge" or not copies_padded_edge(use, op)
    if isinstance(op, ops.Pad):
        left_end = (use.can_be_left_padded, op.padding_before)
        ends = (left_end, (use.can_be_right_padded, op.padding_after))
        added_constants += [float(op.value) for is_padded, n in ends if is_padded and n != 0]
    else:
        before, after = use.node.args[:operand], use.node.args[operand + 1 :]
        parts = before * use.can_be_left_padded + after * use.can_be_right_padded
        added_constants += [find_splat_value(a) for a in parts if a]
    return all(n is not None and n == use.fill_value for n in added_constants)


def copies_padded_edge(use: PaddedUse, op: ops.Pad) -> bool:
    """Return True if `pad` repeats the positions at an end of the axis that may be padded."""
    copies_first = use.can_be_left_padded and op.padding_before != 0
    return copies_first or (use.can_be_right_padded and op.padding_after != 0)


def _iterate_dropped_counts(use: PaddedUse, default: float = 0) -> Iterator[float]:
    """Yield for each side the number of dropped positions minus the number of always-valid
    positions, or `default` if the side has no padding.
    """
    op = use.op
    assert isinstance(op, ops.Slice), "only a slice drops positions"
    dropped = (op.start, use.axis_size - op.stop)
    for n, side in enumerate(("left", "right")):
        dropped_count, valid_count = dropped[n].number, use.valid_end_counts[n]
        if use.padding_side not in (side, "any"):
            yield default
        else:
            yield (
                nan if dropped_count is None or valid_count is None else dropped_count - valid_count
            )


def is_slice_to_end(node: Node) -> bool:
    """Return True if a strided slice extends to the end of the axis, as strided windows do."""
    op = node.op
    return isinstance(op, ops.StridedSlice) and op.stop == node.get_operand().shape[op.axis]

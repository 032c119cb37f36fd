"""Determine the order of padded axes (reversed, rolled or sorted), and find ops that mix orders."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from specc.analysis.masked_constants import is_sorted_last
from specc.analysis.padding_facts import PaddedResult, PaddingFacts, PaddingSource
from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.op import Op
from specc.ir.op_dependence import Dependence


def is_output_order_changed(graph: Graph, name: str, value: Value, facts: PaddingFacts) -> bool:
    """Return True if the output `value` has its positions in reverse order, or sorted on an axis on
    which padding does not follow all valid positions. `name` is the padding mask.
    """
    length = graph.inputs[name].shape[-1:]
    is_changed = any(value.shape[axis : axis + 1] != length for axis in facts.sorted_axes)
    is_changed = is_changed or bool(facts.reversed_axes)
    return is_changed or (
        bool(facts.sorted_axes) and graph.input_facts[name].padding_side != "right"
    )


def find_reversed_axes(
    node: Node, operand_facts: Sequence[PaddingFacts], padded_dependences: Sequence[Dependence]
) -> frozenset[int]:
    """Return the axes of a result that are in reverse order because `flip` reversed an operand."""
    reversed_axes = {
        k.result_axis
        for k in padded_dependences
        if k.operand_axis in operand_facts[k.operand].reversed_axes
    }
    if isinstance(node.op, ops.Flip):
        flipped = (k for k in padded_dependences if k.operand_axis == node.op.axis)
        reversed_axes ^= {k.result_axis for k in flipped}
    return frozenset(a for a in reversed_axes if a is not None)


def has_mixed_axis_order(
    node: Node,
    operand_facts: Sequence[PaddingFacts],
    padded_dependences: Sequence[Dependence],
    is_in_loop: bool,
) -> bool:
    """Return True if an op combines a reversed axis with one that is not, or reads a reversed axis
    other than elementwise or by a window or reduction. In a loop body (`is_in_loop`), return True
    for every `flip` and `roll`.
    """
    if isinstance(node.op, ops.Flip | ops.Roll):
        return is_in_loop and bool(padded_dependences)
    if not any(r.reversed_axes for r in operand_facts):
        return False
    is_reduction = isinstance(node.op, ops.Reduce | ops.Softmax)
    return any(
        k.operand_axis not in operand_facts[k.operand].reversed_axes
        or not (is_reduction or k.kind in ("same", "window", "newest"))
        for k in padded_dependences
    )


def find_rolled_axes(
    operand_facts: Sequence[PaddingFacts], padded_dependences: Sequence[Dependence]
) -> Mapping[int, PaddingSource]:
    """Return the axes that `roll` rotated or `pad` extended by copies, with their source."""
    return {
        k.result_axis: source
        for k in padded_dependences
        if k.result_axis is not None
        and (source := operand_facts[k.operand].rolled_axes.get(k.operand_axis)) is not None
    }


def find_order_dependent_roll(
    node: Node, operand_facts: Sequence[PaddingFacts], dependences: Iterable[Dependence]
) -> PaddingSource | None:
    """Return the source of a rotated axis that an op reads neither elementwise nor by a reduction,
    or combines with an axis that is rotated by a different amount. Return None if there is no such
    axis.
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
            or is_reading_last_rank(node, source)
            or _is_reduction_without_copies(node.op, source)
        )
        if source and (not is_order_independent or len(joined_ops) > 1):
            return source
    return None


def _is_reduction_without_copies(op: Op, source: PaddingSource | None) -> bool:
    """Return True for a reduction of an axis that `roll` or `sort` moved, or of an axis that `pad`
    extended by copies of its ends if the copies do not change the result.
    """
    is_extended = source is not None and isinstance(source.node.op, ops.Pad)
    return isinstance(op, ops.Reduce) and (not is_extended or op.fn in ("all", "any", "max", "min"))


def is_reading_last_rank(node: Node, source: PaddingSource | None) -> bool:
    """Return True if an op reads only the last position of an axis with padding sorted first."""
    x, sort = node.first_operand, source.node.op if source else None
    if not isinstance(sort, ops.Sort) or x is None:
        return False
    match node.op:
        case ops.Last(axis):
            return axis == sort.axis
        case ops.Index(axis, index=index):
            return axis == sort.axis and index == x.shape[axis] - 1
    return False


def is_padding_sorted_first(node: Node, facts: PaddingFacts) -> bool:
    """Return True if a sort orders all padded positions before all valid positions."""
    match node.op:
        case ops.Sort(descending=descending):
            reversed_sort = replace(node, op=replace(node.op, descending=not descending))
            is_last = is_padding_sorted_last(node, facts)
            return not is_last and is_padding_sorted_last(reversed_sort, facts)
    return False


MAX_POSITION_SEARCH_DEPTH = 20
"""Maximum depth of the search for position ids in the operands of a value."""


def get_trailing_padding_value(node: Node, facts: PaddingFacts) -> float | None:
    """Return the constant at padded positions if a sort orders it last, or None."""
    match node.op:
        case ops.Sort(axis, descending):
            number = facts.get_padded_value(axis)
            last_axes = facts.minimum_pad_axes if descending else facts.maximum_pad_axes
            is_last = number is not None and is_sorted_last(node, number)
            return number if is_last or axis in last_axes else None
    return None


def is_padding_sorted_last(node: Node, facts: PaddingFacts) -> bool:
    """Return True if a sort orders all padded positions after all valid positions."""
    match node.op:
        case ops.Sort(axis, descending):
            last_axes = facts.minimum_pad_axes if descending else facts.maximum_pad_axes
            return axis in last_axes or get_trailing_padding_value(node, facts) is not None
    return False


def find_sort_index_axes(result: PaddedResult) -> frozenset[int]:
    """Return the axes of sort indices (the result of an argsort) if the sort leaves right padding
    last: the indices of valid positions come first, followed by the larger indices of padded
    positions.
    """
    node = result.node
    match node.op:
        case ops.Sort(axis) if result.value.index == 1 and result.is_padding_last:
            is_last = is_padding_sorted_last(node, result.operand_facts[0])
            return frozenset({axis} & result.find_padded_axes()) if is_last else frozenset()
    return frozenset()


def find_sorted_axes(result: PaddedResult) -> frozenset[int]:
    """Return the axes of a result whose positions are ranks (indices in sorted order)."""
    node, operand_facts = result.node, result.operand_facts
    sorted_axes = {
        k.result_axis
        for k in result.dependences
        if k.result_axis is not None and k.operand_axis in operand_facts[k.operand].sorted_axes
    }
    match node.op:
        case ops.Sort(axis) if axis in result.find_padded_axes():
            if not is_padding_sorted_first(node, operand_facts[0]):
                sorted_axes.add(axis)
        case ops.CumSum(axis) if axis in operand_facts[0].sorted_axes:
            sorted_axes.add(axis)
        case ops.Extent(axis) if axis in operand_facts[0].sorted_axes:
            sorted_axes.add(0)
        case ops.Gather(axis) if is_gather_in_sort_order(node, operand_facts):
            sorted_axes.add(axis)
    return frozenset(sorted_axes)


def has_mixed_sort_order(result: PaddedResult) -> bool:
    """Return True if an elementwise op combines a sorted axis (ranks) with an unsorted axis."""
    return any(
        not _counts_sort_indices(result, k)
        for k in result.dependences
        if k.operand_axis not in result.operand_facts[k.operand].sorted_axes
        and _has_sorted_operand(result, k.result_axis)
    )


def find_sort_index_operands(result: PaddedResult) -> set[int]:
    """Return the operands that are position ids combined with a sorted axis (ranks, too)."""
    return {
        k.operand
        for k in result.dependences
        if _has_sorted_operand(result, k.result_axis) and _counts_sort_indices(result, k)
    }


def _counts_sort_indices(result: PaddedResult, dependence: Dependence) -> bool:
    """Return True if the operand of `dependence` is computed from position ids and has a single
    padded axis. Such position ids may be ranks.
    """
    value = result.node.args[dependence.operand]
    shape = value.shape if value else ()
    return is_computed_from_positions(value) and sum(d in result.padded_lengths for d in shape) == 1


def _has_sorted_operand(result: PaddedResult, axis: int | None) -> bool:
    """Return True if an operand is sorted along `axis` of the result."""
    return any(
        k.result_axis == axis and k.operand_axis in result.operand_facts[k.operand].sorted_axes
        for k in result.dependences
    )


def is_gather_in_sort_order(node: Node, operand_facts: Sequence[PaddingFacts]) -> bool:
    """Return True if a gather reads positions in the order of a sort that puts padded positions
    last, and the gathered value is constant at padded positions.
    """
    match node:
        case Node(ops.Gather(axis), (_, Value(node=Node(ops.Sort()), index=1))):
            return axis in operand_facts[0].constants and axis in operand_facts[1].sorted_axes
    return False


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

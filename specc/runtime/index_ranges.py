"""Find the integer input values for which all embedding lookups in a graph are in range."""

from collections.abc import Mapping

from specc.analysis.value_ranges import find_rational_constant, skip_views
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value

Shift = tuple[Value, int, int]
"""The value `sign * input + offset` of an integer input. `sign` is 1 or -1."""


def find_valid_id_ranges(graph: Graph, sizes: Mapping[str, int]) -> dict[Value, range]:
    """Return the range of valid values for each integer input that determines indices of embedding
    lookups or gathers. `sizes` are the sizes of symbolic dimensions.

    For index expressions such as `x + 1` or `-x`, the range of `x` is exact. For other expressions
    such as `embedding(max(ids, 0))`, the range is that of the smallest table's indices. Loop bodies
    are skipped, because scanned inputs have declared bounds.
    """
    integers = [v for v in graph.inputs.values() if _is_integer(v)]
    sources: dict[Value, set[Value]] = {v: {v} for v in integers}
    shifts: dict[Value, Shift] = {v: (v, 1, 0) for v in integers}
    ranges: dict[Value, range] = {}
    for node, results in graph.nodes:
        if lookup := _find_table_lookup(node):
            ids, indices = lookup[0], range(lookup[1].evaluate(sizes))
            for source in sources.get(ids, ()):
                valid = _invert_shift(shifts[ids], indices) if ids in shifts else indices
                ranges[source] = _intersect_ranges(ranges.get(source), valid)
        # Float values are not token ids, even if they are computed from token ids.
        source_inputs = set().union(*(sources.get(a, ()) for a in node.args if a))
        sources |= {result: source_inputs for result in results if _is_integer(result)}
        if shift := _shift_operand(node, shifts, sizes):
            shifts[results[0]] = shift
    return ranges


def _shift_operand(
    node: Node, shifts: Mapping[Value, Shift], sizes: Mapping[str, int]
) -> Shift | None:
    """Return the shift of an input if a node is a view, negation or integer addition, or None."""
    op, (first, second, *_) = node.op, (*node.args, None, None)
    left, right = (shifts.get(x) if x else None for x in (first, second))
    if left and (op.is_view or isinstance(op, ops.Cast)):
        return left
    if left and op == ops.Pointwise("neg"):
        return left[0], -left[1], -left[2]
    if op not in (ops.Arith("add"), ops.Arith("sub")):
        return None
    factor = 1 if op == ops.Arith("add") else -1
    if left and (number := _find_number(second, sizes)) is not None:
        return left[0], left[1], left[2] + factor * number
    if right and (number := _find_number(first, sizes)) is not None:
        return right[0], factor * right[1], factor * right[2] + number
    return None


def _find_number(value: Value | None, sizes: Mapping[str, int]) -> int | None:
    """Return the constant or dimension size to which all elements are equal, or None."""
    source = skip_views(value, ops.Cast)
    if source is not None and isinstance(source.op, ops.Size):
        return source.op.length.evaluate(sizes)
    number = find_rational_constant(value)
    return None if number is None else int(number)


def _invert_shift(shift: Shift, indices: range) -> range:
    """Return the range of input values whose shifted values are valid indices. Negative values are
    excluded if a non-negative value is valid.
    """
    _, sign, offset = shift
    low, high = sorted((sign * (indices.start - offset), sign * (indices.stop - 1 - offset)))
    return range(max(low, 0), high + 1) if high > 0 else range(low, high + 1)


def _intersect_ranges(first: range | None, second: range) -> range:
    """Return the intersection of two ranges, or the shorter range if they are disjoint."""
    if first is None:
        return second
    intersection = range(max(first.start, second.start), min(first.stop, second.stop))
    return intersection or min(first, second, key=len)


def find_constants_compared_to_inputs(graph: Graph) -> dict[Value, list[int]]:
    """Map integer inputs to the constants with which they are compared, e.g. an image token id."""
    compared_ids: dict[Value, list[int]] = {}
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Compare) and node.op.fn in ("eq", "ne"):
            for operand, other in (node.args, node.args[::-1]):
                ids, number = skip_views(operand, ops.Cast), find_rational_constant(other)
                if ids is not None and ids.node is None and number is not None:
                    compared_ids.setdefault(ids, []).append(int(number))
    return compared_ids


def _is_integer(value: Value) -> bool:
    return value.dtype in ("i64", "i32")


def _find_table_lookup(node: Node) -> tuple[Value, Dim] | None:
    """Return the indices and the axis size of an embedding lookup or gather. Return None for other
    nodes.
    """
    match node.op:
        case ops.Embedding():
            return node.op.ids(node), node.op.table(node).shape[0]
        case ops.Gather(axis=axis):
            return node.op.ids(node), node.op.table(node).shape[axis]
    return None

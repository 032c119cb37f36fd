"""Find reductions over keys that masked keys do not affect.

The input is a node that reads all positions of an axis, such as a sum over keys. The analysis finds
the query axis of the result, and the interval of `q - k` in which keys affect the result. Masked
keys hold a constant (`find_masked_constants`). A constant has no effect on an op if it is:

    sum                     0
    max, argmax             a lower bound of all elements: -inf, or 0 for weights
    softmax                 -inf
    sort                    a constant that sorts last
    topk                    -inf, of which decode steps append more
    gather                  any constant, if all indices are in range

Equal values are ordered by position, so `argmax` and `sort` return visible keys before masked keys.
Among masked keys, `topk` selects the keys at the lowest positions, which stay the same when keys
are appended.
"""

from collections.abc import Iterable
from math import inf

from specc.analysis.attention_matrices import make_attention_matrix, unwrap_all_views
from specc.analysis.mask_bands import intersect_bands
from specc.analysis.masked_constants import (
    compute_argsort_interval,
    find_masked_constants,
    is_sorted_last,
)
from specc.analysis.query_key_products import MaskedConstants
from specc.analysis.time_axis_prefix_and_chunks import TimeAxis
from specc.analysis.value_ranges import find_value_range, skip_views
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.graph import Node, Value
from specc.ir.types import FULL_INTERVAL, Interval

VisibleKeys = tuple[int, Interval]
"""The query axis of the result, and the interval of `q - k` within which keys affect the result."""


def find_visible_keys(
    node: Node, dependence: Dependence, time_axis: TimeAxis | None = None
) -> Iterable[VisibleKeys]:
    """Yield each query axis for which masked keys do not affect a reduction, with the offsets of
    visible keys.
    """
    x = node.args[dependence.operand]
    if x is None or dependence.kind != "all":
        return
    key_axis = dependence.operand_axis
    for query_axis, length in enumerate(x.shape):
        # the batch axis is not a query axis
        is_query_length = (
            time_axis.get_prefix_length(length) is not None
            if time_axis
            else length == x.shape[key_axis]
        )
        if query_axis != key_axis and is_query_length:
            interval = _find_relevant_keys(
                node,
                dependence,
                find_masked_constants(x, query_axis, key_axis, time_axis),
                time_axis,
            )
            if interval != FULL_INTERVAL:
                is_key_axis_reduced = (
                    isinstance(node.op, ops.Reduce | ops.ArgMax) and query_axis > key_axis
                )
                yield query_axis - is_key_axis_reduced, interval
    if isinstance(node.op, ops.Gather) and dependence.operand == ops.Gather.table.index:
        yield from _iterate_argmax_reads(node, node.op.axis, key_axis, time_axis)


def _find_relevant_keys(
    node: Node, dependence: Dependence, masked_values: MaskedConstants, time_axis: TimeAxis | None
) -> Interval:
    """Return the offsets of the keys that affect an op if masked keys hold `masked_values`."""
    interval = _intersect_neutral_bands(node, masked_values, time_axis)
    match node.op:
        case ops.Gather(axis):
            is_table = (
                dependence.operand == ops.Gather.table.index and axis == dependence.operand_axis
            )
            return (
                compute_argsort_interval(interval)
                if is_table and _are_indices_in_range(node)
                else FULL_INTERVAL
            )
        case ops.Sort(axis) | ops.Softmax(axis) | ops.TopK(axis) if axis != dependence.operand_axis:
            return FULL_INTERVAL
        case ops.Sort() | ops.ArgMax() | ops.TopK():
            # indices count from the first position of the axis, so they also depend on the first
            # keys
            return compute_argsort_interval(interval)
    return interval


def _intersect_neutral_bands(
    node: Node, masked_values: MaskedConstants, time_axis: TimeAxis | None
) -> Interval:
    intersection = FULL_INTERVAL
    for number, interval in masked_values.items():
        if _is_neutral_number(node, number):
            intersection = intersect_bands(intersection, interval, time_axis)
    return intersection


def _is_neutral_number(node: Node, number: float) -> bool:
    """Return True if additional elements equal to `number` do not change the result of the node."""
    minimum, maximum = find_value_range(node.first_operand)
    match node.op:
        case ops.Reduce("sum" | "any"):
            return number == 0
        case ops.Reduce("all"):
            return number == 1
        case ops.Reduce("max") | ops.ArgMax():
            return number <= minimum
        case ops.Reduce("min"):
            return number >= maximum
        case ops.Softmax():
            return number == -inf
        case ops.Sort():
            return is_sorted_last(node, number)
        case ops.TopK(largest=largest):
            # if there are fewer visible keys than `k`, the first masked keys are also selected
            return number == (-inf if largest else inf)
    return isinstance(node.op, ops.Gather)


def _are_indices_in_range(node: Node) -> bool:
    """Return True if gather indices are sort indices or position ids of an axis of equal size."""
    assert isinstance(node.op, ops.Gather)
    match skip_views(ops.Gather.ids(node)):
        case (
            Value(node=Node(ops.Sort(axis), (Value() as x,)), index=1)
            | Value(node=Node(ops.ArgMax(axis), (Value() as x,)))
        ):
            return x.shape[axis] == node.get_operand().shape[node.op.axis]
    return False


def _iterate_argmax_reads(
    node: Node, axis: int, key_axis: int, time_axis: TimeAxis | None
) -> Iterable[VisibleKeys]:
    """Yield the offsets of keys that an argmax may select: visible keys and the first key."""
    if axis != key_axis or not _are_indices_in_range(node):
        return
    indices = unwrap_all_views(make_attention_matrix(ops.Gather.ids(node), axis, None))
    match indices.value.node:
        case Node(ops.ArgMax(reduced_axis), (Value() as x,)) as argmax:
            query_axis = indices.restore_removed_axis(x, reduced_axis).query_axis
            if query_axis is None:
                return
            for number, interval in find_masked_constants(
                x, query_axis, reduced_axis, time_axis
            ).items():
                if _is_neutral_number(argmax, number) and not interval.is_empty:
                    yield axis, Interval(min(interval.low, 0), inf)

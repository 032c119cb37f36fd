"""Evaluate ops that select positions: sort, top-k, slices, index, gather."""

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph_interpreter import (
    check_index_range,
    get_last_index,
    resolve_index,
    resolve_slice_bounds,
    resolve_strided_slice_range,
    resolve_top_k_count,
)
from specc_numpy.numpy_interpreter import LengthValues, evaluate


@evaluate
def sort(op: ops.Sort, lengths: LengthValues, x: Array) -> tuple[Array, Array]:
    """Sort along an axis, stably. Return the sorted values and their indices.

    n[*a t *b] -> n[*a t *b], i[*a t *b]
    """
    order = _sort_indices(x, op.axis, op.descending)
    return np.take_along_axis(x, order, axis=op.axis), order


def _sort_indices(x: Array, axis: int, descending: bool) -> Array:
    """Return the argsort of `x` along an axis. Equal elements are ordered by index."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # reverse the axis, sort it stably, and reverse the result
    reversed_order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    order: Array = x.shape[axis] - 1 - np.flip(reversed_order, axis)
    return order


@evaluate
def top_k(op: ops.TopK, lengths: LengthValues, x: Array) -> tuple[Array, Array]:
    """Select the largest or smallest values along an axis. Return values and indices.

    n[*a t *b] -> n[*a u *b], i[*a u *b]
    """
    k = resolve_top_k_count(op, x.shape[op.axis], lengths)
    order = _sort_indices(x, op.axis, op.largest)
    indices = np.take(order, np.arange(k), axis=op.axis)
    return np.take_along_axis(x, indices, axis=op.axis), indices


evaluate.add_rules(
    {
        ops.StridedSlice: lambda op, lengths, x: np.take(
            x, np.arange(*resolve_strided_slice_range(op, x.shape[op.axis], lengths)), axis=op.axis
        ),
        ops.Slice: lambda op, lengths, x: np.take(
            x, np.arange(*resolve_slice_bounds(op, x.shape[op.axis], lengths)), axis=op.axis
        ),
        ops.Index: lambda op, lengths, x: np.take(
            x, resolve_index(op, x.shape[op.axis], lengths), axis=op.axis
        ),
        ops.Last: lambda op, lengths, x: np.take(x, get_last_index(x.shape[op.axis]), axis=op.axis),
    }
)


def check_indices(ids: Array, size: int, table_name: str) -> None:
    """Raise E0913 if an id is not a valid row index of a table with `size` rows."""
    if ids.size:
        check_index_range(int(ids.min()), int(ids.max()), size, table_name)


@evaluate
def gather(op: ops.Gather, lengths: LengthValues, table: Array, ids: Array) -> Array:
    """Gather the positions `ids` along an axis, separately for each index of the leading axes.

    a[*b t *d], i[*b u] -> a[*b u *d]
    """
    check_indices(ids, table.shape[op.axis], "the gathered axis")
    result: Array = np.empty((*ids.shape, *table.shape[op.axis + 1 :]), table.dtype)
    for batch_index in np.ndindex(*ids.shape[:-1]):
        result[batch_index] = table[batch_index][ids[batch_index]]
    return result

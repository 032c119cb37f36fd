"""Ops that select positions in PyTorch: sort, top-k, slices, index, gather."""

import torch
from torch import Tensor

from specc.ir import ops
from specc.ir.graph_interpreter import (
    check_index_range,
    get_last_index,
    resolve_index,
    resolve_slice_bounds,
    resolve_strided_slice_range,
    resolve_top_k_count,
)
from specc_torch.torch_interpreter import ForwardContext, evaluate


@evaluate
def sort(op: ops.Sort, context: ForwardContext, x: Tensor) -> tuple[Tensor, Tensor]:
    """Sort along an axis, stably. Return the sorted values and their indices.

    n[*a t *b] -> n[*a t *b], i[*a t *b]
    """
    order = torch.argsort(x, dim=op.axis, descending=op.descending, stable=True)
    return torch.gather(x, op.axis, order), order


@evaluate
def top_k(op: ops.TopK, context: ForwardContext, x: Tensor) -> tuple[Tensor, Tensor]:
    """Select the largest or smallest values along an axis. Return values and indices.

    n[*a t *b] -> n[*a u *b], i[*a u *b]
    """
    k = resolve_top_k_count(op, x.shape[op.axis], context.lengths)
    # `torch.topk` does not order equal elements by index.
    order = torch.argsort(x, dim=op.axis, descending=op.largest, stable=True)
    indices = order.narrow(op.axis, 0, k)
    return torch.gather(x, op.axis, indices), indices


evaluate.add_rules(
    {
        ops.StridedSlice: lambda op, context, x: x[
            (slice(None),) * op.axis
            + (slice(*resolve_strided_slice_range(op, x.shape[op.axis], context.lengths)),)
        ],
        ops.Last: lambda op, context, x: x.select(op.axis, get_last_index(x.shape[op.axis])),
        ops.Index: lambda op, context, x: x.select(
            op.axis, resolve_index(op, x.shape[op.axis], context.lengths)
        ),
    }
)


def check_tensor_indices(ids: Tensor, size: int, table_name: str) -> None:
    """Raise E0913 if an id is not an index of a table with `size` rows. Skip meta tensors."""
    if not ids.numel() or ids.is_meta:
        return
    minimum, maximum = (int(n) for n in torch.aminmax(ids))
    check_index_range(minimum, maximum, size, table_name)


@evaluate
def slice_(op: ops.Slice, context: ForwardContext, x: Tensor) -> Tensor:
    """Slice an axis.

    a[*a t *b] -> a[*a u *b]
    """
    start, stop = resolve_slice_bounds(op, x.shape[op.axis], context.lengths)
    return x.narrow(op.axis, start, stop - start)


@evaluate
def gather(op: ops.Gather, context: ForwardContext, table: Tensor, ids: Tensor) -> Tensor:
    """Gather the positions `ids` along an axis, separately for each index of the leading axes.

    a[*b t *d], i[*b u] -> a[*b u *d]
    """
    check_tensor_indices(ids, table.shape[op.axis], "the gathered axis")
    inner_shape = table.shape[op.axis + 1 :]
    indices = (
        ids.long().reshape(*ids.shape, *[1] * len(inner_shape)).expand(*ids.shape, *inner_shape)
    )
    return torch.gather(table, op.axis, indices)

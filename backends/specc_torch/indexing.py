"""Ops that select, reorder or resample positions, in PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.graph_interpreter import (
    check_index_range,
    evaluate_pad_amounts,
    evaluate_stride,
    evaluate_top_k,
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
    k = evaluate_top_k(op, x.shape[op.axis], context.lengths)
    # `torch.topk` does not order equal elements by index.
    order = torch.argsort(x, dim=op.axis, descending=op.largest, stable=True)
    indices = order.narrow(op.axis, 0, k)
    return torch.gather(x, op.axis, indices), indices


evaluate.add_rules(
    {
        ops.StridedSlice: lambda op, context, x: x[
            (slice(None),) * op.axis
            + (slice(*evaluate_stride(op, x.shape[op.axis], context.lengths)),)
        ],
        ops.Roll: lambda op, context, x: torch.roll(x, context.evaluate_length(op.shift), op.axis),
    }
)


@evaluate
def pad(op: ops.Pad, context: ForwardContext, x: Tensor) -> Tensor:
    """Pad both ends of an axis with a constant, by reflection, or with the edge values.

    a[*a t *b] -> a[*a u *b]
    """
    length = x.shape[op.axis]
    start_padding, end_padding = evaluate_pad_amounts(op, length, context.lengths)
    if op.mode == "constant":
        start, end = (make_full(x, op.axis, (n,), op.value) for n in (start_padding, end_padding))
        return torch.cat([start, x, end], dim=op.axis)
    # PyTorch's reflection padding supports only images and sequences, so positions are gathered.
    indices = torch.arange(-start_padding, length + end_padding, device=x.device)
    if op.mode == "reflect":
        indices = (length - 1) - ((length - 1) - indices.abs()).abs()
    return x.index_select(op.axis, indices.clamp(0, max(length - 1, 0)))


@evaluate
def resize(op: ops.Resize, context: ForwardContext, x: Tensor) -> Tensor:
    """Resize axes by nearest-neighbor, linear or cubic interpolation, like PyTorch.

    a[*a t *b] -> a[*a u *b]
    """
    sizes = [context.evaluate_length(d) for d in op.sizes]
    end = op.axis + len(sizes)
    lengths = list(x.shape[op.axis : end])
    if min(*lengths, *sizes) < 1:
        raise_error("E0912", f"cannot resize axes of length {lengths} to {sizes}")
    if not op.is_interpolating:
        return _resize_to_nearest(op, x, sizes)
    # The images have the shape [n, 1, …] with the resized axes last. A single axis is resized like
    # an image of height 1.
    last_axes = tuple(range(-len(sizes), 0))
    channels_first = x.movedim(tuple(range(op.axis, end)), last_axes)
    unit_axes = [1] if len(sizes) == 1 else []
    images = channels_first.reshape(
        channels_first.shape[: -len(sizes)].numel(), 1, *unit_axes, *lengths
    )
    mode = "trilinear" if len(sizes) == 3 else op.mode
    target_size = None if op.factors else [*unit_axes, *sizes]
    factors = [*(1.0 for _ in unit_axes), *op.factors] if op.factors else None
    resized = functional.interpolate(
        images,
        size=target_size,
        scale_factor=factors,
        mode=mode,
        align_corners=op.align_corners,
        antialias=op.antialias,
    )
    resized = resized.reshape(*channels_first.shape[: -len(sizes)], *sizes)
    return resized.movedim(last_axes, tuple(range(op.axis, end)))


def _resize_to_nearest(op: ops.Resize, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Resize axes to the nearest source elements, one axis at a time."""
    for n, size in enumerate(sizes):
        step = 1 / op.factors[n] if op.factors else None
        length = x.shape[op.axis + n]
        indices = _find_nearest_indices(op.mode, length, size, step).to(x.device)
        x = x.index_select(op.axis + n, indices)
    return x


def _find_nearest_indices(mode: str, length: int, size: int, step: float | None) -> Tensor:
    """Return the nearest source index of each output index, computed in float32 for any dtype."""
    offset = 0.5 if mode == "nearest_exact" else 0.0
    positions = torch.arange(size, dtype=torch.float32) + offset
    default_scale = torch.tensor(length, dtype=torch.float32) / torch.tensor(size)
    scale = default_scale if step is None else torch.tensor(step, dtype=torch.float32)
    return torch.floor(positions * scale).long().clamp(max=length - 1)


@evaluate
def grid_sample(op: ops.GridSample, context: ForwardContext, x: Tensor, grid: Tensor) -> Tensor:
    """Sample a feature map at points with coordinates in [-1, 1], like PyTorch's `grid_sample`.

    f[b c h w], f[b *u xy] -> f[b c *u]
    """
    if min(x.shape[2:]) < 1:
        raise_error("E0912", f"a feature map of shape {tuple(x.shape)} is sampled")
    points = grid.reshape(len(grid), grid.shape[1:-1].numel(), 1, 2)
    sampled = functional.grid_sample(x, points, op.mode, op.padding_mode, op.align_corners)
    return sampled.reshape(*x.shape[:2], *grid.shape[1:-1])


def make_full(x: Tensor, axis: int, lengths: Sequence[int], value: float) -> Tensor:
    """Return a tensor filled with `value`. It has the shape of `x`, in which axes of the sizes
    `lengths` replace `axis`.
    """
    return x.new_full((*x.shape[:axis], *lengths, *x.shape[axis + 1 :]), value)


def check_tensor_indices(ids: Tensor, size: int, table_name: str) -> None:
    """Raise E0913 if an id is not an index of a table with `size` rows. Skip meta tensors."""
    if not ids.numel() or ids.is_meta:
        return
    minimum, maximum = (int(n) for n in torch.aminmax(ids))
    check_index_range(minimum, maximum, size, table_name)

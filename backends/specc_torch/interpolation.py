"""`Resize` and `GridSample` in PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc_torch.torch_interpreter import ForwardContext, evaluate


@evaluate
def resize(op: ops.Resize, context: ForwardContext, x: Tensor) -> Tensor:
    """Resize axes by nearest-neighbor, linear or cubic interpolation, like PyTorch.

    a[*a t *b] -> a[*a u *b]
    """
    sizes = [context.evaluate_dim(d) for d in op.sizes]
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
    """Resize axes by nearest-neighbor interpolation, one axis at a time."""
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
        raise_error("E0912", f"cannot sample a feature map of shape {tuple(x.shape)}")
    points = grid.reshape(len(grid), grid.shape[1:-1].numel(), 1, 2)
    sampled = functional.grid_sample(x, points, op.mode, op.padding_mode, op.align_corners)
    return sampled.reshape(*x.shape[:2], *grid.shape[1:-1])

"""Ops that select, reorder or resample positions, in PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from specc.diagnostics.diagnostic import raise_error
from specc.ir import ops
from specc.ir.evaluation import evaluate_padding, evaluate_stride, evaluate_top_k
from specc_torch.tensor import make_full
from specc_torch.torch_interpreter import ForwardContext, evaluate


@evaluate
def sort(op: ops.Sort, place: ForwardContext, x: Tensor) -> tuple[Tensor, Tensor]:
    """n[*a t *b] -> n[*a t *b], i[*a t *b]"""
    order = torch.argsort(x, dim=op.axis, descending=op.descending, stable=True)
    return torch.gather(x, op.axis, order), order


@evaluate
def top_k(op: ops.TopK, place: ForwardContext, x: Tensor) -> tuple[Tensor, Tensor]:
    """n[*a t *b] -> n[*a u *b], i[*a u *b]"""
    k = evaluate_top_k(op, x.shape[op.axis], place.lengths)
    # `torch.topk` returns any of equal elements.
    order = torch.argsort(x, dim=op.axis, descending=op.largest, stable=True)
    places = order.narrow(op.axis, 0, k)
    return torch.gather(x, op.axis, places), places


evaluate.add_rules(
    {
        ops.Stride: lambda op, place, x: x[
            (slice(None),) * op.axis
            + (slice(*evaluate_stride(op, x.shape[op.axis], place.lengths)),)
        ],
        ops.Roll: lambda op, place, x: torch.roll(x, place.length(op.by), op.axis),
    }
)


@evaluate
def pad(op: ops.Pad, place: ForwardContext, x: Tensor) -> Tensor:
    """a[*a t *b] -> a[*a u *b]"""
    rows = x.shape[op.axis]
    before, after = evaluate_padding(op, rows, place.lengths)
    if op.mode == "constant":
        first, last = (make_full(x, op.axis, (n,), op.value) for n in (before, after))
        return torch.cat([first, x, last], dim=op.axis)
    # By index: PyTorch's reflection padding takes only images and sequences.
    numbers = torch.arange(-before, rows + after, device=x.device)
    if op.mode == "reflect":
        numbers = (rows - 1) - ((rows - 1) - numbers.abs()).abs()
    return x.index_select(op.axis, numbers.clamp(0, max(rows - 1, 0)))


@evaluate
def resize(op: ops.Resize, place: ForwardContext, x: Tensor) -> Tensor:
    """a[*a t *b] -> a[*a u *b]"""
    sizes = [place.length(d) for d in op.sizes]
    end = op.axis + len(sizes)
    before = list(x.shape[op.axis : end])
    if min(*before, *sizes) < 1:
        raise_error("E0912", f"cannot resize axes of length {before} to {sizes}")
    if not op.interpolates:
        return _resize_to_nearest(op, x, sizes)
    # [n, 1, …] with the resized axes last: one axis is an image of height 1.
    ends = tuple(range(-len(sizes), 0))
    moved = x.movedim(tuple(range(op.axis, end)), ends)
    line = [1] if len(sizes) == 1 else []
    flat = moved.reshape(moved.shape[: -len(sizes)].numel(), 1, *line, *before)
    mode = "trilinear" if len(sizes) == 3 else op.mode
    goal = None if op.factors else [*line, *sizes]
    factors = [*(1.0 for _ in line), *op.factors] if op.factors else None
    made = functional.interpolate(
        flat,
        size=goal,
        scale_factor=factors,
        mode=mode,
        align_corners=op.align_corners,
        antialias=op.antialias,
    )
    made = made.reshape(*moved.shape[: -len(sizes)], *sizes)
    return made.movedim(ends, tuple(range(op.axis, end)))


def _resize_to_nearest(op: ops.Resize, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Select the nearest source position of every output position, axis by axis."""
    for n, size in enumerate(sizes):
        step = 1 / op.factors[n] if op.factors else None
        length = x.shape[op.axis + n]
        indices = _find_nearest_indices(op.mode, length, size, step).to(x.device)
        x = x.index_select(op.axis + n, indices)
    return x


def _find_nearest_indices(mode: str, rows: int, size: int, step: float | None) -> Tensor:
    """Return the source pixel of each point, in float32 whatever the module's dtype."""
    offset = 0.5 if mode == "nearest_exact" else 0.0
    points = torch.arange(size, dtype=torch.float32) + offset
    whole = torch.tensor(rows, dtype=torch.float32) / torch.tensor(size)
    scale = whole if step is None else torch.tensor(step, dtype=torch.float32)
    return torch.floor(points * scale).long().clamp(max=rows - 1)


@evaluate
def grid_sample(op: ops.GridSample, place: ForwardContext, x: Tensor, grid: Tensor) -> Tensor:
    """f[b c h w], f[b *u xy] -> f[b c *u]"""
    if min(x.shape[2:]) < 1:
        raise_error("E0912", f"a feature map of shape {tuple(x.shape)} is sampled")
    points = grid.reshape(len(grid), grid.shape[1:-1].numel(), 1, 2)
    sampled = functional.grid_sample(x, points, op.mode, op.padding_mode, op.align_corners)
    return sampled.reshape(*x.shape[:2], *grid.shape[1:-1])

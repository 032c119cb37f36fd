"""Position encodings in PyTorch. Angles are computed in float64 and rounded once."""

import math

import torch
from torch import Tensor

from specc.ir import ops
from specc_torch.torch_interpreter import ForwardContext, evaluate


@evaluate(ops.Sinusoid)
def sinusoid(op: ops.Sinusoid, place: ForwardContext, positions: Tensor) -> Tensor:
    """i[*s] -> f[*s d]"""
    pairs = place.length(op.dim) // 2
    steps = pairs - 1 if op.layout == "fairseq" else pairs
    step = math.log(op.base) / max(steps, 1)
    angles = positions[..., None].double() * torch.exp(-step * place.rows(pairs).double())
    sines = [torch.sin(angles), torch.cos(angles)]
    if op.layout == "interleaved":
        both = torch.stack(sines, dim=-1).reshape(*positions.shape, 2 * pairs)
    else:
        both = torch.cat(sines, dim=-1)
    return both.to(place.floats)


@evaluate(ops.RopeAngles)
def rope_angles(op: ops.RopeAngles, place: ForwardContext, *rows: Tensor) -> tuple[Tensor, Tensor]:
    """i[*s]... -> f[*s r], f[*s r]"""
    dim = place.length(op.dim)
    if op.frequencies:
        frequencies = torch.tensor(op.frequencies, dtype=torch.float64, device=place.device)
    else:
        frequencies = op.theta ** (-2.0 * place.rows(dim // 2).double() / max(dim, 1))
    angles = torch.stack(rows, dim=-1)[..., list(op.axes or [0])].double() * frequencies
    return (torch.cos(angles) * op.factor).to(place.floats), (torch.sin(angles) * op.factor).to(
        place.floats
    )


@evaluate(ops.Rotate)
def rotate(op: ops.Rotate, place: ForwardContext, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """f[b h t d], f[#b t r], f[#b t r] -> f[b h t d]"""
    # Features after the first 2r of a head are not rotated.
    r = cos.shape[-1]
    is_transposed, rest = x[..., : 2 * r], x[..., 2 * r :]
    if op.pairs == "half":
        first, second = is_transposed[..., :r], is_transposed[..., r:]
    else:
        first, second = is_transposed[..., 0::2], is_transposed[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    halves = [first * cos - second * sin, second * cos + first * sin]
    if op.pairs == "half":
        return torch.cat([*halves, rest], dim=-1)
    return torch.cat([torch.stack(halves, dim=-1).reshape(is_transposed.shape), rest], dim=-1)

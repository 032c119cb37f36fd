"""Layers with rounded weights, in PyTorch: to measure what rounding does to a model.

Through the rounding of a row no gradient goes; weights are whole numbers, which are not
trained.
"""

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc.ir.ops.quantized import Layout
from specc_torch.table import Place, check_numbers, evaluate


@evaluate(ops.LinearQ)
def linear_q(
    op: ops.LinearQ,
    place: Place,
    x: Tensor,
    weights: Tensor,
    scales: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """f[*s i], q[o i], f[o], f[o]? -> f[*s o]"""
    wide = x.shape[-1]
    whole = _matrix(weights, scales, wide, op.bits, op.block, op.layout)
    if op.rounding != "none":
        size = wide if op.rounding == "row" else op.block
        x = torch.cat(
            [_coarse(p, op.rounding) for p in torch.split(x, max(size, 1), -1)], -1
        )
    return functional.linear(x, whole, bias)


@evaluate(ops.EmbeddingQ)
def embedding_q(
    op: ops.EmbeddingQ, place: Place, ids: Tensor, table: Tensor, scales: Tensor
) -> Tensor:
    """i[*s], q[v d], f[v] -> f[*s d]"""
    width = place.length(op.width)
    whole = _matrix(table, scales, width, op.bits, op.block, op.layout)
    check_numbers(ids, whole.shape[0], "an embedding table")
    return functional.embedding(ids.long(), whole)


@evaluate(ops.Quantize)
def quantize(op: ops.Quantize, place: Place, x: Tensor, scale: Tensor) -> Tensor:
    """f[b h t d], f[h #t d] -> q[b h t d]"""
    units = (x.float() / scale.float()).round()
    return units.clamp(-128, 127).to(torch.int8)


@evaluate(ops.Dequantize)
def dequantize(op: ops.Dequantize, place: Place, x: Tensor, scale: Tensor) -> Tensor:
    """q[b h t d], f[h #t d] -> f[b h t d]"""
    return x.to(scale.dtype) * scale


def _matrix(
    w: Tensor, scales: Tensor, wide: int, bits: int, block: int, layout: Layout
) -> Tensor:
    """The matrix `[out, in]`, in the type of the scales."""
    if layout == "columns":
        w, scales = w.T, scales.T if block else scales
    elif block:
        w = w.to(torch.int16)
        if bits == 4:
            w = torch.stack([w % 16, w // 16], -1)
        w = w.flatten(1)[:, :wide] - 2 ** (bits - 1)
    each = scales.repeat_interleave(block, -1) if block else scales[:, None]
    return w.to(scales.dtype) * each[:, :wide]


def _coarse(piece: Tensor, rounding: str) -> Tensor:
    """Numbers as whole ones times their own scale, decided in float32."""
    if not piece.shape[-1]:
        return piece
    single = piece.float()
    most = single.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    scale = most / 127
    if rounding == "row":
        whole = (single / scale).round().clamp(-128, 127)
    else:
        whole = (single * (127 / most)).round()
    return whole.to(piece.dtype) * scale.to(piece.dtype)

"""Layers with quantized weights in PyTorch, to measure the effect of quantization.

Activation rounding has no gradient, and integer weights are not trained.
"""

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc.ir.ops.quantized import WeightLayout
from specc_torch.recurrent import apply_lstm_gates
from specc_torch.torch_interpreter import ForwardContext, check_tensor_indices, evaluate


@evaluate
def linear_q(
    op: ops.LinearQ,
    place: ForwardContext,
    x: Tensor,
    weights: Tensor,
    scales: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """f[*s i], q[o i], f[o], f[o]? -> f[*s o]"""
    wide = x.shape[-1]
    whole = _dequantize_matrix(weights, scales, wide, op.bits, op.block, op.layout)
    if op.rounding == "tensor":
        x = _round_per_tensor(x)
    elif op.rounding != "none":
        size = wide if op.rounding == "row" else op.block
        x = torch.cat([_round_group(p, op.rounding) for p in torch.split(x, max(size, 1), -1)], -1)
    return functional.linear(x, whole, bias)


@evaluate
def lstm_q(op: ops.LstmQ, place: ForwardContext, *args: Tensor | None) -> tuple[Tensor, ...]:
    """f[b t i], q[i g], q[r g], f[g], f[g], f[g]?, f[g]?, b[b t]?, f[b r]?, f[b r]?, f[p]?
    -> f[b t r], f[b r], f[b r]
    """
    given = ops.RecurrentOperands.from_operands(args, quantized=True)
    scales = given.scales
    assert scales is not None
    batch, steps, _ = given.sequence.shape
    there = given.keep if given.keep is not None else given.sequence.new_ones(batch, steps).bool()
    # valid positions first, reversed for the backward direction
    numbers = torch.arange(steps, device=given.sequence.device)
    places = -1 - numbers if op.reverse else numbers
    order = torch.where(there, places, steps).argsort(dim=1, stable=True)
    clean = torch.where(there[..., None], given.sequence, torch.zeros_like(given.sequence))
    x = clean.take_along_dim(order[..., None], 1)
    sums = _round_per_tensor(x) @ (given.weights.to(x.dtype) * scales[0])
    for b in (given.bias, given.state_bias):
        sums = sums if b is None else sums + b
    state_matrix = given.state_weights.to(x.dtype) * scales[1]
    zeros = given.sequence.new_zeros(batch, len(given.state_weights))
    fed = h = zeros if given.initial_state is None else given.initial_state
    c = zeros if given.initial_cell is None else given.initial_cell
    counts = there.sum(1, keepdim=True)
    out = given.sequence.new_zeros(batch, steps, zeros.shape[1])
    for n in range(int(counts.max()) if there.numel() else 0):
        gates = sums[:, n] + _round_per_tensor(fed) @ state_matrix
        after, new = apply_lstm_gates(gates, c, given.peepholes)
        going = n < counts
        # a finished sequence keeps its state and contributes zeros
        fed = torch.where(going, after, zeros)
        h, c = torch.where(going, after, h), torch.where(going, new, c)
        index = order[:, n, None, None].expand(-1, 1, zeros.shape[1])
        out = out.scatter(1, index, fed[:, None])
    return out, h, c


@evaluate
def embedding_q(
    op: ops.EmbeddingQ, place: ForwardContext, ids: Tensor, table: Tensor, scales: Tensor
) -> Tensor:
    """i[*s], q[v d], f[v] -> f[*s d]"""
    width = place.length(op.width)
    whole = _dequantize_matrix(table, scales, width, op.bits, op.block, op.layout)
    check_tensor_indices(ids, whole.shape[0], "an embedding table")
    return functional.embedding(ids.long(), whole)


evaluate.add_rules(
    {
        ops.Quantize: lambda op, place, x, scale: (
            (x.float() / scale.float()).round().clamp(-128, 127).to(torch.int8)
        ),
        ops.Dequantize: lambda op, place, x, scale: x.to(scale.dtype) * scale,
    }
)


def _dequantize_matrix(
    w: Tensor, scales: Tensor, wide: int, bits: int, block: int, layout: WeightLayout
) -> Tensor:
    """Dequantize to the matrix `[out, in]`, in the type of the scales."""
    if layout == "columns":
        w, scales = w.T, scales.T if block else scales
    elif block:
        w = w.to(torch.int16)
        if bits == 4:
            w = torch.stack([w % 16, w // 16], -1)
        w = w.flatten(1)[:, :wide] - 2 ** (bits - 1)
    each = scales.repeat_interleave(block, -1) if block else scales[:, None]
    return w.to(scales.dtype) * each[:, :wide]


def _round_per_tensor(x: Tensor) -> Tensor:
    """Quantize to 256 steps with one scale and zero point, decided in float32."""
    if not x.numel():
        return x
    single = x.float()
    low, high = single.min().clamp(max=0), single.max().clamp(min=0)
    scale = torch.where(high > low, (high - low) / 255, torch.ones_like(high))
    middle = (-low / scale).round().clamp(0, 255)
    whole = ((single / scale).round() + middle).clamp(0, 255) - middle
    return whole.to(x.dtype) * scale.to(x.dtype)


def _round_group(piece: Tensor, rounding: str) -> Tensor:
    """Quantize and dequantize with one scale per row, decided in float32."""
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

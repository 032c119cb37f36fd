"""Layers with quantized weights in PyTorch, which are used to measure the effect of quantization.

Quantization of activations has no gradient, and integer weights are not trained.
"""

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc_torch.indexing import check_tensor_indices
from specc_torch.recurrent import apply_lstm_gates
from specc_torch.torch_interpreter import ForwardContext, evaluate


@evaluate
def quantized_linear(
    op: ops.QuantizedLinear,
    context: ForwardContext,
    x: Tensor,
    weights: Tensor,
    scales: Tensor,
    bias: Tensor | None = None,
    zero_points: Tensor | None = None,
) -> Tensor:
    """Apply a linear layer with quantized weights. `op.rounding` selects how activations are
    quantized.

    f[*s i], q[o i], f[o], f[o]?, q[o z]? -> f[*s o]
    """
    width = x.shape[-1]
    matrix = _dequantize_matrix(op, weights, scales, width, zero_points)
    if op.rounding == "tensor":
        x = _fake_quantize_per_tensor(x)
    elif op.rounding != "none":
        size = width if op.rounding == "row" else op.group_size
        x = torch.cat(
            [_fake_quantize_groups(p, op.rounding) for p in torch.split(x, max(size, 1), -1)], -1
        )
    return functional.linear(x, matrix, bias)


@evaluate
def quantized_lstm(
    op: ops.QuantizedLstm, context: ForwardContext, *args: Tensor | None
) -> tuple[Tensor, ...]:
    """Run an LSTM layer with int8 weights and dynamically quantized inputs and states.

    f[b t i], q[i g], q[r g], f[g], f[g], f[g]?, f[g]?, b[b t]?, f[b r]?, f[b r]?, f[p]? -> f[b t
    r], f[b r], f[b r]
    """
    operands = ops.RecurrentOperands.from_operands(args, is_quantized=True)
    scales = operands.scales
    assert scales is not None
    batch, steps, _ = operands.sequence.shape
    is_valid = (
        operands.keep
        if operands.keep is not None
        else operands.sequence.new_ones(batch, steps).bool()
    )
    # Move valid positions to the front, in reverse order for the backward direction.
    positions = torch.arange(steps, device=operands.sequence.device)
    sort_keys = -1 - positions if op.reverse else positions
    order = torch.where(is_valid, sort_keys, steps).argsort(dim=1, stable=True)
    masked_input = torch.where(
        is_valid[..., None], operands.sequence, torch.zeros_like(operands.sequence)
    )
    x = masked_input.take_along_dim(order[..., None], 1)
    gate_inputs = _fake_quantize_per_tensor(x) @ (operands.input_weights.to(x.dtype) * scales[0])
    for b in (operands.input_bias, operands.recurrent_bias):
        gate_inputs = gate_inputs if b is None else gate_inputs + b
    state_matrix = operands.recurrent_weights.to(x.dtype) * scales[1]
    zeros = operands.sequence.new_zeros(batch, len(operands.recurrent_weights))
    previous_output = h = zeros if operands.initial_state is None else operands.initial_state
    c = zeros if operands.initial_cell is None else operands.initial_cell
    lengths = is_valid.sum(1, keepdim=True)
    hidden_states = operands.sequence.new_zeros(batch, steps, zeros.shape[1])
    for step in range(int(lengths.max()) if is_valid.numel() else 0):
        gates = gate_inputs[:, step] + _fake_quantize_per_tensor(previous_output) @ state_matrix
        output, new_cell = apply_lstm_gates(gates, c, operands.peepholes)
        is_running = step < lengths
        # after the end of a sequence, the state of the sequence is unchanged and the outputs are
        # zeros
        previous_output = torch.where(is_running, output, zeros)
        h, c = torch.where(is_running, output, h), torch.where(is_running, new_cell, c)
        index = order[:, step, None, None].expand(-1, 1, zeros.shape[1])
        hidden_states = hidden_states.scatter(1, index, previous_output[:, None])
    return hidden_states, h, c


@evaluate
def quantized_embedding(
    op: ops.QuantizedEmbedding, context: ForwardContext, ids: Tensor, table: Tensor, scales: Tensor
) -> Tensor:
    """Look up the embeddings of token ids in a quantized table.

    i[*s], q[v d], f[v] -> f[*s d]
    """
    width = context.evaluate_dim(op.width)
    matrix = _dequantize_matrix(op, table, scales, width)
    check_tensor_indices(ids, matrix.shape[0], "an embedding table")
    return functional.embedding(ids.long(), matrix)


evaluate.add_rules(
    {
        ops.Quantize: lambda op, context, x, scale: (
            (x.float() / scale.float()).round().clamp(-128, 127).to(torch.int8)
        ),
        ops.Dequantize: lambda op, context, x, scale: x.to(scale.dtype) * scale,
    }
)


def _dequantize_matrix(
    op: ops.QuantizedLinear | ops.QuantizedEmbedding,
    w: Tensor,
    scales: Tensor,
    width: int,
    zero_points: Tensor | None = None,
) -> Tensor:
    """Return the matrix `[out, in]`, dequantized to the dtype of the scales."""
    if op.layout == "columns":
        w, scales = w.T, scales.T if op.group_size else scales
    elif op.group_size:
        zero_point_matrix: Tensor | int = 2 ** (op.bits - 1)
        if zero_points is not None:
            zero_point_matrix = _unpack_rows(zero_points, op.bits).repeat_interleave(
                op.group_size, -1
            )[:, :width]
        w = _unpack_rows(w, op.bits)[:, :width] - zero_point_matrix
    expanded_scales = (
        scales.repeat_interleave(op.group_size, -1) if op.group_size else scales[:, None]
    )
    return w.to(scales.dtype) * expanded_scales[:, :width]


def _unpack_rows(packed_codes: Tensor, bits: int) -> Tensor:
    """Unpack the codes of each row. With 4 bits, a byte contains two codes, low nibble first."""
    codes = packed_codes.to(torch.int16)
    return (torch.stack([codes % 16, codes // 16], -1) if bits == 4 else codes).flatten(1)


def _fake_quantize_per_tensor(x: Tensor) -> Tensor:
    """Quantize a tensor in float32 to 256 levels with one scale and one zero point, like ONNX's
    `DynamicQuantizeLinear`, and dequantize it.
    """
    if not x.numel():
        return x
    x32 = x.float()
    low, high = x32.min().clamp(max=0), x32.max().clamp(min=0)
    scale = torch.where(high > low, (high - low) / 255, torch.ones_like(high))
    zero_point = (-low / scale).round().clamp(0, 255)
    codes = ((x32 / scale).round() + zero_point).clamp(0, 255) - zero_point
    return codes.to(x.dtype) * scale.to(x.dtype)


def _fake_quantize_groups(group: Tensor, rounding: str) -> Tensor:
    """Quantize each group (last axis) with its own scale, in float32, and dequantize it. If
    `rounding` is "row", elements are divided by the scale. Otherwise, elements are multiplied by
    `127 / absmax`.
    """
    if not group.shape[-1]:
        return group
    group32 = group.float()
    maximum = group32.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    scale = maximum / 127
    if rounding == "row":
        codes = (group32 / scale).round().clamp(-128, 127)
    else:
        codes = (group32 * (127 / maximum)).round()
    return codes.to(group.dtype) * scale.to(group.dtype)

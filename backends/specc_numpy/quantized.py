"""Evaluate layers with quantized weights and int8 KV cache entries."""

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph_interpreter import evaluate_dim
from specc_numpy.indexing import check_indices
from specc_numpy.numpy_interpreter import LengthValues, evaluate
from specc_numpy.recurrent import apply_lstm_gates

MIN_TOKEN_MAXIMUM = np.float32(1e-30)
"""The lower bound of a token's absolute maximum, so that an all-zero token has a nonzero scale."""


@evaluate
def quantized_linear(
    op: ops.QuantizedLinear,
    lengths: LengthValues,
    x: Array,
    weights: Array,
    scales: Array,
    bias: Array | None = None,
    zero_points: Array | None = None,
) -> Array:
    """Apply a linear layer with quantized weights. `op.rounding` selects how activations are
    quantized.

    f[*s i], q[o i], f[o], f[o]?, q[o z]? -> f[*s o]
    """
    matrix = _dequantize_matrix(op, weights, scales, x.shape[-1], zero_points)
    if op.rounding == "tensor":
        x = _fake_quantize_per_tensor(x)
    elif op.rounding != "none":
        size = x.shape[-1] if op.rounding == "row" else op.group_size
        x = _fake_quantize_groups(x, size, op.rounding)
    y: Array = x @ matrix.T
    return y if bias is None else y + bias


@evaluate
def quantized_lstm(
    op: ops.QuantizedLstm, lengths: LengthValues, *args: Array | None
) -> tuple[Array, ...]:
    """Run an LSTM layer with int8 weights and dynamically quantized inputs and states.

    f[b t i], q[i g], q[r g], f[g], f[g], f[g]?, f[g]?, b[b t]?, f[b r]?, f[b r]?, f[p]? -> f[b t
    r], f[b r], f[b r]
    """
    operands = ops.RecurrentOperands.from_operands(args, is_quantized=True)
    scales = operands.scales
    assert scales is not None
    batch, hidden_size = len(operands.sequence), len(operands.recurrent_weights)
    is_valid = (
        np.ones(operands.sequence.shape[:2], bool) if operands.keep is None else operands.keep
    )
    # Move valid positions to the front, in reverse order for the backward direction.
    sort_keys = np.where(
        is_valid, np.arange(operands.sequence.shape[1]), operands.sequence.shape[1]
    )
    if op.reverse:
        sort_keys = np.where(is_valid, -1 - np.arange(operands.sequence.shape[1]), 1)
    order = np.argsort(sort_keys, 1, kind="stable")
    masked_input = np.where(is_valid[..., None], operands.sequence, 0.0)
    x = np.take_along_axis(masked_input, order[..., None], 1)
    sequence_lengths = is_valid.sum(1, keepdims=True)
    gate_inputs = _fake_quantize_per_tensor(x) @ (operands.input_weights * scales[0])
    for b in (operands.input_bias, operands.recurrent_bias):
        gate_inputs = gate_inputs if b is None else gate_inputs + b
    previous_output = h = (
        np.zeros((batch, hidden_size)) if operands.initial_state is None else operands.initial_state
    )
    c = np.zeros((batch, hidden_size)) if operands.initial_cell is None else operands.initial_cell
    hidden_states = np.zeros((*operands.sequence.shape[:2], hidden_size))
    for step in range(sequence_lengths.max(initial=0)):
        gates = gate_inputs[:, step] + _fake_quantize_per_tensor(previous_output) @ (
            operands.recurrent_weights * scales[1]
        )
        output, new_cell = apply_lstm_gates(gates, c, operands.peepholes)
        # after the end of a sequence, the state of the sequence is unchanged and the outputs are
        # zeros
        previous_output = np.where(step < sequence_lengths, output, 0.0)
        h, c = (
            np.where(step < sequence_lengths, output, h),
            np.where(step < sequence_lengths, new_cell, c),
        )
        np.put_along_axis(hidden_states, order[:, step, None, None], previous_output[:, None], 1)
    return hidden_states, h, c


@evaluate
def quantized_embedding(
    op: ops.QuantizedEmbedding, lengths: LengthValues, ids: Array, table: Array, scales: Array
) -> Array:
    """Look up the embeddings of token ids in a quantized table.

    i[*s], q[v d], f[v] -> f[*s d]
    """
    width = evaluate_dim(op.width, lengths)
    matrix = _dequantize_matrix(op, table, scales, width)
    check_indices(ids, len(matrix), "an embedding table")
    return matrix[ids]


evaluate.add_rules(
    {
        ops.Quantize: lambda op, lengths, x, scale: np.clip(
            np.rint(x.astype(np.float32) / scale.astype(np.float32)), -128, 127
        ).astype(np.int8),
        ops.Dequantize: lambda op, lengths, x, scale: x.astype(np.float64) * scale,
    }
)


def _dequantize_matrix(
    op: ops.QuantizedLinear | ops.QuantizedEmbedding,
    w: Array,
    scales: Array,
    width: int,
    zero_points: Array | None = None,
) -> Array:
    """Return the matrix `[out, in]`, dequantized to float64."""
    if op.layout == "columns":
        w, scales = w.T, scales.T
    elif op.group_size:
        # Block-quantized values are unsigned, and the padding of the last block is sliced off.
        codes = _unpack_rows(w, op.bits)[:, :width].astype(np.float64)
        zero_point_matrix: Array | int = 2 ** (op.bits - 1)
        if zero_points is not None:
            zero_point_matrix = np.repeat(_unpack_rows(zero_points, op.bits), op.group_size, -1)[
                :, :width
            ]
        w = codes - zero_point_matrix
    expanded_scales = (
        np.repeat(scales, op.group_size, -1)[:, :width] if op.group_size else scales[:, None]
    )
    matrix: Array = w.astype(np.float64) * expanded_scales
    return matrix


def _unpack_rows(packed_codes: Array, bits: int) -> Array:
    """Unpack the codes of each row. With 4 bits, a byte contains two codes, low nibble first."""
    codes = np.stack([packed_codes % 16, packed_codes // 16], -1) if bits == 4 else packed_codes
    return codes.reshape(len(packed_codes), -1)


def _fake_quantize_per_tensor(x: Array) -> Array:
    """Quantize a tensor in float32 to 256 levels with one scale and one zero point, like ONNX's
    `DynamicQuantizeLinear`, and dequantize it.
    """
    x32 = x.astype(np.float32)
    low, high = x32.min(initial=0.0), x32.max(initial=0.0)
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero_point = np.clip(np.rint(-low / scale), 0, 255)
    codes = np.clip(np.rint(x32 / scale) + zero_point, 0, 255) - zero_point
    result: Array = codes.astype(np.float64) * np.float64(scale)
    return result


def _fake_quantize_groups(x: Array, group_size: int, rounding: str) -> Array:
    """Quantize and dequantize groups of `group_size` elements with one scale per group, computed in
    float32. If `rounding` is "row", elements are divided by the scale. Otherwise, activations are
    multiplied by `127 / absmax`, as in ONNX Runtime's `MatMulNBits` kernel.
    """
    width = x.shape[-1]
    groups = [
        x[..., start : start + group_size].astype(np.float32)
        for start in range(0, width, group_size)
    ]
    results = []
    for group in groups:
        maximum = np.maximum(np.abs(group).max(-1, keepdims=True, initial=0.0), MIN_TOKEN_MAXIMUM)
        scale = maximum / np.float32(127)
        if rounding == "row":
            codes = np.clip(np.rint(group / scale), -128, 127)
        else:
            codes = np.rint(group * (np.float32(127) / maximum))
        results.append(codes.astype(np.float64) * scale)
    result: Array = np.concatenate(results, -1) if results else x
    return result

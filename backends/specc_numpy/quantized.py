"""Evaluate layers with quantized weights and int8 KV cache entries."""

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.evaluation import evaluate_length
from specc.ir.ops.quantized import WeightLayout
from specc_numpy.numpy_interpreter import LengthValues, check_indices, evaluate
from specc_numpy.recurrent import apply_lstm_gates

MIN_ROW_MAXIMUM = np.float32(1e-30)
"""Minimum absolute maximum of a row, so that the scale of a zero row is not 0."""


@evaluate
def linear_q(
    op: ops.LinearQ,
    env: LengthValues,
    x: Array,
    weights: Array,
    scales: Array,
    bias: Array | None = None,
) -> Array:
    """f[*s i], q[o i], f[o], f[o]? -> f[*s o]"""
    whole = dequantize_matrix(weights, scales, x.shape[-1], op.bits, op.block, op.layout)
    if op.rounding == "tensor":
        x = round_per_tensor(x)
    elif op.rounding != "none":
        size = x.shape[-1] if op.rounding == "row" else op.block
        x = round_per_group(x, size, op.rounding)
    y: Array = x @ whole.T
    return y if bias is None else y + bias


@evaluate
def lstm_q(op: ops.LstmQ, env: LengthValues, *args: Array | None) -> tuple[Array, ...]:
    """f[b t i], q[i g], q[r g], f[g], f[g], f[g]?, f[g]?, b[b t]?, f[b r]?, f[b r]?, f[p]?
    -> f[b t r], f[b r], f[b r]
    """
    given = ops.RecurrentOperands.from_operands(args, quantized=True)
    scales = given.scales
    assert scales is not None
    batch, size = len(given.sequence), len(given.state_weights)
    there = np.ones(given.sequence.shape[:2], bool) if given.keep is None else given.keep
    # valid positions first, reversed for the backward direction
    places = np.where(there, np.arange(given.sequence.shape[1]), given.sequence.shape[1])
    if op.reverse:
        places = np.where(there, -1 - np.arange(given.sequence.shape[1]), 1)
    order = np.argsort(places, 1, kind="stable")
    clean = np.where(there[..., None], given.sequence, 0.0)
    x = np.take_along_axis(clean, order[..., None], 1)
    counts = there.sum(1, keepdims=True)
    sums = round_per_tensor(x) @ (given.weights * scales[0])
    for b in (given.bias, given.state_bias):
        sums = sums if b is None else sums + b
    fed = h = np.zeros((batch, size)) if given.initial_state is None else given.initial_state
    c = np.zeros((batch, size)) if given.initial_cell is None else given.initial_cell
    out = np.zeros((*given.sequence.shape[:2], size))
    for n in range(counts.max(initial=0)):
        gates = sums[:, n] + round_per_tensor(fed) @ (given.state_weights * scales[1])
        after, new = apply_lstm_gates(gates, c, given.peepholes)
        # a finished sequence keeps its state and contributes zeros
        fed = np.where(n < counts, after, 0.0)
        h, c = np.where(n < counts, after, h), np.where(n < counts, new, c)
        np.put_along_axis(out, order[:, n, None, None], fed[:, None], 1)
    return out, h, c


@evaluate
def embedding_q(
    op: ops.EmbeddingQ, env: LengthValues, ids: Array, table: Array, scales: Array
) -> Array:
    """i[*s], q[v d], f[v] -> f[*s d]"""
    width = evaluate_length(op.width, env)
    whole = dequantize_matrix(table, scales, width, op.bits, op.block, op.layout)
    check_indices(ids, len(whole), "an embedding table")
    return whole[ids]


evaluate.add_rules(
    {
        ops.Quantize: lambda op, env, x, scale: np.clip(
            np.rint(x.astype(np.float32) / scale.astype(np.float32)), -128, 127
        ).astype(np.int8),
        ops.Dequantize: lambda op, env, x, scale: x.astype(np.float64) * scale,
    }
)


def dequantize_matrix(
    w: Array, scales: Array, wide: int, bits: int, block: int, layout: WeightLayout
) -> Array:
    """Dequantize to the matrix `[out, in]` in float64."""
    if layout == "columns":
        w, scales = w.T, scales.T
    elif block:
        # block-quantized codes are unsigned, two 4-bit codes per byte, the first in the low nibble;
        # the last block is padded
        if bits == 4:
            w = np.stack([w % 16, w // 16], -1)
        flat = w.reshape(len(w), -1)[:, :wide]
        w = flat.astype(np.float64) - 2 ** (bits - 1)
    each = np.repeat(scales, block, -1)[:, :wide] if block else scales[:, None]
    made: Array = w.astype(np.float64) * each
    return made


def round_per_tensor(x: Array) -> Array:
    """Quantize to 256 steps with one scale and zero point, decided in float32."""
    single = x.astype(np.float32)
    low, high = single.min(initial=0.0), single.max(initial=0.0)
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    middle = np.clip(np.rint(-low / scale), 0, 255)
    whole = np.clip(np.rint(single / scale) + middle, 0, 255) - middle
    result: Array = whole.astype(np.float64) * np.float64(scale)
    return result


def round_per_group(x: Array, size: int, rounding: str) -> Array:
    """Quantize each `size` elements with a scale of their own, decided in float32: a row by `x /
    scale`, a group, as kernels do, by `x · (127 / maximum)`.
    """
    wide = x.shape[-1]
    pieces = [x[..., at : at + size].astype(np.float32) for at in range(0, wide, size)]
    made = []
    for piece in pieces:
        most = np.maximum(np.abs(piece).max(-1, keepdims=True, initial=0.0), MIN_ROW_MAXIMUM)
        scale = most / np.float32(127)
        if rounding == "row":
            whole = np.clip(np.rint(piece / scale), -128, 127)
        else:
            whole = np.rint(piece * (np.float32(127) / most))
        made.append(whole.astype(np.float64) * scale)
    result: Array = np.concatenate(made, -1) if made else x
    return result

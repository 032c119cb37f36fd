"""The meaning of layers with rounded weights: what the whole numbers stand for, and the
same product as before; and of rows that are kept as whole numbers.
"""

import numpy as np

from specc.ir import ops
from specc.ir.ops.quantized import Layout
from specc_numpy.table import Array, Env, check_numbers, evaluate, length

LEAST = np.float32(1e-30)
"""The least size that a row of zeros is taken to have, so that nothing is divided by 0."""


@evaluate(ops.LinearQ)
def linear_q(
    op: ops.LinearQ,
    env: Env,
    x: Array,
    weights: Array,
    scales: Array,
    bias: Array | None = None,
) -> Array:
    """f[*s i], q[o i], f[o], f[o]? -> f[*s o]"""
    whole = matrix(weights, scales, x.shape[-1], op.bits, op.block, op.layout)
    size = {"row": x.shape[-1], "block": op.block}.get(op.rounding)
    y: Array = (x if size is None else coarse(x, size, op.rounding)) @ whole.T
    return y if bias is None else y + bias


@evaluate(ops.EmbeddingQ)
def embedding_q(
    op: ops.EmbeddingQ, env: Env, ids: Array, table: Array, scales: Array
) -> Array:
    """i[*s], q[v d], f[v] -> f[*s d]"""
    width = length(op.width, env)
    whole = matrix(table, scales, width, op.bits, op.block, op.layout)
    check_numbers(ids, len(whole), "an embedding table")
    return whole[ids]


@evaluate(ops.Quantize)
def quantize(op: ops.Quantize, env: Env, x: Array, scale: Array) -> Array:
    """f[b h t d], f[h #t d] -> q[b h t d]"""
    units = x.astype(np.float32) / scale.astype(np.float32)
    made: Array = np.clip(np.rint(units), -128, 127).astype(np.int8)
    return made


@evaluate(ops.Dequantize)
def dequantize(op: ops.Dequantize, env: Env, x: Array, scale: Array) -> Array:
    """q[b h t d], f[h #t d] -> f[b h t d]"""
    made: Array = x.astype(np.float64) * scale
    return made


def matrix(
    w: Array, scales: Array, wide: int, bits: int, block: int, layout: Layout
) -> Array:
    """The matrix `[out, in]` that stored numbers stand for, in float64."""
    if layout == "columns":
        w, scales = w.T, scales.T
    elif block:
        if bits == 4:
            w = np.stack([w % 16, w // 16], -1)
        w = w.reshape(len(w), -1)[:, :wide].astype(np.float64) - 2 ** (bits - 1)
    each = np.repeat(scales, block, -1)[:, :wide] if block else scales[:, None]
    made: Array = w.astype(np.float64) * each
    return made


def coarse(x: Array, size: int, rounding: str) -> Array:
    """Each `size` numbers of a row as whole numbers times their own scale.

    What is whole is decided in float32: of a row by `x / scale`, of a block, as kernels
    have it, by `x · (127 / greatest)`.
    """
    wide = x.shape[-1]
    pieces = [x[..., at : at + size].astype(np.float32) for at in range(0, wide, size)]
    made = []
    for piece in pieces:
        most = np.maximum(np.abs(piece).max(-1, keepdims=True, initial=0.0), LEAST)
        scale = most / np.float32(127)
        if rounding == "row":
            whole = np.clip(np.rint(piece / scale), -128, 127)
        else:
            whole = np.rint(piece * (np.float32(127) / most))
        made.append(whole.astype(np.float64) * scale)
    result: Array = np.concatenate(made, -1) if made else x
    return result

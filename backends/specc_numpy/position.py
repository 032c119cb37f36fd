"""Evaluate position encodings."""

import math

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.evaluation import evaluate_length
from specc_numpy.numpy_interpreter import LengthValues, evaluate


@evaluate(ops.Sinusoid)
def sinusoid(op: ops.Sinusoid, env: LengthValues, positions: Array) -> Array:
    """i[*s] -> f[*s d]"""
    pairs = evaluate_length(op.dim, env) // 2
    # fairseq divides by one pair less, so that its last frequency is 1 / base; in the paper
    # (arXiv:1706.03762, 3.5) it is one step larger.
    if op.layout == "fairseq":
        step = math.log(op.base) / max(pairs - 1, 1)
    else:
        step = math.log(op.base) / max(pairs, 1)
    angles = positions[..., None] * np.exp(-step * np.arange(pairs))
    # The paper interleaves sine and cosine; most implementations concatenate them.
    if op.layout == "interleaved":
        both: Array = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
        return both.reshape(*positions.shape, 2 * pairs)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


@evaluate(ops.RopeAngles)
def rope_angles(op: ops.RopeAngles, env: LengthValues, *rows: Array) -> tuple[Array, Array]:
    """i[*s]... -> f[*s r], f[*s r]"""
    dim = evaluate_length(op.dim, env)
    if op.frequencies:
        frequencies = np.array(op.frequencies, np.float64)
    else:
        frequencies = op.theta ** (-2.0 * np.arange(dim // 2) / max(dim, 1))
    angles = np.stack(rows, axis=-1)[..., list(op.axes or [0])] * frequencies
    return np.cos(angles) * op.factor, np.sin(angles) * op.factor


@evaluate(ops.Rotate)
def rotate(op: ops.Rotate, env: LengthValues, x: Array, cos: Array, sin: Array) -> Array:
    """f[b h t d], f[#b t r], f[#b t r] -> f[b h t d]"""
    # Features after the first 2r are not rotated: partial rotary embeddings (GPT-NeoX).
    r = cos.shape[-1]
    first, second = (
        (slice(0, r), slice(r, 2 * r))
        if op.pairs == "half"
        else (slice(0, 2 * r, 2), slice(1, 2 * r, 2))
    )
    cos, sin = cos[:, None], sin[:, None]
    is_transposed: Array = x.copy()
    is_transposed[..., first] = x[..., first] * cos - x[..., second] * sin
    is_transposed[..., second] = x[..., second] * cos + x[..., first] * sin
    return is_transposed

"""Evaluate linear layers, embeddings, norms, softmax and attention."""

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.evaluation import evaluate_patch_counts
from specc_numpy.numpy_interpreter import LengthValues, check_indices, evaluate


@evaluate(ops.Linear)
def linear(
    op: ops.Linear, env: LengthValues, x: Array, w: Array, bias: Array | None = None
) -> Array:
    """f[*s i], f[o i], f[o]? -> f[*s o]"""
    y: Array = x @ w.T
    return y if bias is None else y + bias


@evaluate(ops.Embedding)
def embedding(op: ops.Embedding, env: LengthValues, ids: Array, table: Array) -> Array:
    """i[*s], f[v d] -> f[*s d]"""
    check_indices(ids, table.shape[0], "an embedding table")
    return table[ids]


@evaluate(ops.LayerNorm)
def layer_norm(
    op: ops.LayerNorm,
    env: LengthValues,
    x: Array,
    gain: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """f[*s d], f[d]?, f[d]? -> f[*s d]"""
    y: Array = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + op.eps)
    y = y if gain is None else y * gain
    return y if bias is None else y + bias


@evaluate(ops.RMSNorm)
def rms_norm(op: ops.RMSNorm, env: LengthValues, x: Array, gain: Array | None = None) -> Array:
    """f[*s d], f[d]? -> f[*s d]"""
    y: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + op.eps)
    return y if gain is None else y * gain


def _softmax(scores: Array, visible: Array | bool, axis: int, sinks: Array | None = None) -> Array:
    """Softmax of visible `scores` along `axis`, zeros if none is; `sinks` has length 1 there."""
    # Masked scores are set to -inf before the maximum: a masked score may be larger than all
    # visible ones, and every exponential would underflow to 0.
    seen = np.where(visible, scores, -np.inf)
    maximum = seen.max(axis, keepdims=True, initial=-np.inf)
    if sinks is not None:
        # The maximum includes the sink, whose own exponential could overflow otherwise.
        maximum = np.maximum(maximum, sinks)
    # If nothing is visible, -inf minus -inf would be NaN.
    maximum = np.where(np.isneginf(maximum), 0.0, maximum)
    powers = np.exp(seen - maximum)
    total = powers.sum(axis, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - maximum)
    result: Array = np.divide(powers, total, out=np.zeros_like(powers), where=total != 0)
    return result


@evaluate(ops.Dropout)
def dropout(op: ops.Dropout, env: LengthValues, x: Array) -> Array:
    """f[*s] -> f[*s]"""
    return x


@evaluate(ops.Softmax)
def softmax(op: ops.Softmax, env: LengthValues, x: Array) -> Array:
    """f[*a t *b] -> f[*a t *b]"""
    powers = np.exp(x - x.max(op.axis, keepdims=True, initial=-np.inf))
    result: Array = powers / powers.sum(op.axis, keepdims=True)
    return result


@evaluate(ops.MaskedSoftmax)
def masked_softmax(op: ops.MaskedSoftmax, env: LengthValues, scores: Array, mask: Array) -> Array:
    """f[*s q k], b[#*s #q #k] -> f[*s q k]"""
    return _softmax(scores, mask, -1)


@evaluate(ops.Hard)
def hard(op: ops.Hard, env: LengthValues, scores: Array, mask: Array) -> Array:
    """f[*s q k], b[#*s #q #k] -> f[*s q k]"""
    # `argmax` over the visible keys only, so that ties and NaN at masked keys do not count; the
    # first of equal scores wins.
    visible = np.broadcast_to(mask, scores.shape) & ~np.isneginf(scores)
    chosen: Array = np.zeros_like(scores)
    for row in np.ndindex(*scores.shape[:-1]):
        (keys,) = np.nonzero(visible[row])
        if keys.size:
            chosen[(*row, keys[np.argmax(scores[row][keys])])] = 1.0
    return chosen


@evaluate(ops.Share)
def share(op: ops.Share, env: LengthValues, scores: Array, mask: Array) -> Array:
    """f[*s q k], b[#*s #q #k] -> f[*s q k]"""
    # A kernel is nonnegative (Nadaraya, 1964); masked keys do not count in the sum either.
    seen = np.where(mask, np.maximum(scores, 0.0), 0.0)
    total = seen.sum(-1, keepdims=True)
    result: Array = np.divide(seen, total, out=np.zeros_like(seen), where=total != 0)
    return result


@evaluate(ops.Weigh)
def weigh(op: ops.Weigh, env: LengthValues, weights: Array, values: Array) -> Array:
    """f[#*s q k], f[#*s k e] -> f[*s q e]"""
    result: Array = weights @ values
    return result


@evaluate(ops.Attend)
def attend(
    op: ops.Attend,
    env: LengthValues,
    query: Array,
    key: Array,
    values: Array,
    mask: Array | None = None,
    added: Array | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Array]:
    """f[b h q d], f[b g k d], f[b g k e], b[#b #h #q #k]?, f[#b #h #q #k]?, f[h]? ->
    f[b h q e], f[b h q k]
    """
    # Query heads that share keys are adjacent: of 4 heads over 2, heads 0 and 1 read the first.
    # With no heads, divide by 1.
    served = query.shape[1] // max(key.shape[1], 1)
    key, values = np.repeat(key, served, axis=1), np.repeat(values, served, axis=1)
    scores = op.scale * (query @ key.swapaxes(-1, -2))
    # Softcap applies to the products, before bias and mask.
    if op.cap > 0:
        scores = op.cap * np.tanh(scores / op.cap)
    if added is not None:
        scores = scores + added
    sink = None if sinks is None else sinks[None, :, None, None]
    weights = _softmax(scores, True if mask is None else mask, -1, sink)
    return weights @ values, weights


@evaluate(ops.Patches)
def patches(
    op: ops.Patches, env: LengthValues, image: Array, w: Array, b: Array | None = None
) -> Array:
    """f[b c y x], f[d c p r], f[d]? -> f[b n d]"""
    (batch, channels, *_), (*_, p, r) = image.shape, w.shape
    rows, columns = evaluate_patch_counts(image.shape, w.shape)
    # Patches are in row-major order; within a patch the channel comes first, as in convolution
    # weights.
    cut = image.reshape(batch, channels, rows, p, columns, r).transpose(0, 2, 4, 1, 3, 5)
    y: Array = cut.reshape(batch, rows * columns, channels * p * r) @ w.reshape(w.shape[0], -1).T
    return y if b is None else y + b

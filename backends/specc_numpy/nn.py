"""Evaluate linear and embedding layers, norms, attention, position encodings, and experts."""

import math

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph_interpreter import count_image_patches, evaluate_dim
from specc_numpy.indexing import check_indices
from specc_numpy.numpy_interpreter import LengthValues, evaluate, evaluate_nodes


@evaluate
def linear(
    op: ops.Linear, lengths: LengthValues, x: Array, weight: Array, bias: Array | None = None
) -> Array:
    """Apply a linear layer.

    f[*s i], f[o i], f[o]? -> f[*s o]
    """
    return apply_linear(x, weight, bias)


def apply_linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return `x @ w.T + bias`."""
    y: Array = x @ weight.T
    return y if bias is None else y + bias


evaluate.add_rules(
    {
        ops.Dropout: lambda op, lengths, x: x,
        ops.MaskedSoftmax: lambda op, lengths, scores, mask: _softmax(scores, mask, -1),
        ops.WeightedSum: lambda op, lengths, weights, values: weights @ values,
    }
)


@evaluate
def embedding(op: ops.Embedding, lengths: LengthValues, ids: Array, table: Array) -> Array:
    """Look up the embeddings of token ids.

    i[*s], f[v d] -> f[*s d]
    """
    check_indices(ids, table.shape[0], "an embedding table")
    return table[ids]


@evaluate
def layer_norm(
    op: ops.LayerNorm,
    lengths: LengthValues,
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Apply layer normalization.

    f[*s d], f[d]?, f[d]? -> f[*s d]
    """
    y: Array = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + op.eps)
    return _scale_and_shift(y, weight, bias)


def _scale_and_shift(y: Array, weight: Array | None, bias: Array | None) -> Array:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@evaluate
def group_norm(
    op: ops.GroupNorm,
    lengths: LengthValues,
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Apply group normalization.

    f[b *a c *s], f[c]?, f[c]? -> f[b *a c *s]
    """
    if not x.size:
        return x
    y = np.moveaxis(x, op.axis, 1)
    grouped = y.reshape(y.shape[0], evaluate_dim(op.groups, lengths), -1)
    mean = grouped.mean(axis=-1, keepdims=True)
    variance = ((grouped - mean) ** 2).mean(axis=-1, keepdims=True)
    y = ((grouped - mean) / np.sqrt(variance + op.eps)).reshape(y.shape)
    return np.moveaxis(_scale_and_shift(np.moveaxis(y, 1, -1), weight, bias), -1, op.axis)


@evaluate
def rms_norm(
    op: ops.RMSNorm, lengths: LengthValues, x: Array, weight: Array | None = None
) -> Array:
    """Apply RMS normalization.

    f[*s d], f[d]? -> f[*s d]
    """
    y: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + op.eps)
    return y if weight is None else y * weight


def _softmax(scores: Array, mask: Array | bool, axis: int, sinks: Array | None = None) -> Array:
    """Return the softmax of unmasked `scores` along `axis`, or zeros if all scores are masked.
    `sinks` (attention sinks) has size 1 along `axis`.
    """
    # Masked scores are set to -inf before the maximum is computed. Otherwise, if a masked score
    # exceeded all unmasked scores, all exponentials would underflow to 0.
    visible_scores = np.where(mask, scores, -np.inf)
    maximum = visible_scores.max(axis, keepdims=True, initial=-np.inf)
    if sinks is not None:
        # The maximum includes the attention sink, so that the exponential of the sink cannot
        # overflow.
        maximum = np.maximum(maximum, sinks)
    # If all scores are masked, -inf minus -inf would be NaN.
    maximum = np.where(np.isneginf(maximum), 0.0, maximum)
    # Compute in place, because scores are the largest arrays of a model.
    visible_scores -= maximum
    exponentials = np.exp(visible_scores, out=visible_scores)
    normalizer = exponentials.sum(axis, keepdims=True)
    if sinks is not None:
        normalizer = normalizer + np.exp(sinks - maximum)
    # If all scores are masked, all exponentials are already 0.
    result: Array = np.divide(exponentials, normalizer, out=exponentials, where=normalizer != 0)
    return result


@evaluate
def softmax(op: ops.Softmax, lengths: LengthValues, x: Array) -> Array:
    """Apply softmax along an axis.

    f[*a t *b] -> f[*a t *b]
    """
    exponentials = np.exp(x - x.max(op.axis, keepdims=True, initial=-np.inf))
    result: Array = exponentials / exponentials.sum(op.axis, keepdims=True)
    return result


@evaluate
def masked_hardmax(
    op: ops.MaskedHardmax, lengths: LengthValues, scores: Array, mask: Array
) -> Array:
    """Compute one-hot attention weights (hard attention), which are 1 for the first maximum of the
    unmasked scores and 0 for all other keys.

    f[*s q k], b[#*s #q #k] -> f[*s q k]
    """
    # `argmax` is applied only to unmasked keys, so that ties and NaN at masked keys have no effect.
    # If several scores are equal, `argmax` selects the first index.
    is_visible = np.broadcast_to(mask, scores.shape) & ~np.isneginf(scores)
    one_hot: Array = np.zeros_like(scores)
    for index in np.ndindex(*scores.shape[:-1]):
        (visible_keys,) = np.nonzero(is_visible[index])
        if visible_keys.size:
            one_hot[(*index, visible_keys[np.argmax(scores[index][visible_keys])])] = 1.0
    return one_hot


@evaluate
def masked_l1_normalization(
    op: ops.MaskedL1Normalization, lengths: LengthValues, scores: Array, mask: Array
) -> Array:
    """Divide the positive unmasked scores by their sum. All other attention weights are 0.

    f[*s q k], b[#*s #q #k] -> f[*s q k]
    """
    # Kernel functions are nonnegative in Nadaraya (1964), so negative scores are replaced with 0.
    visible_scores = np.where(mask, np.maximum(scores, 0.0), 0.0)
    score_sum = visible_scores.sum(-1, keepdims=True)
    result: Array = np.divide(
        visible_scores, score_sum, out=np.zeros_like(visible_scores), where=score_sum != 0
    )
    return result


@evaluate
def attend(
    op: ops.Attend,
    lengths: LengthValues,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Array]:
    """Compute scaled dot-product attention. Return the output and the attention weights.

    f[b h q d], f[b g k d], f[b g k e], b[#b #h #q #k]?, f[#b #h #q #k]?, f[h]? ->
    f[b h q e], f[b h q k]
    """
    # Query heads of one group are adjacent. For example, if there are 4 query heads and 2 key
    # heads, query heads 0 and 1 use key head 0. The divisor is at least 1, because there may be no
    # key heads.
    heads_per_group = query.shape[1] // max(key.shape[1], 1)
    key, value = (
        np.repeat(key, heads_per_group, axis=1),
        np.repeat(value, heads_per_group, axis=1),
    )
    scores = op.scale * (query @ key.swapaxes(-1, -2))
    # Soft-capping is applied to the query-key products, before bias and mask.
    if op.cap > 0:
        scores = op.cap * np.tanh(scores / op.cap)
    if bias is not None:
        scores = scores + bias
    sink = None if sinks is None else sinks[None, :, None, None]
    weights = _softmax(scores, True if mask is None else mask, -1, sink)
    return weights @ value, weights


@evaluate
def patch_embedding(
    op: ops.PatchEmbedding,
    lengths: LengthValues,
    image: Array,
    weight: Array,
    bias: Array | None = None,
) -> Array:
    """Compute the patch embeddings of images (non-overlapping patches in row-major order).

    f[b c y x], f[d c p r], f[d]? -> f[b n d]
    """
    (batch, channels, *_), (*_, p, r) = image.shape, weight.shape
    rows, columns = count_image_patches(image.shape, weight.shape)
    # Patches are in row-major order. Within a patch, the channel is the first axis, as in
    # convolution weights.
    patches = image.reshape(batch, channels, rows, p, columns, r).transpose(0, 2, 4, 1, 3, 5)
    flat_patches = patches.reshape(batch, rows * columns, channels * p * r)
    return apply_linear(flat_patches, weight.reshape(weight.shape[0], -1), bias)


@evaluate
def sinusoid(op: ops.Sinusoid, lengths: LengthValues, positions: Array) -> Array:
    """Compute sinusoidal position embeddings.

    i[*s] -> f[*s d]
    """
    pairs = evaluate_dim(op.dim, lengths) // 2
    # fairseq divides by `pairs - 1`, so its last frequency is exactly 1 / base. In
    # arXiv:1706.03762, sec. 3.5, the last frequency is larger than 1 / base by one step.
    steps = pairs - 1 if op.layout == "fairseq" else pairs
    step = math.log(op.base) / max(steps, 1)
    angles = positions[..., None] * np.exp(-step * np.arange(pairs))
    # arXiv:1706.03762 interleaves sines and cosines, whereas most implementations concatenate them.
    sines = [np.sin(angles), np.cos(angles)]
    if op.layout == "interleaved":
        return np.stack(sines, axis=-1).reshape(*positions.shape, 2 * pairs)
    return np.concatenate(sines, axis=-1)


@evaluate
def rope_angles(
    op: ops.RopeAngles, lengths: LengthValues, *positions: Array
) -> tuple[Array, Array]:
    """Compute the cosines and sines of the RoPE angles of position ids.

    i[*s]... -> f[*s r], f[*s r]
    """
    width = evaluate_dim(op.dim, lengths)
    if op.frequencies:
        frequencies = np.array(op.frequencies, np.float64)
    else:
        frequencies = op.theta ** (-2.0 * np.arange(width // 2) / max(width, 1))
    angles = np.stack(positions, axis=-1)[..., list(op.axes or [0])] * frequencies
    return np.cos(angles) * op.factor, np.sin(angles) * op.factor


@evaluate
def apply_rope(op: ops.Rotate, lengths: LengthValues, x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the features of queries or keys in pairs (RoPE).

    f[b h t d], f[#b t r], f[#b t r] -> f[b h t d]
    """
    # Features after the first 2r are not rotated: partial rotary embeddings (GPT-NeoX).
    r = cos.shape[-1]
    first_features, second_features = (
        (slice(0, r), slice(r, 2 * r))
        if op.pairs == "half"
        else (slice(0, 2 * r, 2), slice(1, 2 * r, 2))
    )
    cos, sin = cos[:, None], sin[:, None]
    result: Array = x.copy()
    result[..., first_features] = x[..., first_features] * cos - x[..., second_features] * sin
    result[..., second_features] = x[..., second_features] * cos + x[..., first_features] * sin
    return result


@evaluate
def mixture_of_experts(op: ops.MixtureOfExperts, lengths: LengthValues, *operands: Array) -> Array:
    """Compute a mixture of experts (MoE). For each token, compute the gate-weighted sum of the
    outputs of the experts to which the token is routed.

    f[*s d], i[*s k], f[*s k], a[*t]... -> f[*s o]
    """
    inputs = op.split_operands(operands)
    *leading_shape, width = inputs.x.shape
    token_count = int(np.prod(leading_shape))
    # flatten the token axes to one axis
    tokens = inputs.x.reshape(*[1] * (len(leading_shape) - 1), token_count, width)
    body_lengths = {**lengths, op.token_count_symbol: token_count}
    body_output = op.get_expert_output()
    result = np.zeros((*leading_shape, evaluate_dim(body_output.type.shape[-1], lengths)))
    is_valid = (inputs.ids >= 0) & (inputs.ids < evaluate_dim(op.num_experts, lengths))
    if inputs.keep is not None:
        is_valid &= inputs.keep[..., None]
    # the sum does not change if no token is routed to the expert
    for expert in np.unique(inputs.ids[is_valid]):
        is_chosen = is_valid & (inputs.ids == expert)
        expert_weights = (w[expert] for w in inputs.stacked_operands)
        body_values = dict(
            zip(op.get_expert_inputs(), (tokens, *expert_weights, *inputs.captured), strict=True)
        )
        output = evaluate_nodes(op.body, body_values, body_lengths, [body_output])[body_output]
        weighted_output = np.where(is_chosen, inputs.gates, 0).sum(
            -1, keepdims=True
        ) * output.reshape(result.shape)
        # outputs for tokens that are not routed to the expert may be NaN, so these outputs are
        # excluded
        result += np.where(is_chosen.any(-1, keepdims=True), weighted_output, 0)
    return result

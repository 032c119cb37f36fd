"""Linear and embedding layers, norms, attention, position encodings, and experts in PyTorch.

Angles of position encodings are computed in float64 and rounded once.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc.ir.graph_interpreter import count_image_patches
from specc_torch.indexing import check_tensor_indices
from specc_torch.torch_interpreter import ForwardContext, evaluate, run_graph_nodes


@evaluate
def linear(
    op: ops.Linear, context: ForwardContext, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Apply a linear layer.

    f[*s i], f[o i], f[o]? -> f[*s o]
    """
    return functional.linear(x, weight, bias)


@evaluate
def embedding(op: ops.Embedding, context: ForwardContext, ids: Tensor, table: Tensor) -> Tensor:
    """Look up the embeddings of token ids.

    i[*s], f[v d] -> f[*s d]
    """
    check_tensor_indices(ids, table.shape[0], "an embedding table")
    return functional.embedding(ids.long(), table)


evaluate.add_rules(
    {
        ops.Dropout: lambda op, context, x: functional.dropout(x, op.p, context.is_training),
        ops.Softmax: lambda op, context, x: torch.softmax(x, op.axis),
        ops.MaskedSoftmax: lambda op, context, scores, mask: _softmax(scores, mask, -1),
        ops.WeightedSum: lambda op, context, weights, values: weights @ values,
    }
)


@evaluate
def layer_norm(
    op: ops.LayerNorm,
    context: ForwardContext,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Apply layer normalization.

    f[*s d], f[d]?, f[d]? -> f[*s d]
    """
    return functional.layer_norm(x, x.shape[-1:], weight, bias, op.eps)


@evaluate
def group_norm(
    op: ops.GroupNorm,
    context: ForwardContext,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Apply group normalization.

    f[b *a c *s], f[c]?, f[c]? -> f[b *a c *s]
    """
    y = x.movedim(op.axis, 1)
    if y.numel():
        y = functional.group_norm(y, context.evaluate_dim(op.groups), weight, bias, op.eps)
    return y.movedim(1, op.axis)


@evaluate
def rms_norm(
    op: ops.RMSNorm, context: ForwardContext, x: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Apply RMS normalization.

    f[*s d], f[d]? -> f[*s d]
    """
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + op.eps)
    return y if weight is None else y * weight


def _softmax(scores: Tensor, mask: Tensor | None, axis: int, sinks: Tensor | None = None) -> Tensor:
    """Return the softmax of unmasked `scores` along `axis`, or zeros without a gradient if all
    scores are masked. `sinks` (attention sinks) has size 1 along `axis`.
    """
    if not scores.shape[axis]:
        return scores
    visible_scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    maximum = visible_scores.detach().amax(axis, keepdim=True)
    if sinks is not None:
        maximum = torch.maximum(maximum, sinks.detach())
    maximum = torch.where(torch.isneginf(maximum), 0.0, maximum)
    exponentials = torch.exp(visible_scores - maximum)
    normalizer = exponentials.sum(axis, keepdim=True)
    if sinks is not None:
        normalizer = normalizer + torch.exp(sinks - maximum)
    # The divisor is 1 where the sum is 0, because the NaN gradient of 0 / 0 would pass through
    # `torch.where`.
    return exponentials / torch.where(normalizer == 0, 1.0, normalizer)


@evaluate
def masked_hardmax(
    op: ops.MaskedHardmax, context: ForwardContext, scores: Tensor, mask: Tensor
) -> Tensor:
    """Compute one-hot attention weights (hard attention), which are 1 for the first maximum of the
    unmasked scores and 0 for all other keys.

    f[*s q k], b[#*s #q #k] -> f[*s q k]
    """
    if not scores.shape[-1]:
        return scores
    is_visible = mask & ~torch.isneginf(scores)
    # `argmax` is applied to the mask of maxima, not to the scores, so that the first of several
    # equal scores is selected.
    maximum = scores.masked_fill(~is_visible, -torch.inf).amax(-1, keepdim=True)
    is_maximum = is_visible & (scores == maximum)
    one_hot = functional.one_hot(is_maximum.to(torch.int8).argmax(-1), scores.shape[-1])
    return (one_hot.bool() & is_maximum).to(scores.dtype)


@evaluate
def masked_l1_normalization(
    op: ops.MaskedL1Normalization, context: ForwardContext, scores: Tensor, mask: Tensor
) -> Tensor:
    """Divide the positive unmasked scores by their sum. All other attention weights are 0.

    f[*s q k], b[#*s #q #k] -> f[*s q k]
    """
    visible_scores = torch.where(mask, scores.clamp(min=0), 0.0)
    score_sum = visible_scores.sum(-1, keepdim=True)
    return visible_scores / torch.where(score_sum == 0, 1.0, score_sum)


@evaluate
def attend(
    op: ops.Attend,
    context: ForwardContext,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute scaled dot-product attention. Return the output and the attention weights.

    f[b h q d], f[b g k d], f[b g k e], b[#b #h #q #k]?, f[#b #h #q #k]?, f[h]? ->
    f[b h q e], f[b h q k]
    """
    heads_per_group = query.shape[1] // max(key.shape[1], 1)
    if heads_per_group > 1:
        key, value = (
            key.repeat_interleave(heads_per_group, dim=1),
            value.repeat_interleave(heads_per_group, dim=1),
        )
    scores = op.scale * (query @ key.transpose(-1, -2))
    if op.cap > 0:
        scores = op.cap * torch.tanh(scores / op.cap)
    if bias is not None:
        scores = scores + bias
    weights = _softmax(scores, mask, -1, None if sinks is None else sinks[None, :, None, None])
    return weights @ value, weights


@evaluate
def patch_embedding(
    op: ops.PatchEmbedding,
    context: ForwardContext,
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute the patch embeddings of images (non-overlapping patches in row-major order).

    f[b c y x], f[d c p r], f[d]? -> f[b n d]
    """
    p, r = weight.shape[2:]
    rows, columns = count_image_patches(image.shape, weight.shape)
    # Patches are in row-major order. Within a patch, the channel is the first axis, as in the
    # convolution weights.
    patches = image.reshape(*image.shape[:2], rows, p, columns, r).permute(0, 2, 4, 1, 3, 5)
    flat_patches = patches.reshape(image.shape[0], rows * columns, weight[0].numel())
    return functional.linear(flat_patches, weight.reshape(weight.shape[0], -1), bias)


@evaluate
def sinusoid(op: ops.Sinusoid, context: ForwardContext, positions: Tensor) -> Tensor:
    """Compute sinusoidal position embeddings.

    i[*s] -> f[*s d]
    """
    pairs = context.evaluate_dim(op.dim) // 2
    steps = pairs - 1 if op.layout == "fairseq" else pairs
    step = math.log(op.base) / max(steps, 1)
    angles = positions[..., None].double() * torch.exp(-step * context.arange(pairs).double())
    sines = [torch.sin(angles), torch.cos(angles)]
    if op.layout == "interleaved":
        return (
            torch.stack(sines, dim=-1).reshape(*positions.shape, 2 * pairs).to(context.float_dtype)
        )
    return torch.cat(sines, dim=-1).to(context.float_dtype)


@evaluate
def rope_angles(
    op: ops.RopeAngles, context: ForwardContext, *positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the cosines and sines of the RoPE angles of position ids.

    i[*s]... -> f[*s r], f[*s r]
    """
    width = context.evaluate_dim(op.dim)
    if op.frequencies:
        frequencies = torch.tensor(op.frequencies, dtype=torch.float64, device=context.device)
    else:
        frequencies = op.theta ** (-2.0 * context.arange(width // 2).double() / max(width, 1))
    angles = torch.stack(positions, dim=-1)[..., list(op.axes or [0])].double() * frequencies
    cos, sin = (function(angles) * op.factor for function in (torch.cos, torch.sin))
    return cos.to(context.float_dtype), sin.to(context.float_dtype)


@evaluate
def apply_rope(
    op: ops.Rotate, context: ForwardContext, x: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """Rotate the features of queries or keys in pairs (RoPE).

    f[b h t d], f[#b t r], f[#b t r] -> f[b h t d]
    """
    # Features after the first 2r features of a head are not rotated.
    r = cos.shape[-1]
    rotary_features, other_features = x[..., : 2 * r], x[..., 2 * r :]
    if op.pairs == "half":
        first_features, second_features = rotary_features[..., :r], rotary_features[..., r:]
    else:
        first_features, second_features = rotary_features[..., 0::2], rotary_features[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    rotated_pair = [
        first_features * cos - second_features * sin,
        second_features * cos + first_features * sin,
    ]
    if op.pairs == "half":
        return torch.cat([*rotated_pair, other_features], dim=-1)
    return torch.cat(
        [torch.stack(rotated_pair, dim=-1).reshape(rotary_features.shape), other_features], dim=-1
    )


@evaluate
def mixture_of_experts(
    op: ops.MixtureOfExperts, context: ForwardContext, *operands: Tensor
) -> Tensor:
    """Compute a mixture of experts (MoE). For each token, compute the gate-weighted sum of the
    outputs of the experts to which the token is routed.

    f[*s d], i[*s k], f[*s k], a[*t]... -> f[*s o]
    """
    inputs = op.split_operands(operands)
    *leading_shape, width = inputs.x.shape
    tokens = inputs.x.reshape(-1, width)
    experts_per_token = inputs.ids.shape[-1]
    ids, gates = (
        inputs.ids.reshape(-1, experts_per_token),
        inputs.gates.reshape(-1, experts_per_token),
    )
    if inputs.keep is not None:
        # padded tokens get the index -1, which selects no expert
        ids = torch.where(inputs.keep.reshape(-1, 1), ids, -1)
    width = context.evaluate_dim(op.get_expert_output().type.shape[-1])
    result = torch.zeros(tokens.shape[0], width, dtype=context.float_dtype, device=context.device)
    for expert in _list_used_experts(ids, context.evaluate_dim(op.num_experts)):
        is_chosen = ids == expert
        token_ids = is_chosen.any(-1).nonzero()[:, 0]
        expert_weights = [w[expert] for w in inputs.stacked_operands]
        output = _run_expert(
            op,
            context,
            tokens[token_ids],
            [*expert_weights, *inputs.captured],
            len(leading_shape) - 1,
        )
        gate = torch.where(is_chosen[token_ids], gates[token_ids], 0).sum(-1, keepdim=True)
        result = result.index_add(0, token_ids, gate * output)
    return result.reshape(*leading_shape, width)


def _list_used_experts(ids: Tensor, expert_count: int) -> list[int]:
    """Return the sorted indices of the experts in `ids`, or an empty list for a meta tensor."""
    if ids.is_meta:
        return []
    return [e for e in sorted(set(ids.flatten().tolist())) if 0 <= e < expert_count]


def _run_expert(
    op: ops.MixtureOfExperts,
    context: ForwardContext,
    tokens: Tensor,
    other_inputs: list[Tensor],
    leading_axes: int,
) -> Tensor:
    """Return one expert's output for `tokens`. The expert's body expects `leading_axes` leading
    axes of size 1.
    """
    lengths = {**context.lengths, op.token_count_symbol: tokens.shape[0]}
    body_context = replace(context, lengths=lengths)
    body_tokens = tokens.reshape(*[1] * leading_axes, *tokens.shape)
    body_inputs = dict(zip(op.get_expert_inputs(), (body_tokens, *other_inputs), strict=True))
    output = run_graph_nodes(op.body, body_inputs, body_context, [op.get_expert_output()])[
        op.get_expert_output()
    ]
    return output.reshape(tokens.shape[0], output.shape[-1])

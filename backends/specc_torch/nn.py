"""Linear layers, embeddings, norms, softmax and attention in PyTorch."""

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc.ir.evaluation import evaluate_patch_counts
from specc_torch.torch_interpreter import ForwardContext, check_tensor_indices, evaluate


@evaluate(ops.Linear)
def linear(
    op: ops.Linear, place: ForwardContext, x: Tensor, w: Tensor, bias: Tensor | None = None
) -> Tensor:
    """f[*s i], f[o i], f[o]? -> f[*s o]"""
    return functional.linear(x, w, bias)


@evaluate(ops.Embedding)
def embedding(op: ops.Embedding, place: ForwardContext, ids: Tensor, table: Tensor) -> Tensor:
    """i[*s], f[v d] -> f[*s d]"""
    check_tensor_indices(ids, table.shape[0], "an embedding table")
    return functional.embedding(ids.long(), table)


@evaluate(ops.LayerNorm)
def layer_norm(
    op: ops.LayerNorm,
    place: ForwardContext,
    x: Tensor,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """f[*s d], f[d]?, f[d]? -> f[*s d]"""
    return functional.layer_norm(x, x.shape[-1:], gain, bias, op.eps)


@evaluate(ops.RMSNorm)
def rms_norm(
    op: ops.RMSNorm, place: ForwardContext, x: Tensor, gain: Tensor | None = None
) -> Tensor:
    """f[*s d], f[d]? -> f[*s d]"""
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + op.eps)
    return y if gain is None else y * gain


@evaluate(ops.Dropout)
def dropout(op: ops.Dropout, place: ForwardContext, x: Tensor) -> Tensor:
    """f[*s] -> f[*s]"""
    return functional.dropout(x, op.p, place.training)


def _softmax(scores: Tensor, mask: Tensor | None, axis: int, sinks: Tensor | None = None) -> Tensor:
    """Softmax of `scores` that `mask` shows along `axis`; zeros without gradient if none. `sinks`
    has length 1 along `axis`.
    """
    if not scores.shape[axis]:
        return scores
    seen = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    maximum = seen.detach().amax(axis, keepdim=True)
    if sinks is not None:
        maximum = torch.maximum(maximum, sinks.detach())
    maximum = torch.where(torch.isneginf(maximum), 0.0, maximum)
    powers = torch.exp(seen - maximum)
    total = powers.sum(axis, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - maximum)
    # Not zeros after a division: the gradient of 0 / 0 is NaN even where the value is discarded.
    return powers / torch.where(total == 0, 1.0, total)


@evaluate(ops.Softmax)
def softmax(op: ops.Softmax, place: ForwardContext, x: Tensor) -> Tensor:
    """f[*a t *b] -> f[*a t *b]"""
    return torch.softmax(x, op.axis)


@evaluate(ops.MaskedSoftmax)
def masked_softmax(
    op: ops.MaskedSoftmax, place: ForwardContext, scores: Tensor, mask: Tensor
) -> Tensor:
    """f[*s q k], b[#*s #q #k] -> f[*s q k]"""
    return _softmax(scores, mask, -1)


@evaluate(ops.Hard)
def hard(op: ops.Hard, place: ForwardContext, scores: Tensor, mask: Tensor) -> Tensor:
    """f[*s q k], b[#*s #q #k] -> f[*s q k]"""
    if not scores.shape[-1]:
        return scores
    visible = mask & ~torch.isneginf(scores)
    # The first of equal scores counts, so `argmax` takes the equality with the maximum, not the
    # scores.
    maximum = scores.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)
    among = visible & (scores == maximum)
    chosen = functional.one_hot(among.to(torch.int8).argmax(-1), scores.shape[-1])
    return (chosen.bool() & among).to(scores.dtype)


@evaluate(ops.Share)
def share(op: ops.Share, place: ForwardContext, scores: Tensor, mask: Tensor) -> Tensor:
    """f[*s q k], b[#*s #q #k] -> f[*s q k]"""
    seen = torch.where(mask, scores.clamp(min=0), 0.0)
    total = seen.sum(-1, keepdim=True)
    return seen / torch.where(total == 0, 1.0, total)


@evaluate(ops.Weigh)
def weigh(op: ops.Weigh, place: ForwardContext, weights: Tensor, values: Tensor) -> Tensor:
    """f[#*s q k], f[#*s k e] -> f[*s q e]"""
    return weights @ values


@evaluate(ops.Attend)
def attend(
    op: ops.Attend,
    place: ForwardContext,
    query: Tensor,
    key: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    added: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """f[b h q d], f[b g k d], f[b g k e], b[#b #h #q #k]?, f[#b #h #q #k]?, f[h]? ->
    f[b h q e], f[b h q k]
    """
    served = query.shape[1] // max(key.shape[1], 1)
    if served > 1:
        key, values = (
            key.repeat_interleave(served, dim=1),
            values.repeat_interleave(served, dim=1),
        )
    scores = op.scale * (query @ key.transpose(-1, -2))
    if op.cap > 0:
        scores = op.cap * torch.tanh(scores / op.cap)
    if added is not None:
        scores = scores + added
    weights = _softmax(scores, mask, -1, None if sinks is None else sinks[None, :, None, None])
    return weights @ values, weights


@evaluate(ops.Patches)
def patches(
    op: ops.Patches, place: ForwardContext, image: Tensor, w: Tensor, b: Tensor | None = None
) -> Tensor:
    """f[b c y x], f[d c p r], f[d]? -> f[b n d]"""
    p, r = w.shape[2:]
    rows, columns = evaluate_patch_counts(image.shape, w.shape)
    # Patches are in row-major order; within a patch the channel comes first, as in the weights.
    cut = image.reshape(*image.shape[:2], rows, p, columns, r).permute(0, 2, 4, 1, 3, 5)
    flat = cut.reshape(image.shape[0], rows * columns, w[0].numel())
    return functional.linear(flat, w.reshape(w.shape[0], -1), b)

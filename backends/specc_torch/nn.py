"""Linear and embedding layers, norms, attention, position encodings, and experts in PyTorch.

Angles of position encodings are computed in float64 and rounded once.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc.ir.evaluation import evaluate_patch_counts
from specc_torch.torch_interpreter import (
    ForwardContext,
    check_tensor_indices,
    evaluate,
    run_graph_nodes,
)


@evaluate
def linear(
    op: ops.Linear, place: ForwardContext, x: Tensor, w: Tensor, bias: Tensor | None = None
) -> Tensor:
    """f[*s i], f[o i], f[o]? -> f[*s o]"""
    return functional.linear(x, w, bias)


@evaluate
def embedding(op: ops.Embedding, place: ForwardContext, ids: Tensor, table: Tensor) -> Tensor:
    """i[*s], f[v d] -> f[*s d]"""
    check_tensor_indices(ids, table.shape[0], "an embedding table")
    return functional.embedding(ids.long(), table)


evaluate.add_rules(
    {
        ops.Dropout: lambda op, place, x: functional.dropout(x, op.p, place.training),
        ops.Softmax: lambda op, place, x: torch.softmax(x, op.axis),
        ops.MaskedSoftmax: lambda op, place, scores, mask: _softmax(scores, mask, -1),
        ops.Weigh: lambda op, place, weights, values: weights @ values,
    }
)


@evaluate
def layer_norm(
    op: ops.LayerNorm,
    place: ForwardContext,
    x: Tensor,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """f[*s d], f[d]?, f[d]? -> f[*s d]"""
    return functional.layer_norm(x, x.shape[-1:], gain, bias, op.eps)


@evaluate
def group_norm(
    op: ops.GroupNorm,
    place: ForwardContext,
    x: Tensor,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """f[b *a c *s], f[c]?, f[c]? -> f[b *a c *s]"""
    y = x.movedim(op.axis, 1)
    if y.numel():
        y = functional.group_norm(y, place.length(op.groups), gain, bias, op.eps)
    return y.movedim(1, op.axis)


@evaluate
def rms_norm(
    op: ops.RMSNorm, place: ForwardContext, x: Tensor, gain: Tensor | None = None
) -> Tensor:
    """f[*s d], f[d]? -> f[*s d]"""
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + op.eps)
    return y if gain is None else y * gain


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


@evaluate
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


@evaluate
def share(op: ops.Share, place: ForwardContext, scores: Tensor, mask: Tensor) -> Tensor:
    """f[*s q k], b[#*s #q #k] -> f[*s q k]"""
    seen = torch.where(mask, scores.clamp(min=0), 0.0)
    total = seen.sum(-1, keepdim=True)
    return seen / torch.where(total == 0, 1.0, total)


@evaluate
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


@evaluate
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


@evaluate
def sinusoid(op: ops.Sinusoid, place: ForwardContext, positions: Tensor) -> Tensor:
    """i[*s] -> f[*s d]"""
    pairs = place.length(op.dim) // 2
    steps = pairs - 1 if op.layout == "fairseq" else pairs
    step = math.log(op.base) / max(steps, 1)
    angles = positions[..., None].double() * torch.exp(-step * place.rows(pairs).double())
    sines = [torch.sin(angles), torch.cos(angles)]
    if op.layout == "interleaved":
        return torch.stack(sines, dim=-1).reshape(*positions.shape, 2 * pairs).to(place.floats)
    return torch.cat(sines, dim=-1).to(place.floats)


@evaluate
def rope_angles(op: ops.RopeAngles, place: ForwardContext, *rows: Tensor) -> tuple[Tensor, Tensor]:
    """i[*s]... -> f[*s r], f[*s r]"""
    dim = place.length(op.dim)
    if op.frequencies:
        frequencies = torch.tensor(op.frequencies, dtype=torch.float64, device=place.device)
    else:
        frequencies = op.theta ** (-2.0 * place.rows(dim // 2).double() / max(dim, 1))
    angles = torch.stack(rows, dim=-1)[..., list(op.axes or [0])].double() * frequencies
    cos, sin = (f(angles) * op.factor for f in (torch.cos, torch.sin))
    return cos.to(place.floats), sin.to(place.floats)


@evaluate
def rotate(op: ops.Rotate, place: ForwardContext, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """f[b h t d], f[#b t r], f[#b t r] -> f[b h t d]"""
    # Features after the first 2r of a head are not rotated.
    r = cos.shape[-1]
    rotated, rest = x[..., : 2 * r], x[..., 2 * r :]
    if op.pairs == "half":
        first, second = rotated[..., :r], rotated[..., r:]
    else:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    halves = [first * cos - second * sin, second * cos + first * sin]
    if op.pairs == "half":
        return torch.cat([*halves, rest], dim=-1)
    return torch.cat([torch.stack(halves, dim=-1).reshape(rotated.shape), rest], dim=-1)


@evaluate
def route(op: ops.Route, place: ForwardContext, *operands: Tensor) -> Tensor:
    """f[*s d], i[*s k], f[*s k], a[*t]... -> f[*s o]"""
    given = op.split_operands(operands)
    *lead, width = given.x.shape
    rows = given.x.reshape(-1, width)
    many = given.ids.shape[-1]
    ids, gates = given.ids.reshape(-1, many), given.gates.reshape(-1, many)
    if given.keep is not None:
        # no expert has index -1
        ids = torch.where(given.keep.reshape(-1, 1), ids, -1)
    width = place.length(op.get_body_output().type.shape[-1])
    result = torch.zeros(rows.shape[0], width, dtype=place.floats, device=place.device)
    for expert in _list_used_experts(ids, place.length(op.experts)):
        chosen = ids == expert
        at = chosen.any(-1).nonzero()[:, 0]
        own = [w[expert] for w in given.stacked]
        made = _run_expert(op, place, rows[at], [*own, *given.captured], len(lead) - 1)
        share = torch.where(chosen[at], gates[at], 0).sum(-1, keepdim=True)
        result = result.index_add(0, at, share * made)
    return result.reshape(*lead, width)


def _list_used_experts(ids: Tensor, experts: int) -> list[int]:
    """Return the experts in use, ascending; none for meta tensors."""
    if ids.is_meta:
        return []
    return [e for e in sorted(set(ids.flatten().tolist())) if 0 <= e < experts]


def _run_expert(
    op: ops.Route, place: ForwardContext, rows: Tensor, others: list[Tensor], ones: int
) -> Tensor:
    """Return the output of one expert for these rows; its body has `ones` leading axes of 1."""
    lengths = {**place.lengths, op.token_count_symbol: rows.shape[0]}
    there = replace(place, lengths=lengths)
    shaped = rows.reshape(*[1] * ones, *rows.shape)
    given = dict(zip(op.get_body_inputs(), (shaped, *others), strict=True))
    made = run_graph_nodes(op.body, given, there, [op.get_body_output()])[op.get_body_output()]
    return made.reshape(rows.shape[0], made.shape[-1])

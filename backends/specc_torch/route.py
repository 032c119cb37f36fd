"""Mixture of experts in PyTorch."""

from dataclasses import replace

import torch
from torch import Tensor

from specc.ir import ops
from specc_torch.torch_interpreter import ForwardContext, evaluate, run_graph_nodes


@evaluate(ops.Route)
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
    """What one expert makes of these rows; its body has `ones` axes of 1 before them."""
    lengths = {**place.lengths, op.token_count_symbol: rows.shape[0]}
    there = replace(place, lengths=lengths)
    shaped = rows.reshape(*[1] * ones, *rows.shape)
    given = dict(zip(op.get_body_inputs(), (shaped, *others), strict=True))
    made = run_graph_nodes(op.body, given, there, [op.get_body_output()])[op.get_body_output()]
    return made.reshape(rows.shape[0], made.shape[-1])

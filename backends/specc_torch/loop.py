"""`Scan` in PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specc.ir import ops
from specc_torch.torch_interpreter import ForwardContext, evaluate, run_graph_nodes


@evaluate(ops.Scan)
def scan(op: ops.Scan, place: ForwardContext, *operands: Tensor) -> tuple[Tensor, ...]:
    """a[*s]... -> a[*t]"""
    keep, given = (operands[0], operands[1:]) if op.masked else (None, operands)
    rows = given[: op.scanned]
    carries = list(given[op.scanned : op.scanned + op.carries])
    captured = given[op.scanned + op.carries :]
    steps = rows[0].shape[op.axis]
    inputs, results = list(op.body.inputs.values()), list(op.body.outputs.values())
    collected: list[list[Tensor]] = [[] for _ in results[op.carries :]]
    for t in reversed(range(steps)) if op.reverse else range(steps):
        if _is_finished(op, carries):
            break
        row = [x.select(op.axis, t) for x in rows]
        made = run_graph_nodes(
            op.body, dict(zip(inputs, (*row, *carries, *captured), strict=True)), place, results
        )
        after = [made[v] for v in results[: op.carries]]
        here = [made[v] for v in results[op.carries :]]
        if keep is not None:
            # A row that does not exist changes no state and gives zeros.
            after = _select_kept(keep[:, t], after, carries)
            here = _select_kept(keep[:, t], here, [torch.zeros_like(x) for x in here])
        carries = after
        for stack, x in zip(collected, here, strict=True):
            stack.append(x)
    stacked = (
        _stack_collected(stack, op, place, value, steps)
        for stack, value in zip(collected, range(op.carries, len(results)), strict=True)
    )
    return (*carries, *stacked)


def _is_finished(op: ops.Scan, carries: Sequence[Tensor]) -> bool:
    """Whether no row needs another turn, and nothing is made of those that are done."""
    ends = op.until != -1 and not op.lasting
    return ends and bool(carries[op.until].all())


def _select_kept(kept: Tensor, yes: Sequence[Tensor], no: Sequence[Tensor]) -> list[Tensor]:
    return [torch.where(_align_mask(kept, x), x, y) for x, y in zip(yes, no, strict=True)]


def _stack_collected(
    made: list[Tensor], op: ops.Scan, place: ForwardContext, result: int, steps: int
) -> Tensor:
    """Stack collected values in position order, zeros for iterations that were not run."""
    type = list(op.body.outputs.values())[result].type
    shape = [place.length(d) for d in type.shape]
    if len(made) < steps:
        none = torch.zeros(shape, dtype=place.stored(type.dtype), device=place.device)
        made = [*made, *[none] * (steps - len(made))]
    if made:
        return torch.stack(made[::-1] if op.reverse else made, dim=op.axis)
    shape.insert(op.axis, 0)
    return torch.empty(shape, dtype=place.stored(type.dtype), device=place.device)


def _align_mask(kept: Tensor, x: Tensor) -> Tensor:
    """bool[b] shaped so that it selects along the first axis of `x`."""
    return kept.reshape(-1, *[1] * (x.ndim - 1))

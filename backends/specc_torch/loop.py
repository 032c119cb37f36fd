"""`Scan` in PyTorch."""

import torch
from torch import Tensor

from specc.ir import ops
from specc.ir.evaluation import run_scan
from specc.ir.types import Type
from specc_torch.torch_interpreter import ForwardContext, evaluate, run_graph_nodes


@evaluate(ops.Scan)
def scan(op: ops.Scan, place: ForwardContext, *operands: Tensor) -> tuple[Tensor, ...]:
    """a[*s]... -> a[*t]"""
    keep, steps = op.split_operands(operands).keep, operands[op.first_body_operand].shape[op.axis]

    def select_unpadded(t: int, new: Tensor, old: Tensor | None) -> Tensor:
        # A padded position leaves the state unchanged and outputs zeros.
        if keep is None:
            return new
        kept = keep[:, t].reshape(-1, *[1] * (new.ndim - 1))
        return torch.where(kept, new, torch.zeros_like(new) if old is None else old)

    carries, collected = run_scan(
        op,
        operands,
        steps,
        slice_position=lambda x, t: x.select(op.axis, t),
        evaluate_body=lambda given, wanted: run_graph_nodes(op.body, given, place, wanted),
        select_value=select_unpadded,
        is_all_true=lambda carry: bool(carry.all()),
    )
    types = [value.type for value in op.get_collected_outputs()]
    return (
        *carries,
        *(_stack_collected(*each, op, place, steps) for each in zip(collected, types, strict=True)),
    )


def _stack_collected(
    made: list[Tensor], type: Type, op: ops.Scan, place: ForwardContext, steps: int
) -> Tensor:
    """Stack collected values in position order, zeros for iterations that were not run."""
    shape = [place.length(d) for d in type.shape]
    if len(made) < steps:
        none = torch.zeros(shape, dtype=place.stored(type.dtype), device=place.device)
        made = [*made, *[none] * (steps - len(made))]
    if made:
        return torch.stack(made[::-1] if op.reverse else made, dim=op.axis)
    shape.insert(op.axis, 0)
    return torch.empty(shape, dtype=place.stored(type.dtype), device=place.device)

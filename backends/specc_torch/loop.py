"""`Scan` in PyTorch."""

import torch
from torch import Tensor

from specc.ir import ops
from specc.ir.graph_interpreter import run_scan
from specc.ir.types import Type
from specc_torch.torch_interpreter import ForwardContext, evaluate, run_graph_nodes


@evaluate
def scan(op: ops.Scan, context: ForwardContext, *operands: Tensor) -> tuple[Tensor, ...]:
    """Run the body of a `Scan` for each position of an axis. Return the final loop-carried values
    and the stacked scan outputs.

    a[*s]... -> a[*t]
    """
    keep, steps = (
        op.split_operands(operands).keep,
        operands[op.first_body_operand_index].shape[op.axis],
    )

    def select_unpadded(t: int, new_value: Tensor, old_value: Tensor | None) -> Tensor:
        # At a padded position, the state is unchanged and the output is zeros.
        if keep is None:
            return new_value
        is_valid = keep[:, t].reshape(-1, *[1] * (new_value.ndim - 1))
        return torch.where(
            is_valid, new_value, torch.zeros_like(new_value) if old_value is None else old_value
        )

    carries, scan_outputs = run_scan(
        op,
        operands,
        steps,
        slice_position=lambda x, t: x.select(op.axis, t),
        evaluate_body=lambda values, requested_values: run_graph_nodes(
            op.body, values, context, requested_values
        ),
        select_value=select_unpadded,
        is_all_true=lambda carry: bool(carry.all()),
    )
    types = [value.type for value in op.get_scan_outputs()]
    outputs = zip(scan_outputs, types, strict=True)
    return (*carries, *(_stack_scan_outputs(x, type, op, context, steps) for x, type in outputs))


def _stack_scan_outputs(
    outputs: list[Tensor], type: Type, op: ops.Scan, context: ForwardContext, steps: int
) -> Tensor:
    """Stack scan outputs in position order, with zeros for iterations that were skipped."""
    shape = [context.evaluate_dim(d) for d in type.shape]
    zeros = torch.zeros(shape, dtype=context.get_torch_dtype(type.dtype), device=context.device)
    if not steps:
        return zeros.unsqueeze(op.axis).narrow(op.axis, 0, 0)
    outputs = [*outputs, *[zeros] * (steps - len(outputs))]
    return torch.stack(outputs[::-1] if op.reverse else outputs, dim=op.axis)

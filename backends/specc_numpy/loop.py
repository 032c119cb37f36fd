"""Evaluate `Scan`."""

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph_interpreter import evaluate_dim, run_scan
from specc.ir.types import Type
from specc_numpy.numpy_interpreter import LengthValues, evaluate, evaluate_nodes, get_numpy_dtype


@evaluate
def scan(op: ops.Scan, lengths: LengthValues, *operands: Array) -> tuple[Array, ...]:
    """Run the body of a `Scan` for each position of an axis. Return the final loop-carried values
    and the stacked scan outputs.

    a[*s]... -> a[*t]
    """
    keep, steps = (
        op.split_operands(operands).keep,
        operands[op.first_body_operand_index].shape[op.axis],
    )

    def select_unpadded(t: int, new_value: Array, old_value: Array | None) -> Array:
        # At a padded position, the state is unchanged and the output is zeros.
        if keep is None:
            return new_value
        is_valid = keep[:, t].reshape(-1, *[1] * (new_value.ndim - 1))
        return np.where(
            is_valid, new_value, np.zeros_like(new_value) if old_value is None else old_value
        )

    def stack_outputs(values: list[Array], type: Type) -> Array:
        shape = [evaluate_dim(d, lengths) for d in type.shape]
        stacked: Array = np.zeros((steps, *shape), get_numpy_dtype(type.dtype))
        for n, x in enumerate(values):
            stacked[steps - 1 - n if op.reverse else n] = x
        return np.moveaxis(stacked, 0, op.axis)

    carries, scan_outputs = run_scan(
        op,
        operands,
        steps,
        slice_position=lambda x, t: np.take(x, t, axis=op.axis),
        evaluate_body=lambda values, requested_values: evaluate_nodes(
            op.body, values, lengths, requested_values
        ),
        select_value=select_unpadded,
        is_all_true=lambda carry: bool(carry.all()),
    )
    types = [value.type for value in op.get_scan_outputs()]
    return (*carries, *map(stack_outputs, scan_outputs, types))

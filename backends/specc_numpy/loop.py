"""Evaluate `Scan`."""

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.evaluation import evaluate_length, run_scan
from specc.ir.types import Type
from specc_numpy.numpy_interpreter import LengthValues, evaluate, evaluate_nodes, get_numpy_dtype


@evaluate(ops.Scan)
def scan(op: ops.Scan, env: LengthValues, *operands: Array) -> tuple[Array, ...]:
    """a[*s]... -> a[*t]"""
    keep, steps = op.split_operands(operands).keep, operands[op.first_body_operand].shape[op.axis]

    def select_unpadded(t: int, new: Array, old: Array | None) -> Array:
        # A padded position leaves the state unchanged and outputs zeros.
        if keep is None:
            return new
        kept = keep[:, t].reshape(-1, *[1] * (new.ndim - 1))
        return np.where(kept, new, np.zeros_like(new) if old is None else old)

    def stack(made: list[Array], type: Type) -> Array:
        shape = [evaluate_length(d, env) for d in type.shape]
        out: Array = np.zeros((steps, *shape), get_numpy_dtype(type.dtype))
        for n, x in enumerate(made):
            out[steps - 1 - n if op.reverse else n] = x
        return np.moveaxis(out, 0, op.axis)

    carries, collected = run_scan(
        op,
        operands,
        steps,
        slice_position=lambda x, t: np.take(x, t, axis=op.axis),
        evaluate_body=lambda given, wanted: evaluate_nodes(op.body, given, env, wanted),
        select_value=select_unpadded,
        is_all_true=lambda carry: bool(carry.all()),
    )
    types = [value.type for value in op.get_collected_outputs()]
    return (*carries, *(stack(*each) for each in zip(collected, types, strict=True)))

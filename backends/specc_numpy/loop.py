"""Evaluate `Scan`."""

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.evaluation import evaluate_length
from specc_numpy.numpy_interpreter import LengthValues, evaluate, evaluate_nodes, get_numpy_dtype


@evaluate(ops.Scan)
def scan(op: ops.Scan, env: LengthValues, *operands: Array) -> tuple[Array, ...]:
    """a[*s]... -> a[*t]"""
    given = op.parts(operands)
    keep, rows, captured = given.keep, given.rows, given.captured
    carries = list(given.starts)
    steps = rows[0].shape[op.axis]
    results = list(op.body.outputs.values())
    collected = []
    # Made before the first turn, because there may be none.
    for value in results[op.carries :]:
        shape = [evaluate_length(d, env) for d in value.type.shape]
        collected.append(np.zeros((steps, *shape), get_numpy_dtype(value.type.dtype)))

    inputs = list(op.body.inputs.values())
    for t in reversed(range(steps)) if op.reverse else range(steps):
        if _is_finished(op, carries):
            break
        row = [np.take(x, t, axis=op.axis) for x in rows]
        body = dict(zip(inputs, (*row, *carries, *captured), strict=True))
        made = evaluate_nodes(op.body, body, env, results)
        after = [made[v] for v in results[: op.carries]]
        here = [made[v] for v in results[op.carries :]]
        # A row that does not exist changes no state and gives zeros.
        if keep is not None:
            after = _select_kept(keep[:, t], after, carries)
            here = _select_kept(keep[:, t], here, [np.zeros_like(x) for x in here])
        carries = after
        for rows_of, x in zip(collected, here, strict=True):
            rows_of[t] = x
    return (*carries, *(np.moveaxis(x, 0, op.axis) for x in collected))


def _is_finished(op: ops.Scan, carries: list[Array]) -> bool:
    """Whether no row needs another turn, and nothing is made of those that are done."""
    ends = op.until != -1 and not op.lasting
    return ends and bool(carries[op.until].all())


def _select_kept(kept: Array, yes: list[Array], no: list[Array]) -> list[Array]:
    """Of each pair the rows of the first that are kept, bool[b], else of the second."""
    return [
        np.where(kept.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(yes, no, strict=True)
    ]

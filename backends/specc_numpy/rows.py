"""The meaning of the operations that pick, turn and resample rows."""

import numpy as np

from specc.ir import ops
from specc.text.diagnostic import fail
from specc_numpy.table import Array, Env, evaluate, length


@evaluate(ops.Sort)
def sort(op: ops.Sort, env: Env, x: Array) -> tuple[Array, Array]:
    """n[*a t *b] -> n[*a t *b], i[*a t *b]"""
    order = _order(x, op.axis, op.descending)
    return np.take_along_axis(x, order, axis=op.axis), order


def _order(x: Array, axis: int, descending: bool) -> Array:
    """Row numbers of an axis in the order of their values, the lower of equals first."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # From the last row to the first and back: of equals the lower number is first.
    turned = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    order: Array = x.shape[axis] - 1 - np.flip(turned, axis)
    return order


@evaluate(ops.TopK)
def top_k(op: ops.TopK, env: Env, x: Array) -> tuple[Array, Array]:
    """n[*a t *b] -> n[*a u *b], i[*a u *b]"""
    k, rows = length(op.k, env), x.shape[op.axis]
    if not 0 <= k <= rows:
        fail("E0912", f"the {k} first of an axis of {rows} rows are asked for")
    order = _order(x, op.axis, op.largest)
    places = np.take(order, np.arange(k), axis=op.axis)
    return np.take_along_axis(x, places, axis=op.axis), places


@evaluate(ops.Stride)
def stride(op: ops.Stride, env: Env, x: Array) -> Array:
    """a[*a t *b] -> a[*a u *b]"""
    start, stop, step = (length(d, env) for d in (op.start, op.stop, op.step))
    rows = x.shape[op.axis]
    if not (0 <= start <= stop <= rows and step >= 1):
        fail(
            "E0912",
            f"rows {start} up to {stop} in steps of {step} are taken from an axis of {rows} rows",
        )
    return np.take(x, np.arange(start, stop, step), axis=op.axis)

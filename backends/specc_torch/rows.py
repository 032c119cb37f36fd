"""The operations that pick, turn and resample rows, in PyTorch."""

import torch
from torch import Tensor

from specc.ir import ops
from specc.text.diagnostic import fail
from specc_torch.table import Place, evaluate


@evaluate(ops.Sort)
def sort(op: ops.Sort, place: Place, x: Tensor) -> tuple[Tensor, Tensor]:
    """n[*a t *b] -> n[*a t *b], i[*a t *b]"""
    order = torch.argsort(x, dim=op.axis, descending=op.descending, stable=True)
    return torch.gather(x, op.axis, order), order


@evaluate(ops.TopK)
def top_k(op: ops.TopK, place: Place, x: Tensor) -> tuple[Tensor, Tensor]:
    """n[*a t *b] -> n[*a u *b], i[*a u *b]"""
    k, rows = place.length(op.k), x.shape[op.axis]
    if not 0 <= k <= rows:
        fail("E0912", f"the {k} first of an axis of {rows} rows are asked for")
    # `torch.topk` takes any of equals.
    order = torch.argsort(x, dim=op.axis, descending=op.largest, stable=True)
    places = order.narrow(op.axis, 0, k)
    return torch.gather(x, op.axis, places), places


@evaluate(ops.Stride)
def stride(op: ops.Stride, place: Place, x: Tensor) -> Tensor:
    """a[*a t *b] -> a[*a u *b]"""
    start, stop, step = (place.length(d) for d in (op.start, op.stop, op.step))
    rows = x.shape[op.axis]
    if not (0 <= start <= stop <= rows and step >= 1):
        fail(
            "E0912",
            f"rows {start} up to {stop} in steps of {step} are taken from an axis of {rows} rows",
        )
    leading = (slice(None),) * op.axis
    return x[(*leading, slice(start, stop, step))]

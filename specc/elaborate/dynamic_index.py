"""Indices that are computed when the model runs: `x[:, t]` of `t: int[]`."""

from specc.elaborate import nodes
from specc.elaborate.context import Context, Env
from specc.elaborate.values import Tensor, describe
from specc.ir import ops
from specc.ir.dim import Dim
from specc.text.diagnostic import fail
from specc.text.source import Span


def gather_position(
    context: Context,
    x: Tensor,
    axis: int,
    at: Tensor,
    *,
    env: Env,
    index: Span | None,
    span: Span | None,
) -> Tensor:
    """Return position `at` of an axis, which is removed. E0208 unless `at` is one whole
    number. As of `gather`, a position that does not exist stops the model.
    """
    if at.shape or at.type.dtype not in ("i64", "i32"):
        helps = ["`gather(x, ids, axis=…)` reads rows by computed numbers"]
        title = f"an index is one whole number, not {describe(at)}"
        fail("E0208", title, index, helps=helps)
    ids = at
    # for each of the leading axes the same position: int[*leading, 1]
    for lead, length in enumerate((*x.shape[:axis], Dim.of(1))):
        for op in (ops.Insert(lead), ops.Expand(lead, length)):
            ids = nodes.one(context, op, ids, span=span, scope=env.scope)
    rows = nodes.one(context, ops.Gather(axis), x, ids, span=span, scope=env.scope)
    return nodes.one(context, ops.Squeeze(axis), rows, span=span, scope=env.scope)

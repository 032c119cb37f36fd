"""Indices that are computed at run time: `x[:, t]` with `t: int[]`."""

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Span
from specc.frontend import node_builder
from specc.frontend.context import Context, Env
from specc.frontend.spec_values import Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim


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
    """Select position `at` along an axis and remove the axis. Raise E0208 unless `at` is an
    integer scalar. The model stops for an index that is out of range, as for `gather`.
    """
    if at.shape or at.type.dtype not in ("i64", "i32"):
        helps = ["`gather(x, ids, axis=…)` takes several indices"]
        title = f"an index must be an integer scalar, not {describe_value(at)}"
        raise_error("E0208", title, index, helps=helps)
    ids = at
    # the same position for each index of the leading axes: int[*leading, 1]
    for lead, length in enumerate((*x.shape[:axis], Dim.of(1))):
        for op in (ops.Insert(lead), ops.Expand(lead, length)):
            ids = node_builder.add_node_with_one_result(
                context, op, ids, span=span, scope=env.scope
            )
    rows = node_builder.add_node_with_one_result(
        context, ops.Gather(axis), x, ids, span=span, scope=env.scope
    )
    return node_builder.add_node_with_one_result(
        context, ops.Squeeze(axis), rows, span=span, scope=env.scope
    )

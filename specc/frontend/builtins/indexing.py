"""Index expressions on tensors, such as `x[:, 0]`, and built-in functions that select positions,
such as `sort` and `gather`.
"""

from specc.diagnostics.diagnostic import raise_error
from specc.frontend.builtins.registry import LAST_AXIS, SECOND_AXIS, CallContext, register_builtin
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.spec_values import ResultTuple, Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim
from specc.syntax import ast


def index_tensor(base: Tensor, expr: ast.Index, env: LexicalScope) -> Tensor:
    """Index a tensor, as in `x[:, 0]` or `x[..., a:b]`, where `...` stands for any number of
    axes.
    """
    value, axis = base, 0
    nodes = NodeBuilder(env.context, expr.span, env.scope)
    for item in _expand_ellipsis(base, expr):
        if isinstance(item, ast.Slice):
            value = _slice_axis(nodes, value, axis, item, env)
            axis += 1  # a slice keeps the axis to which it applies, and an index removes the axis
        elif _is_new_axis(item):
            value = nodes.add_op(ops.Insert(axis), value)
            axis += 1
        else:
            value = _select_position(nodes, value, axis, item, env)
    return value


def _expand_ellipsis(base: Tensor, expr: ast.Index) -> list[ast.Expr | ast.Slice]:
    """Replace `...` in indices with full slices. Raise E0208 for too many indices or two `...`."""
    ellipses = sum(isinstance(item, ast.EllipsisDims) for item in expr.items)
    if ellipses > 1:
        raise_error("E0208", "`...` may occur once in an index", expr.span)
    new_axes = sum(_is_new_axis(item) for item in expr.items)
    count, rank = len(expr.items) - ellipses - new_axes, len(base.shape)
    if count > rank:
        title = f"too many indices: {count} for {describe_value(base)} with {rank} axes"
        raise_error("E0208", title, expr.span)
    full_slices: list[ast.Expr | ast.Slice] = [ast.Slice()] * (rank - count)
    item_lists = ([i] if not isinstance(i, ast.EllipsisDims) else full_slices for i in expr.items)
    return [item for items in item_lists for item in items]


def _is_new_axis(item: ast.Expr | ast.Slice | ast.EllipsisDims) -> bool:
    """Return True if an index is the literal `none`, which inserts an axis."""
    return isinstance(item, ast.Name) and item.path == "none"


def _select_position(
    nodes: NodeBuilder, value: Tensor, axis: int, item: ast.Expr, env: LexicalScope
) -> Tensor:
    index = env.evaluate_value(item)
    if isinstance(index, Tensor):
        return _gather_position(nodes, value, axis, index, is_definition=bool(env.index_variables))
    if not isinstance(index, Dim):
        raise_error("E0208", f"an index must be an integer, got {describe_value(index)}", item.span)
    length = value.shape[axis]
    if index.number is not None and index.number < 0:
        # use `Last`, which does not depend on the axis size, because the axis grows during
        # generation
        if index.number == -1:
            return nodes.add_op(ops.Last(axis), value)
        index = length + index
    return nodes.add_op(ops.Index(axis, index), value)


INDEX_HELPS = {
    False: "`gather(x, ids, axis=…)` selects several positions",
    True: "a mask, score or bias indexes tensors by `b`, `h`, `i` and `j` alone; instead of "
    "`keep[j - 1]`, shift the tensor that you pass, as in `pad(keep, before=1)`",
}
"""The help for a non-scalar index, keyed by whether it is in a mask, score or bias definition."""


def _gather_position(
    nodes: NodeBuilder, x: Tensor, axis: int, index: Tensor, is_definition: bool
) -> Tensor:
    """Select position `index` along an axis and remove the axis. Raise E0208 unless `index` is an
    integer scalar. As in `gather`, an index out of range is a run-time error.

    `is_definition` is True for an index in a mask, score or bias.
    """
    if index.shape or index.type.dtype not in ("i64", "i32"):
        helps = [INDEX_HELPS[is_definition]]
        title = f"an index must be an integer scalar, got {describe_value(index)}"
        raise_error("E0208", title, index.source_span, helps=helps)
    ids = index
    # an index int[*leading, 1] selects the same position for each index of the leading axes
    for leading_axis, length in enumerate((*x.shape[:axis], Dim.from_value(1))):
        for op in (ops.Insert(leading_axis), ops.Expand(leading_axis, length)):
            ids = nodes.add_op(op, ids)
    selected = nodes.add_op(ops.Gather(axis), x, ids)
    return nodes.add_op(ops.Squeeze(axis), selected)


def _evaluate_slice_end(end: ast.Expr, length: Dim, env: LexicalScope) -> Dim:
    """Evaluate the start or stop of a slice. A negative bound counts from the end of the axis."""
    bound = env.evaluate_value(end)
    if not isinstance(bound, Dim):
        title = f"a slice must have integer bounds, not {describe_value(bound)}"
        raise_error("E0208", title, end.span)
    # the sign of a symbol is unknown, so a symbolic bound that is written with a minus sign counts
    # from the end
    has_minus_sign = isinstance(end, ast.UnaryOp) and (bound.number or 0) == 0
    is_negative = bound.number is not None and bound.number < 0
    return length + bound if has_minus_sign or is_negative else bound


def _slice_axis(
    nodes: NodeBuilder, value: Tensor, axis: int, item: ast.Slice, env: LexicalScope
) -> Tensor:
    step = _evaluate_slice_step(item, env)
    length = value.shape[axis]
    # a full slice, as in `x[:, 0]`, needs no node
    if item.start is None and item.stop is None and step == 1:
        return value
    start, stop = (
        default if end is None else _evaluate_slice_end(end, length, env)
        for end, default in ((item.start, Dim.from_value(0)), (item.stop, length))
    )
    op = ops.Slice(axis, start, stop) if step == 1 else ops.StridedSlice(axis, start, stop, step)
    return nodes.add_op(op, value)


def _evaluate_slice_step(item: ast.Slice, env: LexicalScope) -> Dim:
    """Evaluate the step `s` of a slice `a:b:s`. Raise E0327 for a step that is not positive."""
    if item.step is None:
        return Dim.from_value(1)
    step = env.evaluate_value(item.step)
    if not isinstance(step, Dim):
        title = f"the step of a slice must be an integer, got {describe_value(step)}"
        raise_error("E0208", title, item.step.span)
    if step.number is not None and step.number < 1:
        helps = ["`flip(x, axis=…)` reverses an axis: `flip(x, axis=1)[:, ::2]`"]
        title = f"the step of a slice must be at least 1, got {step}"
        raise_error("E0327", title, item.step.span, helps=helps)
    return step


@register_builtin()
def sort(
    ctx: CallContext, x: Tensor, *, axis: Dim = LAST_AXIS, descending: bool = False
) -> ResultTuple:
    """Sort along an axis in ascending or `descending` order. Returns (values, indices). The sort is
    stable.
    """
    return ResultTuple(ctx.add_node(ops.Sort(ctx.resolve_axis(x, axis), descending), x))


@register_builtin()
def argsort(ctx: CallContext, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Return the indices of a stable sort of `x` along an axis in ascending order."""
    return ctx.add_node(ops.Sort(ctx.resolve_axis(x, axis)), x)[1]


@register_builtin()
def topk(
    ctx: CallContext, x: Tensor, k: Dim, *, axis: Dim = LAST_AXIS, largest: bool = True
) -> ResultTuple:
    """Return the `k` largest values along an axis in descending order, and their indices: `values,
    ids = topk(x, 3)`. Equal values are ordered by index.

    With `largest=false`, return the `k` smallest values in ascending order. `gather(y, ids)`
    selects the same positions of another tensor.
    """
    axis_index = ctx.resolve_axis(x, axis)
    ctx.check_range(k, "k", 1)
    remaining = x.shape[axis_index] - k
    if remaining.number is not None and remaining.number < 0:
        ctx.raise_error(
            "E0326",
            f"`topk` needs {k} values, but the axis has only {x.shape[axis_index]}",
            "k",
            describe_value(x),
            helps=[f"use at most {x.shape[axis_index]}", "or choose another `axis`"],
        )
    return ResultTuple(ctx.add_node(ops.TopK(axis_index, k, largest), x))


@register_builtin()
def last(ctx: CallContext, x: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Return the last position of an axis."""
    return ctx.add_op(ops.Last(ctx.resolve_axis(x, axis)), x)


@register_builtin()
def gather(ctx: CallContext, x: Tensor, ids: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Select positions along an axis by indices, separately for each index of the leading axes:
    `x[b, ids[b, n]]`. A leading axis of length 1 in `ids` broadcasts.

    If `ids` lacks axis `axis`, like the result of `argmax`, one position is selected and the axis
    is removed. `ids` must not have axes after `axis`. To look up ids of any shape in a table, use
    `embedding`.
    """
    axis_index = ctx.resolve_axis(x, axis)
    for leading_axis, (ids_length, length) in enumerate(
        zip(ids.shape[:axis_index], x.shape, strict=False)
    ):
        if ids_length.number == 1 and length.number != 1:
            ids = ctx.add_op(ops.Expand(leading_axis, length), ids)
    # if `ids` lacks the axis, as the result of `argmax` does, select one position per leading index
    lacks_axis = len(ids.shape) == axis_index
    if lacks_axis:
        ids = ctx.insert_axis(ids, axis_index)
    selected = ctx.add_op(ops.Gather(axis_index), x, ids)
    return ctx.squeeze_axis(selected, axis_index) if lacks_axis else selected


@register_builtin()
def one_hot(ctx: CallContext, x: Tensor, *, size: Dim) -> Tensor:
    """Encode indices as one-hot vectors of length `size` along a new last axis."""
    return ctx.add_op(ops.OneHot(size), x)

"""Built-in functions that select positions: sort, top-k, gather, last, one-hot."""

from specc.frontend.builtins.registry import LAST_AXIS, SECOND_AXIS, CallSite, register_builtin
from specc.frontend.spec_values import Results, Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim


@register_builtin()
def sort(site: CallSite, x: Tensor, *, axis: Dim = LAST_AXIS, descending: bool = False) -> Results:
    """Sort along an axis in ascending or `descending` order. Returns (values, indices). The sort is
    stable.
    """
    return Results(site.add_node(ops.Sort(site.resolve_axis(x, axis), descending), x))


@register_builtin()
def argsort(site: CallSite, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Return the indices of a stable sort of `x` along an axis in ascending order."""
    return site.add_node(ops.Sort(site.resolve_axis(x, axis)), x)[1]


@register_builtin()
def topk(
    site: CallSite, x: Tensor, k: Dim, *, axis: Dim = LAST_AXIS, largest: bool = True
) -> Results:
    """Return the `k` largest values along an axis in descending order, and their indices: `values,
    ids = topk(x, 3)`. Equal values are ordered by index.

    With `largest=false`, return the `k` smallest values in ascending order. `gather(y, ids)`
    selects the same positions of another tensor.
    """
    axis_index = site.resolve_axis(x, axis)
    site.check_range(k, "k", 1)
    remaining = x.shape[axis_index] - k
    if remaining.number is not None and remaining.number < 0:
        site.raise_error(
            "E0326",
            f"`topk` needs {k} values, but the axis has only {x.shape[axis_index]}",
            "k",
            describe_value(x),
            helps=[f"use at most {x.shape[axis_index]}", "or choose another `axis`"],
        )
    return Results(site.add_node(ops.TopK(axis_index, k, largest), x))


@register_builtin()
def last(site: CallSite, x: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Return the last position of an axis."""
    return site.add_op(ops.Last(site.resolve_axis(x, axis)), x)


@register_builtin()
def gather(site: CallSite, x: Tensor, ids: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Select positions along an axis by indices, separately for each index of the leading axes:
    `x[b, ids[b, n]]`. A leading axis of length 1 in `ids` broadcasts.

    If `ids` lacks axis `axis`, like the result of `argmax`, one position is selected and the axis
    is removed. `ids` has no axes after `axis`; for a table and ids of any shape, use `embedding`.
    """
    axis_index = site.resolve_axis(x, axis)
    for leading_axis, (ids_length, length) in enumerate(
        zip(ids.shape[:axis_index], x.shape, strict=False)
    ):
        if ids_length.number == 1 and length.number != 1:
            ids = site.add_op(ops.Expand(leading_axis, length), ids)
    # if `ids` lacks the axis, like a result of `argmax`, one position per leading index is selected
    lacks_axis = len(ids.shape) == axis_index
    if lacks_axis:
        ids = site.insert_axis(ids, axis_index)
    selected = site.add_op(ops.Gather(axis_index), x, ids)
    return site.squeeze_axis(selected, axis_index) if lacks_axis else selected


@register_builtin()
def one_hot(site: CallSite, x: Tensor, *, size: Dim) -> Tensor:
    """Encode indices as one-hot vectors of length `size` along a new last axis."""
    return site.add_op(ops.OneHot(size), x)

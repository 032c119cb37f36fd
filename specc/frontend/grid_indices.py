"""Grid indices `h`, `i`, `j` of masks and scores: position ids, and tensors read at them; and
indices that are computed at run time, `x[:, t]`.
"""

from collections.abc import Mapping, Sequence

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Span
from specc.frontend.context import Context, Env
from specc.frontend.node_builder import add_op
from specc.frontend.spec_values import Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim
from specc.syntax import ast

GRID_RANK = 4
"""The axes of a mask grid: batch, head, query, key."""

GRID_INDEX_ORDER = ("h", "i", "j")
"""The index names of the grid's axes after the batch, in order."""

BATCH_INDEX_NAME = "b"
"""The index name of the batch axis, for values per batch element: `size[b]`."""


def make_grid_indices(
    context: Context, queries: tuple[Tensor, int | None], keys: tuple[Tensor, int]
) -> Mapping[str, Tensor]:
    """Return `i` as [q, 1] and `j` as [k]: the positions of queries and keys along the given
    axes. A query without a length axis has no `i`.
    """
    key, along = keys
    query, axis = queries
    pair = (query.shape[axis] if axis is not None else None, key.shape[along])
    rows = {"j": _make_position_ids(context, key, along, ("j", *pair))}
    if axis is not None:
        i = _make_position_ids(context, query, axis, ("i", *pair))
        rows["i"] = add_op(context, ops.Insert(1), i)
    return rows


def _make_position_ids(
    context: Context, x: Tensor, axis: int, role: tuple[str, Dim | None, Dim]
) -> Tensor:
    """Return the position indices of an axis. They are shared between layers with the same
    query and key lengths, so that all layers share one mask.
    """
    length = x.shape[axis]
    if length.number is not None or length in context.facts.sorted_lengths:
        return add_op(context, ops.Extent(axis), x)
    if role not in context.facts.position_ids:
        context.facts.position_ids[role] = add_op(context, ops.Extent(axis), x)
    return context.facts.position_ids[role]


def is_grid_read(expr: ast.Index, env: Env) -> bool:
    """Return whether an index in a definition reads a grid: at `h`, `i` or `j`, or at `b`
    if no value has this name.
    """
    if not env.grid_indices:
        return False
    named = {item.path for item in expr.items if isinstance(item, ast.Name)}
    if named & set(GRID_INDEX_ORDER):
        return True
    return BATCH_INDEX_NAME in named and BATCH_INDEX_NAME not in {*env.names, *env.config}


def read_at_grid_indices(context: Context, base: Tensor, expr: ast.Index, env: Env) -> Tensor:
    """Read a tensor at grid indices: `keep[j]` of bool[b, k] is bool[b, 1, 1, k], or
    bool[b, 1, k] for scores without heads; `size[b]` of int[b] is int[b, 1, 1, 1]. A
    tensor without a batch axis is the same for every batch element.
    """
    read = [item.path if isinstance(item, ast.Name) else "" for item in expr.items]
    sampled = read[0] == BATCH_INDEX_NAME
    read = read[1:] if sampled else read
    _check_grid_read(base, expr, env, read)
    lead = len(base.shape) - len(read)
    if lead not in (0, 1) or sampled > lead:
        title = f"{describe_value(base)} does not have the axes that are indexed here"
        helps = [
            "one axis per index, optionally after a batch axis: [batch] is read at "
            "`[b]`, [batch, keys] at `[j]`, [batch, queries, keys] at `[i, j]`, "
            "[heads, queries, keys] at `[h, i, j]`"
        ]
        raise_error("E0603", title, expr.span, helps=helps)
    value, axis = base, lead
    for name in GRID_INDEX_ORDER if env.has_heads_axis else GRID_INDEX_ORDER[1:]:
        if name in read:
            axis += 1
        # without a batch axis the grid starts at the first axis that is read
        elif axis > 0:
            value = add_op(context, ops.Insert(axis), value, span=expr.span)
            axis += 1
    return value


def _check_grid_read(base: Tensor, expr: ast.Index, env: Env, read: Sequence[str]) -> None:
    """Raise E0603 for indices out of order or repeated, and for heads where there are none."""
    if (
        any(name not in GRID_INDEX_ORDER for name in read)
        or sorted(read, key=GRID_INDEX_ORDER.index) != read
    ):
        title = "grid indices are b (batch), h (head), i (query) and j (key)"
        helps = ["write them in the order b, h, i, j, each at most once"]
        raise_error("E0603", title, expr.span, helps=helps)
    if "h" in read and not env.has_heads_axis:
        title = f"{describe_value(base)} is read per head, but there is no heads axis here"
        helps = ["`split_heads(x, heads)` gives queries and keys a heads axis"]
        raise_error("E0603", title, expr.span, helps=helps)


def convert_to_grid(
    context: Context, value: Tensor, span: Span | None, score_rank: int = GRID_RANK
) -> Tensor:
    """Return a grid with all four axes. A tensor with as many axes as the scores, `score_rank`,
    has the batch axis first; missing axes are inserted after it.
    """
    missing = GRID_RANK - score_rank if len(value.shape) == score_rank else 0
    for _ in range(missing):
        value = add_op(context, ops.Insert(1), value, span=span)
    if len(value.shape) > 4:
        raise_error(
            "E0603",
            f"a mask or bias has at most four axes (batch, head, query, key), not "
            f"{describe_value(value)}",
            span,
        )
    while len(value.shape) < 4:
        value = add_op(context, ops.Insert(0), value, span=span)
    return value


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
            ids = add_op(context, op, ids, span=span, scope=env.scope)
    rows = add_op(context, ops.Gather(axis), x, ids, span=span, scope=env.scope)
    return add_op(context, ops.Squeeze(axis), rows, span=span, scope=env.scope)

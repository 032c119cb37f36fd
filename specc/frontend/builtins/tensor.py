"""Built-in functions that reshape or move elements: split, transpose, concat, pad etc."""

from collections.abc import Iterator
from typing import Literal

from specc.frontend.builtins.registry import (
    LAST_AXIS,
    ONE,
    SECOND_AXIS,
    ZERO,
    CallContext,
    register_builtin,
)
from specc.frontend.node_builder import check_float32_range
from specc.frontend.parameter_kinds import Anything
from specc.frontend.runtime_scalars import cast_to_float_attribute, convert_to_op_attribute
from specc.frontend.spec_values import (
    Number,
    ResultTuple,
    RuntimeScalar,
    SpecValue,
    Tensor,
    describe_value,
)
from specc.ir import ops
from specc.ir.dim import Dim, DimError, divide_dims_exactly, multiply_dims, sum_dims
from specc.ir.op import Op
from specc.ir.signature import (
    AxisGroup,
    RearrangePattern,
    RearrangePatternError,
    parse_rearrange_pattern,
)


def build_rearrange_ops(
    ctx: CallContext, x: Tensor, pattern: str, sizes: tuple[Dim, ...]
) -> list[Op]:
    """Return the ops that apply a `rearrange` pattern. Raise E0306 for an invalid pattern."""
    parsed = _parse_rearrange(ctx, x, pattern)
    # remove axes from last to first, because removing an axis shifts the axes after it
    empty = [n for n, axis in enumerate(parsed.left) if not axis]
    steps: list[Op] = [ops.Squeeze(n) for n in reversed(empty)]
    steps += _make_splits(ctx, x, parsed, sizes)
    order = parsed.find_permutation()
    if order != tuple(range(len(order))):
        steps.append(ops.Transpose(order))
    # insert and merge axes from first to last, so that `n` is the index of an axis in the result
    for n, axis in enumerate(parsed.right):
        if not axis:
            steps.append(ops.Insert(n))
        elif len(axis) > 1:
            steps.append(ops.Merge(n, len(axis)))
    return steps


def _parse_rearrange(ctx: CallContext, x: Tensor, text: str) -> RearrangePattern:
    """Parse the pattern of a `rearrange` call. Raise E0306 if the pattern is invalid for `x`."""
    if text.count("->") != 1:
        ctx.raise_error(
            "E0306", "the pattern must contain one `->`, as in `b n (h d) -> b h n d`", "pattern"
        )
    try:
        pattern = parse_rearrange_pattern(text)
    except RearrangePatternError as error:
        ctx.raise_error("E0306", str(error), "pattern")
    if unbalanced := pattern.find_unmatched_axis_names():
        title = f"each name must occur once on each side of the pattern: {', '.join(unbalanced)}"
        ctx.raise_error("E0306", title, "pattern")
    if len(pattern.left) != len(x.shape):
        title = (
            f"the pattern has {len(pattern.left)} axes on its left side, but the tensor has "
            f"{len(x.shape)}"
        )
        ctx.raise_error("E0306", title, "pattern", describe_value(x))
    return pattern


def _make_splits(
    ctx: CallContext, x: Tensor, pattern: RearrangePattern, sizes: tuple[Dim, ...]
) -> Iterator[Op]:
    """Yield the split of each axis to which the pattern gives several names. `sizes` contains the
    sizes of these names from left to right. The last size of each axis is inferred.
    """
    remaining_sizes = iter(sizes)
    lengths = [
        (axis, _solve_axis_lengths(ctx, axis, length, remaining_sizes))
        for axis, length in zip(pattern.left, x.shape, strict=True)
        if axis
    ]
    if next(remaining_sizes, None) is not None:
        ctx.raise_error("E0306", "`sizes` contains more lengths than the pattern needs", "sizes")
    position = 0
    for axis, parts in lengths:
        if len(axis) > 1:
            yield ops.Split(position, parts)
        position += len(axis)


def _solve_axis_lengths(
    ctx: CallContext, axis: AxisGroup, axis_length: Dim, remaining_sizes: Iterator[Dim]
) -> tuple[Dim, ...]:
    """Return the axis sizes of the names in one group of a pattern. The last size is inferred."""
    if len(axis) == 1:
        return (axis_length,)
    lengths = []
    for _ in axis[:-1]:
        size = next(remaining_sizes, None)
        if size is None:
            title = f"`sizes` must contain the lengths of ({' '.join(axis)}), except the last"
            ctx.raise_error("E0306", title, "pattern")
        lengths.append(size)
    try:
        return (*lengths, divide_dims_exactly(axis_length, multiply_dims(lengths)))
    except DimError as error:
        ctx.raise_error("E0310", str(error), "sizes")


@register_builtin()
def split(ctx: CallContext, x: Tensor, *, into: tuple[Dim, ...], axis: Dim = LAST_AXIS) -> Tensor:
    """Split an axis into several axes, in row-major order: `split(x, into=[heads, head_dim])`."""
    return ctx.add_op(ops.Split(ctx.resolve_axis(x, axis), into), x)


@register_builtin()
def merge(
    ctx: CallContext, x: Tensor, *, axis: Dim = Dim.from_value(-2), count: Dim = Dim.from_value(2)
) -> Tensor:
    """Merge `count` consecutive axes, starting at `axis`, in row-major order."""
    first_axis = ctx.resolve_axis(x, axis)
    if count.number is None or not 1 <= count.number <= len(x.shape) - first_axis:
        ctx.raise_error(
            "E0208",
            f"cannot merge {count} axes starting at axis {first_axis}: the tensor has "
            f"{len(x.shape)} axes",
            "count",
            describe_value(x),
        )
    return ctx.add_op(ops.Merge(first_axis, count.number), x)


@register_builtin()
def transpose(ctx: CallContext, x: Tensor, *, order: tuple[Dim, ...] = ()) -> Tensor:
    """Permute the axes into the order `order`. By default, swap the last two axes."""
    rank = len(x.shape)
    if not order:
        if rank < 2:
            ctx.raise_error(
                "E0208", "a tensor with one axis cannot be transposed", "x", describe_value(x)
            )
        numbers = [*range(rank - 2), rank - 1, rank - 2]
    else:
        numbers = [ctx.resolve_axis(x, o) for o in order]
    # `numbers` are non-negative axis indices
    if sorted(numbers) != list(range(rank)):
        ctx.raise_error(
            "E0208", f"`order` must contain each axis from 0 to {rank - 1} once", "order"
        )
    return ctx.add_op(ops.Transpose(tuple(numbers)), x)


@register_builtin()
def rearrange(ctx: CallContext, x: Tensor, pattern: str, *, sizes: tuple[Dim, ...] = ()) -> Tensor:
    """Split, permute and merge axes with an einops pattern: `rearrange(x, "b n (h d) -> b h n d",
    sizes=[heads])`.

    `sizes` contains the lengths of the axes in parentheses on the left side, in order. The last
    axis in each pair of parentheses is omitted, because its length is inferred. A `1` on the left
    side removes an axis of length 1, and a `1` on the right side adds an axis.
    """
    for op in build_rearrange_ops(ctx, x, pattern, sizes):
        x = ctx.add_op(op, x)
    return x


@register_builtin()
def insert(ctx: CallContext, x: Tensor, *, axis: Dim) -> Tensor:
    """Add an axis of length 1 before axis `axis`, like PyTorch's `unsqueeze`."""
    return ctx.insert_axis(x, ctx.resolve_axis(x, axis, extra_axes=1))


@register_builtin()
def squeeze(ctx: CallContext, x: Tensor, *, axis: Dim) -> Tensor:
    """Remove axis `axis`, which must have length 1."""
    return ctx.squeeze_axis(x, ctx.resolve_axis(x, axis))


@register_builtin()
def expand(ctx: CallContext, x: Tensor, *, axis: Dim, length: Dim) -> Tensor:
    """Broadcast axis `axis` of length 1 to length `length`."""
    return ctx.add_op(ops.Expand(ctx.resolve_axis(x, axis), length), x)


@register_builtin()
def concat(ctx: CallContext, items: tuple[Anything, ...], *, axis: Dim = LAST_AXIS) -> Tensor:
    """Concatenate tensors along an axis: `concat([a, b])`."""
    tensors = _require_tensors(ctx, items, "concat")
    return ctx.add_op(ops.Concat(ctx.resolve_axis(tensors[0], axis)), *tensors)


@register_builtin()
def stack(ctx: CallContext, items: tuple[Anything, ...], *, axis: Dim = ZERO) -> Tensor:
    """Stack tensors of the same shape along a new axis."""
    tensors = _require_tensors(ctx, items, "stack")
    axis_index = ctx.resolve_axis(tensors[0], axis, extra_axes=1)
    return ctx.add_op(ops.Concat(axis_index), *(ctx.insert_axis(t, axis_index) for t in tensors))


def _require_tensors(
    ctx: CallContext, items: tuple[SpecValue, ...], function_name: str
) -> list[Tensor]:
    """Return the items of a list. Raise E0203 if the list is empty or an item is not a tensor."""
    tensors = [item for item in items if isinstance(item, Tensor)]
    if not tensors or len(tensors) < len(items):
        # if the list is empty, the message describes the empty list
        invalid = next((item for item in items if not isinstance(item, Tensor)), ())
        title = (
            f"`{function_name}` expects a list of tensors, got {describe_value(invalid)} in "
            "the list"
        )
        ctx.raise_error("E0203", title, "items")
    return tensors


@register_builtin()
def parts(
    ctx: CallContext, x: Tensor, *, into: tuple[Dim, ...], axis: Dim = LAST_AXIS
) -> ResultTuple:
    """Split an axis into chunks of the lengths `into`: `q, k, v = parts(x, into=[d, d, d])`."""
    axis_index, start, pieces = ctx.resolve_axis(x, axis), ZERO, []
    # compare the sizes symbolically: `[d, d, d]` fits an axis of size `3 * d` for every `d`
    if sum_dims(into) != x.shape[axis_index]:
        lengths = " + ".join(map(str, into))
        title = f"the lengths {lengths} do not sum to the axis length {x.shape[axis_index]}"
        ctx.raise_error("E0302", title, "into", describe_value(x))
    for length in into:
        pieces.append(ctx.add_op(ops.Slice(axis_index, start, start + length), x))
        start = start + length
    return ResultTuple(tuple(pieces))


@register_builtin()
def chunk(ctx: CallContext, x: Tensor, count: Dim, *, axis: Dim = LAST_AXIS) -> ResultTuple:
    """Split an axis into `count` equal chunks: `q, k, v = chunk(x, 3)`."""
    axis_index = ctx.resolve_axis(x, axis)
    count_value = ctx.require_positive_count(count, "count")
    try:
        piece = divide_dims_exactly(x.shape[axis_index], count_value)
    except DimError as error:
        ctx.raise_error("E0310", str(error), "count", describe_value(x))
    return parts(ctx, x, into=(piece,) * count_value, axis=axis)


@register_builtin()
def flip(ctx: CallContext, x: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Reverse the order of the positions along an axis."""
    return ctx.add_op(ops.Flip(ctx.resolve_axis(x, axis)), x)


@register_builtin()
def delay(
    ctx: CallContext, x: Tensor, *, by: Dim = ONE, first: Anything = ZERO, axis: Dim = SECOND_AXIS
) -> Tensor:
    """Shift positions to the right: position t of the result is position `t - by` of `x`, and the
    first `by` positions have the value `first`.
    """
    if by.number is None:
        ctx.raise_error("E0203", "`by` must be known at compile time", "by")
    value = get_fill_value(ctx, x, first, "first")
    return ctx.add_op(ops.Delay(ctx.resolve_axis(x, axis), by.number, value), x)


def get_fill_value(ctx: CallContext, x: Tensor, fill: SpecValue, option: str) -> float:
    """Return the fill value for positions that an op adds to `x`. `fill` is the value of the option
    `option`. Raise E0203, E0206 or E0315 if `fill` does not fit the element type.
    """
    description = f"`{option}` of `{ctx.expr.function.path}`"
    nodes = ctx.make_node_builder(option)
    value: float | RuntimeScalar
    if isinstance(fill, bool):
        value = fill
    elif isinstance(fill, Number):
        value = convert_to_op_attribute(nodes, fill, description)
    else:
        title = f"{description}: expected a number, got {describe_value(fill)}"
        ctx.raise_error("E0203", title, option)
    if x.type.dtype == "i64" and not isinstance(value, RuntimeScalar):
        if value != int(value):
            title = f"{value:g} is not an integer, but the tensor has an integer type"
            ctx.raise_error("E0206", title, option)
        value = int(value)
    elif not isinstance(value, RuntimeScalar | bool):
        check_float32_range(value, nodes.span)
    return cast_to_float_attribute(value)


@register_builtin()
def prepend(ctx: CallContext, x: Tensor, p: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Concatenate `p` and `x` along an axis, e.g. to add a [CLS] token. `p` is broadcast over the
    batch.
    """
    return _concat_broadcast(ctx, x, p, axis, is_prefix=True)


@register_builtin()
def append(ctx: CallContext, x: Tensor, p: Tensor, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Concatenate `x` and `p` along an axis. `p` is broadcast over the batch."""
    return _concat_broadcast(ctx, x, p, axis, is_prefix=False)


def _concat_broadcast(
    ctx: CallContext, x: Tensor, p: Tensor, axis: Dim, *, is_prefix: bool
) -> Tensor:
    """Concatenate `p` before (`is_prefix`) or after `x`, and broadcast all other axes of `p`."""
    axis_index = ctx.resolve_axis(x, axis)
    if len(p.shape) == len(x.shape):
        for n, (length, target) in enumerate(zip(p.shape, x.shape, strict=True)):
            # broadcast all axes except the concatenated axis
            if n != axis_index and length == 1 and target != 1:
                p = ctx.add_op(ops.Expand(n, target), p)
    return ctx.add_op(ops.Concat(axis_index), *((p, x) if is_prefix else (x, p)))


@register_builtin(name="range")
def range_(ctx: CallContext, n: Dim) -> Tensor:
    """Return the integers 0, 1, …, `n - 1`. For a dynamic axis, use `positions(x)`."""
    return ctx.add_op(ops.Range(n), *())


@register_builtin()
def zeros(ctx: CallContext, *, shape: tuple[Dim, ...]) -> Tensor:
    """Return a float tensor of zeros with the shape `shape`."""
    return make_constant_tensor(ctx, 0.0, shape)


@register_builtin()
def ones(ctx: CallContext, *, shape: tuple[Dim, ...]) -> Tensor:
    """Return a float tensor of ones with the shape `shape`."""
    return make_constant_tensor(ctx, 1.0, shape)


def make_constant_tensor(ctx: CallContext, value: float, shape: tuple[Dim, ...]) -> Tensor:
    """Return a tensor with the shape `shape` in which every element is `value`."""
    x = ctx.add_constant(value, "f32")
    for axis, length in enumerate(shape):
        x = ctx.add_op(ops.Expand(axis, length), ctx.insert_axis(x, axis))
    return x


@register_builtin()
def length(ctx: CallContext, x: Tensor, *, axis: Dim) -> Dim:
    """Return the size of an axis, which is an integer or a symbolic dimension."""
    return x.shape[ctx.resolve_axis(x, axis)]


@register_builtin()
def size(ctx: CallContext, x: Tensor) -> Dim:
    """Return the number of elements of a tensor."""
    return multiply_dims(x.shape)


@register_builtin()
def roll(ctx: CallContext, x: Tensor, by: Dim, *, axis: Dim = SECOND_AXIS) -> Tensor:
    """Shift an axis circularly by `by` positions. Position t of the result is position `t - by` of
    `x`. Positions that are shifted past one end are inserted at the other end.
    """
    return ctx.add_op(ops.Roll(ctx.resolve_axis(x, axis), by), x)


@register_builtin()
def pad(
    ctx: CallContext,
    x: Tensor,
    *,
    before: Dim = ZERO,
    after: Dim = ZERO,
    axis: Dim = SECOND_AXIS,
    mode: Literal["constant", "reflect", "edge"] = "constant",
    value: Anything = ZERO,
) -> Tensor:
    """Pad an axis with `before` positions at the start and `after` positions at the end. By
    default, the new positions are filled with `value`. `mode=edge` repeats the border position, and
    `mode=reflect` mirrors positions at the border without repeating the border position.
    """
    axis_index = ctx.resolve_axis(x, axis)
    number = get_fill_value(ctx, x, value, "value")
    for option, count in (("before", before), ("after", after)):
        ctx.check_range(count, option, 0)
        limit = x.shape[axis_index] - 1
        excess = count - limit
        if mode == "reflect" and excess.number is not None and excess.number > 0:
            ctx.raise_error(
                "E0326",
                f"`mode=reflect` can pad at most {limit} positions here, got {count}",
                option,
                describe_value(x),
                helps=["`mode=edge` can pad any number of positions"],
            )
    return ctx.add_op(ops.Pad(axis_index, before, after, mode, number), x)

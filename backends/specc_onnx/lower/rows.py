"""Lower ops that select, reorder or resample positions."""

from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly, mod_dims, multiply_dims
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import (
    emit_full,
    emit_reduce,
    emit_reshape,
    emit_slice,
    emit_unsqueeze,
)


@lower(ops.Sort)
def sort(op: ops.Sort, g: Emitter, x: Tensor) -> tuple[str, ...]:
    """Emit a full `TopK`; ONNX orders equal elements by index."""
    count = g.shape([x.type.shape[op.axis]])
    largest = int(op.descending)
    return g.nodes("TopK", 2, x, count, axis=op.axis, largest=largest, sorted=1)


@lower(ops.TopK)
def top_k(op: ops.TopK, g: Emitter, x: Tensor) -> tuple[str, ...]:
    """Emit one operator; ONNX orders equal elements by index."""
    rest = x.type.shape[op.axis] - op.k
    count = g.lengths.emit_length_check(g, g.shape([op.k]), op.k, rest)
    return g.nodes("TopK", 2, x, count, axis=op.axis, largest=op.largest, sorted=1)


@lower(ops.Stride)
def stride(op: ops.Stride, g: Emitter, x: Tensor) -> str:
    """Lower to `Slice` with a step."""
    length = x.type.shape[op.axis]
    start = g.lengths.emit_length_check(g, g.shape([op.start]), op.start, op.stop - op.start)
    stop = g.lengths.emit_length_check(g, g.shape([op.stop]), length - op.stop, op.step - 1)
    return g.node("Slice", x, start, stop, [op.axis], g.shape([op.step]))


@lower(ops.Roll)
def roll(op: ops.Roll, g: Emitter, x: Tensor) -> str:
    """Lower to `Concat` of two slices."""
    length = x.type.shape[op.axis]
    # with length 0 nothing moves; the undefined remainder by 0 does not matter
    by = op.by if length == 0 else mod_dims(op.by, length)
    if by == 0:
        return x.name
    first = emit_slice(g, x.name, op.axis, length - by, length)
    second = emit_slice(g, x.name, op.axis, Dim.of(0), length - by)
    return g.node("Concat", first, second, axis=op.axis)


@lower(ops.Pad)
def pad(op: ops.Pad, g: Emitter, x: Tensor) -> str:
    """Lower to `Pad` with widths for both ends of every axis."""
    if op.before == 0 == op.after:
        return x.name
    length = x.type.shape[op.axis]
    # ONNX takes the starts of all axes first, then the ends.
    ends = [Dim.of(0)] * (2 * x.type.rank)
    ends[op.axis], ends[op.axis + x.type.rank] = op.before, op.after
    first, *others = op.list_nonnegative_lengths(length)
    before = g.lengths.emit_length_check(g, g.shape([op.before]), first, *others)
    widths = [g.shape([end]) for end in ends]
    widths[op.axis] = before
    value = g.constant(op.value, x.type.dtype) if op.mode == "constant" else None
    every = g.node("Concat", *widths, axis=0)
    return g.node("Pad", x, every, value, mode=op.mode)


@lower(ops.GroupNorm)
def group_norm(
    op: ops.GroupNorm, g: Emitter, x: Tensor, gain: Tensor | None = None, bias: Tensor | None = None
) -> str:
    """Lower to a layer norm over groups: ONNX's `GroupNormalization` computes the variance as a
    difference of two means, which cancels for large means.
    """
    rank, dtype = x.type.rank, x.type.dtype
    order = [0, op.axis, *(n for n in range(1, rank) if n != op.axis)]
    in_order = order == [*range(rank)]
    shape = [x.type.shape[n] for n in order]
    name = x.name if in_order else g.node("Transpose", x, perm=order)
    size = divide_dims_exactly(shape[1], op.groups) * multiply_dims(shape[2:])
    grouped = (shape[0], op.groups, size)
    name = emit_reshape(g, name, shape, grouped)
    if g.lengths.is_positive(size):
        ones = emit_full(g, 1.0, dtype, [size])
        name = g.node("LayerNormalization", name, ones, axis=-1, epsilon=op.eps)
    else:
        name = _emit_centered_norm(g, name, dtype, op.eps)
    name = emit_reshape(g, name, grouped, shape)
    # Scale and bias are per channel, not per group: they follow the layer norm.
    for kind, weight in (("Mul", gain), ("Add", bias)):
        if weight is not None:
            name = g.node(kind, name, emit_unsqueeze(g, weight.name, *range(1, rank - 1)))
    if in_order:
        return name
    return g.node("Transpose", name, perm=[order.index(n) for n in range(rank)])


def _emit_centered_norm(g: Emitter, x: str, dtype: str, eps: float) -> str:
    """`(x - mean) / sqrt(var + eps)` over the last axis of three, which may be empty."""
    centered = g.node("Sub", x, emit_reduce(g, "ReduceMean", x, 2, keep=True))
    variance = emit_reduce(g, "ReduceMean", g.node("Mul", centered, centered), 2, keep=True)
    spread = g.node("Sqrt", g.node("Add", variance, g.constant(eps, dtype)))
    return g.node("Div", centered, spread)

"""Lower elementwise ops, reductions and reshapes."""

from collections.abc import Sequence

from specc.ir import ops
from specc.ir.dim import Dim
from specc_onnx.lower.elementwise import INTEGER_DTYPES, emit_float_to_integer, emit_integer_sum
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.onnx_targets import FLOAT_DTYPES
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import (
    emit_arange,
    emit_cast,
    emit_checked_indices,
    emit_full,
    emit_matmul,
    emit_reduce,
    emit_reshape,
    emit_slice,
    emit_unsqueeze,
    emit_where,
)

lower.add_rules(
    {
        ops.Constant: lambda op, g: g.constant(op.value, op.dtype),
        ops.Range: lambda op, g: emit_arange(g, op.length),
        ops.Extent: lambda op, g, x: emit_arange(g, x.type.shape[op.axis]),
        ops.Size: lambda op, g: g.dim(op.length),
        ops.And: lambda op, g, left, right: g.node("And", left, right),
        ops.Or: lambda op, g, left, right: g.node("Or", left, right),
        ops.Not: lambda op, g, x: g.node("Not", x),
        ops.Where: lambda op, g, condition, yes, no: emit_where(
            g, yes.type.dtype, condition, yes, no
        ),
        ops.Split: lambda op, g, x: emit_reshape(g, x.name, x.type.shape, g.site.types[0].shape),
        ops.Insert: lambda op, g, x: emit_unsqueeze(g, x.name, op.axis),
        ops.Squeeze: lambda op, g, x: g.node("Squeeze", x, [op.axis]),
        ops.Last: lambda op, g, x: g.node("Gather", x, -1, axis=op.axis),
        ops.CumSum: lambda op, g, x: g.node("CumSum", x, op.axis),
        ops.MatMul: lambda op, g, left, right: emit_matmul(g, left, right),
    }
)


COMPARE_OPERATORS = {
    "eq": "Equal",
    "ne": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}


@lower(ops.Compare)
def compare(op: ops.Compare, g: Emitter, left: Tensor, right: Tensor) -> str:
    """Lower to one operator; `ne` and `same_group` need several."""
    if op.fn == "same_group":
        positive = g.node("Greater", left, g.constant(0, left.type.dtype))
        return g.node("And", g.node("Equal", left, right), positive)
    result = g.node(COMPARE_OPERATORS[op.fn], left, right)
    return g.node("Not", result) if op.fn == "ne" else result


@lower(ops.Cast)
def cast_(op: ops.Cast, g: Emitter, x: Tensor) -> str:
    """Lower to `Cast`; float to integer saturates."""
    before = x.type.dtype
    # A weight stored in this type needs no cast.
    stored = g.values.narrow_weights.get(x.name)
    if stored is not None and g.values.stored_types[stored].dtype == op.to:
        return stored
    if op.to in INTEGER_DTYPES and before in FLOAT_DTYPES:
        return emit_float_to_integer(g, x.name, before, op.to)
    return emit_cast(g, x.name, before, op.to)


@lower(ops.Transpose)
def transpose(op: ops.Transpose, g: Emitter, x: Tensor) -> str:
    """Lower to `Transpose`; record the packed form `[b, t, h·d]` of split heads for kernels."""
    result = g.node("Transpose", x, perm=list(op.order))
    node = x.value.node if x.value else None
    if op.order == (0, 2, 1, 3) and node is not None and node.args[0] is not None:
        match node.op:
            case ops.Split(axis=2) if node.args[0].type.rank == 3:
                g.layouts.packed[result] = g.values.tensors[node.args[0]].name
    return result


@lower(ops.Merge)
def merge(op: ops.Merge, g: Emitter, x: Tensor) -> str:
    """Lower to a reshape; heads with a packed form are merged already."""
    node = x.value.node if x.value else None
    joins_heads = op.axis == 2 and op.count == 2
    if joins_heads and node is not None and node.op == ops.Transpose((0, 2, 1, 3)):
        inner = node.args[0]
        assert inner is not None
        if (packed := g.layouts.packed.get(g.values.tensors[inner].name)) is not None:
            return packed
    return emit_reshape(g, x.name, x.type.shape, g.site.types[0].shape)


@lower(ops.Expand)
def expand_(op: ops.Expand, g: Emitter, x: Tensor) -> str:
    """Expand an axis of length 1; ones elsewhere keep the shape."""
    target = [Dim.of(1)] * x.type.rank
    target[op.axis] = op.length
    return x.name if op.length == 1 else g.node("Expand", x, g.shape(target))


@lower(ops.Concat)
def concat(op: ops.Concat, g: Emitter, *parts: Tensor) -> str:
    """Lower to `Concat`; attention itself appends new positions to a KV buffer."""
    # a placeholder name: attention replaces it by the written buffer
    if parts[0].value in g.values.buffers:
        return g.unique(g.scoped_name("buffer"))
    if len(parts) == 1:
        return parts[0].name
    return g.node("Concat", *(p.name for p in parts), axis=op.axis)


@lower(ops.Slice)
def slice_(op: ops.Slice, g: Emitter, x: Tensor) -> str:
    """Lower to `Slice`, or to one `Split` for slices that partition an axis."""
    if op.start == 0 and op.stop == x.type.shape[op.axis]:
        return x.name
    ends = g.facts.split_ends.get(x.value, {}).get(op.axis) if x.value else None
    if ends:
        return _emit_split_piece(op, g, x, ends)
    length = x.type.shape[op.axis]
    start = g.lengths.emit_length_check(g, g.shape([op.start]), op.start, op.stop - op.start)
    stop = g.lengths.emit_length_check(g, g.shape([op.stop]), length - op.stop)
    return g.node("Slice", x, start, stop, [op.axis])


def _emit_split_piece(op: ops.Slice, g: Emitter, x: Tensor, ends: Sequence[int]) -> str:
    """Emit a `Split` into all pieces of a partitioned axis; return one piece."""
    begins = [0, *ends[:-1]]
    sizes = [b - a for a, b in zip(begins, ends, strict=True)]
    pieces = g.nodes("Split", len(ends), x, [*sizes], axis=op.axis)
    return pieces[begins.index(op.start.number or 0)]


@lower(ops.Index)
def index(op: ops.Index, g: Emitter, x: Tensor) -> str:
    """Lower to `Gather` of one position."""
    if op.at.number is not None:
        return g.node("Gather", x, g.dim(op.at), axis=op.axis)
    at = g.lengths.emit_length_check(g, g.shape([op.at]), op.at)
    return g.node("Gather", x, g.node("Squeeze", at, [0]), axis=op.axis)


@lower(ops.Gather)
def gather(op: ops.Gather, g: Emitter, table: Tensor, ids: Tensor) -> str:
    """Lower to `Gather`, `GatherElements` or `GatherND`, batched over leading axes."""
    if op.axis == 0:
        return g.node("Gather", table, emit_checked_indices(g, ids), axis=0)
    # GatherND copies single elements: five times slower
    if op.axis == table.type.rank - 1:
        return g.node("GatherElements", table, emit_checked_indices(g, ids), axis=op.axis)
    numbers = emit_cast(
        g, emit_checked_indices(g, ids), ids.type.dtype, "i64"
    )  # GatherND takes no other
    places = emit_unsqueeze(g, numbers, ids.type.rank)
    return g.node("GatherND", table, places, batch_dims=op.axis)


@lower(ops.Flip)
def flip(op: ops.Flip, g: Emitter, x: Tensor) -> str:
    """Lower to `Gather` with descending positions."""
    length = x.type.shape[op.axis]
    numbers = g.node("Sub", g.dim(length - 1), emit_arange(g, length))
    return g.node("Gather", x, numbers, axis=op.axis)


@lower(ops.Delay)
def delay(op: ops.Delay, g: Emitter, x: Tensor) -> str:
    """Prepend `by` positions and drop as many at the end, also of a shorter axis."""
    if op.by == 0:
        return x.name
    shape = list(x.type.shape)
    length, shape[op.axis] = shape[op.axis], Dim.of(op.by)
    front = emit_full(g, op.first, x.type.dtype, shape)
    longer = g.node("Concat", front, x, axis=op.axis)
    return emit_slice(g, longer, op.axis, Dim.of(0), length)


@lower(ops.Reduce)
def reduce_(op: ops.Reduce, g: Emitter, x: Tensor) -> str:
    """Lower to a reduction; `any` and `all` count booleans, which is valid for empty axes."""
    kinds = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}
    if op.fn == "sum" and x.type.dtype in INTEGER_DTYPES:
        return emit_integer_sum(g, x, op.axis)
    if op.fn in kinds:
        return emit_reduce(g, kinds[op.fn], x.name, op.axis)
    zero = g.constant(0, "i32")
    counted = x.name if op.fn == "any" else g.node("Not", x)
    count = emit_reduce(g, "ReduceSum", emit_cast(g, counted, "bool", "i32"), op.axis)
    return g.node("Greater" if op.fn == "any" else "Equal", count, zero)


@lower(ops.ArgMax)
def argmax(op: ops.ArgMax, g: Emitter, x: Tensor) -> str:
    """Emit the first index of the maximum."""
    if g.lacks("ArgMax", x.type.dtype):
        _, place = g.nodes("TopK", 2, x, [1], axis=op.axis)
        return g.node("Squeeze", place, [op.axis])
    return g.node("ArgMax", x, axis=op.axis, keepdims=0, select_last_index=0)


@lower(ops.OneHot)
def onehot(op: ops.OneHot, g: Emitter, x: Tensor) -> str:
    """Compare with position indices: an index out of range gives zeros."""
    numbers = emit_cast(g, emit_arange(g, op.size), "i64", x.type.dtype)
    same = g.node("Equal", emit_unsqueeze(g, x.name, x.type.rank), numbers)
    return emit_cast(g, same, "bool", g.site.types[0].dtype)

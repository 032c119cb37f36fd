"""Lower elementwise ops, reductions, reshapes and `Einsum`.

ONNX's `Einsum` is used only for a repeated axis in one term, because ONNX Runtime 1.31 crashes in
`Einsum` if an axis is empty. Other einsums are lowered to Transpose, Reshape and MatMul.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, multiply_dims
from specc_onnx.lower.elementwise import INTEGER_DTYPES, emit_float_to_integer, emit_integer_sum
from specc_onnx.lower.emitter import Emitter, Tensor
from specc_onnx.lower.onnx_targets import FLOAT_DTYPES
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import (
    emit_arange,
    emit_cast,
    emit_checked_indices,
    emit_count_nonzero,
    emit_full,
    emit_matmul,
    emit_nonnegative_size,
    emit_reduce,
    emit_reshape,
    emit_slice,
    emit_stable_top_k,
    emit_unsqueeze,
    emit_where,
    make_typed_tensor,
)

lower.add_rules(
    {
        ops.Constant: lambda op, g: g.emit_constant(op.value, op.dtype),
        ops.Range: lambda op, g: emit_arange(g, op.length),
        ops.Extent: lambda op, g, x: emit_arange(g, x.shape[op.axis]),
        ops.Size: lambda op, g: g.emit_length(op.length),
        ops.And: lambda op, g, left, right: g.emit_node("And", left, right),
        ops.Or: lambda op, g, left, right: g.emit_node("Or", left, right),
        ops.Not: lambda op, g, x: g.emit_node("Not", x),
        ops.Where: lambda op, g, condition, x, y: emit_where(g, x.dtype, condition, x, y),
        ops.Split: lambda op, g, x: emit_reshape(g, x, g.site.types[0].shape),
        ops.Insert: lambda op, g, x: emit_unsqueeze(g, x, op.axis),
        ops.Squeeze: lambda op, g, x: g.emit_node("Squeeze", x, [op.axis]),
        ops.Last: lambda op, g, x: g.emit_node("Gather", x, -1, axis=op.axis),
        ops.CumSum: lambda op, g, x: g.emit_node("CumSum", x, op.axis),
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


@lower
def compare(op: ops.Compare, g: Emitter, left: Tensor, right: Tensor) -> str:
    """Lower to one comparison operator; `ne` and `same_group` need several operators."""
    if op.fn == "same_group":
        is_positive = g.emit_node("Greater", left, g.emit_constant(0, left.dtype))
        return g.emit_node("And", g.emit_node("Equal", left, right), is_positive)
    result = g.emit_node(COMPARE_OPERATORS[op.fn], left, right)
    return g.emit_node("Not", result) if op.fn == "ne" else result


@lower
def cast_(op: ops.Cast, g: Emitter, x: Tensor) -> str:
    """Lower to `Cast`; out-of-range floats saturate in integer types."""
    source_dtype = x.dtype
    # a weight that is stored in the target type needs no cast
    stored_name = g.values.narrow_weights.get(x.name)
    if stored_name is not None and g.values.stored_types[stored_name].dtype == op.to:
        return stored_name
    if op.to in INTEGER_DTYPES and source_dtype in FLOAT_DTYPES:
        return emit_float_to_integer(g, x.name, source_dtype, op.to)
    return emit_cast(g, x, op.to)


@lower
def transpose(op: ops.Transpose, g: Emitter, x: Tensor) -> str:
    """Lower to `Transpose`; record the packed layout `[b, t, h·d]` of split heads for kernels."""
    result = g.emit_node("Transpose", x, perm=list(op.order))
    producer = x.value.node if x.value else None
    if op.order == (0, 2, 1, 3) and producer is not None and producer.args[0] is not None:
        match producer.op:
            case ops.Split(axis=2) if producer.args[0].type.rank == 3:
                g.layouts.packed_heads[result] = g.values.tensors[producer.args[0]].name
    return result


@lower
def merge(op: ops.Merge, g: Emitter, x: Tensor) -> str:
    """Lower to a reshape, or to nothing if the packed heads `[b, t, h*d]` already exist."""
    producer = x.value.node if x.value else None
    merges_heads = op.axis == 2 and op.count == 2
    if merges_heads and producer is not None and producer.op == ops.Transpose((0, 2, 1, 3)):
        operand = producer.args[0]
        assert operand is not None
        if (packed_name := g.layouts.packed_heads.get(g.values.tensors[operand].name)) is not None:
            return packed_name
    return emit_reshape(g, x, g.site.types[0].shape)


@lower
def expand_(op: ops.Expand, g: Emitter, x: Tensor) -> str:
    """Lower to `Expand`; the entries of the target shape for the unchanged axes are 1."""
    target = [Dim.from_value(1)] * x.rank
    target[op.axis] = op.length
    return x.name if op.length == 1 else g.emit_node("Expand", x, g.emit_shape(target))


@lower
def concat(op: ops.Concat, g: Emitter, *parts: Tensor) -> str:
    """Lower to `Concat`, or to nothing for a KV buffer, which the attention kernel extends."""
    # attention replaces the placeholder name with the name of the updated buffer
    if parts[0].value in g.values.kv_buffers:
        return g.reserve_name(g.make_scoped_name("buffer"))
    if len(parts) == 1:
        return parts[0].name
    return g.emit_node("Concat", *(p.name for p in parts), axis=op.axis)


@lower
def slice_(op: ops.Slice, g: Emitter, x: Tensor) -> str:
    """Lower to `Slice`, or to a result of one `Split` if the slices of `x` partition the axis."""
    if op.start == 0 and op.stop == x.shape[op.axis]:
        return x.name
    ends = g.facts.split_ends.get(x.value, {}).get(op.axis) if x.value else None
    if ends:
        return _emit_split_piece(op, g, x, ends)
    length = x.shape[op.axis]
    start = emit_nonnegative_size(g, op.start, op.start, op.stop - op.start)
    stop = emit_nonnegative_size(g, op.stop, length - op.stop)
    return g.emit_node("Slice", x, start, stop, [op.axis])


def _emit_split_piece(op: ops.Slice, g: Emitter, x: Tensor, ends: Sequence[int]) -> str:
    """Emit a `Split` of a partitioned axis into all slices; return the slice that `op` selects."""
    starts = [0, *ends[:-1]]
    sizes = [b - a for a, b in zip(starts, ends, strict=True)]
    pieces = g.emit_nodes("Split", len(ends), x, [*sizes], axis=op.axis)
    return pieces[starts.index(op.start.number or 0)]


@lower
def index(op: ops.Index, g: Emitter, x: Tensor) -> str:
    """Lower to `Gather` with a scalar index."""
    if op.index.number is not None:
        return g.emit_node("Gather", x, g.emit_length(op.index), axis=op.axis)
    position = emit_nonnegative_size(g, op.index, op.index)
    return g.emit_node("Gather", x, g.emit_node("Squeeze", position, [0]), axis=op.axis)


@lower
def gather(op: ops.Gather, g: Emitter, table: Tensor, ids: Tensor) -> str:
    """Lower to `Gather`, `GatherElements` or `GatherND`, batched over leading axes."""
    if op.axis == 0:
        return g.emit_node("Gather", table, emit_checked_indices(g, ids), axis=0)
    # `GatherND` copies single elements, which is five times slower
    if op.axis == table.rank - 1:
        return g.emit_node("GatherElements", table, emit_checked_indices(g, ids), axis=op.axis)
    indices = emit_cast(
        g, emit_checked_indices(g, ids), "i64", source_dtype=ids.dtype
    )  # `GatherND` accepts no other index type
    index_columns = emit_unsqueeze(g, indices, ids.rank)
    return g.emit_node("GatherND", table, index_columns, batch_dims=op.axis)


@lower
def flip(op: ops.Flip, g: Emitter, x: Tensor) -> str:
    """Lower to `Gather` with descending positions."""
    length = x.shape[op.axis]
    positions = g.emit_node("Sub", g.emit_length(length - 1), emit_arange(g, length))
    return g.emit_node("Gather", x, positions, axis=op.axis)


@lower
def delay(op: ops.Delay, g: Emitter, x: Tensor) -> str:
    """Lower to `Concat` of `op.steps` fill values and `x`, sliced to the size of the axis."""
    if op.steps == 0:
        return x.name
    shape = list(x.shape)
    length, shape[op.axis] = shape[op.axis], Dim.from_value(op.steps)
    padding = emit_full(g, op.fill_value, x.dtype, shape)
    padded_input = g.emit_node("Concat", padding, x, axis=op.axis)
    return emit_slice(g, padded_input, op.axis, 0, length)


@lower
def reduce_(op: ops.Reduce, g: Emitter, x: Tensor) -> str:
    """Lower to a reduction; `any` and `all` compare a count with 0, to allow an empty axis."""
    kinds = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}
    if op.fn == "sum" and x.dtype in INTEGER_DTYPES:
        return emit_integer_sum(g, x, op.axis)
    if op.fn in kinds:
        return emit_reduce(g, kinds[op.fn], x.name, op.axis)
    is_any = op.fn == "any"
    count = emit_count_nonzero(g, x if is_any else g.emit_node("Not", x), op.axis, dtype="i32")
    return g.emit_node("Greater" if is_any else "Equal", count, g.emit_constant(0, "i32"))


@lower
def argmax(op: ops.ArgMax, g: Emitter, x: Tensor) -> str:
    """Lower to `ArgMax`, or to `TopK` of one element if the target has no kernel for `ArgMax`."""
    if g.lacks_kernel("ArgMax", x.dtype):
        _, index = emit_stable_top_k(g, x, [1], axis=op.axis, largest=True)
        return g.emit_node("Squeeze", index, [op.axis])
    return g.emit_node("ArgMax", x, axis=op.axis, keepdims=0, select_last_index=0)


@lower
def onehot(op: ops.OneHot, g: Emitter, x: Tensor) -> str:
    """Lower to a comparison with the class ids; an index out of range has an encoding of zeros."""
    classes = emit_cast(g, emit_arange(g, op.size), x.dtype, source_dtype="i64")
    is_class = g.emit_node("Equal", emit_unsqueeze(g, x, x.rank), classes)
    return emit_cast(g, is_class, g.site.types[0].dtype)


@dataclass(frozen=True, slots=True)
class EinsumTerm:
    """An operand of an einsum with its axis labels."""

    tensor: Tensor
    axes: tuple[str, ...]

    def get_lengths(self, names: Sequence[str]) -> list[Dim]:
        """Return the sizes of the axes with the labels `names`."""
        return [self.tensor.shape[self.axes.index(n)] for n in names]


@lower
def einsum(op: ops.Einsum, g: Emitter, *args: Tensor) -> str:
    """Lower an einsum by contracting the operands from left to right."""
    operand_terms, result_term = op.equation.split("->")
    operand_axes = [tuple(term.split()) for term in operand_terms.split(",")]
    result_axes = tuple(result_term.split())
    # an einsum with a repeated axis in a term, e.g. `i i -> i`, is not a matrix multiplication
    if any(len(set(n)) < len(n) for n in operand_axes):
        return _emit_einsum_operator(g, args, operand_axes, result_axes)
    terms = [EinsumTerm(a, n) for a, n in zip(args, operand_axes, strict=True)]
    product = terms[0]
    for n, term in enumerate(terms[1:], start=1):
        # An axis is summed as soon as neither a later operand nor the result has it.
        later_axes = {*result_axes, *(name for t in terms[n + 1 :] for name in t.axes)}
        product = _emit_term_product(g, product, term, later_axes)
    product = _emit_unshared_axes_sum(g, product, set(result_axes))
    return _emit_transposed_term(g, product, result_axes).name


def _emit_term_product(
    g: Emitter, a: EinsumTerm, b: EinsumTerm, later_axes: set[str]
) -> EinsumTerm:
    """Emit the product of two terms, summed over shared axes that are not in `later_axes`."""
    a, b = (
        _emit_unshared_axes_sum(g, a, later_axes | {*b.axes}),
        _emit_unshared_axes_sum(g, b, later_axes | {*a.axes}),
    )
    # `b h q d, b h k d`: `b` and `h` are batch axes, `d` is summed, `q` is the row axis and `k` is
    # the column axis.
    shared_axes = [n for n in a.axes if n in b.axes]
    batch_axes = [n for n in shared_axes if n in later_axes]
    summed_axes = [n for n in shared_axes if n not in later_axes]
    row_axes = [n for n in a.axes if n not in b.axes]
    column_axes = [n for n in b.axes if n not in a.axes]
    left_matrix = _emit_matrix(g, a, batch_axes, row_axes, summed_axes)
    right_matrix = _emit_matrix(g, b, batch_axes, summed_axes, column_axes)
    product = emit_matmul(g, left_matrix, right_matrix)
    product_shape = (*left_matrix.shape[:-1], right_matrix.shape[-1])
    axes = (*batch_axes, *row_axes, *column_axes)
    shape = (*a.get_lengths(batch_axes), *a.get_lengths(row_axes), *b.get_lengths(column_axes))
    name = emit_reshape(g, product, shape, source_shape=product_shape)
    return EinsumTerm(make_typed_tensor(name, a.tensor.dtype, shape), axes)


def _emit_matrix(
    g: Emitter, term: EinsumTerm, batch_axes: list[str], row_axes: list[str], column_axes: list[str]
) -> Tensor:
    """Emit a term as `[batch…, rows, columns]` with each group of axes merged."""
    ordered_tensor = _emit_transposed_term(g, term, (*batch_axes, *row_axes, *column_axes))
    row_count, column_count = (
        multiply_dims(term.get_lengths(row_axes)),
        multiply_dims(term.get_lengths(column_axes)),
    )
    shape = (*term.get_lengths(batch_axes), row_count, column_count)
    name = emit_reshape(g, ordered_tensor, shape)
    return make_typed_tensor(name, ordered_tensor.dtype, shape)


def _emit_unshared_axes_sum(g: Emitter, term: EinsumTerm, used_axes: set[str]) -> EinsumTerm:
    """Emit a term summed over the axes that are not in `used_axes`."""
    # Axes are summed from last to first, so that the indices of earlier axes stay valid.
    for axis in reversed(range(len(term.axes))):
        if term.axes[axis] not in used_axes:
            name = emit_reduce(g, "ReduceSum", term.tensor, axis)
            axes = term.axes[:axis] + term.axes[axis + 1 :]
            summed_tensor = make_typed_tensor(name, term.tensor.dtype, term.get_lengths(axes))
            term = EinsumTerm(summed_tensor, axes)
    return term


def _emit_transposed_term(g: Emitter, term: EinsumTerm, axes: Sequence[str]) -> Tensor:
    """Emit the tensor of a term with its axes in the order of the labels `axes`."""
    if tuple(axes) == term.axes:
        return term.tensor
    order = [term.axes.index(n) for n in axes]
    name = g.emit_node("Transpose", term.tensor, perm=order)
    return make_typed_tensor(name, term.tensor.dtype, term.get_lengths(axes))


def _emit_einsum_operator(
    g: Emitter,
    args: Sequence[Tensor],
    operand_axes: Sequence[Sequence[str]],
    result_axes: Sequence[str],
) -> str:
    """Emit an `Einsum` node for an einsum with a repeated axis in one term (a diagonal)."""
    axis_names = dict.fromkeys(n for term in operand_axes for n in term)
    letters = dict(zip(axis_names, string.ascii_letters, strict=False))
    *operand_terms, result_term = [
        "".join(letters[n] for n in term) for term in (*operand_axes, result_axes)
    ]
    equation = f"{','.join(operand_terms)}->{result_term}"
    return g.emit_node("Einsum", *(a.name for a in args), equation=equation)

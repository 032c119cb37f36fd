"""Lower reductions, reshapes, concatenation, padding and `Einsum`.

ONNX's `Einsum` is used only for a repeated axis in one term, because ONNX Runtime 1.31 crashes in
`Einsum` if an axis is empty. Other einsums are lowered to Transpose, Reshape and MatMul. ONNX
Runtime computes `ReduceSum` of integers in floats.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim, mod_dims, multiply_dims
from specc.ir.graph import Node, Value
from specc_onnx.lower.elementwise import INTEGER_DTYPES
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.indexing import VALUE_PRESERVING_OPS, emit_stable_top_k, is_index_value
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.reshape_reduce_and_matmul import (
    emit_arange,
    emit_checked_length,
    emit_count_nonzero,
    emit_full,
    emit_matmul,
    emit_padding_to_min_length,
    emit_reduce,
    emit_reshape,
)

lower.add_rules(
    {
        ops.Constant: lambda op, g: g.emit_constant(op.value, op.dtype),
        ops.Range: lambda op, g: emit_arange(g, op.length),
        ops.Extent: lambda op, g, x: emit_arange(g, x.shape[op.axis]),
        ops.Size: lambda op, g: g.emit_length(op.length),
        ops.Split: lambda op, g, x: emit_reshape(x, g.context.types[0].shape),
        ops.Insert: lambda op, g, x: x.unsqueeze(op.axis),
        ops.Squeeze: lambda op, g, x: x.squeeze(op.axis),
        ops.CumSum: lambda op, g, x: x.apply_op("CumSum", op.axis),
        ops.MatMul: lambda op, g, left, right: emit_matmul(left, right),
    }
)


@lower
def transpose(op: ops.Transpose, g: Emitter, x: Tensor) -> OnnxValue:
    """Emit `Transpose`. Split heads, and record their packed layout `[b, t, h·d]` for attention
    kernels.
    """
    result = x.transpose(list(op.order))
    match x.value and x.value.node:
        case Node(ops.Split(axis=2), (Value() as packed,)) if (
            op.order == (0, 2, 1, 3) and packed.type.rank == 3
        ):
            g.cache.packed_heads[result.name] = g.values.tensors[packed]
    return result


@lower
def merge(op: ops.Merge, g: Emitter, x: Tensor) -> OnnxValue:
    """Emit a reshape of merged axes, or return existing packed heads `[b, t, h*d]`."""
    match x.value and x.value.node:
        case Node(ops.Transpose((0, 2, 1, 3)), (Value() as heads,)) if (op.axis, op.count) == (
            2,
            2,
        ):
            packed_heads = g.cache.packed_heads.get(g.values.tensors[heads].name)
            if packed_heads is not None:
                return packed_heads
    return emit_reshape(x, g.context.types[0].shape)


@lower
def expand(op: ops.Expand, g: Emitter, x: Tensor) -> OnnxValue:
    """Emit `Expand`. Its target shape contains 1 for unchanged axes."""
    target = [Dim.from_value(1)] * x.rank
    target[op.axis] = op.length
    return x if op.length == 1 else x.expand(g.emit_shape(target))


@lower
def concat(op: ops.Concat, g: Emitter, *parts: Tensor) -> OnnxValue:
    """Emit `Concat`, or a placeholder for a KV buffer, to which the attention kernel appends."""
    # the lowering of the attention layer replaces the placeholder with the updated KV buffer
    if parts[0].value in g.values.kv_buffers:
        return g.new_tensor("buffer", g.context.types[0])
    if len(parts) == 1:
        return parts[0]
    return g.emit_node("Concat", *parts, axis=op.axis)


@lower
def flip(op: ops.Flip, g: Emitter, x: Tensor) -> OnnxValue:
    """Lower the reversal of an axis to a `Gather` with descending positions."""
    length = x.shape[op.axis]
    positions = g.emit_length(length - 1) - emit_arange(g, length)
    return x.gather(positions, op.axis)


@lower
def delay(op: ops.Delay, g: Emitter, x: Tensor) -> OnnxValue:
    """Emit a `Concat` of `op.steps` fill values and `x`, and slice off the excess elements."""
    if op.steps == 0:
        return x
    shape = list(x.shape)
    length, shape[op.axis] = shape[op.axis], Dim.from_value(op.steps)
    padding = emit_full(g, op.fill_value, x.dtype, shape)
    padded_input = padding.apply_op("Concat", x, axis=op.axis)
    return padded_input.slice(op.axis, 0, length)


@lower
def reduce(op: ops.Reduce, g: Emitter, x: Tensor) -> OnnxValue:
    """Emit a reduction. `any` and `all` compare a count with 0, because the axis may be empty."""
    kinds = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}
    if op.fn == "sum" and x.dtype in INTEGER_DTYPES:
        return emit_integer_sum(x, op.axis)
    if op.fn in kinds:
        return emit_reduce(kinds[op.fn], x, op.axis)
    is_any = op.fn == "any"
    count = emit_count_nonzero(x if is_any else ~x, op.axis, dtype="i32")
    return count > 0 if is_any else count.equals(0)


@lower
def argmax(op: ops.ArgMax, g: Emitter, x: Tensor) -> OnnxValue:
    """Emit `ArgMax`, or a `TopK` of one element if the target has no kernel for `ArgMax`."""
    if not g.has_kernel("ArgMax", x.dtype):
        _, index = emit_stable_top_k(x, [1], axis=op.axis, largest=True)
        return index.squeeze(op.axis)
    return x.apply_op("ArgMax", axis=op.axis, keepdims=0, select_last_index=0)


@lower
def onehot(op: ops.OneHot, g: Emitter, x: Tensor) -> OnnxValue:
    """Compare indices with class ids. An index that is out of range is encoded as zeros."""
    classes = emit_arange(g, op.size).cast(x.dtype)
    is_class = x.unsqueeze(x.rank).equals(classes)
    return is_class.cast(g.context.types[0].dtype)


@dataclass(frozen=True, slots=True)
class EinsumTerm:
    """An operand of an einsum with its axis labels."""

    tensor: Tensor
    axes: tuple[str, ...]

    def get_lengths(self, axes: Sequence[str]) -> list[Dim]:
        """Return the sizes of the axes with the labels `axes`."""
        return [self.tensor.shape[self.axes.index(n)] for n in axes]

    def emit_transposed(self, axes: Sequence[str]) -> Tensor:
        """Emit the tensor with its axes in the order of the labels `axes`."""
        if tuple(axes) == self.axes:
            return self.tensor
        order = [self.axes.index(n) for n in axes]
        result = self.tensor.transpose(order)
        return result.with_shape(self.get_lengths(axes))

    def emit_matrix(
        self, batch_axes: list[str], row_axes: list[str], column_axes: list[str]
    ) -> Tensor:
        """Emit the tensor as `[batch…, rows, columns]` with each group of axes merged."""
        row_count, column_count = (
            multiply_dims(self.get_lengths(axes)) for axes in (row_axes, column_axes)
        )
        shape = (*self.get_lengths(batch_axes), row_count, column_count)
        transposed = self.emit_transposed((*batch_axes, *row_axes, *column_axes))
        return emit_reshape(transposed, shape)

    def emit_unused_axes_sum(self, used_axes: set[str]) -> "EinsumTerm":
        """Emit the sum of the tensor over the axes that are not in `used_axes`."""
        term = self
        # Axes are summed from last to first, so that the indices of earlier axes stay valid.
        for axis in reversed(range(len(self.axes))):
            if self.axes[axis] not in used_axes:
                axes = term.axes[:axis] + term.axes[axis + 1 :]
                result = emit_reduce("ReduceSum", term.tensor, axis)
                term = EinsumTerm(result.with_shape(term.get_lengths(axes)), axes)
        return term


@lower
def einsum(op: ops.Einsum, g: Emitter, *args: Tensor) -> OnnxValue:
    """Lower an einsum by contracting the operands from left to right."""
    operand_terms, result_term = op.equation.split("->")
    operand_axes = [tuple(term.split()) for term in operand_terms.split(",")]
    result_axes = tuple(result_term.split())
    # an einsum with a repeated axis in a term, such as `i i -> i`, is not a matrix multiplication
    if any(len(set(n)) < len(n) for n in operand_axes):
        return _emit_einsum_operator(g, args, operand_axes, result_axes)
    terms = [EinsumTerm(a, n) for a, n in zip(args, operand_axes, strict=True)]
    product = terms[0]
    for n, term in enumerate(terms[1:], start=1):
        # An axis is summed as soon as neither a later operand nor the result has it.
        later_axes = {*result_axes, *(name for t in terms[n + 1 :] for name in t.axes)}
        product = _emit_term_product(product, term, later_axes)
    return product.emit_unused_axes_sum(set(result_axes)).emit_transposed(result_axes)


def _emit_term_product(a: EinsumTerm, b: EinsumTerm, later_axes: set[str]) -> EinsumTerm:
    """Emit the product of two terms, summed over the shared axes that are not in `later_axes`."""
    a, b = (
        a.emit_unused_axes_sum(later_axes | {*b.axes}),
        b.emit_unused_axes_sum(later_axes | {*a.axes}),
    )
    # In `b h q d, b h k d`, `b` and `h` are batch axes, `d` is summed, `q` is the row axis and `k`
    # is the column axis.
    shared_axes = [n for n in a.axes if n in b.axes]
    batch_axes = [n for n in shared_axes if n in later_axes]
    summed_axes = [n for n in shared_axes if n not in later_axes]
    row_axes = [n for n in a.axes if n not in b.axes]
    column_axes = [n for n in b.axes if n not in a.axes]
    left_matrix = a.emit_matrix(batch_axes, row_axes, summed_axes)
    right_matrix = b.emit_matrix(batch_axes, summed_axes, column_axes)
    product = emit_matmul(left_matrix, right_matrix)
    product_shape = (*left_matrix.shape[:-1], right_matrix.shape[-1])
    shape = (*a.get_lengths([*batch_axes, *row_axes]), *b.get_lengths(column_axes))
    result = emit_reshape(product, shape, source_shape=product_shape)
    return EinsumTerm(result, (*batch_axes, *row_axes, *column_axes))


def _emit_einsum_operator(
    g: Emitter,
    args: Sequence[Tensor],
    operand_axes: Sequence[Sequence[str]],
    result_axes: Sequence[str],
) -> OnnxValue:
    """Emit an `Einsum` node for an einsum in which a term repeats an axis (a diagonal)."""
    axis_names = dict.fromkeys(n for term in operand_axes for n in term)
    letters = dict(zip(axis_names, string.ascii_letters, strict=False))
    *operand_terms, result_term = [
        "".join(letters[n] for n in term) for term in (*operand_axes, result_axes)
    ]
    equation = f"{','.join(operand_terms)}->{result_term}"
    return g.emit_node("Einsum", *args, equation=equation)


@lower
def roll(op: ops.Roll, g: Emitter, x: Tensor) -> OnnxValue:
    """Lower a rotation of an axis to a `Concat` of two slices."""
    length = x.shape[op.axis]
    # the shift is not reduced modulo an axis size of 0, because the remainder is undefined
    shift = op.shift if length == 0 else mod_dims(op.shift, length)
    if shift == 0:
        return x
    tail = x.slice(op.axis, length - shift, length)
    head = x.slice(op.axis, 0, length - shift)
    return tail.apply_op("Concat", head, axis=op.axis)


@lower
def pad(op: ops.Pad, g: Emitter, x: Tensor) -> OnnxValue:
    """Lower padding to `Pad` with padding sizes for both ends of every axis."""
    if op.padding_before == 0 == op.padding_after:
        return x
    length = x.shape[op.axis]
    # ONNX's `pads` operand contains the start padding of all axes, then the end padding.
    ends = [Dim.from_value(0)] * (2 * x.rank)
    ends[op.axis], ends[op.axis + x.rank] = op.padding_before, op.padding_after
    first_length, *other_lengths = op.list_nonnegative_dims(length)
    start_width = emit_checked_length(g, op.padding_before, first_length, *other_lengths)
    widths = [g.emit_shape([end]) for end in ends]
    widths[op.axis] = start_width
    if op.mode == "constant" and not g.has_kernel("Pad", x.dtype):
        start_padding, end_padding = (
            emit_full(
                g, op.value, x.dtype, (*x.shape[: op.axis], pad_width, *x.shape[op.axis + 1 :])
            )
            for pad_width in (op.padding_before, op.padding_after)
        )
        return start_padding.apply_op("Concat", x, end_padding, axis=op.axis)
    value = g.emit_constant(op.value, x.dtype) if op.mode == "constant" else None
    all_widths = g.emit_node("Concat", *widths, axis=0)
    return x.apply_op("Pad", all_widths, value, mode=op.mode)


def emit_integer_sum(x: Tensor, axis: int) -> OnnxValue:
    """Emit an exact sum of 64-bit integers along an axis. `ReduceSum` would add floats."""
    if x.value is not None and has_exact_float_sum(x.value):
        return emit_reduce("ReduceSum", x, axis)
    # The sum is the last element of `CumSum`, which is exact for integers. The axis may be empty,
    # so a zero is appended to it.
    sums = emit_padding_to_min_length(x, axis).apply_op("CumSum", axis)
    return sums.gather(-1, axis)


def has_exact_float_sum(value: Value) -> bool:
    """Return True if the elements of an integer tensor are position ids, indices or booleans cast
    to integers. Sums of such elements along an axis are far below 2**53.
    """
    while value.node is not None:
        if is_index_value(value):
            return True
        if isinstance(value.node.op, ops.Cast):
            (operand,) = value.node.args
            return operand is not None and operand.type.dtype == "bool"
        operand = value.node.args[0] if isinstance(value.node.op, VALUE_PRESERVING_OPS) else None
        if operand is None:
            return False
        value = operand
    return False

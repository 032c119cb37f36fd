"""Emit reshapes, reductions, MatMuls, sizes and filled tensors."""

from collections.abc import Sequence
from itertools import zip_longest

from specc.ir.dim import Dim, DimLike, multiply_dims
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_values import OnnxValue, Tensor


def emit_reshape(
    x: OnnxValue, shape: Sequence[DimLike], *, source_shape: Sequence[DimLike] | None = None
) -> Tensor:
    """Emit a reshape of `x`, which may be empty, to `shape`. `source_shape` is the shape of `x`
    (default: the shape of the `Tensor`).
    """
    if source_shape is None:
        assert isinstance(x, Tensor), "a value without a shape requires `source_shape`"
        source_shape = x.shape
    constant = _find_constant_target(source_shape, shape)
    if tuple(source_shape) != tuple(shape):
        if constant is not None:
            x = x.reshape(constant)
        else:
            x = x.apply_op("Reshape", x.g.emit_shape(shape), allowzero=1)
    return x.with_shape(shape)


def _find_constant_target(
    source_shape: Sequence[DimLike], shape: Sequence[DimLike]
) -> Sequence[int] | None:
    """Return a constant shape operand for `Reshape`, or None if it is known only at run time."""
    # In the shape operand of `Reshape`, 0 copies an axis. The entries of all other dynamic axes are
    # None.
    target: list[int | None] = []
    for axis, length in enumerate(map(Dim.from_value, shape)):
        is_unchanged = axis < len(source_shape) and source_shape[axis] == length
        target.append(0 if is_unchanged and length.number is None else length.number)
    static_sizes = [n for n in target if n is not None]
    # A target shape cannot contain an axis of size 0, because 0 copies an axis.
    if None not in target and 0 not in shape:
        return static_sizes
    # ONNX cannot infer the size for -1 if another dimension is 0, and a copied axis may be empty.
    if target.count(None) == 1 and all(n > 0 for n in static_sizes):
        return [-1 if n is None else n for n in target]
    return None


def emit_flatten(x: Tensor) -> OnnxValue:
    """Merge all axes of `x` except the last. The result is `[n, d]`."""
    return emit_reshape(x, (multiply_dims(x.shape[:-1]), x.shape[-1]))


def emit_expand(x: Tensor, shape: Sequence[DimLike]) -> OnnxValue:
    """Broadcast `x` to `shape`."""
    if x.shape == tuple(shape):
        return x
    return x.expand(x.g.emit_shape(shape))


def emit_full(
    g: Emitter, value: float | int | bool, dtype: str, shape: Sequence[DimLike]
) -> OnnxValue:
    """Emit a tensor with `dtype` and `shape` that is filled with `value`."""
    scalar = g.emit_constant(value, dtype)
    return scalar.expand(g.emit_shape(shape)) if shape else scalar


def emit_checked_length(g: Emitter, length: Dim, *nonnegative_dims: Dim) -> OnnxValue:
    """Emit `length`, i64[1]. The model fails at run time if a size in `nonnegative_dims` is
    negative.
    """
    return g.lengths.emit_nonnegative_check(g, g.emit_shape([length]), *nonnegative_dims)


def emit_axis_length(x: OnnxValue, axis: int) -> OnnxValue:
    """Emit the size of an axis of `x`, i64[1]."""
    return x.apply_op("Shape", start=axis, end=axis + 1)


def emit_reduce(op_type: str, x: OnnxValue, axis: int, keepdims: bool = False) -> OnnxValue:
    """Emit `ReduceSum`, `ReduceMean`, `ReduceMax` or `ReduceMin` over one axis."""
    if op_type == "ReduceSum" or x.g.opset >= onnx_targets.REDUCE_AXES_INPUT_SINCE:
        return x.apply_op(op_type, [axis], keepdims=keepdims)
    return x.apply_op(op_type, axes=[axis], keepdims=keepdims)


def emit_count_nonzero(
    x: OnnxValue, *axes: int, dtype: str = "i64", keepdims: bool = False
) -> OnnxValue:
    """Count the true elements along `axes`, or in the whole tensor if `axes` is empty."""
    return x.cast(dtype).apply_op("ReduceSum", [*axes] or None, keepdims=keepdims)


def emit_matmul(x: Tensor, y: Tensor) -> OnnxValue:
    """Emit `MatMul`. If a broadcast axis may be empty, first broadcast the operands."""
    g, operands = x.g, []
    for operand, other in ((x, y), (y, x)):
        leading_shape, other_shape = operand.shape[-3::-1], other.shape[-3::-1]
        pairs = [*zip_longest(leading_shape, other_shape, fillvalue=Dim.from_value(1))][::-1]
        may_be_empty = any(a == 1 != b and not g.lengths.is_positive(b) for a, b in pairs)
        broadcast = [b if a == 1 else a for a, b in pairs]
        needs_expand = leading_shape and may_be_empty
        shape = (*broadcast, *operand.shape[-2:])
        operands.append(emit_expand(operand, shape) if needs_expand else operand)
    return g.emit_node("MatMul", *operands)


def emit_arange(g: Emitter, length: Dim) -> OnnxValue:
    """Emit the i64 vector `0, 1, …, length - 1`."""
    return g.emit_node("Range", 0, g.emit_length(length), 1)


def emit_padding_to_min_length(x: Tensor, axis: int, min_length: int = 1) -> OnnxValue:
    """Pad `x` with zeros at the end of `axis` to at least `min_length` positions."""
    g, length = x.g, x.shape[axis]
    if g.lengths.get_lower_bound(length) >= min_length:
        return x
    padding_length = ([min_length] - g.emit_shape([length])).maximum([0])
    padding_shape = [g.emit_shape([d]) for d in x.shape]
    padding_shape[axis] = padding_length
    zero = g.emit_constant(0, x.dtype)
    padding = zero.expand(g.emit_node("Concat", *padding_shape, axis=0))
    return x.apply_op("Concat", padding, axis=axis)


def is_constant_true(x: Tensor) -> bool:
    """Return True if a boolean tensor is a constant true, possibly broadcast or reshaped."""
    value = x.value
    while value is not None and value.node is not None:
        op = value.node.op
        if op.name == "constant":
            return op.get_attributes()["value"] is True
        if op.name not in ("insert", "expand", "squeeze", "transpose", "split", "merge"):
            return False
        value = value.node.args[0]
    return False


def emit_unflatten(x: OnnxValue, shape: Sequence[Dim]) -> OnnxValue:
    """Reshape `[n, d]` to `shape`, the inverse of `emit_flatten`."""
    # The symbol `flattened tokens` does not occur in any graph, so `Reshape` never copies the first
    # axis.
    flat_shape = (Dim.symbol("flattened tokens"), shape[-1])
    return emit_reshape(x, shape, source_shape=flat_shape)

"""Emit reshapes, reductions, MatMuls and checked indices.

Negative indices count from the end of the axis in ONNX, but are out of range in the IR.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from specc.ir import ops
from specc.ir.dim import Dim, DimLike, multiply_dims
from specc.ir.graph import Node, Value
from specc.ir.length_constraints import is_never_negative
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_values import OnnxValue, Operand, Tensor


def emit_reshape(
    x: OnnxValue, shape: Sequence[DimLike], *, source_shape: Sequence[DimLike] | None = None
) -> Tensor:
    """Emit a reshape of `x`, which may be empty, to `shape`. `source_shape` is the shape of `x`
    (default: the shape of the `Tensor`).
    """
    if source_shape is None:
        assert isinstance(x, Tensor), "a value without a shape needs a source shape"
        source_shape = x.shape
    constant = _find_constant_target(source_shape, shape)
    if tuple(source_shape) != tuple(shape):
        if constant is not None:
            x = x.reshape(constant)
        else:
            x = x.emit_node("Reshape", x.g.emit_shape(shape), allowzero=1)
    return x.with_shape(shape)


def _find_constant_target(
    source_shape: Sequence[DimLike], shape: Sequence[DimLike]
) -> Sequence[int] | None:
    """Return a constant shape operand for `Reshape`, or None if it is known only at run time."""
    # In the shape operand of `Reshape`, 0 copies an axis. All other dynamic axes are None.
    target: list[int | None] = []
    for axis, length in enumerate(map(Dim.from_value, shape)):
        is_unchanged = axis < len(source_shape) and source_shape[axis] == length
        target.append(0 if is_unchanged and length.number is None else length.number)
    static_sizes = [n for n in target if n is not None]
    # A target axis of size 0 cannot be expressed, because 0 copies an axis.
    if None not in target and 0 not in shape:
        return static_sizes
    # ONNX cannot infer -1 if another dimension is 0, and a copied axis may be empty.
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


def emit_nonnegative_size(g: Emitter, length: Dim, *nonnegative: Dim) -> OnnxValue:
    """Emit `length`, i64[1]. The model fails at run time if a size in `nonnegative` is negative."""
    return g.lengths.emit_length_check(g, g.emit_shape([length]), *nonnegative)


def emit_axis_length(x: OnnxValue, axis: int) -> OnnxValue:
    """Emit the size of an axis of `x`, i64[1]."""
    return x.emit_node("Shape", start=axis, end=axis + 1)


def emit_reduce(kind: str, x: OnnxValue, axis: int, keepdims: bool = False) -> OnnxValue:
    """Emit `ReduceSum`, `ReduceMean`, `ReduceMax` or `ReduceMin` over one axis."""
    if kind == "ReduceSum" or x.g.opset >= onnx_targets.REDUCE_AXES_INPUT_SINCE:
        return x.emit_node(kind, [axis], keepdims=keepdims)
    return x.emit_node(kind, axes=[axis], keepdims=keepdims)


def emit_count_nonzero(
    x: OnnxValue, *axes: int, dtype: str = "i64", keepdims: bool = False
) -> OnnxValue:
    """Count the true elements along `axes`, or in the whole tensor if there are no `axes`."""
    return x.cast(dtype).emit_node("ReduceSum", [*axes] or None, keepdims=keepdims)


def emit_matmul(x: Tensor, y: Tensor) -> OnnxValue:
    """Emit `MatMul`. If a broadcast axis may be empty, operands are broadcast explicitly first."""
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


LOWEST_KEY = float(np.nextafter(np.finfo(np.float32).min, np.float32(0)))
"""The lowest f32 key that the CUDA kernel of `TopK` distinguishes from its padding."""
STABLE_TOP_K_LENGTH = 256
"""The largest axis size for which the CUDA kernel of `TopK` orders equal elements by index."""


def emit_top_k(
    x: OnnxValue, count: Operand, *, axis: int, largest: bool = True
) -> tuple[OnnxValue, ...]:
    """Emit a `TopK`. Return the `count` largest or smallest elements, sorted, and their indices.
    Equal elements are ordered by index, as ONNX defines, except by some kernels on long axes
    (`emit_stable_top_k`).
    """
    g, options = x.g, dict[str, Any](axis=axis, largest=int(largest), sorted=1)
    if not g.lacks_kernel("TopK inf", x.dtype):
        return g.emit_nodes("TopK", 2, x, count, **options)
    # The CUDA kernel of `TopK` pads the axis with the lowest finite value and returns padding
    # instead of -inf.
    kind, limit = ("Max", LOWEST_KEY) if largest else ("Min", -LOWEST_KEY)
    _, indices = g.emit_nodes("TopK", 2, x.emit_node(kind, limit), count, **options)
    return x.gather_elements(indices, axis), indices


def emit_stable_top_k(
    x: Tensor, count: Operand, *, axis: int, largest: bool
) -> tuple[OnnxValue, ...]:
    """Emit a `TopK` that orders equal elements by index even on long axes."""
    g, length = x.g, x.shape[axis]
    is_short = length.number is not None and length.number <= STABLE_TOP_K_LENGTH
    if is_short or not g.lacks_kernel("stable TopK", x.dtype):
        return emit_top_k(x, count, axis=axis, largest=largest)
    # The first `TopK` sorts all elements, because `TopK` may select any of several equal elements.
    # The second `TopK` sorts the indices within each run of equal elements by the key `run index *
    # axis size + element index`.
    axis_length = g.emit_shape([length])
    values, indices = emit_top_k(x, axis_length, axis=axis, largest=largest)
    previous_indices = (emit_arange(g, length) - 1).maximum(0)
    equals_previous = values.equals(values.gather(previous_indices, axis))
    run_ids = (~equals_previous).cast("i64").emit_node("CumSum", axis)
    keys = run_ids * axis_length + indices
    sorted_keys, _ = emit_top_k(keys, count, axis=axis, largest=False)
    top_values = values.emit_node("Slice", [0], count, [axis])
    return top_values, sorted_keys % axis_length


def emit_min_length_padding(x: Tensor, axis: int, min_length: int = 1) -> OnnxValue:
    """Pad `x` with zeros at the end of `axis` to at least `min_length` positions."""
    g, length = x.g, x.shape[axis]
    if g.lengths.get_lower_bound(length) >= min_length:
        return x
    padding_length = ([min_length] - g.emit_shape([length])).maximum([0])
    padding_shape = [g.emit_shape([d]) for d in x.shape]
    padding_shape[axis] = padding_length
    zero = g.emit_constant(0, x.dtype)
    padding = zero.expand(g.emit_node("Concat", *padding_shape, axis=0))
    return x.emit_node("Concat", padding, axis=axis)


def is_always_true(x: Tensor) -> bool:
    """Return True if a boolean tensor is the constant true, possibly broadcast or reshaped."""
    value = x.value
    while value is not None and value.node is not None:
        op = value.node.op
        if op.name == "constant":
            return op.get_attributes()["value"] is True
        if op.name not in ("insert", "expand", "squeeze", "transpose", "split", "merge"):
            return False
        value = value.node.args[0]
    return False


MAX_SIGN_SEARCH_DEPTH = 48
"""Maximum number of ops through which the sign analysis follows a value."""

VALUE_PRESERVING_OPS = (
    *(ops.Insert, ops.Squeeze, ops.Expand, ops.Split, ops.Merge, ops.Transpose),
    *(ops.Slice, ops.Index, ops.Last, ops.Flip, ops.Roll),
    *(ops.Sort, ops.TopK, ops.StridedSlice),
)
"""Ops whose results are elements of their first operand."""

MAX_INTEGERS = {"i64": 2**63 - 1, "i32": 2**31 - 1}


def emit_checked_indices(ids: Tensor) -> OnnxValue:
    """Emit indices in which negative values are replaced by an index that is out of range, so that
    the runtime reports an error instead of counting from the end of the axis.
    """
    if ids.value is not None and is_nonnegative_value(ids.value, ids.g):
        return ids
    return (ids < 0).if_else(MAX_INTEGERS[ids.dtype], ids)


def emit_zeroed_padding_indices(ids: Tensor, keep: Tensor) -> OnnxValue:
    """Replace negative values of `ids` with 0 where the padding mask `keep` is false."""
    zero = ids.g.emit_constant(0, ids.dtype)
    return (~keep & (ids < zero)).if_else(zero, ids)


def is_nonnegative_value(value: Value, g: Emitter) -> bool:
    """Return True if no element of an integer tensor can be negative."""
    return SignAnalysis(g.lengths).are_nonnegative(value)


@dataclass
class SignAnalysis:
    """An analysis that proves integer values nonnegative by following the ops that compute them.
    `known_signs` memoizes its results (True if nonnegative).
    """

    lengths: DimResolver
    known_signs: dict[Value, bool] = field(default_factory=dict)
    depth: int = 0

    def are_nonnegative(self, *values: Value | None) -> bool:
        """Return True if no element of `values` can be negative. None is an unknown value."""
        return all(v is not None and self._is_nonnegative(v) for v in values)

    def _is_nonnegative(self, value: Value) -> bool:
        if value not in self.known_signs:
            self.depth += 1
            self.known_signs[value] = (
                value.node is not None
                and self.depth <= MAX_SIGN_SEARCH_DEPTH
                and (is_position_id_source(value) or self._is_nonnegative_node(value.node))
            )
            self.depth -= 1
        return self.known_signs[value]

    def _is_nonnegative_node(self, node: Node) -> bool:
        """Return True if the results of a node are nonnegative, ignoring overflow."""
        match node:
            case Node(ops.Constant(value=number)):
                return number >= 0
            case Node(ops.Size(length=length)):
                # a dimension such as `past - window` may be negative
                bounds = self.lengths.lower_bounds
                return is_never_negative(length.substitute(self.lengths.length_equations), bounds)
            case Node(ops.Cast(), (Value() as x,)):
                # casts from floats are not analyzed, because truncation changes signs: -0.5 becomes
                # 0
                is_integer = x.type.dtype in MAX_INTEGERS
                return x.type.dtype == "bool" or (is_integer and self.are_nonnegative(x))
            case Node(ops.Arith(fn="max"), (a, b)):
                # a maximum is nonnegative if one operand is nonnegative, as in `max(ids, 0)`
                return self.are_nonnegative(a) or self.are_nonnegative(b)
            case Node(ops.Delay(fill_value=first), args):
                return first >= 0 and self.are_nonnegative(*args)
        return self.are_nonnegative(*_list_sign_sources(node))


def _list_sign_sources(node: Node) -> Sequence[Value | None]:
    """Return the operands that, if nonnegative, make results nonnegative; [None] if unknown."""
    match node:
        case Node(ops.Arith(fn="mod"), (_, divisor)):
            # a remainder has the sign of the divisor
            return [divisor]
        case Node(ops.Where(), (_, *branches)):
            return branches
        case Node(ops.Arith(fn="add" | "mul" | "floordiv" | "min") | ops.Concat(), args):
            return args
        case Node(ops.Gather() | ops.Reduce(fn="sum") | ops.CumSum(), (x, *_)):
            return [x]
    return [node.args[0] if isinstance(node.op, VALUE_PRESERVING_OPS) else None]


def is_position_id_source(value: Value) -> bool:
    """Return True if the op of a value returns position ids or indices."""
    match value.node and value.node.op:
        case ops.Range() | ops.Extent() | ops.ArgMax():
            return True
        case ops.Sort() | ops.TopK():
            return value.index == 1  # result 1 of both ops contains the indices
    return False

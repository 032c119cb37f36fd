"""Emit reshapes, reductions, MatMuls and checked indices.

In ONNX, negative indices count from the end of the axis; in the IR, they are out of range.
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
from specc.ir.types import Type
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import Emitter, Operand, Tensor
from specc_onnx.lower.onnx_targets import ONNX_TYPE_CODES


def emit_reshape(
    g: Emitter, x: str | Tensor, shape: Sequence[DimLike], *, source_shape: Sequence[DimLike] = ()
) -> str:
    """Emit a reshape of `x`, which may be empty, to `shape`; a name needs its `source_shape`."""
    if isinstance(x, Tensor):
        source_shape, x = x.shape, x.name
    if tuple(source_shape) == tuple(shape):
        return x
    constant = _find_constant_target(source_shape, shape)
    if constant is not None:
        return g.emit_node("Reshape", x, constant)
    return g.emit_node("Reshape", x, g.emit_shape(shape), allowzero=1)


def _find_constant_target(
    source_shape: Sequence[DimLike], shape: Sequence[DimLike]
) -> Sequence[int] | None:
    """Return a constant shape operand for `Reshape`, or None if it must be computed at run time."""
    target = _plan_target_shape(source_shape, shape)
    static_sizes = [n for n in target if n is not None]
    # In the shape operand, 0 copies an axis, so no actual size may be 0.
    if None not in target and 0 not in shape:
        return static_sizes
    # ONNX cannot infer -1 if another dimension is 0, and a copied axis may be empty.
    if target.count(None) == 1 and all(n > 0 for n in static_sizes):
        return [-1 if n is None else n for n in target]
    return None


def _plan_target_shape(
    source_shape: Sequence[DimLike], shape: Sequence[DimLike]
) -> list[int | None]:
    """Return the shape operand of `Reshape`, with 0 for copied and None for other dynamic axes."""
    is_unchanged = [
        axis < len(source_shape) and source_shape[axis] == d for axis, d in enumerate(shape)
    ]
    return [
        0 if is_copied and length.number is None else length.number
        for is_copied, length in zip(is_unchanged, map(Dim.from_value, shape), strict=True)
    ]


def emit_flatten(g: Emitter, x: Tensor) -> str:
    """Merge all axes of `x` except the last; the result is `[n, d]`."""
    return emit_reshape(g, x, (multiply_dims(x.shape[:-1]), x.shape[-1]))


def emit_expand(g: Emitter, x: Tensor, shape: Sequence[DimLike]) -> str:
    """Emit `x` broadcast to `shape`."""
    if x.shape == tuple(shape):
        return x.name
    return g.emit_node("Expand", x, g.emit_shape(shape))


def emit_full(g: Emitter, value: float | int | bool, dtype: str, shape: Sequence[DimLike]) -> str:
    """Emit a tensor with `dtype` and `shape` that is filled with `value`."""
    scalar = g.emit_constant(value, dtype)
    return g.emit_node("Expand", scalar, g.emit_shape(shape)) if shape else scalar


def emit_slice(g: Emitter, x: str | Tensor, axis: int, start: DimLike, stop: DimLike) -> str:
    """Emit a `Slice` of positions `start` to `stop` (exclusive) along an axis."""
    return g.emit_node("Slice", x, g.emit_shape([start]), g.emit_shape([stop]), [axis])


def emit_nonnegative_size(g: Emitter, length: Dim, *nonnegative: Dim) -> str:
    """Emit `length`, i64[1]; the model fails at run time if a size in `nonnegative` is negative."""
    return g.lengths.emit_length_check(g, g.emit_shape([length]), *nonnegative)


def emit_axis_length(g: Emitter, x: str | Tensor, axis: int) -> str:
    """Emit the size of an axis of `x`, i64[1]."""
    return g.emit_node("Shape", x, start=axis, end=axis + 1)


def emit_unsqueeze(g: Emitter, x: str | Tensor, *axes: int) -> str:
    """Emit `x` with new axes of size 1 at the indices `axes` of the result."""
    name = x.name if isinstance(x, Tensor) else x
    return g.emit_node("Unsqueeze", name, [*axes]) if axes else name


def emit_reduce(g: Emitter, kind: str, x: Operand, axis: int, keepdims: bool = False) -> str:
    """Emit `ReduceSum`, `ReduceMean`, `ReduceMax` or `ReduceMin` over one axis."""
    if kind == "ReduceSum" or g.opset >= onnx_targets.REDUCE_AXES_INPUT_SINCE:
        return g.emit_node(kind, x, [axis], keepdims=keepdims)
    return g.emit_node(kind, x, axes=[axis], keepdims=keepdims)


def emit_count_nonzero(
    g: Emitter, x: str | Tensor, *axes: int, dtype: str = "i64", keepdims: bool = False
) -> str:
    """Count the true elements along `axes`, or in the whole tensor if there are no `axes`."""
    return g.emit_node("ReduceSum", emit_cast(g, x, dtype), [*axes] or None, keepdims=keepdims)


def emit_where(g: Emitter, dtype: str, condition: Operand, x: Operand, y: Operand) -> str:
    """Emit `Where(condition, x, y)`. For boolean operands, which ONNX Runtime's `Where` does not
    support, emit `condition & x | ~condition & y`.
    """
    if dtype != "bool":
        return g.emit_node("Where", condition, x, y)
    return g.emit_node(
        "Or", g.emit_node("And", condition, x), g.emit_node("And", g.emit_node("Not", condition), y)
    )


def emit_matmul(g: Emitter, x: Tensor, y: Tensor) -> str:
    """Emit `MatMul`. Operands are broadcast explicitly first if a broadcast axis may be empty."""
    names = []
    for operand, other in ((x, y), (y, x)):
        leading_shape, other_shape = operand.shape[-3::-1], other.shape[-3::-1]
        pairs = [*zip_longest(leading_shape, other_shape, fillvalue=Dim.from_value(1))][::-1]
        may_be_empty = any(a == 1 != b and not g.lengths.is_positive(b) for a, b in pairs)
        broadcast = [b if a == 1 else a for a, b in pairs]
        needs_expand = leading_shape and may_be_empty
        names.append(
            emit_expand(g, operand, (*broadcast, *operand.shape[-2:]))
            if needs_expand
            else operand.name
        )
    return g.emit_node("MatMul", *names)


def emit_cast(g: Emitter, x: str | Tensor, dtype: str, *, source_dtype: str = "") -> str:
    """Emit a cast of `x` to `dtype` if the dtypes differ; a name needs its `source_dtype`."""
    if isinstance(x, Tensor):
        source_dtype, x = x.dtype, x.name
    return x if source_dtype == dtype else g.emit_node("Cast", x, to=ONNX_TYPE_CODES[dtype])


def emit_arange(g: Emitter, length: Dim) -> str:
    """Emit the i64 vector `0, 1, …, length - 1`."""
    return g.emit_node("Range", 0, g.emit_length(length), 1)


LOWEST_KEY = float(np.nextafter(np.finfo(np.float32).min, np.float32(0)))
"""The lowest f32 key that the CUDA kernel of `TopK` distinguishes from its padding."""
STABLE_TOP_K_LENGTH = 256
"""The largest axis size for which the CUDA kernel of `TopK` orders equal elements by index."""


def emit_top_k(
    g: Emitter, x: str | Tensor, count: Operand, *, axis: int, largest: bool = True, dtype: str
) -> tuple[str, ...]:
    """Emit a `TopK`; return the `count` largest or smallest elements, sorted, and their indices.
    Equal elements are ordered by index, as ONNX defines, except by some kernels on long axes
    (`emit_stable_top_k`).
    """
    options: dict[str, Any] = {"axis": axis, "largest": int(largest), "sorted": 1}
    if not g.lacks_kernel("TopK inf", dtype):
        return g.emit_nodes("TopK", 2, x, count, **options)
    # The CUDA kernel of `TopK` pads the axis with the lowest finite value and returns padding
    # instead of -inf.
    kind, limit = ("Max", LOWEST_KEY) if largest else ("Min", -LOWEST_KEY)
    keys = g.emit_node(kind, x, g.emit_constant(limit, dtype))
    _, indices = g.emit_nodes("TopK", 2, keys, count, **options)
    return g.emit_node("GatherElements", x, indices, axis=axis), indices


def emit_stable_top_k(
    g: Emitter, x: Tensor, count: Operand, *, axis: int, largest: bool
) -> tuple[str, ...]:
    """Emit a `TopK` that orders equal elements by index, also on long axes."""
    length = x.shape[axis]
    is_short = length.number is not None and length.number <= STABLE_TOP_K_LENGTH
    if is_short or not g.lacks_kernel("stable TopK", x.dtype):
        return emit_top_k(g, x, count, axis=axis, largest=largest, dtype=x.dtype)
    # All elements are sorted first, because `TopK` may select any of several equal elements. Then
    # the indices are sorted within each run of equal elements. The sort key is the index of the run
    # times the axis size, plus the index of the element.
    axis_length = g.emit_shape([length])
    values, indices = emit_top_k(g, x, axis_length, axis=axis, largest=largest, dtype=x.dtype)
    previous_indices = g.emit_node("Max", g.emit_node("Sub", emit_arange(g, length), 1), 0)
    equals_previous = g.emit_node(
        "Equal", values, g.emit_node("Gather", values, previous_indices, axis=axis)
    )
    starts_run = emit_cast(g, g.emit_node("Not", equals_previous), "i64")
    run_ids = g.emit_node("CumSum", starts_run, axis)
    keys = g.emit_node("Add", g.emit_node("Mul", run_ids, axis_length), indices)
    sorted_keys, _ = emit_top_k(g, keys, count, axis=axis, largest=False, dtype="i64")
    top_values = g.emit_node("Slice", values, [0], count, [axis])
    return top_values, g.emit_node("Mod", sorted_keys, axis_length)


def emit_min_length_padding(g: Emitter, x: Tensor, axis: int, min_length: int = 1) -> str:
    """Emit `x`, padded with zeros at the end of `axis` to at least `min_length` positions."""
    length = x.shape[axis]
    if g.lengths.get_lower_bound(length) >= min_length:
        return x.name
    deficit = g.emit_node("Sub", [min_length], g.emit_shape([length]))
    padding_length = g.emit_node("Max", deficit, [0])
    padding_shape = [g.emit_shape([d]) for d in x.shape]
    padding_shape[axis] = padding_length
    zero = g.emit_constant(0, x.dtype)
    return g.emit_node(
        "Concat",
        x,
        g.emit_node("Expand", zero, g.emit_node("Concat", *padding_shape, axis=0)),
        axis=axis,
    )


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


def make_typed_tensor(name: str, dtype: str, shape: Sequence[DimLike]) -> Tensor:
    """Return the emitted value `name` as a `Tensor` without a corresponding IR value."""
    return Tensor(name, Type.of(dtype, *shape))


MAX_SIGN_SEARCH_DEPTH = 48
"""Maximum number of ops through which the sign analysis follows a value."""

VALUE_PRESERVING_OPS = (
    *(ops.Insert, ops.Squeeze, ops.Expand, ops.Split, ops.Merge, ops.Transpose),
    *(ops.Slice, ops.Index, ops.Last, ops.Flip, ops.Roll),
    *(ops.Sort, ops.TopK, ops.StridedSlice),
)
"""Ops whose results are elements of their first operand."""

MAX_INTEGERS = {"i64": 2**63 - 1, "i32": 2**31 - 1}


def emit_checked_indices(g: Emitter, ids: Tensor) -> str:
    """Emit indices in which negative values are replaced by an index that is out of range, so that
    the runtime reports an error instead of counting from the end of the axis.
    """
    if ids.value is not None and is_nonnegative_value(ids.value, g):
        return ids.name
    dtype = ids.dtype
    is_negative = g.emit_node("Less", ids, g.emit_constant(0, dtype))
    return g.emit_node("Where", is_negative, g.emit_constant(MAX_INTEGERS[dtype], dtype), ids)


def emit_zeroed_padding_indices(g: Emitter, ids: Tensor, keep: Tensor) -> str:
    """Emit `ids` with 0 in place of negative values where the padding mask `keep` is false."""
    zero = g.emit_constant(0, ids.dtype)
    is_padding = g.emit_node("And", g.emit_node("Not", keep), g.emit_node("Less", ids, zero))
    return g.emit_node("Where", is_padding, zero, ids)


def is_nonnegative_value(value: Value, g: Emitter) -> bool:
    """Return True if no element of an integer tensor can be negative."""
    return SignAnalysis(g.lengths).are_nonnegative(value)


@dataclass
class SignAnalysis:
    """An analysis that proves integer values nonnegative by following the ops that compute them;
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
                # casts from floats are not analyzed: -0.5 becomes 0, but -1.5 becomes -1
                is_integer = x.type.dtype in MAX_INTEGERS
                return x.type.dtype == "bool" or (is_integer and self.are_nonnegative(x))
            case Node(ops.Arith(fn="max"), (a, b)):
                # one nonnegative operand suffices, as in `max(ids, 0)`
                return self.are_nonnegative(a) or self.are_nonnegative(b)
            case Node(ops.Delay(fill_value=first), args):
                return first >= 0 and self.are_nonnegative(*args)
        return self.are_nonnegative(*_list_sign_sources(node))


def _list_sign_sources(node: Node) -> Sequence[Value | None]:
    """Return the operands whose signs imply nonnegative results, or [None] for other ops."""
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
            return value.index == 1  # the second result contains the indices
    return False

"""Lower ops that select positions: sort, top-k, slices, index, gather.

Negative indices count from the end of the axis in ONNX, but are out of range in the IR.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specc.analysis.length_limits import is_provably_nonnegative
from specc.ir import ops
from specc.ir.graph import Node, Value
from specc_onnx.lower.dynamic_shapes import DimResolver
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_values import OnnxValue, Operand, Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.reshape_reduce_and_matmul import emit_arange, emit_checked_length

lower.add_rules({ops.Last: lambda op, g, x: x.gather(-1, op.axis)})


@lower
def sort(op: ops.Sort, g: Emitter, x: Tensor) -> tuple[OnnxValue, ...]:
    """Lower a sort to a `TopK` of all elements."""
    count = g.emit_shape([x.shape[op.axis]])
    return emit_stable_top_k(x, count, axis=op.axis, largest=op.descending)


@lower
def top_k(op: ops.TopK, g: Emitter, x: Tensor) -> tuple[OnnxValue, ...]:
    """Lower a top-k selection to a `TopK` of `k` elements."""
    remaining_count = x.shape[op.axis] - op.k
    count = emit_checked_length(g, op.k, op.k, remaining_count)
    return emit_stable_top_k(x, count, axis=op.axis, largest=op.largest)


@lower
def strided_slice(op: ops.StridedSlice, g: Emitter, x: Tensor) -> OnnxValue:
    """Lower a strided slice to `Slice` with a step."""
    length = x.shape[op.axis]
    start = emit_checked_length(g, op.start, op.start, op.stop - op.start)
    stop = emit_checked_length(g, op.stop, length - op.stop, op.step - 1)
    return x.apply_op("Slice", start, stop, [op.axis], g.emit_shape([op.step]))


@lower
def slice_(op: ops.Slice, g: Emitter, x: Tensor) -> OnnxValue:
    """Emit `Slice`, or one `Split` for all slices of `x` if the slices partition the axis."""
    length = x.shape[op.axis]
    if op.start == 0 and op.stop == length:
        return x
    if x.value and (ends := g.analysis.split_ends.get(x.value, {}).get(op.axis)):
        starts = [0, *ends[:-1]]
        sizes = [b - a for a, b in zip(starts, ends, strict=True)]
        pieces = g.emit_multi_output_node("Split", len(ends), x, sizes, axis=op.axis)
        return pieces[starts.index(op.start.number or 0)]
    start = emit_checked_length(g, op.start, op.start, op.stop - op.start)
    stop = emit_checked_length(g, op.stop, length - op.stop)
    return x.apply_op("Slice", start, stop, [op.axis])


@lower
def index(op: ops.Index, g: Emitter, x: Tensor) -> OnnxValue:
    """Lower the selection of one position to a `Gather` with a scalar index."""
    if op.index.number is not None:
        return x.gather(g.emit_length(op.index), op.axis)
    position = emit_checked_length(g, op.index, op.index)
    return x.gather(position.squeeze(0), op.axis)


@lower
def gather(op: ops.Gather, g: Emitter, table: Tensor, ids: Tensor) -> OnnxValue:
    """Emit `Gather`, `GatherElements` or `GatherND`, batched over leading axes."""
    if op.axis == 0:
        return table.gather(emit_checked_indices(ids), 0)
    # on the last axis, `GatherND` would copy elements one by one and be five times slower
    if op.axis == table.rank - 1:
        return table.gather_elements(emit_checked_indices(ids), op.axis)
    indices = emit_checked_indices(ids).cast("i64")  # `GatherND` accepts only i64 indices
    index_columns = indices.unsqueeze(ids.rank)
    return table.apply_op("GatherND", index_columns, batch_dims=op.axis)


LOWEST_KEY = float(np.nextafter(np.finfo(np.float32).min, np.float32(0)))
"""The lowest f32 key that the CUDA kernel of `TopK` distinguishes from padding."""


STABLE_TOP_K_LENGTH = 256
"""The largest axis size for which the CUDA kernel of `TopK` orders equal elements by index."""


def emit_top_k(
    x: OnnxValue, count: Operand, *, axis: int, largest: bool = True
) -> tuple[OnnxValue, ...]:
    """Emit a `TopK`. Return the `count` largest or smallest elements in sorted order, and their
    indices. Equal elements are ordered by index, as ONNX defines, except by some kernels on long
    axes (`emit_stable_top_k`).
    """
    g, options = x.g, dict[str, Any](axis=axis, largest=int(largest), sorted=1)
    if g.has_kernel("TopK inf", x.dtype):
        return g.emit_multi_output_node("TopK", 2, x, count, **options)
    # The CUDA kernel of `TopK` pads the axis with the lowest finite value and returns padding
    # instead of -inf.
    kind, limit = ("Max", LOWEST_KEY) if largest else ("Min", -LOWEST_KEY)
    _, indices = g.emit_multi_output_node("TopK", 2, x.apply_op(kind, limit), count, **options)
    return x.gather_elements(indices, axis), indices


def emit_stable_top_k(
    x: Tensor, count: Operand, *, axis: int, largest: bool
) -> tuple[OnnxValue, ...]:
    """Emit a `TopK` that orders equal elements by index even on long axes."""
    g, length = x.g, x.shape[axis]
    is_short = length.number is not None and length.number <= STABLE_TOP_K_LENGTH
    if is_short or g.has_kernel("stable TopK", x.dtype):
        return emit_top_k(x, count, axis=axis, largest=largest)
    # The first `TopK` sorts all elements, because `TopK` may select any of several equal elements.
    # The second `TopK` sorts the indices within each run of equal elements by the key `run index *
    # axis size + element index`.
    axis_length = g.emit_shape([length])
    values, indices = emit_top_k(x, axis_length, axis=axis, largest=largest)
    previous_indices = (emit_arange(g, length) - 1).maximum(0)
    equals_previous = values.equals(values.gather(previous_indices, axis))
    run_ids = (~equals_previous).cast("i64").apply_op("CumSum", axis)
    keys = run_ids * axis_length + indices
    sorted_keys, _ = emit_top_k(keys, count, axis=axis, largest=False)
    top_values = values.apply_op("Slice", [0], count, [axis])
    return top_values, sorted_keys % axis_length


MAX_SIGN_SEARCH_DEPTH = 48
"""The maximum number of ops through which the sign analysis follows a value."""


VALUE_PRESERVING_OPS = (
    *(ops.Insert, ops.Squeeze, ops.Expand, ops.Split, ops.Merge, ops.Transpose),
    *(ops.Slice, ops.Index, ops.Last, ops.Flip, ops.Roll),
    *(ops.Sort, ops.TopK, ops.StridedSlice),
)
"""Ops whose results are elements of their first operand."""


MAX_INTEGERS = {"i64": 2**63 - 1, "i32": 2**31 - 1}


def emit_checked_indices(ids: Tensor) -> OnnxValue:
    """Replace each negative index with an index that is out of range. The runtime then reports an
    error instead of counting from the end of the axis.
    """
    if ids.value is not None and is_nonnegative_value(ids.value, ids.g):
        return ids
    return (ids < 0).where(MAX_INTEGERS[ids.dtype], ids)


def emit_zeroed_padding_indices(ids: Tensor, keep: Tensor) -> OnnxValue:
    """Replace negative values of `ids` with 0 at padded positions (where `keep` is false)."""
    zero = ids.g.emit_constant(0, ids.dtype)
    return (~keep & (ids < zero)).where(zero, ids)


def is_nonnegative_value(value: Value, g: Emitter) -> bool:
    """Return True if no element of an integer tensor can be negative."""
    return SignAnalysis(g.lengths).are_nonnegative(value)


@dataclass
class SignAnalysis:
    """An analysis that proves integer values nonnegative by following the ops that compute them.
    `known_signs` memoizes the results of the analysis (True if nonnegative).
    """

    lengths: DimResolver
    known_signs: dict[Value, bool] = field(default_factory=dict)
    depth: int = 0

    def are_nonnegative(self, *values: Value | None) -> bool:
        """Return True if no element of `values` can be negative. None denotes an unknown value."""
        return all(v is not None and self._is_nonnegative(v) for v in values)

    def _is_nonnegative(self, value: Value) -> bool:
        if value not in self.known_signs:
            self.depth += 1
            self.known_signs[value] = (
                value.node is not None
                and self.depth <= MAX_SIGN_SEARCH_DEPTH
                and (is_index_value(value) or self._is_nonnegative_node(value.node))
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
                return is_provably_nonnegative(
                    length.substitute(self.lengths.length_equations), bounds
                )
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
    """Return the operands that must be nonnegative so that the results are ([None] if unknown)."""
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


def is_index_value(value: Value) -> bool:
    """Return True if the op of a value returns position ids or indices."""
    match value.node and value.node.op:
        case ops.Range() | ops.Extent() | ops.ArgMax():
            return True
        case ops.Sort() | ops.TopK():
            return value.index == 1  # result 1 of `Sort` and of `TopK` contains the indices
    return False

"""Infer shapes and dtypes of weight expressions from file headers, and evaluate the expressions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specc.ir.array import Array
from specc.weights.formats.safetensors import TensorEntry
from specc.weights.formats.safetensors_header import DTYPE_BITS, NUMPY_DTYPES
from specc.weights.weight_expressions import (
    AddNumberExpr,
    CastExpr,
    ConcatExpr,
    Expr,
    FirstPresentExpr,
    NegateExpr,
    PermuteRopeExpr,
    RearrangeExpr,
    ReshapeExpr,
    ResizeGridExpr,
    Shape,
    SliceExpr,
    SplitPartExpr,
    StackExpr,
    TensorExpr,
    TransposeExpr,
    UnaryExpr,
    WeightExpressionError,
    iterate_tensor_names,
    plan_rearrange,
    resolve_alternatives,
)


def infer_expression_shape(expr: Expr, shapes: Mapping[str, Shape]) -> Shape:
    """Infer the shape of an expression. Raise WeightExpressionError if the shapes do not match."""
    match expr:
        case TensorExpr(name):
            return shapes[name]
        case ConcatExpr():
            return _infer_concat_shape(
                expr, [infer_expression_shape(p, shapes) for p in expr.parts]
            )
        case StackExpr():
            return _infer_stack_shape([infer_expression_shape(p, shapes) for p in expr.parts])
        case FirstPresentExpr():
            return infer_expression_shape(resolve_alternatives(expr, shapes.__contains__), shapes)
    return _infer_unary_shape(expr, infer_expression_shape(expr.x, shapes))


def _infer_unary_shape(expr: UnaryExpr, shape: Shape) -> Shape:
    """Infer the shape of a one-operand expression from the shape of its operand."""
    match expr:
        case TransposeExpr():
            return tuple(shape[a] for a in expr.get_permutation(shape))
        case ReshapeExpr(shape=new_shape):
            return _infer_reshape(shape, new_shape)
        case SliceExpr() | SplitPartExpr():
            axis = expr.axis
            start, stop = _get_slice_bounds(expr, _get_length(shape, axis))
            return (*shape[:axis], stop - start, *shape[axis + 1 :])
        case PermuteRopeExpr(heads=heads):
            _check_pairs(_get_length(shape, 0), heads)
            return shape
        case ResizeGridExpr():
            return _infer_grid_shape(expr, shape)
        case RearrangeExpr(pattern=pattern, sizes=sizes):
            return plan_rearrange(pattern, shape, dict(sizes)).merged_shape
        case NegateExpr() | CastExpr() | AddNumberExpr():
            return shape


def _check_pairs(rows: int, heads: int) -> None:
    """Raise WeightExpressionError unless each attention head has an even number of rows."""
    if heads < 1 or rows % (2 * heads):
        raise WeightExpressionError(f"{rows} rows cannot be split into {heads} heads of pairs")


def _get_slice_bounds(expr: SliceExpr | SplitPartExpr, length: int) -> tuple[int, int]:
    """Return the bounds of a slice or chunk; raise WeightExpressionError if out of range."""
    if isinstance(expr, SplitPartExpr):
        return expr.get_bounds(length)
    if not 0 <= expr.start <= expr.stop <= length:
        raise WeightExpressionError(
            f"slice {expr.start}:{expr.stop} is out of range for an axis of length {length}"
        )
    return expr.start, expr.stop


def infer_expression_dtype(expr: Expr, dtypes: Mapping[str, str]) -> str:
    """Infer the dtype of an expression. Raise WeightExpressionError if operands differ in dtype."""
    match expr:
        case TensorExpr(name):
            return dtypes[name]
        case CastExpr(dtype=dtype):
            return dtype
        case ConcatExpr(parts=parts) | StackExpr(parts=parts):
            return _infer_common_dtype(parts, dtypes)
        case FirstPresentExpr():
            return infer_expression_dtype(resolve_alternatives(expr, dtypes.__contains__), dtypes)
        case AddNumberExpr() | ResizeGridExpr():
            dtype = infer_expression_dtype(expr.x, dtypes)
            return "f32" if DTYPE_BITS[dtype] < 32 else dtype
        case _:
            return infer_expression_dtype(expr.x, dtypes)


def _infer_common_dtype(parts: tuple[Expr, ...], dtypes: Mapping[str, str]) -> str:
    """Infer the common dtype of tensors that are concatenated or stacked."""
    dtypes_of_parts = {infer_expression_dtype(p, dtypes) for p in parts}
    if len(dtypes_of_parts) > 1:
        raise WeightExpressionError(
            f"cannot concatenate {' and '.join(sorted(dtypes_of_parts))}; cast one of them"
        )
    return dtypes_of_parts.pop()


def slice_expression(expr: Expr, start: int, stop: int, shapes: Mapping[str, Shape]) -> Expr | None:
    """Return an expression for rows `start` to `stop` of axis 0, or None if the expression cannot
    be sliced.
    """
    match expr:
        case TensorExpr():
            return SliceExpr(expr, 0, start, stop)
        case SliceExpr(axis=0) | SplitPartExpr(axis=0):
            length = infer_expression_shape(expr.x, shapes)[0]
            offset, _ = _get_slice_bounds(expr, length)
            return slice_expression(expr.x, offset + start, offset + stop, shapes)
        case TransposeExpr():
            order = expr.get_permutation(infer_expression_shape(expr.x, shapes))
            keeps_rows = order[0] == 0
        case _:
            keeps_rows = isinstance(expr, SliceExpr | SplitPartExpr | NegateExpr | CastExpr)
    if not keeps_rows:
        return None
    assert not isinstance(expr, ConcatExpr | StackExpr | FirstPresentExpr)
    rows = slice_expression(expr.x, start, stop, shapes)
    return None if rows is None else replace(expr, x=rows)


@dataclass(frozen=True, slots=True)
class TensorView:
    """A contiguous range of a tensor's stored bytes; `offset` is relative to the start of the
    tensor.
    """

    tensor: str
    offset: int
    nbytes: int


def find_stored_view(expr: Expr, entries: Mapping[str, TensorEntry]) -> TensorView | None:
    """Return the range of stored bytes that equals the value of an expression, or None if the value
    must be computed.
    """
    match expr:
        case TensorExpr(name):
            return TensorView(name, 0, entries[name].nbytes)
        case FirstPresentExpr():
            return find_stored_view(resolve_alternatives(expr, entries.__contains__), entries)
        case ConcatExpr(parts=(only,)) | StackExpr(parts=(only,)):
            return find_stored_view(only, entries)
        case ReshapeExpr() | CastExpr() | TransposeExpr():
            return find_stored_view(expr.x, entries) if _has_same_bytes(expr, entries) else None
        case SliceExpr() | SplitPartExpr():
            return _slice_view(expr, find_stored_view(expr.x, entries), entries)
        case _:
            return None


def _has_same_bytes(
    expr: ReshapeExpr | CastExpr | TransposeExpr, entries: Mapping[str, TensorEntry]
) -> bool:
    """Return True if a reshape, cast or transpose leaves the stored bytes unchanged: a cast to the
    same dtype, or a transpose that moves only axes of size 1.
    """
    present = {n: entries[n] for n in iterate_tensor_names(expr) if n in entries}
    match expr:
        case ReshapeExpr():
            return True
        case CastExpr(dtype=dtype):
            return dtype == infer_expression_dtype(expr.x, {n: e.dtype for n, e in present.items()})
        case TransposeExpr():
            return _keeps_element_order(expr, present)


def _keeps_element_order(expr: TransposeExpr, entries: Mapping[str, TensorEntry]) -> bool:
    """Return True if a transpose preserves the order of all axes of size greater than 1."""
    shape = infer_expression_shape(expr.x, {n: e.shape for n, e in entries.items()})
    order = [a for a in expr.get_permutation(shape) if shape[a] != 1]
    return order == sorted(order)


def _slice_view(
    expr: SliceExpr | SplitPartExpr,
    tensor_view: TensorView | None,
    entries: Mapping[str, TensorEntry],
) -> TensorView | None:
    """Return the byte range of a slice of `tensor_view`. Return None if the slice is not
    contiguous, i.e. an axis before the sliced axis has a size other than 1.
    """
    shapes = {n: entries[n].shape for n in iterate_tensor_names(expr) if n in entries}
    shape = infer_expression_shape(expr.x, shapes)
    if tensor_view is None or math.prod(shape[: expr.axis]) != 1:
        return None
    length = shape[expr.axis]
    start, stop = _get_slice_bounds(expr, length)
    row = tensor_view.nbytes // length if length else 0
    return TensorView(tensor_view.tensor, tensor_view.offset + start * row, (stop - start) * row)


def _get_length(shape: Shape, axis: int) -> int:
    if not 0 <= axis < len(shape):
        raise WeightExpressionError(
            f"axis {axis} is out of range for shape {list(shape)}; the first axis is 0"
        )
    return shape[axis]


def _infer_concat_shape(expr: ConcatExpr, shapes: list[Shape]) -> Shape:
    if not shapes:
        raise WeightExpressionError("nothing to concatenate")
    axis, total = expr.axis, sum(_get_length(s, expr.axis) for s in shapes)
    other_lengths = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    if len(other_lengths) > 1:
        raise WeightExpressionError(
            f"{' and '.join(str(list(s)) for s in shapes)} differ along other axes than {axis}"
        )
    return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


def _infer_stack_shape(shapes: list[Shape]) -> Shape:
    if not shapes:
        raise WeightExpressionError("nothing to stack")
    if len(set(shapes)) > 1:
        differ = sorted({str(list(s)) for s in shapes})
        raise WeightExpressionError(f"cannot stack {' and '.join(differ)}")
    return (len(shapes), *shapes[0])


def _infer_reshape(shape: Shape, new_shape: Shape) -> Shape:
    if new_shape.count(-1) > 1 or min(new_shape, default=0) < -1:
        raise WeightExpressionError(f"{list(new_shape)} is not a valid shape; one length may be -1")
    count, inferred = math.prod(shape), new_shape
    if -1 in new_shape:
        axis, known_count = new_shape.index(-1), -math.prod(new_shape)
        # Use the inferred size: if another axis has size 0, any size would be valid.
        inferred_length = count // known_count if known_count else -1
        inferred = (*new_shape[:axis], inferred_length, *new_shape[axis + 1 :])
    if -1 in inferred or math.prod(inferred) != count:
        raise WeightExpressionError(
            f"{list(shape)} has {count} elements and cannot become {list(new_shape)}"
        )
    return inferred


def _infer_grid_shape(expr: ResizeGridExpr, shape: Shape) -> Shape:
    if len(shape) < 2:
        raise WeightExpressionError(
            f"a position embedding needs rank >= 2, got shape {list(shape)}"
        )
    points = shape[-2] - expr.prefix
    if expr.prefix < 0 or points < 1 or math.isqrt(points) ** 2 != points:
        raise WeightExpressionError(
            f"{shape[-2]} positions minus {expr.prefix} prefix positions are not a square grid"
        )
    if expr.rows < 1 or expr.columns < 1:
        raise WeightExpressionError("the new grid must have at least one row and one column")
    return (*shape[:-2], expr.prefix + expr.rows * expr.columns, shape[-1])


def evaluate_weight_expression(
    expr: Expr,
    read_tensor: Callable[[str], Array],
    read_rows: Callable[[str, slice], Array] | None = None,
) -> Array:
    """Evaluate a weight expression. `read_tensor` reads a tensor by name, and `read_rows` reads a
    range of rows of a tensor.

    The caller must first check the shapes with `infer_expression_shape` and resolve alternatives
    with `resolve_alternatives`.
    """
    match expr:
        case TensorExpr(name):
            return read_tensor(name)
        case SliceExpr(TensorExpr(name), 0, start, stop) if read_rows is not None:
            return read_rows(name, slice(start, stop))
        case ConcatExpr(parts=parts, axis=axis):
            arrays = [evaluate_weight_expression(p, read_tensor, read_rows) for p in parts]
            return np.concatenate(arrays, axis)
        case StackExpr(parts=parts):
            return np.stack([evaluate_weight_expression(p, read_tensor, read_rows) for p in parts])
        case FirstPresentExpr():
            raise AssertionError("alternatives are resolved before evaluation")
    return _apply_unary(expr, evaluate_weight_expression(expr.x, read_tensor, read_rows))


def _apply_unary(expr: UnaryExpr, x: Array) -> Array:
    """Evaluate a one-operand expression for the operand value `x`."""
    match expr:
        case TransposeExpr():
            return x.transpose(expr.get_permutation(x.shape))
        case ReshapeExpr(shape=shape):
            return x.reshape(shape)
        case SliceExpr(axis=axis, start=start, stop=stop):
            return x[(slice(None),) * axis + (slice(start, stop),)]
        case SplitPartExpr(axis=axis):
            return x[(slice(None),) * axis + (slice(*expr.get_bounds(x.shape[axis])),)]
        case PermuteRopeExpr(to=to, heads=heads):
            # in the interleaved layout, the rows of a head are pairs; in the half-split layout, two
            # halves
            pairs = (heads, -1, 2) if to == "half" else (heads, 2, -1)
            return x.reshape(*pairs, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        case RearrangeExpr(pattern=pattern, sizes=sizes):
            return plan_rearrange(pattern, x.shape, dict(sizes)).rearrange(x)
        case _:
            return _apply_elementwise(expr, x)


def _apply_elementwise(
    expr: NegateExpr | CastExpr | AddNumberExpr | ResizeGridExpr, x: Array
) -> Array:
    match expr:
        case NegateExpr():
            return np.asarray(-x)
        case CastExpr(dtype=dtype):
            return x.astype(NUMPY_DTYPES[dtype])
        case AddNumberExpr(number=number):
            x32 = _cast_to_32_bits(x)
            return np.asarray(x32 + x32.dtype.type(number))
        case ResizeGridExpr(rows=rows, columns=columns, prefix=prefix):
            return resize_grid(_cast_to_32_bits(x), rows, columns, prefix)


def _cast_to_32_bits(x: Array) -> Array:
    """Convert an array to a dtype of at least 32 bits."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


CUBIC_COEFFICIENT = -0.75
"""The parameter of the cubic kernel of PyTorch's `interpolate(mode="bicubic", antialias=False)`."""


def resize_grid(table: Array, rows: int, columns: int, prefix: int) -> Array:
    """Resize position embeddings [..., prefix + n·n, d] to [..., prefix + rows·columns, d] with
    bicubic interpolation, align_corners=False and edge padding. The first `prefix` embeddings
    ([CLS] etc.) are unchanged.

    The embeddings are computed in float64 and rounded once. The kernel is that of Keys 1981, "Cubic
    convolution interpolation", eq. 4 in the general form.
    """
    side = math.isqrt(table.shape[-2] - prefix)
    batch, d = table.shape[:-2], table.shape[-1]
    grid = table[..., prefix:, :].astype(np.float64).reshape(*batch, side, side, d)
    weights = [_make_resampling_matrix(side, length) for length in (rows, columns)]
    path = ["einsum_path", (0, 1), (0, 1)]
    grid = np.einsum("rs,...std,ct->...rcd", weights[0], grid, weights[1], optimize=path)
    resized = grid.reshape(*batch, rows * columns, d).astype(table.dtype)
    return np.concatenate([table[..., :prefix, :], resized], axis=-2)


def _make_resampling_matrix(old_length: int, new_length: int) -> NDArray[np.float64]:
    """Return a float64 matrix [new, old]; row r has the weights of output sample r."""
    matrix = np.zeros((new_length, old_length))
    for r in range(new_length):
        center = (r + 0.5) * old_length / new_length - 0.5
        first = math.floor(center)
        for k in range(-1, 3):
            index = min(max(first + k, 0), old_length - 1)
            matrix[r, index] += _evaluate_cubic_kernel(abs(center - (first + k)))
    return matrix


def _evaluate_cubic_kernel(distance: float) -> float:
    """Evaluate the cubic kernel at `distance`, measured in samples of the input grid."""
    if distance <= 1:
        return (
            (CUBIC_COEFFICIENT + 2) * distance - (CUBIC_COEFFICIENT + 3)
        ) * distance * distance + 1
    if distance < 2:
        return (
            (CUBIC_COEFFICIENT * distance - 5 * CUBIC_COEFFICIENT) * distance
            + 8 * CUBIC_COEFFICIENT
        ) * distance - 4 * CUBIC_COEFFICIENT
    return 0.0

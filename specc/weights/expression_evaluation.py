"""Infer shapes and dtypes of weight expressions from file headers, and evaluate the expressions."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specc.ir.array import Array
from specc.ir.signature import AxisGroup, RearrangePatternError, parse_rearrange_pattern
from specc.weights.formats.safetensors_header import DTYPE_BITS, NUMPY_DTYPES, TensorEntry
from specc.weights.weight_expressions import (
    AddScalarExpr,
    BaseSliceExpr,
    CastExpr,
    CoalesceExpr,
    ConcatExpr,
    Expr,
    NegateExpr,
    PermuteRopeExpr,
    RearrangeExpr,
    ReshapeExpr,
    ResizeGridExpr,
    Shape,
    SliceExpr,
    StackExpr,
    TensorExpr,
    TransposeExpr,
    UnaryExpr,
    WeightExpressionError,
    iterate_tensor_names,
    resolve_coalesce,
)


def infer_expression_shape(expr: Expr, shapes: Mapping[str, Shape]) -> Shape:
    """Infer the shape of an expression. Raise WeightExpressionError if the shapes do not match."""
    match expr:
        case TensorExpr(name):
            return shapes[name]
        case CoalesceExpr():
            return infer_expression_shape(resolve_coalesce(expr, shapes.__contains__), shapes)
        case RearrangeExpr(x=x):
            return compute_rearrange_steps(expr, infer_expression_shape(x, shapes)).merged_shape
        case UnaryExpr(x=x):
            return expr.infer_shape(infer_expression_shape(x, shapes))
    assert isinstance(expr, ConcatExpr | StackExpr)
    return expr.infer_shape([infer_expression_shape(part, shapes) for part in expr.parts])


def infer_expression_dtype(expr: Expr, dtypes: Mapping[str, str]) -> str:
    """Infer the dtype of an expression. Raise WeightExpressionError if operands differ in dtype."""
    match expr:
        case TensorExpr(name):
            return dtypes[name]
        case CastExpr(dtype=dtype):
            return dtype
        case ConcatExpr(parts=parts) | StackExpr(parts=parts):
            part_dtypes = {infer_expression_dtype(part, dtypes) for part in parts}
            if len(part_dtypes) > 1:
                names = " and ".join(sorted(part_dtypes))
                raise WeightExpressionError(f"cannot concatenate {names}; cast one of them")
            return part_dtypes.pop()
        case CoalesceExpr():
            return infer_expression_dtype(resolve_coalesce(expr, dtypes.__contains__), dtypes)
        case AddScalarExpr(x=x) | ResizeGridExpr(x=x):
            dtype = infer_expression_dtype(x, dtypes)
            return "f32" if DTYPE_BITS[dtype] < 32 else dtype
    (operand,) = expr.operands
    return infer_expression_dtype(operand, dtypes)


def slice_expression_rows(
    expr: Expr, start: int, stop: int, shapes: Mapping[str, Shape]
) -> Expr | None:
    """Return an expression for the rows `start` to `stop` (axis 0) of `expr`, or None if `expr`
    cannot be sliced.
    """
    match expr:
        case TensorExpr():
            return SliceExpr(expr, 0, start, stop)
        case BaseSliceExpr(x=x, axis=0):
            offset, _ = expr.get_bounds(infer_expression_shape(x, shapes)[0])
            return slice_expression_rows(x, offset + start, offset + stop, shapes)
        case TransposeExpr(x=x):
            is_rowwise = expr.get_permutation(infer_expression_shape(x, shapes))[0] == 0
        case _:
            is_rowwise = isinstance(expr, UnaryExpr) and expr.is_rowwise
    if not is_rowwise:
        return None
    assert isinstance(expr, UnaryExpr)
    rows = slice_expression_rows(expr.x, start, stop, shapes)
    return None if rows is None else replace(expr, x=rows)


def split_concatenation(expr: Expr) -> Iterator[Expr]:
    """Yield the expressions that a possibly nested concatenation or stack joins, in order."""
    match expr:
        case StackExpr(parts=parts) | ConcatExpr(parts=parts, axis=0):
            for part in parts:
                yield from split_concatenation(part)
        case _:
            yield expr


@dataclass(frozen=True, slots=True)
class TensorByteRange:
    """A contiguous range of a tensor's stored bytes. `offset` is relative to the tensor's start."""

    tensor: str
    offset: int
    nbytes: int


def find_stored_byte_range(
    expr: Expr, entries: Mapping[str, TensorEntry]
) -> TensorByteRange | None:
    """Return the range of stored bytes that is equal to an expression's value, or None if the value
    must be computed.
    """
    match expr:
        case TensorExpr(name):
            return TensorByteRange(name, 0, entries[name].nbytes)
        case CoalesceExpr():
            return find_stored_byte_range(resolve_coalesce(expr, entries.__contains__), entries)
        case ConcatExpr(parts=(only,)) | StackExpr(parts=(only,)):
            return find_stored_byte_range(only, entries)
        case ReshapeExpr() | CastExpr() | TransposeExpr():
            return (
                find_stored_byte_range(expr.x, entries) if _has_same_bytes(expr, entries) else None
            )
        case BaseSliceExpr():
            return _slice_view(expr, find_stored_byte_range(expr.x, entries), entries)
        case _:
            return None


def _has_same_bytes(expr: UnaryExpr, entries: Mapping[str, TensorEntry]) -> bool:
    """Return True if a reshape, cast or transpose leaves the stored bytes unchanged. A cast must be
    to the same dtype, and a transpose may move only axes of size 1.
    """
    present = {n: entries[n] for n in iterate_tensor_names(expr) if n in entries}
    match expr:
        case CastExpr(dtype=dtype):
            return dtype == infer_expression_dtype(expr.x, {n: e.dtype for n, e in present.items()})
        case TransposeExpr():
            shape = infer_expression_shape(expr.x, {n: e.shape for n, e in present.items()})
            order = [a for a in expr.get_permutation(shape) if shape[a] != 1]
            return order == sorted(order)
    return True


def _slice_view(
    expr: BaseSliceExpr, tensor_view: TensorByteRange | None, entries: Mapping[str, TensorEntry]
) -> TensorByteRange | None:
    """Return the byte range of a slice of `tensor_view`. Return None if the slice is not
    contiguous, i.e. an axis before the sliced axis has a size other than 1.
    """
    shapes = {n: entries[n].shape for n in iterate_tensor_names(expr) if n in entries}
    shape = infer_expression_shape(expr.x, shapes)
    if tensor_view is None or math.prod(shape[: expr.axis]) != 1:
        return None
    length = shape[expr.axis]
    start, stop = expr.get_bounds(length)
    row = tensor_view.nbytes // length if length else 0
    return TensorByteRange(
        tensor_view.tensor, tensor_view.offset + start * row, (stop - start) * row
    )


def evaluate_weight_expression(
    expr: Expr,
    read_tensor: Callable[[str], Array],
    read_rows: Callable[[str, slice], Array] | None = None,
) -> Array:
    """Evaluate a weight expression. `read_tensor` reads a tensor by name, and `read_rows` reads
    some of its rows.

    The caller must first check the shapes with `infer_expression_shape` and resolve alternatives
    with `resolve_coalesce`.
    """
    match expr:
        case TensorExpr(name):
            return read_tensor(name)
        case SliceExpr(TensorExpr(name), 0, start, stop) if read_rows is not None:
            return read_rows(name, slice(start, stop))
    operands = [evaluate_weight_expression(o, read_tensor, read_rows) for o in expr.operands]
    match expr:
        case ConcatExpr(axis=axis):
            return np.concatenate(operands, axis)
        case StackExpr():
            return np.stack(operands)
        case UnaryExpr():
            return _apply_unary(expr, operands[0])
    raise AssertionError("alternatives are resolved before evaluation")


def _apply_unary(expr: UnaryExpr, x: Array) -> Array:
    """Evaluate a one-operand expression for the operand value `x`."""
    match expr:
        case TransposeExpr():
            return x.transpose(expr.get_permutation(x.shape))
        case ReshapeExpr(shape=shape):
            return x.reshape(shape)
        case BaseSliceExpr(axis=axis):
            return x[(slice(None),) * axis + (slice(*expr.get_bounds(x.shape[axis])),)]
        case PermuteRopeExpr(to=to, heads=heads):
            # the interleaved RoPE layout stores the rows of a head as pairs, whereas the half-split
            # layout stores them as two halves
            pairs = (heads, -1, 2) if to == "half" else (heads, 2, -1)
            return x.reshape(*pairs, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        case RearrangeExpr():
            return compute_rearrange_steps(expr, x.shape).rearrange(x)
        case CastExpr(dtype=dtype):
            return x.astype(NUMPY_DTYPES[dtype])
        case AddScalarExpr(scalar=scalar):
            x32 = _cast_to_32_bits(x)
            return np.asarray(x32 + x32.dtype.type(scalar))
        case ResizeGridExpr(rows=rows, columns=columns, prefix=prefix):
            return resize_grid(_cast_to_32_bits(x), rows, columns, prefix)
    assert isinstance(expr, NegateExpr)
    return np.asarray(-x)


def _cast_to_32_bits(x: Array) -> Array:
    """Convert an array to a dtype of at least 32 bits."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


@dataclass(frozen=True, slots=True)
class RearrangeSteps:
    """The steps of a rearrangement for known sizes: reshape to `split_shape`, permute, reshape."""

    split_shape: tuple[int, ...]
    permutation: tuple[int, ...]
    merged_shape: tuple[int, ...]

    def rearrange(self, x: Array) -> Array:
        """Apply the rearrangement to the array `x`."""
        return x.reshape(self.split_shape).transpose(self.permutation).reshape(self.merged_shape)


def compute_rearrange_steps(expr: RearrangeExpr, shape: Shape) -> RearrangeSteps:
    """Plan the rearrangement of an array with the shape `shape`. Raise WeightExpressionError if the
    pattern does not match.
    """
    try:
        pattern = parse_rearrange_pattern(expr.pattern)
    except RearrangePatternError as error:
        raise WeightExpressionError(str(error)) from None
    for side in (pattern.left_names, pattern.right_names):
        _check_distinct(side)
    if unbalanced_names := pattern.find_unmatched_axis_names():
        raise WeightExpressionError(f"`{unbalanced_names[0]}` is on only one side of the pattern")
    if len(pattern.left) != len(shape):
        axes = f"the pattern is for {len(pattern.left)} axes"
        raise WeightExpressionError(f"{axes}, the tensor has {len(shape)}: {list(shape)}")
    lengths: dict[str, int] = {}
    for axis, length in zip(pattern.left, shape, strict=True):
        _infer_group_lengths(axis, length, dict(expr.sizes), lengths)
    return RearrangeSteps(
        tuple(lengths[n] for n in pattern.left_names),
        pattern.find_permutation(),
        tuple(math.prod(lengths[n] for n in axis) for axis in pattern.right),
    )


def _check_distinct(side: list[str]) -> None:
    """Raise WeightExpressionError if an axis name occurs twice on one side of a pattern."""
    for name in side:
        if side.count(name) > 1:
            raise WeightExpressionError(f"duplicate `{name}` on one side of the pattern")


def _infer_group_lengths(
    group: AxisGroup, length: int, sizes: Mapping[str, int], lengths: dict[str, int]
) -> None:
    """Add the sizes of all names in an axis `group` of size `length` to `lengths`. At most one of
    the names may be missing in `sizes`. Raise WeightExpressionError if the sizes do not fit.
    """
    known_sizes = {n: sizes[n] for n in group if n in sizes}
    unknown = [n for n in group if n not in known_sizes]
    product, text = math.prod(known_sizes.values()), " ".join(group)
    # a single unknown size can be computed, but of two unknown sizes only the product is known
    if len(unknown) > 1:
        raise WeightExpressionError(
            f"pass the length of `{unknown[0]}` or `{unknown[1]}`: both are unknown in `({text})`"
        )
    if unknown and (product == 0 or length % product):
        raise WeightExpressionError(
            f"an axis of {length} cannot be split as `({text})`: {product} does not divide it"
        )
    if not unknown and product != length:
        raise WeightExpressionError(
            f"an axis of {length} cannot be split as `({text})`, which has {product} elements"
        )
    lengths |= known_sizes | dict.fromkeys(unknown, length // max(product, 1))


CUBIC_COEFFICIENT = -0.75
"""The cubic kernel parameter of PyTorch's `interpolate(mode="bicubic", antialias=False)`."""


def resize_grid(table: Array, rows: int, columns: int, prefix_count: int) -> Array:
    """Resize position embeddings [..., prefix + n·n, d] to [..., prefix + rows·columns, d] with
    bicubic interpolation, align_corners=False and edge padding. The first `prefix_count` embeddings
    ([CLS] etc.) are unchanged.

    The embeddings are computed in float64 and rounded once. The kernel is the general form of eq. 4
    in Keys 1981, "Cubic convolution interpolation".
    """
    side = math.isqrt(table.shape[-2] - prefix_count)
    batch, d = table.shape[:-2], table.shape[-1]
    grid = table[..., prefix_count:, :].astype(np.float64).reshape(*batch, side, side, d)
    weights = [_make_resampling_matrix(side, length) for length in (rows, columns)]
    path = ["einsum_path", (0, 1), (0, 1)]
    grid = np.einsum("rs,...std,ct->...rcd", weights[0], grid, weights[1], optimize=path)
    resized = grid.reshape(*batch, rows * columns, d).astype(table.dtype)
    return np.concatenate([table[..., :prefix_count, :], resized], axis=-2)


def _make_resampling_matrix(old_length: int, new_length: int) -> NDArray[np.float64]:
    """Return a float64 matrix [new, old] whose row r contains the weights for output sample r."""
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

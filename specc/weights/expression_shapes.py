"""Shapes and dtypes of weight expressions, from headers alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from specc.weights.formats.safetensors import TensorEntry
from specc.weights.formats.safetensors_header import BITS
from specc.weights.rearrange_pattern import PatternMismatch, plan_rearrange
from specc.weights.weight_expressions import (
    AddNumberExpr,
    CastExpr,
    ConcatExpr,
    Expr,
    FirstPresentExpr,
    NegateExpr,
    OfOne,
    PartExpr,
    PermutePairsExpr,
    RearrangeExpr,
    ReshapeExpr,
    ResizeGridExpr,
    Shape,
    SliceExpr,
    StackExpr,
    TensorExpr,
    TransposeExpr,
    list_tensors,
    resolve_alternatives,
)


def infer_expression_shape(expr: Expr, shapes: Mapping[str, Shape]) -> Shape:
    """The shape of the result, from the shapes of tensors. Raises Unfit, which `bind`
    makes an E0511.
    """
    match expr:
        case TensorExpr(name):
            return shapes[name]
        case ConcatExpr():
            return _concat_shape(expr, [infer_expression_shape(p, shapes) for p in expr.parts])
        case StackExpr():
            return _stack_shape([infer_expression_shape(p, shapes) for p in expr.parts])
        case FirstPresentExpr():
            return infer_expression_shape(resolve_alternatives(expr, shapes.__contains__), shapes)
    return _shape_from(expr, infer_expression_shape(expr.x, shapes))


def _shape_from(expr: OfOne, shape: Shape) -> Shape:
    """The shape of an expression of one tensor, from the shape of that."""
    match expr:
        case TransposeExpr():
            return tuple(shape[a] for a in expr.order(len(shape)))
        case ReshapeExpr(shape=wanted):
            return _reshaped(shape, wanted)
        case SliceExpr() | PartExpr():
            axis = expr.axis
            start, stop = _rows_of(expr, _length(shape, axis))
            return (*shape[:axis], stop - start, *shape[axis + 1 :])
        case PermutePairsExpr(heads=heads):
            _check_pairs(_length(shape, 0), heads)
            return shape
        case ResizeGridExpr():
            return _grid_shape(expr, shape)
        case RearrangeExpr(pattern=pattern, sizes=sizes):
            return plan_rearrange(pattern, shape, dict(sizes)).merged
        case NegateExpr() | CastExpr() | AddNumberExpr():
            return shape


def _rows_of(expr: SliceExpr | PartExpr, length: int) -> tuple[int, int]:
    """The first row that is taken of an axis, and the one after the last. Raises Unfit."""
    if isinstance(expr, PartExpr):
        return expr.bounds(length)
    if not 0 <= expr.start <= expr.stop <= length:
        raise PatternMismatch(
            f"rows {expr.start} to {expr.stop} are not all in an axis of {length}"
        )
    return expr.start, expr.stop


def infer_expression_dtype(expr: Expr, dtypes: Mapping[str, str]) -> str:
    """The element type of the result. Raises Unfit if parts that are joined differ in theirs."""
    match expr:
        case TensorExpr(name):
            return dtypes[name]
        case CastExpr(dtype=dtype):
            return dtype
        case ConcatExpr(parts=parts) | StackExpr(parts=parts):
            found = {infer_expression_dtype(p, dtypes) for p in parts}
            if len(found) > 1:
                raise PatternMismatch(
                    f"tensors of {' and '.join(sorted(found))} cannot be joined; cast one of them"
                )
            return found.pop()
        case FirstPresentExpr():
            return infer_expression_dtype(resolve_alternatives(expr, dtypes.__contains__), dtypes)
        case AddNumberExpr() | ResizeGridExpr():
            dtype = infer_expression_dtype(expr.x, dtypes)
            return "f32" if BITS[dtype] < 32 else dtype
        case _:
            return infer_expression_dtype(expr.x, dtypes)


def slice_expression(expr: Expr, start: int, stop: int, shapes: Mapping[str, Shape]) -> Expr | None:
    """An expression for some rows (axis 0) of another, which reads only the rows of tensors
    that it needs; None where it would need others.
    """
    match expr:
        case TensorExpr():
            return SliceExpr(expr, 0, start, stop)
        case SliceExpr(axis=0) | PartExpr(axis=0):
            length = infer_expression_shape(expr.x, shapes)[0]
            before, _ = _rows_of(expr, length)
            return slice_expression(expr.x, before + start, before + stop, shapes)
        case TransposeExpr():
            order = expr.order(len(infer_expression_shape(expr.x, shapes)))
            keeps_rows = order[0] == 0
        case _:
            keeps_rows = isinstance(expr, SliceExpr | PartExpr | NegateExpr | CastExpr)
    if not keeps_rows:
        return None
    assert not isinstance(expr, ConcatExpr | StackExpr | FirstPresentExpr)
    rows = slice_expression(expr.x, start, stop, shapes)
    return None if rows is None else replace(expr, x=rows)


@dataclass(frozen=True, slots=True)
class TensorView:
    """A run of a tensor's stored bytes: `offset` counts from the first byte of the tensor."""

    tensor: str
    offset: int
    nbytes: int


def find_stored_view(expr: Expr, entries: Mapping[str, TensorEntry]) -> TensorView | None:
    """Where in a tensor the bytes of the result already lie, or nothing if it has to be
    computed.
    """
    match expr:
        case TensorExpr(name):
            return TensorView(name, 0, entries[name].nbytes)
        case FirstPresentExpr():
            return find_stored_view(resolve_alternatives(expr, entries.__contains__), entries)
        case ConcatExpr(parts=(only,)) | StackExpr(parts=(only,)):
            return find_stored_view(only, entries)
        case ReshapeExpr() | CastExpr() | TransposeExpr():
            return find_stored_view(expr.x, entries) if _keeps_bytes(expr, entries) else None
        case SliceExpr() | PartExpr():
            return _part_of(expr, find_stored_view(expr.x, entries), entries)
        case _:
            return None


def _keeps_bytes(
    expr: ReshapeExpr | CastExpr | TransposeExpr, entries: Mapping[str, TensorEntry]
) -> bool:
    """Whether the stored bytes stay as they are: axes of length 1 may move anywhere."""
    known = {n: entries[n] for n in list_tensors(expr) if n in entries}
    match expr:
        case ReshapeExpr():
            return True
        case CastExpr(dtype=dtype):
            return dtype == infer_expression_dtype(expr.x, {n: e.dtype for n, e in known.items()})
        case TransposeExpr():
            shape = infer_expression_shape(expr.x, {n: e.shape for n, e in known.items()})
            moved = [a for a in expr.order(len(shape)) if shape[a] != 1]
            return moved == sorted(moved)


def _part_of(
    expr: SliceExpr | PartExpr, whole: TensorView | None, entries: Mapping[str, TensorEntry]
) -> TensorView | None:
    """The bytes of some rows: they lie together only along the first axis, if those
    before it have length 1.
    """
    shapes = {n: entries[n].shape for n in list_tensors(expr) if n in entries}
    shape = infer_expression_shape(expr.x, shapes)
    if whole is None or math.prod(shape[: expr.axis]) != 1:
        return None
    length = shape[expr.axis]
    start, stop = _rows_of(expr, length)
    row = whole.nbytes // length if length else 0
    return TensorView(whole.tensor, whole.offset + start * row, (stop - start) * row)


def _length(shape: Shape, axis: int) -> int:
    if not 0 <= axis < len(shape):
        raise PatternMismatch(
            f"there is no axis {axis} in a tensor of shape {list(shape)}; the first axis is 0"
        )
    return shape[axis]


def _concat_shape(expr: ConcatExpr, shapes: list[Shape]) -> Shape:
    if not shapes:
        raise PatternMismatch("there is nothing to join")
    axis, total = expr.axis, sum(_length(s, expr.axis) for s in shapes)
    rests = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    if len(rests) > 1:
        raise PatternMismatch(
            f"{' and '.join(str(list(s)) for s in shapes)} differ not only along axis {axis}"
        )
    return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


def _check_pairs(rows: int, heads: int) -> None:
    # Each head's rows are exchanged by twos.
    if heads < 1 or rows % (2 * heads):
        raise PatternMismatch(f"{rows} rows are not {heads} heads of whole pairs")


def _stack_shape(shapes: list[Shape]) -> Shape:
    if not shapes:
        raise PatternMismatch("there is nothing to stack")
    if len(set(shapes)) > 1:
        differ = sorted({str(list(s)) for s in shapes})
        raise PatternMismatch(f"{' and '.join(differ)} cannot be rows of one axis")
    return (len(shapes), *shapes[0])


def _reshaped(shape: Shape, wanted: Shape) -> Shape:
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise PatternMismatch(f"{list(wanted)} is no shape; one length may be -1")
    count, found = math.prod(shape), wanted
    if -1 in wanted:
        at, known = wanted.index(-1), -math.prod(wanted)
        # What is left over; beside an axis of no rows it could be any length.
        rest = count // known if known else -1
        found = (*wanted[:at], rest, *wanted[at + 1 :])
    if -1 in found or math.prod(found) != count:
        raise PatternMismatch(
            f"{list(shape)} has {count} elements and cannot become {list(wanted)}"
        )
    return found


def _grid_shape(expr: ResizeGridExpr, shape: Shape) -> Shape:
    if len(shape) < 2:
        raise PatternMismatch(f"a table of positions has at least two axes, not {list(shape)}")
    points = shape[-2] - expr.prefix
    if expr.prefix < 0 or points < 1 or math.isqrt(points) ** 2 != points:
        raise PatternMismatch(f"{shape[-2]} rows less {expr.prefix} are no square grid")
    if expr.rows < 1 or expr.columns < 1:
        raise PatternMismatch("the new grid must have at least one row and one column")
    return (*shape[:-2], expr.prefix + expr.rows * expr.columns, shape[-1])

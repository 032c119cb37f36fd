"""What a weight expression gives, from headers alone: shape, element type, and where
its bytes lie.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from specc.weights.formats.dtypes import BITS
from specc.weights.formats.safetensors import Entry
from specc.weights.rearrange import Unfit, moves
from specc.weights.transform import (
    AddNumber,
    Cast,
    Concat,
    Expr,
    FirstPresent,
    Negate,
    OfOne,
    Part,
    PermutePairs,
    Rearrange,
    Reshape,
    ResizeGrid,
    Shape,
    Slice,
    Stack,
    Tensor,
    Transpose,
    chosen,
    tensors_of,
)


def shape_of(expr: Expr, shapes: Mapping[str, Shape]) -> Shape:
    """The shape of the result, from the shapes of tensors. Raises Unfit, which `bind`
    makes an E0511.
    """
    match expr:
        case Tensor(name):
            return shapes[name]
        case Concat():
            return _concat_shape(expr, [shape_of(p, shapes) for p in expr.parts])
        case Stack():
            return _stack_shape([shape_of(p, shapes) for p in expr.parts])
        case FirstPresent():
            return shape_of(chosen(expr, shapes.__contains__), shapes)
    return _shape_from(expr, shape_of(expr.x, shapes))


def _shape_from(expr: OfOne, shape: Shape) -> Shape:
    """The shape of an expression of one tensor, from the shape of that."""
    match expr:
        case Transpose():
            return tuple(shape[a] for a in expr.order(len(shape)))
        case Reshape(shape=wanted):
            return _reshaped(shape, wanted)
        case Slice() | Part():
            axis = expr.axis
            start, stop = _rows_of(expr, _length(shape, axis))
            return (*shape[:axis], stop - start, *shape[axis + 1 :])
        case PermutePairs(heads=heads):
            _check_pairs(_length(shape, 0), heads)
            return shape
        case ResizeGrid():
            return _grid_shape(expr, shape)
        case Rearrange(pattern=pattern, sizes=sizes):
            return moves(pattern, shape, dict(sizes)).merged
        case Negate() | Cast() | AddNumber():
            return shape


def _rows_of(expr: Slice | Part, length: int) -> tuple[int, int]:
    """The first row that is taken of an axis, and the one after the last. Raises Unfit."""
    if isinstance(expr, Part):
        return expr.bounds(length)
    if not 0 <= expr.start <= expr.stop <= length:
        raise Unfit(
            f"rows {expr.start} to {expr.stop} are not all in an axis of {length}"
        )
    return expr.start, expr.stop


def dtype_of(expr: Expr, dtypes: Mapping[str, str]) -> str:
    """The element type of the result. Raises Unfit if parts that are joined differ in theirs."""
    match expr:
        case Tensor(name):
            return dtypes[name]
        case Cast(dtype=dtype):
            return dtype
        case Concat(parts=parts) | Stack(parts=parts):
            found = {dtype_of(p, dtypes) for p in parts}
            if len(found) > 1:
                raise Unfit(
                    f"tensors of {' and '.join(sorted(found))} cannot be joined; cast one of them"
                )
            return found.pop()
        case FirstPresent():
            return dtype_of(chosen(expr, dtypes.__contains__), dtypes)
        case AddNumber() | ResizeGrid():
            dtype = dtype_of(expr.x, dtypes)
            return "f32" if BITS[dtype] < 32 else dtype
        case _:
            return dtype_of(expr.x, dtypes)


@dataclass(frozen=True, slots=True)
class View:
    """A run of a tensor's stored bytes: `offset` counts from the first byte of the tensor."""

    tensor: str
    offset: int
    nbytes: int


def view_of(expr: Expr, entries: Mapping[str, Entry]) -> View | None:
    """Where in a tensor the bytes of the result already lie, or nothing if it has to be
    computed.
    """
    match expr:
        case Tensor(name):
            return View(name, 0, entries[name].nbytes)
        case FirstPresent():
            return view_of(chosen(expr, entries.__contains__), entries)
        case Concat(parts=(only,)) | Stack(parts=(only,)):
            return view_of(only, entries)
        case Reshape() | Cast() | Transpose():
            return view_of(expr.x, entries) if _keeps_bytes(expr, entries) else None
        case Slice() | Part():
            return _part_of(expr, view_of(expr.x, entries), entries)
        case _:
            return None


def _keeps_bytes(
    expr: Reshape | Cast | Transpose, entries: Mapping[str, Entry]
) -> bool:
    """Whether the stored bytes stay as they are: axes of length 1 may move anywhere."""
    known = {n: entries[n] for n in tensors_of(expr) if n in entries}
    match expr:
        case Reshape():
            return True
        case Cast(dtype=dtype):
            return dtype == dtype_of(expr.x, {n: e.dtype for n, e in known.items()})
        case Transpose():
            shape = shape_of(expr.x, {n: e.shape for n, e in known.items()})
            moved = [a for a in expr.order(len(shape)) if shape[a] != 1]
            return moved == sorted(moved)


def _part_of(
    expr: Slice | Part, whole: View | None, entries: Mapping[str, Entry]
) -> View | None:
    """The bytes of some rows: they lie together only along the first axis, if those
    before it have length 1.
    """
    shapes = {n: entries[n].shape for n in tensors_of(expr) if n in entries}
    shape = shape_of(expr.x, shapes)
    if whole is None or math.prod(shape[: expr.axis]) != 1:
        return None
    length = shape[expr.axis]
    start, stop = _rows_of(expr, length)
    row = whole.nbytes // length if length else 0
    return View(whole.tensor, whole.offset + start * row, (stop - start) * row)


def _length(shape: Shape, axis: int) -> int:
    if not 0 <= axis < len(shape):
        raise Unfit(
            f"there is no axis {axis} in a tensor of shape {list(shape)}; the first axis is 0"
        )
    return shape[axis]


def _concat_shape(expr: Concat, shapes: list[Shape]) -> Shape:
    if not shapes:
        raise Unfit("there is nothing to join")
    axis, total = expr.axis, sum(_length(s, expr.axis) for s in shapes)
    rests = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    if len(rests) > 1:
        raise Unfit(
            f"{' and '.join(str(list(s)) for s in shapes)} differ not only along axis {axis}"
        )
    return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


def _check_pairs(rows: int, heads: int) -> None:
    # Each head's rows are exchanged by twos.
    if heads < 1 or rows % (2 * heads):
        raise Unfit(f"{rows} rows are not {heads} heads of whole pairs")


def _stack_shape(shapes: list[Shape]) -> Shape:
    if not shapes:
        raise Unfit("there is nothing to stack")
    if len(set(shapes)) > 1:
        differ = sorted({str(list(s)) for s in shapes})
        raise Unfit(f"{' and '.join(differ)} cannot be rows of one axis")
    return (len(shapes), *shapes[0])


def _reshaped(shape: Shape, wanted: Shape) -> Shape:
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise Unfit(f"{list(wanted)} is no shape; one length may be -1")
    count, found = math.prod(shape), wanted
    if -1 in wanted:
        at, known = wanted.index(-1), -math.prod(wanted)
        # What is left over; beside an axis of no rows it could be any length.
        rest = count // known if known else -1
        found = (*wanted[:at], rest, *wanted[at + 1 :])
    if -1 in found or math.prod(found) != count:
        raise Unfit(
            f"{list(shape)} has {count} elements and cannot become {list(wanted)}"
        )
    return found


def _grid_shape(expr: ResizeGrid, shape: Shape) -> Shape:
    if len(shape) < 2:
        raise Unfit(f"a table of positions has at least two axes, not {list(shape)}")
    points = shape[-2] - expr.prefix
    if expr.prefix < 0 or points < 1 or math.isqrt(points) ** 2 != points:
        raise Unfit(f"{shape[-2]} rows less {expr.prefix} are no square grid")
    if expr.rows < 1 or expr.columns < 1:
        raise Unfit("the new grid must have at least one row and one column")
    return (*shape[:-2], expr.prefix + expr.rows * expr.columns, shape[-1])

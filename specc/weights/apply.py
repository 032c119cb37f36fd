"""The numbers of a weight expression, once its shapes are known to fit and its choices are made."""

from collections.abc import Callable

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.dtypes import NUMPY
from specc.weights.grid import resize_grid
from specc.weights.rearrange import moves
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
    Slice,
    Stack,
    Tensor,
    Transpose,
)


def apply(expr: Expr, get: Callable[[str], Array]) -> Array:
    """The value; `get` gives tensors by name. `shape_of` checked the shapes, `chosen`
    made the choices.
    """
    match expr:
        case Tensor(name):
            return get(name)
        case Concat(parts=parts, axis=axis):
            return np.concatenate([apply(p, get) for p in parts], axis)
        case Stack(parts=parts):
            return np.stack([apply(p, get) for p in parts])
        case FirstPresent():
            raise AssertionError("a choice of tensors was left open")
    return _moved(expr, apply(expr.x, get))


def _moved(expr: OfOne, x: Array) -> Array:
    """What an expression of one array makes of it. Those that move elements are here,
    those that compute new ones below.
    """
    match expr:
        case Transpose():
            return x.transpose(expr.order(x.ndim))
        case Reshape(shape=shape):
            return x.reshape(shape)
        case Slice(axis=axis, start=start, stop=stop):
            return x[(slice(None),) * axis + (slice(start, stop),)]
        case Part(axis=axis):
            return x[(slice(None),) * axis + (slice(*expr.bounds(x.shape[axis])),)]
        case PermutePairs(to=to, heads=heads):
            # rows of a head are pairs side by side, or all firsts and then all seconds
            pairs = (heads, -1, 2) if to == "half" else (heads, 2, -1)
            return x.reshape(*pairs, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        case Rearrange(pattern=pattern, sizes=sizes):
            return moves(pattern, x.shape, dict(sizes)).apply(x)
        case _:
            return _computed(expr, x)


def _computed(expr: Negate | Cast | AddNumber | ResizeGrid, x: Array) -> Array:
    match expr:
        case Negate():
            return np.asarray(-x)
        case Cast(dtype=dtype):
            return x.astype(NUMPY[dtype])
        case AddNumber(number=number):
            wide = _wide(x)
            return np.asarray(wide + wide.dtype.type(number))
        case ResizeGrid(rows=rows, columns=columns, prefix=prefix):
            return resize_grid(_wide(x), rows, columns, prefix)


def _wide(x: Array) -> Array:
    """At least 32-bit elements."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x

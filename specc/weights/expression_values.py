"""Evaluate weight expressions."""

from collections.abc import Callable

import numpy as np

from specc.ir.array import Array
from specc.weights.formats.safetensors_header import NUMPY
from specc.weights.rearrange_pattern import plan_rearrange
from specc.weights.resize_grid import resize_grid
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
    SliceExpr,
    StackExpr,
    TensorExpr,
    TransposeExpr,
)


def evaluate_weight_expression(
    expr: Expr, get: Callable[[str], Array], get_rows: Callable[[str, slice], Array] | None = None
) -> Array:
    """The value; `get` gives tensors by name, `get_rows` some rows of one.
    `infer_expression_shape` checked the shapes, `resolve_alternatives` made the choices.
    """
    match expr:
        case TensorExpr(name):
            return get(name)
        case SliceExpr(TensorExpr(name), 0, start, stop) if get_rows is not None:
            return get_rows(name, slice(start, stop))
        case ConcatExpr(parts=parts, axis=axis):
            made = [evaluate_weight_expression(p, get, get_rows) for p in parts]
            return np.concatenate(made, axis)
        case StackExpr(parts=parts):
            return np.stack([evaluate_weight_expression(p, get, get_rows) for p in parts])
        case FirstPresentExpr():
            raise AssertionError("a choice of tensors was left open")
    return _moved(expr, evaluate_weight_expression(expr.x, get, get_rows))


def _moved(expr: OfOne, x: Array) -> Array:
    """What an expression of one array makes of it. Those that move elements are here,
    those that compute new ones below.
    """
    match expr:
        case TransposeExpr():
            return x.transpose(expr.order(x.ndim))
        case ReshapeExpr(shape=shape):
            return x.reshape(shape)
        case SliceExpr(axis=axis, start=start, stop=stop):
            return x[(slice(None),) * axis + (slice(start, stop),)]
        case PartExpr(axis=axis):
            return x[(slice(None),) * axis + (slice(*expr.bounds(x.shape[axis])),)]
        case PermutePairsExpr(to=to, heads=heads):
            # rows of a head are pairs side by side, or all firsts and then all seconds
            pairs = (heads, -1, 2) if to == "half" else (heads, 2, -1)
            return x.reshape(*pairs, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        case RearrangeExpr(pattern=pattern, sizes=sizes):
            return plan_rearrange(pattern, x.shape, dict(sizes)).apply(x)
        case _:
            return _computed(expr, x)


def _computed(expr: NegateExpr | CastExpr | AddNumberExpr | ResizeGridExpr, x: Array) -> Array:
    match expr:
        case NegateExpr():
            return np.asarray(-x)
        case CastExpr(dtype=dtype):
            return x.astype(NUMPY[dtype])
        case AddNumberExpr(number=number):
            wide = _wide(x)
            return np.asarray(wide + wide.dtype.type(number))
        case ResizeGridExpr(rows=rows, columns=columns, prefix=prefix):
            return resize_grid(_wide(x), rows, columns, prefix)


def _wide(x: Array) -> Array:
    """At least 32-bit elements."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x

"""Evaluate elementwise ops, reductions, reshapes and padding."""

import math
import operator
from collections.abc import Callable, Mapping

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph_interpreter import (
    compute_merge_result_shape,
    compute_split_result_shape,
    convert_einsum_axes_to_integers,
    evaluate_dim,
    evaluate_pad_amounts,
)
from specc.ir.types import FLOAT32_INTEGER_RANGES
from specc_numpy.numpy_interpreter import LengthValues, evaluate, get_numpy_dtype


def _erf(x: Array) -> Array:
    """Compute the error function of each element."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def sigmoid(x: Array) -> Array:
    """Compute `1 / (1 + exp(-x))` without overflow."""
    result: Array = np.exp(-np.logaddexp(0.0, -x))
    return result


NUMPY_FUNCTIONS = (
    *("abs", "ceil", "cos", "exp", "expm1", "floor", "log", "log1p", "round", "sign", "sin"),
    *("sqrt", "tanh"),
)
"""Pointwise functions with the same name in NumPy."""

POINTWISE_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    **{name: getattr(np, name) for name in NUMPY_FUNCTIONS},
    "erf": _erf,
    # exact GELU of arXiv:1606.08415, sec. 2
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "neg": np.negative,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),  # quick GELU of arXiv:1606.08415
    "reciprocal": lambda x: 1 / x,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,  # squared ReLU of arXiv:2109.08668
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "softplus": lambda x: np.logaddexp(0.0, x),
}


def _power(a: Array, b: Array) -> Array:
    """Compute `a ** b`. NumPy treats -inf differently for a scalar `b`, so `b` is broadcast."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    result: Array = np.power(a, np.broadcast_to(b, shape).copy())
    return result


ARITHMETIC_FUNCTIONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": _power,
    "min": np.minimum,
    "max": np.maximum,
    "floordiv": np.floor_divide,
    "mod": np.mod,
}

COMPARISON_FUNCTIONS: Mapping[str, Callable[[Array, Array], Array]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "same_group": lambda left, right: (left == right) & (left > 0),
}


evaluate.add_rules(
    {
        ops.Constant: lambda op, lengths: np.array(op.value, get_numpy_dtype(op.dtype)),
        ops.Range: lambda op, lengths: np.arange(evaluate_dim(op.length, lengths), dtype=np.int64),
        ops.Extent: lambda op, lengths, x: np.arange(x.shape[op.axis], dtype=np.int64),
        ops.Size: lambda op, lengths: np.array(evaluate_dim(op.length, lengths), np.int64),
        ops.Pointwise: lambda op, lengths, x: POINTWISE_FUNCTIONS[op.fn](x),
        ops.Arith: lambda op, lengths, left, right: ARITHMETIC_FUNCTIONS[op.fn](left, right),
        ops.Compare: lambda op, lengths, left, right: COMPARISON_FUNCTIONS[op.fn](left, right),
        ops.And: lambda op, lengths, left, right: np.logical_and(left, right),
        ops.Or: lambda op, lengths, left, right: np.logical_or(left, right),
        ops.Not: lambda op, lengths, a: np.logical_not(a),
        ops.Where: lambda op, lengths, condition, x, y: np.where(condition, x, y),
        ops.Transpose: lambda op, lengths, x: x.transpose(op.order),
        ops.Split: lambda op, lengths, x: x.reshape(
            compute_split_result_shape(op, x.shape, lengths)
        ),
        ops.Merge: lambda op, lengths, x: x.reshape(compute_merge_result_shape(op, x.shape)),
        ops.Insert: lambda op, lengths, x: np.expand_dims(x, op.axis),
        ops.Squeeze: lambda op, lengths, x: np.squeeze(x, op.axis),
        ops.Expand: lambda op, lengths, x: np.repeat(
            x, evaluate_dim(op.length, lengths), axis=op.axis
        ),
        ops.Concat: lambda op, lengths, *xs: np.concatenate(xs, axis=op.axis),
        ops.Roll: lambda op, lengths, x: np.roll(x, evaluate_dim(op.shift, lengths), axis=op.axis),
        ops.Flip: lambda op, lengths, x: np.flip(x, op.axis),
        ops.CumSum: lambda op, lengths, x: np.cumsum(x, axis=op.axis, dtype=x.dtype),
        ops.MatMul: lambda op, lengths, left, right: left @ right,
        ops.Reduce: lambda op, lengths, x: REDUCTIONS[op.fn](x, op.axis),
        ops.OneHot: lambda op, lengths, ids: (
            ids[..., None] == np.arange(evaluate_dim(op.size, lengths))
        ).astype(np.float64),
    }
)


@evaluate
def cast(op: ops.Cast, lengths: LengthValues, x: Array) -> Array:
    """Cast to another element type. Floats are truncated to integers and saturate. NaN becomes 0.

    a[*s] -> n[*s]
    """
    if op.to not in FLOAT32_INTEGER_RANGES or x.dtype.kind != "f":
        return x.astype(get_numpy_dtype(op.to))
    lowest, highest = FLOAT32_INTEGER_RANGES[op.to]
    clipped: Array = np.clip(
        np.nan_to_num(x, nan=0.0, posinf=highest, neginf=lowest), lowest, highest
    )
    return np.trunc(clipped).astype(get_numpy_dtype(op.to))


@evaluate
def delay(op: ops.Delay, lengths: LengthValues, x: Array) -> Array:
    """Shift the elements to the right along an axis. Fill the first `op.steps` positions with
    `op.fill_value`.

    a[*a t *b] -> a[*a t *b]
    """
    length = x.shape[op.axis]
    padding = np.full(
        (*x.shape[: op.axis], op.steps, *x.shape[op.axis + 1 :]), op.fill_value, x.dtype
    )
    return np.take(np.concatenate([padding, x], axis=op.axis), np.arange(length), axis=op.axis)


def _get_dtype_bounds(x: Array) -> tuple[float, float]:
    """Return the lowest and the highest value of the dtype of `x`. Floats have infinities."""
    if x.dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(x.dtype).min, np.iinfo(x.dtype).max


REDUCTIONS: dict[str, Callable[[Array, int], Array]] = {
    "sum": lambda x, axis: x.sum(axis, dtype=x.dtype),
    "mean": lambda x, axis: x.sum(axis) / max(x.shape[axis], 1),
    "max": lambda x, axis: x.max(axis, initial=_get_dtype_bounds(x)[0]),
    "min": lambda x, axis: x.min(axis, initial=_get_dtype_bounds(x)[1]),
    "any": lambda x, axis: np.asarray(x.any(axis)),
    "all": lambda x, axis: np.asarray(x.all(axis)),
}


@evaluate
def arg_max(op: ops.ArgMax, lengths: LengthValues, x: Array) -> Array:
    """Compute the index of the first maximum along an axis, or 0 for an empty axis.

    n[*a t *b] -> i[*a *b]
    """
    if not x.shape[op.axis]:
        return np.zeros(x.shape[: op.axis] + x.shape[op.axis + 1 :], np.int64)
    maximum: Array = x.argmax(axis=op.axis)
    return maximum


@evaluate
def einsum(op: ops.Einsum, lengths: LengthValues, *operands: Array) -> Array:
    """Evaluate an einsum with any number of operands.

    f[*s] -> f[*t]
    """
    terms, result = convert_einsum_axes_to_integers(op)
    arguments = [argument for pair in zip(operands, terms, strict=True) for argument in pair]
    return np.asarray(np.einsum(*arguments, result))


@evaluate
def pad(op: ops.Pad, lengths: LengthValues, x: Array) -> Array:
    """Pad both ends of an axis with a constant, by reflection, or with the edge values.

    a[*a t *b] -> a[*a u *b]
    """
    start_padding, end_padding = evaluate_pad_amounts(op, x.shape[op.axis], lengths)
    widths = [(0, 0)] * x.ndim
    widths[op.axis] = start_padding, end_padding
    if op.mode == "constant":
        return np.pad(x, widths, constant_values=op.value)
    return np.pad(x, widths, mode="edge" if op.mode == "edge" else "reflect")

"""Elementwise ops, reductions, reshapes and padding in PyTorch."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from specc.ir import ops
from specc.ir.graph_interpreter import (
    compute_merge_result_shape,
    compute_split_result_shape,
    convert_einsum_axes_to_integers,
    evaluate_pad_amounts,
)
from specc.ir.types import FLOAT32_INTEGER_RANGES
from specc_torch.torch_interpreter import ForwardContext, evaluate

TORCH_FUNCTIONS = (
    *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "neg", "reciprocal"),
    *("round", "sigmoid", "sin", "sqrt", "tanh"),
)
"""Pointwise functions with the same name in PyTorch."""

POINTWISE_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(torch, name) for name in TORCH_FUNCTIONS},
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),  # quick GELU of arXiv:1606.08415
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x) ** 2,  # squared ReLU of arXiv:2109.08668
    "sign": lambda x: torch.where(torch.isnan(x), x, torch.sign(x)),
    "silu": functional.silu,
    # `functional.softplus` is not used, because it is linear above 20
    "softplus": lambda x: torch.logaddexp(x, torch.zeros((), dtype=x.dtype, device=x.device)),
}


def _make_integer_division(
    divide: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a division function that returns zero for an integer division by zero. Division by -1
    is computed as a product, because dividing the minimum integer by -1 crashes the process.
    """

    def divide_integers(a: Tensor, b: Tensor) -> Tensor:
        if b.is_floating_point():
            return divide(a, b)
        is_special = (b == 0) | (b == -1)
        quotient = divide(a, torch.where(is_special, torch.ones_like(b), b))
        is_remainder = divide is torch.remainder
        return torch.where(
            is_special, torch.zeros_like(quotient) if is_remainder else a * b, quotient
        )

    return divide_integers


ARITHMETIC_FUNCTIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "min": torch.minimum,
    "max": torch.maximum,
    "floordiv": _make_integer_division(torch.floor_divide),
    "mod": _make_integer_division(torch.remainder),
}

COMPARISON_FUNCTIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "same_group": lambda left, right: (left == right) & (left > 0),
}


evaluate.add_rules(
    {
        ops.Constant: lambda op, context: context.make_scalar(
            op.value, context.get_torch_dtype(op.dtype)
        ),
        ops.Range: lambda op, context: context.arange(context.evaluate_dim(op.length)),
        ops.Extent: lambda op, context, x: context.arange(x.shape[op.axis]),
        ops.Size: lambda op, context: context.make_scalar(
            context.evaluate_dim(op.length), torch.int64
        ),
        ops.Pointwise: lambda op, context, x: POINTWISE_FUNCTIONS[op.fn](x),
        ops.Arith: lambda op, context, left, right: ARITHMETIC_FUNCTIONS[op.fn](left, right),
        ops.Compare: lambda op, context, left, right: COMPARISON_FUNCTIONS[op.fn](left, right),
        ops.And: lambda op, context, left, right: left & right,
        ops.Or: lambda op, context, left, right: left | right,
        ops.Not: lambda op, context, a: ~a,
        ops.Transpose: lambda op, context, x: x.permute(op.order),
        ops.Split: lambda op, context, x: x.reshape(
            compute_split_result_shape(op, x.shape, context.lengths)
        ),
        ops.Merge: lambda op, context, x: x.reshape(compute_merge_result_shape(op, x.shape)),
        ops.Insert: lambda op, context, x: x.unsqueeze(op.axis),
        ops.Squeeze: lambda op, context, x: x.squeeze(op.axis),
        ops.Where: lambda op, context, condition, x, y: torch.where(condition, x, y),
        ops.Expand: lambda op, context, x: x.expand(
            *x.shape[: op.axis], context.evaluate_dim(op.length), *x.shape[op.axis + 1 :]
        ),
        ops.Concat: lambda op, context, *xs: torch.cat(xs, dim=op.axis),
        ops.Roll: lambda op, context, x: torch.roll(x, context.evaluate_dim(op.shift), op.axis),
        ops.Flip: lambda op, context, x: x.flip(op.axis),
        ops.CumSum: lambda op, context, x: torch.cumsum(x, dim=op.axis, dtype=x.dtype),
        ops.OneHot: lambda op, context, ids: (
            ids[..., None] == context.arange(context.evaluate_dim(op.size))
        ).to(context.float_dtype),
        ops.MatMul: lambda op, context, left, right: left @ right,
    }
)


@evaluate
def cast(op: ops.Cast, context: ForwardContext, x: Tensor) -> Tensor:
    """Cast to another element type. Floats are truncated to integers and saturate. NaN becomes 0.

    a[*s] -> n[*s]
    """
    if op.to in FLOAT32_INTEGER_RANGES and x.is_floating_point():
        lowest, highest = FLOAT32_INTEGER_RANGES[op.to]
        x = torch.nan_to_num(x, nan=0.0, posinf=highest, neginf=lowest).clamp(lowest, highest)
    return x.to(context.get_torch_dtype(op.to))


@evaluate
def delay(op: ops.Delay, context: ForwardContext, x: Tensor) -> Tensor:
    """Shift the elements to the right along an axis. Fill the first `op.steps` positions with
    `op.fill_value`.

    a[*a t *b] -> a[*a t *b]
    """
    length = x.shape[op.axis]
    padding_length = min(op.steps, length)
    padding = make_full_tensor(x, op.axis, (padding_length,), op.fill_value)
    return torch.cat([padding, x.narrow(op.axis, 0, length - padding_length)], dim=op.axis)


REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, axis: x.sum(axis, dtype=x.dtype),
    "mean": lambda x, axis: x.sum(axis) / max(x.shape[axis], 1),
    "any": Tensor.any,
    "all": Tensor.all,
    "max": Tensor.amax,
    "min": Tensor.amin,
}


@evaluate
def reduce(op: ops.Reduce, context: ForwardContext, x: Tensor) -> Tensor:
    """Reduce an axis.

    a[*a t *b] -> a[*a *b]
    """
    if op.fn in ("max", "min") and not x.shape[op.axis]:
        # the maximum of an empty axis is the lowest value of the dtype
        if x.is_floating_point():
            lowest, highest = -math.inf, math.inf
        else:
            lowest, highest = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
        return make_full_tensor(x, op.axis, (), lowest if op.fn == "max" else highest)
    return REDUCTIONS[op.fn](x, op.axis)


@evaluate
def arg_max(op: ops.ArgMax, context: ForwardContext, x: Tensor) -> Tensor:
    """Compute the index of the first maximum along an axis, or 0 for an empty axis.

    n[*a t *b] -> i[*a *b]
    """
    if not x.shape[op.axis]:
        return make_full_tensor(x, op.axis, (), 0).long()
    return x.argmax(op.axis)


@evaluate
def einsum(op: ops.Einsum, context: ForwardContext, *operands: Tensor) -> Tensor:
    """Evaluate an einsum with any number of operands.

    f[*s] -> f[*t]
    """
    terms, result = convert_einsum_axes_to_integers(op)
    return torch.einsum(
        *(argument for pair in zip(operands, terms, strict=True) for argument in pair), result
    )


@evaluate
def pad(op: ops.Pad, context: ForwardContext, x: Tensor) -> Tensor:
    """Pad both ends of an axis with a constant, by reflection, or with the edge values.

    a[*a t *b] -> a[*a u *b]
    """
    length = x.shape[op.axis]
    start_padding, end_padding = evaluate_pad_amounts(op, length, context.lengths)
    if op.mode == "constant":
        start, end = (
            make_full_tensor(x, op.axis, (n,), op.value) for n in (start_padding, end_padding)
        )
        return torch.cat([start, x, end], dim=op.axis)
    # PyTorch's reflection padding supports only images and sequences, so positions are gathered.
    indices = torch.arange(-start_padding, length + end_padding, device=x.device)
    if op.mode == "reflect":
        indices = (length - 1) - ((length - 1) - indices.abs()).abs()
    return x.index_select(op.axis, indices.clamp(0, max(length - 1, 0)))


def make_full_tensor(x: Tensor, axis: int, lengths: Sequence[int], value: float) -> Tensor:
    """Return a tensor that is filled with `value`. The shape is that of `x`, except that `axis` is
    replaced with axes of the sizes `lengths`.
    """
    return x.new_full((*x.shape[:axis], *lengths, *x.shape[axis + 1 :]), value)

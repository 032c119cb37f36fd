"""Built-in layers: linear, embedding, norms, softmax, matrix products."""

import math
from dataclasses import replace

from specc.frontend.builtins.registry import LAST_AXIS, SECOND_AXIS, CallContext, register_builtin
from specc.frontend.operators import convert_to_tensor
from specc.frontend.runtime_scalars import get_static_float
from specc.frontend.spec_values import Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly, mod_dims

FAN_IN_INIT = "fan_in(1.0)"
ZEROS_INIT, ONES_INIT, NORMAL_INIT = "zeros", "ones", "normal(0.02)"


@register_builtin(has_weights=True)
def linear(
    ctx: CallContext, x: Tensor, *, out: Dim, bias: bool = True, init: str = FAN_IN_INIT
) -> Tensor:
    """Apply a linear layer to the last axis: `x @ weight.T + bias`. Weights: `weight` [out,
    in], `bias` [out].
    """
    _check_float_tensor(ctx, x)
    weight = ctx.add_weight("weight", [out, x.shape[-1]], init, ["out"])
    bias_weight = ctx.add_weight("bias", [out], ZEROS_INIT, ["out"]) if bias else None
    return ctx.add_op(ops.Linear(), x, weight, bias_weight)


@register_builtin()
def dropout(ctx: CallContext, x: Tensor, p: float) -> Tensor:
    """In training, set elements to zero with probability `p` and scale all others by `1 / (1 - p)`
    (arXiv:1207.0580). Compiled models contain no dropout, which is the identity at inference.
    """
    _check_float_tensor(ctx, x)
    ctx.check_range(p, "p", 0.0, 1.0)
    rate = get_static_float(p)
    if not ctx.env.context.is_training or not rate:
        return x
    return ctx.add_op(ops.Dropout(rate, len(ctx.env.context.builder.nodes)), x)


@register_builtin()
def affine(ctx: CallContext, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `x @ weight.T + bias` for the tensors `weight` [out, in] and `bias` [out]. The weight
    may be tied to an embedding, for example.
    """
    _check_float_tensor(ctx, x)
    return ctx.add_op(ops.Linear(), x, weight, bias)


@register_builtin(has_weights=True)
def embedding(
    ctx: CallContext, ids: Tensor, *, size: Dim, dim: Dim, init: str = NORMAL_INIT
) -> Tensor:
    """Look up the embedding vector of each id. Weight: `weight` [size, dim]."""
    if ids.type.dtype != "i64":
        title = f"`embedding`: expected integer ids, got {describe_value(ids)}"
        ctx.raise_error("E0301", title, "ids")
    _record_index_bound(ctx, ids, size)
    return ctx.add_op(
        ops.Embedding(), ids, ctx.add_weight("weight", [size, dim], init, ["size", "dim"])
    )


def _record_index_bound(ctx: CallContext, ids: Tensor, size: Dim) -> None:
    """Record that a graph input contains ids, which index a table with `size` entries."""
    builder = ctx.env.context.builder
    for name, value in builder.inputs.items():
        # record bounds only for graph inputs, because callers cannot pass any other ids
        if value is ids.value:
            facts = builder.input_facts[name]
            builder.input_facts[name] = replace(facts, upper_bound=facts.upper_bound or size)


@register_builtin(has_weights=True)
def layer_norm(
    ctx: CallContext,
    x: Tensor,
    *,
    eps: float,
    bias: bool = True,
    scale: bool = True,
    offset: float = 0.0,
) -> Tensor:
    """Apply layer normalization over the last axis (arXiv:1607.06450). Weights: `weight`, `bias`
    [d].

    With `offset=1.0`, the layer adds 1 to the stored weight, so a stored weight of zero means no
    scaling.
    """
    _check_float_tensor(ctx, x)
    ctx.check_range(eps, "eps", 0.0)
    weight = _make_norm_weight(ctx, x, offset) if scale else None
    bias_weight = ctx.add_weight("bias", [x.shape[-1]], ZEROS_INIT) if bias else None
    return ctx.add_op(ops.LayerNorm(eps), x, weight, bias_weight)


@register_builtin(has_weights=True)
def rms_norm(
    ctx: CallContext, x: Tensor, *, eps: float, scale: bool = True, offset: float = 0.0
) -> Tensor:
    """Apply root-mean-square normalization over the last axis (arXiv:1910.07467). Weight: `weight`
    [d].

    With `offset=1.0`, the layer adds 1 to the stored weight, as in Gemma.
    """
    _check_float_tensor(ctx, x)
    ctx.check_range(eps, "eps", 0.0)
    return ctx.add_op(ops.RMSNorm(eps), x, _make_norm_weight(ctx, x, offset) if scale else None)


def _make_norm_weight(ctx: CallContext, x: Tensor, offset: float) -> Tensor:
    """Return the weight of a norm, which is the stored weight plus `offset`."""
    ctx.check_range(offset, "offset", -math.inf)
    # the checkpoint stores the weight minus `offset`
    if offset == 0:
        return ctx.add_weight("weight", [x.shape[-1]], ONES_INIT)
    difference = ctx.add_weight("weight", [x.shape[-1]], ZEROS_INIT)
    return ctx.add_binary_op("add", difference, convert_to_tensor(ctx.builder, offset, "f32"))


@register_builtin(has_weights=True)
def group_norm(
    ctx: CallContext,
    x: Tensor,
    *,
    groups: Dim,
    eps: float,
    axis: Dim = SECOND_AXIS,
    bias: bool = True,
    scale: bool = True,
) -> Tensor:
    """Apply group normalization over groups of consecutive channels and all axes after
    the batch (arXiv:1803.08494). Weights: `weight`, `bias` [channels].

    `axis` is the channel axis: 1 for [batch, channels, height, width], -1 for [batch,
    time, features].
    """
    axis_index = _get_channel_axis(ctx, x, axis)
    ctx.check_range(eps, "eps", 0.0)
    ctx.check_range(groups, "groups", 1)
    if mod_dims(x.shape[axis_index], groups).number:
        ctx.raise_error(
            "E0321",
            f"{x.shape[axis_index]} channels cannot be divided into {groups} equal groups",
            "groups",
            describe_value(x),
            helps=["use a divisor of the number of channels, or pass the channel axis as `axis`"],
        )
    weight = ctx.add_weight("weight", [x.shape[axis_index]], ONES_INIT) if scale else None
    bias_weight = ctx.add_weight("bias", [x.shape[axis_index]], ZEROS_INIT) if bias else None
    return ctx.add_op(ops.GroupNorm(axis_index, groups, eps), x, weight, bias_weight)


@register_builtin(has_weights=True)
def batch_norm(
    ctx: CallContext, x: Tensor, *, eps: float, axis: Dim = SECOND_AXIS, affine: bool = True
) -> Tensor:
    """Apply batch normalization at inference, with the running mean and variance (arXiv:1502.03167,
    alg. 2). Weights: `weight`, `bias`, `running_mean`, `running_var` [channels].
    `num_batches_tracked` in a checkpoint is ignored.

    `axis` is the channel axis: 1 for [batch, channels, height, width], -1 for [batch, time,
    features].
    """
    axis_index = _get_channel_axis(ctx, x, axis)
    ctx.check_range(eps, "eps", 0.0)
    channels = [x.shape[axis_index]]
    mean = ctx.add_weight("running_mean", channels, ZEROS_INIT)
    variance = ctx.add_weight("running_var", channels, ONES_INIT)
    epsilon = ctx.add_constant(eps, "f32")
    variance = ctx.add_binary_op("add", variance, epsilon)
    scale = ctx.add_op(ops.Pointwise("reciprocal"), ctx.add_op(ops.Pointwise("sqrt"), variance))
    if affine:
        weight = ctx.add_weight("weight", channels, ONES_INIT)
        scale = ctx.add_binary_op("mul", weight, scale)
    # subtract the mean before scaling, because a large mean would cause catastrophic cancellation
    steps = [("sub", mean), ("mul", scale)]
    if affine:
        steps.append(("add", ctx.add_weight("bias", channels, ZEROS_INIT)))
    for fn, weight in steps:
        for n in range(1, len(x.shape) - axis_index):
            weight = ctx.insert_axis(weight, n)
        x = ctx.add_binary_op(fn, x, weight)
    return x


def _get_channel_axis(ctx: CallContext, x: Tensor, axis: Dim) -> int:
    """Return the channel axis. Raise E0301 for the batch axis, or if `x` is not a float tensor."""
    axis_index = ctx.resolve_axis(x, axis)
    if axis_index == 0 or not x.type.dtype.startswith(("f", "bf")):
        title = f"`{ctx.expr.function.path}` takes a float tensor with channels after the batch"
        ctx.raise_error("E0301", title, "x", f"this is {describe_value(x)}")
    return axis_index


@register_builtin(has_weights=True)
def parameter(ctx: CallContext, *, shape: tuple[Dim, ...], init: str = NORMAL_INIT) -> Tensor:
    """Return a weight tensor of shape `shape`. Its name is the weight path after `@`."""
    return ctx.add_weight("", shape, init, ["shape"] * len(shape))


@register_builtin(has_weights=True)
def patches(
    ctx: CallContext,
    x: Tensor,
    *,
    size: Dim | tuple[Dim, ...],
    out: Dim,
    bias: bool = True,
    init: str = FAN_IN_INIT,
) -> Tensor:
    """Split an image [batch, channels, height, width] into patches of `size` × `size` pixels, and
    project each patch to `out` features (the patch embedding of ViT, arXiv:2010.11929, sec. 3.1).

    `size` may be a pair [height, width]. The result is [batch, (height / size) · (width / size),
    out], with patches in row-major order. Weights: `weight` [out, channels, size, size], `bias`
    [out].
    """
    sizes = size if isinstance(size, tuple) else (size, size)
    if len(sizes) != 2:
        ctx.raise_error(
            "E0301", "`size` of a patch is one number or a pair [height, width]", "size"
        )
    if len(x.shape) != 4:
        ctx.raise_error(
            "E0301",
            "`patches` takes an image [batch, channels, height, width]",
            "x",
            f"this is {describe_value(x)}",
        )
    weight = ctx.add_weight("weight", [out, x.shape[1], *sizes], init, ["out", "", "size", "size"])
    bias_weight = ctx.add_weight("bias", [out], ZEROS_INIT, ["out"]) if bias else None
    return ctx.add_op(ops.PatchEmbedding(), x, weight, bias_weight)


@register_builtin()
def maxout(ctx: CallContext, x: Tensor, pieces: Dim) -> Tensor:
    """Apply maxout: return the maximum of every `pieces` consecutive features (arXiv:1302.4389,
    sec. 2).
    """
    last_axis = len(x.shape) - 1
    groups = ctx.add_op(ops.Split(last_axis, (divide_dims_exactly(x.shape[-1], pieces), pieces)), x)
    return ctx.add_op(ops.Reduce("max", last_axis + 1), groups)


@register_builtin()
def matmul(ctx: CallContext, a: Tensor, b: Tensor) -> Tensor:
    """Multiply the matrices in the last two axes."""
    return ctx.add_op(ops.MatMul(), a, b)


@register_builtin()
def einsum(ctx: CallContext, equation: str, *operands: Tensor) -> Tensor:
    """Multiply the operands and sum over the axes that are missing in the output: `einsum("b i d, b
    j d -> b i j", x, y)`.
    """
    # the op checks the axis labels later, so only the arrow and the commas are checked here
    if equation.count("->") != 1 or equation.count(",") != len(operands) - 1:
        ctx.raise_error(
            "E0306",
            f"expected an equation with `->` and {len(operands)} operands separated by commas",
            "equation",
        )
    return ctx.add_op(ops.Einsum(equation), *operands)


@register_builtin()
def softmax(ctx: CallContext, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Apply softmax along an axis. For attention over keys use `attend` or
    `masked_softmax`.
    """
    return ctx.add_op(ops.Softmax(ctx.resolve_axis(x, axis)), x)


@register_builtin()
def logsumexp(ctx: CallContext, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Compute log(sum(exp(x))) along an axis, stable for large values."""
    axis_index = ctx.resolve_axis(x, axis)
    shifted, maximum = _subtract_max(ctx, x, axis_index)
    total = _compute_log_sum(ctx, shifted, axis_index)
    return ctx.add_binary_op("add", total, ctx.squeeze_axis(maximum, axis_index))


@register_builtin()
def log_softmax(ctx: CallContext, x: Tensor, *, axis: Dim = LAST_AXIS) -> Tensor:
    """Compute log(softmax(x)) along an axis, stable for large values."""
    axis_index = ctx.resolve_axis(x, axis)
    shifted, _ = _subtract_max(ctx, x, axis_index)
    total = ctx.insert_axis(_compute_log_sum(ctx, shifted, axis_index), axis_index)
    return ctx.add_binary_op("sub", shifted, total)


def _subtract_max(ctx: CallContext, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return `x` minus its maximum along an axis, and the maximum. An infinite maximum is replaced
    with 0.
    """
    maximum = ctx.insert_axis(ctx.add_op(ops.Reduce("max", axis), x), axis)
    is_finite = ctx.add_op(
        ops.Compare("lt"),
        ctx.add_op(ops.Pointwise("abs"), maximum),
        ctx.add_constant(math.inf, x.type.dtype),
    )
    maximum = ctx.add_op(ops.Where(), is_finite, maximum, ctx.add_constant(0.0, x.type.dtype))
    return ctx.add_binary_op("sub", x, maximum), maximum


def _compute_log_sum(ctx: CallContext, x: Tensor, axis: int) -> Tensor:
    """Return log(sum(exp(x))) along an axis, and remove the axis."""
    total = ctx.add_op(ops.Reduce("sum", axis), ctx.add_op(ops.Pointwise("exp"), x))
    return ctx.add_op(ops.Pointwise("log"), total)


@register_builtin()
def dot(ctx: CallContext, a: Tensor, b: Tensor) -> Tensor:
    """Compute the dot product along the last axis.

    As an attention score, `dot` is computed by one matrix multiplication.
    """
    if min(len(a.shape), len(b.shape)) >= 3 and a.shape[-2] == b.shape[-3] == 1:
        # compute the dot products of [… q, 1, d] and [… 1, k, d] with a single matrix product
        queries = ctx.squeeze_axis(a, len(a.shape) - 2)
        keys = ctx.squeeze_axis(b, len(b.shape) - 3)
        last_axis = len(keys.shape) - 1
        transposed = ctx.add_op(
            ops.Transpose((*range(last_axis - 1), last_axis, last_axis - 1)), keys
        )
        return ctx.add_op(ops.MatMul(), queries, transposed)
    products = ctx.add_binary_op("mul", a, b)
    return ctx.add_op(ops.Reduce("sum", len(products.shape) - 1), products)


def _check_float_tensor(ctx: CallContext, x: Tensor) -> None:
    """Raise E0301 unless `x` is a float tensor with at least one axis."""
    if x.type.dtype not in ("f32", "f64", "f16", "bf16") or not x.shape:
        helps = ["embedding(ids, size=…, dim=…) maps integer ids to vectors"]
        ctx.raise_error(
            "E0301",
            f"`{ctx.expr.function.path}` takes a float tensor with at least one axis",
            "x",
            f"this is {describe_value(x)}",
            helps=helps,
        )

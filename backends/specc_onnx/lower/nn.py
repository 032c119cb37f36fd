"""Lower linear and embedding layers, norms, softmax, patch embeddings and position encodings.

Angles, sines and cosines of position encodings are computed in f64 and rounded once. Layers share
the tables of sines and cosines, because the emitter reuses equal nodes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly, multiply_dims
from specc.ir.graph import Node, Value
from specc.ir.types import Type
from specc_onnx.lower.conv import emit_convolution
from specc_onnx.lower.emitter import CONTRIB_DOMAIN, Emitter, Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import (
    emit_cast,
    emit_checked_indices,
    emit_expand,
    emit_flatten,
    emit_full,
    emit_reduce,
    emit_reshape,
    emit_slice,
    emit_unsqueeze,
    is_always_true,
)


@lower
def linear(op: ops.Linear, g: Emitter, x: Tensor, weight: Tensor, bias: Tensor | None) -> str:
    """Lower to `Gemm`, `FusedMatMul` or `MatMul`, depending on target and weight layout."""
    weight, is_transposed = _find_stored_weight(g, weight)
    shape = x.shape
    if len(shape) == 1:
        factors = (weight.name, x.name) if is_transposed else (x.name, weight.name)
        return _emit_bias_add(g, g.emit_node("MatMul", *factors), bias)
    # `MatMul` accepts any leading axes; `Gemm` needs two reshapes.
    if g.target.linear_operator == "product" and len(shape) > 2 and x.dtype == "f32":
        return _emit_bias_add(g, _emit_linear_product(g, x, weight, is_transposed), bias)
    operands = (emit_flatten(g, x), weight.name, bias.name if bias else None)
    result = g.emit_node("Gemm", *operands, transB=1 if is_transposed else None)
    result_shape = g.site.types[0].shape
    return result if len(shape) == 2 else emit_unflatten(g, result, result_shape)


def _find_stored_weight(g: Emitter, w: Tensor) -> tuple[Tensor, bool]:
    """Return the stored weight of a linear layer, and True if it is stored as `[out, in]`."""
    match w.value:
        case Value(node=Node(ops.Transpose(order=(1, 0)), (Value() as weight,))):
            return g.values.tensors[weight], False
    return w, True


def _emit_bias_add(g: Emitter, product: str, bias: Tensor | None) -> str:
    return product if bias is None else g.emit_node("Add", product, bias)


def _emit_linear_product(g: Emitter, x: Tensor, w: Tensor, is_transposed: bool) -> str:
    """Emit `x @ w.T` (`FusedMatMul`) if the weight is stored as `[out, in]`, otherwise `x @ w`."""
    if not is_transposed:
        return g.emit_node("MatMul", x, w)
    name = g.emit_node("FusedMatMul", x, w, domain=CONTRIB_DOMAIN, transB=1)
    g.innermost_body.types[name] = g.site.types[0]
    return name


def emit_unflatten(g: Emitter, x: str, shape: Sequence[Dim]) -> str:
    """Reshape `[n, d]` to `shape`, the inverse of `emit_flatten`."""
    # The symbol occurs in no graph, so `Reshape` never copies the axis.
    flat_shape = (Dim.symbol("flattened tokens"), shape[-1])
    return emit_reshape(g, x, shape, source_shape=flat_shape)


@lower
def layer_norm(
    op: ops.LayerNorm, g: Emitter, x: Tensor, scale: Tensor | None, bias: Tensor | None
) -> str:
    """Lower to `LayerNormalization` over the last axis; an absent scale is replaced by ones."""
    return g.emit_node(
        "LayerNormalization",
        _emit_norm_input(g, x),
        _emit_norm_scale(g, x, scale),
        bias,
        axis=-1,
        epsilon=op.eps,
    )


def _emit_norm_input(g: Emitter, x: Tensor) -> str:
    """Return the input of a norm. An `Add` without other users becomes a `Sum`, because ONNX
    Runtime would fuse the `Add` with the norm into a slower kernel.
    """
    value = x.value
    if not g.target.fuses_add_into_norm or value is None or value.type.dtype != "f32":
        return x.name
    match value.node:
        # the runtime does not fuse an `Add` with other users or with broadcast operands
        case Node(ops.Arith(fn="add"), args) if g.facts.use_counts[value] == 1:
            return _emit_sum(g, args, value.type) or x.name
    return x.name


def _emit_sum(g: Emitter, args: Sequence[Value | None], type: Type) -> str | None:
    """Emit a `Sum` of `args`; return None without emitting a node if a type is not `type`."""
    terms = [a for a in args if a is not None and a.type == type]
    if len(terms) != 2:
        return None
    return g.emit_node("Sum", *(g.values.tensors[a].name for a in terms))


@lower
def rms_norm(op: ops.RMSNorm, g: Emitter, x: Tensor, scale: Tensor | None) -> str:
    """Lower to `RMSNormalization`, or to its formula in older opsets."""
    if g.has_operator("RMSNormalization"):
        return g.emit_node(
            "RMSNormalization", x, _emit_norm_scale(g, x, scale), axis=-1, epsilon=op.eps
        )
    last_axis = x.rank - 1
    mean = emit_reduce(g, "ReduceMean", g.emit_node("Mul", x, x), last_axis, keepdims=True)
    root_mean_square = g.emit_node(
        "Sqrt", g.emit_node("Add", mean, g.emit_constant(op.eps, x.dtype))
    )
    result = g.emit_node("Div", x, root_mean_square)
    return g.emit_node("Mul", result, scale) if scale else result


def _emit_norm_scale(g: Emitter, x: Tensor, scale: Tensor | None) -> str:
    if scale is not None:
        return scale.name
    width = x.shape[-1]
    # ONNX requires a scale operand.
    if width.number is not None:
        return g.emit_constant([1.0] * width.number, x.dtype)
    return g.emit_node("Expand", g.emit_constant(1.0, x.dtype), g.emit_shape([width]))


lower.add_rules(
    {
        ops.Embedding: lambda op, g, ids, table: g.emit_node(
            "Gather", table, emit_checked_indices(g, ids), axis=0
        ),
        # compiled models run only inference, so dropout is the identity
        ops.Dropout: lambda op, g, x: x.name,
        ops.Softmax: lambda op, g, x: g.emit_node("Softmax", x, axis=op.axis),
    }
)


def emit_masked_softmax(
    g: Emitter, scores: str, dtype: str, mask: Tensor | None, finite: bool = False
) -> str:
    """Emit a softmax of `scores`, which have the element type `dtype`, over the unmasked keys of
    the last axis. The attention weights are zero if all keys are masked or all scores are -inf. If
    `finite`, all scores are known to be finite.
    """
    has_mask = mask is not None and not is_always_true(mask)
    lowest = g.emit_constant(float("-inf"), dtype)
    if mask is not None and has_mask:
        scores = g.emit_node("Where", mask, scores, lowest)
    weights, zero = g.emit_node("Softmax", scores, axis=-1), g.emit_constant(0, dtype)
    # A bias of -inf also masks out keys.
    if not finite:
        compute_dtype = "f32" if g.lacks_kernel("Equal", dtype) else dtype
        negative_infinity = g.emit_constant(float("-inf"), compute_dtype)
        is_empty = g.emit_node(
            "Equal", emit_cast(g, scores, compute_dtype, source_dtype=dtype), negative_infinity
        )
        return g.emit_node("Where", is_empty, zero, weights)
    if mask is None or not has_mask:
        return weights
    return g.emit_node("Where", mask, weights, zero)


@lower
def patch_embedding(
    op: ops.PatchEmbedding, g: Emitter, x: Tensor, weight: Tensor, bias: Tensor | None
) -> str:
    """Lower to a convolution with stride = kernel size; flatten the result row-major."""
    patch_height, patch_width = weight.shape[2], weight.shape[3]
    assert None not in (patch_height.number, patch_width.number), "patch sizes are static"
    size = [patch_height.number, patch_width.number]
    operands, dtype = (x.name, weight, bias), x.dtype
    feature_map = emit_convolution(g, "Conv", operands, dtype, kernel_shape=size, strides=size)
    batch, count, width = g.site.types[0].shape
    patch_counts = (
        divide_dims_exactly(x.shape[2], patch_height),
        divide_dims_exactly(x.shape[3], patch_width),
    )
    flat_map = emit_reshape(
        g, feature_map, (batch, width, count), source_shape=(batch, width, *patch_counts)
    )
    return g.emit_node("Transpose", flat_map, perm=[0, 2, 1])


@lower
def group_norm(
    op: ops.GroupNorm,
    g: Emitter,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> str:
    """Lower to a layer norm over groups: ONNX's `GroupNormalization` computes the variance as a
    difference of two means, which loses precision by cancellation for large means.
    """
    rank, dtype = x.rank, x.dtype
    order = [0, op.axis, *(n for n in range(1, rank) if n != op.axis)]
    is_channels_first = order == [*range(rank)]
    shape = [x.shape[n] for n in order]
    name = x.name if is_channels_first else g.emit_node("Transpose", x, perm=order)
    size = divide_dims_exactly(shape[1], op.groups) * multiply_dims(shape[2:])
    grouped = (shape[0], op.groups, size)
    name = emit_reshape(g, name, grouped, source_shape=shape)
    if g.lengths.is_positive(size):
        ones = emit_full(g, 1.0, dtype, [size])
        name = g.emit_node("LayerNormalization", name, ones, axis=-1, epsilon=op.eps)
    else:
        name = _emit_centered_norm(g, name, dtype, op.eps)
    name = emit_reshape(g, name, shape, source_shape=grouped)
    # Scale and bias are per channel, not per group, so they are applied after the layer norm.
    name = _emit_channel_scale(g, name, weight, bias, rank)
    if is_channels_first:
        return name
    return g.emit_node("Transpose", name, perm=[order.index(n) for n in range(rank)])


def _emit_channel_scale(
    g: Emitter, name: str, scale: Tensor | None, bias: Tensor | None, rank: int
) -> str:
    """Emit `name` multiplied by `scale` and shifted by `bias` (one value per channel, or None);
    axis 1 of the `rank` axes is the channel axis.
    """
    for kind, parameter in (("Mul", scale), ("Add", bias)):
        if parameter is not None:
            name = g.emit_node(kind, name, emit_unsqueeze(g, parameter, *range(1, rank - 1)))
    return name


def _emit_centered_norm(g: Emitter, x: str, dtype: str, eps: float) -> str:
    """Emit `(x - mean) / sqrt(var + eps)` over the last of three axes, which may be empty."""
    deviation = g.emit_node("Sub", x, emit_reduce(g, "ReduceMean", x, 2, keepdims=True))
    variance = emit_reduce(
        g, "ReduceMean", g.emit_node("Mul", deviation, deviation), 2, keepdims=True
    )
    standard_deviation = g.emit_node(
        "Sqrt", g.emit_node("Add", variance, g.emit_constant(eps, dtype))
    )
    return g.emit_node("Div", deviation, standard_deviation)


@lower
def sinusoid(op: ops.Sinusoid, g: Emitter, positions: Tensor) -> str:
    """Lower to sines and cosines, interleaved or concatenated."""
    assert op.dim.number is not None, "the width is static"
    pair_count = op.dim.number // 2
    exponents = np.arange(pair_count, dtype=np.float64)
    # fairseq divides by half - 1 instead of half, so the last frequency is 1 / base
    if op.layout == "fairseq":
        frequencies = op.base ** (-exponents / max(pair_count - 1, 1))
    else:
        frequencies = op.base ** (-2 * exponents / op.dim.number)
    angles = g.emit_node(
        "Mul", _emit_position_column(g, positions), g.emit_constant(frequencies.tolist(), "f64")
    )
    sines, cosines = g.emit_node("Sin", angles), g.emit_node("Cos", angles)
    if op.layout == "interleaved":
        rank = positions.rank
        columns = [emit_unsqueeze(g, x, rank + 1) for x in (sines, cosines)]
        pairs = g.emit_node("Concat", *columns, axis=rank + 1)
        # in the shape operand of `Reshape`, 0 copies the size of the input axis at the same index
        table = g.emit_node("Reshape", pairs, [*[0] * rank, op.dim.number])
    else:
        table = g.emit_node("Concat", sines, cosines, axis=positions.rank)
    return emit_cast(g, table, g.site.types[0].dtype, source_dtype="f64")


@lower
def rope_angles(op: ops.RopeAngles, g: Emitter, *positions: Tensor) -> tuple[str, str]:
    """Lower to cosines and sines of RoPE angles; in M-RoPE, each feature pair selects its axis."""
    assert op.dim.number is not None, "the width is static"
    frequencies: Sequence[float] = op.frequencies
    if not frequencies:
        exponents = np.arange(0, op.dim.number, 2, dtype=np.float64)
        frequencies = (op.theta ** (-exponents / op.dim.number)).tolist()
    columns = [_emit_position_column(g, axis_positions) for axis_positions in positions]
    if len(positions) > 1:
        all_positions = g.emit_node("Concat", *columns, axis=positions[0].rank)
        columns = [g.emit_node("Gather", all_positions, [*op.axes], axis=positions[0].rank)]
    angles = g.emit_node("Mul", columns[0], g.emit_constant(frequencies, "f64"))
    results = []
    for kind in ("Cos", "Sin"):
        value = g.emit_node(kind, angles)
        if op.factor != 1.0:
            value = g.emit_node("Mul", value, g.emit_constant(op.factor, "f64"))
        results.append(emit_cast(g, value, g.site.types[0].dtype, source_dtype="f64"))
    return results[0], results[1]


def _emit_position_column(g: Emitter, positions: Tensor) -> str:
    """Emit position ids `[*s]` as f64[*s, 1]."""
    positions64 = emit_cast(g, positions, "f64")
    return emit_unsqueeze(g, positions64, positions.rank)


@lower
def rotate(op: ops.Rotate, g: Emitter, x: Tensor, cosines: Tensor, sines: Tensor) -> str:
    """Lower to `RotaryEmbedding` if the target has a kernel for the dtype, otherwise to its
    formula.
    """
    if g.has_operator("RotaryEmbedding") and x.dtype in ("f32", "f16"):
        return _emit_rotary_embedding(op, g, x, cosines, sines)
    # Features after the rotated features are unchanged (partial rotary embedding).
    rotated_width = 2 * cosines.shape[-1]
    width = x.shape[-1]
    c, s = emit_unsqueeze(g, cosines, 1), emit_unsqueeze(g, sines, 1)
    rotary_features = x.name if rotated_width == width else emit_slice(g, x, 3, 0, rotated_width)
    emit_rotation = _emit_rotate_half if op.pairs == "half" else _emit_rotate_interleaved
    result = emit_rotation(g, rotary_features, c, s, rotated_width)
    if rotated_width == width:
        return result
    return g.emit_node("Concat", result, emit_slice(g, x, 3, rotated_width, width), axis=3)


def _emit_rotary_embedding(
    op: ops.Rotate, g: Emitter, x: Tensor, cosines: Tensor, sines: Tensor
) -> str:
    batch, heads, time, width = x.shape
    pairs = cosines.shape[-1]
    tables = [emit_expand(g, t, (batch, time, pairs)) for t in (cosines, sines)]
    rotary_dim = None if 2 * pairs == width else (2 * pairs).number
    options: dict[str, Any] = {
        "interleaved": int(op.pairs == "interleaved"),
        "rotary_embedding_dim": rotary_dim,
    }
    result = g.emit_node("RotaryEmbedding", x, *tables, **options)
    # Attention may use packed heads `[b, t, h·d]`, so RoPE is also applied to packed heads; then
    # the transposes are unused.
    packed_heads = g.layouts.packed_heads.get(x.name)
    if packed_heads is not None and heads.number is not None:
        options["num_heads"] = heads.number
        g.layouts.packed_heads[result] = g.emit_node(
            "RotaryEmbedding", packed_heads, *tables, **options
        )
    return result


def _emit_rotate_half(g: Emitter, x: str, cosines: str, sines: str, width: Dim) -> str:
    middle = Dim.from_value((width.number or 0) // 2)
    a, b = emit_slice(g, x, 3, 0, middle), emit_slice(g, x, 3, middle, width)
    return g.emit_node("Concat", *_emit_rotated_pair(g, a, b, cosines, sines), axis=3)


def _emit_rotate_interleaved(g: Emitter, x: str, cosines: str, sines: str, width: Dim) -> str:
    stop, axis, step = [width.number or 0], [3], [2]
    a = g.emit_node("Slice", x, [0], stop, axis, step)
    b = g.emit_node("Slice", x, [1], stop, axis, step)
    parts = [emit_unsqueeze(g, part, 4) for part in _emit_rotated_pair(g, a, b, cosines, sines)]
    pairs = g.emit_node("Concat", *parts, axis=4)
    return g.emit_node("Reshape", pairs, [0, 0, 0, width.number or 0])


def _emit_rotated_pair(g: Emitter, a: str, b: str, cosines: str, sines: str) -> tuple[str, str]:
    """Emit `(a·c − b·s, b·c + a·s)`."""
    first = g.emit_node("Sub", g.emit_node("Mul", a, cosines), g.emit_node("Mul", b, sines))
    second = g.emit_node("Add", g.emit_node("Mul", b, cosines), g.emit_node("Mul", a, sines))
    return first, second

"""Lower linear and embedding layers, norms, softmax, patch embeddings and position encodings.

Angles, sines and cosines of position encodings are computed in f64 and rounded once. Layers share
the tables of sines and cosines, because the emitter reuses equal nodes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from specc.ir import ops
from specc.ir.dim import divide_dims_exactly, multiply_dims
from specc.ir.graph import Node, Value
from specc_onnx.lower.conv import emit_convolution
from specc_onnx.lower.emitter import CONTRIB_DOMAIN, Emitter
from specc_onnx.lower.indexing import emit_checked_indices
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.reshape_reduce_and_matmul import (
    emit_expand,
    emit_flatten,
    emit_full,
    emit_reduce,
    emit_reshape,
    emit_unflatten,
)


@lower
def linear(op: ops.Linear, g: Emitter, x: Tensor, weight: Tensor, bias: Tensor | None) -> OnnxValue:
    """Lower a linear layer to `Gemm`, `FusedMatMul` or `MatMul`, depending on target and layout."""
    weight, is_transposed = _find_stored_weight(g, weight)
    result_type = g.context.types[0]
    # `MatMul` accepts any leading axes, but `Gemm` requires two reshapes.
    uses_product = g.target.linear_operator == "product" and x.rank > 2 and x.dtype == "f32"
    if x.rank > 1 and not uses_product:
        transposition = 1 if is_transposed else None
        result = emit_flatten(x).apply_op("Gemm", weight, bias, transB=transposition)
        return result if x.rank == 2 else emit_unflatten(result, result_type.shape)
    if x.rank == 1 and is_transposed:
        product = weight.apply_op("MatMul", x)
    elif is_transposed:
        product = x.apply_op("FusedMatMul", weight, domain=CONTRIB_DOMAIN, transB=1)
        g.innermost_body.types[product.name] = result_type
    else:
        product = x.apply_op("MatMul", weight)
    return product if bias is None else product + bias


def _find_stored_weight(g: Emitter, w: Tensor) -> tuple[Tensor, bool]:
    """Return the stored weight of a linear layer, and True if it is stored as `[out, in]`."""
    match w.value:
        case Value(node=Node(ops.Transpose(order=(1, 0)), (Value() as weight,))):
            return g.values.tensors[weight], False
    return w, True


@lower
def layer_norm(
    op: ops.LayerNorm, g: Emitter, x: Tensor, scale: Tensor | None, bias: Tensor | None
) -> OnnxValue:
    """Emit a `LayerNormalization` over the last axis. If the scale is absent, use ones instead."""
    return _emit_norm_input(g, x).apply_op(
        "LayerNormalization", _emit_norm_scale(g, x, scale), bias, axis=-1, epsilon=op.eps
    )


def _emit_norm_input(g: Emitter, x: Tensor) -> OnnxValue:
    """Return the input of a norm. An `Add` without other users becomes a `Sum`, because ONNX
    Runtime would fuse the `Add` with the norm into a slower kernel.
    """
    value = x.value
    if not g.target.fuses_add_into_norm or value is None or value.type.dtype != "f32":
        return x
    match value.node:
        # the runtime does not fuse an `Add` that has other users or broadcast operands
        case Node(ops.Arith(fn="add"), args) if g.analysis.use_counts[value] == 1:
            terms = [g.values.tensors[a] for a in args if a is not None and a.type == value.type]
            return g.emit_node("Sum", *terms) if len(terms) == 2 else x
    return x


@lower
def rms_norm(op: ops.RMSNorm, g: Emitter, x: Tensor, scale: Tensor | None) -> OnnxValue:
    """Lower an RMS norm to `RMSNormalization`, or to several operators in older opsets."""
    if g.has_operator("RMSNormalization"):
        operands = x, _emit_norm_scale(g, x, scale)
        return g.emit_node("RMSNormalization", *operands, axis=-1, epsilon=op.eps)
    mean = emit_reduce("ReduceMean", x * x, x.rank - 1, keepdims=True)
    result = x / (mean + op.eps).apply_op("Sqrt")
    return result * scale if scale else result


def _emit_norm_scale(g: Emitter, x: Tensor, scale: Tensor | None) -> OnnxValue:
    if scale is not None:
        return scale
    width = x.shape[-1]
    # ONNX requires a scale operand.
    if width.number is not None:
        return g.emit_constant([1.0] * width.number, x.dtype)
    return g.emit_constant(1.0, x.dtype).expand(g.emit_shape([width]))


lower.add_rules(
    {
        ops.Embedding: lambda op, g, ids, table: table.gather(emit_checked_indices(ids), 0),
        # compiled models run only inference, so dropout is the identity
        ops.Dropout: lambda op, g, x: x,
        ops.Softmax: lambda op, g, x: x.apply_op("Softmax", axis=op.axis),
    }
)


@lower
def patch_embedding(
    op: ops.PatchEmbedding, g: Emitter, x: Tensor, weight: Tensor, bias: Tensor | None
) -> OnnxValue:
    """Emit a convolution whose stride is the kernel size. Flatten the result in row-major order."""
    height, width = weight.shape[2:]
    assert None not in (height.number, width.number), "patch sizes are static"
    size = [height.number, width.number]
    feature_map = emit_convolution(g, "Conv", (x, weight, bias), kernel_shape=size, strides=size)
    batch, count, features = g.context.types[0].shape
    patch_counts = [divide_dims_exactly(x.shape[2], height), divide_dims_exactly(x.shape[3], width)]
    map_shape = (batch, features, *patch_counts)
    flat_map = emit_reshape(feature_map, (batch, features, count), source_shape=map_shape)
    return flat_map.transpose([0, 2, 1])


@lower
def group_norm(
    op: ops.GroupNorm,
    g: Emitter,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> OnnxValue:
    """Lower a group norm to a layer norm over groups. ONNX's `GroupNormalization` computes the
    variance as a difference of two means, which is inaccurate for large means.
    """
    order = [0, op.axis, *(n for n in range(1, x.rank) if n != op.axis)]
    is_channels_first = order == [*range(x.rank)]
    shape = [x.shape[n] for n in order]
    result = x if is_channels_first else x.transpose(order)
    size = divide_dims_exactly(shape[1], op.groups) * multiply_dims(shape[2:])
    grouped_shape = (shape[0], op.groups, size)
    result = emit_reshape(result, grouped_shape, source_shape=shape)
    if g.lengths.is_positive(size):
        ones = emit_full(g, 1.0, x.dtype, [size])
        result = result.apply_op("LayerNormalization", ones, axis=-1, epsilon=op.eps)
    else:
        # `LayerNormalization` rejects an empty axis.
        deviation = result - emit_reduce("ReduceMean", result, 2, keepdims=True)
        variance = emit_reduce("ReduceMean", deviation * deviation, 2, keepdims=True)
        result = deviation / (variance + op.eps).apply_op("Sqrt")
    result = emit_reshape(result, shape, source_shape=grouped_shape)
    # Scale and bias are per channel, not per group, so they are applied after the layer norm.
    trailing_axes = range(1, x.rank - 1)
    if weight is not None:
        result = result * weight.unsqueeze(*trailing_axes)
    if bias is not None:
        result = result + bias.unsqueeze(*trailing_axes)
    if is_channels_first:
        return result
    return result.transpose([order.index(n) for n in range(x.rank)])


@lower
def sinusoid(op: ops.Sinusoid, g: Emitter, positions: Tensor) -> OnnxValue:
    """Emit the sines and cosines of position encodings, interleaved or concatenated."""
    assert op.dim.number is not None, "the width is static"
    pair_count = op.dim.number // 2
    exponents = np.arange(pair_count, dtype=np.float64)
    # fairseq divides by `pair_count - 1` instead of `pair_count`, so the last frequency is 1 / base
    if op.layout == "fairseq":
        frequencies = op.base ** (-exponents / max(pair_count - 1, 1))
    else:
        frequencies = op.base ** (-2 * exponents / op.dim.number)
    angles = _emit_position_column(positions) * frequencies.tolist()
    sines, cosines = angles.apply_op("Sin"), angles.apply_op("Cos")
    if op.layout == "interleaved":
        rank = positions.rank
        columns = [x.unsqueeze(rank + 1) for x in (sines, cosines)]
        pairs = g.emit_node("Concat", *columns, axis=rank + 1)
        # 0 in the shape operand of `Reshape` copies the size of the input axis at the same index
        table = pairs.reshape([*[0] * rank, op.dim.number])
    else:
        table = sines.apply_op("Concat", cosines, axis=positions.rank)
    return table.cast(g.context.types[0].dtype)


@lower
def rope_angles(op: ops.RopeAngles, g: Emitter, *positions: Tensor) -> tuple[OnnxValue, OnnxValue]:
    """Emit the cosines and sines of RoPE angles. In M-RoPE, each feature pair uses the position ids
    of one axis.
    """
    assert op.dim.number is not None, "the width is static"
    frequencies: Sequence[float] = op.frequencies
    if not frequencies:
        exponents = np.arange(0, op.dim.number, 2, dtype=np.float64)
        frequencies = (op.theta ** (-exponents / op.dim.number)).tolist()
    columns = [_emit_position_column(axis_positions) for axis_positions in positions]
    if len(positions) > 1:
        all_positions = g.emit_node("Concat", *columns, axis=positions[0].rank)
        columns = [all_positions.gather([*op.axes], positions[0].rank)]
    angles = columns[0] * frequencies
    results = []
    for kind in ("Cos", "Sin"):
        value = angles.apply_op(kind)
        if op.factor != 1.0:
            value = value * op.factor
        results.append(value.cast(g.context.types[0].dtype))
    return results[0], results[1]


def _emit_position_column(positions: Tensor) -> OnnxValue:
    """Emit position ids `[*s]` as f64[*s, 1]."""
    return positions.cast("f64").unsqueeze(positions.rank)


@lower
def apply_rope(op: ops.Rotate, g: Emitter, x: Tensor, cosines: Tensor, sines: Tensor) -> OnnxValue:
    """Lower RoPE to `RotaryEmbedding` if the target has a kernel for the dtype. Otherwise, use the
    formula `(a·c − b·s, b·c + a·s)` for each pair of features `a` and `b`.
    """
    if g.has_operator("RotaryEmbedding") and x.dtype in ("f32", "f16"):
        return _emit_rotary_embedding(op, g, x, cosines, sines)
    # The features after the rotated features are unchanged (partial rotary embedding).
    rotated_width, width = 2 * cosines.shape[-1], x.shape[-1]
    c, s = cosines.unsqueeze(1), sines.unsqueeze(1)
    features = x if rotated_width == width else x.slice(3, 0, rotated_width)
    feature_count = rotated_width.number or 0
    if op.pairs == "half":
        middle = feature_count // 2
        a, b = features.slice(3, 0, middle), features.slice(3, middle, rotated_width)
    else:
        a, b = (features.apply_op("Slice", [start], [feature_count], [3], [2]) for start in (0, 1))
    rotated_pair = [a * c - b * s, b * c + a * s]
    if op.pairs == "half":
        result = g.emit_node("Concat", *rotated_pair, axis=3)
    else:
        columns = [part.unsqueeze(4) for part in rotated_pair]
        pairs = g.emit_node("Concat", *columns, axis=4)
        result = pairs.reshape([0, 0, 0, feature_count])
    if rotated_width == width:
        return result
    return result.apply_op("Concat", x.slice(3, rotated_width, width), axis=3)


def _emit_rotary_embedding(
    op: ops.Rotate, g: Emitter, x: Tensor, cosines: Tensor, sines: Tensor
) -> OnnxValue:
    """Emit `RotaryEmbedding` for `x`, and for the packed heads of `x` if they exist."""
    batch, heads, time, width = x.shape
    pairs = cosines.shape[-1]
    tables = [emit_expand(t, (batch, time, pairs)) for t in (cosines, sines)]
    options: dict[str, Any] = {
        "interleaved": int(op.pairs == "interleaved"),
        "rotary_embedding_dim": None if 2 * pairs == width else (2 * pairs).number,
    }
    result = x.apply_op("RotaryEmbedding", *tables, **options)
    # Attention may use packed heads `[b, t, h·d]`, so RoPE is also applied to packed heads. If
    # attention uses the packed heads, the transposes have no users and are removed.
    packed = g.cache.packed_heads.get(x.name)
    if packed is not None and heads.number is not None:
        options["num_heads"] = heads.number
        rotated = packed.apply_op("RotaryEmbedding", *tables, **options)
        g.cache.packed_heads[result.name] = rotated
    return result

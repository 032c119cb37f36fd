"""Lower layers with quantized weights.

`int8` is W8A8 with per-token activation scales. For `ort-cpu`, `MatMulIntegerToFloat` applies both
scales to weights stored `[in, out]`. The bias operand of `MatMulIntegerToFloat` is not used,
because ONNX Runtime 1.31 also multiplies the bias by per-token scales. Embedding tables and expert
weights keep the layout `[out, in]` and use `QGemm`. Other targets use `MatMulInteger` (on CUDA, a
float MatMul of the int8 codes) and a `Mul` node for each scale. The nodes are separate, so that
ONNX Runtime does not fuse the scales with the bias. Group-wise weights use `MatMulNBits`, or are
dequantized first.
"""

from collections.abc import Sequence

from specc.ir import ops
from specc.ir.dim import Dim, multiply_dims
from specc.ir.ops.quantized import count_groups_per_row
from specc.ir.types import Type
from specc_onnx.lower.emitter import CONTRIB_DOMAIN, Emitter
from specc_onnx.lower.indexing import emit_checked_indices
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.reshape_reduce_and_matmul import (
    emit_flatten,
    emit_reduce,
    emit_reshape,
    emit_unflatten,
)

MIN_TOKEN_MAXIMUM = 1e-30
"""The lower bound of a token's absolute maximum, so that an all-zero token has a nonzero scale."""
BLOCK_DEQUANTIZE_SINCE = 21
"""The first opset with block-wise `DequantizeLinear` and int4."""
INT8_ACCURACY_LEVEL = 4
"""The accuracy level at which `MatMulNBits` quantizes activations per block."""


@lower
def quantized_linear(
    op: ops.QuantizedLinear,
    g: Emitter,
    x: Tensor,
    weights: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    zero_points: Tensor | None = None,
) -> OnnxValue:
    """Lower `x @ w.T + b` with quantized weights to the target's fastest kernel for the
    quantization format.
    """
    dtype, target = x.dtype, g.target
    shape = x.shape if x.rank > 1 else (Dim.from_value(1), *x.shape)
    tokens = emit_reshape(x, shape)
    result_type = Type(dtype, (*shape[:-1], g.context.types[0].shape[-1]))
    has_kernel = dtype == "f32" or dtype in target.compute_dtypes
    # Per-tensor activation scales change the result, so they are used even if the target has no
    # kernel for this quantization type.
    has_tensor_scale = op.rounding == "tensor"
    if op.group_size and op.layout == "rows" and target.quantized_matmul_mode and has_kernel:
        product = _emit_matmul_nbits(op, tokens, (weights, scales, zero_points), result_type)
    elif has_tensor_scale or (op.rounding == "row" and not op.group_size and has_kernel):
        # activation quantization is computed in f32
        x, f32_scales = (t.cast("f32").with_shape(t.shape) for t in (tokens, scales))
        if has_tensor_scale:
            product = _emit_per_tensor_product(op, x, weights, f32_scales)
        else:
            product = _emit_integer_product(op, x, weights, f32_scales, result_type.shape)
        product = product.cast(dtype)
    else:
        product = _emit_dequantized_product(op, tokens, weights, scales, zero_points)
    product = product if bias is None else product + bias
    return emit_reshape(product, g.context.types[0].shape, source_shape=result_type.shape)


def _emit_matmul_nbits(
    op: ops.QuantizedLinear, x: Tensor, weights: Sequence[Tensor | None], type: Type
) -> OnnxValue:
    """Emit a `MatMulNBits` node for group-wise quantized `weights` (codes, scales, zero points)."""
    if op.rounding == "row":
        x = _emit_fake_quantized_tokens(x)
    result = x.apply_op(
        "MatMulNBits",
        *weights,
        domain=CONTRIB_DOMAIN,
        K=x.shape[-1].number,
        N=type.shape[-1].number,
        bits=op.bits,
        block_size=op.group_size,
        accuracy_level=INT8_ACCURACY_LEVEL if op.rounding == "block" else 1,
    )
    x.g.innermost_body.types[result.name] = type
    return result


def _emit_integer_product(
    op: ops.QuantizedLinear, x: Tensor, w: Tensor, scales: Tensor, result_shape: Sequence[Dim]
) -> OnnxValue:
    """Emit an integer MatMul, then multiply by the per-channel scales and the per-token scales."""
    g = x.g
    token_scales, scaled_tokens = _emit_token_scales(x)
    # `QuantizeLinear` has no per-token scales, so it is applied with a scale of 1 to tokens that
    # have already been scaled.
    is_float = not g.has_kernel("MatMulInteger", "i8")
    zero_point = g.emit_constant(0, "i8") if is_float else g.emit_constant(128, "u8")
    codes = scaled_tokens.apply_op("QuantizeLinear", 1.0, zero_point)
    if g.target.quantized_matmul_mode == "rows" and op.layout == "columns":
        # omit the weight zero point, because ONNX Runtime 1.32 cannot convert a shared zero point
        # to u8
        operands = (codes, w, token_scales, scales, zero_point)
        product = g.emit_node("MatMulIntegerToFloat", *operands, domain=CONTRIB_DOMAIN)
        g.innermost_body.types[product.name] = Type.of("f32", *result_shape)
        return product
    if g.target.quantized_matmul_mode == "rows":
        flat_codes = emit_flatten(codes.with_type(x.type))
        gemm_operands = (flat_codes, 1.0, zero_point, w, 1.0, g.emit_constant(0, "i8"))
        product = g.emit_node("QGemm", *gemm_operands, domain=CONTRIB_DOMAIN, transB=1)
        flat_type = Type("f32", (multiply_dims(result_shape[:-1]), result_shape[-1]))
        g.innermost_body.types[product.name] = flat_type
        sums = product if len(result_shape) == 2 else emit_unflatten(product, result_shape)
    elif is_float:
        # The float MatMul of int8 codes is exact for up to 1040 input features. ONNX Runtime casts
        # the weights once, at load time.
        matrix = _emit_columns(op, w.cast("f32"))
        sums = codes.cast("f32").apply_op("MatMul", matrix)
    else:
        product = codes.apply_op("MatMulInteger", _emit_columns(op, w), zero_point)
        sums = product.cast("f32")
    return sums * scales * token_scales


def _emit_per_tensor_product(
    op: ops.QuantizedLinear, x: Tensor, w: Tensor, scales: Tensor
) -> OnnxValue:
    """Emit an integer MatMul of dynamically quantized activations (one scale per tensor)."""
    codes, scale, zero_point = x.g.emit_multi_output_node("DynamicQuantizeLinear", 3, x)
    product = codes.apply_op("MatMulInteger", _emit_columns(op, w), zero_point)
    return product.cast("f32") * (scale * scales)


def _emit_columns(op: ops.QuantizedLinear, w: OnnxValue) -> OnnxValue:
    """Emit a stored weight matrix in the layout `[in, out]`."""
    return w.transpose([1, 0]) if op.layout == "rows" else w


def _emit_token_scales(x: Tensor) -> tuple[OnnxValue, OnnxValue]:
    """Emit the scale of each token, and the tokens divided by their scales (-127 to 127)."""
    scale = _emit_token_maximum(x) / 127
    return scale, x / scale


def _emit_token_maximum(x: Tensor) -> OnnxValue:
    """Emit the absolute maximum of each token, at least `MIN_TOKEN_MAXIMUM`."""
    last_axis = x.rank - 1
    magnitude = emit_reduce("ReduceMax", x.abs(), last_axis, keepdims=True)
    # For an empty axis, ONNX Runtime's `ReduceMax` returns an empty axis instead of an axis of size
    # 1.
    if not all(x.g.lengths.is_positive(d) for d in x.shape):
        magnitude = magnitude.slice(last_axis, 0, 1)
    return magnitude.maximum(MIN_TOKEN_MAXIMUM)


def _emit_fake_quantized_tokens(x: Tensor) -> Tensor:
    """Quantize and dequantize each token with its own scale (fake quantization)."""
    scale, scaled_tokens = _emit_token_scales(x)
    return (_emit_int8_codes(scaled_tokens) * scale).with_type(x.type)


def _emit_int8_codes(x: OnnxValue) -> OnnxValue:
    """Round `x` and clip it to the range of int8, without a cast to int8."""
    return x.round().apply_op("Clip", -128, 127)


def _emit_fake_quantized_groups(x: Tensor, group_size: int) -> Tensor:
    """Quantize and dequantize each group of each token with its own scale (fake quantization)."""
    *leading_shape, width = x.shape
    group_count = count_groups_per_row(width.number or 0, group_size)
    padded_width = group_count * group_size
    padding = padded_width - (width.number or 0)
    padded: OnnxValue = x
    if padding:
        padded = x.apply_op("Pad", [0] * (2 * len(leading_shape) + 1) + [padding])
    shape = (*leading_shape, Dim.from_value(group_count), Dim.from_value(group_size))
    padded_shape = (*leading_shape, Dim.from_value(padded_width))
    groups = emit_reshape(padded, shape, source_shape=padded_shape)
    maximum = _emit_token_maximum(groups)
    scale = maximum / 127
    # The kernel of `MatMulNBits` multiplies by the reciprocal of the scale. A division by the scale
    # would be rounded differently.
    inverse_scale = 127 / maximum
    values = (groups * inverse_scale).round() * scale
    values = emit_reshape(values, padded_shape, source_shape=shape)
    if padding:
        values = values.slice(len(leading_shape), 0, width)
    return values.with_type(x.type)


def _emit_dequantized_product(
    op: ops.QuantizedLinear, x: Tensor, w: Tensor, scales: Tensor, zero_points: Tensor | None
) -> OnnxValue:
    """Emit `x @ w.T` as a float MatMul with dequantized weights. If the format quantizes
    activations, they are quantized and dequantized first.
    """
    if op.rounding == "row":
        x = _emit_fake_quantized_tokens(x)
    elif op.rounding == "block":
        x = _emit_fake_quantized_groups(x, op.group_size)
    matrix = _emit_dequantized_matrix(op, w, scales, x.shape[-1], zero_points)
    return x.apply_op("MatMul", _emit_columns(op, matrix))


@lower
def quantized_embedding(
    op: ops.QuantizedEmbedding, g: Emitter, ids: Tensor, table: Tensor, scales: Tensor
) -> OnnxValue:
    """Gather the quantized embeddings of the tokens, then dequantize only these embeddings."""
    indices, rank = emit_checked_indices(ids), ids.rank
    if g.target.quantized_matmul_mode == "weights" and op.group_size and op.layout == "rows":
        return _emit_gather_block_quantized(op, indices, table, scales)
    count, shape = Dim.symbol("gathered tokens"), g.context.types[0].shape
    flat_ids = emit_reshape(indices, (count,), source_shape=ids.shape) if rank != 1 else indices
    is_transposed = op.layout == "columns"
    codes = _emit_gathered_groups(table, flat_ids, count, axis=int(is_transposed))
    # Each token has one scale, or one scale per group if the table's layout is `columns`.
    has_block_scales = is_transposed and scales.rank > 1
    token_scales = _emit_gathered_groups(scales, flat_ids, count, axis=int(has_block_scales))
    values = _emit_dequantized_matrix(op, codes, token_scales, op.width)
    if is_transposed:
        values = values.transpose([1, 0])
    return emit_reshape(values, shape, source_shape=(count, op.width)) if rank != 1 else values


def _emit_gathered_groups(x: Tensor, indices: OnnxValue, count: Dim, axis: int) -> Tensor:
    """Emit the codes or scales of `count` tokens, gathered along an axis of an embedding table."""
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return x.gather(indices, axis).with_shape(shape)


def _emit_gather_block_quantized(
    op: ops.QuantizedEmbedding, ids: OnnxValue, table: Tensor, scales: Tensor
) -> OnnxValue:
    """Emit `GatherBlockQuantized`, and slice off the padding of the last group."""
    g, (row_count, group_count, _) = table.g, table.shape
    flat_table = table.reshape([row_count.number or 0, -1])
    values = flat_table.apply_op(
        "GatherBlockQuantized",
        ids,
        scales,
        domain=CONTRIB_DOMAIN,
        gather_axis=0,
        quantize_axis=1,
        bits=op.bits,
        block_size=op.group_size,
    )
    *leading_shape, width = g.context.types[0].shape
    padded_width = group_count * op.group_size
    g.innermost_body.types[values.name] = Type(scales.dtype, (*leading_shape, padded_width))
    return values if padded_width == width else values.slice(len(leading_shape), 0, width)


@lower
def quantize(op: ops.Quantize, g: Emitter, x: Tensor, scale: Tensor) -> OnnxValue:
    """Emit `Div`, `Round` and `Clip`. `QuantizeLinear` supports scales only along one axis."""
    return _emit_int8_codes(x / scale).cast("i8")


lower.add_rules({ops.Dequantize: lambda op, g, x, scale: x.cast(scale.dtype) * scale})


def _emit_dequantized_matrix(
    op: ops.QuantizedLinear | ops.QuantizedEmbedding,
    w: Tensor,
    scales: Tensor,
    width: Dim,
    zero_points: Tensor | None = None,
) -> OnnxValue:
    """Dequantize a weight matrix in its stored layout."""
    dtype, block = scales.dtype, op.group_size
    if not block:
        # per-channel scales are along the last axis in the layout `columns`, and along the first
        # axis otherwise
        is_transposed = op.layout == "columns"
        return w.cast(dtype) * (scales if is_transposed else scales.unsqueeze(1))
    if op.layout == "columns":
        return _emit_dequantized_columns(w, scales, width, block)
    w = _emit_unpacked_int4(w) if op.bits == 4 else w
    row_count, group_count = scales.shape
    shape = (row_count, group_count, Dim.from_value(block))
    # If there are no zero points, group-wise codes are unsigned integers whose zero point is the
    # middle of the range.
    if zero_points is None:
        offset = w.g.emit_constant(float(2 ** (op.bits - 1)), dtype)
    else:
        offset = _emit_zero_points(op, zero_points, scales)
    values = (w.cast(dtype) - offset) * scales.unsqueeze(2)
    padded_width = group_count * block
    matrix: OnnxValue = emit_reshape(values, (row_count, padded_width), source_shape=shape)
    return matrix if padded_width == width else matrix.slice(1, 0, width)


def _emit_dequantized_columns(w: Tensor, scales: Tensor, width: Dim, group_size: int) -> OnnxValue:
    """Dequantize a weight matrix with group-wise scales along its first axis."""
    g = w.g
    if g.opset >= BLOCK_DEQUANTIZE_SINCE and scales.dtype == "f32":
        # ONNX Runtime's optimizer rejects a loop body that dequantizes a captured weight.
        with g.hoist_nodes(g.context.scope, level=0):
            return w.apply_op("DequantizeLinear", scales, axis=0, block_size=group_size)
    # If the opset has no block-wise `DequantizeLinear`, each scale is repeated for all input
    # features in its group.
    repeated_scales = scales.unsqueeze(1).expand([1, group_size, 1])
    group_count, column_count = scales.shape
    padded_width = group_count * group_size
    group_shape = (group_count, Dim.from_value(group_size), column_count)
    matrix_shape = (padded_width, column_count)
    flat_scales: OnnxValue = emit_reshape(repeated_scales, matrix_shape, source_shape=group_shape)
    if padded_width != width:
        flat_scales = flat_scales.slice(0, 0, width)
    return w.cast(scales.dtype) * flat_scales


def _emit_zero_points(
    op: ops.QuantizedLinear | ops.QuantizedEmbedding, zero_points: Tensor, scales: Tensor
) -> OnnxValue:
    """Emit the zero points `[out, groups, 1]` in the dtype of the scales."""
    zero_points = _emit_unpacked_int4(zero_points) if op.bits == 4 else zero_points
    result: OnnxValue = zero_points
    if zero_points.shape[1] != scales.shape[1]:
        result = zero_points.slice(1, 0, scales.shape[1])
    return result.cast(scales.dtype).unsqueeze(2)


def _emit_unpacked_int4(w: Tensor) -> Tensor:
    """Unpack bytes that contain two int4 values each, the low nibble first."""
    # The nibbles are computed without `BitwiseAnd`, because the model may use opset 17, which lacks
    # this operator.
    high = w / 16
    nibbles = [nibble.unsqueeze(w.rank) for nibble in (w - high * 16, high)]
    *leading_shape, byte_count = w.shape
    shape = (*leading_shape, byte_count * 2)
    pair_shape = (*leading_shape, byte_count, Dim.from_value(2))
    pairs = w.g.emit_node("Concat", *nibbles, axis=w.rank)
    return emit_reshape(pairs, shape, source_shape=pair_shape)

"""Lower layers with quantized weights.

`int8` is W8A8 with per-token activation scales. For `ort-cpu`, `MatMulIntegerToFloat` applies both
scales to weights stored `[in, out]`; its bias operand is not used, because ONNX Runtime 1.31 also
multiplies the bias by per-token scales. Embedding tables and expert weights stay `[out, in]` and
use `QGemm`. Other targets use `MatMulInteger` (CUDA: a float MatMul of the int8 codes) and a
separate `Mul` node for each scale, so that ONNX Runtime does not fuse the scales with the bias.
Group-wise weights use `MatMulNBits`, or are dequantized first.
"""

from specc.ir import ops
from specc.ir.dim import Dim, multiply_dims
from specc.ir.ops.quantized import count_groups
from specc.ir.types import Type
from specc_onnx.lower.emitter import CONTRIB_DOMAIN, Emitter, Tensor
from specc_onnx.lower.nn import emit_unflatten
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import (
    emit_cast,
    emit_checked_indices,
    emit_flatten,
    emit_reduce,
    emit_reshape,
    emit_slice,
    emit_unsqueeze,
    make_typed_tensor,
)

MIN_TOKEN_MAXIMUM = 1e-30
"""Lower bound of the absolute maximum of a token, so that a token of zeros has a nonzero scale."""
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
) -> str:
    """Lower `x @ w.T + b` with quantized weights."""
    shape = x.shape if x.rank > 1 else (Dim.from_value(1), *x.shape)
    tokens = make_typed_tensor(emit_reshape(g, x, shape), x.dtype, shape)
    result_shape = (*shape[:-1], g.site.types[0].shape[-1])
    product = _emit_quantized_matmul(
        op, g, tokens, weights, scales, result_shape, zero_points=zero_points
    )
    product = product if bias is None else g.emit_node("Add", product, bias)
    return emit_reshape(g, product, g.site.types[0].shape, source_shape=result_shape)


def _emit_quantized_matmul(
    op: ops.QuantizedLinear,
    g: Emitter,
    tokens: Tensor,
    weights: Tensor,
    scales: Tensor,
    result_shape: tuple[Dim, ...],
    *,
    zero_points: Tensor | None,
) -> str:
    """Emit `tokens @ weights.T` by the fastest kernel of the target for the quantization format."""
    dtype = tokens.dtype
    has_kernel = dtype == "f32" or dtype in g.target.compute_dtypes
    if op.group_size and op.layout == "rows" and g.target.quantized_operators and has_kernel:
        return _emit_matmul_nbits(
            op, g, tokens, weights, scales, result_shape, zero_points=zero_points
        )
    # Per-tensor activation scales change the result, so they are used even if the target has no
    # kernel for the type.
    has_tensor_scale = op.rounding == "tensor"
    if not has_tensor_scale and not (op.rounding == "row" and not op.group_size and has_kernel):
        return _emit_dequantized_product(op, g, tokens, weights, scales, zero_points)
    # activation quantization is computed in f32
    x, f32_scales = (
        make_typed_tensor(emit_cast(g, t, "f32"), "f32", t.shape) for t in (tokens, scales)
    )
    if has_tensor_scale:
        product = _emit_per_tensor_product(op, g, x, weights, f32_scales)
    else:
        product = _emit_integer_product(op, g, x, weights, f32_scales, result_shape)
    return emit_cast(g, product, dtype, source_dtype="f32")


def _emit_matmul_nbits(
    op: ops.QuantizedLinear,
    g: Emitter,
    x: Tensor,
    w: Tensor,
    scales: Tensor,
    result_shape: tuple[Dim, ...],
    *,
    zero_points: Tensor | None,
) -> str:
    """Emit a `MatMulNBits` node for group-wise quantized weights."""
    if op.rounding == "row":
        x = _emit_fake_quantized_tokens(g, x)
    name = g.emit_node(
        "MatMulNBits",
        x,
        w,
        scales,
        zero_points,
        domain=CONTRIB_DOMAIN,
        K=x.shape[-1].number,
        N=result_shape[-1].number,
        bits=op.bits,
        block_size=op.group_size,
        accuracy_level=INT8_ACCURACY_LEVEL if op.rounding == "block" else 1,
    )
    g.innermost_body.types[name] = Type(x.dtype, result_shape)
    return name


def _emit_integer_product(
    op: ops.QuantizedLinear,
    g: Emitter,
    x: Tensor,
    w: Tensor,
    scales: Tensor,
    result_shape: tuple[Dim, ...],
) -> str:
    """Emit an integer MatMul, then multiply by the per-channel scales and the per-token scales."""
    token_scales, scaled_tokens = _emit_token_scales(g, x)
    # `QuantizeLinear` has no per-token scales, so it quantizes scaled tokens with the scale 1.
    is_float = g.lacks_kernel("MatMulInteger", "i8")
    zero_point = g.emit_constant(0, "i8") if is_float else g.emit_constant(128, "u8")
    codes = g.emit_node("QuantizeLinear", scaled_tokens, 1.0, zero_point)
    if g.target.quantized_operators == "rows" and op.layout == "columns":
        # omit the weight zero point: ONNX Runtime 1.32 fails to convert a shared zero point to u8
        operands = (codes, w, token_scales, scales, zero_point)
        product = g.emit_node("MatMulIntegerToFloat", *operands, domain=CONTRIB_DOMAIN)
        g.innermost_body.types[product] = Type("f32", result_shape)
        return product
    if g.target.quantized_operators == "rows":
        flat_codes = emit_flatten(g, Tensor(codes, x.type))
        gemm_operands = (flat_codes, 1.0, zero_point, w, 1.0, g.emit_constant(0, "i8"))
        product = g.emit_node("QGemm", *gemm_operands, domain=CONTRIB_DOMAIN, transB=1)
        flat_type = Type("f32", (multiply_dims(result_shape[:-1]), result_shape[-1]))
        g.innermost_body.types[product] = flat_type
        sums = product if len(result_shape) == 2 else emit_unflatten(g, product, result_shape)
    elif is_float:
        # the float MatMul is exact up to 1040 inputs; ONNX Runtime casts the weights once, at load
        # time
        matrix = _emit_columns(op, g, emit_cast(g, w, "f32"))
        sums = g.emit_node("MatMul", emit_cast(g, codes, "f32", source_dtype="i8"), matrix)
    else:
        product = g.emit_node("MatMulInteger", codes, _emit_columns(op, g, w), zero_point)
        sums = emit_cast(g, product, "f32")
    return g.emit_node("Mul", g.emit_node("Mul", sums, scales), token_scales)


def _emit_per_tensor_product(
    op: ops.QuantizedLinear, g: Emitter, x: Tensor, w: Tensor, scales: Tensor
) -> str:
    """Emit an integer MatMul of dynamically quantized activations (one scale per tensor)."""
    codes, scale, zero_point = g.emit_nodes("DynamicQuantizeLinear", 3, x)
    product = g.emit_node("MatMulInteger", codes, _emit_columns(op, g, w), zero_point)
    sums = emit_cast(g, product, "f32")
    return g.emit_node("Mul", sums, g.emit_node("Mul", scale, scales))


def _emit_columns(op: ops.QuantizedLinear, g: Emitter, w: Tensor | str) -> Tensor | str:
    """Emit a stored weight matrix in the layout `[in, out]`."""
    return g.emit_node("Transpose", w, perm=[1, 0]) if op.layout == "rows" else w


def _emit_token_scales(g: Emitter, x: Tensor) -> tuple[str, str]:
    """Emit the scale of each token, and the tokens divided by their scales (-127 to 127)."""
    scale = g.emit_node("Div", _emit_token_maximum(g, x), g.emit_constant(127, x.dtype))
    return scale, g.emit_node("Div", x, scale)


def _emit_token_maximum(g: Emitter, x: Tensor) -> str:
    """Emit the absolute maximum of each token, at least `MIN_TOKEN_MAXIMUM`."""
    last_axis, dtype = x.rank - 1, x.dtype
    maximum = emit_reduce(g, "ReduceMax", g.emit_node("Abs", x), last_axis, keepdims=True)
    # ONNX Runtime's `ReduceMax` over an empty axis returns an empty axis instead of an axis of size
    # 1.
    if not all(g.lengths.is_positive(d) for d in x.shape):
        maximum = emit_slice(g, maximum, last_axis, 0, 1)
    return g.emit_node("Max", maximum, g.emit_constant(MIN_TOKEN_MAXIMUM, dtype))


def _emit_fake_quantized_tokens(g: Emitter, x: Tensor) -> Tensor:
    """Quantize and dequantize each token with its own scale (fake quantization)."""
    scale, scaled_tokens = _emit_token_scales(g, x)
    return Tensor(g.emit_node("Mul", _emit_int8_codes(g, scaled_tokens, x.dtype), scale), x.type)


def _emit_int8_codes(g: Emitter, x: str, dtype: str) -> str:
    """Emit `x` rounded and clipped to the range of int8, in the dtype `dtype`."""
    return g.emit_node(
        "Clip", g.emit_node("Round", x), g.emit_constant(-128, dtype), g.emit_constant(127, dtype)
    )


def _emit_fake_quantized_groups(g: Emitter, x: Tensor, group_size: int) -> Tensor:
    """Quantize and dequantize each group of each token with its own scale (fake quantization)."""
    *leading_shape, width = x.shape
    group_count = count_groups(width.number or 0, group_size)
    padded_width = Dim.from_value(group_count * group_size)
    name, dtype = x.name, x.dtype
    if padded_width != width:
        pads = [0] * (2 * len(leading_shape) + 1) + [group_count * group_size - (width.number or 0)]
        name = g.emit_node("Pad", name, pads)
    shape = (*leading_shape, Dim.from_value(group_count), Dim.from_value(group_size))
    padded_shape = (*leading_shape, padded_width)
    groups = emit_reshape(g, name, shape, source_shape=padded_shape)
    blocks = make_typed_tensor(groups, dtype, shape)
    maximum = _emit_token_maximum(g, blocks)
    scale = g.emit_node("Div", maximum, g.emit_constant(127, dtype))
    # The kernel of `MatMulNBits` multiplies by the reciprocal, which rounds differently from a
    # division.
    inverse_scale = g.emit_node("Div", g.emit_constant(127, dtype), maximum)
    codes = g.emit_node("Round", g.emit_node("Mul", blocks, inverse_scale))
    values = g.emit_node("Mul", codes, scale)
    values = emit_reshape(g, values, padded_shape, source_shape=shape)
    if padded_width != width:
        values = emit_slice(g, values, len(leading_shape), 0, width)
    return Tensor(values, x.type)


def _emit_dequantized_product(
    op: ops.QuantizedLinear,
    g: Emitter,
    x: Tensor,
    w: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
) -> str:
    """Emit `x @ w.T` as a float MatMul with dequantized weights, and with activations that are
    quantized and dequantized if the format quantizes activations.
    """
    if op.rounding == "row":
        x = _emit_fake_quantized_tokens(g, x)
    elif op.rounding == "block":
        x = _emit_fake_quantized_groups(g, x, op.group_size)
    matrix = _emit_dequantized_matrix(op, g, w, scales, x.shape[-1], zero_points)
    return g.emit_node("MatMul", x, _emit_columns(op, g, matrix))


@lower
def quantized_embedding(
    op: ops.QuantizedEmbedding, g: Emitter, ids: Tensor, table: Tensor, scales: Tensor
) -> str:
    """Gather the quantized embeddings of the tokens, then dequantize only these embeddings."""
    indices, rank = emit_checked_indices(g, ids), ids.rank
    if g.target.quantized_operators == "weights" and op.group_size and op.layout == "rows":
        return _emit_gather_block_quantized(op, g, indices, table, scales)
    count, shape = Dim.symbol("gathered tokens"), g.site.types[0].shape
    flat_ids = emit_reshape(g, indices, (count,), source_shape=ids.shape) if rank != 1 else indices
    is_transposed = op.layout == "columns"
    codes = _emit_gathered_groups(g, table, flat_ids, count, axis=int(is_transposed))
    # Each token has one scale, or one scale per group if the layout of the table is `columns`.
    has_block_scales = is_transposed and scales.rank > 1
    token_scales = _emit_gathered_groups(g, scales, flat_ids, count, axis=int(has_block_scales))
    values = _emit_dequantized_matrix(op, g, codes, token_scales, op.width)
    if is_transposed:
        values = g.emit_node("Transpose", values, perm=[1, 0])
    return emit_reshape(g, values, shape, source_shape=(count, op.width)) if rank != 1 else values


def _emit_gathered_groups(g: Emitter, x: Tensor, indices: str, count: Dim, axis: int) -> Tensor:
    """Emit the codes or scales of `count` tokens, gathered along an axis of an embedding table."""
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return make_typed_tensor(g.emit_node("Gather", x, indices, axis=axis), x.dtype, shape)


def _emit_gather_block_quantized(
    op: ops.QuantizedEmbedding, g: Emitter, ids: str, table: Tensor, scales: Tensor
) -> str:
    """Emit `GatherBlockQuantized`, and slice off the padding of the last group."""
    row_count, group_count, _ = table.shape
    flat_table = g.emit_node("Reshape", table, [row_count.number or 0, -1])
    values = g.emit_node(
        "GatherBlockQuantized",
        flat_table,
        ids,
        scales,
        domain=CONTRIB_DOMAIN,
        gather_axis=0,
        quantize_axis=1,
        bits=op.bits,
        block_size=op.group_size,
    )
    *leading_shape, width = g.site.types[0].shape
    padded_width = group_count * op.group_size
    g.innermost_body.types[values] = Type(scales.dtype, (*leading_shape, padded_width))
    return values if padded_width == width else emit_slice(g, values, len(leading_shape), 0, width)


@lower
def quantize(op: ops.Quantize, g: Emitter, x: Tensor, scale: Tensor) -> str:
    """Lower to Div, Round and Clip, because `QuantizeLinear` supports scales only along one
    axis.
    """
    return emit_cast(g, _emit_int8_codes(g, g.emit_node("Div", x, scale), x.dtype), "i8")


lower.add_rules(
    {
        ops.Dequantize: lambda op, g, x, scale: g.emit_node(
            "Mul", emit_cast(g, x, scale.dtype), scale
        )
    }
)


def _emit_dequantized_matrix(
    op: ops.QuantizedLinear | ops.QuantizedEmbedding,
    g: Emitter,
    w: Tensor,
    scales: Tensor,
    width: Dim,
    zero_points: Tensor | None = None,
) -> str:
    """Dequantize a weight matrix in its stored layout."""
    dtype, block = scales.dtype, op.group_size
    if not block:
        codes = emit_cast(g, w, dtype)
        # per-channel scales are along the last axis in the layout `columns`, otherwise along the
        # first axis
        is_transposed = op.layout == "columns"
        per_output = scales.name if is_transposed else emit_unsqueeze(g, scales, 1)
        return g.emit_node("Mul", codes, per_output)
    if op.layout == "columns":
        return _emit_dequantized_columns(g, w, scales, width, block)
    w = _emit_unpacked_int4(g, w) if op.bits == 4 else w
    row_count, group_count = scales.shape
    shape = (row_count, group_count, Dim.from_value(block))
    # Without zero points, group-wise codes are stored as unsigned integers with the zero point in
    # the middle of the range.
    if zero_points is None:
        offset = g.emit_constant(float(2 ** (op.bits - 1)), dtype)
    else:
        offset = _emit_zero_points(op, g, zero_points, scales)
    codes = g.emit_node("Sub", emit_cast(g, w, dtype), offset)
    values = g.emit_node("Mul", codes, emit_unsqueeze(g, scales, 2))
    padded_width = group_count * block
    matrix = emit_reshape(g, values, (row_count, padded_width), source_shape=shape)
    return matrix if padded_width == width else emit_slice(g, matrix, 1, 0, width)


def _emit_dequantized_columns(
    g: Emitter, w: Tensor, scales: Tensor, width: Dim, group_size: int
) -> str:
    """Dequantize a weight matrix with group-wise scales along its first axis."""
    if g.opset >= BLOCK_DEQUANTIZE_SINCE and scales.dtype == "f32":
        # ONNX Runtime's optimizer rejects a loop body that dequantizes a captured weight.
        with g.hoist_nodes(g.site.scope, level=0):
            return g.emit_node("DequantizeLinear", w, scales, axis=0, block_size=group_size)
    # If the opset has no block-wise `DequantizeLinear`, each scale is repeated for all input
    # features of its group.
    repeated_scales = g.emit_node("Expand", emit_unsqueeze(g, scales, 1), [1, group_size, 1])
    group_count, column_count = scales.shape
    padded_width = group_count * group_size
    group_shape = (group_count, Dim.from_value(group_size), column_count)
    matrix_shape = (padded_width, column_count)
    flat_scales = emit_reshape(g, repeated_scales, matrix_shape, source_shape=group_shape)
    if padded_width != width:
        flat_scales = emit_slice(g, flat_scales, 0, 0, width)
    return g.emit_node("Mul", emit_cast(g, w, scales.dtype), flat_scales)


def _emit_zero_points(
    op: ops.QuantizedLinear | ops.QuantizedEmbedding,
    g: Emitter,
    stored_zero_points: Tensor,
    scales: Tensor,
) -> str:
    """Emit the zero points `[out, groups, 1]` in the dtype of the scales."""
    zero_points = _emit_unpacked_int4(g, stored_zero_points) if op.bits == 4 else stored_zero_points
    name, group_count = zero_points.name, scales.shape[1]
    if zero_points.shape[1] != group_count:
        name = emit_slice(g, zero_points, 1, 0, group_count)
    return emit_unsqueeze(g, emit_cast(g, name, scales.dtype, source_dtype=zero_points.dtype), 2)


def _emit_unpacked_int4(g: Emitter, w: Tensor) -> Tensor:
    """Unpack bytes that contain two int4 values each, low nibble first."""
    # The nibbles are computed without `BitwiseAnd`, because the model may use opset 17.
    sixteen = g.emit_constant(16, "u8")
    high = g.emit_node("Div", w, sixteen)
    low = g.emit_node("Sub", w, g.emit_node("Mul", high, sixteen))
    *leading_shape, byte_count = w.shape
    axis = w.rank
    nibbles = g.emit_node(
        "Concat", emit_unsqueeze(g, low, axis), emit_unsqueeze(g, high, axis), axis=axis
    )
    shape = (*leading_shape, byte_count * 2)
    pair_shape = (*leading_shape, byte_count, Dim.from_value(2))
    name = emit_reshape(g, nibbles, shape, source_shape=pair_shape)
    return make_typed_tensor(name, "u8", shape)

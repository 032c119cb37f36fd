"""Lower linear layers, embeddings, norms, softmax and patches."""

from collections.abc import Sequence

from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly
from specc.ir.graph import Node, Value
from specc_onnx.lower.conv import emit_convolution
from specc_onnx.lower.emitter import CONTRIB_DOMAIN, Emitter
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.registry import lower
from specc_onnx.lower.tensor_helpers import (
    emit_cast,
    emit_checked_indices,
    emit_flatten,
    emit_reduce,
    emit_reshape,
    is_always_true,
)


@lower(ops.Linear)
def linear(op: ops.Linear, g: Emitter, x: Tensor, w: Tensor, bias: Tensor | None) -> str:
    """Lower to `Gemm`, `FusedMatMul` or `MatMul`, depending on target and weight layout."""
    w, is_transposed = _find_stored_weight(g, w)
    shape = x.type.shape
    if len(shape) == 1:
        sides = (w.name, x.name) if is_transposed else (x.name, w.name)
        return _emit_bias_add(g, g.node("MatMul", *sides), bias)
    # `MatMul` takes any leading axes; `Gemm` needs two reshapes.
    if g.target.linear_operator == "product" and len(shape) > 2 and x.type.dtype == "f32":
        return _emit_bias_add(g, _emit_linear_product(g, x, w, is_transposed), bias)
    operands = (emit_flatten(g, x.name, shape), w.name, bias.name if bias else None)
    result = g.node("Gemm", *operands, transB=1 if is_transposed else None)
    made = g.site.types[0].shape
    return result if len(shape) == 2 else emit_unflatten(g, result, made)


def _find_stored_weight(g: Emitter, w: Tensor) -> tuple[Tensor, bool]:
    """Return the stored weight, and whether its layout is `[out, in]`."""
    match w.value:
        case Value(node=Node(ops.Transpose(order=(1, 0)), (Value() as lying,))):
            return g.values.tensors[lying], False
    return w, True


def _emit_bias_add(g: Emitter, product: str, bias: Tensor | None) -> str:
    return product if bias is None else g.node("Add", product, bias)


def _emit_linear_product(g: Emitter, x: Tensor, w: Tensor, is_transposed: bool) -> str:
    """Emit `x @ w.T` by ONNX Runtime's FusedMatMul, or `x @ w` by `MatMul`."""
    if not is_transposed:
        return g.node("MatMul", x, w)
    name = g.node("FusedMatMul", x, w, domain=CONTRIB_DOMAIN, transB=1)
    g.bodies.open[-1].types[name] = g.site.types[0]
    return name


def emit_unflatten(g: Emitter, x: str, shape: Sequence[Dim]) -> str:
    """Emit `[n, d]` as `shape`, the inverse of `emit_flatten`."""
    # A symbol that no graph has, so that `Reshape` never copies this axis.
    before = (Dim.symbol("rows before unflattening"), shape[-1])
    return emit_reshape(g, x, before, shape)


@lower(ops.Embedding)
def embedding(op: ops.Embedding, g: Emitter, ids: Tensor, table: Tensor) -> str:
    """Lower to `Gather`."""
    return g.node("Gather", table, emit_checked_indices(g, ids), axis=0)


@lower(ops.LayerNorm)
def layer_norm(
    op: ops.LayerNorm, g: Emitter, x: Tensor, scale: Tensor | None, bias: Tensor | None
) -> str:
    """Lower to `LayerNormalization`; a missing scale is ones."""
    return g.node(
        "LayerNormalization",
        _emit_norm_input(g, x),
        _emit_norm_scale(g, x, scale),
        bias,
        axis=-1,
        epsilon=op.eps,
    )


def _emit_norm_input(g: Emitter, x: Tensor) -> str:
    """Return the input of a norm. An addition without other users becomes a `Sum`, because the
    runtime would fuse an `Add` with the norm into a slower kernel.
    """
    value = x.value
    if not g.target.fuses_add_into_norm or value is None or value.type.dtype != "f32":
        return x.name
    match value.node:
        # the runtime fuses neither additions with other users nor broadcasting ones
        case Node(ops.Arith(fn="add"), args) if g.facts.use_counts[value] == 1:
            terms = [a for a in args if a is not None and a.type == value.type]
            if len(terms) == 2:
                return g.node("Sum", *(g.values.tensors[a].name for a in terms))
    return x.name


@lower(ops.RMSNorm)
def rms_norm(op: ops.RMSNorm, g: Emitter, x: Tensor, scale: Tensor | None) -> str:
    """Lower to `RMSNormalization`, or to its formula in older opsets."""
    if g.has("RMSNormalization"):
        return g.node("RMSNormalization", x, _emit_norm_scale(g, x, scale), axis=-1, epsilon=op.eps)
    last = x.type.rank - 1
    mean = emit_reduce(g, "ReduceMean", g.node("Mul", x, x), last, keep=True)
    root = g.node("Sqrt", g.node("Add", mean, g.constant(op.eps, x.type.dtype)))
    result = g.node("Div", x, root)
    return g.node("Mul", result, scale) if scale else result


def _emit_norm_scale(g: Emitter, x: Tensor, scale: Tensor | None) -> str:
    if scale is not None:
        return scale.name
    width = x.type.shape[-1]
    # The operator requires a scale.
    if width.number is not None:
        return g.constant([1.0] * width.number, x.type.dtype)
    return g.node("Expand", g.constant(1.0, x.type.dtype), g.shape([width]))


@lower(ops.Dropout)
def dropout(op: ops.Dropout, g: Emitter, x: Tensor) -> str:
    """Lower to the identity: ONNX models are for inference."""
    return x.name


@lower(ops.Softmax)
def softmax(op: ops.Softmax, g: Emitter, x: Tensor) -> str:
    """Lower to `Softmax`."""
    return g.node("Softmax", x, axis=op.axis)


def emit_masked_softmax(
    g: Emitter, scores: str, dtype: str, mask: Tensor | None, finite: bool = False
) -> str:
    """Emit a softmax over the visible keys of the last axis: zeros if no key is visible or all
    scores are -inf, which `finite` excludes.
    """
    shown = mask is not None and not is_always_true(mask)
    lowest = g.constant(float("-inf"), dtype)
    if mask is not None and shown:
        scores = g.node("Where", mask, scores, lowest)
    weights, zero = g.node("Softmax", scores, axis=-1), g.constant(0, dtype)
    # A bias of -inf hides keys too.
    if not finite:
        wide = "f32" if g.lacks("Equal", dtype) else dtype
        least = g.constant(float("-inf"), wide)
        nothing = g.node("Equal", emit_cast(g, scores, dtype, wide), least)
        return g.node("Where", nothing, zero, weights)
    if mask is None or not shown:
        return weights
    return g.node("Where", mask, weights, zero)


@lower(ops.Patches)
def patches(op: ops.Patches, g: Emitter, x: Tensor, w: Tensor, b: Tensor | None) -> str:
    """Lower to a convolution with stride = kernel and flatten the result row by row."""
    high, wide = w.type.shape[2], w.type.shape[3]
    assert None not in (high.number, wide.number), "patch sizes are static"
    size = [high.number, wide.number]
    operands = (x.name, w.name, b.name if b else None)
    grid = emit_convolution(g, "Conv", operands, x.type.dtype, kernel_shape=size, strides=size)
    batch, count, width = g.site.types[0].shape
    rows = (divide_dims_exactly(x.type.shape[2], high), divide_dims_exactly(x.type.shape[3], wide))
    flat = emit_reshape(g, grid, (batch, width, *rows), (batch, width, count))
    return g.node("Transpose", flat, perm=[0, 2, 1])

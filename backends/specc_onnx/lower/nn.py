"""Lowering of the layers of neural networks (`specc.ir.ops.nn`), attention apart
(`specc_onnx.lower.attention`).
"""

from collections.abc import Sequence

from specc.ir import ops
from specc.ir.dim import Dim, exact
from specc.ir.graph import Node, Value
from specc_onnx.lower.arrange import (
    always,
    cast,
    flatten,
    reduce,
    reshape,
)
from specc_onnx.lower.conv import convolved
from specc_onnx.lower.emitter import CONTRIB, Emitter, Tensor
from specc_onnx.lower.guards import checked
from specc_onnx.lower.table import lower


@lower(ops.Linear)
def linear(
    op: ops.Linear, g: Emitter, x: Tensor, w: Tensor, bias: Tensor | None
) -> str:
    """`x @ w.T + b`, with the weight in whatever layout it is stored."""
    w, turned = _stored(g, w)
    shape = x.type.shape
    # `Gemm` takes matrices alone.
    if len(shape) == 1:
        sides = (w.name, x.name) if turned else (x.name, w.name)
        return _plus(g, g.node("MatMul", *sides), bias)
    # A product takes any number of axes in front, where `Gemm` needs two reshapes
    # around it.
    if g.target.linear == "product" and len(shape) > 2 and x.type.dtype == "f32":
        return _plus(g, _product(g, x, w, turned), bias)
    operands = (flatten(g, x.name, shape), w.name, bias.name if bias else None)
    result = g.node("Gemm", *operands, transB=1 if turned else None)
    made = g.site.types[0].shape
    return result if len(shape) == 2 else unflatten(g, result, made)


def _stored(g: Emitter, w: Tensor) -> tuple[Tensor, bool]:
    """A weight as it lies, and whether that is `[out, in]`: a product reads a matrix in
    either order, so what the IR turns over need not be.
    """
    match w.value:
        case Value(node=Node(ops.Transpose(order=(1, 0)), (Value() as lying,))):
            return g.tensors[lying], False
    return w, True


def _plus(g: Emitter, product: str, bias: Tensor | None) -> str:
    return product if bias is None else g.node("Add", product, bias.name)


def _product(g: Emitter, x: Tensor, w: Tensor, turned: bool) -> str:
    """`x @ w.T` by ONNX Runtime's own operator, whose type ONNX has to be told, or
    `x @ w` by the standard's.
    """
    if not turned:
        return g.node("MatMul", x.name, w.name)
    name = g.node("FusedMatMul", x.name, w.name, domain=CONTRIB, transB=1)
    g.bodies[-1].types[name] = g.site.types[0]
    return name


def unflatten(g: Emitter, x: str, shape: Sequence[Dim]) -> str:
    """`[n, d]` as `shape`, the opposite of `flatten`."""
    # A symbol that no graph has, so that this axis is never one that stays.
    before = (Dim.symbol("rows before unflattening"), shape[-1])
    return reshape(g, x, before, shape)


@lower(ops.Embedding)
def embedding(op: ops.Embedding, g: Emitter, ids: Tensor, table: Tensor) -> str:
    """Rows of a table."""
    return g.node("Gather", table.name, checked(g, ids), axis=0)


@lower(ops.LayerNorm)
def layer_norm(
    op: ops.LayerNorm, g: Emitter, x: Tensor, scale: Tensor | None, bias: Tensor | None
) -> str:
    """The standard operator; a missing scale is ones."""
    return g.node(
        "LayerNormalization",
        _apart(g, x),
        _scale(g, x, scale),
        bias.name if bias else None,
        axis=-1,
        epsilon=op.eps,
    )


def _apart(g: Emitter, x: Tensor) -> str:
    """What a norm reads. A sum that nothing else reads is a `Sum` where the runtime would
    join an `Add` with the norm, into a kernel that is slower than both.
    """
    value = x.value
    if not g.target.joins_norms or value is None or value.type.dtype != "f32":
        return x.name
    match value.node:
        # one that is read again the runtime leaves alone, and one that repeats an operand
        case Node(ops.Arith(fn="add"), args) if g.readers[value] == 1:
            terms = [a for a in args if a is not None and a.type == value.type]
            if len(terms) == 2:
                return g.node("Sum", *(g.tensors[a].name for a in terms))
    return x.name


@lower(ops.RMSNorm)
def rms_norm(op: ops.RMSNorm, g: Emitter, x: Tensor, scale: Tensor | None) -> str:
    """The standard operator, or its formula where the opset is older."""
    if g.has("RMSNormalization"):
        return g.node(
            "RMSNormalization", x.name, _scale(g, x, scale), axis=-1, epsilon=op.eps
        )
    last = x.type.rank - 1
    # Before opset 23.
    mean = reduce(g, "ReduceMean", g.node("Mul", x.name, x.name), last, keep=True)
    root = g.node("Sqrt", g.node("Add", mean, g.constant(op.eps, x.type.dtype)))
    result = g.node("Div", x.name, root)
    return g.node("Mul", result, scale.name) if scale else result


def _scale(g: Emitter, x: Tensor, scale: Tensor | None) -> str:
    if scale is not None:
        return scale.name
    width = x.type.shape[-1]
    # The operator demands a scale, where the IR has none for a norm without weights.
    if width.number is not None:
        return g.constant([1.0] * width.number, x.type.dtype)
    return g.node("Expand", g.constant(1.0, x.type.dtype), g.shape([width]))


@lower(ops.Softmax)
def softmax(op: ops.Softmax, g: Emitter, x: Tensor) -> str:
    """The standard operator."""
    return g.node("Softmax", x.name, axis=op.axis)


def softmax_where(
    g: Emitter, scores: str, dtype: str, mask: Tensor | None, finite: bool = False
) -> str:
    """Softmax over the last axis among what `mask` shows; zeros in a row that sees
    nothing, or nothing but minus infinity, which `finite` scores are not.

    What hides is minus infinity: any other number may be above a score that is seen. The
    operator gives no numbers for a row of that alone.
    """
    shown = mask is not None and not always(mask)
    lowest = g.constant(float("-inf"), dtype)
    if mask is not None and shown:
        scores = g.node("Where", mask.name, scores, lowest)
    weights, zero = g.node("Softmax", scores, axis=-1), g.constant(0, dtype)
    # Added scores may be minus infinity themselves, and then a row sees nothing
    # although the mask shows some.
    if not finite:
        wide = "f32" if g.lacks("Equal", dtype) else dtype
        least = g.constant(float("-inf"), wide)
        nothing = g.node("Equal", cast(g, scores, dtype, wide), least)
        return g.node("Where", nothing, zero, weights)
    if mask is None or not shown:
        return weights
    return g.node("Where", mask.name, weights, zero)


@lower(ops.Patches)
def patches(op: ops.Patches, g: Emitter, x: Tensor, w: Tensor, b: Tensor | None) -> str:
    """A convolution with stride = kernel, its result read row by row."""
    high, wide = w.type.shape[2], w.type.shape[3]
    assert None not in (high.number, wide.number), (
        "patch sizes are known when a model is built"
    )
    size = [high.number, wide.number]
    operands = (x.name, w.name, b.name if b else None)
    grid = convolved(g, "Conv", operands, x.type.dtype, kernel_shape=size, strides=size)
    batch, count, width = g.site.types[0].shape
    rows = (exact(x.type.shape[2], high), exact(x.type.shape[3], wide))
    flat = reshape(g, grid, (batch, width, *rows), (batch, width, count))
    return g.node("Transpose", flat, perm=[0, 2, 1])

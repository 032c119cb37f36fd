"""Lower dense (unblocked) attention to the `Attention` operator, or to MatMul and Softmax nodes.

ONNX Runtime 1.31 on CPU requires a mask of full query length, and rejects empty axes. The mask and
the bias are combined in one float mask. The output of a query is zero if all keys are masked. The
attribute `is_causal` is not used, because opsets align queries and keys differently.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specc.ir import ops
from specc.ir.dim import Dim, divide_dims_exactly, multiply_dims
from specc.ir.types import Type
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.onnx_targets import PROBABILITIES_OUTPUT_MODE
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.reshape_reduce_and_matmul import (
    emit_expand,
    emit_full,
    emit_reshape,
    is_constant_true,
)
from specc_onnx.lower.subgraphs import make_branch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOperands:
    """The operands of scaled dot-product attention: queries, keys and values `[b, h, t, d]`, and an
    optional mask, bias and attention sinks. `combined_mask` replaces mask and bias if it is set.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None
    combined_mask: Tensor | None = None

    @property
    def score_shape(self) -> tuple[Dim, Dim, Dim, Dim]:
        """Return the shape of the scores: batch, heads, queries, keys."""
        b, h, q, _ = self.q.shape
        return b, h, q, self.k.shape[2]

    @property
    def num_kv_heads(self) -> Dim:
        """Return the number of key/value heads, which may be less than that of the query heads."""
        return self.k.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionResult:
    """The output of an attention layer, which is `[b, t, h·e]` if `is_packed`, and `[b, h, t, e]`
    otherwise. `weights` is None if the attention weights are not computed. `weight_location`
    contains the names of the values from which instrumentation computes the attention weights.
    """

    output: OnnxValue
    is_packed: bool
    weights: OnnxValue | None
    weight_location: Mapping[str, str]


def emit_dense_attention(
    op: ops.Attend, g: Emitter, operands: AttentionOperands
) -> AttentionResult:
    """Emit attention of all queries to all keys, as one `Attention` node if possible."""
    if can_fuse_attention(op, g, operands):
        return emit_fused_attention(op, g, operands)
    return emit_decomposed_attention(op, g, operands)


def can_fuse_attention(op: ops.Attend, g: Emitter, operands: AttentionOperands) -> bool:
    """Return True if the standard operator `Attention` can compute `op` on `operands`."""
    # `Attention` has no operand for sinks, and multiplies queries and keys by the square root of
    # the scale. The f64 CPU kernel of `Attention` returns NaN for a query whose keys are all
    # masked.
    dtypes = {operands.q.dtype, *(["weights"] if g.context.used_results[1] else [])}
    return (
        g.has_operator("Attention")
        and operands.sinks is None
        and op.scale > 0
        and dtypes <= g.target.attention_dtypes
    )


def emit_unpacked_heads(attention: AttentionResult, heads: Dim, head_dim: Dim) -> OnnxValue:
    """Emit the attention output as `[b, h, t, e]`."""
    if not attention.is_packed:
        return attention.output
    return emit_split_heads(attention.output, heads, head_dim)


def emit_split_heads(packed: OnnxValue, heads: Dim, head_dim: Dim) -> OnnxValue:
    """Split packed heads into `[b, h, t, d]`, and record both layouts for later ops."""
    head_size = -1 if head_dim.number is None else head_dim.number
    heads_last = packed.reshape([0, 0, heads.number or 0, head_size])
    result = heads_last.transpose([0, 2, 1, 3])
    packed.g.cache.packed_heads[result.name] = packed
    return result


def emit_decomposed_attention(
    op: ops.Attend, g: Emitter, operands: AttentionOperands
) -> AttentionResult:
    """Emit attention as a MatMul, a Softmax and a second MatMul. In grouped-query attention, the
    keys and values of a group are broadcast to its query heads.
    """
    b, h, q, k = operands.score_shape
    num_kv_heads = operands.num_kv_heads
    group_size = None if h == num_kv_heads else divide_dims_exactly(h, num_kv_heads)
    queries, keys, values = (
        _emit_grouped_heads(t, num_kv_heads, group_size)
        for t in (operands.q, operands.k, operands.v)
    )
    rank = 4 if group_size is None else 5
    # Keys are `[…, t, d]`, but the MatMul requires `[…, d, t]`.
    keys = keys.transpose([*range(rank - 2), rank - 1, rank - 2])
    # The queries are scaled instead of the scores, because the scores have more elements for long
    # sequences.
    if op.scale != 1.0:
        queries = queries * op.scale
    scores = queries.apply_op("MatMul", keys)
    leading_shape = (b, h) if group_size is None else (b, num_kv_heads, group_size)
    scores = emit_reshape(scores, operands.score_shape, source_shape=(*leading_shape, q, k))
    if op.cap > 0:
        scores = (scores / op.cap).apply_op("Tanh") * op.cap
    if operands.bias is not None:
        scores = scores + operands.bias
    weights = _emit_attention_weights(g, operands, scores)
    grouped_shape, e = (*leading_shape, q, k), operands.v.shape[3]
    grouped_weights = emit_reshape(weights, grouped_shape, source_shape=operands.score_shape)
    result = grouped_weights.apply_op("MatMul", values)
    result = emit_reshape(result, (b, h, q, e), source_shape=(*leading_shape, q, e))
    location = {"weights": weights.name}
    return AttentionResult(
        output=result, is_packed=False, weights=weights, weight_location=location
    )


def _emit_grouped_heads(x: Tensor, num_kv_heads: Dim, group_size: Dim | None) -> OnnxValue:
    """Emit queries `[b, h, t, d]` as `[b, g, h/g, t, d]`, and keys and values as `[b, g, 1, t, d]`.
    Here, `num_kv_heads` is g and `group_size` is h/g (None if g is h).
    """
    if group_size is None:
        return x
    b, heads, t, d = x.shape
    if heads == num_kv_heads:
        return x.unsqueeze(2)
    return emit_reshape(x, (b, num_kv_heads, group_size, t, d))


def _emit_attention_weights(
    g: Emitter, operands: AttentionOperands, scores: OnnxValue
) -> OnnxValue:
    """Emit the softmax of `scores`, `[b, h, q, k]`. An attention sink is the score of an additional
    unmasked key. The attention weight of this key is sliced off.
    """
    b, h, q, k = operands.score_shape
    if operands.sinks is None:
        return emit_masked_softmax(scores, operands.mask, is_finite=operands.bias is None)
    if operands.mask is not None and not is_constant_true(operands.mask):
        scores = operands.mask.where(scores, float("-inf"))
    sinks = operands.sinks.reshape(g.emit_shape((1, h, 1, 1)))
    sinks = sinks.expand(g.emit_shape((b, 1, q, 1)))
    weights_and_sink = scores.apply_op("Concat", sinks, axis=3).apply_op("Softmax", axis=-1)
    return weights_and_sink.apply_op("Slice", [0], g.emit_shape([k]), [3])


def emit_fused_attention(
    op: ops.Attend, g: Emitter, operands: AttentionOperands
) -> AttentionResult:
    """Emit one `Attention` node, with packed heads `[b, t, h·d]` if queries, keys and values exist
    in this layout. If an axis may be empty, emit the node inside an `If` whose other branch returns
    zeros.
    """
    b, h, q, k = operands.score_shape
    e, dtype = operands.v.shape[3], operands.q.dtype
    options: dict[str, Any] = {"scale": op.scale, "softcap": op.cap if op.cap > 0 else None}
    packed_inputs = find_packed_heads(g, operands)
    # Packed heads require no transposes before and after the operator.
    if packed_inputs is not None:
        options |= {"q_num_heads": h.number, "kv_num_heads": operands.num_kv_heads.number}
    # If the attention weights (the fourth output) are unused, the kernel need not materialize them.
    result_count, output_count = (2, 4) if g.context.used_results[1] else (1, 1)
    if result_count == 2:
        options["qk_matmul_output_mode"] = PROBABILITIES_OUTPUT_MODE
    inputs = packed_inputs or (operands.q, operands.k, operands.v)
    mask = operands.combined_mask or emit_combined_mask(operands.mask, operands.bias, (q, k))
    shape = (b, q, h * e) if packed_inputs else (b, h, q, e)
    types = [Type(dtype, shape), Type(dtype, operands.score_shape)][:result_count]

    def emit_attention() -> list[OnnxValue]:
        results = g.emit_multi_output_node("Attention", output_count, *inputs, mask, **options)
        return [results[0], results[-1]][:result_count]

    possibly_empty = [d for d in dict.fromkeys((b, q, k)) if not g.lengths.is_positive(d)]
    if possibly_empty:
        results, weight_location = _emit_nonempty_branch(g, possibly_empty, types, emit_attention)
    else:
        results = emit_attention()
        weight_location = {"node": results[0].name}
    weights = results[1] if result_count == 2 else None
    return AttentionResult(
        output=results[0],
        is_packed=packed_inputs is not None,
        weights=weights,
        weight_location=weight_location,
    )


def _emit_nonempty_branch(
    g: Emitter,
    lengths: Sequence[Dim],
    types: Sequence[Type],
    emit_attention: Callable[[], list[OnnxValue]],
) -> tuple[list[OnnxValue], dict[str, str]]:
    """Emit an `If` that computes the attention, or zeros if one of `lengths` is 0. Return the
    results of the `If`, and the names of the values inside the `If` from which the attention
    weights can be computed.
    """
    # The product of the axis sizes is 0 if any size is 0.
    with g.hoist_nodes("lengths"):
        is_nonempty = g.emit_length(multiply_dims(lengths)) > 0
    nonempty_branch = make_branch(g, "nonempty", types, emit_attention)
    empty_branch = make_branch(
        g, "empty", types, lambda: [emit_full(g, 0, t.dtype, t.shape) for t in types]
    )
    results = g.emit_multi_output_node(
        "If", len(types), is_nonempty, then_branch=nonempty_branch, else_branch=empty_branch
    )
    return [*results], {"node": nonempty_branch.output[0].name, "guard": results[0].name}


def find_packed_heads(g: Emitter, operands: AttentionOperands) -> list[OnnxValue] | None:
    """Return packed queries, keys, values `[b, t, h·d]`, or None if the kernel does not support
    them.
    """
    packed_heads = [
        packed
        for x in (operands.q, operands.k, operands.v)
        if (packed := g.cache.packed_heads.get(x.name)) is not None
    ]
    has_static_heads = operands.score_shape[1].number and operands.num_kv_heads.number
    can_use_all = g.target.uses_3d_attention_inputs and has_static_heads and len(packed_heads) == 3
    return packed_heads if can_use_all else None


def emit_combined_mask(
    mask: Tensor | None, bias: Tensor | None, lengths: tuple[Dim, Dim]
) -> Tensor | None:
    """Emit the mask input `[…, q, k]` of `Attention`: the bias with -inf at masked keys, or only
    the mask or the bias if the other one is absent. Return None if no key is masked and there is no
    bias.
    """
    mask = None if mask is None or is_constant_true(mask) else mask
    combined_mask = mask or bias
    if combined_mask is None:
        return None
    if mask is not None and bias is not None:
        masked_bias = mask.where(bias, float("-inf"))
        pairs = zip(mask.shape, bias.shape, strict=True)
        broadcast_shape = [m if b == 1 else b for m, b in pairs]
        combined_mask = masked_bias.with_shape(broadcast_shape)
    # ONNX Runtime requires a mask of full query length, although ONNX allows size 1.
    shape = (*combined_mask.shape[:2], *lengths)
    return emit_expand(combined_mask, shape).with_shape(shape)


def emit_masked_softmax(
    scores: OnnxValue, mask: Tensor | None, *, is_finite: bool = False
) -> OnnxValue:
    """Emit a softmax of `scores` over the unmasked keys of the last axis. The attention weights are
    zero if all keys are masked or all scores are -inf. `is_finite` is True if all scores are known
    to be finite.
    """
    g, dtype = scores.g, scores.dtype
    mask = None if mask is None or is_constant_true(mask) else mask
    lowest = g.emit_constant(float("-inf"), dtype)
    if mask is not None:
        scores = mask.where(scores, lowest)
    weights, zero = scores.apply_op("Softmax", axis=-1), g.emit_constant(0, dtype)
    # A bias of -inf also masks out keys.
    if not is_finite:
        comparable_scores = scores.cast(dtype if g.has_kernel("Equal", dtype) else "f32")
        is_empty = comparable_scores.equals(float("-inf"))
        return is_empty.where(zero, weights)
    return weights if mask is None else mask.where(weights, zero)

"""Lower attention ops. `Attend` is lowered to KV buffer attention, blocked attention or dense
attention. If another op uses the attention weights, the normalization of masked scores and the
weighted sum of values are separate ops, which are lowered separately.
"""

from collections.abc import Mapping
from math import inf

from specc.analysis.local_attention_plan import (
    BlockedAttentionPlan,
    plan_blocked_attention_from_mask,
    plan_blocked_attention_from_weights,
)
from specc.ir import ops
from specc.ir.dim import multiply_dims
from specc_onnx.lower.blocked_attention_loop import (
    GlobalTokens,
    emit_blocked_attention_condition,
    emit_local_attention,
    emit_query_block_loop,
)
from specc_onnx.lower.blocked_attention_slices import (
    PositionSpan,
    QueryKeyAxes,
    QueryKeySlicer,
    emit_position_slice,
    emit_query_key_slice,
)
from specc_onnx.lower.dynamic_shapes import assume_nonzero_dims
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.fused_and_decomposed_attention import (
    AttentionOperands,
    emit_dense_attention,
    emit_masked_softmax,
    emit_unpacked_heads,
)
from specc_onnx.lower.kv_buffer_attention import emit_kv_buffer_attention, is_kv_buffer
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.predictive_local_attention import (
    emit_window_attention_weights,
    emit_window_weighted_sum,
    find_attention_window,
)
from specc_onnx.lower.registry import lower
from specc_onnx.lower.reshape_reduce_and_matmul import emit_matmul, emit_reduce
from specc_onnx.lower.subgraphs import emit_if

ATTENTION_FORM = "how"
"""The metadata key that records how each attention layer was lowered, and why."""


@lower
def attend(
    op: ops.Attend,
    g: Emitter,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[OnnxValue, OnnxValue | None]:
    """Lower `Attend`. Return the attention output and the attention weights (None if unused)."""
    if is_kv_buffer(g, key):
        _record_attention_weight_location(g, query.dtype, {ATTENTION_FORM: "into KV buffers"})
        return emit_kv_buffer_attention(op, g, query, key, value, mask, bias), None
    operands = AttentionOperands(q=query, k=key, v=value, mask=mask, bias=bias, sinks=sinks)
    plan = _plan_attention_blocks(g, operands)
    if isinstance(plan, BlockedAttentionPlan):
        attention = emit_local_attention(op, g, operands, plan)
        description = f"dense, {plan}"
    else:
        attention, description = emit_dense_attention(op, g, operands), f"dense: {plan}"
    location = {**attention.weight_location, ATTENTION_FORM: description}
    _record_attention_weight_location(g, query.dtype, location)
    return emit_unpacked_heads(attention, query.shape[1], value.shape[3]), attention.weights


def _plan_attention_blocks(g: Emitter, operands: AttentionOperands) -> BlockedAttentionPlan | str:
    """Return the plan of blocked attention, or the reason why blocked attention does not apply."""
    queries, keys = operands.score_shape[2:]
    if not g.target.uses_blocked_attention:
        return f"{g.target.name} does not use blocked attention"
    if g.context.used_results[1]:
        return "attention weights are an output or are used by other operations"
    if queries != keys:
        return "query and key lengths differ"
    if operands.score_shape[1].number is None or operands.v.shape[3].number is None:
        return "the head size or the number of heads is dynamic"
    padding_masks = [value for value, side in g.analysis.padding_sides.items() if side]
    mask = operands.mask.value if operands.mask else None
    plan = plan_blocked_attention_from_mask(mask, queries, keys, padding_masks)
    if plan is None:
        return "the mask has no local window"
    # The number of position embeddings limits the sequence length.
    max_length = g.analysis.max_lengths.get(queries.name or "", inf)
    if max_length <= plan.length_threshold:
        threshold = plan.length_threshold
        return (
            f"blocks are faster only above {threshold} positions, but the maximum is {max_length}"
        )
    return plan


def emit_blocked_weighted_sum(g: Emitter, weights: Tensor, values: Tensor) -> OnnxValue | None:
    """Emit the product of attention weights `[…, q, k]` and values `[…, k, e]` in blocks of
    queries. If the weights cannot be recomputed per block, emit no nodes and return None.
    """
    plan = _plan_attention_weight_blocks(g, weights, values)
    if plan is None:
        return None
    type = g.context.types[0]
    n = type.shape[-2]
    is_blocked = emit_blocked_attention_condition(
        g, multiply_dims(type.shape[:-2]), n, plan, GlobalTokens()
    )
    axes = _get_weight_axes(weights)

    def emit_block_sum(queries: PositionSpan, keys: PositionSpan) -> Tensor:
        block_weights = emit_query_key_slice(
            g, weights, axes, (queries, keys), visible_band=plan.band
        )
        block_values = emit_position_slice(g, values, (values.rank - 2,), (keys,))
        shape = (*type.shape[:-2], queries.length, type.shape[-1])
        return emit_matmul(block_weights, block_values).with_shape(shape)

    def emit_blocked_sum() -> list[OnnxValue]:
        with assume_nonzero_dims(g, n, *type.shape[:-2]):
            return [emit_query_block_loop(g, n, plan, emit_block_sum)]

    def emit_dense_sum() -> list[OnnxValue]:
        all_weights = emit_query_key_slice(g, weights, axes, (None, None), visible_band=plan.band)
        return [emit_matmul(all_weights, values)]

    branches = {"long": emit_blocked_sum, "short": emit_dense_sum}
    return emit_if(g, is_blocked, [type], branches, isolated_branches=["short"])[0]


def _plan_attention_weight_blocks(
    g: Emitter, weights: Tensor, values: Tensor
) -> BlockedAttentionPlan | None:
    """Return the plan that splits a weighted sum into blocks. Return None if the attention weights
    have another user or cannot be recomputed per block.
    """
    value, width = weights.value, values.shape[-1].number
    if value is None or width is None or not g.target.uses_blocked_attention:
        return None
    # The leading axes differ if one of them has size 1 and is broadcast. A blocked sum does not
    # support this case.
    if g.analysis.use_counts.get(value, 0) != 1 or weights.shape[:-2] != values.shape[:-2]:
        return None
    plan = plan_blocked_attention_from_weights(value)
    if plan is None:
        return None
    queries, keys = weights.shape[-2:]
    slicer = QueryKeySlicer(
        queries=queries, keys=keys, scope=g.context.scope, visible_band=plan.band
    )
    slicer.build_slice(value, _get_weight_axes(weights))
    return plan if value not in slicer.query_key_leaves else None


def _get_weight_axes(x: Tensor) -> QueryKeyAxes:
    return x.rank - 2, x.rank - 1


@lower
def masked_softmax(op: ops.MaskedSoftmax, g: Emitter, scores: Tensor, mask: Tensor) -> OnnxValue:
    """Lower a softmax over unmasked keys. For local-p attention, compute only the scores of keys in
    the window.
    """
    if window := find_attention_window(g, mask):
        return emit_window_attention_weights(g, window, (scores, mask))
    return emit_masked_softmax(scores, mask)


@lower
def masked_hardmax(op: ops.MaskedHardmax, g: Emitter, scores: Tensor, mask: Tensor) -> OnnxValue:
    """Lower hard attention to a one-hot encoding of the first unmasked key with the maximum score,
    or to zeros if all keys are masked.
    """
    axis, lowest = scores.rank - 1, float("-inf")
    visible_scores = mask.where(scores, lowest)
    maximum = emit_reduce("ReduceMax", visible_scores, axis, keepdims=True)
    # A score of -inf is treated as masked.
    is_maximum = visible_scores.equals(maximum) & (visible_scores > lowest)
    rank = is_maximum.cast("i32").apply_op("CumSum", axis)
    return (is_maximum & rank.equals(1)).cast(scores.dtype)


@lower
def masked_l1_normalization(
    op: ops.MaskedL1Normalization, g: Emitter, scores: Tensor, mask: Tensor
) -> OnnxValue:
    """Apply ReLU to the unmasked scores and divide them by their sum, or by 1 if the sum is 0."""
    visible_scores = mask.where(scores.apply_op("Relu"), 0)
    score_sum = emit_reduce("ReduceSum", visible_scores, scores.rank - 1, keepdims=True)
    return visible_scores / score_sum.equals(0).where(1, score_sum)


@lower
def weighted_sum(op: ops.WeightedSum, g: Emitter, weights: Tensor, values: Tensor) -> OnnxValue:
    """Lower `w @ v` to a sum over the keys of a local-p window, a blocked sum, or a MatMul."""
    if weights.value and weights.value.node:
        _record_attention_weight_location(g, weights.dtype, {"weights": weights.name})
    result = emit_window_weighted_sum(g, weights, values) or emit_blocked_weighted_sum(
        g, weights, values
    )
    return emit_matmul(weights, values) if result is None else result


def _record_attention_weight_location(g: Emitter, dtype: str, facts: Mapping[str, str]) -> None:
    """Record the names of the values from which a layer's attention weights can be computed, for
    `OnnxBuildResult.attention_weight_locations`. Layers inside loops are not recorded.
    """
    if len(g.bodies.open_bodies) == 1:
        g.attention_weight_locations += (
            {"scope": scope, "dtype": dtype, **facts}
            for scope in g.context.scopes or ("attention",)
        )

"""Lower local attention to a loop over blocks of queries.

    If(long)  a Loop over blocks: keys and mask of a block are sliced in its body
    else      one dense attention

Masks are computed inside the loop body, or inside an `If` for dense attention, so that a long
sequence requires no tensor of `n · n` elements. All blocks have the same size, so the last block
may overlap the previous block. Global keys are prepended to the keys of each block. Attention of
global queries is computed separately, and the results are scattered into the output.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from specc.analysis.local_attention_plan import (
    GLOBAL_TOKEN_RATIO,
    BlockedAttentionPlan,
    GlobalTokenCondition,
)
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc_onnx.lower.blocked_attention_slices import (
    PositionSpan,
    emit_mask_slice,
    slice_attention_operands,
)
from specc_onnx.lower.dynamic_shapes import assume_nonzero_dims, bind_dim_size
from specc_onnx.lower.emitter import Emitter
from specc_onnx.lower.fused_and_decomposed_attention import (
    AttentionOperands,
    AttentionResult,
    can_fuse_attention,
    emit_combined_mask,
    emit_dense_attention,
    find_packed_heads,
)
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.reshape_reduce_and_matmul import emit_count_nonzero, emit_full
from specc_onnx.lower.subgraphs import (
    emit_if,
    emit_subgraph_outputs,
    make_branch,
    make_subgraph_proto,
)

BLOCK_KEYS_DIM = Dim.symbol("block.keys")
"""The number of keys per block as a dimension, if this number differs between blocks."""

GLOBAL_QUERIES_DIM = Dim.symbol("block.queries")
"""The number of global queries, whose attention is computed separately."""

BLOCKS_SCOPE = "blocks"
"""The scope name of the nodes that slice and concatenate blocks."""


@dataclass(frozen=True, slots=True)
class GlobalTokens:
    """The positions i64[n] of global keys and of global queries, or None if there are none."""

    keys: OnnxValue | None = None
    queries: OnnxValue | None = None


def emit_local_attention(
    op: ops.Attend, g: Emitter, operands: AttentionOperands, plan: BlockedAttentionPlan
) -> AttentionResult:
    """Emit attention that runs in blocks for sequences longer than `plan.length_threshold`."""
    b, h, n, _ = operands.score_shape
    e = operands.v.shape[3]
    # Both branches of the `If` return packed heads [b, t, h*d] if the attention kernel supports
    # packed heads.
    is_packed = can_fuse_attention(op, g, operands) and find_packed_heads(g, operands) is not None
    result_type = Type(operands.q.dtype, (b, n, h * e) if is_packed else (b, h, n, e))
    with _enter_blocks_scope(g):
        keys, queries = plan.decomposition.key_conditions, plan.decomposition.query_conditions
        global_tokens = GlobalTokens(_emit_true_indices(g, keys), _emit_true_indices(g, queries))
    is_blocked = emit_blocked_attention_condition(g, b, n, plan, global_tokens)
    dense_operands, weight_location = emit_dense_attention_operands(op, g, operands, is_blocked)

    def emit_dense() -> list[OnnxValue]:
        attention = emit_dense_attention(op, g, dense_operands)
        weight_location.update(attention.weight_location)
        return [attention.output]

    def emit_blocks() -> list[OnnxValue]:
        with assume_nonzero_dims(g, b, n):
            if plan.band.is_empty:
                # If there is no band, the outputs of global queries are scattered into a tensor of
                # zeros.
                result = emit_full(g, 0, result_type.dtype, result_type.shape)
            else:
                result = _emit_attention_blocks(op, g, operands, plan, global_tokens)
            if global_tokens.queries:
                result = _emit_global_queries(
                    op, g, operands, result.with_type(result_type), global_tokens.queries
                )
            return [result]

    (result,) = emit_if(g, is_blocked, [result_type], {"long": emit_blocks, "short": emit_dense})
    return AttentionResult(
        output=result,
        is_packed=is_packed,
        weights=None,
        weight_location={**weight_location, "blocks": result.name},
    )


def emit_dense_attention_operands(
    op: ops.Attend, g: Emitter, operands: AttentionOperands, is_blocked: OnnxValue
) -> tuple[AttentionOperands, dict[str, str]]:
    """Emit the mask and bias of dense attention inside an `If`, so that they are computed only if
    `is_blocked` is false. Return the operands with the new mask and bias, and the names of the new
    mask and bias.
    """
    mask, bias = operands.mask, operands.bias

    def emit_mask() -> Tensor:
        full_mask, full_bias = (x and _emit_recomputed_full_mask(g, x) for x in (mask, bias))
        combined_mask = emit_combined_mask(full_mask, full_bias, operands.score_shape[2:])
        assert combined_mask is not None, "attention without a mask is not blocked"
        return combined_mask

    def emit_short_sequence_branch(x: Tensor) -> Tensor:
        operand = partial(_emit_recomputed_full_mask, g, x)
        return _emit_short_operand(g, is_blocked, (x.value,), operand).with_type(x.type, x.value)

    if can_fuse_attention(op, g, operands):
        key = tuple(x.value if x else None for x in (mask, bias))
        combined_mask = _emit_short_operand(g, is_blocked, key, emit_mask)
        weight_location = {"mask": combined_mask.name}
        return replace(operands, mask=None, bias=None, combined_mask=combined_mask), weight_location
    mask, bias = (x and emit_short_sequence_branch(x) for x in (mask, bias))
    weight_location = {n: t.name for n, t in (("mask", mask), ("added", bias)) if t}
    return replace(operands, mask=mask, bias=bias), weight_location


def _emit_recomputed_full_mask(g: Emitter, x: Tensor) -> Tensor:
    """Emit a mask or bias for all queries and keys, recomputed in the innermost body."""
    return emit_mask_slice(g, x) if x.value else x


def _emit_short_operand(
    g: Emitter,
    is_blocked: OnnxValue,
    key: tuple[Value | None, ...],
    emit_operand: Callable[[], Tensor],
) -> Tensor:
    """Emit an `If` outside the loop over blocks. The `If` returns the result of `emit_operand` for
    a short sequence, and a one-element placeholder tensor for a long sequence. Attention layers
    with the same mask share the `If`.
    """
    if (is_blocked.name, *key) in g.cache.hoisted_masks:
        return g.cache.hoisted_masks[is_blocked.name, *key]
    with g.open_body(is_isolated=True) as body:
        operand = emit_operand()
        results = emit_subgraph_outputs(g, [operand])
    short_branch = make_subgraph_proto("short", body, results, [operand.type])
    placeholder_type = Type.of(operand.dtype, *[1] * operand.rank)
    placeholder = partial(emit_full, g, 0, placeholder_type.dtype, placeholder_type.shape)
    unused_branch = make_branch(g, "unused", [placeholder_type], lambda: [placeholder()])
    name = is_blocked.apply_op("If", then_branch=unused_branch, else_branch=short_branch)
    result = name.with_type(operand.type)
    # Values of a loop body are visible only inside the loop body.
    if len(g.bodies.open_bodies) == 1:
        g.cache.hoisted_masks[is_blocked.name, *key] = result
    return result


@contextmanager
def _enter_blocks_scope(g: Emitter) -> Iterator[None]:
    """Emit the nodes in a `with` block under `BLOCKS_SCOPE` instead of the layer's scope."""
    outer_context, g.context = g.context, replace(g.context, scopes=(BLOCKS_SCOPE,))
    try:
        yield
    finally:
        g.context = outer_context


def emit_blocked_attention_condition(
    g: Emitter, batch: Dim, queries: Dim, plan: BlockedAttentionPlan, global_tokens: GlobalTokens
) -> OnnxValue:
    """Emit a bool[] condition that is true if blocked attention is used. This is the case if the
    sequence is long, there are few global tokens, and the batch is not empty.
    """
    g.analysis.add_branch_threshold(queries, plan.length_threshold)
    with g.hoist_nodes("lengths"):
        is_blocked = g.emit_length(queries) > plan.length_threshold
        if not g.lengths.is_positive(batch):
            has_batch = g.emit_length(batch) > 0
            is_blocked = is_blocked & has_batch
    for indices in filter(None, (global_tokens.keys, global_tokens.queries)):
        with _enter_blocks_scope(g):
            scaled_count = indices.numel() * GLOBAL_TOKEN_RATIO
            has_few_tokens = scaled_count <= g.emit_length(queries)
            is_blocked = is_blocked & has_few_tokens
    return is_blocked


def _emit_true_indices(
    g: Emitter, conditions: tuple[GlobalTokenCondition, ...]
) -> OnnxValue | None:
    """Emit the positions, i64[n], where one of the conditions is true for any batch element or
    head. Return None if there are no conditions.
    """
    any_condition: OnnxValue | None = None
    for condition in conditions:
        x = g.values.tensors[condition.value]
        holds: OnnxValue = ~x if condition.is_negated else x
        other_axes = [axis for axis in range(x.rank) if axis != condition.axis]
        if other_axes:
            # A sum replaces the OR reduction, because it supports an empty batch.
            holds = emit_count_nonzero(holds, *other_axes, dtype="i32") > 0
        any_condition = any_condition | holds if any_condition else holds
    if any_condition is None:
        return None
    return any_condition.apply_op("NonZero").squeeze(0)


def _emit_attention_blocks(
    op: ops.Attend,
    g: Emitter,
    operands: AttentionOperands,
    plan: BlockedAttentionPlan,
    global_tokens: GlobalTokens,
) -> OnnxValue:
    """Emit a loop over the query blocks of an attention layer. Return the concatenated results."""
    b, h, n, _ = operands.score_shape
    e, size = operands.v.shape[3], Dim.from_value(plan.block_size)

    def emit_block_attention(queries: PositionSpan, keys: PositionSpan) -> Tensor:
        attention = _emit_partial_attention(op, g, operands, queries, keys)
        shape = (b, size, h * e) if attention.is_packed else (b, h, size, e)
        return attention.output.with_shape(shape)

    return emit_query_block_loop(g, n, plan, emit_block_attention, global_tokens.keys)


def emit_query_block_loop(
    g: Emitter,
    query_count: Dim,
    plan: BlockedAttentionPlan,
    emit_block: Callable[[PositionSpan, PositionSpan], Tensor],
    global_keys: OnnxValue | None = None,
) -> OnnxValue:
    """Emit a loop that computes `[…, n, e]` in blocks. `emit_block` emits a block for a span of
    queries and a span of keys.
    """
    length, block_size, max_overlap = (
        g.emit_shape([query_count]),
        [plan.block_size],
        [plan.block_size - 1],
    )
    block_count = (length + max_overlap) / block_size
    with g.open_body() as body:
        block_index, condition = g.make_loop_inputs()
        with _enter_blocks_scope(g):
            # The last block ends at the end of the sequence.
            unclamped_start = block_index.unsqueeze(0) * block_size
            start = unclamped_start.minimum(length - block_size)
            queries = PositionSpan(start, start + block_size, Dim.from_value(plan.block_size))
            keys = replace(_emit_key_span(g, queries, length, plan), global_positions=global_keys)
        with _bind_key_count(g, queries, keys):
            block_result = emit_block(queries, keys)
        results = emit_subgraph_outputs(g, [condition, block_result])
    types = [condition.type, block_result.type]
    graph = make_subgraph_proto("block", body, results, types, [block_index, condition])
    trip_count = block_count.squeeze(0)
    stacked_blocks = trip_count.apply_op("Loop", True, body=graph)
    with _enter_blocks_scope(g):
        blocks = stacked_blocks.with_type(block_result.type)
        return _emit_concatenated_blocks(g, blocks, block_count, plan, query_count)


def _emit_key_span(
    g: Emitter, queries: PositionSpan, length: OnnxValue, plan: BlockedAttentionPlan
) -> PositionSpan:
    """Emit the nonempty span of keys that the queries of a block attend to."""
    zero, one = g.emit_shape([0]), [1]
    # The band is the interval of q - k. The upper end of the band is the look-back, and the negated
    # lower end is the look-ahead.
    look_back, look_ahead = plan.band.high, -plan.band.low
    start, stop = zero, length
    if look_back != inf:
        start = (queries.start - [int(look_back)]).maximum(zero)
    if plan.keys_per_block is not None:
        # The key spans of all blocks have the same size. Therefore, a span near the end of the
        # sequence starts earlier, and the mask excludes more keys.
        key_count = [plan.keys_per_block]
        start = start.minimum(length - key_count)
        return PositionSpan(start, start + key_count, Dim.from_value(plan.keys_per_block))
    # If the band excludes the query's own position, the first or the last block may have no visible
    # keys.
    if look_back < 0:
        start = start.minimum(length - one)
    if look_ahead != inf:
        offset = [int(look_ahead)]
        stop = (queries.stop + offset).minimum(length)
        stop = stop.maximum(one) if look_ahead < 0 else stop
    return PositionSpan(start, stop, BLOCK_KEYS_DIM)


@contextmanager
def _bind_key_count(g: Emitter, queries: PositionSpan, keys: PositionSpan) -> Iterator[None]:
    """Bind the key count of a block (`BLOCK_KEYS_DIM`) to a nonzero value in a `with` block."""
    if keys.length != BLOCK_KEYS_DIM:
        with assume_nonzero_dims(g, queries.length, keys.length):
            yield
        return
    count = (keys.stop - keys.start).squeeze(0)
    if keys.global_positions:
        count = count + keys.global_positions.numel()
    with assume_nonzero_dims(g, queries.length), bind_dim_size(g, BLOCK_KEYS_DIM, count):
        yield


def _emit_partial_attention(
    op: ops.Attend,
    g: Emitter,
    operands: AttentionOperands,
    queries: PositionSpan,
    keys: PositionSpan | None,
) -> AttentionResult:
    """Emit dense attention of a span of queries to a span of keys (None: all keys)."""
    with _enter_blocks_scope(g):
        block_operands = slice_attention_operands(op, g, operands, queries, keys)
    return emit_dense_attention(op, g, block_operands)


def _emit_concatenated_blocks(
    g: Emitter, blocks: Tensor, block_count: OnnxValue, plan: BlockedAttentionPlan, query_count: Dim
) -> OnnxValue:
    """Concatenate the `block_count` stacked blocks of `query_count` positions without the overlap.
    `blocks.type` is the type of one block. For example, if 10 positions are split into blocks of 4
    that start at positions 0, 4 and 6, only the third block's last two positions are new.
    """
    leading_axes = blocks.rank - 2
    width = blocks.shape[-1].number
    assert width is not None, "blocked attention requires a static width"
    order = [*range(1, leading_axes + 1), 0, leading_axes + 1, leading_axes + 2]
    batch_first = blocks.transpose(order)
    all_blocks = batch_first.reshape([*[0] * leading_axes, -1, width])
    block_length, axis = [plan.block_size], [leading_axes]
    # The last block starts at sequence position `overlap_start`. Its index in the concatenation is
    # `leading_count`, where the previous blocks end. The first new position of the last block is
    # sequence position `leading_count`, which has index `last_start` in the concatenation.
    leading_count = (block_count - [1]) * block_length
    overlap_start = g.emit_shape([query_count]) - block_length
    last_start = leading_count + leading_count - overlap_start
    stop = leading_count + block_length
    leading_positions = all_blocks.apply_op("Slice", [0], leading_count, axis)
    last_positions = all_blocks.apply_op("Slice", last_start, stop, axis)
    return leading_positions.apply_op("Concat", last_positions, axis=leading_axes)


def _emit_global_queries(
    op: ops.Attend, g: Emitter, operands: AttentionOperands, result: Tensor, indices: OnnxValue
) -> OnnxValue:
    """Replace the outputs of `result` at the positions `indices` with attention to all keys."""
    axis = result.rank - 2
    count = indices.numel()
    has_global_queries = count > 0

    def emit_global_queries() -> list[OnnxValue]:
        with bind_dim_size(g, GLOBAL_QUERIES_DIM, count):
            span = PositionSpan(indices, indices, GLOBAL_QUERIES_DIM, indices, has_range=False)
            updates = _emit_partial_attention(op, g, operands, span, None).output
        with _enter_blocks_scope(g):
            # `ScatterElements` requires one index per element, not one index per position.
            other_axes = [a for a in range(result.rank) if a != axis]
            scatter_indices = indices.unsqueeze(*other_axes)
            scatter_indices = scatter_indices.expand(updates.runtime_shape())
            return [result.apply_op("ScatterElements", scatter_indices, updates, axis=axis)]

    branches: dict[str, Callable[[], list[OnnxValue]]] = {
        "some": emit_global_queries,
        "none": lambda: [result],
    }
    return emit_if(g, has_global_queries, [result.type], branches)[0]

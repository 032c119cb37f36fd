"""Lower attention over in-place KV buffers to `GroupQueryAttention`. The caller chooses the
capacity of the buffers.

`Attention` copies the whole cache at each step, but ONNX Runtime's `GroupQueryAttention` appends to
the buffer operand. `GroupQueryAttention` is used if the keys and values have no other user, all
heads share one mask, the attention weights are unused, and the kernel supports the head size. The
kernel is causal, so all other conditions of the mask are converted to a bias. The runtime splits
steps that are too long for the kernel.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.model_definition import DecodeState, KVCacheNames
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.lower.emitter import CONTRIB_DOMAIN, Emitter
from specc_onnx.lower.fused_and_decomposed_attention import emit_combined_mask, emit_split_heads
from specc_onnx.lower.onnx_values import OnnxValue, Tensor
from specc_onnx.lower.registry import count_value_users
from specc_onnx.lower.reshape_reduce_and_matmul import emit_arange, emit_full, is_constant_true
from specc_onnx.lower.subgraphs import emit_if

BUFFER_CAPACITY_DIM = Dim.symbol("capacity")
"""The capacity of a KV buffer, in positions."""


def get_kv_buffer_type(type: Type) -> Type:
    """Return the type of the KV buffer for keys or values of type `type`."""
    return Type(type.dtype, (*type.shape[:2], BUFFER_CAPACITY_DIM, type.shape[3]))


@dataclass(frozen=True, slots=True)
class _AppendedBuffer:
    """The keys or values of an attention layer: a buffer (`past`), and the `new_positions` that the
    kernel appends to it. The buffer is quantized if there is a `scale`.
    """

    concatenated: Value
    past: Tensor
    new_positions: Tensor
    scale: Tensor | None = None

    @classmethod
    def from_value(cls, g: Emitter, x: Tensor) -> "_AppendedBuffer":
        assert x.value is not None
        scale, concatenated = _split_scale(x.value)
        past, new_positions = _get_two_operands(concatenated)
        if scale is not None:
            new_positions, _ = _get_two_operands(new_positions)
        tensors = g.values.tensors
        scale_tensor = None if scale is None else tensors[scale]
        return cls(concatenated, tensors[past], tensors[new_positions], scale_tensor)


def is_kv_buffer(g: Emitter, x: Tensor) -> bool:
    """Return True if `x` (keys) is a KV buffer to which new positions are appended."""
    if x.value is None:
        return False
    node = _split_scale(x.value)[1].node
    return node is not None and bool(node.args) and node.args[0] in g.values.kv_buffers


def _split_scale(value: Value) -> tuple[Value | None, Value]:
    """Return the scale of an int8 cache (None for other caches) and the stored value."""
    match value.node:
        case Node(ops.Dequantize(), (Value() as stored_value, scale)):
            return scale, stored_value
    return None, value


def _get_two_operands(value: Value) -> tuple[Value, Value]:
    """Return the two operands of a binary node."""
    match value.node:
        case Node(_, (Value() as first, Value() as second)):
            return first, second
    raise AssertionError(f"{value} is not the result of a binary node")


def emit_kv_buffer_attention(
    op: ops.Attend,
    g: Emitter,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
) -> OnnxValue:
    """Emit a `GroupQueryAttention` whose updated buffers replace `k` and `v`. Return the output of
    the node, `[b, h, t, d]`. For example, if the buffers contain 5 positions and 2 new positions
    are appended, the capacity is at least 7, and the operands `seqlens_k` and
    `total_sequence_length` are 6 and 7.
    """
    b, h, query_count, d = q.shape
    keys, values = _AppendedBuffer.from_value(g, k), _AppendedBuffer.from_value(g, v)
    new_count, total_length = keys.new_positions.shape[2], k.shape[2]
    query = _emit_packed_heads(q)
    # The kernel requires one query per new key. If a step returns only the last position, it has
    # fewer queries than new keys. Therefore, placeholder queries are prepended, and their results
    # are sliced off.
    needs_placeholders = query_count != new_count
    if needs_placeholders:
        placeholders = emit_full(g, 0, q.dtype, (b, new_count - query_count, h * d))
        query = placeholders.apply_op("Concat", query, axis=1)
    buffers = (keys, values)
    call = _GroupQueryCall(
        op=op,
        heads=(h, k.shape[1]),
        buffers=buffers,
        packed_operands=(query, *(_emit_packed_heads(x.new_positions) for x in buffers)),
        sequence_lengths=_emit_sequence_lengths(g, b, total_length),
        result=Type(q.dtype, (b, new_count, h * d)),
    )
    has_mask = mask is not None and not is_constant_true(mask)
    if g.target.has_unmasked_attention_kernel and mask is not None and has_mask and bias is None:
        is_causal = _emit_is_causal_mask(g, mask, (query_count, total_length))
        result, *written_buffers = _emit_unbiased_if_causal(g, call, is_causal, mask)
    else:
        combined_bias = _emit_attention_bias(g, q.dtype, (new_count, total_length), mask, bias)
        result, *written_buffers = call.emit_call(g, combined_bias)
    for buffer, written in zip(buffers, written_buffers, strict=True):
        value = buffer.concatenated
        g.values.tensors[value] = written.with_type(value.type, value)
    if needs_placeholders:
        result = result.slice(1, new_count - query_count, new_count)
    if mask is not None and has_mask:
        result = _emit_zeros_for_masked(result, mask)
    return emit_split_heads(result, h, d)


def _emit_sequence_lengths(
    g: Emitter, batch: Dim, total_length: Dim
) -> tuple[OnnxValue, OnnxValue]:
    """Emit `seqlens_k`, i32[b] (last position per sequence), and `total_sequence_length`, i32[]."""
    with g.hoist_nodes("lengths"):
        total_count = g.emit_length(total_length).cast("i32")
        last_position = g.emit_length(total_length - 1).cast("i32")
        return last_position.expand(g.emit_shape([batch])), total_count


@dataclass(frozen=True, kw_only=True)
class _GroupQueryCall:
    """The operands of a `GroupQueryAttention` node. They are `heads` (the numbers of query heads
    and key/value heads), `buffers`, `packed_operands` (queries, new keys and values), and
    `sequence_lengths`.
    """

    op: ops.Attend
    heads: tuple[Dim, Dim]
    buffers: tuple[_AppendedBuffer, _AppendedBuffer]
    packed_operands: tuple[OnnxValue, ...]
    sequence_lengths: tuple[OnnxValue, OnnxValue]
    result: Type

    def emit_call(self, g: Emitter, bias: Tensor | None) -> tuple[OnnxValue, ...]:
        """Emit `GroupQueryAttention`, and return the attention output and the updated buffers."""
        rotation = [None, None, None]  # the optional rotary operands are absent
        buffers = [x.past for x in self.buffers]
        scales, options = _get_int8_operands(*self.buffers)
        return g.emit_multi_output_node(
            "GroupQueryAttention",
            3,
            *(*self.packed_operands, *buffers, *self.sequence_lengths, *rotation, bias, *scales),
            domain=CONTRIB_DOMAIN,
            num_heads=self.heads[0].number,
            kv_num_heads=self.heads[1].number,
            scale=self.op.scale,
            softcap=self.op.cap if self.op.cap > 0 else None,
            **options,
        )


def _emit_unbiased_if_causal(
    g: Emitter, call: _GroupQueryCall, is_causal: OnnxValue, mask: Tensor
) -> tuple[OnnxValue, ...]:
    """Emit an `If` with two calls of the kernel. If `is_causal` is true, the call has no bias,
    which is faster, otherwise the mask is the bias. Return the attention output and the updated
    buffers.
    """
    types = (call.result, *(get_kv_buffer_type(x.past.type) for x in call.buffers))
    lengths = call.result.shape[1], call.buffers[0].concatenated.type.shape[2]

    def attend_with_bias() -> tuple[OnnxValue, ...]:
        return call.emit_call(g, _emit_attention_bias(g, call.result.dtype, lengths, mask, None))

    branches = {"causal": lambda: call.emit_call(g, None), "masked": attend_with_bias}
    return emit_if(g, is_causal, types, branches)


def _emit_is_causal_mask(g: Emitter, mask: Tensor, lengths: tuple[Dim, Dim]) -> OnnxValue:
    """Emit a bool[] condition that is true if no key at or before a query's position is masked.
    `lengths` is the shape `[q, k]` of the mask. The queries are the last positions of the sequence.
    """
    queries, keys = lengths
    with g.hoist_nodes("lengths"):
        offset = g.emit_length(keys - queries)
        query_positions = (emit_arange(g, queries) + offset).unsqueeze(1)
        is_future = emit_arange(g, keys) > query_positions
    is_visible = mask | is_future
    minimum = is_visible.cast("i32").apply_op("ReduceMin", keepdims=0)
    return minimum.equals(1)


def _get_int8_operands(
    keys: _AppendedBuffer, values: _AppendedBuffer
) -> tuple[list[Tensor | None], dict[str, str | int]]:
    """Return the additional operands and attributes of the kernel for int8 buffers."""
    if keys.scale is None or values.scale is None:
        return [], {}
    options: dict[str, str | int] = {"kv_cache_bit_width": 8}
    options |= dict.fromkeys(("k_quant_type", "v_quant_type"), "PER_CHANNEL")
    # the operand for attention sinks, which precedes the scales, is absent
    return [None, keys.scale, values.scale], options


def _emit_packed_heads(x: Tensor) -> OnnxValue:
    """Convert `x` `[b, h, t, d]` to the packed layout `[b, t, h·d]`."""
    if (packed := x.g.cache.packed_heads.get(x.name)) is not None:
        return packed
    _, h, _, d = x.shape
    time_major = x.transpose([0, 2, 1, 3])
    return time_major.reshape([0, 0, (h.number or 0) * (d.number or 0)])


def _emit_attention_bias(
    g: Emitter, dtype: str, lengths: tuple[Dim, Dim], mask: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """Combine the mask and the bias into one bias `[…, *lengths]`. Return None if the kernel is
    causal and requires no bias.
    """
    if bias is None and mask is not None and not is_constant_true(mask):
        bias = g.emit_constant(0.0, dtype).with_shape((1, 1, 1, 1))
    return emit_combined_mask(mask, bias, lengths)


def _emit_zeros_for_masked(result: OnnxValue, mask: Tensor) -> OnnxValue:
    """Set `result` `[b, t, h·d]` to zeros for fully masked queries. All heads share `mask`."""
    visibility = mask.cast("f32").apply_op("ReduceMax", [3], keepdims=0)
    has_visible_key = visibility.transpose([0, 2, 1])
    return has_visible_key.cast("bool").where(result, 0)


MIN_KV_BUFFER_OPSET = 18
"""The first opset in which the axes of reductions are an operand, not an attribute."""

HEAD_WIDTH_MULTIPLE = 8
"""`GroupQueryAttention` supports head sizes that are multiples of this number."""


def find_in_place_kv_caches(
    graph: Graph, states: Sequence[DecodeState], target: Target, opset: int
) -> tuple[KVCacheNames, ...]:
    """Return the KV caches that a decode step graph can update in place."""
    if not target.in_place_cache_dtypes or opset < MIN_KV_BUFFER_OPSET:
        return ()
    states_by_input = {graph.inputs[s.name]: s for s in states if _is_bufferable(s)}
    use_counts = count_value_users(graph)
    caches = []
    for node, results in graph.nodes:
        # the kernel does not return the attention weights
        if not isinstance(node.op, ops.Attend) or use_counts[results[1]]:
            continue
        if not _is_supported_by_kernel(node, target):
            continue
        cache = _find_attention_cache(node, node.op, states_by_input, use_counts)
        if cache is not None:
            caches.append(cache)
    return tuple(caches)


def _is_bufferable(state: DecodeState) -> bool:
    """Return True if a state can be an in-place buffer. A sliding-window cache cannot be an
    in-place buffer, because its oldest positions are evicted. A cache with prefix positions cannot
    be an in-place buffer, because the cache is larger than `past`.
    """
    return state.time_axis == 2 and state.max_positions == inf and not state.initial_output


def _find_attention_cache(
    node: Node,
    op: ops.Attend,
    states_by_input: Mapping[Value, DecodeState],
    use_counts: Counter[Value],
) -> KVCacheNames | None:
    """Return the KV cache to which an attention node appends its keys and values. Return None if
    keys or values are not appended to a state or have other users.
    """
    key = _find_appended_state(op.key(node), states_by_input, use_counts)
    value = _find_appended_state(op.value(node), states_by_input, use_counts)
    # a state that contains both keys and values would be updated twice per step
    if key is None or value is None or key is value:
        return None
    return KVCacheNames(key.name, value.name, key.next_output, value.next_output)


def _is_supported_by_kernel(node: Node, target: Target) -> bool:
    """Return True if the kernel of the target supports an attention node and its dtype."""
    op = node.op
    assert isinstance(op, ops.Attend)
    q, k, v = op.query(node), op.key(node), op.value(node)
    has_sinks = op.sinks(node) is not None
    lengths = [q.type.shape[1].number, k.type.shape[1].number, q.type.shape[3].number]
    has_equal_widths = q.type.shape[3] == v.type.shape[3] and None not in lengths
    mask = op.mask(node)
    # The kernel is always causal, so attention without a mask is not supported.
    shares_mask = mask is not None and mask.type.shape[1] == 1
    # on an H200, the kernel rejected the bias of MPT (ALiBi) despite a correct shape
    has_bias = op.bias(node) is not None and target.has_unmasked_attention_kernel
    return (
        has_equal_widths
        and shares_mask
        and not has_sinks
        and not has_bias
        and op.scale > 0
        and q.type.dtype in target.in_place_cache_dtypes
        and (lengths[2] or 0) % HEAD_WIDTH_MULTIPLE == 0
    )


def _find_appended_state(
    value: Value | None, states_by_input: Mapping[Value, DecodeState], use_counts: Counter[Value]
) -> DecodeState | None:
    """If `value` is a graph output without users that appends to a state, return this state."""
    if value is None:
        return None
    match value.node:
        # The attention kernel itself appends to the KV buffer, so the concatenation is not emitted.
        case Node(ops.Concat(), (Value() as past, _)):
            # Any other user of the buffer would read it after the kernel has modified it.
            has_single_reader = use_counts[past] == 1 and use_counts[value] == 2
            return states_by_input.get(past) if has_single_reader else None
    return None

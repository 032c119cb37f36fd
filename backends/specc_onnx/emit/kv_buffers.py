"""Build a decode step with in-place KV buffers whose capacity the caller chooses.

`Attention` copies the whole cache at each step; ONNX Runtime's `GroupQueryAttention` appends to
its buffer operand. It applies if keys and values have one attention as their only user, all
heads share one mask (the kernel is causal, the rest of the mask becomes a bias), the weights
have no user, and the kernel supports the head size. The runner splits steps that are too long
for the kernel.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value
from specc.ir.model import PAST_LENGTH_INPUT, DecodeState, KVBufferGraph, KVCache
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.emit.onnx_graph import BuiltModel, add_parameters, finish_model
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.emitter import Emitter, NameTable, Tensor
from specc_onnx.lower.kv_buffer_attention import get_buffer_type
from specc_onnx.lower.rules import lower_nodes

MIN_KV_BUFFER_OPSET = 18
"""The first opset whose reductions take their axes as an input."""

HEAD_WIDTH_MULTIPLE = 8
"""The kernel supports head sizes that are multiples of this."""


def find_kv_buffers(
    graph: Graph, states: Sequence[DecodeState], target: Target, opset: int
) -> tuple[KVCache, ...]:
    """Return the KV caches of a step graph that can be written in place."""
    if not target.in_place_cache_dtypes or opset < MIN_KV_BUFFER_OPSET:
        return ()
    states_by_input = {graph.inputs[s.name]: s for s in states if _is_bufferable(s)}
    readers = Counter(a for node, _ in graph.nodes for a in node.args if a)
    readers.update(graph.outputs.values())
    found = []
    for node, results in graph.nodes:
        # the kernel does not return attention weights
        if not isinstance(node.op, ops.Attend) or readers[results[1]]:
            continue
        if not _is_supported_by_kernel(node, target.in_place_cache_dtypes):
            continue
        cache = _find_attention_cache(node, node.op, states_by_input, readers)
        if cache is not None:
            found.append(cache)
    return tuple(found)


def _is_bufferable(state: DecodeState) -> bool:
    """Return whether a state can be an in-place buffer: not a sliding window, whose front is
    evicted, nor a cache with prefix positions, which is longer than `past`.
    """
    return state.time_axis == 2 and state.max_positions == inf and not state.initial_output


def _find_attention_cache(
    node: Node,
    op: ops.Attend,
    states_by_input: Mapping[Value, DecodeState],
    readers: Counter[Value],
) -> KVCache | None:
    """Return the key and value states that only this attention reads, or None."""
    key = _find_appended_state(op.key(node), states_by_input, readers)
    value = _find_appended_state(op.values(node), states_by_input, readers)
    # a state that is both keys and values would be written twice
    if key is None or value is None or key is value:
        return None
    return KVCache(key.name, value.name, key.next_output, value.next_output)


def _is_supported_by_kernel(node: Node, dtypes: Collection[str]) -> bool:
    """Return whether the kernel supports this attention and its dtype."""
    op = node.op
    assert isinstance(op, ops.Attend)
    q, k, v = op.query(node), op.key(node), op.values(node)
    has_sinks = op.sinks(node) is not None
    lengths = [q.type.shape[1].number, k.type.shape[1].number, q.type.shape[3].number]
    has_equal_widths = q.type.shape[3] == v.type.shape[3] and None not in lengths
    mask = op.mask(node)
    # The kernel is always causal, so attention without a mask is not supported.
    shares_mask = mask is not None and mask.type.shape[1] == 1
    return (
        has_equal_widths
        and shares_mask
        and not has_sinks
        and op.scale > 0
        and q.type.dtype in dtypes
        and (lengths[2] or 0) % HEAD_WIDTH_MULTIPLE == 0
    )


def _find_appended_state(
    value: Value | None, states_by_input: Mapping[Value, DecodeState], readers: Counter[Value]
) -> DecodeState | None:
    """Return the state that `value` appends to, if `value` is read only here and returned."""
    if value is None:
        return None
    match value.node:
        # The kernel does this concatenation itself, in the buffer.
        case Node(ops.Concat(), (Value() as past, _)):
            # Any other reader would see the buffer after the write.
            has_single_reader = readers[past] == 1 and readers[value] == 2
            return states_by_input.get(past) if has_single_reader else None
    return None


def build_kv_buffer_model(
    model: KVBufferGraph,
    target: Target,
    opset: int = onnx_targets.DEFAULT_OPSET,
    stored: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> BuiltModel:
    """Build the step graph with KV buffers, filled up to the input `PAST_LENGTH_INPUT`."""
    graph = model.graph
    types = {n: v.type for n, v in graph.inputs.items()}
    for name in model.buffer_names:
        types[name] = get_buffer_type(types[name])
    # The length of a buffer is its capacity, so the past length is a separate input.
    past = graph.inputs[model.caches[0].key].type.shape[2].name or ""
    types[PAST_LENGTH_INPUT] = Type("i64", ())
    lengths = LengthResolver(
        types, graph.length_equations, graph.min_lengths, {past: PAST_LENGTH_INPUT}
    )
    g = Emitter(
        target=target,
        opset=opset,
        lengths=lengths,
        names=NameTable({*types, *graph.outputs}, graph=graph.name),
    )
    for name, value in graph.inputs.items():
        g.values.tensors[value] = Tensor(name, value.type, value)
        g.facts.padding_sides[value] = graph.input_facts[name].keep
    g.values.buffers.update(graph.inputs[n] for n in model.buffer_names)
    weights = add_parameters(g, graph.parameters, stored or {}, ties or {})
    lower_nodes(g, graph)
    outputs = {n: g.values.tensors[v] for n, v in graph.outputs.items()}
    for cache in model.caches:
        for name in (cache.next_key, cache.next_value):
            outputs[name] = replace(outputs[name], type=get_buffer_type(outputs[name].type))
    return finish_model(g, graph, types, outputs, weights)

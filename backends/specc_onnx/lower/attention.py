"""Lower `Attend`: choose KV buffer, blocked or dense attention."""

from math import inf

from specc.analysis.local_attention import LocalAttention, plan_mask_blocks
from specc.ir import ops
from specc_onnx.lower.blocked_attention import emit_local_attention
from specc_onnx.lower.dense_attention import (
    AttentionParts,
    emit_dense_attention,
    emit_result_per_head,
)
from specc_onnx.lower.emitter import Emitter, record_attention_note
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.kv_buffer_attention import emit_kv_buffer_attention, is_kv_buffer
from specc_onnx.lower.registry import lower

ATTENTION_FORM = "how"
"""What a note says of the form in which an attention is done, and why."""


@lower(ops.Attend)
def attend(
    op: ops.Attend,
    g: Emitter,
    query: Tensor,
    key: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    added: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[str, str]:
    """Lower `Attend`; return the result and the weights. The weights are "" if they have no
    users and the operator does not expose them.
    """
    if is_kv_buffer(g, key):
        record_attention_note(
            g, query.type.dtype, {ATTENTION_FORM: "into buffers, which hold the rows before"}
        )
        return emit_kv_buffer_attention(op, g, query, key, values, mask, added), ""
    parts = AttentionParts(q=query, k=key, v=values, mask=mask, add=added, sinks=sinks)
    local = _plan_attention_blocks(g, parts)
    if isinstance(local, LocalAttention):
        made = emit_local_attention(op, g, parts, local)
        how = f"dense, {local}"
    else:
        made, how = emit_dense_attention(op, g, parts), f"dense: {local}"
    record_attention_note(g, query.type.dtype, {**made.told, ATTENTION_FORM: how})
    return emit_result_per_head(g, made, query.type.shape[1], values.type.shape[3]), made.weights


def _plan_attention_blocks(g: Emitter, parts: AttentionParts) -> LocalAttention | str:
    """Return the blocks for blocked attention where they save work, else the reason against it."""
    queries, keys = parts.grid[2:]
    if not g.target.blocks:
        return f"blocks are not for {g.target.name}"
    if g.site.wanted[1]:
        return "its weights are read"
    if queries != keys:
        return "queries and keys are rows of two axes, or of a step"
    if parts.grid[1].number is None or parts.v.type.shape[3].number is None:
        return "how wide it is, or how many heads it has, only an input tells"
    padded = [value for value, side in g.facts.padding_sides.items() if side]
    mask = parts.mask.value if parts.mask else None
    found = plan_mask_blocks(mask, queries, keys, padded)
    if found is None:
        return "its mask shows keys that are far away"
    # A table of positions may be too short for that many rows.
    most = g.facts.max_lengths.get(queries.name or "", inf)
    if most <= found.above:
        return f"blocks pay above {found.above} rows, and there are at most {most}"
    return found

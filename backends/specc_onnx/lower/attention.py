"""Lowering of `Attend`, by what it can skip: over caches that are written in place; in
blocks of queries, where the mask shows each a neighborhood alone; else all at once.
"""

from specc.ir import ops
from specc.passes.prove.local import Local, blocks_of
from specc_onnx.lower.blocks import local_attention
from specc_onnx.lower.cached import cached_attention
from specc_onnx.lower.emitter import Emitter, Tensor, note
from specc_onnx.lower.table import lower
from specc_onnx.lower.whole import Parts, opened, whole


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
    """The result and the weights; the weights are "" where nobody reads them and the
    operator hides them.
    """
    # Keys that are a buffer with new rows behind it, which only `build_in_place` sets
    # up.
    if key.value and key.value.node and key.value.node.args[0] in g.buffers:
        return cached_attention(op, g, query, key, values, mask, added), ""
    parts = Parts(q=query, k=key, v=values, mask=mask, add=added, sinks=sinks)
    local = _local(g, parts)
    made = local_attention(op, g, parts, local) if local else whole(op, g, parts)
    note(g, query.type.dtype, made.told)
    return opened(g, made, query.type.shape[1], values.type.shape[3]), made.weights


def _local(g: Emitter, parts: Parts) -> Local | None:
    """The blocks in which to do it, where that skips something."""
    # Blocks have no weights to give, and are put together by their widths.
    known = [parts.grid[1].number, parts.v.type.shape[3].number]
    if not g.target.blocks or g.site.wanted[1] or None in known or not parts.mask:
        return None
    queries, keys = parts.grid[2:]
    padded = [value for value, side in g.padded.items() if side]
    found = blocks_of(parts.mask.value, queries, keys, padded)
    most = g.most.get(queries.name or "")
    # A table of positions may be too short for that many rows.
    return None if found and most is not None and most <= found.above else found

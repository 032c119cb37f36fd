"""Lowering of `Attend`, by what it can skip: over caches that are written in place; in
blocks of queries, where the mask shows each a neighborhood alone; else all at once.
"""

from math import inf

from specc.ir import ops
from specc.passes.prove.local import Local, blocks_of
from specc_onnx.lower.blocks import local_attention
from specc_onnx.lower.cached import cached_attention, in_buffers
from specc_onnx.lower.emitter import Emitter, Tensor, note
from specc_onnx.lower.table import lower
from specc_onnx.lower.whole import Parts, opened, whole

HOW = "how"
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
    """The result and the weights; the weights are "" where nobody reads them and the
    operator hides them.
    """
    if in_buffers(g, key):
        note(g, query.type.dtype, {HOW: "into buffers, which hold the rows before"})
        return cached_attention(op, g, query, key, values, mask, added), ""
    parts = Parts(q=query, k=key, v=values, mask=mask, add=added, sinks=sinks)
    local = _local(g, parts)
    if isinstance(local, Local):
        made = local_attention(op, g, parts, local)
        how = f"all at once, {local}"
    else:
        made, how = whole(op, g, parts), f"all at once: {local}"
    note(g, query.type.dtype, {**made.told, HOW: how})
    return opened(g, made, query.type.shape[1], values.type.shape[3]), made.weights


def _local(g: Emitter, parts: Parts) -> Local | str:
    """The blocks in which to do it, where that skips something; else why it is done at
    once.
    """
    queries, keys = parts.grid[2:]
    if not g.target.blocks:
        return f"blocks are not for {g.target.name}"
    if g.site.wanted[1]:
        return "its weights are read"
    if queries != keys:
        return "queries and keys are rows of two axes, or of a step"
    if parts.grid[1].number is None or parts.v.type.shape[3].number is None:
        return "how wide it is, or how many heads it has, only an input tells"
    padded = [value for value, side in g.padded.items() if side]
    mask = parts.mask.value if parts.mask else None
    found = blocks_of(mask, queries, keys, padded)
    if found is None:
        return "its mask shows keys that are far away"
    # A table of positions may be too short for that many rows.
    most = g.most.get(queries.name or "", inf)
    if most <= found.above:
        return f"blocks pay above {found.above} rows, and there are at most {most}"
    return found

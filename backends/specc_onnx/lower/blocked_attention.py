"""Local attention in blocks of queries.

    If(long)  a Loop over blocks: keys and mask of a block are sliced in its body
    else      one dense attention

Masks are computed inside the body, or inside an `If` for the dense form, so that a long
sequence never has a tensor of `n · n` elements. Blocks have equal length; the last one
overlaps its neighbor. Keys that all queries see are prepended to each block's own; queries
that see all keys are computed separately and scattered in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from specc.analysis.local_attention import GLOBAL_TOKEN_RATIO, GlobalTokenCondition, LocalAttention
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.ir.types import Type
from specc_onnx.lower.dense_attention import (
    AttentionParts,
    AttentionResult,
    can_fuse_attention,
    emit_combined_mask,
    emit_dense_attention,
    find_packed_heads,
)
from specc_onnx.lower.emitter import (
    Emitter,
    emit_body_results,
    make_body_graph,
    make_branch,
    make_value_info,
)
from specc_onnx.lower.emitter_state import Tensor
from specc_onnx.lower.grid_slices import PositionSpan, recompute_mask, slice_attention_parts
from specc_onnx.lower.tensor_helpers import emit_cast, emit_full

BLOCK_KEYS_DIM = Dim.symbol("block.keys")
"""The number of keys of a block, if blocks differ in it."""

GLOBAL_QUERIES_DIM = Dim.symbol("block.queries")
"""The number of global queries, which are computed separately."""

BLOCKS_SCOPE = "blocks"
"""The scope of nodes that only slice and concatenate."""


@dataclass(frozen=True, slots=True)
class GlobalTokens:
    """The positions of global keys and queries, i64[n]; "" for none."""

    keys: str = ""
    queries: str = ""


def emit_local_attention(
    op: ops.Attend, g: Emitter, parts: AttentionParts, local: LocalAttention
) -> AttentionResult:
    """Emit attention that runs in blocks for sequences longer than `local.above`."""
    b, h, n, _ = parts.grid
    e = parts.v.type.shape[3]
    # Both branches must have one shape: the packed one if the kernel can return it.
    flat = can_fuse_attention(op, g, parts) and find_packed_heads(g, parts) is not None
    type = Type(parts.q.type.dtype, (b, n, h * e) if flat else (b, h, n, e))
    with _enter_scope(g, BLOCKS_SCOPE):
        keys, queries = local.parts.keys, local.parts.queries
        apart = GlobalTokens(_emit_true_indices(g, keys), _emit_true_indices(g, queries))
    long = emit_is_long_enough(g, b, n, local, apart)
    plain, told = prepare_short_parts(op, g, parts, long)
    told = {**told}

    def emit_dense() -> list[str]:
        made = emit_dense_attention(op, g, plain)
        told.update(made.told)
        return [made.result]

    def attend_in_blocks() -> list[str]:
        with set_lengths_nonempty(g, b, n):
            if local.band.empty:
                # No query attends to neighbors: zeros, into which the global queries are scattered.
                rows = emit_full(g, 0, type.dtype, type.shape)
            else:
                rows = _emit_attention_blocks(op, g, parts, local, apart)
            if apart.queries:
                rows = _emit_global_queries(op, g, parts, Tensor(rows, type), apart.queries)
            return [rows]

    otherwise = make_branch(g, "short", [type], emit_dense)
    then = make_branch(g, "long", [type], attend_in_blocks)
    result = g.node("If", long, then_branch=then, else_branch=otherwise)
    return AttentionResult(result=result, packed=flat, weights="", told={**told, "blocks": result})


def prepare_short_parts(
    op: ops.Attend, g: Emitter, parts: AttentionParts, long: str
) -> tuple[AttentionParts, dict[str, str]]:
    """Return the operands of the short form, masks made inside an `If` that is unused when `long`,
    and the names of these masks.
    """
    mask, add = parts.mask, parts.add

    def emit_mask() -> Tensor:
        name = emit_combined_mask(
            g, replace(parts, mask=_recompute_whole(g, mask), add=_recompute_whole(g, add))
        )
        # Attention without a mask is not blocked.
        assert name is not None
        dtype = "bool" if add is None else add.type.dtype
        given = [x.type.shape for x in (mask, add) if x]
        sides = [next((d for d in ds if d != 1), ds[0]) for ds in zip(*given, strict=True)]
        return Tensor(name, Type(dtype, (*sides[:2], *parts.grid[2:])))

    if can_fuse_attention(op, g, parts):
        key = tuple(x.value if x else None for x in (mask, add))
        both = _emit_short_operand(g, long, key, emit_mask)
        return replace(parts, mask=None, add=None, shown=both), {"mask": both}
    mask, add = (x and _emit_short_mask(g, x, long) for x in (mask, add))
    told = {"mask": mask and mask.name, "added": add and add.name}
    return replace(parts, mask=mask, add=add), {n: t for n, t in told.items() if t}


def _recompute_whole(g: Emitter, x: Tensor | None) -> Tensor | None:
    """Recompute a mask or bias in the innermost body."""
    return recompute_mask(g, x) if x and x.value else x


def _emit_short_mask(g: Emitter, x: Tensor, long: str) -> Tensor:
    """Emit the mask or bias for short sequences."""
    make = partial(recompute_mask, g, x) if x.value else lambda: x
    return replace(x, name=_emit_short_operand(g, long, (x.value,), make))


def _emit_short_operand(
    g: Emitter, long: str, key: tuple[Value | None, ...], make: Callable[[], Tensor]
) -> str:
    """Emit an `If` outside the loop: the value of `make` for a short sequence, an unused
    tensor of one element for a long one; once for all attentions that share it.
    """
    if (long, *key) in g.layouts.hoisted:
        return g.layouts.hoisted[long, *key]
    with g.body(apart=True) as short:
        made = make()
        results = emit_body_results(g, [made.name])
    otherwise = make_body_graph("short", short, results, [made.type])
    one = Type(made.type.dtype, (Dim.of(1),) * made.type.rank)
    then = make_branch(g, "unused", [one], lambda: [emit_full(g, 0, one.dtype, one.shape)])
    result = g.node("If", long, then_branch=then, else_branch=otherwise)
    # Values of a loop body are visible only inside it.
    if len(g.bodies.open) == 1:
        g.layouts.hoisted[long, *key] = result
    return result


@contextmanager
def _enter_scope(g: Emitter, scope: str) -> Iterator[None]:
    """Name the nodes inside by purpose: dozens of small nodes per layer."""
    site, g.site = g.site, replace(g.site, scopes=(scope,))
    try:
        yield
    finally:
        g.site = site


def emit_is_long_enough(
    g: Emitter, batch: Dim, rows: Dim, local: LocalAttention, apart: GlobalTokens
) -> str:
    """Emit whether blocks apply: many positions, few global tokens, no empty batch."""
    if rows.name is not None:
        g.facts.branch_lengths[rows.name] = max(
            local.above, g.facts.branch_lengths.get(rows.name, 0)
        )
    with g.outside("lengths"):
        long = g.node("Greater", g.dim(rows), g.constant(local.above, "i64"))
        if not g.lengths.positive(batch):
            some = g.node("Greater", g.dim(batch), g.constant(0, "i64"))
            long = g.node("And", long, some)
    for numbers in filter(None, (apart.keys, apart.queries)):
        with _enter_scope(g, BLOCKS_SCOPE):
            many = g.node("Mul", g.node("Size", numbers), g.constant(GLOBAL_TOKEN_RATIO, "i64"))
            few = g.node("LessOrEqual", many, g.dim(rows))
            long = g.node("And", long, few)
    return long


def _emit_true_indices(g: Emitter, conditions: tuple[GlobalTokenCondition, ...]) -> str:
    """Emit i64[n]: the positions at which a condition holds for any batch element or head."""
    found = ""
    for alone in conditions:
        x = g.values.tensors[alone.value]
        name = g.node("Not", x.name) if alone.negated else x.name
        others = [axis for axis in range(x.type.rank) if axis != alone.axis]
        if others:
            # A sum, since the batch may be empty.
            counted = emit_cast(g, name, "bool", "i32")
            total = g.node("ReduceSum", counted, g.vector(*others), keepdims=0)
            name = g.node("Greater", total, g.constant(0, "i32"))
        found = g.node("Or", found, name) if found else name
    return g.node("Squeeze", g.node("NonZero", found), g.vector(0)) if found else ""


@contextmanager
def set_lengths_nonempty(g: Emitter, *lengths: Dim) -> Iterator[None]:
    """Treat `lengths` as nonzero for the code emitted inside the context."""
    before = g.lengths
    g.lengths = replace(before, sure=before.sure | {*lengths})
    try:
        yield
    finally:
        g.lengths = before


@contextmanager
def set_length_known(g: Emitter, length: Dim, count: str) -> Iterator[None]:
    """Bind a symbol to the i64[] `count`, which is nonzero, inside the context."""
    numbers = {**g.lengths.numbers, str(length): count}
    sure = g.lengths.sure | {length}
    with g.enter_graph(replace(g.lengths, numbers=numbers, sure=sure)):
        yield


# --- a loop over blocks ---------------------------------------------------------------


def _emit_attention_blocks(
    op: ops.Attend, g: Emitter, parts: AttentionParts, local: LocalAttention, apart: GlobalTokens
) -> str:
    """Emit the blocks of an attention, concatenated."""
    b, h, n, _ = parts.grid
    e, size = parts.v.type.shape[3], Dim.of(local.block)

    def emit_partial(queries: PositionSpan, keys: PositionSpan) -> Tensor:
        made = _emit_partial_attention(op, g, parts, queries, keys)
        shape = (b, size, h * e) if made.packed else (b, h, size, e)
        return Tensor(made.result, Type(parts.q.type.dtype, shape))

    return emit_block_loop(g, n, local, emit_partial, apart.keys)


def emit_block_loop(
    g: Emitter,
    n: Dim,
    local: LocalAttention,
    make: Callable[[PositionSpan, PositionSpan], Tensor],
    others: str,
) -> str:
    """`[…, n, e]`, of which `make` makes a block: some queries over their keys."""
    block = g.vector(local.block)
    rows = g.shape([n])
    up = g.node("Add", rows, g.vector(local.block - 1))
    count = g.node("Div", up, block)
    with g.body() as body:
        turn, going = (
            Tensor(g.unique(g.place(name)), Type(dtype, ()))
            for name, dtype in (("block", "i64"), ("go", "bool"))
        )
        with _enter_scope(g, BLOCKS_SCOPE):
            queries = _emit_query_span(g, turn.name, rows, local)
            keys = replace(_emit_key_span(g, queries, rows, local), others=others)
        with _set_key_count_known(g, queries, keys):
            made = make(queries, keys)
        on = g.alias(going.name, g.place("on"))
    inputs = [make_value_info(t.name, t.type) for t in (turn, going)]
    types = [going.type, made.type]
    graph = make_body_graph("block", body, [on, made.name], types, inputs)
    turns = g.node("Squeeze", count, g.vector(0))
    stacked = g.node("Loop", turns, g.constant(True, "bool"), body=graph)
    with _enter_scope(g, BLOCKS_SCOPE):
        return _emit_joined_blocks(g, Tensor(stacked, made.type), count, local, n)


def _emit_query_span(g: Emitter, turn: str, rows: str, local: LocalAttention) -> PositionSpan:
    """Emit the query positions of a block; the last block ends at the end of the axis."""
    place = g.node("Mul", g.node("Unsqueeze", turn, g.vector(0)), g.vector(local.block))
    start = g.node("Min", place, g.node("Sub", rows, g.vector(local.block)))
    stop = g.node("Add", start, g.vector(local.block))
    return PositionSpan(start, stop, Dim.of(local.block))


def _emit_key_span(
    g: Emitter, queries: PositionSpan, rows: str, local: LocalAttention
) -> PositionSpan:
    """Emit the key positions that a block's queries attend to; never empty."""
    zero, one = g.vector(0), g.vector(1)
    # The band is in terms of q - k: its upper end looks back; its lower end, negated, ahead.
    back, ahead = local.band.hi, -local.band.lo
    start, stop = zero, rows
    if back != inf:
        start = g.node("Sub", queries.start, g.vector(int(back)))
        start = g.node("Max", start, zero)
    if local.keys is not None:
        # Equal spans for all blocks: near the end the span starts earlier and the mask hides more.
        start = g.node("Min", start, g.node("Sub", rows, g.vector(local.keys)))
        stop = g.node("Add", start, g.vector(local.keys))
        return PositionSpan(start, stop, Dim.of(local.keys))
    # If the band excludes the position itself, a block at an end may see nothing.
    if back < 0:
        start = g.node("Min", start, g.node("Sub", rows, one))
    if ahead != inf:
        stop = g.node("Min", g.node("Add", queries.stop, g.vector(int(ahead))), rows)
        stop = g.node("Max", stop, one) if ahead < 0 else stop
    return PositionSpan(start, stop, BLOCK_KEYS_DIM)


@contextmanager
def _set_key_count_known(g: Emitter, queries: PositionSpan, keys: PositionSpan) -> Iterator[None]:
    """Bind the number of keys of a block, which is nonzero, inside the context."""
    if keys.length != BLOCK_KEYS_DIM:
        with set_lengths_nonempty(g, queries.length, keys.length):
            yield
        return
    count = g.node("Squeeze", g.node("Sub", keys.stop, keys.start), g.vector(0))
    if keys.others:
        count = g.node("Add", count, g.node("Size", keys.others))
    with set_lengths_nonempty(g, queries.length), set_length_known(g, BLOCK_KEYS_DIM, count):
        yield


def _emit_partial_attention(
    op: ops.Attend,
    g: Emitter,
    parts: AttentionParts,
    queries: PositionSpan,
    keys: PositionSpan | None,
) -> AttentionResult:
    """Emit attention of some queries over some keys."""
    with _enter_scope(g, BLOCKS_SCOPE):
        cut = slice_attention_parts(op, g, parts, queries, keys)
    return emit_dense_attention(op, g, cut)


def _emit_joined_blocks(
    g: Emitter, blocks: Tensor, count: str, local: LocalAttention, n: Dim
) -> str:
    """Join stacked blocks; `blocks` has the type of one. The last block overlaps: of 3 blocks of 4
    for 10 positions, which begin at 0, 4 and 6, its last two count.
    """
    lead = blocks.type.rank - 2
    width = blocks.type.shape[-1].number
    assert width is not None, "blocked attention needs a static width"
    order = [*range(1, lead + 1), 0, lead + 1, lead + 2]
    is_transposed = g.node("Transpose", blocks.name, perm=order)
    side_by_side = g.node("Reshape", is_transposed, g.vector(*[0] * lead, -1, width))
    block, at = g.vector(local.block), g.vector(lead)
    # `before` are the positions of all blocks but the last, which starts at `begins`. In the
    # concatenation it starts at `before`, so position r is at `before + r - begins`: the first one
    # wanted, r = before, is at `again`.
    before = g.node("Mul", g.node("Sub", count, g.vector(1)), block)
    begins = g.node("Sub", g.shape([n]), block)
    again = g.node("Sub", g.node("Add", before, before), begins)
    stop = g.node("Add", before, block)
    first = g.node("Slice", side_by_side, g.vector(0), before, at)
    last = g.node("Slice", side_by_side, again, stop, at)
    return g.node("Concat", first, last, axis=lead)


# --- global queries - ----------------------------------------------------------------


def _emit_global_queries(
    op: ops.Attend, g: Emitter, parts: AttentionParts, rows: Tensor, numbers: str
) -> str:
    """Emit `rows` with the global queries overwritten by one attention over all keys."""
    axis = rows.type.rank - 2
    count = g.node("Size", numbers)
    some = g.node("Greater", count, g.constant(0, "i64"))

    def emit_global_queries() -> list[str]:
        with set_length_known(g, GLOBAL_QUERIES_DIM, count):
            span = PositionSpan("", "", GLOBAL_QUERIES_DIM, numbers)
            made = _emit_partial_attention(op, g, parts, span, None).result
        with _enter_scope(g, BLOCKS_SCOPE):
            # `ScatterElements` takes an index per element, not per row.
            beside = [a for a in range(rows.type.rank) if a != axis]
            places = g.node("Unsqueeze", numbers, g.vector(*beside))
            places = g.node("Expand", places, g.node("Shape", made))
            return [g.node("ScatterElements", rows.name, places, made, axis=axis)]

    then = make_branch(g, "apart", [rows.type], emit_global_queries)
    otherwise = make_branch(g, "none", [rows.type], lambda: [rows.name])
    return g.node("If", some, then_branch=then, else_branch=otherwise)

"""Concatenation, slicing and striding along the time axis: which positions keep their
time step, and how many positions form one chunk.

    concat(memory, x)     position `t` of `x` keeps its time `t`: the prefix grew
    pad(x, before=2)      likewise
    concat(x, memory)     the positions of `memory` move with every new one
    x[s:] of `h + g`      time `t` stays `t`, as long as `s <= h`
    x[a:b] of `h + g`     reads prefix positions only if `b <= h`: constant
    x[h:h+1] of `h + g`   the first position of all: no position of time >= 0 is before it

A window with stride 3 makes one position of the chunk of 3 in which it ends. Position `t`
corresponds to the *last* input position of its chunk, `3 t + 2`: it can be computed as soon as
the chunk is complete.

    input positions       0  1  2 | 3  4  5 | 6  7  8
    output positions      0       | 1       | 2
    output 1 may read     x  x  x   x  x  x

Dependences are counted from there, so that an output that reads nothing after its chunk has an
interval that begins at 0 or above, as everywhere.

    x: f[b, seq, d]                       x: f[b, 6 seq, d]       a chunk has 6 positions
    conv(x, stride=3): f[b, seq // 3, d]  →  f[b, 2 seq, d]       two after a stride of 3
    max_pool(…, stride=2): …                 f[b, seq, d]         one after both

Input: a graph and the length of its streamed input. Output: the same graph, in which that length
is a number of chunks. Lengths after strides are then no quotients, and each axis states how many
positions it has per chunk.
"""

from collections.abc import Iterable
from math import lcm
from typing import TypeAlias

from specc.ir import ops
from specc.ir.dependence import find_dependences
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value, collect_needed_nodes, substitute_graph_symbols
from specc.ir.interval import EMPTY_INTERVAL, FULL_INTERVAL, PAST_POSITIONS, SAME_POSITION, Interval
from specc.ir.op_dependence import Dependence
from specc.ir.time_axis import TimeAxis, find_time_axis

TimeRead: TypeAlias = tuple[int | None, Interval]
"""The result axis along which time positions are read, and the range that is read."""

PREFIX_READ: TimeRead = (None, EMPTY_INTERVAL)
"""No position of the operand moves along time."""

FIRST_POSITION_READ: TimeRead = (None, PAST_POSITIONS)
"""Only the first position is read, which is never in the future."""


def resolve_splice(node: Node, link: Dependence, clock: TimeAxis) -> TimeRead | None:
    """Return how positions of the time axis are read by an op that joins or selects positions by
    index; None for other ops, or if the result has no time axis.
    """
    length = node.operand(link.operand).type.shape[link.operand_axis]
    head = clock.get_prefix_length(length)
    match node.op:
        case _ if head is None:
            return None
        case ops.Concat(axis=axis) if axis == link.operand_axis:
            behind = node.args[link.operand + 1 :]
            empty = all(a and a.type.shape[axis] == 0 for a in behind)
            return (axis, SAME_POSITION) if empty else None
        case ops.Pad(axis=axis, after=after, mode="constant") if axis == link.operand_axis:
            return (axis, SAME_POSITION) if after == 0 else None
        case ops.Slice(axis=axis) | ops.Index(axis=axis) if axis == link.operand_axis:
            return _resolve_slice(node, length, head, clock)
    return None


def _resolve_slice(node: Node, length: Dim, head: Dim, clock: TimeAxis) -> TimeRead | None:
    """Return what is read by positions selected by index from an axis of `length` with a prefix."""
    if is_prefix_slice(node, clock):
        return PREFIX_READ
    if is_first_position_slice(node, clock):
        return FIRST_POSITION_READ
    match node.op:
        case ops.Slice(axis=axis, start=start, stop=stop) if stop == length:
            return (axis, SAME_POSITION) if clock.is_non_negative(head - start) else None
    return None


def is_first_position_slice(node: Node, clock: TimeAxis) -> bool:
    """Return True if a node selects time 0 of a value with one time axis."""
    match node.op:
        case ops.Slice(axis=axis, start=at, stop=stop) if stop == at + 1:
            pass
        case ops.Index(axis=axis, at=at):
            pass
        case _:
            return False
    heads = [clock.get_prefix_length(d) for d in node.operand().type.shape]
    return heads[axis] == at and sum(head is not None for head in heads) == 1


def is_prefix_slice(node: Node, clock: TimeAxis) -> bool:
    """Return True if a node selects prefix positions of a time axis."""
    match node.op:
        case ops.Slice(axis=axis, stop=end):
            pass
        case ops.Index(axis=axis, at=at):
            end = at + 1
        case _:
            return False
    head = clock.get_prefix_length(node.operand().type.shape[axis])
    return head is not None and clock.is_non_negative(head - end)


def count_positions_ahead(node: Node, link: Dependence, clock: TimeAxis) -> int | None:
    """Return how many positions the operand has before those of result position 0; None if they do
    not form whole chunks.
    """
    if link.result_axis is None:
        return None
    made = clock.get_layout(node.infer_types()[link.result].shape[link.result_axis])
    read = clock.get_layout(node.operand(link.operand).type.shape[link.operand_axis])
    if made is None or read is None or read.rate != made.rate * link.stride:
        return None
    # Positions that a window consumes before its first output are different.
    return read.prefix_length.number if made.prefix_length == 0 else None


def resolve_stride(node: Node, link: Dependence, clock: TimeAxis) -> TimeRead:
    """Return the result axis and the positions that its position `t` reads, counted from the last
    one of its chunk; the full interval if there are no chunks.
    """
    head = count_positions_ahead(node, link, clock)
    if head is None:
        return None, FULL_INTERVAL
    return link.result_axis, link.reach.shift(head + link.stride - 1)


CHUNK_SPLICE_OPS = (ops.Concat, ops.Pad, ops.Slice)
"""Ops that prepend or remove positions at the start of the time axis."""


def compute_chunk_size(graph: Graph, symbol: str, outputs: Iterable[str]) -> int:
    """Return how many positions of `symbol` become one position after all strides on the way to
    these outputs; 1 without strides.
    """
    clock = find_time_axis(graph, symbol)
    parts = {
        (value, axis): 1
        for value in graph.inputs.values()
        for axis, length in enumerate(value.type.shape)
        if clock.get_prefix_length(length) is not None
    }
    live = collect_needed_nodes(graph.outputs[name] for name in outputs)
    for node, results in graph.nodes:
        if node not in live:
            continue
        for link in find_dependences(node, results):
            to = _find_result_axis(node, link)
            before = parts.get((node.operand(link.operand), link.operand_axis))
            if before is not None and to is not None:
                at = results[link.result], to
                parts[at] = max(parts.get(at, 1), before * link.stride)
    return lcm(*parts.values())


def _find_result_axis(node: Node, link: Dependence) -> int | None:
    """Return the result axis along which the operand's positions continue, or None."""
    if link.kind in ("same", "window", "strided"):
        return link.result_axis
    spliced = isinstance(node.op, CHUNK_SPLICE_OPS) and node.op.axis == link.operand_axis
    return link.operand_axis if spliced else None


def substitute_chunked_length(graph: Graph, symbol: str, chunk: int) -> Graph:
    """Return the graph with `symbol` as the number of chunks."""
    if chunk == 1:
        return graph
    return substitute_graph_symbols(graph, {symbol: Dim.symbol(symbol) * chunk})


def find_chunk_symbol(value: Value, axis: int, chunk: int) -> str | None:
    """Return the symbol that counts the chunks of an axis; None for another length."""
    length = value.type.shape[axis]
    symbols = length.symbols()
    if len(symbols) != 1:
        return None
    (name,) = symbols
    return name if length == Dim.symbol(name) * chunk else None


def find_padding_strides(graph: Graph) -> dict[str, int]:
    """Return how many positions of each padding mask become one after all strides, if several."""
    keeps = {n: graph.inputs[n] for n, facts in graph.input_facts.items() if facts.keep}
    found = {name: _find_largest_stride(graph, v) for name, v in keeps.items() if v.type.rank}
    return {name: stride for name, stride in found.items() if stride > 1}


def _find_largest_stride(graph: Graph, keep: Value) -> int:
    """Return the largest total stride of lengths derived from that of `keep`."""
    strides = {keep.type.shape[-1]: 1}
    for node, results in graph.nodes:
        if not isinstance(node.op, ops.Sliding | ops.KeepRows | ops.Stride):
            continue
        for link in find_dependences(node, results):
            if link.kind != "strided" or link.result_axis is None:
                continue
            before = strides.get(node.operand(link.operand).type.shape[link.operand_axis])
            if before is not None:
                made = results[link.result].type.shape[link.result_axis]
                strides[made] = max(strides.get(made, 1), before * link.stride)
    return max(strides.values())

"""How many rows of what comes in are worked on together: a stream whose windows move by
strides is made chunk by chunk.

    x: f[b, seq, d]                       x: f[b, 6 seq, d]       a chunk has 6 rows
    conv(x, stride=3): f[b, seq // 3, d]  →  f[b, 2 seq, d]       two behind a stride of 3
    max_pool(…, stride=2): …                 f[b, seq, d]         one behind both

On entry: a graph, and the length of its input that comes row by row. On leaving: the same
graph, in which that length is a number of chunks. Lengths behind strides are then no
quotients, and each axis says by itself how many rows of it a chunk brings.
"""

from collections.abc import Iterable
from math import lcm

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value, needed
from specc.ir.heads import clock_of
from specc.ir.link import Link
from specc.ir.reach import links
from specc.ir.substitute import substituted

SPLICES = (ops.Concat, ops.Pad, ops.Slice)
"""Ops that put rows before others, or leave some away there."""


def chunk_of(graph: Graph, symbol: str, outputs: Iterable[str]) -> int:
    """How many rows of the length `symbol` become one row behind all strides that these
    outputs are made with; 1 where nothing moves by a stride.
    """
    clock = clock_of(graph, symbol)
    parts = {
        (value, axis): 1
        for value in graph.inputs.values()
        for axis, length in enumerate(value.type.shape)
        if clock.head(length) is not None
    }
    live = needed(graph.outputs[name] for name in outputs)
    for node, results in graph.nodes:
        if node not in live:
            continue
        for link in links(node, results):
            operand, to = node.args[link.operand], _along(node, link)
            if operand is None or to is None:
                continue
            before = parts.get((operand, link.operand_axis))
            if before is not None:
                at = results[link.result], to
                parts[at] = max(parts.get(at, 1), before * link.stride)
    return lcm(*parts.values())


def _along(node: Node, link: Link) -> int | None:
    """The axis of a result along which an operand's rows go on."""
    if link.kind in ("same", "window", "strided"):
        return link.result_axis
    spliced = isinstance(node.op, SPLICES) and node.op.axis == link.operand_axis
    return link.operand_axis if spliced else None


def in_chunks(graph: Graph, symbol: str, chunk: int) -> Graph:
    """The graph with `symbol` as the number of its chunks."""
    if chunk == 1:
        return graph
    return substituted(graph, {symbol: Dim.symbol(symbol) * chunk})


def chunked(value: Value, axis: int, chunk: int) -> str | None:
    """The symbol whose chunks an axis is made of; None where it is another length."""
    length = value.type.shape[axis]
    symbols = length.symbols()
    if len(symbols) != 1:
        return None
    (name,) = symbols
    return name if length == Dim.symbol(name) * chunk else None

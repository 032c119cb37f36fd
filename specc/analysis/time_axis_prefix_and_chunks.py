"""The layout of time axes: the number of prefix positions before the sequence, and the number of
positions per chunk.

    seq            prefix 0: a sequence
    3 + seq        prefix 3: three learned positions before the sequence
    m + 2 + seq    prefix m + 2: a memory of `m` positions, two learned positions, the sequence

Position `r` of an axis with a prefix of `h` positions has the *time* `r - h`. Prefix positions have
negative times and need no separate rules. With strided windows, the symbolic dimension is the
number of *chunks* of the input, and the number of positions per chunk is the *rate* of an axis:

    6 seq          six per chunk: samples
    2 seq          two per chunk, after a window of stride 3
    4 + seq        one per chunk, after four prefix positions

Concatenation, slicing and striding along the time axis determine which positions keep their time,
and the number of positions per chunk:

    concat(memory, x)     position `t` of `x` keeps its time `t`: the prefix grows
    pad(x, before=2)      position `t` of `x` keeps its time `t`: the prefix grows
    concat(x, memory)     the positions of `memory` move with every new position
    x[s:] of `h + g`      time `t` stays `t`, as long as `s <= h`
    x[a:b] of `h + g`     reads prefix positions only if `b <= h`: constant
    x[h:h+1] of `h + g`   the first position: no position of time >= 0 is before it

A window with stride 3 produces one output position per chunk of 3 input positions. Output position
`t` corresponds to the *last* input position of its chunk, `3 t + 2`, because output position `t`
can be computed as soon as the chunk is complete.

    input positions       0  1  2 | 3  4  5 | 6  7  8
    output positions      0       | 1       | 2
    output 1 may read     x  x  x   x  x  x

Dependences are relative to the last position of the chunk. If an output reads no position after its
chunk, the lower end of the interval is therefore at least 0.

    x: f[b, seq, d]                       x: f[b, 6 seq, d]       a chunk has 6 positions
    conv(x, stride=3): f[b, seq // 3, d]  →  f[b, 2 seq, d]       two after a stride of 3
    max_pool(…, stride=2): …                 f[b, seq, d]         one after both

`express_length_in_chunks` rewrites a graph so that the size of its streamed input is a multiple of
the number of chunks. In the rewritten graph, axis sizes after strides contain no quotients, and the
size of each axis is a multiple of its rate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from typing import TypeAlias

from specc.analysis.length_limits import is_provably_nonnegative
from specc.ir import ops
from specc.ir.dependence_marks import Dependence
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value, collect_required_nodes, substitute_graph_symbols
from specc.ir.loop_dependence import find_dependences, get_operand_axis_size
from specc.ir.types import EMPTY_INTERVAL, FULL_INTERVAL, PAST_POSITIONS, SAME_POSITION, Interval


@dataclass(frozen=True, slots=True)
class TimeAxisLayout:
    """The layout of a time axis: `prefix_length` positions, then `rate` positions per chunk."""

    prefix_length: Dim
    rate: int = 1


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The time axis of a graph. `length` is the size of the axis, a single symbolic dimension, and
    `dependent_symbols` are this symbolic dimension and all symbolic dimensions that depend on it.
    `min_lengths` are lower bounds of symbolic dimensions. The generated input has `chunk_size`
    positions per chunk.
    """

    length: Dim
    dependent_symbols: frozenset[str]
    min_lengths: frozenset[tuple[str, int]] = frozenset()
    chunk_size: int = 1

    @property
    def symbol(self) -> str:
        """The symbolic dimension of the time axis."""
        name = self.length.name
        assert name is not None, "the size of the time axis is a single symbolic dimension"
        return name

    def get_prefix_length(self, axis_size: Dim) -> Dim | None:
        """Return the prefix length of a time axis, or None for other axes."""
        layout = self.get_layout(axis_size)
        return None if layout is None else layout.prefix_length

    def get_positions_per_chunk(self, axis_size: Dim) -> int:
        """Return the number of positions per chunk of a time axis, or 0 for other axes."""
        layout = self.get_layout(axis_size)
        return 0 if layout is None else layout.rate

    def get_layout(self, axis_size: Dim) -> TimeAxisLayout | None:
        """Return the layout of a time axis of size `axis_size`, or None for other axes."""
        return _find_layout(self, axis_size)

    def has_prefix_positions(self, axis_size: Dim) -> bool:
        """Return True if an axis of size `axis_size` always has at least one prefix position."""
        prefix_length = self.get_prefix_length(axis_size)
        return prefix_length is not None and self.is_non_negative(prefix_length - 1)

    def is_non_negative(self, axis_size: Dim) -> bool:
        """Return True if an axis size cannot be negative."""
        return is_provably_nonnegative(axis_size, dict(self.min_lengths))


@lru_cache(maxsize=4096)
def _find_layout(time_axis: TimeAxis, length: Dim) -> TimeAxisLayout | None:
    if length.symbols() & time_axis.dependent_symbols != {time_axis.symbol}:
        return None
    # The symbol must occur in one linear term, without other symbols that depend on it.
    rate = dict(length.terms).get(((time_axis.symbol, 1),), 0)
    if rate <= 0 or time_axis.chunk_size % rate:
        return None
    prefix_length = length - time_axis.length * rate
    is_independent = not prefix_length.symbols() & time_axis.dependent_symbols
    is_prefix = is_independent and time_axis.is_non_negative(prefix_length)
    return TimeAxisLayout(prefix_length, rate) if is_prefix else None


def find_time_axis(graph: Graph, symbol: str, chunk_size: int = 1) -> TimeAxis:
    """Return the time axis of `symbol`, with `chunk_size` positions per chunk."""
    dependent_symbols = collect_derived_symbols(graph.length_equations, symbol)
    min_lengths = frozenset(
        (n, m) for n, m in graph.min_lengths.items() if n not in dependent_symbols
    )
    return TimeAxis(Dim.symbol(symbol), dependent_symbols, min_lengths, chunk_size)


def collect_derived_symbols(length_equations: Mapping[str, Dim], symbol: str) -> frozenset[str]:
    """Return `symbol` and the symbols that `length_equations` compute from it."""
    symbols = {symbol}
    while (
        derived := {n for n, dim in length_equations.items() if dim.symbols() & symbols} - symbols
    ):
        symbols |= derived
    return frozenset(symbols)


TimeRead: TypeAlias = tuple[int | None, Interval]
"""The result axis of a dependence along the time axis, and the offsets that it reads."""

PREFIX_READ: TimeRead = (None, EMPTY_INTERVAL)
"""A read of positions whose index does not change while the time axis grows, e.g. of the prefix."""

FIRST_POSITION_READ: TimeRead = (None, PAST_POSITIONS)
"""A read of only the first position, which is at or before every position."""


def resolve_concat_or_slice_read(
    node: Node, dependence: Dependence, time_axis: TimeAxis
) -> TimeRead | None:
    """Return the positions of the time axis that an op reads if it is a concatenation or a
    selection by constant indices. Return None for other ops, or if the result has no time axis.
    """
    length = get_operand_axis_size(node, dependence)
    prefix_length = time_axis.get_prefix_length(length)
    match node.op:
        case _ if prefix_length is None:
            return None
        case ops.Concat(axis) if axis == dependence.operand_axis:
            later_operands = node.args[dependence.operand + 1 :]
            is_last_operand = all(a and a.shape[axis] == 0 for a in later_operands)
            return (axis, SAME_POSITION) if is_last_operand else None
        case ops.Pad(axis=axis, padding_after=after, mode="constant") if (
            axis == dependence.operand_axis
        ):
            return (axis, SAME_POSITION) if after == 0 else None
        case ops.Slice(axis) | ops.Index(axis) if axis == dependence.operand_axis:
            return _resolve_slice(node, length, prefix_length, time_axis)
    return None


def _resolve_slice(
    node: Node, length: Dim, prefix_length: Dim, time_axis: TimeAxis
) -> TimeRead | None:
    """Return the positions that a slice or index op reads from a time axis of size `length` with
    `prefix_length` prefix positions, or None if the op does not preserve times.
    """
    if is_prefix_slice(node, time_axis):
        return PREFIX_READ
    if is_first_position_slice(node, time_axis):
        return FIRST_POSITION_READ
    match node.op:
        case ops.Slice(axis, start, stop) if stop == length:
            return (
                (axis, SAME_POSITION) if time_axis.is_non_negative(prefix_length - start) else None
            )
    return None


def is_first_position_slice(node: Node, time_axis: TimeAxis) -> bool:
    """Return True if a node selects the position at time 0 from a value with a single time axis."""
    op = node.op
    if not isinstance(op, ops.Slice | ops.Index) or op.stop != op.start + 1:
        return False
    prefix_lengths = [time_axis.get_prefix_length(d) for d in node.get_operand().shape]
    return (
        prefix_lengths[op.axis] == op.start
        and sum(prefix_length is not None for prefix_length in prefix_lengths) == 1
    )


def is_prefix_slice(node: Node, time_axis: TimeAxis) -> bool:
    """Return True if a node selects prefix positions of a time axis."""
    op = node.op
    if not isinstance(op, ops.Slice | ops.Index):
        return False
    prefix_length = time_axis.get_prefix_length(node.get_operand().shape[op.axis])
    return prefix_length is not None and time_axis.is_non_negative(prefix_length - op.stop)


def count_positions_before_first_chunk(
    node: Node, dependence: Dependence, time_axis: TimeAxis
) -> int | None:
    """Return the number of operand positions before the first chunk. The first chunk contains the
    positions on which result position 0 depends. Return None if the op does not consume complete
    chunks.
    """
    if dependence.result_axis is None:
        return None
    result_type = node.infer_types()[dependence.result]
    result = time_axis.get_layout(result_type.shape[dependence.result_axis])
    operand = time_axis.get_layout(get_operand_axis_size(node, dependence))
    if result is None or operand is None or operand.rate != result.rate * dependence.stride:
        return None
    # The receptive field of a window includes the positions before its first output.
    return operand.prefix_length.number if result.prefix_length == 0 else None


def resolve_strided_read(node: Node, dependence: Dependence, time_axis: TimeAxis) -> TimeRead:
    """Return the result axis of a strided dependence, and the interval that position `t` of this
    axis reads, relative to the last position of its chunk. If the op does not process complete
    chunks, return None and the full interval.
    """
    prefix_length = count_positions_before_first_chunk(node, dependence, time_axis)
    if prefix_length is None:
        return None, FULL_INTERVAL
    return dependence.result_axis, dependence.offsets.shift(prefix_length + dependence.stride - 1)


CHUNK_SPLICE_OPS = (ops.Concat, ops.Pad, ops.Slice)
"""Ops that add or remove positions at the start of the time axis."""


def compute_chunk_size(graph: Graph, symbol: str, outputs: Iterable[str]) -> int:
    """Return the number of input positions per position of `outputs` on the time axis with the
    symbolic dimension `symbol`, i.e. the product of all strides.
    """
    time_axis = find_time_axis(graph, symbol)
    strides = {
        (value, axis): 1
        for value in graph.inputs.values()
        for axis, length in enumerate(value.shape)
        if time_axis.get_prefix_length(length) is not None
    }
    live_nodes = collect_required_nodes(graph.outputs[name] for name in outputs)
    for node, results in graph.nodes:
        if node not in live_nodes:
            continue
        for dependence in find_dependences(node, results):
            result_axis = _find_result_axis(node, dependence)
            stride = strides.get((node.get_operand(dependence.operand), dependence.operand_axis))
            if stride is not None and result_axis is not None:
                result_key = results[dependence.result], result_axis
                strides[result_key] = max(strides.get(result_key, 1), stride * dependence.stride)
    return lcm(*strides.values())


def _find_result_axis(node: Node, dependence: Dependence) -> int | None:
    """Return the result axis that has the positions of the operand axis of `dependence`, if any."""
    if dependence.kind in ("same", "window", "strided"):
        return dependence.result_axis
    is_splice = isinstance(node.op, CHUNK_SPLICE_OPS) and node.op.axis == dependence.operand_axis
    return dependence.operand_axis if is_splice else None


def express_length_in_chunks(graph: Graph, symbol: str, chunk_size: int) -> Graph:
    """Return the graph with `symbol` as the number of chunks of `chunk_size` positions."""
    if chunk_size == 1:
        return graph
    return substitute_graph_symbols(graph, {symbol: Dim.symbol(symbol) * chunk_size})


def find_chunk_count_symbol(value: Value, axis: int, chunk_size: int) -> str | None:
    """Return the symbol `s` if an axis has the size `s * chunk_size`, otherwise None."""
    length = value.shape[axis]
    symbols = length.symbols()
    if len(symbols) != 1:
        return None
    (name,) = symbols
    return name if length == Dim.symbol(name) * chunk_size else None

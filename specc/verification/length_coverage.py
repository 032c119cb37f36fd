"""Choose axis sizes for `specc verify` that exceed the constants in masks and caches, and find the
sizes that it skips. A length threshold is the smallest axis size at which such a constant has an
effect.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import TypeAlias

from specc.analysis.length_limits import MAX_WINDOW_LENGTH, find_max_lengths, find_min_lengths
from specc.analysis.linear_recurrence import match_linear_recurrence
from specc.analysis.local_attention import plan_local_attention
from specc.analysis.model_cost import count_multiply_adds
from specc.analysis.value_ranges import get_viewed_op
from specc.ir import ops
from specc.ir.dim import Dim, DimError, sum_dims
from specc.ir.graph import Graph, Node, Value
from specc.ir.length_constraints import find_valid_lengths, iterate_nested_nodes
from specc.runtime.random_inputs import choose_lengths
from specc.transforms.chunk_scan import CHUNK_LENGTH

MAX_FLOAT_THRESHOLD = 4096
"""Maximum float constant that is treated as a distance between positions; larger constants are -inf
or a RoPE base.
"""

STRIDES: tuple[int, ...] = (*range(1, 65), *range(80, 2049, 16))
"""The ratios of input positions to mask positions that are tried."""


_POSITION_KEEPING_OPS = (
    *(ops.Arith, ops.Compare, ops.Pointwise, ops.And, ops.Or, ops.Not),
    *(ops.Cast, ops.Where, ops.Concat),
)
"""Ops whose results are computed from position ids if one of their operands is."""


@dataclass(frozen=True, order=True)
class LengthThreshold:
    """The smallest axis size at which a constant in a mask has an effect; `stride` is the number of
    positions of the axis per position of the mask.
    """

    length: int
    stride: int = 1

    def compute_length_beyond(self, positions: int) -> int:
        """Return the axis size at which the number of mask positions exceeds the constant by
        `positions`.
        """
        return self.length + positions * self.stride


def find_length_thresholds(graph: Graph) -> dict[str, list[LengthThreshold]]:
    """Return, for each symbolic dimension, the ascending thresholds of constants that are compared
    or combined with positions on its axes, or that clip its size.

    `abs(i - j) < 8` over an axis `n` has the threshold 8 for `n`: with shorter sequences `8` and
    `9` have the same results. Over an axis `n // 4` the threshold is 32.
    """
    found: dict[str, set[LengthThreshold]] = {}
    equations = graph.length_equations

    def add(length: Dim, number: int, share: int = 1) -> None:
        for symbol, threshold in compute_length_thresholds(
            length.substitute(equations), number
        ).items():
            longer = LengthThreshold(threshold.length * share, threshold.stride * share)
            found.setdefault(symbol, set()).add(longer)

    positions: dict[Value, frozenset[_PositionCount]] = {}
    for node, results in iterate_nested_nodes(graph):
        counted = _find_position_counts(node, positions)
        if counted:
            positions |= dict.fromkeys(results, counted)
            for number in _iterate_constants(node):
                for each in counted:
                    add(each.length, number, each.positions_per_count)
        for length, clipped in _iterate_clipped_lengths(results):
            add(length, clipped)
    known_positions = _collect_input_symbols(graph)
    return {s: sorted(found[s]) for s in found if s in known_positions}


def _iterate_clipped_lengths(results: Sequence[Value]) -> Iterator[tuple[Dim, int]]:
    """Yield each clipped dimension in the shape of a result, with its bound."""
    for length in (d for r in results for d in r.shape):
        for clipped in _iterate_clip_bounds(length):
            if _is_threshold(clipped, MAX_WINDOW_LENGTH):
                yield length, clipped


def _collect_input_symbols(graph: Graph) -> set[str]:
    return {s for v in graph.inputs.values() for d in v.shape for s in d.symbols()}


def compute_length_thresholds(length: Dim, number: int) -> dict[str, LengthThreshold]:
    """Return, for each symbol in a dimension, its value above which the dimension exceeds
    `number`.
    """
    strides = {symbol: _find_stride(length, symbol, number) for symbol in length.symbols()}
    return {s: LengthThreshold(number * stride, stride) for s, stride in strides.items()}


def _is_threshold(number: float, max_length: int) -> bool:
    return 1 < abs(number) <= max_length


def _find_stride(length: Dim, symbol: str, number: int) -> int:
    """Return by how much `symbol` must increase for the dimension to increase by 1, for small
    values of other symbols. Return 1 if the dimension does not reach `number`.
    """
    small = dict.fromkeys(length.symbols(), 2)
    for stride in STRIDES:
        with suppress(DimError):  # skips values for which the dimension is not an integer
            if length.evaluate({**small, symbol: number * stride}) >= number:
                return stride
    return 1


POSITIONS_PER_COUNT = 4
"""The assumed minimum number of positions per counted position (true in a mask, or with a special
token id).
"""


@dataclass(frozen=True)
class _PositionCount:
    """A count of positions on an axis of this size, of which one in `positions_per_count` is
    counted.
    """

    length: Dim
    positions_per_count: int = 1


def _find_position_counts(
    node: Node, known_positions: dict[Value, frozenset[_PositionCount]]
) -> frozenset[_PositionCount]:
    """Return the axes whose positions the results of a node number or count."""
    match node.op:
        case ops.Range(length):
            return frozenset((_PositionCount(length),))
        case ops.Extent(axis):
            x = node.args[0]
            return frozenset((_PositionCount(x.shape[axis]),)) if x else frozenset()
        case ops.CumSum(axis) | ops.Reduce("sum", axis) if _is_count(node.first_operand):
            length = node.get_operand().type.shape[axis]
            return frozenset((_PositionCount(length, POSITIONS_PER_COUNT),))
    if node.op.is_view or isinstance(node.op, _POSITION_KEEPING_OPS):
        return frozenset().union(*(known_positions.get(a, frozenset()) for a in node.operands))
    return frozenset()


def _is_count(value: Value | None) -> bool:
    """Return True if a value is a mask cast to a numeric type, so that its sum counts positions."""
    mask = (
        value.node.first_operand
        if value and value.node and isinstance(value.node.op, ops.Cast)
        else None
    )
    return mask is not None and mask.dtype == "bool"


def _iterate_constants(node: Node) -> Iterator[int]:
    """Yield the constant operands of an addition, multiplication or comparison that are distances
    between positions.
    """
    if not isinstance(node.op, ops.Arith | ops.Compare):
        return
    whole = isinstance(node.op, ops.Compare) or node.get_operand().type.dtype in ("i64", "i32")
    max_length = MAX_WINDOW_LENGTH if whole else MAX_FLOAT_THRESHOLD
    for value in node.args:
        match get_viewed_op(value, ops.Cast):
            case ops.Constant(number) if _is_threshold(number, max_length):
                yield ceil(abs(number))


def _iterate_clip_bounds(length: Dim) -> Iterator[int]:
    """Yield the constants in the minima and maxima of a dimension."""
    for part in length.iterate_functions():
        if part.fn in ("min", "max"):
            yield from (c for a in part.args for m, c in a.terms if not m)


POSITIONS_BEYOND_THRESHOLD = 9
"""Number of positions above a threshold in a long round (a round that exceeds thresholds)."""
SHORT_AXIS_LENGTH = 2
"""Size of the other axes in a long round."""

MAX_WORK = 2_000_000_000
"""Maximum number of float64 multiply-adds of a long round, i.e. about a second."""
MAX_CONSTANT = 8192
"""Maximum constant in a mask that is tested. In float32, sums over more positions may differ by
more than the tolerance.
"""

Sizes: TypeAlias = Mapping[str, int]
Thresholds: TypeAlias = Mapping[str, list[LengthThreshold]]
"""Ascending length thresholds, by symbolic dimension."""


def is_within_cost_limit(sizes: Sizes, graph: Graph, repeats: int = 1) -> bool:
    """Return True if the reference can evaluate the graph `repeats` times at these sizes in about a
    second.
    """
    env = {**sizes, **{name: dim.evaluate(sizes) for name, dim in graph.length_equations.items()}}
    try:
        return repeats * _sum_multiply_adds(graph).evaluate(env) <= MAX_WORK
    except DimError:
        return False


@lru_cache(maxsize=8)
def _sum_multiply_adds(graph: Graph) -> Dim:
    """Return the number of multiply-adds of a graph. The result is cached, because it is evaluated
    for many axis sizes.
    """
    return sum_dims(count_multiply_adds(node) for node, _ in graph.nodes)


def _find_block_thresholds(graph: Graph) -> dict[str, list[LengthThreshold]]:
    """Return, by symbolic dimension, the sizes above which attention is computed in blocks or a
    recurrence in chunks.
    """
    padded = [graph.inputs[n] for n, f in graph.input_facts.items() if f.padding_side]
    found: dict[str, set[LengthThreshold]] = {}

    def add(length: Dim, number: int) -> None:
        for symbol, threshold in compute_length_thresholds(length, number).items():
            found.setdefault(symbol, set()).add(threshold)

    for node, _ in graph.nodes:
        if local := plan_local_attention(node, padded):
            add(node.get_operand().type.shape[2], local.length_threshold)
        if isinstance(node.op, ops.Scan) and match_linear_recurrence(node.op, node.args):
            add(node.op.get_first_scanned(node).type.shape[node.op.axis], CHUNK_LENGTH)
    return _select_possible_thresholds(found, find_max_lengths(graph))


def _select_possible_thresholds(
    thresholds_by_symbol: Mapping[str, Iterable[LengthThreshold]], max_lengths: Mapping[str, int]
) -> dict[str, list[LengthThreshold]]:
    """Return the thresholds below the maximum sizes, sorted."""
    below = {
        s: [t for t in sorted(f) if t.length < max_lengths.get(s, t.length + 1)]
        for s, f in thresholds_by_symbol.items()
    }
    return {symbol: thresholds for symbol, thresholds in below.items() if thresholds}


def iterate_long_lengths(
    graph: Graph, is_within_cost_limit: Callable[[Sizes], bool], max_lengths: Sizes | None = None
) -> Iterator[dict[str, int]]:
    """Yield axis sizes above the constants in masks and caches, first below and then above the size
    from which attention is computed in blocks.

    Other axes are short. If the cost of sizes above all constants is too high, yield, for each
    symbolic dimension, a size above the largest constant within the cost limit.
    """
    constants, blocks = find_length_thresholds(graph), _find_block_thresholds(graph)
    tried = list[dict[str, int]]()
    for choices in _choose_lengths(constants, blocks):
        for lengths in choices:
            sizes = find_nearby_lengths(graph, lengths, SHORT_AXIS_LENGTH, max_lengths)
            if sizes is None or not is_within_cost_limit(sizes):
                continue
            if sizes not in tried:
                tried.append(sizes)
                yield sizes
            break


def _choose_lengths(constants: Thresholds, blocks: Thresholds) -> Iterator[list[dict[str, int]]]:
    """Yield lists of alternative axis sizes in order of preference. The caller uses the first one
    within the cost limit.
    """

    def at_once(symbol: str, threshold: LengthThreshold) -> int:
        length = threshold.compute_length_beyond(POSITIONS_BEYOND_THRESHOLD)
        return min([length, *(b.length for b in blocks.get(symbol, ()))])

    def in_blocks(symbol: str, threshold: LengthThreshold) -> int:
        return threshold.compute_length_beyond(POSITIONS_BEYOND_THRESHOLD)

    constants = _limit_thresholds(constants)
    every = {
        s: sorted([*constants.get(s, ()), *blocks.get(s, ())])
        for s in sorted({*constants, *blocks})
    }
    for thresholds, length_of in ((constants, at_once), (every, in_blocks))[: 1 + bool(blocks)]:
        if not thresholds:
            continue
        whole = {s: length_of(s, found[-1]) for s, found in thresholds.items()}
        each = {s: [{s: length_of(s, t)} for t in reversed(f)] for s, f in thresholds.items()}
        yield [whole]
        yield from ([whole, *alone] for alone in each.values())


def _limit_thresholds(thresholds: Thresholds) -> Thresholds:
    """Return the thresholds up to `MAX_CONSTANT`."""
    limited = {
        s: [t for t in found if t.length <= MAX_CONSTANT * t.stride]
        for s, found in thresholds.items()
    }
    return {s: found for s, found in limited.items() if found}


def find_skipped_lengths(
    graph: Graph, compared_sizes: Iterable[Sizes], max_lengths: Sizes | None = None
) -> tuple[str, ...]:
    """Describe axis sizes above thresholds that the model supports but that exceed all sizes in
    `compared_sizes`.
    """
    longest: dict[str, int] = {}
    for sizes in compared_sizes:
        for symbol, length in sizes.items():
            longest[symbol] = max(longest.get(symbol, 0), length)
    found = []
    constants, blocks = find_length_thresholds(graph), _find_block_thresholds(graph)
    for symbol in sorted({*constants, *blocks} & longest.keys()):
        for threshold in sorted([*constants.get(symbol, ()), *blocks.get(symbol, ())]):
            least = threshold.compute_length_beyond(1)
            if longest[symbol] >= least:
                continue
            near = find_nearby_lengths(graph, {symbol: least}, SHORT_AXIS_LENGTH, max_lengths)
            if near is not None and near[symbol] >= least:
                found.append(f"{symbol} above {threshold.length}")
                break
    return tuple(found)


def find_nearby_lengths(
    graph: Graph, preferred_lengths: Sizes, other_length: int, max_lengths: Sizes | None
) -> dict[str, int] | None:
    """Return valid axis sizes of the graph near `preferred_lengths`, and near `other_length` for
    all other symbolic dimensions, or None if there are none.
    """
    graph_max_lengths = find_max_lengths(graph)
    default_lengths, graph_min_lengths = (
        choose_lengths(graph, 0, max_lengths),
        find_min_lengths(graph),
    )
    sizes = {}
    for symbol, default_length in default_lengths.items():
        length = preferred_lengths.get(symbol, max(default_length, other_length))
        limits = [b[symbol] for b in (graph_max_lengths, max_lengths or {}) if symbol in b]
        min_length = (
            default_length
            if preferred_lengths.get(symbol) != 0
            else max(graph.min_lengths.get(symbol, 0), graph_min_lengths.get(symbol, 0))
        )
        sizes[symbol] = max(min_length, min([length, *limits]))
    return find_valid_lengths(graph, sizes, graph_max_lengths)

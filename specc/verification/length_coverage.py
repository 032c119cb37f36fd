"""Choose axis sizes for `specc verify` that exceed the constants in masks and caches, and find the
sizes that `specc verify` skips. A length threshold is the smallest axis size at which a constant in
a mask or cache has an effect.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import TypeAlias

from specc.analysis.blocked_attention_plan import plan_local_attention
from specc.analysis.length_limits import MAX_WINDOW_LENGTH, find_max_lengths, find_min_lengths
from specc.analysis.linear_recurrence import match_linear_recurrence
from specc.analysis.model_cost import count_multiply_adds
from specc.analysis.value_ranges import get_viewed_op
from specc.ir import ops
from specc.ir.dim import Dim, DimError, sum_dims
from specc.ir.graph import Graph, Node, Value
from specc.ir.length_constraints import find_valid_dim_sizes, iterate_all_nodes
from specc.runtime.random_inputs import choose_axis_sizes
from specc.transforms.chunk_scan import CHUNK_LENGTH

MAX_FLOAT_THRESHOLD = 4096
"""Maximum constant that is a distance of positions. Larger constants are -inf or a RoPE base."""

STRIDES: tuple[int, ...] = (*range(1, 65), *range(80, 2049, 16))
"""Candidate ratios of input positions to mask positions."""


@dataclass(frozen=True, order=True)
class LengthThreshold:
    """The smallest axis size at which a constant in a mask has an effect; `stride` is the number of
    positions of the axis per position of the mask.
    """

    length: int
    stride: int = 1

    def compute_length_above(self, positions: int) -> int:
        """Return the axis size whose number of positions exceeds the constant by `positions`."""
        return self.length + positions * self.stride


def find_length_thresholds(graph: Graph) -> dict[str, list[LengthThreshold]]:
    """Map each symbolic dimension to the ascending thresholds of constants that are compared or
    combined with positions on its axes, or that clip its size.

    `abs(i - j) < 8` over an axis `n` has the threshold 8 for `n`, because for shorter sequences the
    constants `8` and `9` have the same results. Over an axis `n // 4`, the threshold is 32.
    """
    thresholds: dict[str, set[LengthThreshold]] = {}
    equations = graph.length_equations

    def add_threshold(length: Dim, number: int, positions_per_count: int = 1) -> None:
        for symbol, threshold in compute_length_thresholds(
            length.substitute(equations), number
        ).items():
            factor = positions_per_count
            scaled = LengthThreshold(threshold.length * factor, threshold.stride * factor)
            thresholds.setdefault(symbol, set()).add(scaled)

    positions: dict[Value, frozenset[_PositionCount]] = {}
    for node, results in iterate_all_nodes(graph):
        counts = _find_position_counts(node, positions)
        if counts:
            positions |= dict.fromkeys(results, counts)
            for number in _iterate_constants(node):
                for count in counts:
                    add_threshold(count.length, number, count.positions_per_count)
        for length, bound in _iterate_clipped_lengths(results):
            add_threshold(length, bound)
    known_positions = _collect_input_symbols(graph)
    return {s: sorted(thresholds[s]) for s in thresholds if s in known_positions}


def _iterate_clipped_lengths(results: Sequence[Value]) -> Iterator[tuple[Dim, int]]:
    """Yield each clipped dimension in the shape of a result, with its bound."""
    for length in (d for r in results for d in r.shape):
        for bound in _iterate_clip_bounds(length):
            if _is_threshold(bound, MAX_WINDOW_LENGTH):
                yield length, bound


def _collect_input_symbols(graph: Graph) -> set[str]:
    return {s for v in graph.inputs.values() for d in v.shape for s in d.symbols()}


def compute_length_thresholds(length: Dim, number: int) -> dict[str, LengthThreshold]:
    """Map each symbol in `length` to its value above which `length` exceeds `number`."""
    strides = {symbol: _find_stride(length, symbol, number) for symbol in length.symbols()}
    return {s: LengthThreshold(number * stride, stride) for s, stride in strides.items()}


def _is_threshold(number: float, max_length: int) -> bool:
    return 1 < abs(number) <= max_length


def _find_stride(length: Dim, symbol: str, number: int) -> int:
    """Return the increase of `symbol` that increases the expression `length` by 1, for small values
    of all other symbolic dimensions. Return 1 if `length` does not reach `number`.
    """
    lengths = dict.fromkeys(length.symbols(), 2)
    for stride in STRIDES:
        with suppress(DimError):  # skip strides for which `length` is not an integer
            if length.evaluate({**lengths, symbol: number * stride}) >= number:
                return stride
    return 1


POSITIONS_PER_COUNT = 4
"""The assumed minimum number of positions per counted mask element or special token."""


@dataclass(frozen=True)
class _PositionCount:
    """A position id or count on an axis of size `length`, 1 per `positions_per_count` positions."""

    length: Dim
    positions_per_count: int = 1


def _find_position_counts(
    node: Node, known_positions: dict[Value, frozenset[_PositionCount]]
) -> frozenset[_PositionCount]:
    """Return the axes whose positions the results of a node contain or count. Position ids, sums of
    masks, and values computed from position ids and sums (`known_positions`) contain or count
    positions.
    """
    match node.op:
        case ops.Range(length):
            return frozenset((_PositionCount(length),))
        case ops.Extent(axis):
            x = node.args[0]
            return frozenset((_PositionCount(x.shape[axis]),)) if x else frozenset()
        case ops.CumSum(axis) | ops.Reduce("sum", axis) if _is_count(node.first_operand):
            length = node.get_operand().type.shape[axis]
            return frozenset((_PositionCount(length, POSITIONS_PER_COUNT),))
    if node.op.is_view or node.op.is_elementwise or isinstance(node.op, ops.Concat):
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
    """Yield constant operands of `+`, `*` or comparisons that are distances of positions."""
    if not isinstance(node.op, ops.Arith | ops.Compare):
        return
    is_integer = isinstance(node.op, ops.Compare) or node.get_operand().type.dtype in ("i64", "i32")
    max_length = MAX_WINDOW_LENGTH if is_integer else MAX_FLOAT_THRESHOLD
    for value in node.args:
        match get_viewed_op(value, ops.Cast):
            case ops.Constant(number) if _is_threshold(number, max_length):
                yield ceil(abs(number))


def _iterate_clip_bounds(length: Dim) -> Iterator[int]:
    """Yield the constants in the minima and maxima of a dimension."""
    for part in length.iterate_opaque_functions():
        if part.fn in ("min", "max"):
            yield from (c for a in part.args for m, c in a.terms if not m)


POSITIONS_BEYOND_THRESHOLD = 9
"""Number of positions above a threshold in a long round (a round that exceeds thresholds)."""
SHORT_AXIS_LENGTH = 2
"""Size of the axes that are short in a long round."""

MAX_WORK = 2_000_000_000
"""Maximum number of float64 multiply-adds of a long round, which take about a second."""
MAX_CONSTANT = 8192
"""Maximum constant in a mask that is tested. Float32 sums over more than 8192 positions may differ
by more than the tolerance.
"""

Sizes: TypeAlias = Mapping[str, int]
Thresholds: TypeAlias = Mapping[str, list[LengthThreshold]]
"""Ascending length thresholds, by symbolic dimension."""


def is_within_cost_limit(sizes: Sizes, graph: Graph, repeats: int = 1) -> bool:
    """Return True if the reference runs `repeats` times at `sizes` in about a second."""
    env = {**sizes, **{name: dim.evaluate(sizes) for name, dim in graph.length_equations.items()}}
    try:
        return repeats * _sum_multiply_adds(graph).evaluate(env) <= MAX_WORK
    except DimError:
        return False


@lru_cache(maxsize=8)
def _sum_multiply_adds(graph: Graph) -> Dim:
    """Return the multiply-adds of a graph (cached for evaluation at many axis sizes)."""
    return sum_dims(count_multiply_adds(node) for node, _ in graph.nodes)


def _find_block_thresholds(graph: Graph) -> dict[str, list[LengthThreshold]]:
    """Map symbolic dimensions to sizes above which attention is blocked or a scan is chunked."""
    padding_masks = [graph.inputs[n] for n, f in graph.input_facts.items() if f.padding_side]
    thresholds: dict[str, set[LengthThreshold]] = {}

    def add_threshold(length: Dim, number: int) -> None:
        for symbol, threshold in compute_length_thresholds(length, number).items():
            thresholds.setdefault(symbol, set()).add(threshold)

    for node, _ in graph.nodes:
        if plan := plan_local_attention(node, padding_masks):
            add_threshold(node.get_operand().type.shape[2], plan.length_threshold)
        if isinstance(node.op, ops.Scan) and match_linear_recurrence(node.op, node.args):
            add_threshold(node.op.get_first_scanned(node).type.shape[node.op.axis], CHUNK_LENGTH)
    return _select_possible_thresholds(thresholds, find_max_lengths(graph))


def _select_possible_thresholds(
    thresholds_by_symbol: Mapping[str, Iterable[LengthThreshold]], max_lengths: Mapping[str, int]
) -> dict[str, list[LengthThreshold]]:
    """Return the thresholds below the maximum sizes, sorted."""
    possible = {
        s: [t for t in sorted(f) if t.length < max_lengths.get(s, t.length + 1)]
        for s, f in thresholds_by_symbol.items()
    }
    return {symbol: thresholds for symbol, thresholds in possible.items() if thresholds}


def iterate_lengths_above_thresholds(
    graph: Graph, is_within_cost_limit: Callable[[Sizes], bool], max_lengths: Sizes | None = None
) -> Iterator[dict[str, int]]:
    """Yield axis sizes above the constants in masks and caches: first sizes for which attention is
    not computed in blocks, then larger sizes.

    All other axes are short. If sizes above all constants exceed the cost limit, yield, for each
    symbolic dimension, a size above the largest constant within the limit.
    """
    constants, blocks = find_length_thresholds(graph), _find_block_thresholds(graph)
    tried_sizes = list[dict[str, int]]()
    for alternatives in _choose_lengths(constants, blocks):
        for lengths in alternatives:
            sizes = find_nearby_lengths(graph, lengths, SHORT_AXIS_LENGTH, max_lengths)
            if sizes is None or not is_within_cost_limit(sizes):
                continue
            if sizes not in tried_sizes:
                tried_sizes.append(sizes)
                yield sizes
            break


def _choose_lengths(constants: Thresholds, blocks: Thresholds) -> Iterator[list[dict[str, int]]]:
    """Yield lists of axis sizes in order of preference; one entry of each list is used."""

    def choose_unblocked_length(symbol: str, threshold: LengthThreshold) -> int:
        length = threshold.compute_length_above(POSITIONS_BEYOND_THRESHOLD)
        return min([length, *(b.length for b in blocks.get(symbol, ()))])

    def choose_blocked_length(symbol: str, threshold: LengthThreshold) -> int:
        return threshold.compute_length_above(POSITIONS_BEYOND_THRESHOLD)

    constants = _limit_thresholds(constants)
    all_thresholds = {
        s: sorted([*constants.get(s, ()), *blocks.get(s, ())])
        for s in sorted({*constants, *blocks})
    }
    passes = [(constants, choose_unblocked_length)]
    passes += [(all_thresholds, choose_blocked_length)] if blocks else []
    for thresholds, choose_length in passes:
        if not thresholds:
            continue
        all_lengths = {s: choose_length(s, candidates[-1]) for s, candidates in thresholds.items()}
        single_lengths = {
            s: [{s: choose_length(s, t)} for t in reversed(f)] for s, f in thresholds.items()
        }
        yield [all_lengths]
        yield from ([all_lengths, *single] for single in single_lengths.values())


def _limit_thresholds(thresholds: Thresholds) -> Thresholds:
    """Return the thresholds of constants up to `MAX_CONSTANT`."""
    limited = {
        s: [t for t in candidates if t.length <= MAX_CONSTANT * t.stride]
        for s, candidates in thresholds.items()
    }
    return {s: candidates for s, candidates in limited.items() if candidates}


def find_skipped_lengths(
    graph: Graph, compared_sizes: Iterable[Sizes], max_lengths: Sizes | None = None
) -> tuple[str, ...]:
    """Return descriptions of the axis sizes above thresholds that the model supports but no round
    compared, e.g. `seq above 512`. `compared_sizes` are the axis sizes of all rounds.
    """
    max_compared: dict[str, int] = {}
    for sizes in compared_sizes:
        for symbol, length in sizes.items():
            max_compared[symbol] = max(max_compared.get(symbol, 0), length)
    descriptions = []
    constants, blocks = find_length_thresholds(graph), _find_block_thresholds(graph)
    for symbol in sorted({*constants, *blocks} & max_compared.keys()):
        for threshold in sorted([*constants.get(symbol, ()), *blocks.get(symbol, ())]):
            min_length = threshold.compute_length_above(1)
            if max_compared[symbol] >= min_length:
                continue
            nearby_sizes = find_nearby_lengths(
                graph, {symbol: min_length}, SHORT_AXIS_LENGTH, max_lengths
            )
            if nearby_sizes is not None and nearby_sizes[symbol] >= min_length:
                descriptions.append(f"{symbol} above {threshold.length}")
                break
    return tuple(descriptions)


def find_nearby_lengths(
    graph: Graph, preferred_lengths: Sizes, other_length: int, max_lengths: Sizes | None
) -> dict[str, int] | None:
    """Return valid axis sizes of the graph near `preferred_lengths`, and near `other_length` for
    all other symbolic dimensions. Return None if no valid axis sizes are found.
    """
    graph_max_lengths = find_max_lengths(graph)
    default_lengths, graph_min_lengths = (
        choose_axis_sizes(graph, 0, max_lengths),
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
    return find_valid_dim_sizes(graph, sizes, graph_max_lengths)

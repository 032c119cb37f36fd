"""Choose axis sizes for `specc verify` that exceed the constants in masks and caches, and find the
sizes that `specc verify` skips. A length threshold is the smallest axis size at which a constant in
a mask or cache has an effect.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import ceil
from typing import TypeAlias

from specc.analysis.length_limits import MAX_WINDOW_LENGTH, find_max_lengths, find_min_lengths
from specc.analysis.linear_recurrence import match_linear_recurrence
from specc.analysis.local_attention_plan import plan_blocked_attention
from specc.analysis.model_cost import count_multiply_adds
from specc.analysis.valid_axis_sizes import find_valid_dim_sizes
from specc.analysis.value_ranges import find_op_behind_views
from specc.ir import ops
from specc.ir.dim import Dim, DimError, sum_dims
from specc.ir.graph import Graph, Node, Value, collect_shape_symbols
from specc.ir.ops.loop import iterate_all_nodes
from specc.runtime.random_inputs import choose_dim_sizes
from specc.transforms.chunk_scan import CHUNK_LENGTH

MAX_FLOAT_THRESHOLD = 4096
"""Largest constant that is treated as a distance between positions. A RoPE base is a larger
constant and not a distance.
"""

STRIDES: tuple[int, ...] = (*range(1, 65), *range(80, 2049, 16))
"""Candidate ratios of input positions to mask positions."""


@dataclass(frozen=True, order=True)
class LengthThreshold:
    """The smallest axis size at which a constant in a mask has an effect. `stride` is the number of
    axis positions for each mask position.
    """

    length: int
    stride: int = 1

    def compute_length_beyond(self, positions: int) -> int:
        """Return the axis size whose number of positions exceeds the constant by `positions`."""
        return self.length + positions * self.stride


def find_length_thresholds(graph: Graph) -> dict[str, list[LengthThreshold]]:
    """Map each symbolic dimension to its ascending length thresholds. Thresholds are derived from
    constants that are compared or combined with positions on the axes of the dimension, or that
    clip its size.

    For example, `abs(i - j) < 8` over an axis `n` has the threshold 8 for `n`: for shorter
    sequences, the constants 8 and 9 produce the same mask. For example, the threshold over an axis
    `n // 4` is 32.
    """
    thresholds = _Thresholds()
    for length, number, positions_per_count in _iterate_length_constants(graph):
        thresholds.add(length.substitute(graph.length_equations), number, positions_per_count)
    input_symbols = collect_shape_symbols(graph.inputs.values())
    return {s: sorted(found) for s, found in thresholds.by_symbol.items() if s in input_symbols}


def _iterate_length_constants(graph: Graph) -> Iterator[tuple[Dim, int, int]]:
    """Yield (axis size, constant, positions per count) for each constant that is compared or
    combined with position ids or counts of an axis. Yield (axis size, bound, 1) for each constant
    that bounds a clipped axis size.
    """
    positions: dict[Value, frozenset[_PositionCount]] = {}
    for node, results in iterate_all_nodes(graph):
        counts = _find_position_counts(node, positions)
        if counts:
            positions |= dict.fromkeys(results, counts)
            for number, count in product(_iterate_constants(node), counts):
                yield count.length, number, count.positions_per_count
        for length in (d for r in results for d in r.shape):
            yield from ((length, bound, 1) for bound in _iterate_clip_bounds(length))


@dataclass
class _Thresholds:
    """The thresholds found so far, by symbolic dimension."""

    by_symbol: dict[str, set[LengthThreshold]] = field(default_factory=dict)

    def add(self, length: Dim, number: int, positions_per_count: int = 1) -> None:
        """Add, for each symbol in `length`, the value above which `length` exceeds `number`."""
        for symbol in length.symbols():
            stride = _find_stride(length, symbol, number) * positions_per_count
            threshold = LengthThreshold(number * stride, stride)
            self.by_symbol.setdefault(symbol, set()).add(threshold)


def _is_threshold(number: float, max_length: int) -> bool:
    return 1 < abs(number) <= max_length


def _find_stride(length: Dim, symbol: str, number: int) -> int:
    """Return the increase of `symbol` that increases `length` by 1 if all other symbols are small.
    Return 1 if none of the candidate strides makes `length` reach `number`.
    """
    lengths = dict.fromkeys(length.symbols(), 2)
    for stride in STRIDES:
        with suppress(DimError):  # skip strides for which `length` is not an integer
            if length.evaluate({**lengths, symbol: number * stride}) >= number:
                return stride
    return 1


POSITIONS_PER_COUNT = 4
"""The assumed minimum distance, in positions, between true mask elements or special tokens."""


@dataclass(frozen=True)
class _PositionCount:
    """A position id or count on an axis of size `length`, which grows by 1 every
    `positions_per_count` positions.
    """

    length: Dim
    positions_per_count: int = 1


def _find_position_counts(
    node: Node, known_positions: dict[Value, frozenset[_PositionCount]]
) -> frozenset[_PositionCount]:
    """Return the results of a node that contain position ids or counts: a range, the size of an
    axis, a sum of a mask, or a value computed from position ids or counts (`known_positions`).
    """
    match node.op:
        case ops.Range(length):
            return frozenset((_PositionCount(length),))
        case ops.Extent(axis):
            x = node.args[0]
            return frozenset((_PositionCount(x.shape[axis]),)) if x else frozenset()
        case ops.CumSum(axis) | ops.Reduce("sum", axis) if _is_count(node.first_operand):
            length = node.get_operand().shape[axis]
            return frozenset((_PositionCount(length, POSITIONS_PER_COUNT),))
    if node.op.is_view or node.op.is_elementwise or isinstance(node.op, ops.Concat):
        return frozenset().union(*(known_positions.get(a, frozenset()) for a in node.operands))
    return frozenset()


def _is_count(value: Value | None) -> bool:
    """Return True if a value is a mask cast to a numeric type, so that its sum counts positions."""
    node = value.node if value else None
    return node is not None and isinstance(node.op, ops.Cast) and node.get_operand().dtype == "bool"


def _iterate_constants(node: Node) -> Iterator[int]:
    """Yield constant operands of `+`, `*` or comparisons that are distances between positions."""
    if not isinstance(node.op, ops.Arith | ops.Compare):
        return
    is_integer = isinstance(node.op, ops.Compare) or node.get_operand().dtype in ("i64", "i32")
    max_length = MAX_WINDOW_LENGTH if is_integer else MAX_FLOAT_THRESHOLD
    for value in node.args:
        match find_op_behind_views(value, ops.Cast):
            case ops.Constant(number) if _is_threshold(number, max_length):
                yield ceil(abs(number))


def _iterate_clip_bounds(length: Dim) -> Iterator[int]:
    """Yield the constants that clip a dimension and can be distances between positions."""
    for part in length.iterate_opaque_functions():
        if part.fn in ("min", "max"):
            constants = (c for a in part.args for m, c in a.terms if not m)
            yield from (c for c in constants if _is_threshold(c, MAX_WINDOW_LENGTH))


POSITIONS_BEYOND_THRESHOLD = 9
"""Long rounds exceed the axis size thresholds by this number of positions."""
SHORT_AXIS_LENGTH = 2
"""Size of the axes that are short in a long round."""

MAX_WORK = 2_000_000_000
"""Maximum number of float64 multiply-adds of a long round, i.e. about one second of compute."""
MAX_CONSTANT = 8192
"""Maximum constant in a mask for which a long round is run. Float32 sums over more than 8192
positions may differ by more than the tolerance.
"""

Sizes: TypeAlias = Mapping[str, int]
Thresholds: TypeAlias = Mapping[str, list[LengthThreshold]]
"""Ascending length thresholds, by symbolic dimension."""


def is_within_cost_limit(sizes: Sizes, graph: Graph, repeats: int = 1) -> bool:
    """Return True if `repeats` runs of the reference at `sizes` take at most about one second."""
    all_sizes = add_derived_axis_sizes(graph, sizes)
    try:
        return repeats * _sum_multiply_adds(graph).evaluate(all_sizes) <= MAX_WORK
    except DimError:
        return False


def add_derived_axis_sizes(graph: Graph, sizes: Sizes) -> dict[str, int]:
    """Return `sizes` and the sizes of all dimensions that length equations compute from them."""
    equations = graph.length_equations
    return {**sizes, **{name: dim.evaluate(sizes) for name, dim in equations.items()}}


@lru_cache(maxsize=8)
def _sum_multiply_adds(graph: Graph) -> Dim:
    """Return the multiply-adds of a graph. The formula is cached and evaluated at many sizes."""
    return sum_dims(count_multiply_adds(node) for node, _ in graph.nodes)


def _find_block_thresholds(graph: Graph) -> dict[str, list[LengthThreshold]]:
    """Map symbolic dimensions to the thresholds above which attention is blocked or a scan is
    chunked.
    """
    padding_masks = [graph.inputs[n] for n, f in graph.input_facts.items() if f.padding_side]
    thresholds, max_lengths = _Thresholds(), find_max_lengths(graph)
    for node, _ in graph.nodes:
        if plan := plan_blocked_attention(node, padding_masks):
            thresholds.add(node.get_operand().shape[2], plan.length_threshold)
        if isinstance(node.op, ops.Scan) and match_linear_recurrence(node.op, node.args):
            thresholds.add(
                node.op.get_first_scanned_operand(node).shape[node.op.axis], CHUNK_LENGTH
            )
    return _filter_thresholds(
        thresholds.by_symbol, lambda symbol, t: t.length < max_lengths.get(symbol, t.length + 1)
    )


def _filter_thresholds(
    thresholds: Mapping[str, Iterable[LengthThreshold]],
    is_relevant: Callable[[str, LengthThreshold], bool],
) -> dict[str, list[LengthThreshold]]:
    """Return the relevant thresholds of each symbolic dimension in ascending order."""
    relevant = {s: sorted(t for t in found if is_relevant(s, t)) for s, found in thresholds.items()}
    return {s: found for s, found in relevant.items() if found}


def iterate_lengths_above_thresholds(
    graph: Graph, is_within_cost_limit: Callable[[Sizes], bool], max_lengths: Sizes | None = None
) -> Iterator[dict[str, int]]:
    """Yield axis sizes that exceed the constants in masks and caches: first sizes for which
    attention is dense, then sizes for which attention is blocked.

    All axes that have no thresholds are short. If sizes above all constants exceed the cost limit,
    yield, for each symbolic dimension, a size above the largest constant within the limit.
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
    """Yield lists of axis sizes in order of preference. The caller uses one entry per list."""
    constants = _filter_thresholds(constants, lambda _, t: t.length <= MAX_CONSTANT * t.stride)
    passes = [(constants, blocks), (_merge_thresholds(constants, blocks), {})]
    for thresholds, upper_bounds in passes if blocks else passes[:1]:
        if not thresholds:
            continue
        candidates = {
            s: _choose_axis_lengths(found, upper_bounds.get(s, ()))
            for s, found in thresholds.items()
        }
        all_lengths = {s: lengths[0] for s, lengths in candidates.items()}
        yield [all_lengths]
        for symbol, lengths in candidates.items():
            yield [all_lengths, *({symbol: length} for length in lengths)]


def _choose_axis_lengths(
    thresholds: Sequence[LengthThreshold], upper_bounds: Iterable[LengthThreshold]
) -> list[int]:
    """Return one axis size above each threshold within all `upper_bounds`, largest first."""
    bounds = [bound.length for bound in upper_bounds]
    return [
        min([threshold.compute_length_beyond(POSITIONS_BEYOND_THRESHOLD), *bounds])
        for threshold in reversed(thresholds)
    ]


def _merge_thresholds(
    constants: Thresholds, blocks: Thresholds
) -> dict[str, list[LengthThreshold]]:
    """Merge the thresholds of constants and of blocked attention, sorted by symbol and length."""
    symbols = sorted({*constants, *blocks})
    return {s: sorted([*constants.get(s, ()), *blocks.get(s, ())]) for s in symbols}


def find_skipped_lengths(
    graph: Graph, compared_sizes: Iterable[Sizes], max_lengths: Sizes | None = None
) -> tuple[str, ...]:
    """Describe the axis sizes above thresholds that the model supports but that no round compared,
    e.g. `seq above 512`. `compared_sizes` are the axis sizes of all rounds.
    """
    max_compared: dict[str, int] = {}
    for sizes in compared_sizes:
        for symbol, length in sizes.items():
            max_compared[symbol] = max(max_compared.get(symbol, 0), length)
    descriptions = []
    merged = _merge_thresholds(find_length_thresholds(graph), _find_block_thresholds(graph))
    for symbol, thresholds in merged.items():
        for threshold in thresholds if symbol in max_compared else ():
            min_length = threshold.compute_length_beyond(1)
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
    graph: Graph, preferred_lengths: Sizes, fallback_length: int, max_lengths: Sizes | None
) -> dict[str, int] | None:
    """Return valid axis sizes of the graph near `preferred_lengths`, and near `fallback_length` for
    all other symbolic dimensions. Return None if no valid axis sizes are found.
    """
    graph_max_lengths = find_max_lengths(graph)
    default_lengths, graph_min_lengths = (
        choose_dim_sizes(graph, 0, max_lengths),
        find_min_lengths(graph),
    )
    sizes = {}
    for symbol, default_length in default_lengths.items():
        length = preferred_lengths.get(symbol, max(default_length, fallback_length))
        limits = [b[symbol] for b in (graph_max_lengths, max_lengths or {}) if symbol in b]
        min_length = (
            default_length
            if preferred_lengths.get(symbol) != 0
            else max(graph.min_lengths.get(symbol, 0), graph_min_lengths.get(symbol, 0))
        )
        sizes[symbol] = max(min_length, min([length, *limits]))
    return find_valid_dim_sizes(graph, sizes, graph_max_lengths)

"""Choose the lengths of `specc verify` beyond the constants of masks and caches, and find the
lengths that it skips.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from specc.analysis.length_limits import (
    LengthThreshold,
    compute_length_thresholds,
    find_length_thresholds,
    find_max_lengths,
    find_min_lengths,
)
from specc.analysis.linear_recurrence import match_linear_recurrence
from specc.analysis.local_attention import plan_local_attention
from specc.analysis.model_cost import count_multiply_adds
from specc.ir import ops
from specc.ir.dim import Dim, DimError, sum_dims
from specc.ir.graph import Graph
from specc.ir.length_constraints import find_valid_lengths
from specc.runtime.random_inputs import choose_lengths
from specc.transforms.chunk_scan import CHUNK_LENGTH

POSITIONS_BEYOND_THRESHOLD = 9
"""Number of positions above a threshold in a long round."""
SHORT_AXIS_LENGTH = 2
"""Length of the other axes in a long round."""

MAX_WORK = 2_000_000_000
"""Maximum number of float64 multiply-adds of a long round, which takes about a second."""
MAX_CONSTANT = 8192
"""Maximum mask constant that is tested: float32 sums over more positions may differ by more than
the tolerance.
"""

Sizes: TypeAlias = Mapping[str, int]
Thresholds: TypeAlias = Mapping[str, list[LengthThreshold]]
"""Ascending thresholds of lengths, by symbol."""


def is_affordable(sizes: Sizes, graph: Graph, repeats: int = 1) -> bool:
    """Return True if the reference can evaluate the graph at these lengths `repeats` times in about
    a second.
    """
    env = {**sizes, **{name: dim.evaluate(sizes) for name, dim in graph.length_equations.items()}}
    try:
        return repeats * _sum_multiply_adds(graph).evaluate(env) <= MAX_WORK
    except DimError:
        return False


@lru_cache(maxsize=8)
def _sum_multiply_adds(graph: Graph) -> Dim:
    """Return the number of multiply-adds of a graph. The result is cached, because it is needed for
    many lengths.
    """
    return sum_dims(count_multiply_adds(node) for node, _ in graph.nodes)


def _find_block_thresholds(graph: Graph) -> dict[str, list[LengthThreshold]]:
    """Return, by symbol, the lengths above which attention is computed in blocks or a recurrence in
    chunks.
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
    """Return the thresholds below the maximum lengths, sorted."""
    below = {
        s: [t for t in sorted(f) if t.length < max_lengths.get(s, t.length + 1)]
        for s, f in thresholds_by_symbol.items()
    }
    return {symbol: thresholds for symbol, thresholds in below.items() if thresholds}


def iterate_long_lengths(
    graph: Graph, is_affordable: Callable[[Sizes], bool], max_lengths: Sizes | None = None
) -> Iterator[dict[str, int]]:
    """Yield lengths above the constants of masks and caches: first at most the length from which
    attention is computed in blocks, then above it.

    The other axes are short. If lengths above all constants are not affordable, yield one above the
    largest affordable constant of each symbol.
    """
    constants, blocks = find_length_thresholds(graph), _find_block_thresholds(graph)
    tried = list[dict[str, int]]()
    for choices in _choose_lengths(constants, blocks):
        for lengths in choices:
            sizes = find_nearby_lengths(graph, lengths, SHORT_AXIS_LENGTH, max_lengths)
            if sizes is None or not is_affordable(sizes):
                continue
            if sizes not in tried:
                tried.append(sizes)
                yield sizes
            break


def _choose_lengths(constants: Thresholds, blocks: Thresholds) -> Iterator[list[dict[str, int]]]:
    """Yield lists of alternatives in order of preference. The caller uses the first affordable one
    of each list.
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
    """Return the thresholds of constants up to `MAX_CONSTANT`."""
    limited = {
        s: [t for t in found if t.length <= MAX_CONSTANT * t.stride]
        for s, found in thresholds.items()
    }
    return {s: found for s, found in limited.items() if found}


def find_skipped_lengths(
    graph: Graph, compared_sizes: Iterable[Sizes], max_lengths: Sizes | None = None
) -> tuple[str, ...]:
    """Describe the lengths above thresholds that the graph supports, but that no entry of
    `compared_sizes` reaches.
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
    """Return valid lengths of the graph near `preferred_lengths`, and near `other_length` for other
    axes. Return None if there are no valid lengths.
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

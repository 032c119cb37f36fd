"""Coverage of `specc verify`: executed branches and loop bodies, inputs that reach the others."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from specc.analysis.length_limits import (
    find_length_limits,
    find_min_lengths,
    find_position_constants,
)
from specc.analysis.linear_recurrence import match_linear_recurrence
from specc.analysis.local_attention import plan_local_attention
from specc.backend import Computation, Session, Subgraphs, TensorSlot
from specc.io.memory_check import get_free_memory
from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.ir.length_constraints import find_valid_lengths
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.random_inputs import BOOLEAN_DENSITIES, DEFAULT_DENSITY, sizes_for
from specc.transforms.chunk_scan import CHUNK_LENGTH

POSITIONS_BEYOND_THRESHOLD = 9
"""Number of positions above a threshold in a long round."""
SHORT_AXIS_LENGTH = 2
"""Length of the other axes in a long round."""
MIXED_BATCH_SIZE = 5
"""Batch size for conditions that depend on differences between batch elements."""
MAX_SMALL_CONSTANT = 64
"""Constants up to this are tried if a round above the largest constant is too expensive."""

SHORT_ROUNDS = 12
"""Number of rounds of minimum length, for conditions on input values."""

Sizes = Mapping[str, int]


@dataclass
class Coverage:
    """The subgraphs of a model, and how often each was executed so far. `session` is
    None where nothing is counted: there are none, or there is no memory for a copy.
    """

    subgraphs: Subgraphs
    session: Computation | None = None
    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, model: LoadedModel) -> "Coverage":
        """Build for an open model."""
        made = cls(model.file.subgraphs())
        made.counts = np.zeros(len(made.subgraphs.names), np.int64)
        room, free = model.file.room(), get_free_memory()
        if made.counts.size and (free is None or room.held <= free):
            made.session = model.with_executions(lambda s: _Counted(s, made))
        return made

    def run(self, inputs: Mapping[str, Array]) -> bool:
        """Run the model; return whether a subgraph was executed for the first time."""
        if self.session is None:
            return False
        before = len(self.missing)
        self.session.run(inputs)
        return len(self.missing) < before

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the subgraphs not executed so far."""
        pairs = zip(self.subgraphs.names, self.counts, strict=True)
        return tuple(name for name, count in pairs if not count)


@dataclass(frozen=True)
class _Counted:
    """A session that accumulates execution counts instead of returning them."""

    inner: Session
    coverage: Coverage

    @property
    def outputs(self) -> Mapping[str, TensorSlot]:
        """The outputs of the model itself."""
        known = self.inner.outputs
        return {n: s for n, s in known.items() if n != self._output}

    @property
    def inputs(self) -> Mapping[str, TensorSlot]:
        """The required inputs."""
        return self.inner.inputs

    @property
    def optional(self) -> Mapping[str, TensorSlot]:
        """The optional inputs."""
        return self.inner.optional

    def run_interruptibly(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its own results."""
        return self.run(inputs)

    @property
    def _output(self) -> str:
        return self.coverage.subgraphs.output

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its own results."""
        results = self.inner.run(inputs)
        self.coverage.counts = self.coverage.counts + results.pop(self._output)
        return results


def _find_block_thresholds(graph: Graph) -> dict[str, int]:
    """Return the lengths, by symbol, above which an attention is computed in blocks, or a
    recurrence in chunks.
    """
    most = {symbol: limit.most for symbol, limit in find_length_limits(graph).items()}
    padded = [graph.inputs[n] for n, f in graph.input_facts.items() if f.keep]
    found: dict[str, int] = {}
    for node, _ in graph.nodes:
        local = plan_local_attention(node, padded)
        rows = node.args[0].type.shape[2].name if local and node.args[0] else None
        if local and rows and local.above < most.get(rows, local.above + 1):
            found[rows] = max(found.get(rows, 0), local.above)
        if isinstance(node.op, ops.Scan) and match_linear_recurrence(node.op, node.args):
            chunked = node.op.get_first_scanned(node).type.shape[node.op.axis].name
            if chunked and most.get(chunked, CHUNK_LENGTH + 1) > CHUNK_LENGTH:
                found[chunked] = max(found.get(chunked, 0), CHUNK_LENGTH)
    return found


def long_sizes(
    graph: Graph, is_affordable: Callable[[Sizes], bool], most: Sizes | None = None
) -> Iterator[dict[str, int]]:
    """Yield lengths above the constants of masks and caches, with attention computed at
    once, then above the lengths from which it is computed in blocks as well. The other
    axes are short. Of lengths that are not affordable smaller ones are tried.
    """
    blocks, numbers = _find_block_thresholds(graph), find_position_constants(graph)
    at_once = {
        s: min(n + POSITIONS_BEYOND_THRESHOLD, blocks.get(s, n + POSITIONS_BEYOND_THRESHOLD))
        for s, n in numbers.items()
    }
    in_blocks = {
        s: max(blocks.get(s, 0), numbers.get(s, 0)) + POSITIONS_BEYOND_THRESHOLD
        for s in sorted(blocks.keys() | numbers.keys())
    }
    only_blocks = {s: n + POSITIONS_BEYOND_THRESHOLD for s, n in blocks.items()}
    small = {s: n for s, n in at_once.items() if numbers[s] <= MAX_SMALL_CONSTANT}
    tried = list[dict[str, int]]()
    for choices in ((at_once, small), (in_blocks, only_blocks) if blocks else ()):
        wanted = (_with(graph, lengths, SHORT_AXIS_LENGTH, most) for lengths in choices if lengths)
        for sizes in wanted:
            if sizes and is_affordable(sizes):
                if sizes not in tried:
                    tried.append(sizes)
                    yield sizes
                break


def candidate_sizes(
    graph: Graph, constants: tuple[int, ...], most: Sizes | None = None
) -> Iterator[tuple[dict[str, int], float]]:
    """Yield lengths and densities of booleans that may execute further subgraphs."""
    tried = list[dict[str, int]]()
    # with few tokens there may be an expert that none chooses
    yield from [(sizes_for(graph, 0, most), DEFAULT_DENSITY)] * SHORT_ROUNDS
    for sizes in _lengths(graph, constants, most):
        if sizes in tried:
            continue
        tried.append(sizes)
        for density in BOOLEAN_DENSITIES:
            yield sizes, density


def _lengths(
    graph: Graph, constants: tuple[int, ...], most: Sizes | None
) -> Iterator[dict[str, int]]:
    """Yield typical lengths; empty axes; lengths above each constant of a condition."""
    usual = sizes_for(graph, 2, most)
    yield usual
    for symbol in usual:
        yield from _found(_with(graph, {symbol: 0}, SHORT_AXIS_LENGTH, most), symbol)
    yield from long_sizes(graph, lambda _: True, most)
    for constant in constants:
        for others in (SHORT_AXIS_LENGTH, MIXED_BATCH_SIZE):
            for symbol in usual:
                one = {symbol: constant + POSITIONS_BEYOND_THRESHOLD}
                yield from _found(_with(graph, one, others, most), "")
    for constant in constants:
        all_of_them = dict.fromkeys(usual, constant + POSITIONS_BEYOND_THRESHOLD)
        yield from _found(_with(graph, all_of_them, SHORT_AXIS_LENGTH, most), "")


def _found(sizes: dict[str, int] | None, empty: str) -> Iterator[dict[str, int]]:
    if sizes is not None and not (empty and sizes[empty]):
        yield sizes


def _with(graph: Graph, wanted: Sizes, others: int, most: Sizes | None) -> dict[str, int] | None:
    """Return valid lengths of the graph, near the wanted ones and `others`."""
    bounds = {symbol: limit.most for symbol, limit in find_length_limits(graph).items()}
    least, taken = sizes_for(graph, 0, most), find_min_lengths(graph)
    sizes = {}
    for symbol, fewest in least.items():
        length = wanted.get(symbol, max(fewest, others))
        ends = [b[symbol] for b in (bounds, most or {}) if symbol in b]
        floor = (
            fewest
            if wanted.get(symbol) != 0
            else max(graph.min_lengths.get(symbol, 0), taken.get(symbol, 0))
        )
        sizes[symbol] = max(floor, min([length, *ends]))
    return find_valid_lengths(graph, sizes, bounds)

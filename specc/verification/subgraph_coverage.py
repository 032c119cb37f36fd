"""Count the executions of branches and loop bodies in `specc verify`, and choose axis sizes that
may execute the remaining ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from specc.backend import Computation, Session, Subgraphs, TensorSpec
from specc.io.memory_check import get_free_memory
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.random_inputs import BOOLEAN_DENSITIES, DEFAULT_DENSITY, choose_lengths
from specc.verification.length_coverage import (
    POSITIONS_BEYOND_THRESHOLD,
    SHORT_AXIS_LENGTH,
    Sizes,
    find_nearby_lengths,
    iterate_long_lengths,
)

MIXED_BATCH_SIZE = 5
"""Batch size that executes branches whose conditions depend on differences between batch
elements.
"""
SHORT_ROUNDS = 12
"""Number of rounds with minimum axis sizes, for branches whose conditions depend on input
values.
"""


@dataclass
class SubgraphCoverage:
    """The subgraphs of a model, and the number of executions of each so far. `session` is None if
    there are no subgraphs, or if there is not enough memory for a second copy of the model.
    """

    subgraphs: Subgraphs
    session: Computation | None = None
    execution_counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def from_model(cls, model: LoadedModel) -> "SubgraphCoverage":
        """Open a copy of the model that counts executions of its subgraphs."""
        coverage = cls(model.file.collect_subgraphs())
        coverage.execution_counts = np.zeros(len(coverage.subgraphs.names), np.int64)
        weight_sizes, free_memory = model.file.measure_weights(), get_free_memory()
        if coverage.execution_counts.size and (
            free_memory is None or weight_sizes.memory_bytes <= free_memory
        ):
            coverage.session = model.open_with_execution_counts(
                lambda s: _CountingSession(s, coverage)
            )
        return coverage

    def run(self, inputs: Mapping[str, Array]) -> bool:
        """Run the model on `inputs` and count executions. Return True if a subgraph was executed
        for the first time.
        """
        if self.session is None:
            return False
        missing_count = len(self.unexecuted_subgraphs)
        self.session.run(inputs)
        return len(self.unexecuted_subgraphs) < missing_count

    @property
    def unexecuted_subgraphs(self) -> tuple[str, ...]:
        """The names of the subgraphs that have not been executed."""
        pairs = zip(self.subgraphs.names, self.execution_counts, strict=True)
        return tuple(name for name, count in pairs if not count)


@dataclass(frozen=True)
class _CountingSession:
    """A session that records execution counts in `coverage` and returns only the outputs of the
    model.
    """

    session: Session
    coverage: SubgraphCoverage

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The outputs of the model, without the execution counts."""
        outputs = self.session.outputs
        return {n: s for n, s in outputs.items() if n != self._execution_counts_output}

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The required inputs."""
        return self.session.inputs

    @property
    def optional_inputs(self) -> Mapping[str, TensorSpec]:
        """The optional inputs."""
        return self.session.optional_inputs

    def run_interruptibly(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its results, without the execution counts."""
        return self.run(inputs)

    @property
    def _execution_counts_output(self) -> str:
        return self.coverage.subgraphs.execution_counts_output

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its results, without the execution counts."""
        results = self.session.run(inputs)
        self.coverage.execution_counts = self.coverage.execution_counts + results.pop(
            self._execution_counts_output
        )
        return results


def iterate_candidate_sizes(
    graph: Graph, constants: tuple[int, ...], max_lengths: Sizes | None = None
) -> Iterator[tuple[dict[str, int], float]]:
    """Yield axis sizes and probabilities of true booleans that may execute more subgraphs."""
    tried_sizes = list[dict[str, int]]()
    # with few tokens, some experts may not be selected
    yield from [(choose_lengths(graph, 0, max_lengths), DEFAULT_DENSITY)] * SHORT_ROUNDS
    for sizes in _iterate_candidate_lengths(graph, constants, max_lengths):
        if sizes in tried_sizes:
            continue
        tried_sizes.append(sizes)
        for density in BOOLEAN_DENSITIES:
            yield sizes, density


def _iterate_candidate_lengths(
    graph: Graph, constants: tuple[int, ...], max_lengths: Sizes | None
) -> Iterator[dict[str, int]]:
    """Yield typical axis sizes, then sizes with one empty axis, then sizes above each constant of a
    branch condition.
    """
    typical_sizes = choose_lengths(graph, 2, max_lengths)
    yield typical_sizes
    for symbol in typical_sizes:
        yield from _iterate_if_found(
            find_nearby_lengths(graph, {symbol: 0}, SHORT_AXIS_LENGTH, max_lengths), symbol
        )
    yield from iterate_long_lengths(graph, lambda _: True, max_lengths)
    for constant in constants:
        for other_length in (SHORT_AXIS_LENGTH, MIXED_BATCH_SIZE):
            for symbol in typical_sizes:
                preferred_lengths = {symbol: constant + POSITIONS_BEYOND_THRESHOLD}
                yield from _iterate_if_found(
                    find_nearby_lengths(graph, preferred_lengths, other_length, max_lengths), ""
                )
    for constant in constants:
        preferred_lengths = dict.fromkeys(typical_sizes, constant + POSITIONS_BEYOND_THRESHOLD)
        yield from _iterate_if_found(
            find_nearby_lengths(graph, preferred_lengths, SHORT_AXIS_LENGTH, max_lengths), ""
        )


def _iterate_if_found(sizes: dict[str, int] | None, empty_symbol: str) -> Iterator[dict[str, int]]:
    if sizes is not None and not (empty_symbol and sizes[empty_symbol]):
        yield sizes

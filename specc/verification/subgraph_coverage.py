"""Coverage of `specc verify`: executed branches and loop bodies, inputs that reach the others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from specc.backend import Computation, Session, Subgraphs, TensorSlot
from specc.io.memory_check import get_free_memory
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.random_inputs import BOOLEAN_DENSITIES, DEFAULT_DENSITY, choose_lengths
from specc.verification.length_coverage import (
    POSITIONS_BEYOND_THRESHOLD,
    SHORT_AXIS_LENGTH,
    Sizes,
    long_sizes,
    sizes_near,
)

MIXED_BATCH_SIZE = 5
"""Batch size for conditions that depend on differences between batch elements."""
SHORT_ROUNDS = 12
"""Number of rounds of minimum length, for conditions on input values."""


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
        made = cls(model.file.list_subgraphs())
        made.counts = np.zeros(len(made.subgraphs.names), np.int64)
        room, free = model.file.measure_weights(), get_free_memory()
        if made.counts.size and (free is None or room.memory_bytes <= free):
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
    def optional_inputs(self) -> Mapping[str, TensorSlot]:
        """The optional inputs."""
        return self.inner.optional_inputs

    def run_interruptibly(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its own results."""
        return self.run(inputs)

    @property
    def _output(self) -> str:
        return self.coverage.subgraphs.counts_output

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model and return its own results."""
        results = self.inner.run(inputs)
        self.coverage.counts = self.coverage.counts + results.pop(self._output)
        return results


def candidate_sizes(
    graph: Graph, constants: tuple[int, ...], most: Sizes | None = None
) -> Iterator[tuple[dict[str, int], float]]:
    """Yield lengths and densities of booleans that may execute further subgraphs."""
    tried = list[dict[str, int]]()
    # with few tokens there may be an expert that none chooses
    yield from [(choose_lengths(graph, 0, most), DEFAULT_DENSITY)] * SHORT_ROUNDS
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
    usual = choose_lengths(graph, 2, most)
    yield usual
    for symbol in usual:
        yield from _found(sizes_near(graph, {symbol: 0}, SHORT_AXIS_LENGTH, most), symbol)
    yield from long_sizes(graph, lambda _: True, most)
    for constant in constants:
        for others in (SHORT_AXIS_LENGTH, MIXED_BATCH_SIZE):
            for symbol in usual:
                one = {symbol: constant + POSITIONS_BEYOND_THRESHOLD}
                yield from _found(sizes_near(graph, one, others, most), "")
    for constant in constants:
        all_of_them = dict.fromkeys(usual, constant + POSITIONS_BEYOND_THRESHOLD)
        yield from _found(sizes_near(graph, all_of_them, SHORT_AXIS_LENGTH, most), "")


def _found(sizes: dict[str, int] | None, empty: str) -> Iterator[dict[str, int]]:
    if sizes is not None and not (empty and sizes[empty]):
        yield sizes

"""A step whose caches are buffers, run as its graph says: caches as long as their rows
go in and come out.

For whoever compares the step with its graph. `specc.run.steppers` keeps the buffers,
which is what they are for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specc.artifact.facts import Facts
from specc.backend import Computing, Slot
from specc.ir.array import Array
from specc.ir.derived import OFFSET
from specc.ir.dim import Dim
from specc.ir.graph import Graph


@dataclass(frozen=True)
class Buffered:
    """`inner` runs the model, `graph` is what it was made from."""

    inner: Computing
    graph: Graph
    facts: Facts

    @property
    def outputs(self) -> Mapping[str, Slot]:
        """The results, as of any open model."""
        return self.inner.outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name. Several rows of several texts go in one after the other,
        as the kernel wants them.
        """
        states = {s.name: inputs[s.name] for s in self.facts.states}
        past = states[self.facts.in_place[0]].shape[2]
        rows, count = inputs[self.facts.generation.growing].shape
        # The kernel takes several rows of several texts only at the beginning.
        size = 1 if past and rows > 1 else max(count, 1)
        others = {n: v for n, v in inputs.items() if n not in states}
        made: list[dict[str, Array]] = []
        # Once where there are no new rows too: a step without rows has results.
        for start in range(0, max(count, 1), size):
            stop = min(start + size, count)
            given = {n: self._piece(n, v, past, start, stop) for n, v in others.items()}
            made.append(self._once({**given, **states}, past + start, stop - start))
            states = {s.name: made[-1][s.next] for s in self.facts.states}
        return {name: self._joined(name, [m[name] for m in made]) for name in made[-1]}

    def _once(self, given: dict[str, Array], past: int, count: int) -> dict[str, Array]:
        """One call, its buffers just long enough for the old rows and the new."""
        for name in self.facts.in_place:
            old = given[name]
            batch, heads, _, width = old.shape
            given[name] = np.zeros((batch, heads, past + count, width), old.dtype)
            given[name][:, :, :past] = old
        return self.inner.run({**given, OFFSET: np.array(past, np.int64)})

    def _piece(
        self, name: str, value: Array, past: int, start: int, stop: int
    ) -> Array:
        """The part of an input for some of the new rows."""
        if name in self.facts.whole:
            return value[:, : past + stop]
        axis = self._new(self.graph.inputs[name].type.shape)
        return value if axis is None else np.take(value, np.arange(start, stop), axis)

    def _joined(self, name: str, parts: list[Array]) -> Array:
        # What the model gives beside its results is that of the last rows.
        known = self.graph.outputs.get(name)
        axis = self._new(known.type.shape) if known else None
        if axis is None or len(parts) == 1:
            return parts[-1]
        return np.concatenate(parts, axis)

    def _new(self, shape: tuple[Dim, ...]) -> int | None:
        """The axis of the new rows."""
        new = self.graph.inputs[self.facts.generation.growing].type.shape[1]
        return next((n for n, d in enumerate(shape) if d == new), None)

"""What a step is really given: what `encode` hands over, and states as they are behind a first part of a text.

For whoever compares a step with its graph. Numbers out of nowhere would put it where no text ever does: the logarithm
of what is never negative, a sum that is never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specc import backend
from specc.ir.derived import OFFSET
from specc.ir.graph import Graph
from specc.verifying import random_inputs
from specc.writers.facts import Facts
from specc.writers.steppers import NUMPY

Array = Any


@dataclass(frozen=True)
class Prior:
    """Inputs of a step graph, made by the reference from `encode`, if there is one, and from the step itself."""

    facts: Facts
    weights: Mapping[str, Array]
    encode: Graph | None = None
    encode_weights: Mapping[str, Array] | None = None

    def draw(self, step: Graph, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
        """Inputs for lengths of the step graph, behind as many rows as they say that there were."""
        growing, numpy = self.facts.generation.growing, backend.load("numpy")
        new = str(step.inputs[growing].type.shape[1])
        past = self._past(step, new)
        count = sizes.get(past, self.most(step).get(OFFSET, 3) if OFFSET in step.inputs else 0)
        made = random_inputs(step, sizes, rng)
        once = self._once(made, sizes, rng)
        made |= {n: once[n] for n in self.facts.handed if n in once}
        first = {**made, **random_inputs(step, {**sizes, new: count, past: 0}, rng)}
        first |= {n: made[n] for n in self.facts.handed}
        first |= {n: made[n][:, :count] for n in self.facts.whole}
        for state in self.facts.states:
            start = once[state.initial] if state.initial else np.zeros(first[state.name].shape, NUMPY[state.type.dtype])
            first[state.name] = made[state.name] = start
        if OFFSET in step.inputs:
            first[OFFSET], made[OFFSET] = np.array(0), np.array(count)
        if count:
            after = numpy.run(step, first, self.weights)
            made |= {s.name: _stored(after[s.next], s.type.dtype) for s in self.facts.states}
        return made

    def most(self, step: Graph) -> dict[str, int]:
        """How many rows there may be before and new ones, where a table of positions bounds both together."""
        bounds = {n: b.high for n, b in self.facts.bounds.items() if b.high is not None}
        if self.facts.context is None:
            return bounds
        new = str(step.inputs[self.facts.generation.growing].type.shape[1])
        rows = {
            self._past(step, new) or OFFSET: self.facts.context // 2,
            new: self.facts.context - self.facts.context // 2,
        }
        return {**bounds, **rows}

    def _past(self, step: Graph, new: str) -> str:
        """The symbol of the rows that there were; "" where no length tells it."""
        lengths = [s.type.shape[s.rows] for s in self.facts.states if s.rows is not None]
        lengths += [step.inputs[n].type.shape[1] for n in self.facts.whole]
        return next((symbol for d in lengths for symbol in sorted(d.symbols()) if symbol != new), "")

    def _once(self, made: Mapping[str, Array], sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
        """The results of `encode`; what it takes that a step takes too is the same for both."""
        if self.encode is None:
            return {}
        symbols = {s for v in self.encode.inputs.values() for d in v.type.shape for s in d.symbols()}
        given = random_inputs(self.encode, {**dict.fromkeys(symbols, 1), **sizes}, rng)
        given |= {n: made[n] for n in self.encode.inputs if n in self.facts.handed}
        growing = self.facts.generation.growing
        if growing in given:
            given[growing] = given[growing][:, :0]
        results = backend.load("numpy").run(self.encode, given, self.encode_weights or {})
        return {n: _stored(v, self.encode.outputs[n].type.dtype) for n, v in results.items()}


def _stored(value: Array, dtype: str) -> Array:
    """Numbers as the model has them."""
    return np.asarray(value).astype(NUMPY[dtype])

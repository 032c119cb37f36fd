"""What a step is really given: what `encode` hands over, and states as they are behind
a first part of a text.

For whoever compares a step with its graph. Numbers out of nowhere would put it where no
text ever does: the logarithm of what is never negative, a sum that is never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specc import backend
from specc.artifact.facts import Facts
from specc.ir.array import Array
from specc.ir.derived import OFFSET
from specc.ir.graph import Graph
from specc.run.elements import NUMPY
from specc.run.random_inputs import USUAL, Draw, random_inputs


@dataclass(frozen=True)
class Prior:
    """Inputs of a step graph, made by the reference from `encode`, if there is one, and
    from the step itself.
    """

    facts: Facts
    weights: Mapping[str, Array]
    encode: Graph | None = None
    encode_weights: Mapping[str, Array] | None = None

    def draw(
        self,
        step: Graph,
        sizes: Mapping[str, int],
        rng: np.random.Generator,
        density: float = USUAL,
    ) -> dict[str, Array]:
        """Inputs for lengths of the step graph, behind as many rows as they say that there were."""
        new = self._new(step)
        past = self._past(step, new)
        # A step with nothing as long as the past is told by a number how long it was.
        told = self.most(step).get(OFFSET, 3) if OFFSET in step.inputs else 0
        count = sizes.get(past, told)
        # what `encode` hands over is the same for the first call and the next
        made = random_inputs(step, sizes, rng, density)
        once = self._once(made, sizes, rng)
        made |= {n: once[n] for n in self.facts.handed if n in once}
        # The first call has as many new rows as the next one is to have behind it; of
        # what looks at all rows it sees the first of them.
        first = {
            **made,
            **random_inputs(step, {**sizes, new: count, past: 0}, rng, density),
        }
        first |= {n: made[n] for n in self.facts.handed}
        rows = count * self._chunk
        first |= {n: made[n][:, :rows] for n in self.facts.whole}
        for state in self.facts.states:
            zeros = np.zeros(first[state.name].shape, NUMPY[state.type.dtype])
            start = once[state.initial] if state.initial else zeros
            # the next call keeps these only where there is no first one
            first[state.name] = made[state.name] = start
        if OFFSET in step.inputs:
            first[OFFSET], made[OFFSET] = np.array(0), np.array(count)
        return made | self._behind(step, first) if count else made

    @property
    def _chunk(self) -> int:
        """How many rows of the input are one of the step's."""
        return self.facts.chunks.rows if self.facts.chunks else 1

    def _behind(self, step: Graph, first: Mapping[str, Array]) -> dict[str, Array]:
        """The states that a first call of the step leaves."""
        after = backend.reference().run(step, first, self.weights)
        return {s.name: _stored(after[s.next], s.type.dtype) for s in self.facts.states}

    def most(self, step: Graph) -> dict[str, int]:
        """How many rows there may be before and new ones, where a table of positions
        bounds both together.
        """
        bounds = {n: b.high for n, b in self.facts.bounds.items() if b.high is not None}
        if self.facts.context is None:
            return bounds
        new = self._new(step)
        past = self._past(step, new) or OFFSET
        most = self.facts.context // self._chunk
        # half of the table for either, so that both can be tried
        rows = {past: most // 2, new: most - most // 2}
        return {**bounds, **rows}

    def _new(self, step: Graph) -> str:
        """The symbol of the rows that a step takes, or of the chunks of them."""
        length = step.inputs[self.facts.generation.growing].type.shape[1]
        return next(iter(length.symbols()))

    def _past(self, step: Graph, new: str) -> str:
        """The symbol of the rows that there were; "" where no length tells it."""
        lengths = [
            s.type.shape[s.rows] for s in self.facts.states if s.rows is not None
        ]
        lengths += [step.inputs[n].type.shape[1] for n in self.facts.whole]
        symbols = [symbol for d in lengths for symbol in sorted(d.symbols())]
        return next((symbol for symbol in symbols if symbol != new), "")

    def _once(
        self,
        made: Mapping[str, Array],
        sizes: Mapping[str, int],
        rng: np.random.Generator,
    ) -> dict[str, Array]:
        """The results of `encode`; what it takes that a step takes too is the same for both."""
        if self.encode is None:
            return {}
        shapes = [v.type.shape for v in self.encode.inputs.values()]
        symbols = {s for shape in shapes for d in shape for s in d.symbols()}
        given = random_inputs(self.encode, {**dict.fromkeys(symbols, 1), **sizes}, rng)
        given |= {n: made[n] for n in self.encode.inputs if n in self.facts.handed}
        # It is read for its lengths alone: a text has no row yet when `encode` runs.
        growing = self.facts.generation.growing
        if growing in given:
            given[growing] = given[growing][:, :0]
        results = backend.reference().run(self.encode, given, self.encode_weights or {})
        return {
            n: _stored(v, self.encode.outputs[n].type.dtype) for n, v in results.items()
        }


def _stored(value: Array, dtype: str) -> Array:
    """Numbers as the model has them."""
    return np.asarray(value).astype(NUMPY[dtype])


PAST, PRESENT = "past_key_values.", "present."
"""How Optimum and onnxruntime-genai call a state before a step, and behind it."""


def states_by_name(step: Graph) -> dict[str, str]:
    """The states of a step under the names of other programs, each with the result that
    is the state behind it. A state that no step changes, the keys of a source, has none.
    """
    after = {name: PRESENT + name.removeprefix(PAST) for name in step.inputs}
    return {
        name: result
        for name, result in after.items()
        if name.startswith(PAST) and result in step.outputs
    }


def draw_behind_a_text(
    weights: Mapping[str, Array],
) -> Draw:
    """Draws inputs of a step under the names of other programs: what it computes itself
    of a first part of a text, from no rows before, are the states of the second.
    """

    def draw(
        step: Graph,
        sizes: Mapping[str, int],
        rng: np.random.Generator,
        density: float = USUAL,
    ) -> dict[str, Array]:
        made = random_inputs(step, sizes, rng, density)
        states = states_by_name(step)
        new, past = _lengths(step, states)
        count = sizes.get(past, 0)
        if not count:  # a step without rows before has nothing that was ever computed
            return made
        first = random_inputs(step, {**sizes, new: count, past: 0}, rng, density)
        for name, value in step.inputs.items():
            symbols = {s for d in value.type.shape for s in d.symbols()}
            if past in symbols and new in symbols:
                # a mask over all rows says of earlier ones what it said then
                made[name][..., :count] = first[name]
            elif not {past, new} & symbols:
                first[name] = made[name]
        after = backend.reference().run(step, first, weights)
        return made | {
            name: _stored(after[result], step.inputs[name].type.dtype)
            for name, result in states.items()
        }

    return draw


def _lengths(step: Graph, states: Mapping[str, str]) -> tuple[str, str]:
    """The names of the new rows and of those before: a state grows from the one by the
    other.
    """
    for name, result in states.items():
        before, behind = step.inputs[name].type.shape, step.outputs[result].type.shape
        for a, b in zip(before, behind, strict=True):
            more = sorted((b - a).symbols()) if a != b else []
            if len(more) == 1 and len(a.symbols()) == 1:
                return more[0], str(a)
    return "", ""

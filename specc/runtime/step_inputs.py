"""Inputs of a step graph: encoder outputs and a KV cache after a prefix."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specc import backend
from specc.artifact.generation_facts import GenerationFacts
from specc.backend import Computation, TensorSlot
from specc.ir.array import Array
from specc.ir.derived_graphs import PAST_LENGTH_INPUT
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.runtime.model_inputs import NUMPY
from specc.runtime.random_inputs import USUAL, Draw, random_inputs


@dataclass(frozen=True)
class BufferedStep:
    """`inner` runs the model, `graph` is what it was made from."""

    inner: Computation
    graph: Graph
    facts: GenerationFacts

    @property
    def outputs(self) -> Mapping[str, TensorSlot]:
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
        return self.inner.run({**given, PAST_LENGTH_INPUT: np.array(past, np.int64)})

    def _piece(self, name: str, value: Array, past: int, start: int, stop: int) -> Array:
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


@dataclass(frozen=True)
class StepInputs:
    """Inputs of a step graph, made by the reference from `encode`, if there is one, and
    from the step itself.
    """

    facts: GenerationFacts
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
        told = self.most(step).get(PAST_LENGTH_INPUT, 3) if PAST_LENGTH_INPUT in step.inputs else 0
        count = sizes.get(past, told)
        # what `encode` hands over is the same for the first call and the next
        made = random_inputs(step, sizes, rng, density)
        once = self._once(made, sizes, rng)
        made |= {n: once[n] for n in self.facts.handed if n in once}
        # The first call has as many new rows as the next one is to have behind it; of
        # what looks at all rows it sees the first of them.
        first = {**made, **random_inputs(step, {**sizes, new: count, past: 0}, rng, density)}
        first |= {n: made[n] for n in self.facts.handed}
        rows = count * self._chunk
        first |= {n: made[n][:, :rows] for n in self.facts.whole}
        for state in self.facts.states:
            zeros = np.zeros(first[state.name].shape, NUMPY[state.type.dtype])
            start = once[state.initial] if state.initial else zeros
            # the next call keeps these only where there is no first one
            first[state.name] = made[state.name] = start
        if PAST_LENGTH_INPUT in step.inputs:
            first[PAST_LENGTH_INPUT], made[PAST_LENGTH_INPUT] = (np.array(0), np.array(count))
        return made | self._behind(step, first) if count else made

    @property
    def _chunk(self) -> int:
        """How many rows of the input are one of the step's."""
        return self.facts.chunks.rows if self.facts.chunks else 1

    def _behind(self, step: Graph, first: Mapping[str, Array]) -> dict[str, Array]:
        """The states that a first call of the step leaves."""
        after = backend.load_reference().evaluate_graph(step, first, self.weights)
        return {s.name: _stored(after[s.next], s.type.dtype) for s in self.facts.states}

    def most(self, step: Graph) -> dict[str, int]:
        """How many rows there may be before and new ones, where a table of positions
        bounds both together.
        """
        bounds = {n: b.high for n, b in self.facts.bounds.items() if b.high is not None}
        if self.facts.context is None:
            return bounds
        new = self._new(step)
        past = self._past(step, new) or PAST_LENGTH_INPUT
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
        lengths = [s.type.shape[s.rows] for s in self.facts.states if s.rows is not None]
        lengths += [step.inputs[n].type.shape[1] for n in self.facts.whole]
        symbols = [symbol for d in lengths for symbol in sorted(d.symbols())]
        return next((symbol for symbol in symbols if symbol != new), "")

    def _once(
        self, made: Mapping[str, Array], sizes: Mapping[str, int], rng: np.random.Generator
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
        results = backend.load_reference().evaluate_graph(
            self.encode, given, self.encode_weights or {}
        )
        return {n: _stored(v, self.encode.outputs[n].type.dtype) for n, v in results.items()}


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


def sample_step_inputs(weights: Mapping[str, Array]) -> Draw:
    """Draws inputs of a step under the names of other programs: what it computes itself
    of a first part of a text, from no rows before, are the states of the second.
    """

    def draw(
        step: Graph, sizes: Mapping[str, int], rng: np.random.Generator, density: float = USUAL
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
        after = backend.load_reference().evaluate_graph(step, first, weights)
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

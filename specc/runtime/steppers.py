"""Decode steps: a step graph with its KV cache, or the full graph again."""

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from specc.artifact.generation_facts import GenerationFacts
from specc.backend import BoundRun, Computation, DeviceTensor, DeviceTensors, Session, TensorSlot
from specc.decode.token_choice import Bools, Floats, Ints
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.model import PAST_LENGTH_INPUT
from specc.runtime.model_inputs import ModelInputs, PerTokenInputs, batch_axis, split_new_positions

NUMPY_DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
    "bool": np.dtype(np.bool_),
}
"""NumPy dtype of the element types of states and prompts."""
MIN_BUFFER_ROWS = 64
"""Initial capacity of a KV buffer, in positions."""
MIN_FREE_ROWS = 32
"""Minimum number of free positions after a prompt before a buffer has to grow."""
PREFILL_CHUNK_SIZE = 512
"""New positions of one run at most, by default: a longer prompt is read in chunks, so that its
activations take the memory of one. Larger chunks took as much processor time.
"""


class FullForwardStepper:
    """Runs the full forward on all tokens so far: n tokens cost n full passes."""

    def __init__(
        self, session: Computation, input_signature: ModelInputs, source: str, prepared: Arrays
    ) -> None:
        self.session, self.input_signature, self.source = session, input_signature, source
        self.rows = PerTokenInputs.of(input_signature, prepared)
        self.started = False
        self.results: dict[str, Array] = {}

    def step(self, tokens: Ints) -> Floats:
        """Feed tokens i64[batch n] → logits f32[batch vocab]."""
        if self.started:
            self.rows.extend(tokens)
        begins, self.started = not self.started, True
        self.results = self.session.run(
            {**self.rows.once, **self.rows.given, self.input_signature.growing: self.rows.tokens}
        )
        made = self.results[self.source]
        count = self.rows.tokens.shape[1]
        # The first token of a sequence is sampled after the last position of its prefix.
        if begins and made.ndim == 3 and made.shape[1] > count:
            return _prefill(_select_newest(made), made[:, -1 - count], self.rows.empty)
        return _select_newest(made)

    def reorder(self, rows: Ints) -> None:
        """Reorder batch elements: r continues from `rows[r]`."""
        self.rows.reorder(rows)


@dataclass(frozen=True, kw_only=True)
class StepGraphs:
    """The step of a package with its encoder, ready to run, and their inputs."""

    facts: GenerationFacts
    input_signature: ModelInputs
    encode: Session | None
    step: Session
    graph: Graph


class KVCacheStepper:
    """Runs a decoder-with-past: new tokens in, logits out, states carried."""

    def __init__(
        self,
        facts: GenerationFacts,
        input_signature: ModelInputs,
        encode: Session | None,
        step: Session,
        graph: Graph,
        prepared: Arrays,
        chunk_size: int = PREFILL_CHUNK_SIZE,
    ) -> None:
        self.facts, self.input_signature, self.run, self.graph = facts, input_signature, step, graph
        self.chunk_size = chunk_size
        self.rows = PerTokenInputs.of(input_signature, prepared)
        self.started = False
        self.batch = input_signature.batch
        growing = prepared[input_signature.growing]
        made: DeviceTensors = {}
        if encode is not None:
            # no token was fed yet
            known = {**prepared, input_signature.growing: growing[:, :0]}
            made = encode.run_on_device({name: known[name] for name in encode.inputs})
        env = infer_lengths(input_signature.graph, prepared)
        self.static_inputs, self.states = first_states(facts, step, made, prepared, env)
        self.first = (
            _select_newest(made[facts.first_output].numpy()) if facts.first_output else None
        )
        self.results: dict[str, Array] = {}
        self.buffers = tuple(s for s in facts.states if s.name in facts.in_place_states)
        self.past = 0
        # values that are bound once, as long as they do not change
        self.bound_run: BoundRun | None = None
        self.bound_values: tuple[DeviceTensor, ...] = ()

    def step(self, tokens: Ints) -> Floats:
        """Feed tokens i64[batch n] → logits f32[batch vocab]; with n = 0, the initial logits."""
        begins = None if self.started else self.first
        if begins is not None and not tokens.shape[1]:
            self.started = True
            return begins
        if self.buffers and self.past and min(tokens.shape) > 1:
            # the kernel takes several positions at once only at the start, or for a single sequence
            return [self.step(tokens[:, n : n + 1]) for n in range(tokens.shape[1])][-1]
        if self.started:
            self.rows.extend(tokens)
        self.started = True
        if self.buffers:
            self._make_room(tokens.shape[1])
        # and so a batch that begins is read at once
        size = 0 if self.buffers and len(tokens) > 1 else self.chunk_size
        for rows in split_new_positions(self.rows, size):
            self._step_rows(rows)
        made = _select_newest(self.results[self.facts.generation.source])
        return made if begins is None else _prefill(made, begins, self.rows.empty)

    def _step_rows(self, rows: PerTokenInputs) -> None:
        """Run the step on the new positions of `rows`."""
        results = self._run_step(self._given(rows))
        self.past += rows.count
        after = {s.name: results.pop(s.next_output) for s in self.facts.states}
        # the buffer is the same memory: the runtime does not own it, so its returned array must not
        # replace it
        buffers = {s.name: self.states[s.name] for s in self.buffers}
        self.states = {**after, **buffers}
        # copied: the next step writes to the same location
        self.results = {name: np.array(v.numpy()) for name, v in results.items()}

    def _run_step(self, given: Mapping[str, Array | DeviceTensor]) -> DeviceTensors:
        """Run the step on these inputs and the states."""
        if not self.buffers:
            return self.run.run_on_device({**given, **self.static_inputs, **self.states})
        bound = {**self.static_inputs, **{s.name: self.states[s.name] for s in self.buffers}}
        moving = {n: v for n, v in self.states.items() if n not in bound}
        # batch elements may have been selected, and buffers have grown, since it was bound
        same = all(a is b for a, b in zip(bound.values(), self.bound_values, strict=False))
        if self.bound_run is None or not same:
            into = {s.next_output: self.states[s.name] for s in self.buffers}
            rows = len(self.rows.tokens)
            self.bound_run = self.run.bind(bound, {**into, **self._allocate_places(rows)})
            self.bound_values = (*bound.values(),)
        return self.bound_run.run({**given, **moving})

    def _allocate_places(self, rows: int) -> DeviceTensors:
        """Preallocate the outputs whose shape is the same at every step."""
        states = {s.next_output for s in self.facts.states}
        fixed: DeviceTensors = {}
        for name, value in self.graph.outputs.items():
            sizes = [rows if d == self.batch else d.number for d in value.type.shape]
            lengths = [n for n in sizes if n is not None]
            if name not in states and len(lengths) == len(sizes):
                empty = np.zeros(lengths, NUMPY_DTYPES[value.type.dtype])
                fixed[name] = self.run.copy_to_device(empty)
        return fixed

    def _given(self, rows: PerTokenInputs) -> dict[str, Array | DeviceTensor]:
        """Return the inputs other than states: the new tokens, and of inputs along the time axis
        the new positions, or all if the step reads all of them (a padding mask).
        """
        first = rows.tokens.shape[1] - rows.count
        given: dict[str, Array | DeviceTensor] = {
            self.input_signature.growing: rows.tokens[:, first:]
        }
        for name, every in rows.given.items():
            if name in self.run.inputs:
                whole = name in self.facts.whole
                given[name] = every if whole else rows.newest(name)
        if self.buffers:
            given[PAST_LENGTH_INPUT] = np.array(self.past, np.int64)
        return given

    def _make_room(self, count: int) -> None:
        """Grow the KV buffers for `count` more time steps, at least doubling their length."""
        wanted = self.past + count
        # all are as long as the first
        if self.states[self.buffers[0].name].shape()[2] >= wanted:
            return
        for state in self.buffers:
            old = self.states[state.name]
            shape = old.shape()
            length = max(shape[2], MIN_BUFFER_ROWS)
            while length < wanted + (0 if self.past else MIN_FREE_ROWS):
                length *= 2
            # positions after the filled ones are never read, but may not be NaN
            sizes = (*shape[:2], length - shape[2], shape[3])
            more = self.run.copy_to_device(np.zeros(sizes, NUMPY_DTYPES[state.type.dtype]))
            grown = self.run.concat([old, more], 2) if shape[2] else more
            self.states[state.name] = grown

    def reorder(self, rows: Ints) -> None:
        """Reorder batch elements: r continues from `rows[r]`, KV cache included."""
        self.rows.reorder(rows)
        axes = {s.name: s.batch_axis for s in self.facts.states}
        self.states = {n: self._select_rows(v, axes[n], rows) for n, v in self.states.items()}
        for name, value in self.static_inputs.items():
            self.static_inputs[name] = self._select_rows(
                value, batch_axis(self.graph.inputs[name].type, self.batch), rows
            )

    def _select_rows(self, value: DeviceTensor, axis: int | None, rows: Ints) -> DeviceTensor:
        if axis is None:
            return value
        if value.shape()[axis] == len(rows) and np.array_equal(rows, np.arange(len(rows))):
            return value
        return self.run.gather(value, axis, rows)


def first_states(
    facts: GenerationFacts,
    step: Session,
    made: Mapping[str, DeviceTensor],
    given: Arrays,
    lengths: Mapping[str, int],
) -> tuple[DeviceTensors, DeviceTensors]:
    """Return what every step reads of `encode` (`made`) or the caller, and the first states."""
    static_inputs = {
        n: made[n] if n in made else step.copy_to_device(given[n]) for n in facts.static_inputs
    }
    states: DeviceTensors = {}
    for state in facts.states:
        if state.initial_output:
            states[state.name] = made[state.initial_output]
            continue
        # zeros, with length 0 along the time axis
        shape = [
            d.evaluate(lengths) if n != state.time_axis else 0
            for n, d in enumerate(state.type.shape)
        ]
        states[state.name] = step.copy_to_device(np.zeros(shape, NUMPY_DTYPES[state.type.dtype]))
    return static_inputs, states


def _select_newest(logits: Array) -> Floats:
    """Return the last logits f32[batch vocab] of f32[batch n vocab], or of an output with the last
    position only.
    """
    made: Floats = logits if logits.ndim == 2 else logits[:, -1]
    return made


def _prefill(logits: Floats, first: Floats, empty: Bools) -> Floats:
    """Return logits f32[rows vocab] after prompts; `first` for rows with an empty prompt."""
    made: Floats = np.where(empty[:, None], first, logits)
    return made


def infer_lengths(graph: Graph, prepared: Arrays) -> dict[str, int]:
    """Infer the lengths that appear alone in the shapes of inputs."""
    return {
        d.name: size
        for name, value in graph.inputs.items()
        if name in prepared
        for d, size in zip(value.type.shape, np.shape(prepared[name]), strict=True)
        if d.name
    }


@dataclass(frozen=True)
class BufferedStep:
    """`inner` runs the model, `graph` is what it was made from."""

    inner: Computation
    graph: Graph
    facts: GenerationFacts

    @property
    def outputs(self) -> Mapping[str, TensorSlot]:
        """The outputs, as of any session."""
        return self.inner.outputs

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs; several time steps of several sequences run one after another."""
        states = {s.name: inputs[s.name] for s in self.facts.states}
        past = states[self.facts.in_place_states[0]].shape[2]
        rows, count = inputs[self.facts.generation.growing].shape
        # The kernel takes several positions of several sequences only at the start.
        size = 1 if past and rows > 1 else max(count, 1)
        others = {n: v for n, v in inputs.items() if n not in states}
        made: list[dict[str, Array]] = []
        # Once even without new positions: a step without positions has results.
        for start in range(0, max(count, 1), size):
            stop = min(start + size, count)
            given = {n: self._run_piece(n, v, past, start, stop) for n, v in others.items()}
            made.append(self._run_once({**given, **states}, past + start, stop - start))
            states = {s.name: made[-1][s.next_output] for s in self.facts.states}
        return {name: self._join_rows(name, [m[name] for m in made]) for name in made[-1]}

    def _run_once(self, given: dict[str, Array], past: int, count: int) -> dict[str, Array]:
        """Run one call with buffers just long enough for past and new positions."""
        for name in self.facts.in_place_states:
            old = given[name]
            batch, heads, _, width = old.shape
            given[name] = np.zeros((batch, heads, past + count, width), old.dtype)
            given[name][:, :, :past] = old
        return self.inner.run({**given, PAST_LENGTH_INPUT: np.array(past, np.int64)})

    def _run_piece(self, name: str, value: Array, past: int, start: int, stop: int) -> Array:
        """Return the slice of an input for some of the new positions."""
        if name in self.facts.whole:
            return value[:, : past + stop]
        axis = self._get_new_axis(self.graph.inputs[name].type.shape)
        return value if axis is None else np.take(value, np.arange(start, stop), axis)

    def _join_rows(self, name: str, parts: list[Array]) -> Array:
        # Outputs other than logits are those of the last positions.
        known = self.graph.outputs.get(name)
        axis = self._get_new_axis(known.type.shape) if known else None
        if axis is None or len(parts) == 1:
            return parts[-1]
        return np.concatenate(parts, axis)

    def _get_new_axis(self, shape: tuple[Dim, ...]) -> int | None:
        """Return the axis of the new positions."""
        new = self.graph.inputs[self.facts.generation.growing].type.shape[1]
        return next((n for n, d in enumerate(shape) if d == new), None)

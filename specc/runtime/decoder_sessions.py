"""Decoder sessions map token ids to logits, with a KV cache or with full forward passes."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from specc.artifact.generation_metadata import GenerationMetadata
from specc.backend import DeviceTensor, DeviceTensors, Executable, IOBindingSession, Session
from specc.decode.setting_names_and_limits import PREFILL_CHUNK_SIZE
from specc.decode.token_selection import Bools, Floats, Ints
from specc.ir.array import Array, Arrays
from specc.ir.graph import Graph
from specc.ir.model_definition import PAST_LENGTH_INPUT
from specc.runtime.model_inputs import (
    ModelInputs,
    PerTokenInputs,
    find_axis_of_length,
    split_prefill_chunks,
)

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
"""NumPy dtypes of decode states and prompts, keyed by element type."""
MIN_BUFFER_POSITIONS = 64
"""Minimum capacity of a KV buffer in positions. Every capacity is a multiple of this minimum."""
MIN_FREE_POSITIONS = 32
"""Minimum number of free positions after the prompt in a new KV buffer."""
PROMPT_TO_FREE_RATIO = 4
"""Number of prompt positions per free position in a new KV buffer. The value 4 corresponds to a
capacity of 1.25 × the prompt length."""


class FullForwardSession:
    """A decoder session without a KV cache. Each step runs a full forward pass over all tokens."""

    def __init__(
        self, session: Executable, input_signature: ModelInputs, logits_output: str, inputs: Arrays
    ) -> None:
        self.session, self.logits_output = session, logits_output
        self.input_signature = input_signature
        self.inputs = PerTokenInputs.from_prompt(input_signature, inputs)
        self.is_started = False
        self.results: dict[str, Array] = {}

    def step(self, tokens: Ints) -> Floats:
        """Append `tokens` int64 [batch, n, …], run a full forward pass, and return the logits."""
        if self.is_started:
            self.inputs.append_tokens(tokens)
        is_first, self.is_started = not self.is_started, True
        self.results = self.session.run(
            {
                **self.inputs.constant_inputs,
                **self.inputs.arrays,
                self.input_signature.sequence_input: self.inputs.tokens,
            }
        )
        logits = self.results[self.logits_output]
        token_count = self.inputs.tokens.shape[1]
        # the first token of a sequence is sampled from the logits at the position before it
        if is_first and logits.ndim > 2 and logits.shape[1] > token_count:
            return _choose_prompt_logits(
                _select_last(logits), logits[:, -1 - token_count], self.inputs.is_all_padding
            )
        return _select_last(logits)

    def reorder(self, indices: Ints) -> None:
        """Reorder the batch elements: new element i is old element `indices[i]`."""
        self.inputs.reorder(indices)


@dataclass(frozen=True, kw_only=True)
class StepSessions:
    """The step and encoder sessions of a package, the step `graph`, and the model inputs."""

    metadata: GenerationMetadata
    input_signature: ModelInputs
    encoder_session: Session | None
    step_session: Session
    graph: Graph

    def run_encoder(
        self, inputs: Arrays, lengths: Mapping[str, int]
    ) -> tuple[DeviceTensors, DeviceTensors, DeviceTensors]:
        """Run the encoder on inputs without time steps. Return the encoder outputs, the
        loop-invariant inputs of the step (encoder outputs or `inputs`) and the initial states.
        """
        encoder, step = self.encoder_session, self.step_session
        outputs: DeviceTensors = {}
        if encoder is not None:
            outputs = encoder.run_on_device({name: inputs[name] for name in encoder.inputs})
        loop_invariant_inputs = {
            n: outputs[n] if n in outputs else step.copy_to_device(inputs[n])
            for n in self.metadata.loop_invariant_inputs
        }
        states: DeviceTensors = {}
        for state in self.metadata.states:
            if state.initial_output:
                states[state.name] = outputs[state.initial_output]
                continue
            # a state that no encoder output initializes is empty along its time axis, or zero if it
            # has none
            shape = [
                d.evaluate(lengths) if n != state.time_axis else 0
                for n, d in enumerate(state.type.shape)
            ]
            zeros = np.zeros(shape, NUMPY_DTYPES[state.type.dtype])
            states[state.name] = step.copy_to_device(zeros)
        return outputs, loop_invariant_inputs, states


class KVCacheSession:
    """A decoder-with-past session, which maps new tokens to logits and keeps the KV cache."""

    def __init__(
        self, graphs: StepSessions, inputs: Arrays, chunk_size: int = PREFILL_CHUNK_SIZE
    ) -> None:
        metadata, input_signature = graphs.metadata, graphs.input_signature
        self.metadata, self.input_signature = metadata, input_signature
        self.session, self.graph = graphs.step_session, graphs.graph
        self.chunk_size = chunk_size
        self.inputs = PerTokenInputs.from_prompt(input_signature, inputs)
        self.is_started = False
        self.batch_size = input_signature.batch_size
        sequence_input = input_signature.sequence_input
        # the encoder runs before any token is processed
        encoder_outputs, self.loop_invariant_inputs, self.states = graphs.run_encoder(
            {**inputs, sequence_input: inputs[sequence_input][:, :0]},
            infer_dim_sizes(input_signature.graph, inputs),
        )
        first = metadata.first_token_logits
        self.initial_logits = _select_last(encoder_outputs[first].numpy()) if first else None
        self.results: dict[str, Array] = {}
        names = metadata.in_place_states
        self.buffers = tuple(s for s in metadata.states if s.name in names)
        self.other_states = tuple(s for s in metadata.states if s.name not in names)
        self.state_outputs = frozenset(s.next_output for s in metadata.states)
        self.past_length = 0
        self.bound_session: IOBindingSession | None = None
        self.bound_mappings: tuple[DeviceTensors, ...] = ()

    def step(self, tokens: Ints) -> Floats:
        """Run the step on new tokens, int64 [batch, n, …]. Return logits float32 [batch, …, vocab].
        If n is 0, return the logits for an empty prompt.
        """
        initial_logits = None if self.is_started else self.initial_logits
        if initial_logits is not None and not tokens.shape[1]:
            self.is_started = True
            return initial_logits
        if self.buffers and self.past_length and min(tokens.shape[:2]) > 1:
            # the attention kernel accepts several positions per call only in the first step, or for
            # a single sequence
            return [self.step(tokens[:, n : n + 1]) for n in range(tokens.shape[1])][-1]
        slice_size = _choose_slice_size(self, tokens)
        if slice_size < len(tokens):
            return _prefill_batch_slices(self, tokens, slice_size)
        if self.is_started:
            self.inputs.append_tokens(tokens)
        self.is_started = True
        if self.buffers:
            self._grow_buffers(tokens.shape[1])
        chunk_size = 0 if self.buffers and len(tokens) > 1 else self.chunk_size
        for chunk in split_prefill_chunks(self.inputs, chunk_size):
            self._run_chunk(chunk)
        logits = _select_last(self.results[self.metadata.generation.logits_output])
        if initial_logits is None:
            return logits
        return _choose_prompt_logits(logits, initial_logits, self.inputs.is_all_padding)

    def _run_chunk(self, chunk: PerTokenInputs) -> None:
        """Run the step on the new positions in `chunk`, and update the states and `results`."""
        results = self._run_step(self._collect_inputs(chunk))
        self.past_length += chunk.new_position_count
        # do not replace a KV buffer with the output that aliases it, because the output does not
        # own its memory
        for state in self.other_states:
            self.states[state.name] = results[state.next_output]
        # copy the outputs, because the next step reuses their memory
        self.results = {
            name: np.array(value.numpy())
            for name, value in results.items()
            if name not in self.state_outputs
        }

    def _run_step(self, inputs: Mapping[str, Array | DeviceTensor]) -> DeviceTensors:
        """Run the step on `inputs` and the current states."""
        if not self.buffers:
            loop_invariant_inputs = self.loop_invariant_inputs
            return self.session.run_on_device({**inputs, **loop_invariant_inputs, **self.states})
        # compare the dictionaries by identity, because `reorder` replaces both dictionaries
        mappings = (self.loop_invariant_inputs, self.states)
        is_bound = all(a is b for a, b in zip(mappings, self.bound_mappings, strict=False))
        if self.bound_session is None or not is_bound:
            buffers = {s.name: self.states[s.name] for s in self.buffers}
            bound_outputs = {s.next_output: self.states[s.name] for s in self.buffers}
            outputs = {**bound_outputs, **_allocate_outputs(self, len(self.inputs.tokens))}
            self.bound_session = self.session.bind(
                {**self.loop_invariant_inputs, **buffers}, outputs
            )
            self.bound_mappings = mappings
        other_states = {s.name: self.states[s.name] for s in self.other_states}
        return self.bound_session.run({**inputs, **other_states})

    def _collect_inputs(self, chunk: PerTokenInputs) -> dict[str, Array | DeviceTensor]:
        """Return the inputs other than states: the new tokens, and the new positions of inputs with
        a time axis. If the step uses all positions of an input (e.g. of a padding mask), return all
        its positions.
        """
        first = chunk.tokens.shape[1] - chunk.new_position_count
        inputs: dict[str, Array | DeviceTensor] = {
            self.input_signature.sequence_input: chunk.tokens[:, first:]
        }
        for name, value in chunk.arrays.items():
            if name in self.session.inputs:
                reads_all = name in self.metadata.full_inputs
                inputs[name] = value if reads_all else chunk.get_new_positions(name)
        if self.buffers:
            inputs[PAST_LENGTH_INPUT] = np.array(self.past_length, np.int64)
        return inputs

    def _grow_buffers(self, count: int) -> None:
        """Grow the KV buffers if they have fewer than `count` free positions."""
        min_length = self.past_length + count
        # all buffers have the same capacity
        capacity = self.states[self.buffers[0].name].shape()[2]
        if capacity >= min_length:
            return
        new_capacity = _choose_buffer_length(min_length, capacity)
        self.bound_session = None
        for state in self.buffers:
            buffer = self.states[state.name]
            shape = buffer.shape()
            # unused positions are masked out, but must not contain NaN
            sizes = (*shape[:2], new_capacity - shape[2], shape[3])
            zeros = self.session.copy_to_device(np.zeros(sizes, NUMPY_DTYPES[state.type.dtype]))
            self.states[state.name] = self.session.concat([buffer, zeros], 2) if shape[2] else zeros

    def reorder(self, indices: Ints) -> None:
        """Reorder batch elements and their KV cache: new element i is old element `indices[i]`."""
        self.inputs.reorder(indices)
        self.bound_session = None
        axes = {s.name: s.batch_axis for s in self.metadata.states}
        self.states = {n: self._gather_tensor(v, axes[n], indices) for n, v in self.states.items()}
        for name, value in self.loop_invariant_inputs.items():
            self.loop_invariant_inputs[name] = self._gather_tensor(
                value, find_axis_of_length(self.graph.inputs[name].type, self.batch_size), indices
            )

    def _gather_tensor(self, value: DeviceTensor, axis: int | None, indices: Ints) -> DeviceTensor:
        if axis is None:
            return value
        if value.shape()[axis] == len(indices) and np.array_equal(indices, np.arange(len(indices))):
            return value
        return self.session.gather(value, axis, indices)


def _choose_slice_size(session: KVCacheSession, tokens: Ints) -> int:
    """Return the number of sequences to prefill together. One call processes at most `chunk_size`
    tokens, or a single longer sequence. Only the first step with in-place buffers is split into
    groups of sequences, because the kernel cannot append a chunk to the non-empty caches of several
    sequences.
    """
    if not session.buffers or session.is_started or not session.chunk_size or not tokens.size:
        return len(tokens)
    return max(session.chunk_size // int(tokens[0].size), 1)


def _prefill_batch_slices(session: KVCacheSession, tokens: Ints, slice_size: int) -> Floats:
    """Prefill `slice_size` sequences at a time, and concatenate the states and results."""
    slices = [
        _select_elements(session, np.arange(len(tokens))[start : start + slice_size])
        for start in range(0, len(tokens), slice_size)
    ]
    logits = np.concatenate([part.step(part.inputs.tokens) for part in slices])
    session.is_started, session.past_length = True, slices[0].past_length
    # release the states of the slices one by one, so that at most one state is in memory twice
    for part in slices:
        part.bound_session, part.bound_mappings = None, ()
    for state in session.metadata.states:
        tensors = [part.states.pop(state.name) for part in slices]
        axis = state.batch_axis
        session.states[state.name] = (
            tensors[0] if axis is None else session.session.concat(tensors, axis)
        )
    for name in slices[0].results:
        axis = find_axis_of_length(session.graph.outputs[name].type, session.batch_size)
        arrays = [part.results[name] for part in slices]
        session.results[name] = arrays[0] if axis is None else np.concatenate(arrays, axis)
    return logits


def _select_elements(session: KVCacheSession, indices: Ints) -> KVCacheSession:
    """Copy batch elements of a session that has not run a step to a new session."""
    selected = copy(session)
    selected.inputs = replace(
        session.inputs,
        arrays={**session.inputs.arrays},
        constant_inputs={**session.inputs.constant_inputs},
    )
    selected.loop_invariant_inputs = {**session.loop_invariant_inputs}
    if session.initial_logits is not None:
        selected.initial_logits = session.initial_logits[indices]
    selected.reorder(indices)
    return selected


def _choose_buffer_length(min_length: int, former_length: int) -> int:
    """Return the capacity of a KV buffer for `min_length` positions. The first capacity is about
    1.25 × the prompt length. Later capacities are at least twice the previous capacity
    `former_length`.
    """
    if former_length:
        length = max(min_length, 2 * former_length)
    else:
        length = min_length + max(min_length // PROMPT_TO_FREE_RATIO, MIN_FREE_POSITIONS)
    return length + -length % MIN_BUFFER_POSITIONS


def _allocate_outputs(session: KVCacheSession, batch_size: int) -> DeviceTensors:
    """Preallocate the outputs that have the same shape at every step."""
    outputs: DeviceTensors = {}
    for name, value in session.graph.outputs.items():
        shape = value.shape
        sizes = [batch_size if d == session.batch_size else d.number for d in shape]
        static_sizes = [n for n in sizes if n is not None]
        if name not in session.state_outputs and len(static_sizes) == len(sizes):
            zeros = np.zeros(static_sizes, NUMPY_DTYPES[value.dtype])
            outputs[name] = session.session.copy_to_device(zeros)
    return outputs


def _select_last(logits: Array) -> Floats:
    """Return the last position of logits that are [batch, n, …, vocab] or [batch, vocab]."""
    last_logits: Floats = logits if logits.ndim == 2 else logits[:, -1]
    return last_logits


def _choose_prompt_logits(logits: Floats, initial_logits: Floats, is_empty: Bools) -> Floats:
    """Return the logits after each prompt, [batch, …, vocab], or `initial_logits` for an empty
    prompt.
    """
    is_initial = is_empty.reshape(-1, *[1] * (logits.ndim - 1))
    prompt_logits: Floats = np.where(is_initial, initial_logits, logits)
    return prompt_logits


def infer_dim_sizes(graph: Graph, inputs: Arrays) -> dict[str, int]:
    """Infer the sizes of symbolic dimensions from the shapes of the inputs. A dimension that occurs
    only in expressions such as `n + 1` is omitted.
    """
    return {
        d.name: size
        for name, value in graph.inputs.items()
        if name in inputs
        for d, size in zip(value.shape, np.shape(inputs[name]), strict=True)
        if d.name
    }

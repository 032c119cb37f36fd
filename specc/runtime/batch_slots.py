"""Merge sequences of different lengths into one decode batch: pad and stack their states."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specc.backend import DeviceTensors
from specc.decode.token_selection import Ints
from specc.ir.array import Array, Arrays
from specc.ir.graph import Graph, Value
from specc.ir.model_definition import DecodeState
from specc.ir.types import Type
from specc.preprocessing.text_batches_and_windows import find_mask_input
from specc.runtime.decoder_sessions import MIN_BUFFER_POSITIONS, KVCacheSession
from specc.runtime.model_inputs import ModelInputs, find_axis_of_length

MIN_FREE_POSITIONS = 16
"""Minimum number of free positions in a newly allocated KV buffer."""


@dataclass(frozen=True, slots=True)
class ActiveSequences:
    """The sequences of one decoder session that remain in the batch. `batch_indices` is int64
    [kept].
    """

    session: KVCacheSession
    batch_indices: Ints

    @property
    def padded_length(self) -> int:
        """Return the number of positions per sequence in the session, including padding."""
        return int(self.session.inputs.tokens.shape[1])


def count_initial_padding_positions(states: Sequence[DecodeState]) -> int:
    """Return the number of initial padding positions per sequence: 1 if a state has a time axis,
    else 0.
    """
    return int(any(state.time_axis is not None for state in states))


def prepend_padding_positions(
    input_signature: ModelInputs, prepared: Arrays, count: int
) -> dict[str, Array]:
    """Left-pad the tokens and the padding mask of a prompt with `count` padding positions."""
    names = {input_signature.sequence_input, input_signature.mask_input} if count else set()
    return {n: np.pad(v, ((0, 0), (count, 0))) if n in names else v for n, v in prepared.items()}


def stack_prompts(input_signature: ModelInputs, prompts: Sequence[Arrays]) -> dict[str, Array]:
    """Pad the prepared inputs of several prompts to equal sizes, and stack them into a batch."""
    stacked = {}
    for name in prompts[0]:
        type = input_signature.graph.inputs[name].type
        arrays = [np.asarray(prompt[name]) for prompt in prompts]
        axis = find_axis_of_length(type, input_signature.batch_size)
        stacked[name] = concat_padded(arrays, axis, find_left_padded_axes(input_signature, type))
    return stacked


def make_batching_key(input_signature: ModelInputs, prepared: Arrays) -> tuple[object, ...]:
    """Return the input names and unpadded axis sizes, which must be equal for all prompts of a
    batch.
    """
    graph = input_signature.graph
    masked_symbols = _collect_symbols_after_batch_axis(
        value for name, value in graph.inputs.items() if find_mask_input(graph, name)
    )
    names_and_sizes: list[object] = [*sorted(prepared)]
    for name, array in sorted(prepared.items()):
        sizes = zip(graph.inputs[name].shape, array.shape, strict=True)
        names_and_sizes += [size for d, size in sizes if not d.symbols() & masked_symbols]
    return tuple(names_and_sizes)


def merge_batches(
    session: KVCacheSession,
    kept_indices: Ints,
    added_session: KVCacheSession | None,
    added_indices: Ints,
) -> None:
    """Keep the sequences `kept_indices` of `session`, and append the sequences `added_indices` of
    `added_session`. Remove positions that are padding in all sequences.
    """
    parts = [ActiveSequences(session, kept_indices)]
    if added_session is not None and len(added_indices):
        parts.append(ActiveSequences(added_session, added_indices))
    # the merged batch is as long as its longest sequence, plus the initial padding
    padded_length = max(map(_count_positions, parts))
    padded_length += count_initial_padding_positions(session.metadata.states)
    merged = _MergedBatch(session, parts, padded_length)
    states, invariant_inputs = merged.merge_states(), merged.merge_loop_invariant_inputs()
    constant_inputs = merged.merge_constant_inputs()
    session.inputs.arrays, session.inputs.tokens = merged.merge_time_axis_inputs()
    session.inputs.constant_inputs, session.past_length = constant_inputs, padded_length
    session.states, session.loop_invariant_inputs = states, invariant_inputs


@dataclass(frozen=True)
class _MergedBatch:
    """The sequences of several sessions, merged into one batch of `target_session`."""

    target_session: KVCacheSession
    parts: Sequence[ActiveSequences]
    padded_length: int

    def merge_states(self) -> DeviceTensors:
        """Return the merged decode states of all sequences."""
        copy_to_device = self.target_session.session.copy_to_device
        states = self.target_session.metadata.states
        return {s.name: copy_to_device(self._join_state(s)) for s in states}

    def _join_state(self, state: DecodeState) -> Array:
        if state.batch_axis is None:  # a state without a batch axis is a position count
            return np.array(self.padded_length, np.int64)
        arrays = [p.session.session.copy_to_host(p.session.states[state.name]) for p in self.parts]
        if state.time_axis is None:
            return self._stack_elements(arrays, state.type, state.batch_axis)
        buffered = state.name in self.target_session.metadata.in_place_states
        prefixes, time_steps = [], []
        for part, array in zip(self.parts, arrays, strict=True):
            kept_length = int(min(state.max_positions, part.padded_length))
            # a KV buffer has free positions after the filled positions
            if buffered:
                array = array[:, :, :kept_length]
            elements = np.moveaxis(array, (state.batch_axis, state.time_axis), (0, 1))[
                part.batch_indices
            ]
            # prefix positions such as image embeddings precede the token positions
            prefix_length = elements.shape[1] - kept_length
            prefixes.append(elements[:, :prefix_length])
            time_steps.append(elements[:, prefix_length:])
        return self._stack_time_steps(state, prefixes, time_steps, buffered)

    def _stack_time_steps(
        self, state: DecodeState, prefixes: list[Array], time_steps: list[Array], buffered: bool
    ) -> Array:
        """Stack the prefix positions and time steps of all sequences into [batch, positions, …]."""
        assert state.batch_axis is not None, "all other states have a batch axis"
        assert state.time_axis is not None, "the state has a time axis"
        is_left_padded = state.time_axis in find_left_padded_axes(
            self.target_session.input_signature, state.type
        )
        prefix_length = max(h.shape[1] for h in prefixes)
        kept_length = int(min(state.max_positions, self.padded_length))
        length = _choose_buffer_length(kept_length) if buffered else prefix_length + kept_length
        axes, first = (state.batch_axis, state.time_axis), time_steps[0]
        count = sum(map(len, time_steps))
        # keep the axis order of the step graph to avoid a copy of the state in the runtime
        sizes = [*np.moveaxis(first, (0, 1), axes).shape]
        sizes[state.batch_axis], sizes[state.time_axis] = count, length
        state_array: Array = np.zeros(sizes, first.dtype)
        batch_first = np.moveaxis(state_array, axes, (0, 1))
        start = 0
        for prefix, steps in zip(prefixes, time_steps, strict=True):
            elements = batch_first[start : start + len(steps)]
            offset = prefix_length - prefix.shape[1] if is_left_padded else 0
            elements[:, offset : offset + prefix.shape[1]] = prefix
            step_count = min(steps.shape[1], kept_length)
            begin, end = prefix_length + kept_length - step_count, prefix_length + kept_length
            elements[:, begin:end] = steps[:, steps.shape[1] - step_count :]
            # the first position of each sequence is padding, so its state fills the added padding
            # positions
            if step_count < kept_length and step_count:
                elements[:, prefix_length:begin] = steps[:, :1]
            start += len(steps)
        return state_array

    def merge_loop_invariant_inputs(self) -> DeviceTensors:
        """Return the merged loop-invariant inputs, which come from the encoder or the caller."""
        target = self.target_session
        arrays = self._stack_inputs(
            target.metadata.loop_invariant_inputs,
            target.graph,
            lambda s, n: s.session.copy_to_host(s.loop_invariant_inputs[n]),
        )
        return {name: target.session.copy_to_device(array) for name, array in arrays.items()}

    def merge_constant_inputs(self) -> dict[str, Array]:
        """Return the merged inputs that the caller passed and that have no time axis."""
        target = self.target_session
        return self._stack_inputs(
            target.inputs.constant_inputs,
            target.input_signature.graph,
            lambda s, n: s.inputs.constant_inputs[n],
        )

    def _stack_inputs(
        self, names: Iterable[str], graph: Graph, read: Callable[[KVCacheSession, str], Array]
    ) -> dict[str, Array]:
        """Stack the inputs `names` of `graph`. `read` returns an input value of a session."""
        stacked = {}
        for name in names:
            type = graph.inputs[name].type
            arrays = [read(part.session, name) for part in self.parts]
            stacked[name] = self._stack_elements(
                arrays, type, find_axis_of_length(type, self.target_session.batch_size)
            )
        return stacked

    def merge_time_axis_inputs(self) -> tuple[dict[str, Array], Ints]:
        """Return the merged inputs with a time axis, and the merged tokens."""
        merged: dict[str, Array] = {}
        for name in self.target_session.inputs.arrays:
            parts = [part.session.inputs.arrays[name][part.batch_indices] for part in self.parts]
            merged[name] = np.concatenate([*map(self._right_align, parts)])
        tokens = [self._right_align(p.session.inputs.tokens[p.batch_indices]) for p in self.parts]
        return merged, np.concatenate(tokens)

    def _right_align(self, array: Array) -> Array:
        """Crop or left-pad an array [batch, positions] to the length of the merged batch."""
        length = min(array.shape[1], self.padded_length)
        aligned = np.zeros((len(array), self.padded_length), array.dtype)
        aligned[:, self.padded_length - length :] = array[:, array.shape[1] - length :]
        return aligned

    def _stack_elements(self, arrays: list[Array], type: Type, batch_axis: int | None) -> Array:
        """Select the sequences of each session that remain in the batch, and stack them along
        `batch_axis`. If `batch_axis` is None, return the largest array.
        """
        if batch_axis is not None:
            pairs = zip(arrays, self.parts, strict=True)
            arrays = [np.take(a, part.batch_indices, batch_axis) for a, part in pairs]
        return concat_padded(
            arrays, batch_axis, find_left_padded_axes(self.target_session.input_signature, type)
        )


def _count_positions(part: ActiveSequences) -> int:
    """Return the length of the longest sequence, counted from its first valid token."""
    positions = part.padded_length
    mask = part.session.inputs.arrays.get(part.session.input_signature.mask_input)
    if mask is None or not len(part.batch_indices):
        return positions
    is_token = mask[part.batch_indices]
    # `argmax` of booleans is the index of the first True, or 0 if all are False
    lengths = np.where(is_token.any(axis=1), positions - is_token.argmax(axis=1), 0)
    return int(lengths.max())


def _choose_buffer_length(positions: int) -> int:
    """Return the capacity to allocate for a KV buffer with `positions` used positions."""
    length = MIN_BUFFER_POSITIONS
    while length < positions + MIN_FREE_POSITIONS:
        length *= 2
    return length


def find_left_padded_axes(input_signature: ModelInputs, type: Type) -> tuple[int, ...]:
    """Return the axes of `type` whose dimensions are left-padded in a batch."""
    inputs = input_signature.graph.inputs
    left_padded_symbols = _collect_symbols_after_batch_axis(
        inputs[name] for name in filter(input_signature.is_left_padded, inputs)
    )
    return tuple(n for n, d in enumerate(type.shape) if d.symbols() & left_padded_symbols)


def _collect_symbols_after_batch_axis(values: Iterable[Value]) -> set[str]:
    return {symbol for v in values for d in v.shape[1:] for symbol in d.symbols()}


def concat_padded(
    arrays: Sequence[Array], batch_axis: int | None, left_padded_axes: Sequence[int]
) -> Array:
    """Zero-pad arrays to a common shape and concatenate them along the batch axis. The axes
    `left_padded_axes` are padded on the left. If `batch_axis` is None, return the largest array.
    """
    if batch_axis is None:
        return max(arrays, key=lambda a: a.size)
    sizes = [*map(max, zip(*(a.shape for a in arrays), strict=True))]
    padded = []
    for array in arrays:
        gaps = [size - length for size, length in zip(sizes, array.shape, strict=True)]
        # the batch axis is concatenated and requires no padding
        gaps[batch_axis] = 0
        sides = [(gap, 0) if n in left_padded_axes else (0, gap) for n, gap in enumerate(gaps)]
        padded.append(np.pad(array, sides) if any(gaps) else array)
    return np.concatenate(padded, batch_axis)

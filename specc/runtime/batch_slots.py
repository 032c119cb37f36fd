"""Slots of a decode batch: pad, stack and replace sequences of different lengths."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specc.backend import DeviceTensors
from specc.decode.token_choice import Ints
from specc.ir.array import Array, Arrays
from specc.ir.graph import Graph
from specc.ir.model import DecodeState
from specc.ir.types import Type
from specc.preprocessing.text_batches import find_mask_input
from specc.runtime.model_inputs import ModelInputs, batch_axis
from specc.runtime.steppers import MIN_BUFFER_ROWS, KVCacheStepper

MIN_SPARE_COLUMNS = 16
"""Minimum number of free columns after the sequence in a newly allocated buffer."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Sequences of a stepper that stay in the batch, i64[rows]."""

    stepper: KVCacheStepper
    rows: Ints

    @property
    def columns(self) -> int:
        """Number of tokens fed per sequence, padding included."""
        return int(self.stepper.rows.tokens.shape[1])


def spare_columns(states: Sequence[DecodeState]) -> int:
    """Return the number of masked columns before every sequence: 1 if states have time steps."""
    return int(any(state.time_axis is not None for state in states))


def prepend_spare_columns(
    input_signature: ModelInputs, prepared: Arrays, count: int
) -> dict[str, Array]:
    """Prepend `count` padding columns to the inputs of a prompt."""
    names = {input_signature.growing, input_signature.mask} if count else set()
    return {n: np.pad(v, ((0, 0), (count, 0))) if n in names else v for n, v in prepared.items()}


def stack_prompts(input_signature: ModelInputs, texts: Sequence[Arrays]) -> dict[str, Array]:
    """Return prepared inputs of several prompts as one batch, padded on the mask's side."""
    made = {}
    for name in texts[0]:
        type = input_signature.graph.inputs[name].type
        arrays = [np.asarray(text[name]) for text in texts]
        batch, left = (
            batch_axis(type, input_signature.batch),
            left_padded_axes(input_signature, type),
        )
        made[name] = stack_padded(arrays, batch, left)
    return made


def unpadded_lengths(input_signature: ModelInputs, prepared: Arrays) -> tuple[object, ...]:
    """Return the lengths that must agree within one batch: those without a padding mask."""
    graph = input_signature.graph
    kept = [value for name, value in graph.inputs.items() if find_mask_input(graph, name)]
    # all but the batch, which comes first
    lengths_of_rows = [d for value in kept for d in value.type.shape[1:]]
    padded = {symbol for d in lengths_of_rows for symbol in d.symbols()}
    found: list[object] = [*sorted(prepared)]
    for name, array in sorted(prepared.items()):
        lengths = zip(graph.inputs[name].type.shape, array.shape, strict=True)
        found += [size for d, size in lengths if not d.symbols() & padded]
    return tuple(found)


def merge_stepper_rows(
    stepper: KVCacheStepper, rows: Ints, other: KVCacheStepper | None, chosen: Ints
) -> None:
    """Continue `stepper` with its sequences `rows`, followed by the sequences `chosen` of `other`.
    Columns that no sequence uses any more are dropped.
    """
    parts = [BatchPart(stepper, rows)]
    if other is not None and len(chosen):
        parts.append(BatchPart(other, chosen))
    joint = _Joint.of(stepper, parts)
    states, static_inputs, once = joint.states(), joint.static_inputs(), joint.constant_inputs()
    stepper.rows.given, stepper.rows.tokens = joint.given()
    stepper.rows.once, stepper.past = once, joint.columns
    stepper.states, stepper.static_inputs = states, static_inputs


@dataclass(frozen=True)
class _Joint:
    """Parts that become one batch of `first`'s kind."""

    first: KVCacheStepper
    parts: tuple[BatchPart, ...]
    columns: int

    @staticmethod
    def of(first: KVCacheStepper, parts: Sequence[BatchPart]) -> "_Joint":
        """Build the joint batch with as many columns as the longest sequence has, plus the spare
        one.
        """
        oldest = max((map(_find_columns, parts)), default=0)
        return _Joint(first, tuple(parts), oldest + spare_columns(first.facts.states))

    def states(self) -> DeviceTensors:
        """Return the decode states of all sequences."""
        facts, tensor = self.first.facts, self.first.run.copy_to_device
        return {s.name: tensor(self._join_state(s)) for s in facts.states}

    def _join_state(self, state: DecodeState) -> Array:
        if state.batch_axis is None:  # the former number of columns
            return np.array(self.columns, np.int64)
        arrays = [p.stepper.run.copy_to_host(p.stepper.states[state.name]) for p in self.parts]
        if state.time_axis is None:
            return self._stacked(arrays, state.type, state.batch_axis)
        buffered = state.name in self.first.facts.in_place_states
        heads, made = [], []
        for part, array in zip(self.parts, arrays, strict=True):
            kept = int(min(state.max_positions, part.columns))
            # a buffer is longer than its filled part
            if buffered:
                array = array[:, :, :kept]
            rows = np.moveaxis(array, (state.batch_axis, state.time_axis), (0, 1))[part.rows]
            # before the columns are positions that every prompt has, such as those of an image
            split = rows.shape[1] - kept
            heads.append(rows[:, :split])
            made.append(rows[:, split:])
        return self._columns(state, heads, made, buffered)

    def _columns(
        self, state: DecodeState, heads: list[Array], made: list[Array], buffered: bool
    ) -> Array:
        """Return prefix and time steps of all sequences, [rows columns …], as one state."""
        assert state.batch_axis is not None, "each sequence has its own state"
        assert state.time_axis is not None, "columns have an axis"
        left = state.time_axis in left_padded_axes(self.first.input_signature, state.type)
        head = max(h.shape[1] for h in heads)
        kept = int(min(state.max_positions, self.columns))
        length = _allocate_length(kept) if buffered else head + kept
        axes, first = (state.batch_axis, state.time_axis), made[0]
        count = sum(map(len, made))
        # in the step's axis order, so that the runtime need not copy it
        sizes = [*np.moveaxis(first, (0, 1), axes).shape]
        sizes[state.batch_axis], sizes[state.time_axis] = count, length
        state_array: Array = np.zeros(sizes, first.dtype)
        whole = np.moveaxis(state_array, axes, (0, 1))
        start = 0
        for before, rows in zip(heads, made, strict=True):
            texts = whole[start : start + len(rows)]
            gap = head - before.shape[1] if left else 0
            texts[:, gap : gap + before.shape[1]] = before
            own = min(rows.shape[1], kept)
            begin, end = head + kept - own, head + kept
            texts[:, begin:end] = rows[:, rows.shape[1] - own :]
            # The margin is a padded column: copies of it fill the front.
            if own < kept and own:
                texts[:, head:begin] = rows[:, :1]
            start += len(rows)
        return state_array

    def static_inputs(self) -> DeviceTensors:
        """Return the merged outputs of `encode`, or those of the caller."""
        names, graph = self.first.facts.static_inputs, self.first.graph
        arrays = self._stack_inputs(
            names, graph, lambda s, n: s.run.copy_to_host(s.static_inputs[n])
        )
        return {name: self.first.run.copy_to_device(array) for name, array in arrays.items()}

    def constant_inputs(self) -> dict[str, Array]:
        """Return the caller's inputs without a time axis."""
        graph = self.first.input_signature.graph
        return self._stack_inputs(self.first.rows.once, graph, lambda s, n: s.rows.once[n])

    def _stack_inputs(
        self, names: Iterable[str], graph: Graph, read: Callable[[KVCacheStepper, str], Array]
    ) -> dict[str, Array]:
        """Stack inputs of `graph` that `read` returns for each part."""
        found = {}
        for name in names:
            type = graph.inputs[name].type
            arrays = [read(part.stepper, name) for part in self.parts]
            found[name] = self._stacked(arrays, type, batch_axis(type, self.first.batch))
        return found

    def given(self) -> tuple[dict[str, Array], Ints]:
        """Return the inputs with a time axis, and the tokens, without spare columns."""
        grown: dict[str, Array] = {}
        for name in self.first.rows.given:
            given = [part.stepper.rows.given[name][part.rows] for part in self.parts]
            grown[name] = np.concatenate([*map(self._align_states, given)])
        tokens = [self._align_states(p.stepper.rows.tokens[p.rows]) for p in self.parts]
        return grown, np.concatenate(tokens)

    def _align_states(self, value: Array) -> Array:
        """Right-align [batch columns] to the joint number of columns."""
        own = min(value.shape[1], self.columns)
        made = np.zeros((len(value), self.columns), value.dtype)
        made[:, self.columns - own :] = value[:, value.shape[1] - own :]
        return made

    def _stacked(self, arrays: list[Array], type: Type, batch: int | None) -> Array:
        """Stack the batch elements that stay of each part."""
        if batch is not None:
            pairs = zip(arrays, self.parts, strict=True)
            arrays = [np.take(a, part.rows, batch) for a, part in pairs]
        return stack_padded(arrays, batch, left_padded_axes(self.first.input_signature, type))


def _find_columns(part: BatchPart) -> int:
    """Return the columns of the longest sequence of a part, from its first real token."""
    columns = part.columns
    known = part.stepper.rows.given.get(part.stepper.input_signature.mask)
    if known is None or not len(part.rows):
        return columns
    exist = known[part.rows]
    # `argmax` of booleans is the first true one, and 0 if there is none
    ages = np.where(exist.any(axis=1), columns - exist.argmax(axis=1), 0)
    return int(ages.max())


def _allocate_length(columns: int) -> int:
    """Return the buffer length to allocate for so many columns."""
    length = MIN_BUFFER_ROWS
    while length < columns + MIN_SPARE_COLUMNS:
        length *= 2
    return length


def left_padded_axes(input_signature: ModelInputs, type: Type) -> tuple[int, ...]:
    """Return the axes of a value that are left-padded."""
    inputs = input_signature.graph.inputs
    names = filter(input_signature.pads_left, inputs)
    left = {s for name in names for d in inputs[name].type.shape[1:] for s in d.symbols()}
    return tuple(n for n, d in enumerate(type.shape) if d.symbols() & left)


def stack_padded(arrays: Sequence[Array], batch: int | None, left: Sequence[int]) -> Array:
    """Concatenate arrays along the batch; shorter ones are zero-padded, before along `left`."""
    sizes = [*map(max, zip(*(a.shape for a in arrays), strict=True))]
    if batch is None:
        return max(arrays, key=lambda a: a.size)
    made = []
    for array in arrays:
        gaps = [size - own for size, own in zip(sizes, array.shape, strict=True)]
        # batches are concatenated, however many elements each has
        gaps[batch] = 0
        sides = [(gap, 0) if n in left else (0, gap) for n, gap in enumerate(gaps)]
        made.append(np.pad(array, sides) if any(gaps) else array)
    return np.concatenate(made, batch)

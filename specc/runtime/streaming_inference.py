"""Streaming inference: process an input sequence in chunks as it arrives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import NoReturn, TypeAlias

import numpy as np

from specc.artifact.generation_metadata import ChunkConfig, compute_dim_upper_bound
from specc.artifact.manifest import RandomInitMetadata
from specc.backend import DeviceTensor, DeviceTensors
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_repr
from specc.io.safe_read import escape_text
from specc.ir.array import Array, Arrays
from specc.ir.graph import collect_shape_symbols
from specc.preprocessing.python_inputs import convert_to_array
from specc.runtime.decoder_sessions import NUMPY_DTYPES, StepSessions, infer_dim_sizes
from specc.runtime.generator import open_step_sessions
from specc.runtime.model_package import ModelPackage

Lengths: TypeAlias = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class StreamingModel(StepSessions):
    """A package with a streaming step graph. Call `start_stream` to start a stream."""

    chunk_config: ChunkConfig

    @property
    def random_init_metadata(self) -> RandomInitMetadata | None:
        """The seed of randomly initialized weights, or None if no weights were initialized."""
        return self.metadata.random_init_metadata

    @cached_property
    def time_axes(self) -> dict[str, int]:
        """The time axis index of each streamed input."""
        length = self.input_signature.sequence_length
        return {
            name: value.shape.index(length)
            for name, value in self.input_signature.graph.inputs.items()
            if length in value.shape
        }

    def run(self, inputs: Mapping[str, object], chunk_length: int = 0) -> dict[str, Array]:
        """Run the model on complete inputs, in chunks of `chunk_length` time steps. Raise E0976 if
        `chunk_length` is not a multiple of the chunk size.
        """
        size, time_axes = self.chunk_config.step_length, self.time_axes
        if chunk_length % size:
            next_multiple = (chunk_length // size + 1) * size
            hint = f"pass a multiple of {size}, as {next_multiple}"
            _raise_partial_chunk(self, chunk_length, hint)
        arrays = {n: convert_to_array(v, n) for n, v in inputs.items() if n in time_axes}
        stream = self.start_stream(**{n: v for n, v in inputs.items() if n not in time_axes})
        # If the rank of a value is too low, `push` raises an error with the input name.
        counts = [v.shape[time_axes[n]] for n, v in arrays.items() if v.ndim > time_axes[n]]
        count = max(counts, default=0)
        step_length = chunk_length or count
        results: list[dict[str, Array]] = []
        # An empty input is processed as one chunk and yields empty outputs.
        for start in range(0, max(count, 1), max(step_length, 1)):
            piece = {
                n: _slice_positions(v, time_axes[n], start, start + step_length)
                for n, v in arrays.items()
            }
            results.append(stream.push(last=start + step_length >= count, **piece))
        return {name: self._concatenate_pieces(name, results) for name in results[0]}

    def _concatenate_pieces(self, name: str, results: Sequence[Arrays]) -> Array:
        """Concatenate the pieces of an output along the time axis. If the output has no time axis,
        return the last piece.
        """
        sequence_type = self.graph.inputs[self.input_signature.sequence_input].type
        time_symbols = sequence_type.shape[1].symbols()
        shape = self.graph.outputs[name].shape
        axis = next((n for n, d in enumerate(shape) if d.symbols() & time_symbols), None)
        parts = [chunk_outputs[name] for chunk_outputs in results]
        return parts[-1] if axis is None else np.concatenate(parts, axis=axis)

    def make_empty_outputs(self, lengths: Lengths) -> dict[str, Array]:
        """Return empty outputs for a final piece that is shorter than a chunk."""
        states = {s.next_output for s in self.metadata.states}
        results: dict[str, Array] = {}
        for name, value in self.graph.outputs.items():
            if name not in states:
                env = {**dict.fromkeys(collect_shape_symbols([value]), 0), **lengths}
                shape = [length.evaluate(env) for length in value.shape]
                results[name] = np.zeros(shape, NUMPY_DTYPES[value.dtype])
        return results

    def start_stream(self, **constant_inputs: object) -> "InputStream":
        """Start a stream, given the inputs that have no time axis. Raise E0910 if a name is
        unknown.
        """
        inputs, time_axes = self.input_signature.graph.inputs, self.time_axes
        for name in constant_inputs:
            if name not in inputs:
                raise_error(
                    "E0910",
                    f"the model has no input `{escape_text(name)[:60]}`",
                    helps=[f"the inputs of the model are {', '.join(inputs)}"],
                )
            if name in time_axes:
                fix = f"pass it to `push({name}=…)`"
                raise_error("E0978", f"`{name}` must not be passed to `stream`", helps=[fix])
        return InputStream(model=self, constant_inputs=dict(constant_inputs))


@dataclass(kw_only=True)
class InputStream:
    """The state of a stream. `position_count` is the number of positions so far, and `has_ended` is
    true after the last chunk. `past_inputs` contains the past positions of the inputs that the
    step, or the default of an omitted input, uses in full. `lengths` are the sizes of all symbolic
    dimensions except the time axis, inferred from the first chunk. `states` are the states after
    the last step.
    """

    model: StreamingModel
    constant_inputs: dict[str, object]
    position_count: int = 0
    has_ended: bool = False
    past_inputs: Arrays = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    states: DeviceTensors = field(default_factory=dict)
    loop_invariant_inputs: DeviceTensors = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def __repr__(self) -> str:
        section, end = self.model.metadata.generation, ", ended" if self.has_ended else ""
        return format_repr(
            f"stream of {section.name}: {self.position_count} positions of "
            f"{section.sequence_input}{end}"
        )

    def push(self, *, last: bool = False, **inputs: object) -> dict[str, Array]:
        """Process the next piece of the inputs, and return the new positions of every output.
        Unless `last` is True, the number of positions in a piece must be a multiple of the chunk
        size.

        Raise E0976 if the length of a piece is not a multiple of the chunk size, E0979 if the full
        forward pass would compute outputs from the remainder at the end, E0978 if the stream has
        ended or an input is constant, E0943 if a position embedding is too short, and E09xx if an
        input is invalid.
        """
        # concurrent calls of `push` run one after the other
        with self.lock:
            return self._push_chunk(inputs, last=last)

    def _push_chunk(self, pieces: Mapping[str, object], *, last: bool) -> dict[str, Array]:
        if self.has_ended:
            title = "this stream has ended"
            raise_error("E0978", title, helps=["start a new stream: `model.stream()`"])
        inputs, past_inputs, lengths = self._check_chunk(pieces)
        count = inputs[self.model.input_signature.sequence_input].shape[1]
        size = self.model.chunk_config.step_length
        chunked_count = count - count % size
        end = self.position_count + chunked_count
        if last:
            _check_end(self.model, (end, self.position_count + count), lengths)
        elif not count or count % size:
            _raise_partial_chunk(self.model, count)
        _check_context(self.model, end, lengths)
        # all checks are before this line: an invalid piece does not change the stream
        self.lengths = lengths
        results = self._run_step(inputs, chunked_count)
        self.position_count, self.has_ended, self.past_inputs = end, last, past_inputs
        return results

    def _check_chunk(self, pieces: Mapping[str, object]) -> tuple[Arrays, Arrays, Lengths]:
        """Return checked arrays for every input (only the new positions, unless the step uses all
        positions), the positions to keep, and the sizes of all symbolic dimensions except the time
        axis.
        """
        time_axes, input_signature = self.model.time_axes, self.model.input_signature
        for name in pieces:
            if name in input_signature.graph.inputs and name not in time_axes:
                fix = f"pass it at the start: `model.stream({name}=…)`"
                raise_error("E0978", f"`{name}` is constant during a stream", helps=[fix])
        # the default of an omitted input may depend on all positions so far
        if time_axes.keys() - pieces.keys() - {*self.model.chunk_config.per_step_inputs}:
            return self._check_chunk_with_past(pieces)
        prepared = input_signature.prepare({**self.constant_inputs, **pieces})
        lengths = self._infer_fixed_lengths(prepared)
        names = self.model.metadata.full_inputs
        past_inputs = {name: self._append_positions(name, prepared[name]) for name in names}
        return {**prepared, **past_inputs}, past_inputs, lengths

    def _check_chunk_with_past(
        self, pieces: Mapping[str, object]
    ) -> tuple[Arrays, Arrays, Lengths]:
        """Return the results of `_check_chunk` if a default may depend on past positions."""
        time_axes, fully_read = self.model.time_axes, {*self.model.metadata.full_inputs}
        new_positions = {n: convert_to_array(v, n) for n, v in pieces.items() if n in time_axes}
        all_positions = {n: self._append_positions(n, v) for n, v in new_positions.items()}
        prepared = self.model.input_signature.prepare(
            {**self.constant_inputs, **pieces, **all_positions}
        )
        chunk = {**prepared}
        for name in time_axes.keys() & prepared.keys() - fully_read:
            value, axis = prepared[name], time_axes[name]
            chunk[name] = _slice_positions(value, axis, self.position_count, value.shape[axis])
        past_inputs = {n: prepared[n] for n in all_positions if n in prepared}
        return chunk, past_inputs, self._infer_fixed_lengths(prepared)

    def _append_positions(self, name: str, new_positions: Array) -> Array:
        """Append new positions of an input to its past positions. Raise E0912 if their shapes do
        not match.
        """
        past = self.past_inputs.get(name)
        if past is None:
            return new_positions
        try:
            return np.concatenate([past, new_positions], axis=self.model.time_axes[name])
        except ValueError:
            raise_error(
                "E0912",
                f"the shape of this chunk of `{name}` differs from earlier chunks",
                notes=[f"shape {list(new_positions.shape)}, earlier {list(past.shape)}"],
            )

    def _infer_fixed_lengths(self, prepared: Arrays) -> Lengths:
        """Infer all symbolic sizes except the time axis. Raise E0912 if a size has changed."""
        input_signature = self.model.input_signature
        lengths = infer_dim_sizes(input_signature.graph, prepared)
        lengths.pop(str(input_signature.sequence_length), None)
        for name, length in lengths.items():
            if self.lengths.get(name, length) != length:
                raise_error(
                    "E0912",
                    f"`{name}` is {length} in this chunk, but was {self.lengths[name]} before",
                    notes=["the batch size of a stream is fixed"],
                    helps=["start a new stream for other sequences: `model.stream()`"],
                )
        return lengths

    def _run_step(self, inputs: Arrays, count: int) -> dict[str, Array]:
        """Run the step graph on `count` new positions, and update the states."""
        metadata, session = self.model.metadata, self.model.step_session
        time_axes, fully_read = self.model.time_axes, {*metadata.full_inputs}
        if not self.states and not self.loop_invariant_inputs:
            # before the first chunk, all sizes are known except that of the time axis
            constant_inputs = {
                n: _slice_positions(v, time_axes[n], 0, 0) if n in time_axes else v
                for n, v in inputs.items()
            }
            _, self.loop_invariant_inputs, self.states = self.model.run_encoder(
                constant_inputs, self.lengths
            )
        if not count:
            return self.model.make_empty_outputs(self.lengths)
        step_inputs: dict[str, Array | DeviceTensor] = {}
        for name, axis in time_axes.items():
            if name in session.inputs:
                stop = count + (self.position_count if name in fully_read else 0)
                step_inputs[name] = np.take(inputs[name], range(stop), axis)
        tensors = {**step_inputs, **self.loop_invariant_inputs, **self.states}
        results = session.run_on_device(tensors)
        self.states = {s.name: results.pop(s.next_output) for s in metadata.states}
        return {name: value.numpy() for name, value in results.items()}


def _check_end(model: StreamingModel, position_counts: tuple[int, int], lengths: Lengths) -> None:
    """Raise E0979 if the full forward pass produces outputs for positions after the last complete
    chunk. `position_counts` contains the number of positions in complete chunks and the total
    number.
    """
    size, symbol = model.chunk_config.step_length, str(model.input_signature.sequence_length)
    for name, formula in model.chunk_config.output_lengths.items():
        chunked_length, full_length = (
            formula.evaluate({**lengths, symbol: count}) for count in position_counts
        )
        if chunked_length != full_length:
            leftover = position_counts[1] - position_counts[0]
            leftover_text = "position" if leftover == 1 else f"{leftover} positions"
            raise_error(
                "E0979",
                f"the last {leftover_text} cannot fill a chunk of {size}, but the full forward "
                f"pass would extend `{name}` by {full_length - chunked_length}",
                notes=["the windows of this model end before the end of the chunk"],
                helps=[f"pad to {size} positions, as the spec does", "or drop these positions"],
            )


def _check_context(model: StreamingModel, position_count: int, lengths: Lengths) -> None:
    """Raise E0943 if `position_count` exceeds the size of a position embedding."""
    metadata, symbol = model.metadata, str(model.input_signature.sequence_length)
    limits = [
        metadata.max_context,
        compute_dim_upper_bound(metadata.length_bounds, symbol, lengths),
    ]
    limit = min((n for n in limits if n is not None), default=position_count)
    if position_count > limit:
        raise_error(
            "E0943",
            f"got {position_count} positions, but the model supports at most {limit}",
            notes=[f"limited by the position embedding `{metadata.length_limiting_table}`"]
            if metadata.length_limiting_table
            else [],
            helps=["start a new stream"],
        )


def _slice_positions(value: Array, axis: int, start: int, stop: int) -> Array:
    """Slice an array along an axis, clipped to the axis size. Return the array unchanged if its
    rank is too low for the axis.
    """
    if value.ndim <= axis:
        return value
    end = value.shape[axis]
    return np.take(value, range(min(start, end), min(stop, end)), axis)


def _raise_partial_chunk(model: StreamingModel, count: int, *helps: str) -> NoReturn:
    size, sequence_input = model.chunk_config.step_length, model.input_signature.sequence_input
    raise_error(
        "E0976",
        f"got {count} positions of `{sequence_input}`, expected a multiple of {size}",
        notes=[f"the strides of the model reduce {size} positions to one"],
        helps=helps or ["push the remaining positions with the next chunk, or with `last=True`"],
    )


def open_streaming_model(
    package: ModelPackage, *, provider: str = "cpu", threads: int = 0
) -> StreamingModel:
    """Open the streaming model of a package. Raise the errors of `open_step_sessions`."""
    opened = open_step_sessions(package, provider, threads)
    assert opened.metadata.chunk_config is not None, "the package is a streaming model"
    return StreamingModel(**vars(opened), chunk_config=opened.metadata.chunk_config)

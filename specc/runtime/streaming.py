"""Streaming inference: the positions of an input are fed in chunks as they arrive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import NoReturn, TypeAlias

import numpy as np

from specc.artifact.generation_facts import StreamChunks, compute_max_context_length
from specc.artifact.manifest import RandomWeights
from specc.backend import DeviceTensor, DeviceTensors
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import format_repr
from specc.io.safe_read import escape_text
from specc.ir.array import Array, Arrays
from specc.preprocessing.python_values import convert_to_array
from specc.runtime.generator import open_step_graphs
from specc.runtime.model_package import ModelPackage
from specc.runtime.steppers import NUMPY_DTYPES, StepGraphs, first_states, infer_lengths

Lengths: TypeAlias = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class StreamingModel(StepGraphs):
    """A package with a streaming step graph: `begin` starts a stream, any number of times."""

    chunks: StreamChunks

    @property
    def random_init(self) -> RandomWeights | None:
        """Record of randomly initialized weights, if any."""
        return self.facts.random_init

    @cached_property
    def along(self) -> dict[str, int]:
        """The inputs that are streamed, each with its time axis."""
        length = self.input_signature.length
        return {
            name: value.type.shape.index(length)
            for name, value in self.input_signature.graph.inputs.items()
            if length in value.type.shape
        }

    def run(self, inputs: Mapping[str, object], rows: int = 0) -> dict[str, Array]:
        """Run on complete inputs, `rows` time steps at a time. Raise E0976 for partial chunks."""
        size, at = self.chunks.step_length, self.along
        if rows % size:
            more = (rows // size + 1) * size
            _fail_partial_chunk(self, rows, f"pass a multiple of {size}, as {more}")
        arrays = {n: convert_to_array(v, n) for n, v in inputs.items() if n in at}
        stream = self.begin(**{n: v for n, v in inputs.items() if n not in at})
        # Values of too low a rank are refused when pushed, by name.
        counts = [v.shape[at[n]] for n, v in arrays.items() if v.ndim > at[n]]
        count = max(counts, default=0)
        step = rows or count
        made: list[dict[str, Array]] = []
        # An empty chunk is one piece: it returns empty results.
        for start in range(0, max(count, 1), max(step, 1)):
            piece = {n: _slice_rows(v, at[n], start, start + step) for n, v in arrays.items()}
            made.append(stream.push(last=start + step >= count, **piece))
        return {name: self._concatenate_pieces(name, made) for name in made[0]}

    def _concatenate_pieces(self, name: str, made: Sequence[Arrays]) -> Array:
        """Concatenate the chunks of an output along time; one without time axis is the last."""
        grows = self.graph.inputs[self.input_signature.growing].type.shape[1].symbols()
        shape = self.graph.outputs[name].type.shape
        axis = next((n for n, d in enumerate(shape) if d.symbols() & grows), None)
        parts = [each[name] for each in made]
        return parts[-1] if axis is None else np.concatenate(parts, axis=axis)

    def first(self, given: Arrays, known: Lengths) -> tuple[DeviceTensors, DeviceTensors]:
        """Return the outputs of `encode`, and the initial states."""
        made: DeviceTensors = {}
        if self.encode is not None:
            at = self.along
            once = {n: given[n] for n in self.encode.inputs}
            # Nothing was pushed yet; only other lengths are known.
            made = self.encode.run_on_device(
                {n: _slice_rows(v, at[n], 0, 0) if n in at else v for n, v in once.items()}
            )
        return first_states(self.facts, self.step, made, given, known)

    def make_empty_results(self, known: Lengths) -> dict[str, Array]:
        """Return empty results, for a last piece that fills no chunk."""
        states = {s.next_output for s in self.facts.states}
        found: dict[str, Array] = {}
        for name, value in self.graph.outputs.items():
            if name not in states:
                new = {s for length in value.type.shape for s in length.symbols()}
                env = {**dict.fromkeys(new, 0), **known}
                shape = [length.evaluate(env) for length in value.type.shape]
                found[name] = np.zeros(shape, NUMPY_DTYPES[value.type.dtype])
        return found

    def begin(self, **once: object) -> "InputStream":
        """Start a stream with the inputs that have no time axis. Raise E0910 for unknown names."""
        inputs, along = self.input_signature.graph.inputs, self.along
        for name in once:
            if name not in inputs:
                raise_error(
                    "E0910",
                    f"the model has no input `{escape_text(name)[:60]}`",
                    helps=[f"the inputs are {', '.join(inputs)}"],
                )
            if name in along:
                fix = f"pass it to `push({name}=…)`"
                raise_error("E0978", f"`{name}` is streamed", helps=[fix])
        return InputStream(streamer=self, once=dict(once))


@dataclass(kw_only=True)
class InputStream:
    """State of a stream. `rows` counts the positions so far; after `ended` it takes no more.
    `before` are past inputs, if a default or the step reads all of them; `lengths` the other
    lengths, from the first piece; `states` the states after the last step.
    """

    streamer: StreamingModel
    once: dict[str, object]
    rows: int = 0
    ended: bool = False
    before: Arrays = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    states: DeviceTensors = field(default_factory=dict)
    static_inputs: DeviceTensors = field(default_factory=dict)
    turn: Lock = field(default_factory=Lock)

    def __repr__(self) -> str:
        made, end = self.streamer.facts.generation, ", ended" if self.ended else ""
        return format_repr(f"stream of {made.name}: {self.rows} rows of {made.growing}{end}")

    def push(self, *, last: bool = False, **pieces: object) -> dict[str, Array]:
        """Feed a piece and return the new positions of every result: whole chunks, or with `last`
        any length.

        E0976 for partial chunks, E0979 if leftover positions at the end would have produced
        results, E0978 for inputs that belong to another call, E0943 beyond the end of a position
        table, E09xx for invalid inputs.
        """
        # If two threads push at once, one waits: each continues from where the other left the
        # stream.
        with self.turn:
            return self._push_chunk(pieces, last=last)

    def _push_chunk(self, pieces: Mapping[str, object], *, last: bool) -> dict[str, Array]:
        if self.ended:
            title = "this stream has ended"
            raise_error("E0978", title, helps=["start another: `model.stream()`"])
        given, before, known = self._check_given(pieces)
        count = given[self.streamer.input_signature.growing].shape[1]
        size = self.streamer.chunks.step_length
        whole = count - count % size
        if last:
            _check_end(self.streamer, (self.rows + whole, self.rows + count), known)
        elif not count or count % size:
            _fail_partial_chunk(self.streamer, count)
        _check_context(self.streamer, self.rows + whole, known)
        # A refused chunk leaves the stream unchanged.
        self.lengths = known
        made = self._step(given, whole)
        self.rows, self.ended, self.before = self.rows + whole, last, before
        return made

    def _check_given(self, pieces: Mapping[str, object]) -> tuple[Arrays, Arrays, Lengths]:
        """Return checked arrays for every input (the new positions only, unless the step reads
        all), the positions to remember, and every length other than the time axis.
        """
        at, input_signature = self.streamer.along, self.streamer.input_signature
        for name in pieces:
            if name in input_signature.graph.inputs and name not in at:
                fix = f"pass it at the start: `model.stream({name}=…)`"
                raise_error("E0978", f"`{name}` is the same for all positions", helps=[fix])
        # a default may depend on all positions so far, not only on the new ones
        if at.keys() - pieces.keys() - {*self.streamer.chunks.per_step_inputs}:
            return self._check_with_past(pieces)
        prepared = input_signature.prepared({**self.once, **pieces})
        known = self._lengths_of(prepared)
        names = self.streamer.facts.whole
        before = {name: self._append_positions(name, prepared[name]) for name in names}
        return {**prepared, **before}, before, known

    def _check_with_past(self, pieces: Mapping[str, object]) -> tuple[Arrays, Arrays, Lengths]:
        """Return the same as `_check_given`, for defaults that read past positions."""
        at, whole = self.streamer.along, {*self.streamer.facts.whole}
        rows = {n: convert_to_array(v, n) for n, v in pieces.items() if n in at}
        known = {n: self._append_positions(n, v) for n, v in rows.items()}
        prepared = self.streamer.input_signature.prepared({**self.once, **pieces, **known})
        new = {
            name: value
            if name not in at or name in whole
            else _slice_rows(value, at[name], self.rows, value.shape[at[name]])
            for name, value in prepared.items()
        }
        before = {n: prepared[n] for n in known if n in prepared}
        return new, before, self._lengths_of(prepared)

    def _append_positions(self, name: str, rows: Array) -> Array:
        """Append new positions of an input to past ones. E0912 if their shapes do not fit."""
        old = self.before.get(name)
        if old is None:
            return rows
        try:
            return np.concatenate([old, rows], axis=self.streamer.along[name])
        except ValueError:
            raise_error(
                "E0912",
                f"this chunk of `{name}` has a different shape than earlier ones",
                notes=[f"those are {list(old.shape)}, these {list(rows.shape)}"],
            )

    def _lengths_of(self, prepared: Arrays) -> Lengths:
        """Return all lengths but the streamed one. Raise E0912 if one differs from before."""
        signature = self.streamer.input_signature
        lengths = infer_lengths(signature.graph, prepared)
        lengths.pop(str(signature.length), None)
        for name, length in lengths.items():
            if self.lengths.get(name, length) != length:
                raise_error(
                    "E0912",
                    f"`{name}` is {length} in this piece, and was {self.lengths[name]}",
                    notes=["a stream has a fixed batch"],
                    helps=["start another stream for other sequences: `model.stream()`"],
                )
        return lengths

    def _step(self, given: Arrays, count: int) -> dict[str, Array]:
        """Run the step on `count` new positions and carry its states."""
        facts, step = self.streamer.facts, self.streamer.step
        if not self.states and not self.static_inputs:
            self.static_inputs, self.states = self.streamer.first(given, self.lengths)
        if not count:
            return self.streamer.make_empty_results(self.lengths)
        at, whole = self.streamer.along, {*facts.whole}
        rows: dict[str, Array | DeviceTensor] = {}
        for name, axis in at.items():
            if name in step.inputs:
                stop = count + (self.rows if name in whole else 0)
                rows[name] = np.take(given[name], range(stop), axis)
        results = step.run_on_device({**rows, **self.static_inputs, **self.states})
        self.states = {s.name: results.pop(s.next_output) for s in facts.states}
        return {name: value.numpy() for name, value in results.items()}


def _check_end(streamer: StreamingModel, rows: tuple[int, int], known: Lengths) -> None:
    """Raise E0979 if leftover positions would produce results in the full forward: `rows` are the
    positions in whole chunks, and all.
    """
    size, symbol = streamer.chunks.step_length, str(streamer.input_signature.length)
    for name, made in streamer.chunks.output_lengths.items():
        few, all_ = (made.evaluate({**known, symbol: count}) for count in rows)
        if few != all_:
            left = rows[1] - rows[0]
            end = "1 position" if left == 1 else f"{left} positions"
            raise_error(
                "E0979",
                f"the last {end} cannot fill a chunk of {size}, but the full forward pass "
                f"computes {all_ - few} more of `{name}` from them",
                notes=["windows of this spec end before their chunk"],
                helps=[f"pad to {size} positions, as the spec does", "or leave them out"],
            )


def _check_context(streamer: StreamingModel, rows: int, known: Lengths) -> None:
    """Raise E0943 beyond the end of a position table, also if other inputs share it."""
    facts, symbol = streamer.facts, str(streamer.input_signature.length)
    most = [facts.max_context, compute_max_context_length(facts.bounds, symbol, known)]
    context = min((n for n in most if n is not None), default=rows)
    if rows > context:
        raise_error(
            "E0943",
            f"got {rows} positions, the maximum is {context}",
            notes=[f"its table `{facts.limiting_table}` is full"] if facts.limiting_table else [],
            helps=["start another stream"],
        )


def _slice_rows(value: Array, axis: int, start: int, stop: int) -> Array:
    """Slice an array along an axis, clipped to its length; unchanged if it has no such axis."""
    if value.ndim <= axis:
        return value
    end = value.shape[axis]
    return np.take(value, range(min(start, end), min(stop, end)), axis)


def _fail_partial_chunk(streamer: StreamingModel, count: int, *helps: str) -> NoReturn:
    size, growing = streamer.chunks.step_length, streamer.input_signature.growing
    raise_error(
        "E0976",
        f"got {count} positions of `{growing}`, expected a multiple of {size}",
        notes=[f"its strides reduce {size} positions to one"],
        helps=helps or ["push the remaining positions with the next chunk, or with `last=True`"],
    )


def open_streamer(
    package: ModelPackage, *, provider: str = "cpu", threads: int = 0
) -> StreamingModel:
    """Return the streaming model of a package, with the errors of `open_step_graphs`."""
    opened = open_step_graphs(package, provider, threads)
    assert opened.facts.chunks is not None, "the package is a streaming model"
    return StreamingModel(**vars(opened), chunks=opened.facts.chunks)

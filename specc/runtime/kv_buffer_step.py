"""Run a step with in-place KV buffers through the interface of a step without KV buffers."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specc.artifact.generation_metadata import GenerationMetadata
from specc.backend import Computation, TensorSpec
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.model import PAST_LENGTH_INPUT


@dataclass(frozen=True)
class KVBufferStep:
    """A session that runs a step with in-place KV buffers. `session` runs the model that was
    lowered from `graph`.
    """

    session: Computation
    graph: Graph
    metadata: GenerationMetadata

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The outputs of the wrapped session."""
        return self.session.outputs

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Run the step. With a past and several sequences, run one position at a time."""
        states = {s.name: inputs[s.name] for s in self.metadata.states}
        past = states[self.metadata.in_place_states[0]].shape[2]
        batch_size, count = inputs[self.metadata.generation.sequence_input].shape[:2]
        # For several sequences, the kernel supports several positions per call only in the first
        # step.
        call_length = 1 if past and batch_size > 1 else max(count, 1)
        others = {n: v for n, v in inputs.items() if n not in states}
        results: list[dict[str, Array]] = []
        # Run once even without new positions, because the caller expects all outputs.
        for start in range(0, max(count, 1), call_length):
            stop = min(start + call_length, count)
            step_inputs = {n: self._slice_input(n, v, past, start, stop) for n, v in others.items()}
            results.append(
                self._run_single_step({**step_inputs, **states}, past + start, stop - start)
            )
            states = {s.name: results[-1][s.next_output] for s in self.metadata.states}
        return {
            name: self._concatenate_results(name, [m[name] for m in results])
            for name in results[-1]
        }

    def _run_single_step(self, inputs: dict[str, Array], past: int, count: int) -> dict[str, Array]:
        """Run the session once, with KV buffers that hold the past and the new positions."""
        for name in self.metadata.in_place_states:
            buffer = inputs[name]
            batch, heads, _, width = buffer.shape
            inputs[name] = np.zeros((batch, heads, past + count, width), buffer.dtype)
            inputs[name][:, :, :past] = buffer
        return self.session.run({**inputs, PAST_LENGTH_INPUT: np.array(past, np.int64)})

    def _slice_input(self, name: str, value: Array, past: int, start: int, stop: int) -> Array:
        """Slice an input to the new positions `start` to `stop`."""
        if name in self.metadata.full_inputs:
            return value[:, : past + stop]
        axis = self._get_new_axis(self.graph.inputs[name].type.shape)
        return value if axis is None else np.take(value, np.arange(start, stop), axis)

    def _concatenate_results(self, name: str, parts: list[Array]) -> Array:
        # An output without a time axis is the output of the last call.
        output = self.graph.outputs.get(name)
        axis = self._get_new_axis(output.type.shape) if output else None
        if axis is None or len(parts) == 1:
            return parts[-1]
        return np.concatenate(parts, axis)

    def _get_new_axis(self, shape: tuple[Dim, ...]) -> int | None:
        """Return the axis whose size is the number of new positions, or None."""
        new_length = self.graph.inputs[self.metadata.generation.sequence_input].type.shape[1]
        return next((n for n, d in enumerate(shape) if d == new_length), None)

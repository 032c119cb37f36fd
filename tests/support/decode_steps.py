"""Run a derived graph step by step with the reference, and measure the difference from full forward
passes.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import specc
import specc_numpy
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.model_definition import DerivedGraphs
from specc.runtime.decoder_sessions import FullForwardSession, KVCacheSession
from specc.runtime.generator import make_generator

Array = Any
NUMPY = {"f32": np.float64, "f64": np.float64, "i64": np.int64, "i32": np.int32, "bool": np.bool_}


def run_steps(
    derived_graphs: DerivedGraphs,
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    plan: Sequence[int],
) -> Iterable[dict[str, Array]]:
    """Return the outputs of each step; `plan` lists how many positions of `inputs` each step takes."""
    once = {n: v for n, v in inputs.items() if n not in list_time_inputs(graph, derived_graphs)}
    outputs = run_encoder_graph(derived_graphs, inputs, weights)
    batch = len(inputs[derived_graphs.sequence_input])
    states = {
        s.name: outputs[s.initial_output]
        if s.initial_output
        else make_empty_state(s.type, s.time_axis, batch, inputs, graph)
        for s in derived_graphs.states
    }
    past = 0
    for count in plan:
        step_inputs = {n: outputs.get(n, once.get(n)) for n in derived_graphs.loop_invariant_inputs}
        for name in list_time_inputs(graph, derived_graphs):
            if name in derived_graphs.step.inputs:
                start = 0 if name in derived_graphs.full_length_inputs else past
                step_inputs[name] = inputs[name][:, start : past + count]
        used = {
            n: v for n, v in {**step_inputs, **states}.items() if n in derived_graphs.step.inputs
        }
        own = {n: weights[n] for n in derived_graphs.step.parameters}
        results = specc_numpy.evaluate_graph(derived_graphs.step, used, own)
        states = {s.name: results[s.next_output] for s in derived_graphs.states}
        past += count
        yield {n: results[n] for n in derived_graphs.step.outputs if n in graph.outputs}


def run_encoder_graph(
    derived_graphs: DerivedGraphs, inputs: Mapping[str, Array], weights: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the outputs of the encoder graph."""
    if not derived_graphs.encode:
        return {}
    step_inputs = {n: inputs[n] for n in derived_graphs.encode.inputs}
    if derived_graphs.sequence_input in step_inputs:
        step_inputs[derived_graphs.sequence_input] = step_inputs[derived_graphs.sequence_input][
            :, :0
        ]
    own = {n: weights[n] for n in derived_graphs.encode.parameters}
    return specc_numpy.evaluate_graph(derived_graphs.encode, step_inputs, own)


def list_time_inputs(graph: Graph, derived_graphs: DerivedGraphs) -> list[str]:
    """Return the inputs that have the time axis."""
    symbol = graph.inputs[derived_graphs.sequence_input].type.shape[1]
    return [n for n, v in graph.inputs.items() if symbol in v.type.shape]


def make_empty_state(
    type: Any, rows: int | None, batch: int, inputs: Mapping[str, Array], graph: Graph
) -> Array:
    """Return the initial value of a state: zeros, with length 0 along the time axis."""
    env: dict[str, int] = {}
    for name, value in graph.inputs.items():
        for d, n in zip(
            value.type.shape,
            np.shape(inputs.get(name, np.zeros([0] * value.type.rank))),
            strict=True,
        ):
            if d.name and name in inputs:
                env[d.name] = n
    lengths = [
        0 if n == rows else Dim.from_value(d).evaluate(env) for n, d in enumerate(type.shape)
    ]
    return np.zeros(lengths, NUMPY[type.dtype])


REORDERED_BATCHES = (([0, 1, 2], 0), ([2, 0, 0], 1), ([1, 1, 0, 2], 3), ([3], 1))
"""New order of the batch elements, and the number of new tokens per step."""


def measure_step_difference(directory: Path, prompts: list[list[int]]) -> float:
    """Return the largest difference of the logits from full forward passes, relative to the largest
    logit of the step.

    The model reads `ids` and a `memory` of width 8. Prompts of different lengths are padded on the
    left.
    """
    model = specc.load(directory, threads=1)
    rng = np.random.default_rng(0)
    memory = rng.normal(size=(3, 4, 8)).astype("f")
    prepared = dict(model.generate(ids=prompts, memory=memory).prepared_inputs)
    full_forward = make_generator(model.selected_model)
    assert model.generator
    assert full_forward
    steps, full = (
        model.generator.create_decoder_session(prepared),
        full_forward.create_decoder_session(prepared),
    )
    assert isinstance(steps, KVCacheSession)
    assert isinstance(full, FullForwardSession)
    tokens, difference = prepared["ids"], 0.0
    for order, more in REORDERED_BATCHES:
        if more:
            steps.reorder(np.array(order))
            full.reorder(np.array(order))
            tokens = rng.integers(3, 11, (len(order), more))
        actual, expected = steps.step(tokens), full.step(tokens)
        difference = max(
            difference, float(np.abs(actual - expected).max() / np.abs(expected).max())
        )
    return difference

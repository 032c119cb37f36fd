"""Continuous batching in float64: each batch element compared with a full forward pass of that
sequence alone.

Sequences join and leave a batch at random. All input tokens are sampled, so that no tie of logits
hides an error.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specc_numpy
from specc.artifact.generation_metadata import GenerationMetadata
from specc.driver.manifest_and_generation_metadata import can_batch_mixed_lengths
from specc.ir.graph import Graph
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph
from specc.ir.model_definition import DerivedGraphs, ModelDefinition
from specc.preprocessing.input_checks import LengthBound
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.text_batches_and_windows import find_mask_input
from specc.runtime import batch_slots
from specc.runtime.decoder_sessions import KVCacheSession, StepSessions
from specc.runtime.generation_request import prepare_prompt_inputs
from specc.runtime.model_inputs import ModelInputs
from specc.transforms import pass_pipeline

Array = NDArray[Any]


@dataclass(frozen=True)
class HostTensor:
    """A tensor in host memory, without a runtime."""

    array: Array

    def numpy(self) -> Array:
        return self.array

    def shape(self) -> list[int]:
        return list(self.array.shape)


@dataclass
class ReferenceSession:
    """A graph in float64 with the interface of `specc.backend.Session`."""

    graph: Graph
    weights: Mapping[str, Array]

    @property
    def inputs(self) -> Mapping[str, Any]:
        return self.graph.inputs

    def copy_to_device(self, array: Array) -> HostTensor:
        return HostTensor(array)

    def copy_to_host(self, tensor: Any) -> Array:
        array: Array = tensor.array
        return array

    def run_on_device(
        self, inputs: Mapping[str, Any], output_buffers: Any = None
    ) -> dict[str, Any]:
        given = {n: v.array if isinstance(v, HostTensor) else v for n, v in inputs.items()}
        weights = {n: self.weights[n] for n in self.graph.parameters}
        outputs = specc_numpy.evaluate_graph(
            self.graph, {n: given[n] for n in self.graph.inputs}, weights
        )
        return {n: HostTensor(np.asarray(v)) for n, v in outputs.items()}


@dataclass
class GenerativeModel:
    """A generative model; `derived_graphs` are its encoder and step."""

    model: ModelDefinition
    derived_graphs: DerivedGraphs
    weights: dict[str, Array]
    input_signature: ModelInputs = field(init=False)

    @staticmethod
    def with_random_weights(model: ModelDefinition, seed: int = 0) -> "GenerativeModel":
        """Return the model with random weights."""
        generation = model.generation
        assert generation
        work = pass_pipeline.CompilerPassState(
            graph=pass_pipeline.simplify_graph(model.graph),
            defaults=model.defaults,
            generation=generation,
            starts_without_prompt=generation.settings.get("start") is None,
        )
        rng = np.random.default_rng(seed)
        facts = model.graph.parameter_facts.items()
        weights = {n: rng.normal(size=[d.number for d in f.type.shape]) * 0.4 for n, f in facts}
        return GenerativeModel(model, pass_pipeline.run_decode_step_passes(work), weights)

    def __post_init__(self) -> None:
        generation, graph = self.model.generation, self.model.graph
        assert generation
        bounds = {n: LengthBound(low) for n, low in graph.min_lengths.items()}
        time_axis = graph.inputs[generation.sequence_input].type.shape[1].name
        bounds.pop(time_axis or "", None)
        self.input_signature = ModelInputs(
            graph=graph,
            preprocessing=PreprocessingConfig(),
            defaults=self.model.defaults,
            sequence_input=generation.sequence_input,
            length_bounds=bounds,
        )

    @property
    def can_batch(self) -> bool:
        return can_batch_mixed_lengths(self.model, self.derived_graphs)

    def make_session(self, prepared: Mapping[str, Array]) -> KVCacheSession:
        """Return a decoder session for the prompts."""
        derived_graphs, generation = self.derived_graphs, self.model.generation
        assert generation
        metadata = GenerationMetadata(
            generation=generation,
            signature=self.model.graph,
            defaults=self.model.defaults,
            preprocessing=PreprocessingConfig(),
            states=derived_graphs.states,
            loop_invariant_inputs=derived_graphs.loop_invariant_inputs,
            full_inputs=derived_graphs.full_length_inputs,
            first_token_logits=derived_graphs.initial_logits_output,
        )
        encode: Any = (
            ReferenceSession(derived_graphs.encode, self.weights) if derived_graphs.encode else None
        )
        step: Any = ReferenceSession(derived_graphs.step, self.weights)
        graphs = StepSessions(
            metadata=metadata,
            input_signature=self.input_signature,
            encoder_session=encode,
            step_session=step,
            graph=derived_graphs.step,
        )
        return KVCacheSession(graphs, prepared)

    def run_full_pass(self, sequence: "SampledSequence", count: int) -> Array:
        """Return the logits after the first `count` tokens of a sequence, computed by a full
        forward pass.
        """
        growing, generation = self.input_signature.sequence_input, self.model.generation
        assert generation
        mask_input = find_mask_input(self.model.graph, growing)
        inputs = dict(sequence.prepared)
        tokens = inputs[growing] = sequence.tokens[None, :count]
        if mask_input:
            own = sequence.prepared[mask_input].shape[1]
            valid = self._exists(mask_input, tokens)
            valid[:, :own] = sequence.prepared[mask_input][:, :count]
            inputs[mask_input] = valid
        outputs = specc_numpy.evaluate_graph(self.model.graph, inputs, self.weights)
        found: Array = outputs[generation.logits_output]
        return found[0] if found.ndim == 2 else found[0, -1]

    def _exists(self, mask_input: str, tokens: Array) -> Array:
        """Return which generated tokens are valid: by the default of `keep`, else all."""
        defaults = self.model.defaults
        if self.model.graph.input_facts[mask_input].padding_side != "any" or not defaults:
            return np.ones(tokens.shape, np.bool_)
        if mask_input not in defaults.outputs:
            return np.ones(tokens.shape, np.bool_)
        inputs = {self.input_signature.sequence_input: tokens}
        outputs = specc_numpy.evaluate_graph(
            build_input_defaults_graph(defaults, (mask_input,)), inputs, {}
        )
        return np.array(outputs[mask_input])


@dataclass(frozen=True)
class SampledSequence:
    """A sequence: the inputs of a batch of 1 with its prompt, and all tokens that it will have."""

    prepared: Mapping[str, Array]
    tokens: NDArray[np.int64]
    prompt: int


MAX_TOKENS = 9


def sample_sequence(
    model: GenerativeModel, rng: random.Random, like: Mapping[str, int]
) -> SampledSequence:
    """Return a sequence with random lengths of prompt and sources; unpadded lengths are those of
    `like`.
    """
    graph, growing = model.model.graph, model.input_signature.sequence_input
    facts = graph.input_facts[growing]
    vocab = facts.upper_bound.number if facts.upper_bound is not None else None
    tokens = np.array([rng.randrange(1, vocab or 5) for _ in range(MAX_TOKENS)])
    generation = model.model.generation
    assert generation
    mask_input = find_mask_input(graph, growing)
    length = rng.randint(1, 4) if mask_input else 2
    inputs: dict[str, Any] = {growing: [tokens[:length].tolist()]}
    lengths = {}
    made = np.random.default_rng(rng.randrange(2**31))
    for name in model.input_signature.required_inputs:
        type = graph.inputs[name].type
        if name in (growing, mask_input):
            continue
        sizes = [1]
        for d in type.shape[1:]:
            symbol = d.name or ""
            padded = find_mask_input(graph, name) or graph.input_facts[name].padding_side
            most = rng.randint(1, 5) if padded else like.get(symbol, 3)
            sizes.append(d.number or lengths.setdefault(symbol, most))
        inputs[name] = _values(graph, name, sizes, made)
    return SampledSequence(prepare_prompt_inputs(model.input_signature, inputs, ()), tokens, length)


def _values(graph: Graph, name: str, sizes: list[int], rng: np.random.Generator) -> Array:
    type, below = graph.inputs[name].type, graph.input_facts[name].upper_bound
    if type.dtype == "bool":
        return np.ones(sizes, np.bool_)
    if type.dtype.startswith("i"):
        limit = below.number if below is not None and below.number else 5
        return rng.integers(1, limit, sizes)
    return rng.normal(size=sizes).astype(np.float32)


def find_logit_difference(model: GenerativeModel, seed: int, steps: int = 12) -> str:
    """Return a difference of logits after sequences join and leave the batch; "" if
    there is none.
    """
    rng = random.Random(seed)
    batch: KVCacheSession | None = None
    rows: list[tuple[SampledSequence, int]] = []
    growing = model.input_signature.sequence_input
    for step in range(steps):
        remaining = [
            n
            for n, (sequence, count) in enumerate(rows)
            if count < MAX_TOKENS and rng.random() < 0.85
        ]
        if batch is None or rng.random() < 0.5:
            joined = [sample_sequence(model, rng, {}) for _ in range(rng.randint(1, 2))]
            prepared = batch_slots.stack_prompts(
                model.input_signature, [t.prepared for t in joined]
            )
            margin = batch_slots.count_initial_padding_positions(model.derived_graphs.states)
            prepared = batch_slots.prepend_padding_positions(
                model.input_signature, prepared, margin
            )
            first = model.make_session(prepared)
            logits = np.asarray(first.step(prepared[growing]), np.float64)
            new = [(sequence, sequence.prompt) for sequence in joined]
            if difference := _compared(model, new, logits):
                return f"turn {step}, at the beginning: {difference}"
            every = np.arange(len(joined))
            if batch is None or not remaining:
                batch_slots.merge_batches(first, every, None, every)
                batch, rows = first, new
            else:
                batch_slots.merge_batches(batch, np.array(remaining), first, every)
                rows = [*(rows[n] for n in remaining), *new]
        elif 0 < len(remaining) < len(rows):
            none = np.zeros(0, np.int64)
            batch_slots.merge_batches(batch, np.array(remaining), None, none)
            rows = [rows[n] for n in remaining]
        is_done = np.array([count >= MAX_TOKENS for _, count in rows])
        batch.inputs.is_finished = is_done
        tokens = np.array([[t.tokens[min(c, MAX_TOKENS - 1)]] for t, c in rows])
        rows = [(t, min(c + 1, MAX_TOKENS)) for t, c in rows]
        logits = np.asarray(batch.step(tokens), np.float64)
        open_rows = [r for r, o in zip(rows, is_done, strict=True) if not o]
        if difference := _compared(model, open_rows, logits[~is_done]):
            return f"turn {step}: {difference}"
    return ""


def _compared(
    model: GenerativeModel, rows: list[tuple[SampledSequence, int]], logits: Array
) -> str:
    for row, (sequence, count) in enumerate(rows):
        expected = model.run_full_pass(sequence, count)
        if not np.allclose(logits[row], expected, rtol=1e-9, atol=1e-9):
            worst = np.abs(logits[row] - expected).max()
            return f"row {row} with {count} tokens is {worst:.1e} away"
    return ""

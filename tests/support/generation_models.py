"""Generation models (a decoding loop inside the ONNX graph) of built-in specs, and a reference
decoder to compare them with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

import specc_numpy
from specc.decode.beam_search import BeamHypothesis, run_beam_search
from specc.decode.decode_loop import iterate_decode_steps
from specc.decode.generation_settings import GenerationSettings
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph
from specc.ir.model_definition import DecodingConfig, StandaloneGenerator
from specc_onnx import DEFAULT_OPSET, OnnxBuildResult, build_generation_model, get_target
from specc_onnx.generate.generator_inputs import GeneratorDefinition
from specc_onnx.write.onnx_verifier import verify_built_model
from support.derived_graphs import derive_encoder_and_step
from support.elaborated_specs import (
    Arrays,
    ElaboratedSpec,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)
from support.onnx_sessions import open_silent_session
from support.small_configs import SMALL_CONFIGS


class FullForwardDecoder:
    """A `specc.decode.token_selection.DecoderSession` that runs a full forward pass in each step: no KV
    cache, no derived graphs, float64.

    `others` are loop-invariant inputs; `beside` are inputs along the time axis other than the tokens.
    """

    def __init__(
        self,
        spec: ElaboratedSpec,
        weights: Arrays,
        others: Mapping[str, NDArray[Any]],
        beside: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        assert spec.model.generation
        self.spec, self.weights = spec, weights
        self.others, self.beside = dict(others), dict(beside or {})
        self.growing, self.source = (
            spec.model.generation.sequence_input,
            spec.model.generation.logits_output,
        )
        self.tokens: NDArray[np.int64] | None = None

    def step(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Append tokens and return the logits of the last position.

        Other inputs along the time axis are extended with their defaults.
        """
        if self.tokens is None:
            self.tokens = tokens
        else:
            self.tokens = np.concatenate([self.tokens, tokens], axis=1)
            self.beside = {
                n: np.concatenate([a, self._written(n, tokens)], axis=1)
                for n, a in self.beside.items()
            }
        inputs = {**self.others, **self.beside, self.growing: self.tokens}
        logits = run_reference(self.spec, self.weights, inputs)[self.source]
        last = logits[:, -1] if logits.ndim == 3 else logits
        # A prompt of padding only starts after its prefix positions.
        if logits.ndim == 3 and logits.shape[1] > self.tokens.shape[1]:
            for mask in self.beside.values():
                if mask.shape == self.tokens.shape:
                    initial = logits[:, -1 - mask.shape[1]]
                    last = np.where(mask.any(1)[:, None], last, initial)
        return last.astype(np.float32)

    def _written(self, name: str, tokens: NDArray[np.int64]) -> NDArray[Any]:
        defaults = self.spec.model.defaults
        keep = self.spec.model.graph.input_facts[name].padding_side
        if defaults is None or name not in defaults.outputs or keep != "any":
            return np.ones(tokens.shape, bool)
        values = specc_numpy.evaluate_graph(
            build_input_defaults_graph(defaults, (name,)), {self.growing: self.tokens}, {}
        )
        return values[name][:, -tokens.shape[1] :]

    def reorder(self, rows: NDArray[np.int64]) -> None:
        """Replace batch element r by batch element `rows[r]`."""
        assert self.tokens is not None
        self.tokens = self.tokens[rows]
        self.others, self.beside = (
            {n: a[rows] for n, a in m.items()} for m in (self.others, self.beside)
        )


BATCH = 3
PROMPT = np.array([[3, 5, 7], [1, 2, 8], [4, 4, 9]])


def elaborate_smallest(name: str) -> ElaboratedSpec:
    """Elaborate a built-in spec with its smallest config."""
    return elaborate_with_config(
        name, **{key.replace(".", "__"): value for key, value in SMALL_CONFIGS[name].items()}
    )


def make_decoding(settings: GenerationSettings, source: str, penalized: bool) -> DecodingConfig:
    """Return the settings of the decoding loop inside the model, without those that are inputs."""
    return DecodingConfig(
        logits_output=source,
        strategy=settings.strategy,
        start_token_ids=settings.start,
        suppress_tokens=settings.suppress_tokens,
        begin_suppress_tokens=settings.begin_suppress_tokens,
        min_tokens=settings.min_tokens,
        min_length=settings.min_length,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
        bad_words_ids=settings.bad_words_ids,
        renormalize_logits=settings.renormalize_logits,
        first_token_choices=settings.begin,
        forced_eos_token_id=settings.forced_eos_token_id,
        stop_token_ids=settings.stop,
        pad_token_id=settings.pad,
        has_repetition_penalty=penalized,
        num_beams=settings.num_beams,
        num_return_sequences=settings.num_return_sequences,
        length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping,
    )


def fill_weights(built: OnnxBuildResult, weights: Arrays) -> ModelProto:
    """Return the model with weight values, after the checks of a built model."""
    verify_built_model(built)
    for name, initializer in built.weights.items():
        initializer.raw_data = weights[name].astype("<f4").tobytes()
    return built.model


@dataclass
class GenerationCase:
    """A spec with weights, inputs and generation settings; `keep` is given if prompts have
    different lengths.
    """

    spec: ElaboratedSpec
    settings: GenerationSettings
    target: str = "ort-cpu"
    opset: int = DEFAULT_OPSET
    keep: NDArray[np.bool_] | None = None
    prompt: NDArray[np.int64] | None = None
    inputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    weights: Arrays = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = self.spec.model
        assert model.generation
        self.weights = self.weights or sample_spec_weights(self.spec)
        self.growing, self.source = model.generation.sequence_input, model.generation.logits_output
        if self.prompt is None:
            start = self.settings.start
            self.prompt = np.tile(np.array(start, np.int64), (BATCH, 1)) if start else PROMPT
        self.inputs = self.inputs or _inputs(self.spec, self.growing, len(self.prompt))
        derived_graphs = derive_encoder_and_step(model.graph, self.growing, {self.source: "newest"})
        decoding = make_decoding(self.settings, self.source, self.settings.repetition_penalty != 1)
        inside = None if self.keep is not None else model.defaults
        whole = StandaloneGenerator(model.graph, derived_graphs, decoding, inside)
        self.ingredients = GeneratorDefinition.from_generator(whole)
        self.built = build_generation_model(whole, get_target(self.target), self.opset)
        self.model = fill_weights(self.built, self.weights)
        self.session = open_silent_session(self.model)

    @property
    def feeds(self) -> dict[str, NDArray[Any]]:
        """Return the inputs of the model: the spec's inputs, then the scalars."""
        s = self.settings
        scalars: dict[str, NDArray[Any]] = {
            "max_tokens": np.array(s.max_tokens),
            "seed": np.array(s.seed),
            "temperature": np.array(s.temperature, np.float32),
            "top_k": np.array(s.top_k),
            "top_p": np.array(s.top_p, np.float32),
            "min_p": np.array(s.min_p, np.float32),
            "repetition_penalty": np.array(s.repetition_penalty, np.float32),
        }
        inputs = {**scalars, **self.inputs, **self._keeps(), self.growing: self.prompt}
        return {i.name: inputs[i.name] for i in self.session.get_inputs()}

    def run(self, **instead: Any) -> list[NDArray[Any]]:
        """Run the model and return its outputs."""
        found: list[NDArray[Any]] = self.session.run(None, {**self.feeds, **instead})
        return found

    def generate_expected(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return tokens and log-probabilities, computed with full forward passes."""
        steps = list(
            iterate_decode_steps(
                self._full(), self.prompt, self.settings, padding_mask=self._kept()
            )
        )
        scores = [s.log_probs for s in steps if s.log_probs is not None]
        return np.stack([s.tokens for s in steps], axis=1), np.stack(scores, axis=1)

    def search_expected(self) -> list[list[BeamHypothesis]]:
        """Return the hypotheses of beam search, computed with full forward passes."""
        return run_beam_search(self._full(), self.prompt, self.settings, padding_mask=self._kept())

    def _full(self) -> FullForwardDecoder:
        keeps = self._keeps()
        beside = {n: a for n, a in keeps.items() if self._along(n)}
        return FullForwardDecoder(
            self.spec,
            self.weights,
            {**self.inputs, **{n: keeps[n] for n in keeps.keys() - beside}},
            beside,
        )

    def _kept(self) -> NDArray[np.bool_] | None:
        return next((a for n, a in self._keeps().items() if self._along(n)), None)

    def _keeps(self) -> dict[str, NDArray[np.bool_]]:
        """Return the padding masks: `keep` for prompts, token id != 0 for sources."""
        found = {}
        for name, facts in self.spec.model.graph.input_facts.items():
            if facts.padding_side and self._along(name):
                found[name] = (
                    self.keep if self.keep is not None else np.ones(self.prompt.shape, bool)
                )
            elif facts.padding_side:
                found[name] = self.inputs["source"] != 0
        return found

    def _along(self, name: str) -> bool:
        inputs = self.spec.model.graph.inputs
        return inputs[name].type.shape == inputs[self.growing].type.shape


def _inputs(spec: ElaboratedSpec, growing: str, batch: int) -> dict[str, NDArray[Any]]:
    """Return random loop-invariant inputs; the first of several sources is shorter than the others."""
    rng, found = np.random.default_rng(0), {}
    for name, value in spec.model.graph.inputs.items():
        if name == growing or spec.model.graph.input_facts[name].padding_side:
            continue
        shape = [d.number or (batch if d.name == "batch" else 5) for d in value.type.shape]
        if value.type.dtype == "i64":
            found[name] = rng.integers(3, 10, shape)
            found[name][0, 3:] = 0
        else:
            found[name] = rng.standard_normal(shape).astype(np.float32)
    return found


def assert_hypotheses_equal(
    tokens: NDArray[np.int64],
    scores: NDArray[np.float32],
    expected: Sequence[Sequence[BeamHypothesis]],
) -> None:
    """Assert equal hypotheses in equal order, followed by padding only."""
    for row, hypotheses in enumerate(expected):
        for place, one in enumerate(hypotheses):
            length = len(one.tokens)
            assert tokens[row, place, :length].tolist() == list(one.tokens)
            assert len(set(tokens[row, place, length:].tolist())) <= 1
            assert abs(float(scores[row, place]) - one.score) < 1e-5


def make_settings(
    spec: ElaboratedSpec, strategy: str = "greedy", **more: Any
) -> GenerationSettings:
    """Return generation settings with the spec's start and stop tokens."""
    assert spec.model.generation
    said: Mapping[str, Any] = spec.model.generation.settings
    stop = said.get("stop", ())
    stops = tuple(stop) if isinstance(stop, list | tuple) else (stop,)
    start = said.get("start")
    own: dict[str, Any] = {
        "start": () if start is None else (start,),
        "stop": stops,
        "max_tokens": 10,
        "log_probs": True,
    }
    return GenerationSettings(strategy=strategy, **{**own, **more})

"""Verify a standalone generator, i.e. a model that contains the decoding loop. Compare its tokens
and probabilities with those of the reference.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from specc import backend
from specc.analysis.length_limits import find_length_limits
from specc.backend import Session, TensorSpec
from specc.decode.beam_search import run_beam_search
from specc.decode.decode_loop import iterate_decode_steps
from specc.decode.generation_settings import GenerationSettings
from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.ir.graph import Graph, select_entries
from specc.runtime.decoder_sessions import FullForwardSession
from specc.runtime.generation_request import GenerationRequest
from specc.runtime.generator import Generator, make_generator
from specc.runtime.random_inputs import (
    BOOLEAN_DENSITIES,
    choose_dim_sizes,
    make_random_inputs,
    move_padding_to_declared_side,
)
from specc.runtime.single_model_file import LoadedModel
from specc.runtime.standalone_generator import run_standalone_generator
from specc.verification.length_coverage import (
    is_within_cost_limit,
    iterate_lengths_above_thresholds,
)
from specc.verification.result_comparison import (
    ResultDifference,
    VerificationRound,
    compare_results,
    format_axis_sizes,
    is_within_rounding_error,
    make_skipped_verification_round,
)
from specc.verification.round_coverage import SubgraphCoverage
from specc.verification.rounding_errors_and_overflow import (
    EXTRA_SAMPLE_COUNT,
    MAX_EXPLAINED_RATIO,
    SAMPLE_COUNT,
    HalfPrecisionRounding,
    RoundingPerturbation,
    compute_error_bounds,
    find_half_precision_dtype,
)

MAX_TOKENS = 8
"""Maximum number of tokens generated in a verification round."""


def verify_generation(model: LoadedModel, *, seed: int, rounds: int) -> Iterator[VerificationRound]:
    """Compare generation by the model with generation by the reference. Yield the result of each
    round. Raise E0930 at the first difference in a token, probability or score that rounding errors
    do not explain.
    """
    weight_only_model, graph = model.without_activation_quantization(), model.manifest.scoring_graph
    generator = make_generator(weight_only_model)
    if graph is None or generator is None:
        yield make_skipped_verification_round(
            "models from older versions do not contain the scoring graph"
        )
        return
    weights = _load_scoring_weights(model, graph)
    coverage = SubgraphCoverage.from_model(model)
    max_lengths = _find_max_prompt_lengths(generator, graph)
    rng = np.random.default_rng(seed)
    compared_sizes = [*_choose_sizes(generator, graph, rounds, max_lengths)]
    for round_index, sizes in enumerate(compared_sizes):
        request = _make_random_request(
            generator, graph, sizes, rng, BOOLEAN_DENSITIES[round_index % len(BOOLEAN_DENSITIES)]
        )
        if coverage.session is not None:
            # decoding calls only session methods that the counting session implements
            run_standalone_generator(cast("Session", coverage.session), request)
        yield _compare_tokens(_ReferenceDecode(request, graph, weights), sizes)
    yield from coverage.iterate_uncovered_cases(graph, compared_sizes, max_lengths)


def _load_scoring_weights(model: LoadedModel, graph: Graph) -> dict[str, Array]:
    """Return the weights of the scoring graph, with zeros for weights that the model does not
    store.
    """
    weights = replace(model, manifest=replace(model.manifest, graph=graph)).weights()
    for name, value in graph.parameters.items():
        # The graph uses only the shape of a parameter whose values the model does not store.
        weights.setdefault(name, np.zeros([d.number or 0 for d in value.shape]))
    return weights


def _find_max_prompt_lengths(generator: Generator, graph: Graph) -> dict[str, int]:
    """Return the maximum prompt length for `MAX_TOKENS` new tokens, by symbolic dimension."""
    symbols = graph.inputs[generator.input_signature.sequence_input].shape[1].symbols()
    limits = find_length_limits(graph)
    return {s: max(limits[s].max_length - MAX_TOKENS, 1) for s in symbols if s in limits}


def _choose_sizes(
    generator: Generator, graph: Graph, rounds: int, max_lengths: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Yield axis sizes for `rounds` rounds, then sizes that exceed the constants in masks and
    caches.
    """
    yield from (choose_dim_sizes(graph, round_index) for round_index in range(rounds))
    settings = generator.resolve_settings({"max_tokens": MAX_TOKENS})
    repeats = MAX_TOKENS * (settings.num_beams if settings.strategy == "beam" else 1)
    yield from iterate_lengths_above_thresholds(
        graph, lambda sizes: is_within_cost_limit(sizes, graph, repeats), max_lengths
    )


def _make_random_request(
    generator: Generator,
    graph: Graph,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    density: float,
) -> GenerationRequest:
    """Make a generation request with random inputs and the settings that were compiled into the
    model.
    """
    session, sequence_input = generator.standalone_session, generator.input_signature.sequence_input
    assert session is not None, "a standalone generator has a session"
    session_inputs = {*session.inputs, *session.optional_inputs}
    random_inputs = make_random_inputs(graph, sizes, rng, density)
    inputs = select_entries(random_inputs, session_inputs)
    settings = generator.resolve_settings({"max_tokens": MAX_TOKENS})
    is_beam_search = settings.strategy == "beam"
    if (
        settings.start or generator.allows_empty_prompt
    ) and sequence_input in session.optional_inputs:
        inputs.pop(sequence_input, None)
    inputs = move_padding_to_declared_side(inputs, graph, generator.input_signature.defaults)
    return generator.start_generation(inputs, replace(settings, log_probs=not is_beam_search))


@dataclass(frozen=True)
class _ReferenceDecode:
    """The reference decoding of a request. The results are `tokens` (int64 [batch, n, steps]), and
    `log_probs` (float64 [batch, steps]) or `scores` (float64 [batch, n]).
    """

    request: GenerationRequest
    graph: Graph
    weights: Mapping[str, Array]

    def compute_results(
        self, perturbation: RoundingPerturbation | None = None, error_ratio: float = 1
    ) -> dict[str, Array]:
        """Decode with the reference and return the results. If `perturbation` is not None, all
        values are perturbed, and the resulting errors of the logits are multiplied by
        `error_ratio`.
        """
        request, settings = self.request, self.request.effective_settings
        weights = perturbation.perturb_arrays(self.weights) if perturbation else self.weights
        logits_output = request.model.generation.logits_output
        session = _ReferenceSession(graph=self.graph, weights=weights, perturbation=perturbation)
        if error_ratio != 1:
            exact = _ReferenceSession(graph=self.graph, weights=self.weights)
            session = replace(session, exact=exact, logits=logits_output, error_ratio=error_ratio)
        decoder_session = FullForwardSession(
            session, request.model.input_signature, logits_output, request.prepared_inputs
        )
        if settings.strategy == "beam":
            return self._run_beam_search(decoder_session)
        width = settings.max_tokens
        steps = list(
            iterate_decode_steps(
                decoder_session, request.prompt, settings, padding_mask=request.padding_mask
            )
        )
        return {
            "tokens": _stack_steps([s.tokens for s in steps], width)[:, None],
            "log_probs": _stack_steps([np.asarray(s.log_probs) for s in steps], width),
        }

    def _run_beam_search(self, session: FullForwardSession) -> dict[str, Array]:
        """Return the tokens and scores of a beam search."""
        request, settings = self.request, self.request.effective_settings
        beams = run_beam_search(
            session, request.prompt, settings, padding_mask=request.padding_mask
        )
        tokens = [[list(h.tokens) for h in row] for row in beams]
        scores = [[h.score for h in row] for row in beams]
        return {"tokens": _pad_sequences(tokens, settings), "scores": np.array(scores)}

    def run_model(self) -> dict[str, Array]:
        """Decode with the compiled model and return the results."""
        session = self.request.model.standalone_session
        assert session is not None, "a standalone generator has a session"
        generated = run_standalone_generator(session, self.request)
        if generated.log_probs is not None:
            width = self.request.effective_settings.max_tokens
            tokens, log_probs = generated.tokens[:, 0], generated.log_probs
            return {
                "tokens": _stack_steps([*tokens.T], width)[:, None],
                "log_probs": _stack_steps([*log_probs.T], width),
            }
        stops = self.request.settings.stop
        rows = generated.tokens.tolist()
        sequences = [[_truncate_at_stop(text, stops) for text in row] for row in rows]
        tokens = _pad_sequences(sequences, self.request.effective_settings)
        return {"tokens": tokens, "scores": np.asarray(generated.scores)}


@dataclass(frozen=True, kw_only=True)
class _ReferenceSession:
    """The float64 reference, wrapped in the interface of an inference session. If `exact` is not
    None, multiply the difference between the logits and the logits of `exact` by `error_ratio`.
    """

    graph: Graph
    weights: Mapping[str, Array]
    perturbation: RoundingPerturbation | None = None
    exact: "_ReferenceSession | None" = None
    logits: str = ""
    error_ratio: float = 1

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """Return {}, because no caller reads the outputs of the reference."""
        return {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Evaluate the graph on `inputs` and return its outputs."""
        graph_inputs = select_entries(inputs, self.graph.inputs)
        results = backend.load_reference_backend().evaluate_graph(
            self.graph, graph_inputs, self.weights, result_hook=self.perturbation
        )
        if self.exact is not None:
            logits, exact = results[self.logits], self.exact.run(inputs)[self.logits]
            # inf - inf is NaN, so the difference of equal logits is set to 0
            differences = np.subtract(
                logits, exact, where=logits != exact, out=np.zeros_like(exact)
            )
            results[self.logits] = exact + self.error_ratio * differences
        return results


def _compare_tokens(decode: _ReferenceDecode, sizes: Mapping[str, int]) -> VerificationRound:
    """Compare the tokens, probabilities and scores of the model with those of the reference. Return
    the result of the verification round. Raise E0930 if rounding errors do not explain a
    difference.
    """
    results, expected = decode.run_model(), decode.compute_results()
    differences, max_error = compare_results(results, expected)
    steps = int((expected["tokens"] >= 0).sum(-1).max(initial=0))
    token_text = f"{steps} tokens" if steps != 1 else "1 token"
    note = f"; {token_text} by {decode.request.settings.strategy} decoding"
    mismatches = {n: d for n, d in differences.items() if d.description}
    if mismatches:
        note += _explain_difference(decode, results, expected, mismatches, sizes)
    return VerificationRound(
        sizes=sizes, result_count=len(expected), max_error=max_error, note=note
    )


def _explain_difference(
    decode: _ReferenceDecode,
    results: Mapping[str, Array],
    expected: Mapping[str, Array],
    mismatches: Mapping[str, ResultDifference],
    sizes: Mapping[str, int],
) -> str:
    """Return a note if perturbations of the size of rounding errors change the results of the
    reference. Raise E0930 otherwise.
    """
    half_dtype = find_half_precision_dtype(decode.graph)
    bounds = {name: np.zeros(np.shape(value)) for name, value in expected.items()}
    last_seed = SAMPLE_COUNT + EXTRA_SAMPLE_COUNT
    for seeds in (range(SAMPLE_COUNT), range(SAMPLE_COUNT, last_seed)):
        # Kernels also round intermediate values, which can change the choice between tokens with
        # nearly equal logits.
        ratio = MAX_EXPLAINED_RATIO if half_dtype and seeds.start else 1

        def run_rounded(errors: RoundingPerturbation, ratio: float = ratio) -> dict[str, Array]:
            errors.result_hook = HalfPrecisionRounding(errors.rng) if half_dtype else None
            return decode.compute_results(errors, ratio)

        for name, bound in compute_error_bounds(run_rounded, expected, seeds).items():
            scale = 1 if name == "tokens" else ratio
            bounds[name] = np.maximum(bounds[name], bound / scale)
        error_bounds = _ignore_later_tokens(bounds)
        unexplained = [
            difference
            for name, difference in mismatches.items()
            if not is_within_rounding_error(results[name], expected[name], error_bounds[name])
        ]
        if not unexplained:
            return f", where {half_dtype or 'float32'} rounding changes results"
    first = unexplained[0]
    raise_error("E0930", first.description, notes=[*first.notes, format_axis_sizes(sizes)])


def _ignore_later_tokens(bounds: Mapping[str, Array]) -> dict[str, Array]:
    """Return error bounds that are infinite after the first token that rounding errors change."""
    has_changed = np.isinf(bounds["tokens"]).cumsum(-1) > 0
    error_bounds = {"tokens": np.where(has_changed, np.inf, bounds["tokens"])}
    for name in bounds.keys() - {"tokens"}:
        any_step = has_changed[:, 0] if name == "log_probs" else has_changed.any(-1)
        error_bounds[name] = np.where(any_step, np.inf, bounds[name])
    return error_bounds


def _stack_steps(steps: list[Array], width: int) -> Array:
    """Stack the token arrays of all steps into one array [batch, width], padded with -1."""
    padding = [np.full_like(steps[0], -1)] * (width - len(steps))
    return np.stack([*steps, *padding], -1)


def _pad_sequences(sequences: list[list[list[int]]], settings: GenerationSettings) -> Array:
    """Stack sequences to an int64 array [batch, n, steps], padded to `max_tokens`."""
    width = settings.max_tokens
    padded = [
        [[*t, *[settings.padding_token] * (width - len(t))] for t in row] for row in sequences
    ]
    return np.array(padded, np.int64)


def _truncate_at_stop(token_ids: list[int], stop_ids: tuple[int, ...]) -> list[int]:
    """Truncate a sequence at its first stop token."""
    end = next((n + 1 for n, token in enumerate(token_ids) if token in stop_ids), len(token_ids))
    return token_ids[:end]

"""Verify a standalone generator: tokens and probabilities against the reference decode."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from specc import backend
from specc.analysis.length_limits import find_length_limits
from specc.backend import Session, TensorSlot
from specc.decode.beam_search import search_beams
from specc.decode.decode_loop import decode_steps
from specc.decode.generation_settings import GenerationSettings
from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.runtime.generation_request import GenerationRequest
from specc.runtime.generator import Generator, make_generator
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.random_inputs import BOOLEAN_DENSITIES, choose_lengths, make_random_inputs
from specc.runtime.standalone_generator import run_standalone
from specc.runtime.steppers import FullForwardStepper
from specc.verification.length_coverage import find_skipped_lengths, is_affordable, long_sizes
from specc.verification.rounding_errors import (
    HalfRounding,
    RoundingErrors,
    bounds_of_samples,
    half_format_of,
)
from specc.verification.subgraph_coverage import Coverage
from specc.verification.tolerance import (
    ResultDifference,
    VerificationRound,
    compare_result,
    format_lengths,
    is_explained,
    uncovered_round,
)

MAX_TOKENS = 8
"""Maximum number of tokens generated in a round."""


def iterate_generated_rounds(
    model: LoadedModel, *, seed: int, rounds: int
) -> Iterator[VerificationRound]:
    """Yield each round. E0930 at the first token, probability or score with a difference that
    rounding does not explain.
    """
    exact, graph = model.with_weight_only_quantization(), model.manifest.scoring_graph
    writer = make_generator(exact)
    if graph is None or writer is None:
        why = "an older version compiled it without the graph that it decodes"
        yield VerificationRound(compared=False, agrees=None, note=f"not compared, because {why}")
        return
    weights = _load_scoring_weights(model, graph)
    coverage, most = Coverage.of(model), _find_max_prompt(writer, graph)
    rng = np.random.default_rng(seed)
    compared = [*_choose_sizes(writer, graph, rounds, most)]
    for turn, sizes in enumerate(compared):
        asked = _sample_inputs(
            writer, graph, sizes, rng, BOOLEAN_DENSITIES[turn % len(BOOLEAN_DENSITIES)]
        )
        _run_counting_copy(coverage, asked)
        yield _compare_tokens(_Decode(asked, graph, weights), sizes)
    skipped = find_skipped_lengths(graph, compared, most)
    if coverage.missing or skipped:
        yield uncovered_round(coverage.missing, skipped)


def _load_scoring_weights(model: LoadedModel, graph: Graph) -> dict[str, Array]:
    """Return the weights of the graph that scores; zeros for parameters that are not stored."""
    weights = replace(model, manifest=replace(model.manifest, graph=graph)).weights()
    for name, value in graph.parameters.items():
        # Only the lengths of such a parameter are read: any other dependence shows in the tokens.
        weights.setdefault(name, np.zeros([d.number or 0 for d in value.type.shape]))
    return weights


def _find_max_prompt(writer: Generator, graph: Graph) -> dict[str, int]:
    """Return the maximum length of a prompt that leaves room for `MAX_TOKENS`, by its symbol."""
    symbols = graph.inputs[writer.input_signature.sequence_input].type.shape[1].symbols()
    limits = find_length_limits(graph)
    return {s: max(limits[s].max_length - MAX_TOKENS, 1) for s in symbols if s in limits}


def _choose_sizes(
    writer: Generator, graph: Graph, rounds: int, most: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Yield the lengths of every round, then those above the constants of masks and caches."""
    yield from (choose_lengths(graph, turn) for turn in range(rounds))
    settings = writer.resolve_settings({"max_tokens": MAX_TOKENS})
    repeats = MAX_TOKENS * (settings.num_beams if settings.strategy == "beam" else 1)
    yield from long_sizes(graph, lambda sizes: is_affordable(sizes, graph, repeats), most)


def _sample_inputs(
    writer: Generator,
    graph: Graph,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    density: float,
) -> GenerationRequest:
    """Sample inputs of the model, with its compiled settings."""
    session, growing = writer.standalone_session, writer.input_signature.sequence_input
    assert session is not None, "a standalone generator has a session"
    takes = {*session.inputs, *session.optional_inputs}
    made = make_random_inputs(graph, sizes, rng, density)
    inputs = {n: v for n, v in made.items() if n in takes}
    settings = writer.resolve_settings({"max_tokens": MAX_TOKENS})
    beam = settings.strategy == "beam"
    if (settings.start or writer.allows_empty_prompt) and growing in session.optional_inputs:
        inputs.pop(growing, None)
    return writer.begin(inputs, replace(settings, log_probs=not beam))


def _run_counting_copy(coverage: Coverage, asked: GenerationRequest) -> None:
    """Run the copy that counts executions."""
    if coverage.session is not None:
        # it implements the methods of a session that decoding uses
        run_standalone(cast("Session", coverage.session), asked)


@dataclass(frozen=True)
class _Decode:
    """The reference decode of a request: results by name, `tokens` i64[batch n steps] and
    `log_probs` f64[batch steps] or `scores` f64[batch n].
    """

    asked: GenerationRequest
    graph: Graph
    weights: Mapping[str, Array]

    def results(self, errors: RoundingErrors | None = None) -> dict[str, Array]:
        """Return the results, with rounding errors if given."""
        asked, settings = self.asked, self.asked.limited_settings
        weights = errors.add_errors(self.weights) if errors else self.weights
        session = _Reference(self.graph, weights, errors)
        source = asked.model.generation.source
        stepper = FullForwardStepper(
            session, asked.model.input_signature, source, asked.prepared_inputs
        )
        if settings.strategy == "beam":
            return self._search_beams(stepper)
        width = settings.max_tokens
        steps = list(decode_steps(stepper, asked.prompt, settings, padding_mask=asked.padding_mask))
        return {
            "tokens": _fill_inputs([s.tokens for s in steps], width)[:, None],
            "log_probs": _fill_inputs([np.asarray(s.log_probs) for s in steps], width),
        }

    def _search_beams(self, stepper: FullForwardStepper) -> dict[str, Array]:
        """Return the tokens and scores of a beam search."""
        asked, settings = self.asked, self.asked.limited_settings
        found = search_beams(stepper, asked.prompt, settings, padding_mask=asked.padding_mask)
        tokens = [[list(h.tokens) for h in row] for row in found]
        scores = [[h.score for h in row] for row in found]
        return {"tokens": _pad_prompt(tokens, settings), "scores": np.array(scores)}

    def run_model(self) -> dict[str, Array]:
        """Return the results of the model."""
        session = self.asked.model.standalone_session
        assert session is not None, "a standalone generator has a session"
        made = run_standalone(session, self.asked)
        if made.log_probs is not None:
            width = self.asked.limited_settings.max_tokens
            tokens, log_probs = made.tokens[:, 0], made.log_probs
            return {
                "tokens": _fill_inputs([*tokens.T], width)[:, None],
                "log_probs": _fill_inputs([*log_probs.T], width),
            }
        stops = self.asked.settings.stop
        rows = [[_cut_prompt(text, stops) for text in row] for row in made.tokens.tolist()]
        tokens = _pad_prompt(rows, self.asked.limited_settings)
        return {"tokens": tokens, "scores": np.asarray(made.scores)}


@dataclass(frozen=True)
class _Reference:
    """The float64 reference as a session."""

    graph: Graph
    weights: Mapping[str, Array]
    errors: RoundingErrors | None

    @property
    def outputs(self) -> Mapping[str, TensorSlot]:
        """Return {}: no caller reads the outputs of the reference."""
        return {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Evaluate the graph for these inputs."""
        given = {n: v for n, v in inputs.items() if n in self.graph.inputs}
        return backend.load_reference().evaluate_graph(
            self.graph, given, self.weights, result_hook=self.errors
        )


def _compare_tokens(decode: _Decode, sizes: Mapping[str, int]) -> VerificationRound:
    """Compare the results. E0930 unless they agree."""
    got, want = decode.run_model(), decode.results()
    apart = {n: compare_result(n, got[n], x) for n, x in want.items()}
    steps = int((want["tokens"] >= 0).sum(-1).max(initial=0))
    note = f"; {steps} tokens" if steps != 1 else "; 1 token"
    found = VerificationRound(
        sizes=sizes,
        results=len(want),
        worst=max((d.size for d in apart.values()), default=0.0),
        note=f"{note} by {decode.asked.settings.strategy} decoding",
    )
    wrong = {n: d for n, d in apart.items() if d.what}
    if wrong:
        found = replace(
            found, note=found.note + _explain_difference(decode, got, want, wrong, sizes)
        )
    return found


def _explain_difference(
    decode: _Decode,
    got: Mapping[str, Array],
    want: Mapping[str, Array],
    wrong: Mapping[str, ResultDifference],
    sizes: Mapping[str, int],
) -> str:
    """Return a note if rounding changes the results in the reference, too; raise E0930 if not."""
    half = half_format_of(decode.graph)

    def run_rounded(errors: RoundingErrors) -> dict[str, Array]:
        errors.after = HalfRounding(errors.rng) if half else None
        return decode.results(errors)

    bounds = bounds_of_samples(run_rounded, want)
    # after a different token the rest of the sequence differs too
    changed = np.isinf(bounds["tokens"]).cumsum(-1) > 0
    bounds["tokens"] = np.where(changed, np.inf, bounds["tokens"])
    for name in bounds.keys() - {"tokens"}:
        any_step = changed[:, 0] if name == "log_probs" else changed.any(-1)
        bounds[name] = np.where(any_step, np.inf, bounds[name])
    for name, difference in wrong.items():
        if not is_explained(got[name], want[name], bounds[name]):
            notes = [*difference.notes, format_lengths(sizes)]
            raise_error("E0930", difference.what, notes=notes)
    return f", where {half or 'float32'} rounding changes results"


def _fill_inputs(steps: list[Array], width: int) -> Array:
    """Stack per-step arrays to [batch width], padded with -1."""
    fill = [np.full_like(steps[0], -1)] * (width - len(steps))
    return np.stack([*steps, *fill], -1)


def _pad_prompt(rows: list[list[list[int]]], settings: GenerationSettings) -> Array:
    """Stack to i64[batch n steps], padded to `max_tokens`."""
    width = settings.max_tokens
    made = [[[*t, *[settings.padding_token] * (width - len(t))] for t in row] for row in rows]
    return np.array(made, np.int64)


def _cut_prompt(text: list[int], stops: tuple[int, ...]) -> list[int]:
    """Truncate a sequence at its first stop token."""
    end = next((n + 1 for n, token in enumerate(text) if token in stops), len(text))
    return text[:end]

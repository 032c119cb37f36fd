"""Beam search with any decoder session that returns next-token logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import (
    Bools,
    DecoderSession,
    Floats,
    Ints,
    LogitsProcessorInputs,
    apply_repetition_penalty,
    check_logits,
    compute_log_softmax_f32,
    find_top_k_indices,
    list_prompt_tokens,
    make_prompt_mask,
    make_repetition_penalty_mask,
    mask_disallowed_tokens,
)

MIN_SCORE = float(np.finfo(np.float32).min)
"""The minimum score of a beam, which is also the score of an unused beam."""

StopPredicate = Callable[[Sequence[int]], bool]
"""A predicate: True if the last token of a sequence completes a stop string."""


@dataclass(frozen=True, slots=True)
class BeamHypothesis:
    """A finished hypothesis of beam search. `tokens` are the generated tokens, including a stop
    token. `has_ended` is False if generation stopped at the maximum length.

    `score` is the sum of log-probabilities (after a repetition penalty) divided by `len(tokens) **
    length_penalty`. If requested, `log_probs` are the log-probabilities of the tokens, computed
    from the unprocessed logits.
    """

    tokens: tuple[int, ...]
    score: float
    has_ended: bool
    log_probs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Beam:
    """An unfinished hypothesis (live beam). `score` is the sum of the log-probabilities of the
    tokens. `tokens` and `log_probs` have the same meaning as in `BeamHypothesis`.
    """

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    log_probs: tuple[float, ...] = ()


@dataclass(slots=True)
class _PromptSearch:
    """The beam search of one prompt: the live `beams` and the `finished` hypotheses, best first."""

    prompt_index: int
    beams: list[_Beam] = field(default_factory=lambda: [_Beam()])
    parent_indices: list[int] = field(default_factory=list)
    """For each beam, the batch index of its parent beam, i.e. the parent's row in the logits."""
    finished: list[BeamHypothesis] = field(default_factory=list)
    is_finished: bool = False


def run_beam_search(
    session: DecoderSession,
    prompt: Ints,
    settings: GenerationSettings,
    *,
    padding_mask: Bools | None = None,
    should_stop: StopPredicate | None = None,
) -> list[list[BeamHypothesis]]:
    """Return the best `settings.num_return_sequences` hypotheses of each prompt in `prompt`, int64
    [batch, n], best first. The result for a prompt may contain fewer than `num_return_sequences`
    hypotheses.

    `padding_mask` is a bool array [batch, n]. The model processes each prompt once, and all beams
    of the prompt share the resulting KV cache.
    """
    assert prompt.ndim == 2, "a prompt has the shape [batch, tokens]"
    if not len(prompt):
        return []
    searches = [*map(_PromptSearch, range(len(prompt)))]
    live_searches = searches
    logits = check_logits(session.step(prompt), np.ones(len(prompt), np.bool_))
    seen = make_repetition_penalty_mask(
        prompt, logits.shape[1], settings.repetition_penalty, padding_mask
    )
    is_token = make_prompt_mask(prompt, padding_mask)
    lengths = is_token.sum(axis=1)
    prompt_ids = list_prompt_tokens(prompt, is_token) if settings.needs_previous_tokens else []
    while True:
        position = _get_processor_inputs(live_searches, lengths, prompt_ids)
        _advance_beams(live_searches, logits, seen, settings, position, should_stop)
        # Remove finished searches and their beams from the batch: if search 1 of [0, 1, 2] is
        # finished, the beams of searches 0 and 2 remain in order.
        live_searches = [search for search in live_searches if not search.is_finished]
        if not live_searches:
            return [s.finished[: settings.num_return_sequences] for s in searches]
        logits, seen = _step_last_tokens(session, live_searches, seen)


def _step_last_tokens(
    session: DecoderSession, live_searches: Sequence[_PromptSearch], seen_tokens: Bools | None
) -> tuple[Floats, Bools | None]:
    """Run the model on the last token of each beam. Return the next-token logits, float32 [beams,
    vocab], and the mask of the tokens in each beam, bool [beams, vocab].
    """
    parents = np.array([row for search in live_searches for row in search.parent_indices], np.int64)
    last_tokens = np.array(
        [beam.tokens[-1] for search in live_searches for beam in search.beams], np.int64
    )
    session.reorder(parents)
    if seen_tokens is not None:
        seen_tokens = seen_tokens[parents]
        seen_tokens[np.arange(len(parents)), last_tokens] = True
    is_unfinished = np.ones(len(parents), np.bool_)
    return check_logits(
        session.step(last_tokens[:, None]), is_unfinished, _list_prompt_indices(live_searches)
    ), seen_tokens


def _list_prompt_indices(live_searches: Sequence[_PromptSearch]) -> list[int]:
    """Return the prompt index of each live beam, for all searches."""
    return [search.prompt_index for search in live_searches for _ in search.beams]


def _get_processor_inputs(
    live_searches: Sequence[_PromptSearch], lengths: Ints, prompt_ids: Sequence[Sequence[int]]
) -> LogitsProcessorInputs:
    """Return the inputs of the logits processors for all live beams."""
    prompt_indices = _list_prompt_indices(live_searches)
    beams = [beam for search in live_searches for beam in search.beams]
    sequences = [
        [*prompt_ids[prompt_index], *b.tokens]
        for prompt_index, b in zip(prompt_indices, beams, strict=True)
        if prompt_ids
    ]
    return LogitsProcessorInputs(
        step=len(beams[0].tokens), prompt_lengths=lengths[prompt_indices], sequences=sequences
    )


def _advance_beams(
    searches: Sequence[_PromptSearch],
    logits: Floats,
    seen_tokens: Bools | None,
    settings: GenerationSettings,
    position: LogitsProcessorInputs,
    ends_sequence: StopPredicate | None,
) -> None:
    """Extend all beams by a token. The best candidates become live beams or, after a stop token,
    finished hypotheses.
    """
    log_probs = compute_log_softmax_f32(logits)
    scores = (
        log_probs
        if seen_tokens is None
        else apply_repetition_penalty(log_probs, seen_tokens, settings.repetition_penalty)
    )
    scores = mask_disallowed_tokens(scores, settings, position)
    if settings.renormalize_logits:
        # skip a beam if all its scores are -inf, because it has no candidate
        has_candidates = scores.max(axis=1) > -np.inf
        scores = scores.copy()
        scores[has_candidates] = compute_log_softmax_f32(scores[has_candidates])
    start = 0
    for search in searches:
        count, vocab = len(search.beams), logits.shape[1]
        sums = scores[start : start + count] + np.array(
            [[b.score] for b in search.beams], np.float32
        )
        flat_indices = find_top_k_indices(
            sums.reshape(1, -1), max(2, 1 + len(settings.stop)) * settings.num_beams
        )[0]
        candidates: list[tuple[int, _Beam]] = []
        for flat_index in flat_indices:
            parent_index, token = divmod(int(flat_index), vocab)
            if sums[parent_index, token] == -np.inf:
                break  # the candidate has probability zero, and later candidates are not better
            parent = search.beams[parent_index]
            beam = _Beam(
                tokens=(*parent.tokens, token),
                score=float(sums[parent_index, token]),
                log_probs=(*parent.log_probs, float(log_probs[start + parent_index, token])),
            )
            candidates.append((start + parent_index, beam))
        _sort_candidates(search, candidates, settings, ends_sequence)
        start += count


def _sort_candidates(
    search: _PromptSearch,
    candidates: Sequence[tuple[int, _Beam]],
    settings: GenerationSettings,
    ends_sequence: StopPredicate | None,
) -> None:
    """Add completed candidates to the finished hypotheses, and other candidates to the live beams.
    `candidates` are sorted from best to worst, and each candidate contains the index of its parent
    beam.
    """
    is_last_step = len(search.beams[0].tokens) + 1 == settings.max_tokens
    unfinished: list[tuple[int, _Beam]] = []
    for rank, (parent_index, beam) in enumerate(candidates):
        has_ended = beam.tokens[-1] in settings.stop or (
            ends_sequence is not None and ends_sequence(beam.tokens)
        )
        if not has_ended and not is_last_step:
            unfinished.append((parent_index, beam))
        # as in transformers, drop a completed hypothesis that is not among the first `num_beams`
        # candidates: later candidates only replace completed beams
        elif rank < settings.num_beams:
            search.finished.append(_make_hypothesis(beam, has_ended, settings))
    # a stable sort keeps the order of hypotheses with equal scores
    search.finished = sorted(search.finished, key=lambda h: -h.score)[: settings.num_beams]
    unfinished = unfinished[: settings.num_beams]
    search.parent_indices, search.beams = (
        [parent_index for parent_index, _ in unfinished],
        [beam for _, beam in unfinished],
    )
    search.is_finished = not unfinished or _is_search_final(search, settings)


def _make_hypothesis(beam: _Beam, has_ended: bool, settings: GenerationSettings) -> BeamHypothesis:
    score = _normalize_score(beam.score, len(beam.tokens), settings)
    return BeamHypothesis(
        beam.tokens, score, has_ended, beam.log_probs if settings.log_probs else None
    )


def _normalize_score(score: float, length: int, settings: GenerationSettings) -> float:
    """Return `score / length ** length_penalty` as float32, at least `MIN_SCORE`."""
    # a power that overflows produces NaN, and NaN must not rank first
    with np.errstate(all="ignore"):
        return max(
            MIN_SCORE, float(np.float32(score / np.float64(length) ** settings.length_penalty))
        )


def _is_search_final(search: _PromptSearch, settings: GenerationSettings) -> bool:
    """Return True if the list of finished hypotheses is full and later steps cannot change the
    list.

    If `early_stopping` is True, a full list is final. Otherwise, a full list is final if no live
    beam can reach a better score. The best possible score is computed for the current length. With
    `early_stopping: never` and a positive length penalty, the best possible score is computed for
    the maximum length instead.
    """
    if len(search.finished) < settings.num_beams:
        return False
    if settings.early_stopping is True:
        return True
    best_beam = search.beams[0]
    uses_max_length = settings.early_stopping == "never" and settings.length_penalty > 0
    length = settings.max_tokens if uses_max_length else len(best_beam.tokens)
    return _normalize_score(best_beam.score, length, settings) <= search.finished[-1].score

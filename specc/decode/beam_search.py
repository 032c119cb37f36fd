"""Beam search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_choice import (
    Bools,
    DecodePosition,
    Floats,
    Ints,
    Stepper,
    apply_repetition_penalty,
    check_logits,
    initial_seen_tokens,
    log_softmax_f32,
    mask_disallowed_tokens,
    prompt_lengths,
    prompt_tokens,
    top_k_indices,
)

MIN_SCORE = float(np.finfo(np.float32).min)
"""The lowest score of a sequence; minus infinity marks an unused beam."""

EndsSequence = Callable[[Sequence[int]], bool]
"""Returns whether a sequence ends with its newest token for another reason than a stop token: a
stop string."""


@dataclass(frozen=True, slots=True)
class BeamHypothesis:
    """A hypothesis of beam search. `tokens` are the generated ones, including a stop token; `ended`
    is False at the length limit.

    `score` is the sum of log-probabilities (after a repetition penalty) over
    `len(tokens) ** length_penalty`. `log_probs` are each token's log-probability under the raw
    model, if requested.
    """

    tokens: tuple[int, ...]
    score: float
    ended: bool
    log_probs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Beam:
    """An unfinished hypothesis: its summed score, and fields as in `BeamHypothesis`."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    log_probs: tuple[float, ...] = ()


@dataclass(slots=True)
class _Search:
    """Beam search of one prompt: live `beams`, and `found` finished hypotheses, best first."""

    row: int
    """Index of the prompt."""
    beams: list[_Beam] = field(default_factory=lambda: [_Beam()])
    parents: list[int] = field(default_factory=list)
    """The row of the logits that each beam continues."""
    found: list[BeamHypothesis] = field(default_factory=list)
    is_finished: bool = False


def search_beams(
    stepper: Stepper,
    prompt: Ints,
    settings: GenerationSettings,
    *,
    keep: Bools | None = None,
    ends: EndsSequence | None = None,
) -> list[list[BeamHypothesis]]:
    """Return, for each row of `prompt` i64[rows n], its `settings.num_return_sequences` best
    hypotheses, best first; fewer only if fewer exist.

    `keep` bool[rows n] is the padding mask. The prompt is fed once for all beams of a row, which
    then branch.
    """
    assert prompt.ndim == 2, "a prompt is [rows, tokens]"
    if not len(prompt):
        return []
    searches = [*map(_Search, range(len(prompt)))]
    live = searches
    logits = check_logits(stepper.step(prompt), np.ones(len(prompt), np.bool_))
    seen = initial_seen_tokens(prompt, logits.shape[1], settings.repetition_penalty, keep)
    lengths = prompt_lengths(prompt, keep)
    prompts = prompt_tokens(prompt, keep) if settings.reads_texts else []
    while True:
        place = _locate_beams(live, lengths, prompts)
        _advance_beams(live, logits, seen, settings, place, ends)
        # A finished search leaves the batch together with its beams: if search 1 of [0, 1, 2] is
        # finished, the beams of 0 and 2 continue in this order.
        live = [search for search in live if not search.is_finished]
        if not live:
            return [s.found[: settings.num_return_sequences] for s in searches]
        logits, seen = _feed_newest(stepper, live, seen)


def _feed_newest(
    stepper: Stepper, live: Sequence[_Search], seen: Bools | None
) -> tuple[Floats, Bools | None]:
    """Feed the newest token of each beam; return the next logits, and the tokens of each beam."""
    rows = np.array([row for search in live for row in search.parents], np.int64)
    newest = np.array([beam.tokens[-1] for search in live for beam in search.beams], np.int64)
    stepper.reorder(rows)
    if seen is not None:
        seen = seen[rows]
        seen[np.arange(len(rows)), newest] = True
    every = np.ones(len(rows), np.bool_)
    return check_logits(stepper.step(newest[:, None]), every, _list_prompt_rows(live)), seen


def _list_prompt_rows(live: Sequence[_Search]) -> list[int]:
    """Return the prompt of each beam."""
    return [search.row for search in live for _ in search.beams]


def _locate_beams(
    live: Sequence[_Search], lengths: Ints, prompts: Sequence[Sequence[int]]
) -> DecodePosition:
    """Return the position of the beams of all searches."""
    rows = _list_prompt_rows(live)
    beams = [beam for search in live for beam in search.beams]
    texts = [[*prompts[row], *b.tokens] for row, b in zip(rows, beams, strict=True) if prompts]
    return DecodePosition(step=len(beams[0].tokens), prompts=lengths[rows], texts=texts)


def _advance_beams(
    searches: Sequence[_Search],
    logits: Floats,
    seen: Bools | None,
    settings: GenerationSettings,
    place: DecodePosition,
    ends: EndsSequence | None,
) -> None:
    """Advance every search."""
    raw = log_softmax_f32(logits)
    scores = (
        raw if seen is None else apply_repetition_penalty(raw, seen, settings.repetition_penalty)
    )
    scores = mask_disallowed_tokens(scores, settings, place)
    if settings.renormalize_logits:
        # a row that may not continue has no distribution
        some = scores.max(axis=1) > -np.inf
        scores = scores.copy()
        scores[some] = log_softmax_f32(scores[some])
    first = 0
    for search in searches:
        count, vocab = len(search.beams), logits.shape[1]
        sums = scores[first : first + count] + np.array(
            [[b.score] for b in search.beams], np.float32
        )
        places = top_k_indices(
            sums.reshape(1, -1), max(2, 1 + len(settings.stop)) * settings.num_beams
        )[0]
        continued: list[tuple[int, _Beam]] = []
        for at in places:
            row, token = divmod(int(at), vocab)
            if sums[row, token] == -np.inf:
                break  # impossible; the remaining ones are not better
            old = search.beams[row]
            beam = _Beam(
                tokens=(*old.tokens, token),
                score=float(sums[row, token]),
                log_probs=(*old.log_probs, float(raw[first + row, token])),
            )
            continued.append((first + row, beam))
        _sort_candidates(search, continued, settings, ends)
        first += count


def _sort_candidates(
    search: _Search,
    continued: Sequence[tuple[int, _Beam]],
    settings: GenerationSettings,
    ends: EndsSequence | None,
) -> None:
    """Move finished hypotheses to the results and the others to the beams. `continued` are the
    candidates, best first, each with its parent row.
    """
    last = len(search.beams[0].tokens) + 1 == settings.max_tokens
    going: list[tuple[int, _Beam]] = []
    for place, (row, beam) in enumerate(continued):
        ended = beam.tokens[-1] in settings.stop or (ends is not None and ends(beam.tokens))
        if not ended and not last:
            going.append((row, beam))
        # an end among the later candidates is not kept: transformers considers them only to find
        # enough beams that continue
        elif place < settings.num_beams:
            search.found.append(_finish_hypotheses(beam, ended, settings))
    # stable: the first of equal scores
    search.found = sorted(search.found, key=lambda h: -h.score)[: settings.num_beams]
    going = going[: settings.num_beams]
    search.parents, search.beams = [row for row, _ in going], [beam for _, beam in going]
    search.is_finished = not going or _is_decided(search, settings)


def _finish_hypotheses(beam: _Beam, ended: bool, settings: GenerationSettings) -> BeamHypothesis:
    score = _normalize_score(beam.score, len(beam.tokens), settings)
    return BeamHypothesis(beam.tokens, score, ended, beam.log_probs if settings.log_probs else None)


def _normalize_score(score: float, length: int, settings: GenerationSettings) -> float:
    """Return `score / length ** length_penalty` as float32, at least `MIN_SCORE`."""
    # NaN, from a power that overflowed, must not rank first
    with np.errstate(all="ignore"):
        return max(
            MIN_SCORE, float(np.float32(score / np.float64(length) ** settings.length_penalty))
        )


def _is_decided(search: _Search, settings: GenerationSettings) -> bool:
    """Return whether a full list of finished hypotheses is final.

    With `early_stopping` it is as soon as it is full. Otherwise it is when the best beam cannot
    enter it: at its current length, or with "never" and a length penalty above 0 at the maximum
    length, where the penalty helps it most.
    """
    if len(search.found) < settings.num_beams:
        return False
    if settings.early_stopping is True:
        return True
    leader = search.beams[0]
    farthest = settings.early_stopping == "never" and settings.length_penalty > 0
    length = settings.max_tokens if farthest else len(leader.tokens)
    return _normalize_score(leader.score, length, settings) <= search.found[-1].score

"""Beam search: the texts of the highest probability that a search over several unfinished texts at once finds.

As in transformers 5, so that both write the same: the score of a text is the sum of its tokens' log-probabilities; at
each step the best `max(2, 1 + stops) * beams` continuations of all beams are looked at; those among the first `beams`
that end are finished texts, with the score divided by `length ** length_penalty` (length counts written tokens, the
stop included); the best `beams` that go on are the new beams. Of equal scores the earlier beam, then the lower token,
goes first. Every text of a batch is searched by itself and leaves the batch when its search is over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specc.generation.choose import best, log_softmax
from specc.generation.penalties import repetition, seen_in
from specc.generation.settings import Settings
from specc.generation.stepper import Bools, Floats, Ints, Stepper, logits_of

LEAST = float(np.finfo(np.float32).min)
"""The lowest score of a text; minus infinity is that of what is none."""

Ends = Callable[[Sequence[int]], bool]
"""Whether a text ends with its newest token, for reasons of its own: a stop string."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One text found. `tokens` are what was written, a stop token included; `ended` says whether it ended by itself.

    `score` is the sum of log-probabilities (after a repetition penalty) over `len(tokens) ** length_penalty`.
    `log_probs` holds each token's log-probability under the model as it is, where asked for.
    """

    tokens: tuple[int, ...]
    score: float
    ended: bool
    log_probs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Beam:
    """A text that goes on: its summed score, and what `Hypothesis` says of the rest."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    log_probs: tuple[float, ...] = ()


@dataclass(slots=True)
class _Search:
    """The search for one text: `beams` go on, `found` are finished, best first, at most as many as beams."""

    beams: list[_Beam] = field(default_factory=lambda: [_Beam()])
    found: list[Hypothesis] = field(default_factory=list)
    over: bool = False


def searched(
    stepper: Stepper, prompt: Ints, settings: Settings, *, keep: Bools | None = None, ends: Ends | None = None
) -> list[list[Hypothesis]]:
    """For each row of `prompt` i64[rows n], n >= 1, its `settings.n_best` best texts, best first.

    There are fewer only where fewer exist. `keep` bool[rows n] says which tokens of the prompt are no padding. The
    prompt is fed once for all beams of a row, which then fan out.
    """
    assert settings.strategy == "beam", "this is the search of `beam`"
    assert prompt.ndim == 2, "a prompt is [rows, tokens]"
    assert prompt.shape[1], "a text begins with at least one token"
    if not len(prompt):
        return []
    searches = [_Search() for _ in prompt]
    live = list(range(len(prompt)))
    logits = logits_of(stepper.step(prompt), np.ones(len(prompt), np.bool_))
    seen = seen_in(prompt, logits.shape[1], keep) if settings.repetition_penalty != 1 else None
    while True:
        parents = _advance([searches[r] for r in live], logits, seen, settings, ends)
        going = [n for n, r in enumerate(live) if not searches[r].over]
        live = [live[n] for n in going]
        if not live:
            return [s.found[: settings.n_best] for s in searches]
        rows = np.array([row for n in going for row in parents[n]], np.int64)
        newest = np.array([b.tokens[-1] for r in live for b in searches[r].beams], np.int64)
        stepper.reorder(rows)
        if seen is not None:
            seen = seen[rows]
            seen[np.arange(len(rows)), newest] = True
        texts = [r for r in live for _ in searches[r].beams]
        logits = logits_of(stepper.step(newest[:, None]), np.ones(len(rows), np.bool_), texts)


def _advance(
    searches: Sequence[_Search], logits: Floats, seen: Bools | None, settings: Settings, ends: Ends | None
) -> list[list[int]]:
    """One step of every search; for each the row of `logits` f32[beams of all, vocab] that each new beam continues."""
    raw = log_softmax(logits)
    scores = raw if seen is None else repetition(raw, seen, settings.repetition_penalty)
    parents, first = [], 0
    for search in searches:
        count, vocab = len(search.beams), logits.shape[1]
        sums = scores[first : first + count] + np.array([[b.score] for b in search.beams], np.float32)
        places = best(sums.reshape(1, -1), max(2, 1 + len(settings.stop)) * settings.beams)[0]
        made: list[tuple[int, _Beam]] = []
        for place in places:
            row, token = divmod(int(place), vocab)
            if sums[row, token] == -np.inf:
                break  # what is impossible is no text
            old = search.beams[row]
            log_prob = float(raw[first + row, token])
            made.append((first + row, _Beam((*old.tokens, token), float(sums[row, token]), (*old.log_probs, log_prob))))
        parents.append(_sorted_out(search, made, settings, ends))
        first += count
    return parents


def _sorted_out(search: _Search, made: Sequence[tuple[int, _Beam]], settings: Settings, ends: Ends | None) -> list[int]:
    """What ends is finished, what goes on are the new beams; gives the row each of those continues.

    `made` are the continuations looked at, best first, each behind the row it comes from.
    """
    last = len(search.beams[0].tokens) + 1 == settings.max_tokens
    going: list[tuple[int, _Beam]] = []
    for place, (row, beam) in enumerate(made):
        ended = beam.tokens[-1] in settings.stop or (ends is not None and ends(beam.tokens))
        if not ended and not last:
            going.append((row, beam))
        elif place < settings.beams:
            search.found.append(_finished(beam, ended, settings))
    search.found = sorted(search.found, key=lambda h: -h.score)[: settings.beams]  # stable: of equals the earlier
    going = going[: settings.beams]
    search.beams = [beam for _, beam in going]
    search.over = not going or _decided(search, settings)
    return [row for row, _ in going]


def _finished(beam: _Beam, ended: bool, settings: Settings) -> Hypothesis:
    score = _normalized(beam.score, len(beam.tokens), settings)
    return Hypothesis(beam.tokens, score, ended, beam.log_probs if settings.log_probabilities else None)


def _normalized(score: float, length: int, settings: Settings) -> float:
    """`score / length ** length_penalty`, rounded once to float32; the least there is where it leaves that range."""
    with np.errstate(all="ignore"):  # what is no number, of a power beyond all numbers, does not come first here
        return max(LEAST, float(np.float32(score / np.float64(length) ** settings.length_penalty)))


def _decided(search: _Search, settings: Settings) -> bool:
    """Whether a full list of finished texts is final.

    With `early_stopping` it is as soon as it is full. Otherwise it is when the best beam could not get into it: as long
    as it is now, or with "never" and a length penalty above 0 at the greatest length there can be, where the penalty
    helps it most.
    """
    if len(search.found) < settings.beams:
        return False
    if settings.early_stopping is True:
        return True
    leader = search.beams[0]
    farthest = settings.early_stopping == "never" and settings.length_penalty > 0
    length = settings.max_tokens if farthest else len(leader.tokens)
    return _normalized(leader.score, length, settings) <= search.found[-1].score

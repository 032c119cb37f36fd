"""Tokens that are not allowed next: banned words, minimum length, n-grams, forced tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specc.decode.generation_settings import GenerationSettings
from specc.decode.stepper_protocol import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePosition:
    """Where the texts are: how many tokens are written of each, `step`; how many stood
    before, `prompts` i64[rows]; and, where tokens may not repeat, all of them, `texts`.
    """

    step: int
    prompts: Ints
    texts: Sequence[Sequence[int]] = ()


def prompt_lengths(prompt: Ints, keep: Bools | None) -> Ints:
    """How many tokens of each prompt i64[rows n] are no padding, i64[rows]."""
    if keep is None:
        return np.full(len(prompt), prompt.shape[1], np.int64)
    made: Ints = np.asarray(keep, np.bool_).sum(axis=1)
    return made


def prompt_tokens(prompt: Ints, keep: Bools | None) -> list[list[int]]:
    """The tokens of each prompt that are no padding."""
    if keep is None:
        return [[int(t) for t in row] for row in prompt]
    exist = np.asarray(keep, np.bool_)
    return [[int(t) for t in row[there]] for row, there in zip(prompt, exist, strict=True)]


def mask_disallowed_tokens(
    scores: Floats, settings: GenerationSettings, place: DecodePosition
) -> Floats:
    """f32[rows vocab] with minus infinity for what may not come next."""
    if place.step < len(settings.begin):
        # what a text has to begin with is not held to what else is said
        return _only(scores, settings.begin[place.step])
    banned = _banned(scores.shape, settings, place)
    if banned is not None:
        scores = np.where(banned, np.float32(-np.inf), scores)
    if settings.forced_eos_token_id is not None and place.step + 1 == settings.max_tokens:
        scores = _only(scores, (settings.forced_eos_token_id,))
    never = [
        *settings.suppress_tokens,
        *(settings.begin_suppress_tokens if place.step == len(settings.begin) else ()),
    ]
    known = [token for token in never if token < scores.shape[1]]
    if known:
        scores = scores.copy()
        scores[:, known] = -np.inf
    return scores


def _only(scores: Floats, tokens: Sequence[int]) -> Floats:
    """Nothing but these tokens; of a single one, which is certain then, the score is 0."""
    made = np.full_like(scores, -np.inf)
    made[:, tokens] = scores[:, tokens] if len(tokens) > 1 else 0
    return made


def _banned(
    shape: tuple[int, ...], settings: GenerationSettings, place: DecodePosition
) -> Bools | None:
    """bool[rows vocab]: stops that come too early, and what would repeat; None where
    nothing does.
    """
    early = place.prompts + place.step < settings.min_length
    early |= place.step < settings.min_tokens
    stops = [token for token in settings.stop if token < shape[1]]
    if not settings.reads_texts and not (stops and early.any()):
        return None
    banned = np.zeros(shape, np.bool_)
    for token in stops:
        banned[early, token] = True
    for row, text in enumerate(place.texts):
        ends = [*_again(text, settings.no_repeat_ngram_size), *_ends(text, settings.bad_words_ids)]
        banned[row, [t for t in ends if t < shape[1]]] = True
    return banned


def _again(text: Sequence[int], size: int) -> list[int]:
    """The tokens that would end a run of `size` which the text has already (Paulus et al.
    2017, arXiv:1705.04304, sec. 2.5).
    """
    if not size or len(text) + 1 < size:
        return []
    newest = list(text[len(text) - size + 1 :])
    return [
        text[at + size - 1]
        for at in range(len(text) - size + 1)
        if list(text[at : at + size - 1]) == newest
    ]


def _ends(text: Sequence[int], runs: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that would end one of these runs, whose others the text ends with."""
    return [
        run[-1] for run in runs if list(run[:-1]) == list(text[max(len(text) - len(run) + 1, 0) :])
    ]

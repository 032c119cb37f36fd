"""Greedy search and sampling: one token per step for every sequence of a batch."""

from collections.abc import Iterator, Sequence

import numpy as np

from specc.decode.generation_settings import GenerationSettings
from specc.decode.stepper_protocol import (
    Bools,
    DecodeObserver,
    DecodeStep,
    Floats,
    Ints,
    Stepper,
    check_logits,
    check_prompt,
)
from specc.decode.token_choice import (
    DecodePosition,
    apply_repetition_penalty,
    filter_candidates,
    initial_seen_tokens,
    log_softmax_f32,
    mask_disallowed_tokens,
    prompt_lengths,
    prompt_tokens,
    sample_token,
    sampling_uniforms,
    sampling_uniforms_at,
)


def decode_steps(
    stepper: Stepper,
    prompt: Ints,
    settings: GenerationSettings,
    *,
    keep: Bools | None = None,
    watch: DecodeObserver | None = None,
    numbers: Sequence[int] = (),
) -> Iterator[DecodeStep]:
    """Yield the tokens after `prompt` i64[rows n] step by step, until every row has ended.

    `keep` bool[rows n] is the padding mask; the stepper has its own. The last token of each row is
    never fed. Log-probabilities are of the raw model, before penalty, temperature and filters. The
    seed samples a row by its index, or by that in `numbers`.

    `settings.strategy` is greedy or sample; `specc.decode.beam_search.search_beams` is the third.
    """
    assert settings.strategy in ("greedy", "sample"), "a beam search has no single next token"
    check_prompt(prompt)
    if not len(prompt):
        return
    rows = np.arange(len(prompt))
    ended = np.zeros(len(prompt), np.bool_)
    logits = check_logits(stepper.step(prompt), ~ended)
    seen = initial_seen_tokens(prompt, logits.shape[1], settings.repetition_penalty, keep)
    lengths = prompt_lengths(prompt, keep)
    texts = prompt_tokens(prompt, keep) if settings.reads_texts else []
    for step in range(settings.max_tokens):
        place = DecodePosition(step=step, prompts=lengths, texts=texts)
        uniform = _uniform(settings, numbers, step)
        chosen = choose_next_tokens(logits, seen, settings, place, uniform)
        tokens = np.where(ended, settings.filler, chosen)
        scores = token_log_probs(logits, chosen, ended) if settings.log_probs else None
        if seen is not None:
            # of a row that has ended too: nothing of it is read any more
            seen[rows, chosen] = True
        for text, token in zip(texts, chosen, strict=False):
            text.append(int(token))
        ended = ended | np.isin(tokens, settings.stop)
        if watch is not None:
            ended = ended | watch(tokens, ended.copy())
        yield DecodeStep(tokens, scores, ended.copy())
        if ended.all() or step + 1 == settings.max_tokens:
            return
        logits = check_logits(stepper.step(tokens[:, None]), ~ended)


def _uniform(settings: GenerationSettings, numbers: Sequence[int], step: int) -> Floats | None:
    """Return the sampling uniforms of rows with these numbers; None without sampling, or for batch
    indices.
    """
    if not numbers or settings.strategy != "sample":
        return None
    return sampling_uniforms_at(settings.seed, [(number, step) for number in numbers])


def choose_next_tokens(
    logits: Floats,
    seen: Bools | None,
    settings: GenerationSettings,
    place: DecodePosition,
    uniform: Floats | None = None,
) -> Ints:
    """Choose the next token of every row, i64[rows], from logits f32[rows vocab]; tokens in `seen`
    bool[rows vocab] are penalized.

    `uniform` f32[rows] are the sampling uniforms; by default those of the seed and batch index.
    """
    if seen is not None:
        logits = apply_repetition_penalty(logits, seen, settings.repetition_penalty)
    logits = mask_disallowed_tokens(logits, settings, place)
    if settings.strategy == "greedy":
        best: Ints = logits.argmax(axis=1)
        return best
    if uniform is None:
        uniform = sampling_uniforms(settings.seed, len(logits), place.step)
    return sample_token(filter_candidates(logits, settings), uniform)


def token_log_probs(logits: Floats, chosen: Ints, ended: Bools) -> Floats:
    """Return f32[rows]: log-probabilities of the chosen tokens, 0 for rows that ended before."""
    scores: Floats = np.take_along_axis(log_softmax_f32(logits), chosen[:, None], axis=1)[:, 0]
    scores[ended] = 0
    return scores

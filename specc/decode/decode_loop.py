"""Greedy search and sampling: each step generates one token per sequence of a batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import (
    Bools,
    DecodeObserver,
    DecodePosition,
    DecoderSession,
    DecodeStepOutput,
    Floats,
    Ints,
    apply_repetition_penalty,
    check_logits,
    compute_log_softmax_f32,
    count_prompt_tokens,
    filter_candidates,
    find_penalized_tokens,
    list_prompt_tokens,
    make_position_uniforms,
    make_sampling_uniforms,
    mask_disallowed_tokens,
    sample_token,
)


@dataclass(frozen=True, slots=True)
class TokenSchedule:
    """The steps in which each sequence of a batch generates tokens: from `starts` up to `ends`,
    int64 [batch]. In earlier steps, its tokens are those of `delayed_tokens`, int64 [batch, longest
    delay].
    """

    starts: Ints
    ends: Ints
    delayed_tokens: Ints

    @staticmethod
    def from_settings(
        settings: GenerationSettings, batch_size: int, delayed_tokens: Ints | None
    ) -> "TokenSchedule":
        """Create the schedule of a batch of `batch_size` sequences. The delay pattern is repeated
        for all batch elements.
        """
        delays = np.resize(settings.delay_pattern or 0, batch_size)
        ends = settings.max_tokens - delays.max() + delays
        if delayed_tokens is None:
            delayed_tokens = np.zeros((batch_size, 0), np.int64)
        return TokenSchedule(delays, ends, delayed_tokens)

    def place_tokens(
        self, step: int, new_tokens: Ints, has_ended: Bools, padding_token: int
    ) -> tuple[Ints, Bools]:
        """Return the tokens of a step, int64 [batch], and a bool array [batch], true where the
        token is one of `new_tokens` rather than a delayed or padding token.
        """
        is_chosen = (step >= self.starts) & (step < self.ends) & ~has_ended
        tokens = np.where(is_chosen, new_tokens, padding_token)
        if step < self.delayed_tokens.shape[1]:
            tokens = np.where(step < self.starts, self.delayed_tokens[:, step], tokens)
        return tokens, is_chosen


def iterate_decode_steps(
    session: DecoderSession,
    prompt: Ints,
    settings: GenerationSettings,
    *,
    padding_mask: Bools | None = None,
    observer: DecodeObserver | None = None,
    sample_indices: Sequence[int] = (),
    delayed_tokens: Ints | None = None,
) -> Iterator[DecodeStepOutput]:
    """Yield the tokens after `prompt` i64[batch n] step by step, until every sequence has ended.

    `padding_mask` bool[batch n] is the padding mask of the prompt; the decoder session has its own.
    The model is never run on the last token of a sequence. Log-probabilities are those of the
    model's logits, before penalty, temperature and filters. The seed and the batch index, or the
    index in `sample_indices`, determine the sampling of a sequence.

    A sequence with the delay d in `settings.delay_pattern` begins with d tokens of
    `delayed_tokens`, int64 [batch, longest delay]. `search_beams` implements beam search.
    """
    assert settings.strategy in ("greedy", "sample"), "a beam search has no single next token"
    assert prompt.ndim == 2, "a prompt has the shape [batch, tokens]"
    if not len(prompt):
        return
    has_ended = np.zeros(len(prompt), np.bool_)
    logits = check_logits(session.step(prompt), ~has_ended)
    seen = find_penalized_tokens(prompt, logits.shape[1], settings.repetition_penalty, padding_mask)
    lengths = count_prompt_tokens(prompt, padding_mask)
    sequences = list_prompt_tokens(prompt, padding_mask) if settings.needs_previous_tokens else []
    indices = sample_indices if settings.strategy == "sample" else ()
    schedule = TokenSchedule.from_settings(settings, len(prompt), delayed_tokens)
    for step in range(settings.max_tokens):
        position = DecodePosition(step=step, prompt_lengths=lengths, sequences=sequences)
        positions = [(index, step) for index in indices]
        uniform = make_position_uniforms(settings.seed, positions) if positions else None
        chosen = select_next_tokens(logits, seen, settings, position, uniform)
        tokens, is_chosen = schedule.place_tokens(step, chosen, has_ended, settings.padding_token)
        wants_log_probs = settings.log_probs
        log_probs = compute_token_log_probs(logits, chosen, ~is_chosen) if wants_log_probs else None
        if seen is not None:
            seen[np.flatnonzero(is_chosen), chosen[is_chosen]] = True
        for sequence, token in zip(sequences, tokens, strict=False):
            sequence.append(int(token))
        has_ended = has_ended | (np.isin(tokens, settings.stop) & is_chosen)
        if observer is not None:
            has_ended = has_ended | observer(tokens, has_ended.copy())
        yield DecodeStepOutput(tokens, log_probs, has_ended.copy())
        if has_ended.all() or step + 1 == settings.max_tokens:
            return
        logits = check_logits(session.step(tokens[:, None]), ~has_ended)


def select_next_tokens(
    logits: Floats,
    seen_tokens: Bools | None,
    settings: GenerationSettings,
    position: DecodePosition,
    uniform: Floats | None = None,
) -> Ints:
    """Choose the next token of every sequence, int64 [batch], from the logits
    float32 [batch, vocab]. The repetition penalty applies to the tokens in `seen_tokens`,
    bool [batch, vocab].

    `uniform` are random numbers float32 [batch] for sampling; by default they are derived from the
    seed and the batch index.
    """
    if seen_tokens is not None:
        logits = apply_repetition_penalty(logits, seen_tokens, settings.repetition_penalty)
    logits = mask_disallowed_tokens(logits, settings, position)
    if settings.strategy == "greedy":
        tokens: Ints = logits.argmax(axis=1)
        return tokens
    if uniform is None:
        uniform = make_sampling_uniforms(settings.seed, len(logits), position.step)
    return sample_token(filter_candidates(logits, settings), uniform)


def compute_token_log_probs(logits: Floats, chosen: Ints, is_padded: Bools) -> Floats:
    """Return the log-probabilities of the chosen tokens, float32 [batch], and 0 for sequences that
    get a padding token.
    """
    log_probs = compute_log_softmax_f32(logits)
    scores: Floats = np.take_along_axis(log_probs, chosen[:, None], axis=1)[:, 0]
    scores[is_padded] = 0
    return scores

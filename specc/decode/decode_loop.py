"""Greedy search and sampling: each step generates one token per sequence of a batch."""

from collections.abc import Iterator, Sequence

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


def iterate_decode_steps(
    session: DecoderSession,
    prompt: Ints,
    settings: GenerationSettings,
    *,
    padding_mask: Bools | None = None,
    observer: DecodeObserver | None = None,
    sample_indices: Sequence[int] = (),
) -> Iterator[DecodeStepOutput]:
    """Yield the tokens after `prompt` i64[batch n] step by step, until every sequence has ended.

    `padding_mask` bool[batch n] is the padding mask of the prompt; the decoder session has its own.
    The last token of each sequence is never fed. Log-probabilities are those of the model's
    logits, before penalty, temperature and filters. The seed and the batch index, or the index in
    `sample_indices`, determine the sampling of a sequence.

    `settings.strategy` is greedy or sample (`decode_beams` implements beam search).
    """
    assert settings.strategy in ("greedy", "sample"), "a beam search has no single next token"
    assert prompt.ndim == 2, "a prompt has the shape [batch, tokens]"
    if not len(prompt):
        return
    rows = np.arange(len(prompt))
    ended = np.zeros(len(prompt), np.bool_)
    logits = check_logits(session.step(prompt), ~ended)
    seen = find_penalized_tokens(prompt, logits.shape[1], settings.repetition_penalty, padding_mask)
    lengths = count_prompt_tokens(prompt, padding_mask)
    sequences = list_prompt_tokens(prompt, padding_mask) if settings.needs_previous_tokens else []
    for step in range(settings.max_tokens):
        position = DecodePosition(step=step, prompt_lengths=lengths, sequences=sequences)
        uniform = None
        if sample_indices and settings.strategy == "sample":
            uniform = make_position_uniforms(
                settings.seed, [(number, step) for number in sample_indices]
            )
        chosen = select_next_tokens(logits, seen, settings, position, uniform)
        tokens = np.where(ended, settings.padding_token, chosen)
        scores = compute_token_log_probs(logits, chosen, ended) if settings.log_probs else None
        if seen is not None:
            # finished sequences stay in the batch; their results are ignored
            seen[rows, chosen] = True
        for text, token in zip(sequences, chosen, strict=False):
            text.append(int(token))
        ended = ended | np.isin(tokens, settings.stop)
        if observer is not None:
            ended = ended | observer(tokens, ended.copy())
        yield DecodeStepOutput(tokens, scores, ended.copy())
        if ended.all() or step + 1 == settings.max_tokens:
            return
        logits = check_logits(session.step(tokens[:, None]), ~ended)


def select_next_tokens(
    logits: Floats,
    seen: Bools | None,
    settings: GenerationSettings,
    position: DecodePosition,
    uniform: Floats | None = None,
) -> Ints:
    """Choose the next token of every sequence, int64 [batch], from the logits
    float32 [batch, vocab]. The repetition penalty applies to the tokens in `seen`,
    bool [batch, vocab].

    `uniform` are random numbers float32 [batch] for sampling; by default they are derived from the
    seed and the batch index.
    """
    if seen is not None:
        logits = apply_repetition_penalty(logits, seen, settings.repetition_penalty)
    logits = mask_disallowed_tokens(logits, settings, position)
    if settings.strategy == "greedy":
        best: Ints = logits.argmax(axis=1)
        return best
    if uniform is None:
        uniform = make_sampling_uniforms(settings.seed, len(logits), position.step)
    return sample_token(filter_candidates(logits, settings), uniform)


def compute_token_log_probs(logits: Floats, chosen: Ints, has_ended: Bools) -> Floats:
    """Return the log-probabilities of the chosen tokens, float32 [batch], and 0 for finished
    sequences.
    """
    scores: Floats = np.take_along_axis(compute_log_softmax_f32(logits), chosen[:, None], axis=1)[
        :, 0
    ]
    scores[has_ended] = 0
    return scores

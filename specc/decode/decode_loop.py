"""Greedy search and sampling: each decode step generates one token per sequence of a batch.

Models with several codebooks, such as MusicGen, generate one token per codebook in each time step.
The decode loop processes each codebook of a batch element as a separate sequence. With a delay
pattern (Copet et al., 2023, arXiv:2306.05284, sec. 2.2), codebook k is delayed by
`delay_pattern[k]` steps.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import (
    Bools,
    DecoderSession,
    DecodeStepOutput,
    Floats,
    Ints,
    LogitsProcessorInputs,
    StoppingCriterion,
    apply_repetition_penalty,
    check_logits,
    compute_log_softmax_f32,
    draw_uniforms,
    draw_uniforms_for_steps,
    filter_candidates,
    list_prompt_tokens,
    make_prompt_mask,
    make_repetition_penalty_mask,
    mask_disallowed_tokens,
    sample_token,
)
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass


@immutable_dataclass
class DelayPattern:
    """The steps in which each sequence of a batch generates tokens: from `starts` to `ends`
    (exclusive), int64 [batch]. Before `starts`, the tokens of a sequence are those of
    `delayed_tokens`, int64 [batch, longest delay].
    """

    starts: Ints
    ends: Ints
    delayed_tokens: Ints

    @staticmethod
    def from_settings(
        settings: GenerationSettings, batch_size: int, delayed_tokens: Ints | None
    ) -> "DelayPattern":
        """Create the delay pattern of `batch_size` sequences from the settings."""
        delays = np.resize(settings.delay_pattern or 0, batch_size)
        ends = settings.max_tokens - delays.max() + delays
        if delayed_tokens is None:
            delayed_tokens = np.zeros((batch_size, 0), np.int64)
        return DelayPattern(delays, ends, delayed_tokens)

    def get_tokens(
        self, step: int, new_tokens: Ints, has_ended: Bools, padding_token: int
    ) -> tuple[Ints, Bools]:
        """Return the tokens of a step, int64 [batch], and a bool array [batch], which is true for
        tokens from `new_tokens` and false for delayed and padding tokens.
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
    stopping_criterion: StoppingCriterion | None = None,
    sample_indices: Sequence[int] = (),
    delayed_tokens: Ints | None = None,
) -> Iterator[DecodeStepOutput]:
    """Yield the tokens generated after `prompt`, int64 [batch, n], until all sequences end.

    `padding_mask`, bool [batch, n], is the mask of the prompt. The session has its own mask. The
    model does not process the last generated token. Log-probabilities are computed from the model's
    logits, before penalty, temperature and filters. The seed and the batch index, or the entry of
    `sample_indices`, determine the random numbers of a sequence. A sequence with the delay d in
    `settings.delay_pattern` begins with d tokens of `delayed_tokens`, int64 [batch, longest delay].
    """
    assert settings.strategy in ("greedy", "sample"), "`run_beam_search` implements beam search"
    assert prompt.ndim == 2, "a prompt has the shape [batch, tokens]"
    if not len(prompt):
        return
    has_ended = np.zeros(len(prompt), np.bool_)
    logits = check_logits(session.step(prompt), ~has_ended)
    penalty, vocab_size = settings.repetition_penalty, logits.shape[1]
    seen = make_repetition_penalty_mask(prompt, vocab_size, penalty, padding_mask)
    is_token = make_prompt_mask(prompt, padding_mask)
    lengths = is_token.sum(axis=1)
    sequences = list_prompt_tokens(prompt, is_token) if settings.needs_previous_tokens else []
    indices = sample_indices if settings.strategy == "sample" else ()
    pattern = DelayPattern.from_settings(settings, len(prompt), delayed_tokens)
    for step in range(settings.max_tokens):
        position = LogitsProcessorInputs(step=step, prompt_lengths=lengths, sequences=sequences)
        positions = [(index, step) for index in indices]
        uniform = draw_uniforms_for_steps(settings.seed, positions) if positions else None
        chosen = select_next_tokens(logits, seen, settings, position, uniform)
        tokens, is_chosen = pattern.get_tokens(step, chosen, has_ended, settings.padding_token)
        wants_log_probs = settings.log_probs
        log_probs = compute_token_log_probs(logits, chosen, ~is_chosen) if wants_log_probs else None
        if seen is not None:
            seen[np.flatnonzero(is_chosen), chosen[is_chosen]] = True
        for sequence, token in zip(sequences, tokens, strict=False):
            sequence.append(int(token))
        has_ended = has_ended | (np.isin(tokens, settings.stop) & is_chosen)
        if stopping_criterion is not None:
            has_ended = has_ended | stopping_criterion(tokens, has_ended.copy())
        yield DecodeStepOutput(tokens, log_probs, has_ended.copy())
        if has_ended.all() or step + 1 == settings.max_tokens:
            return
        logits = check_logits(session.step(tokens[:, None]), ~has_ended)


def select_next_tokens(
    logits: Floats,
    seen_tokens: Bools | None,
    settings: GenerationSettings,
    inputs: LogitsProcessorInputs,
    uniforms: Floats | None = None,
) -> Ints:
    """Select the next token of every sequence, int64 [batch], from the logits float32 [batch,
    vocab]. The repetition penalty applies to the tokens in `seen_tokens`, bool [batch, vocab].

    `uniforms` are random numbers float32 [batch] for sampling. By default, `uniforms` are derived
    from the seed and the batch index.
    """
    if seen_tokens is not None:
        logits = apply_repetition_penalty(logits, seen_tokens, settings.repetition_penalty)
    logits = mask_disallowed_tokens(logits, settings, inputs)
    if settings.strategy == "greedy":
        tokens: Ints = logits.argmax(axis=1)
        return tokens
    if uniforms is None:
        uniforms = draw_uniforms(settings.seed, len(logits), inputs.step)
    return sample_token(filter_candidates(logits, settings), uniforms)


def compute_token_log_probs(logits: Floats, tokens: Ints, is_padding: Bools) -> Floats:
    """Return the log-probabilities of `tokens`, float32 [batch], with 0 for padding tokens."""
    log_probs = compute_log_softmax_f32(logits)
    scores: Floats = np.take_along_axis(log_probs, tokens[:, None], axis=1)[:, 0]
    scores[is_padding] = 0
    return scores


@immutable_dataclass()
class FlattenedCodebookSession:
    """A decoder session with one sequence per batch element and codebook. The wrapped `session` has
    tokens [batch, n, codebooks] and logits [batch, codebooks, vocab].
    """

    session: DecoderSession
    num_codebooks: int

    def step(self, tokens: Ints) -> Floats:
        """Run the model on new tokens, int64 [batch · codebooks, n]. Return the logits, float32
        [batch · codebooks, vocab].
        """
        logits = self.session.step(unflatten_codebooks(tokens, self.num_codebooks))
        return logits.reshape(-1, logits.shape[-1])

    def reorder(self, indices: Ints) -> None:
        """Reorder the batch elements. The codebooks of a batch element stay together."""
        self.session.reorder(indices[:: self.num_codebooks] // self.num_codebooks)


def flatten_codebooks(tokens: Ints) -> Ints:
    """Convert tokens [batch, n, codebooks] to [batch · codebooks, n]."""
    batch_size, length, num_codebooks = tokens.shape
    return tokens.transpose(0, 2, 1).reshape(batch_size * num_codebooks, length)


def unflatten_codebooks(tokens: Ints, num_codebooks: int) -> Ints:
    """Convert tokens [batch · codebooks, n] to [batch, n, codebooks]."""
    return tokens.reshape(-1, num_codebooks, tokens.shape[1]).transpose(0, 2, 1)


@immutable_dataclass()
class DelayedPrompt:
    """A prompt whose codebooks are shifted by their delays. `tokens` are int64 [batch, n,
    codebooks]. `remaining`, int64 [batch, longest delay, codebooks], contains the tokens that the
    shift moved beyond the prompt.
    """

    tokens: Ints
    remaining: Ints


def apply_delay_pattern(
    prompt: Ints, settings: GenerationSettings, padding_mask: Bools | None = None
) -> DelayedPrompt:
    """Shift each codebook of a prompt, int64 [batch, n, codebooks], by its delay. The
    positions before the first token contain the start token or, if there is none, the padding
    token.
    """
    delays = settings.delay_pattern or (0,) * prompt.shape[2]
    fill_token = settings.start[0] if settings.start else settings.padding_token
    length, max_delay = prompt.shape[1], max(delays)
    is_token = make_prompt_mask(prompt[:, :, 0], padding_mask)
    prompt = np.where(is_token[:, :, None], prompt, fill_token)
    shifted = np.full((len(prompt), length + max_delay, len(delays)), fill_token, np.int64)
    for codebook, delay in enumerate(delays):
        shifted[:, delay : delay + length, codebook] = prompt[:, :, codebook]
    return DelayedPrompt(shifted[:, :length], shifted[:, length:])


def check_delay_pattern(settings: GenerationSettings, max_new_tokens: int) -> None:
    """Raise E0733 if the delays are so long that no step has a token for every codebook."""
    max_delay = max(settings.delay_pattern, default=0)
    max_tokens = min(settings.max_tokens, max_new_tokens)
    if max_tokens <= max_delay:
        raise_error(
            "E0733",
            f"`delay_pattern` delays a codebook by {max_delay} steps, "
            f"but at most {max_tokens} steps are generated",
            helps=[f"set `max_tokens` to at least {max_delay + 1}"],
        )


def iterate_codebook_steps(
    session: DecoderSession,
    prompt: DelayedPrompt,
    settings: GenerationSettings,
    *,
    padding_mask: Bools | None = None,
    sample_indices: Sequence[int] = (),
) -> Iterator[DecodeStepOutput]:
    """Yield the tokens of each time step like `iterate_decode_steps`, but with the shape [batch,
    codebooks]. Codebook k of batch element `index` has the sample index `index · codebooks + k`.
    """
    batch_size, _, num_codebooks = prompt.tokens.shape
    mask = None if padding_mask is None else np.repeat(padding_mask, num_codebooks, axis=0)
    indices = sample_indices or range(batch_size)
    for step in iterate_decode_steps(
        FlattenedCodebookSession(session, num_codebooks),
        flatten_codebooks(prompt.tokens),
        settings,
        padding_mask=mask,
        sample_indices=[
            index * num_codebooks + k for index in indices for k in range(num_codebooks)
        ],
        delayed_tokens=flatten_codebooks(prompt.remaining),
    ):
        shape = (batch_size, num_codebooks)
        log_probs = None if step.log_probs is None else step.log_probs.reshape(shape)
        yield DecodeStepOutput(step.tokens.reshape(shape), log_probs, step.has_ended.reshape(shape))


def revert_delay_pattern(
    steps: Sequence[DecodeStepOutput], row: int, settings: GenerationSettings
) -> tuple[Ints, Floats | None, Bools]:
    """Return the generated frames of a batch element without delays: tokens int64 [frames,
    codebooks], log-probabilities if requested, and a mask of the codebooks that ended with a stop
    token. Codebooks that end earlier are padded.
    """
    num_codebooks = steps[0].tokens.shape[1]
    delays = np.array(settings.delay_pattern or (0,) * num_codebooks)
    tokens = np.array([step.tokens[row] for step in steps])
    log_probs = np.array([0.0 if s.log_probs is None else s.log_probs[row] for s in steps])
    ended_steps = np.array([step.has_ended[row] for step in steps])
    has_ended = ended_steps[-1]
    ends = np.where(has_ended, ended_steps.argmax(axis=0) + 1, len(steps) - delays.max() + delays)
    lengths = np.maximum(ends - delays, 0)
    frames = np.full((int(lengths.max()), num_codebooks), settings.padding_token, np.int64)
    frame_log_probs = np.zeros(frames.shape, np.float32)
    for k, (delay, length) in enumerate(zip(delays.tolist(), lengths.tolist(), strict=True)):
        frames[:length, k] = tokens[delay : delay + length, k]
        if settings.log_probs:
            frame_log_probs[:length, k] = log_probs[delay : delay + length, k]
    return frames, frame_log_probs if settings.log_probs else None, has_ended

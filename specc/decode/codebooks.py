"""Decode models with several codebooks, such as MusicGen: each time step has one token per
codebook.

The decode loop treats the codebooks of a batch element as sequences of their own. With a delay
pattern (Copet et al., 2023, arXiv:2306.05284, sec. 2.2), codebook k is delayed by
`delay_pattern[k]` steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specc.decode.decode_loop import iterate_decode_steps
from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import Bools, DecoderSession, DecodeStepOutput, Floats, Ints
from specc.diagnostics.diagnostic import raise_error


@dataclass(frozen=True)
class CodebookSession:
    """A decoder session with one sequence per batch element and codebook, for a `session` whose
    tokens are [batch, n, codebooks] and whose logits are [batch, codebooks, vocab].
    """

    session: DecoderSession
    codebooks: int

    def step(self, tokens: Ints) -> Floats:
        """Run the model on new tokens, int64 [batch · codebooks, n]. Return logits float32
        [batch · codebooks, vocab].
        """
        logits = self.session.step(merge_codebooks(tokens, self.codebooks))
        return logits.reshape(-1, logits.shape[-1])

    def reorder(self, indices: Ints) -> None:
        """Reorder batch elements; the codebooks of a batch element stay together."""
        self.session.reorder(indices[:: self.codebooks] // self.codebooks)


def split_codebooks(tokens: Ints) -> Ints:
    """Convert tokens [batch, n, codebooks] to [batch · codebooks, n]."""
    batch_size, length, codebooks = tokens.shape
    return tokens.transpose(0, 2, 1).reshape(batch_size * codebooks, length)


def merge_codebooks(tokens: Ints, codebooks: int) -> Ints:
    """Convert tokens [batch · codebooks, n] to [batch, n, codebooks]."""
    return tokens.reshape(-1, codebooks, tokens.shape[1]).transpose(0, 2, 1)


@dataclass(frozen=True)
class DelayedPrompt:
    """A prompt whose codebooks are shifted by their delays: `tokens` int64 [batch, n, codebooks],
    and `remaining` int64 [batch, longest delay, codebooks], which contains the tokens that the
    shift moved beyond the prompt.
    """

    tokens: Ints
    remaining: Ints


def delay_prompt(
    prompt: Ints, settings: GenerationSettings, padding_mask: Bools | None = None
) -> DelayedPrompt:
    """Shift each codebook of a prompt, int64 [batch, n, codebooks], by its delay. The start token,
    or the padding token if there is none, fills the positions before the first token.
    """
    delays = settings.delay_pattern or (0,) * prompt.shape[2]
    fill_token = settings.start[0] if settings.start else settings.padding_token
    length, max_delay = prompt.shape[1], max(delays)
    if padding_mask is not None:
        prompt = np.where(padding_mask[:, :, None], prompt, fill_token)
    shifted = np.full((len(prompt), length + max_delay, len(delays)), fill_token, np.int64)
    for codebook, delay in enumerate(delays):
        shifted[:, delay : delay + length, codebook] = prompt[:, :, codebook]
    return DelayedPrompt(shifted[:, :length], shifted[:, length:])


def check_delays(settings: GenerationSettings, max_new_tokens: int) -> None:
    """Raise E0733 if the delays of codebooks leave no step in which all codebooks have a token."""
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
    """Yield the tokens of each time step as `iterate_decode_steps` does, but with the shape
    [batch, codebooks]. Codebook k of the batch element `index` has the sample index
    `index · codebooks + k`.
    """
    batch_size, _, codebooks = prompt.tokens.shape
    mask = None if padding_mask is None else np.repeat(padding_mask, codebooks, axis=0)
    indices = sample_indices or range(batch_size)
    for step in iterate_decode_steps(
        CodebookSession(session, codebooks),
        split_codebooks(prompt.tokens),
        settings,
        padding_mask=mask,
        sample_indices=[index * codebooks + k for index in indices for k in range(codebooks)],
        delayed_tokens=split_codebooks(prompt.remaining),
    ):
        shape = (batch_size, codebooks)
        log_probs = None if step.log_probs is None else step.log_probs.reshape(shape)
        yield DecodeStepOutput(step.tokens.reshape(shape), log_probs, step.has_ended.reshape(shape))


def list_codebook_frames(
    steps: Sequence[DecodeStepOutput], row: int, settings: GenerationSettings
) -> tuple[Ints, Floats | None, Bools]:
    """Return the generated frames of a batch element without delays: tokens int64
    [frames, codebooks], log-probabilities if requested, and the codebooks that a stop token ended.
    Codebooks that end earlier are padded.
    """
    codebooks = steps[0].tokens.shape[1]
    delays = np.array(settings.delay_pattern or (0,) * codebooks)
    tokens = np.array([step.tokens[row] for step in steps])
    log_probs = np.array([0.0 if s.log_probs is None else s.log_probs[row] for s in steps])
    ended_steps = np.array([step.has_ended[row] for step in steps])
    has_ended = ended_steps[-1]
    ends = np.where(has_ended, ended_steps.argmax(axis=0) + 1, len(steps) - delays.max() + delays)
    lengths = np.maximum(ends - delays, 0)
    frames = np.full((int(lengths.max()), codebooks), settings.padding_token, np.int64)
    frame_log_probs = np.zeros(frames.shape, np.float32)
    for k, (delay, length) in enumerate(zip(delays.tolist(), lengths.tolist(), strict=True)):
        frames[:length, k] = tokens[delay : delay + length, k]
        if settings.log_probs:
            frame_log_probs[:length, k] = log_probs[delay : delay + length, k]
    return frames, frame_log_probs if settings.log_probs else None, has_ended

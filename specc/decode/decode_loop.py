"""Greedy search and sampling: each step generates one token per sequence of a batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_choice import (
    Bools,
    DecodeObserver,
    DecodePosition,
    DecodeStep,
    Floats,
    Ints,
    Stepper,
    apply_repetition_penalty,
    check_logits,
    compute_log_softmax_f32,
    count_prompt_tokens,
    filter_candidates,
    find_penalized_tokens,
    list_prompt_tokens,
    make_sampling_uniforms,
    make_sampling_uniforms_at,
    mask_disallowed_tokens,
    sample_token,
)

Decode = Callable[[Sequence[int]], str]

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
WINDOW, CONTEXT = 48, 16
"""Maximum number of tokens that are decoded again with each new token, and the number of tokens
that are kept as context when older tokens are dropped.
"""


class Detokenizer:
    """Incremental detokenizer of one sequence; `feed` returns text that is final.

    `stopped` is true after a stop string; no more text follows. A possible prefix of a stop string
    or part of a character is held back until more tokens arrive; `flush` returns the rest.
    """

    def __init__(self, decode: Decode, stop_strings: Iterable[str] = ()) -> None:
        self.stopped = False
        self._decode = decode
        self._stops = tuple(stop_strings)
        self._tokens: list[int] = []
        self._emitted = 0
        """Number of characters of the decoded text of `_tokens` that have been emitted."""
        self._pending = ""
        """Characters that are held back because they may begin a stop string."""

    def feed(self, *tokens: int) -> str:
        """Return the text that these tokens complete."""
        if self.stopped:
            return ""
        self._tokens.extend(tokens)
        text = self._decode(self._tokens)
        # A byte-fallback tokenizer decodes an incomplete run of bytes to replacement characters:
        # the first eight of the nine bytes of 日本語 become replacement characters, although two
        # characters are complete.
        sure = len(text.rstrip(REPLACEMENT_CHARACTER))
        new = text[self._emitted : sure]
        self._emitted = max(self._emitted, sure)
        if sure == len(text) and len(self._tokens) > WINDOW:
            self._trim_history()
        return self._emit_pending(new)

    def _trim_history(self) -> None:
        """Drop old tokens, unless that would split a character."""
        kept = self._tokens[-CONTEXT:]
        text = self._decode(kept)
        if text and REPLACEMENT_CHARACTER not in text:
            self._tokens, self._emitted = kept, len(text)

    def flush(self) -> str:
        """Return the text held back, at the end of the sequence."""
        if self.stopped:
            return ""
        rest = self._emit_pending(self._decode(self._tokens)[self._emitted :])
        held, self._pending = "" if self.stopped else self._pending, ""
        self._tokens, self._emitted = [], 0
        return rest + held

    def _emit_pending(self, new: str) -> str:
        waiting = self._pending + new
        found = find_stop_string(waiting, self._stops)
        if found is not None:
            self.stopped, self._pending = True, ""
            return waiting[:found]
        padding_mask = len(waiting) - measure_stop_prefix(waiting, self._stops)
        self._pending = waiting[padding_mask:]
        return waiting[:padding_mask]


def find_stop_string(text: str, stop_strings: Iterable[str]) -> int | None:
    """Return the start of the stop string that ends first (of the longest if several end there)."""
    ends = [(at + len(stop), at) for stop in stop_strings if (at := text.find(stop)) >= 0]
    return min(ends)[1] if ends else None


def measure_stop_prefix(text: str, stop_strings: Iterable[str]) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a stop string."""
    return max(
        (
            n
            for stop in stop_strings
            for n in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:n])
        ),
        default=0,
    )


def truncate_at_stop_string(text: str, stop_strings: Iterable[str]) -> str:
    """Truncate a text before its first stop string."""
    return text[: find_stop_string(text, stop_strings)]


def make_stop_check(decode: Decode, stop_strings: Iterable[str]) -> Callable[[Sequence[int]], bool]:
    """Return a predicate on whether tokens contain a stop string, for beam search."""
    wanted = tuple(stop_strings)
    return lambda tokens: find_stop_string(decode(tokens), wanted) is not None


class BatchDetokenizer:
    """Detokenizer of a batch; `feed` is a `watch` of `specc.decode.decode_loop.decode_steps`."""

    def __init__(self, decode: Decode, batch_size: int, stop_strings: Iterable[str] = ()) -> None:
        wanted = tuple(stop_strings)
        self._texts = [Detokenizer(decode, wanted) for _ in range(batch_size)]
        self._open = [True] * batch_size
        self._fresh = [""] * batch_size

    def feed(self, tokens: Ints, has_ended: Bools) -> Bools:
        """Process new tokens i64[batch] and ended sequences bool[batch]. Return the sequences that
        now reach a stop string, bool[batch].

        The token that ends a sequence is a stop token, which is not part of its text.
        """
        stopped = np.zeros(len(self._texts), np.bool_)
        for row, text in enumerate(self._texts):
            if not self._open[row]:
                continue
            self._fresh[row] += text.flush() if has_ended[row] else text.feed(int(tokens[row]))
            stopped[row] = text.stopped
            self._open[row] = not (has_ended[row] or text.stopped)
        return stopped

    def pop_new_text(self) -> list[str]:
        """Return the new text of each sequence since the last call."""
        made, self._fresh = self._fresh, [""] * len(self._texts)
        return made

    def flush(self) -> list[str]:
        """Return the new text of each sequence, including text that was held back."""
        for row, text in enumerate(self._texts):
            if self._open[row]:
                self._fresh[row] += text.flush()
                self._open[row] = False
        return self.pop_new_text()


def decode_steps(
    stepper: Stepper,
    prompt: Ints,
    settings: GenerationSettings,
    *,
    padding_mask: Bools | None = None,
    observer: DecodeObserver | None = None,
    sample_indices: Sequence[int] = (),
) -> Iterator[DecodeStep]:
    """Yield the tokens after `prompt` i64[batch n] step by step, until every sequence has ended.

    `padding_mask` bool[batch n] is the padding mask; the stepper has its own. The last token of
    each sequence is never fed. Log-probabilities are computed by the raw model, before penalty,
    temperature and filters. The seed and the batch index, or the index in `sample_indices`,
    determine the sampling of a sequence.

    `settings.strategy` is greedy or sample (`specc.decode.beam_search` implements beam).
    """
    assert settings.strategy in ("greedy", "sample"), "a beam search has no single next token"
    assert prompt.ndim == 2, "a prompt is [rows, tokens]"
    if not len(prompt):
        return
    rows = np.arange(len(prompt))
    ended = np.zeros(len(prompt), np.bool_)
    logits = check_logits(stepper.step(prompt), ~ended)
    seen = find_penalized_tokens(prompt, logits.shape[1], settings.repetition_penalty, padding_mask)
    lengths = count_prompt_tokens(prompt, padding_mask)
    sequences = list_prompt_tokens(prompt, padding_mask) if settings.needs_previous_tokens else []
    for step in range(settings.max_tokens):
        position = DecodePosition(step=step, prompt_lengths=lengths, sequences=sequences)
        uniform = None
        if sample_indices and settings.strategy == "sample":
            uniform = make_sampling_uniforms_at(
                settings.seed, [(number, step) for number in sample_indices]
            )
        chosen = choose_next_tokens(logits, seen, settings, position, uniform)
        tokens = np.where(ended, settings.padding_token, chosen)
        scores = compute_token_log_probs(logits, chosen, ended) if settings.log_probs else None
        if seen is not None:
            # includes finished sequences, whose results are no longer read
            seen[rows, chosen] = True
        for text, token in zip(sequences, chosen, strict=False):
            text.append(int(token))
        ended = ended | np.isin(tokens, settings.stop)
        if observer is not None:
            ended = ended | observer(tokens, ended.copy())
        yield DecodeStep(tokens, scores, ended.copy())
        if ended.all() or step + 1 == settings.max_tokens:
            return
        logits = check_logits(stepper.step(tokens[:, None]), ~ended)


def choose_next_tokens(
    logits: Floats,
    seen: Bools | None,
    settings: GenerationSettings,
    position: DecodePosition,
    uniform: Floats | None = None,
) -> Ints:
    """Choose the next token of every sequence, i64[batch], from logits f32[batch vocab]; tokens in
    `seen` bool[batch vocab] are penalized.

    `uniform` f32[batch] are the sampling uniforms; the default depends on the seed and the batch
    index.
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
    """Return the log-probabilities of the chosen tokens, f32[batch]; 0 for sequences that ended
    before.
    """
    scores: Floats = np.take_along_axis(compute_log_softmax_f32(logits), chosen[:, None], axis=1)[
        :, 0
    ]
    scores[has_ended] = 0
    return scores

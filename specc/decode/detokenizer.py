"""Incremental detokenization of generated tokens, and detection of stop strings."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from specc.decode.token_selection import Bools, Ints

Decode = Callable[[Sequence[int]], str]
"""A function that converts token ids to text."""

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
WINDOW, CONTEXT = 48, 16
"""Maximum number of context tokens that are decoded together with a new token. If the maximum is
exceeded, `CONTEXT` tokens are kept.
"""


class Detokenizer:
    """The incremental detokenizer of one sequence. `feed` returns text that later tokens cannot
    change.

    `stopped` is true after a stop string, which ends the text. A possible prefix of a stop string
    and an incomplete character are held back until more tokens arrive or `flush` is called.
    """

    def __init__(self, decode: Decode, stop_strings: Iterable[str] = ()) -> None:
        self.stopped = False
        self._decode = decode
        self._stops = tuple(stop_strings)
        self._tokens: list[int] = []
        self._emitted = 0
        """Number of characters of the decoded `_tokens` that have been emitted."""
        self._pending = ""
        """Text that is held back because it may begin a stop string."""

    def feed(self, *tokens: int) -> str:
        """Add tokens, and return the new text that later tokens cannot change."""
        if self.stopped:
            return ""
        self._tokens.extend(tokens)
        text = self._decode(self._tokens)
        # A tokenizer with byte fallback decodes an incomplete byte sequence to replacement
        # characters only, e.g. the first eight of the nine bytes of 日本語, although the sequence
        # contains two complete characters.
        stable_length = len(text.rstrip(REPLACEMENT_CHARACTER))
        new_text = text[self._emitted : stable_length]
        self._emitted = max(self._emitted, stable_length)
        if stable_length == len(text) and len(self._tokens) > WINDOW:
            self._trim_history()
        return self._emit_pending(new_text)

    def _trim_history(self) -> None:
        """Drop old tokens, except where this would split a multi-byte character."""
        context = self._tokens[-CONTEXT:]
        text = self._decode(context)
        if text and REPLACEMENT_CHARACTER not in text:
            self._tokens, self._emitted = context, len(text)

    def flush(self) -> str:
        """Return the text that is still held back at the end of the sequence."""
        if self.stopped:
            return ""
        text = self._emit_pending(self._decode(self._tokens)[self._emitted :])
        pending, self._pending = "" if self.stopped else self._pending, ""
        self._tokens, self._emitted = [], 0
        return text + pending

    def _emit_pending(self, new_text: str) -> str:
        text = self._pending + new_text
        stop_start = find_stop_string(text, self._stops)
        if stop_start is not None:
            self.stopped, self._pending = True, ""
            return text[:stop_start]
        end = len(text) - compute_stop_prefix_length(text, self._stops)
        self._pending = text[end:]
        return text[:end]


def find_stop_string(text: str, stop_strings: Iterable[str]) -> int | None:
    """Return the start position of the stop string that ends first in a text, or None if the text
    contains no stop string. If several stop strings end at the same position, return the start of
    the longest stop string.
    """
    ends = [(start + len(stop), start) for stop in stop_strings if (start := text.find(stop)) >= 0]
    return min(ends)[1] if ends else None


def compute_stop_prefix_length(text: str, stop_strings: Iterable[str]) -> int:
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
    """Truncate a text before the first stop string."""
    return text[: find_stop_string(text, stop_strings)]


def make_stop_string_predicate(
    decode: Decode, stop_strings: Iterable[str]
) -> Callable[[Sequence[int]], bool]:
    """Return a predicate for beam search: True if the decoded tokens contain a stop string."""
    stops = tuple(stop_strings)
    return lambda tokens: find_stop_string(decode(tokens), stops) is not None


class BatchDetokenizer:
    """The detokenizers of a batch. `feed` observes decode steps and detects stop strings."""

    def __init__(self, decode: Decode, batch_size: int, stop_strings: Iterable[str] = ()) -> None:
        stops = tuple(stop_strings)
        self._detokenizers = [Detokenizer(decode, stops) for _ in range(batch_size)]
        self._is_open = [True] * batch_size
        self._new_texts = [""] * batch_size

    def feed(self, tokens: Ints, has_ended: Bools) -> Bools:
        """Process new tokens int64 [batch] and `has_ended` bool [batch]. Return a bool array
        [batch], which is true for sequences that now contain a stop string.

        The stop token that ends a sequence is not part of the text.
        """
        stopped = np.zeros(len(self._detokenizers), np.bool_)
        for index, detokenizer in enumerate(self._detokenizers):
            if not self._is_open[index]:
                continue
            token = int(tokens[index])
            text = detokenizer.flush() if has_ended[index] else detokenizer.feed(token)
            self._new_texts[index] += text
            stopped[index] = detokenizer.stopped
            self._is_open[index] = not (has_ended[index] or detokenizer.stopped)
        return stopped

    def pop_new_text(self) -> list[str]:
        """Return the text that each sequence has gained since the previous call of this method."""
        new_texts, self._new_texts = self._new_texts, [""] * len(self._detokenizers)
        return new_texts

    def flush(self) -> list[str]:
        """Return the remaining text of each sequence, including text that was held back."""
        for index, detokenizer in enumerate(self._detokenizers):
            if self._is_open[index]:
                self._new_texts[index] += detokenizer.flush()
                self._is_open[index] = False
        return self.pop_new_text()

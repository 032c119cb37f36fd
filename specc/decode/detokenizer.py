"""Incremental detokenization of generated tokens, and stop strings."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from specc.decode.token_selection import Bools, Ints

Decode = Callable[[Sequence[int]], str]

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
WINDOW, CONTEXT = 48, 16
"""Maximum number of tokens that are decoded together with a new token. When older tokens are
dropped, this many tokens are kept as context."""


class Detokenizer:
    """The incremental detokenizer of one sequence; `feed` returns text that later tokens cannot
    change.

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
        """Add tokens; return the text that they complete."""
        if self.stopped:
            return ""
        self._tokens.extend(tokens)
        text = self._decode(self._tokens)
        # A tokenizer with byte fallback decodes an incomplete byte sequence (e.g. the first eight
        # of the nine bytes of 日本語) to replacement characters only, although it contains two
        # complete characters.
        sure = len(text.rstrip(REPLACEMENT_CHARACTER))
        new = text[self._emitted : sure]
        self._emitted = max(self._emitted, sure)
        if sure == len(text) and len(self._tokens) > WINDOW:
            self._trim_history()
        return self._emit_pending(new)

    def _trim_history(self) -> None:
        """Drop old tokens, unless a character is split between dropped and kept tokens."""
        kept = self._tokens[-CONTEXT:]
        text = self._decode(kept)
        if text and REPLACEMENT_CHARACTER not in text:
            self._tokens, self._emitted = kept, len(text)

    def flush(self) -> str:
        """Return the text that is still held back when the sequence ends."""
        if self.stopped:
            return ""
        rest = self._emit_pending(self._decode(self._tokens)[self._emitted :])
        pending, self._pending = "" if self.stopped else self._pending, ""
        self._tokens, self._emitted = [], 0
        return rest + pending

    def _emit_pending(self, new: str) -> str:
        waiting = self._pending + new
        found = find_stop_string(waiting, self._stops)
        if found is not None:
            self.stopped, self._pending = True, ""
            return waiting[:found]
        padding_mask = len(waiting) - compute_stop_prefix_length(waiting, self._stops)
        self._pending = waiting[padding_mask:]
        return waiting[:padding_mask]


def find_stop_string(text: str, stop_strings: Iterable[str]) -> int | None:
    """Return the start of the stop string that ends first. If several stop strings end at the same
    position, return the start of the longest one.
    """
    ends = [(at + len(stop), at) for stop in stop_strings if (at := text.find(stop)) >= 0]
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
    """Truncate a text before its first stop string."""
    return text[: find_stop_string(text, stop_strings)]


def make_stop_check(decode: Decode, stop_strings: Iterable[str]) -> Callable[[Sequence[int]], bool]:
    """Return a predicate that is true if the decoded tokens contain a stop string (for beam
    search).
    """
    wanted = tuple(stop_strings)
    return lambda tokens: find_stop_string(decode(tokens), wanted) is not None


class BatchDetokenizer:
    """Detokenizer of a batch; `feed` is a `watch` of `iterate_decode_steps`."""

    def __init__(self, decode: Decode, batch_size: int, stop_strings: Iterable[str] = ()) -> None:
        wanted = tuple(stop_strings)
        self._texts = [Detokenizer(decode, wanted) for _ in range(batch_size)]
        self._open = [True] * batch_size
        self._fresh = [""] * batch_size

    def feed(self, tokens: Ints, has_ended: Bools) -> Bools:
        """Process new tokens int64 [batch] and `has_ended` bool [batch]. Return a bool
        array [batch], true for the sequences that now contain a stop string.

        The stop token that ends a sequence is not part of its text.
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
        """Return the new text of each sequence since the last call of this function."""
        made, self._fresh = self._fresh, [""] * len(self._texts)
        return made

    def flush(self) -> list[str]:
        """Return the new text of each sequence, including text that was held back."""
        for row, text in enumerate(self._texts):
            if self._open[row]:
                self._fresh[row] += text.flush()
                self._open[row] = False
        return self.pop_new_text()

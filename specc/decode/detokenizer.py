"""Incremental detokenization with stop strings."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from specc.decode.stepper_protocol import Bools, Ints

Decode = Callable[[Sequence[int]], str]

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
WINDOW, CONTEXT = 48, 16
"""Number of tokens that are decoded again with each new one, and how many of them are kept as
context when older ones are dropped."""


class Detokenizer:
    """Incremental detokenization of one sequence: `feed` returns text that is final.

    `stopped`: a stop string occurred; no more text follows. A possible prefix of a stop string, or
    part of a character, is held back until decided; `close` returns the rest.
    """

    def __init__(self, decode: Decode, stops: Iterable[str] = ()) -> None:
        self.stopped = False
        self._decode = decode
        self._stops = tuple(stops)
        self._tokens: list[int] = []
        self._given = 0
        """Number of characters of the decoded text of `_tokens` that have been emitted."""
        self._held = ""
        """Characters that are held back because they may begin a stop string."""

    def feed(self, *tokens: int) -> str:
        """Return the text that these tokens complete."""
        if self.stopped:
            return ""
        self._tokens.extend(tokens)
        text = self._decode(self._tokens)
        # A tokenizer that falls back to bytes gives up a whole run of them as long as
        # its last character lacks one: of the nine of 日本語, eight are eight broken
        # characters, and the first two were right before.
        sure = len(text.rstrip(REPLACEMENT_CHARACTER))
        new = text[self._given : sure]
        self._given = max(self._given, sure)
        if sure == len(text) and len(self._tokens) > WINDOW:
            self._shorten()
        return self._passed(new)

    def _shorten(self) -> None:
        """Drop old tokens, unless that would split a character."""
        kept = self._tokens[-CONTEXT:]
        text = self._decode(kept)
        if text and REPLACEMENT_CHARACTER not in text:
            self._tokens, self._given = kept, len(text)

    def close(self) -> str:
        """Return the text held back, at the end of the sequence."""
        if self.stopped:
            return ""
        rest = self._passed(self._decode(self._tokens)[self._given :])
        held, self._held = "" if self.stopped else self._held, ""
        self._tokens, self._given = [], 0
        return rest + held

    def _passed(self, new: str) -> str:
        waiting = self._held + new
        found = find_stop(waiting, self._stops)
        if found is not None:
            self.stopped, self._held = True, ""
            return waiting[:found]
        keep = len(waiting) - stop_prefix_length(waiting, self._stops)
        self._held = waiting[keep:]
        return waiting[:keep]


def find_stop(text: str, stops: Iterable[str]) -> int | None:
    """Return where the first complete stop string begins, the longest of several."""
    ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(ends)[1] if ends else None


def stop_prefix_length(text: str, stops: Iterable[str]) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a stop string."""
    return max(
        (
            n
            for stop in stops
            for n in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:n])
        ),
        default=0,
    )


def cut_at_stop(text: str, stops: Iterable[str]) -> str:
    """Truncate a text at its stop string."""
    return text[: find_stop(text, stops)]


def make_stop_check(decode: Decode, stops: Iterable[str]) -> Callable[[Sequence[int]], bool]:
    """Return a predicate on whether tokens contain a stop string, for beam search."""
    wanted = tuple(stops)
    return lambda tokens: find_stop(decode(tokens), wanted) is not None


class BatchDetokenizer:
    """Detokenize a batch; `take` is a `watch` of `specc.decode.decode_loop.decode_steps`."""

    def __init__(self, decode: Decode, rows: int, stops: Iterable[str] = ()) -> None:
        wanted = tuple(stops)
        self._texts = [Detokenizer(decode, wanted) for _ in range(rows)]
        self._open = [True] * rows
        self._fresh = [""] * rows

    def take(self, tokens: Ints, ended: Bools) -> Bools:
        """Process i64[rows] new tokens and bool[rows] ended rows → bool[rows] newly met stop
        strings.

        The token that ends a row is a stop token, which is not part of its text.
        """
        stopped = np.zeros(len(self._texts), np.bool_)
        for row, text in enumerate(self._texts):
            if not self._open[row]:
                continue
            self._fresh[row] += text.close() if ended[row] else text.feed(int(tokens[row]))
            stopped[row] = text.stopped
            self._open[row] = not (ended[row] or text.stopped)
        return stopped

    def fresh(self) -> list[str]:
        """Return the new text of each sequence since the last call."""
        made, self._fresh = self._fresh, [""] * len(self._texts)
        return made

    def close(self) -> list[str]:
        """Return the new text including all that was held back."""
        for row, text in enumerate(self._texts):
            if self._open[row]:
                self._fresh[row] += text.close()
                self._open[row] = False
        return self.fresh()

"""Ids as text while they are being made: what is certain at once, the rest when its last id is there.

The pieces of a stream, one after the other, are what `specc.reading.text.decode` makes of all ids together.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import TypeAlias

from specc.reading.record import TextBytes, TextCharacters, TextOf, TextReading
from specc.reading.text import REPLACEMENT, checked_ids, decode
from specc.reading.tokenizer import TextTokenizer
from specc.reading.tokenizing import text_of

Stream: TypeAlias = Callable[[Sequence[int]], str]

WINDOW = 512
"""Ids that are turned into text again at every call; when they are complete, all but `KEPT` are let go."""
KEPT = 32


def decoder_of(record: TextReading | TextOf) -> Stream:
    """A function that takes the next ids of one text and gives the text they add; no ids end it and give the rest.

    Half a character, or a token whose text depends on the next, waits for its other half. Behind the record's
    `end` nothing more comes. Fails as `decode` does.
    """
    vocabulary = record.vocabulary if isinstance(record, TextOf) else record
    match vocabulary:
        case TextTokenizer():
            inner: Stream = _Tokens(vocabulary)
        case TextBytes():
            inner = _bytes(vocabulary)
        case TextCharacters():
            inner = lambda ids: decode(ids, vocabulary)
    return _UntilEnd(vocabulary, inner)


class _UntilEnd:
    """Hands ids on until the record's `end`, which ends the text."""

    def __init__(self, record: TextReading, inner: Stream) -> None:
        self._record = record
        self._inner = inner
        self._open = True

    def __call__(self, ids: Sequence[int]) -> str:
        if not self._open:
            return ""
        kept, ended = checked_ids(ids, self._record)
        self._open = not ended and len(ids) > 0
        text = self._inner(kept) if kept else ""
        return text if self._open else text + self._inner([])


def _bytes(record: TextBytes) -> Stream:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    low = record.offset

    def step(ids: Sequence[int]) -> str:
        return decoder.decode(bytes(i - low for i in ids if low <= i < low + 256), final=not ids)

    return step


class _Tokens:
    """A text of tokens. The text of a token depends on its neighbors, so a window of ids is decoded as a whole."""

    def __init__(self, record: TextTokenizer) -> None:
        self._record = record
        self._ids: list[int] = []
        self._given = ""

    def __call__(self, ids: Sequence[int]) -> str:
        self._ids.extend(ids)
        text = text_of(self._ids, self._record)
        if not ids:
            return text[len(self._given) :]
        ready = text.rstrip(REPLACEMENT)  # bytes of a character that the next id may complete
        if not ready.startswith(self._given):
            return ""
        new, self._given = ready[len(self._given) :], ready
        if len(self._ids) > WINDOW and ready == text:
            self._shorten()
        return new

    def _shorten(self) -> None:
        """Let go of old ids, unless the cut would go through a character."""
        text = text_of(self._ids[-KEPT:], self._record)
        if text and REPLACEMENT not in text:
            self._ids, self._given = self._ids[-KEPT:], text

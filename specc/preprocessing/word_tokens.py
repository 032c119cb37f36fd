"""Word-level tokenization."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Source, Span
from specc.diagnostics.suggest import did_you_mean
from specc.io.json_io import Json, JsonFields, to_tagged_json
from specc.io.safe_read import escape_text

MAX_WORDS = 1_000_000
LONGEST = 256  # characters of a word
SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")
"""`<end>` and `[UNK]`: they have an id, and no text is read as them."""
PIECE = re.compile(r"\S+")
PART = re.compile(r"\w+(?:['’-]\w+)*|\S")
NEAR = 100_000
"""Of a larger vocabulary no word is proposed in place of an unknown one: it would take seconds."""


@dataclass(frozen=True, slots=True)
class TextWords:
    """Text, one id a word: its line in `vocab`.

    `start` and `end` are put around a text that is read; where `unknown` is given it
    stands for words that `vocab` lacks. `lower`: words are looked for in small letters.
    """

    vocab: tuple[str, ...]
    end: int | None = None
    start: int | None = None
    unknown: int | None = None
    lower: bool = False

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.vocab)

    def to_json(self) -> Json:
        """The record as JSON."""
        return to_tagged_json("words", self)

    @staticmethod
    def from_fields(fields: JsonFields) -> "TextWords":
        """The record from JSON; every field but `vocab` may be absent."""
        vocab = fields.texts("vocab", MAX_WORDS, LONGEST)
        if not vocab or not all(vocab):
            fields.refuse("vocab", "is empty or holds an empty word")
        if len(set(vocab)) != len(vocab):
            fields.refuse("vocab", "holds a word twice")
        end, start, unknown = (
            fields.identity(key, len(vocab)) for key in ("end", "start", "unknown")
        )
        lower = fields.flag("lower") if fields.has("lower") else False
        return TextWords(vocab, end, start, unknown, lower)


def word_ids(text: str, record: TextWords) -> list[int]:
    """The id of every word of a text. E0959 for one that has none."""
    numbers, ids = _numbers(record.vocab), []
    for start, end in _cut(text, record):
        word = text[start:end]
        number = numbers.get(_form(word, record), record.unknown)
        if number is None:
            _unknown(Span(Source("<text>", text), start, end), record)
        ids.append(number)
    return ids


def decode_words(ids: Sequence[int], record: TextWords, unknown: str) -> str:
    """The words of ids with spaces between them; specials have no text."""
    parts = [unknown if i == record.unknown else record.vocab[i] for i in ids]
    return " ".join(part for part in parts if not SPECIAL.fullmatch(part))


def find_unreachable_words(record: TextWords) -> list[str]:
    """The words that no text is read as: with white space in them, or with capitals
    where words are looked for in small letters.
    """
    return [
        word
        for word in record.vocab
        if not SPECIAL.fullmatch(word)
        and (not PIECE.fullmatch(word) or _form(word, record) != word)
    ]


def _cut(text: str, record: TextWords) -> Iterator[tuple[int, int]]:
    """Where each word begins and ends."""
    known = _numbers(record.vocab)
    for piece in PIECE.finditer(text):
        # `u.s.` and `n't` are words where the vocabulary says so
        if _form(piece.group(), record) in known:
            yield piece.span()
            continue
        for part in PART.finditer(text, *piece.span()):
            yield part.span()


def _form(word: str, record: TextWords) -> str:
    """A word as it is looked for."""
    return word.lower() if record.lower else word


@lru_cache(maxsize=8)
def _numbers(vocab: tuple[str, ...]) -> dict[str, int]:
    """The number of each word of a vocabulary: the same for text after text."""
    return {word: i for i, word in enumerate(vocab) if not SPECIAL.fullmatch(word)}


def _unknown(span: Span, record: TextWords) -> NoReturn:
    known, word = _numbers(record.vocab), span.text
    helps = []
    if _form(word, record).lower() in known:
        helps = [
            f"`{escape_text(word.lower())}` is in it: write that, or say `lower=true` in the spec"
        ]
    elif len(known) <= NEAR and (near := did_you_mean(_form(word, record), known)):
        helps = [f"did you mean `{escape_text(near)}`?"]
    raise_error(
        "E0959",
        f"the word `{escape_text(word[:LONGEST])}` is not in the model's vocabulary",
        span,
        "this one",
        notes=["the spec names no `unknown` word that would stand for it"],
        helps=[*helps, "leave it out, or write it with words that the model knows"],
    )

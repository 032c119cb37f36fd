"""Text to token ids and back, for every kind of vocabulary; vocabulary files."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, groupby, pairwise
from typing import NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import Label, raise_error
from specc.diagnostics.source import Source, Span
from specc.diagnostics.suggest import did_you_mean
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.preprocessing.records import (
    MAX_TOKEN,
    MAX_VOCABULARY,
    CtcTranscript,
    TextBytes,
    TextCharacters,
    TextReading,
    TextWords,
)
from specc.preprocessing.tokenizer_files import MAX_ID, TextTokenizer
from specc.preprocessing.tokenizer_library import detokenize, tokenize_text, tokenizer_label

REPLACEMENT = "\ufffd"  # shown for an unknown character and for bytes that are no UTF-8


def encode_text_ids(text: str, record: TextReading) -> NDArray[np.int64]:
    """Return the ids of a text, `i64[length]`, between `start` and `end`. Raise E0908 for an
    unknown character, E0959 for a word, E0940 and E0941 for tokenizer files.
    """
    return np.array(_ids(text, record), np.int64)


def encode_texts(texts: Sequence[str], record: TextReading) -> list[Array]:
    """Return `encode_text_ids` of many texts, converted to arrays at once."""
    rows = [_ids(text, record) for text in texts]
    return split_rows(np.array([*chain.from_iterable(rows)], np.int64), rows)


def split_rows(whole: Array, rows: Sequence[Sequence[object]]) -> list[Array]:
    """Numbers of rows that stand behind each other, as an array for each of the rows."""
    ends = [0, *accumulate(map(len, rows))]
    return [whole[start:end] for start, end in pairwise(ends)]


def _ids(text: str, record: TextReading) -> list[int]:
    if isinstance(record, TextCharacters):
        ids = _character_ids(text, record)
    elif isinstance(record, TextWords):
        ids = word_ids(text, record)
    else:
        ids = _byte_ids(text, record)
    before = [] if record.start is None else [record.start]
    after = [] if record.end is None else [record.end]
    # the file may have put the same ids there
    if isinstance(record, TextTokenizer) and record.special:
        before = [] if ids[:1] == before else before
        after = [] if ids[-1:] == after else after
    return [*before, *ids, *after]


def _byte_ids(text: str, record: TextBytes | TextTokenizer) -> list[int]:
    """Ids by a vocabulary that reads UTF-8: of the bytes, or of a tokenizer file."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as fault:
        _unknown(text, fault.start, "is half of a character pair and has no bytes")
    if isinstance(record, TextBytes):
        return [byte + record.offset for byte in data]
    return tokenize_text(text, record)


def decode_text(ids: Sequence[int] | NDArray[np.integer], record: TextReading) -> str:
    """Return the text of ids up to the first `end`, `�` for unknown ones. Raise E0916 for an id
    beyond the vocabulary, except with a tokenizer file: models have more ids than that.
    """
    kept, _ = strip_special_ids(ids, record)
    if isinstance(record, TextTokenizer):
        return detokenize(kept, record)
    if isinstance(record, TextWords):
        return decode_words(kept, record, REPLACEMENT)
    if isinstance(record, TextBytes):
        data = bytes(
            number - record.offset
            for number in kept
            if record.offset <= number < record.offset + 256
        )
        return data.decode("utf-8", errors="replace")
    parts = [REPLACEMENT if i == record.unknown else record.vocab[i] for i in kept]
    return "".join(part for part in parts if len(part) == 1)


def strip_special_ids(
    ids: Sequence[int] | NDArray[np.integer], record: TextReading
) -> tuple[list[int], bool]:
    """Return the ids before the first `end` without `start`, and whether `end` was there. Raise
    E0916.
    """
    kept: list[int] = []
    last = MAX_ID if isinstance(record, TextTokenizer) else record.size - 1
    for position, item in enumerate(ids):
        number = int(item)
        if not 0 <= number <= last:
            raise_error(
                "E0916",
                f"the model gave the id {number}, and its vocabulary goes from 0 to {last}",
                notes=[f"it is number {position} of the result"],
                helps=[
                    "check that the vocabulary of `reading` is the one the model was trained with"
                ],
            )
        if number == record.end:
            return kept, True
        if number != record.start:
            kept.append(number)
    return kept, False


def token_label(number: int, record: TextReading) -> str:
    """One id as a label of a picture: its text, or a dot for one without."""
    text = (
        tokenizer_label(number, record)
        if isinstance(record, TextTokenizer)
        else decode_text([number], record)
    )
    return text or "·"


def pad_rows(
    rows: Sequence[Array], fill: int, *, left: bool = False
) -> tuple[Array, NDArray[np.bool_]]:
    """Pad rows to one array `[batch, longest]`, and return it with its padding mask."""
    longest = max((len(row) for row in rows), default=0)
    kind = np.result_type(*rows) if rows else np.dtype(np.int64)
    ids = np.full((len(rows), longest), fill, kind)
    keep = np.zeros(ids.shape, np.bool_)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        ids[i, place], keep[i, place] = row, True
    return ids, keep


@lru_cache(maxsize=8)
def _numbers(vocab: tuple[str, ...]) -> dict[str, int]:
    """The number of each character of a vocabulary: the same for text after text."""
    return {token: i for i, token in enumerate(vocab) if len(token) == 1}


def _character_ids(text: str, record: TextCharacters) -> list[int]:
    ids_of = _numbers(tuple(record.vocab))
    known = [*map(ids_of.get, text)]
    if None not in known:
        return cast("list[int]", known)
    ids = []
    for position, character in enumerate(text):
        number = ids_of.get(character, record.unknown)
        if number is None:
            other = character.swapcase()
            hint = f"; `{other}` is in it" if other in ids_of else ""
            _unknown(text, position, f"is not in the model's vocabulary{hint}")
        ids.append(number)
    return ids


def _unknown(text: str, position: int, why: str) -> NoReturn:
    character = text[position]
    number = f"U+{ord(character):04X}"
    source = Source("<text>", text)
    raise_error(
        "E0908",
        f"the character `{escape_text(character)}` ({number}) {why}",
        Span(source, position, position + 1)
        if character < "\ud800" or character > "\udfff"
        else None,
        "this one",
        notes=[f"it is character {position + 1} of the text"],
        helps=["leave it out, or write it with characters that the model knows"],
    )


SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")
"""`<end>` and `[UNK]`: they have an id, and no text is read as them."""
PIECE = re.compile(r"\S+")
PART = re.compile(r"\w+(?:['’-]\w+)*|\S")
NEAR = 100_000
"""Of a larger vocabulary no word is proposed in place of an unknown one: it would take seconds."""


def word_ids(text: str, record: TextWords) -> list[int]:
    """The id of every word of a text. E0959 for one that has none."""
    numbers, ids = _word_numbers(record.vocab), []
    for start, end in _cut(text, record):
        word = text[start:end]
        number = numbers.get(_form(word, record), record.unknown)
        if number is None:
            _fail_unknown_word(Span(Source("<text>", text), start, end), record)
        ids.append(number)
    return ids


def decode_words(ids: Sequence[int], record: TextWords, unknown: str) -> str:
    """The words of ids with spaces between them; specials have no text."""
    parts = [unknown if i == record.unknown else record.vocab[i] for i in ids]
    return " ".join(part for part in parts if not SPECIAL.fullmatch(part))


def find_unreachable_words(record: TextWords) -> list[str]:
    """Return the words with white space, or with upper case where words are looked up in lower
    case.
    """
    return [
        word
        for word in record.vocab
        if not SPECIAL.fullmatch(word)
        and (not PIECE.fullmatch(word) or _form(word, record) != word)
    ]


def _cut(text: str, record: TextWords) -> Iterator[tuple[int, int]]:
    """Where each word begins and ends."""
    known = _word_numbers(record.vocab)
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
def _word_numbers(vocab: tuple[str, ...]) -> dict[str, int]:
    """The number of each word of a vocabulary: the same for text after text."""
    return {word: i for i, word in enumerate(vocab) if not SPECIAL.fullmatch(word)}


def _fail_unknown_word(span: Span, record: TextWords) -> NoReturn:
    known, word = _word_numbers(record.vocab), span.text
    helps = []
    if _form(word, record).lower() in known:
        helps = [
            f"`{escape_text(word.lower())}` is in it: write that, or say `lower=true` in the spec"
        ]
    elif len(known) <= NEAR and (near := did_you_mean(_form(word, record), known)):
        helps = [f"did you mean `{escape_text(near)}`?"]
    raise_error(
        "E0959",
        f"the word `{escape_text(word[:MAX_TOKEN])}` is not in the model's vocabulary",
        span,
        "this one",
        notes=["the spec names no `unknown` word that would stand for it"],
        helps=[*helps, "leave it out, or write it with words that the model knows"],
    )


def decode_ctc(ids: Sequence[int], record: CtcTranscript) -> str:
    """What the best tokens of the rows say."""
    known = len(record.vocab)
    tokens = [record.vocab[i] if i < known else record.unknown for i in ids]
    once = [token for token, _ in groupby(tokens)]
    blank = record.vocab[record.blank]
    text = "".join(
        record.space if token == record.delimiter else token for token in once if token != blank
    ).strip()
    return text.lower() if record.lower else text


def read_vocabulary(source: Source) -> tuple[str, ...]:
    """The tokens of a vocabulary file. Fails with E0909, which points at the line."""
    tokens: dict[str, Span] = {}
    start = 0
    lines = source.text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    for line in lines:
        span = Span(source, start, start + len(line))
        start += len(line) + 1
        token = _token(line.removesuffix("\r"), span)
        if token in tokens:
            raise_error(
                "E0909",
                "the vocabulary lists a token twice",
                span,
                "again here",
                others=[Label(tokens[token], "first")],
            )
        tokens[token] = span
        if len(tokens) > MAX_VOCABULARY:
            raise_error("E0909", f"the vocabulary has more than {MAX_VOCABULARY} tokens", span)
    if not tokens:
        raise_error(
            "E0909",
            f"the vocabulary `{escape_text(source.name)}` is empty",
            helps=["write one token a line"],
        )
    return tuple(tokens)


def write_vocabulary(tokens: Iterable[str]) -> str:
    """The text of a vocabulary file: `read_vocabulary` undone."""
    return "".join(f"{_line(token)}\n" for token in tokens)


def _token(line: str, span: Span) -> str:
    """The token that a line stands for."""
    if line.startswith('"'):
        try:
            token = json.loads(line)
        except ValueError:
            raise_error(
                "E0909",
                "this line of the vocabulary begins with a quote and is no JSON string",
                span,
                helps=[f"write {json.dumps(line, ensure_ascii=False)} for these very characters"],
            )
        if not isinstance(token, str) or any("\ud800" <= c <= "\udfff" for c in token):
            raise_error("E0909", "this line of the vocabulary is no whole text", span)
    else:
        token = line
        if _line(token) != line:
            raise_error(
                "E0909",
                "this line of the vocabulary is easily lost or changed by an editor",
                span,
                notes=[
                    "empty lines, spaces at an edge and control characters are "
                    "written as JSON strings"
                ],
                helps=[f"write {json.dumps(token, ensure_ascii=False)}"]
                if token
                else ["remove the empty line"],
            )
    if not token or len(token) > MAX_TOKEN:
        raise_error("E0909", f"a token has 1 to {MAX_TOKEN} characters", span)
    return token


def _line(token: str) -> str:
    """A token as a line of a vocabulary file."""
    plain = token == token.strip() and token.isprintable() and token and not token.startswith('"')
    return token if plain else json.dumps(token, ensure_ascii=not token.isprintable())

"""Convert text to token ids and token ids to text, for every type of vocabulary."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import Source, Span, raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.preprocessing.preprocessing_records import (
    ByteTokenizer,
    CharTokenizer,
    TextConfig,
    WordTokenizer,
)
from specc.preprocessing.tokenizer_files import MAX_ID, HfTokenizer
from specc.preprocessing.tokenizer_library import decode_token, decode_token_ids, tokenize_text
from specc.preprocessing.vocabulary import decode_words, encode_words

REPLACEMENT_CHARACTER = "\ufffd"  # replaces invalid UTF-8 and unknown characters


def encode_text_to_ids(text: str, tokenizer: TextConfig) -> NDArray[np.int64]:
    """Encode a text to ids, int64 [length], including start and end tokens. Raise E0908 if a
    character is unknown, E0959 if a word is unknown, and E0940 or E0941 if a tokenizer fails.
    """
    return np.array(_encode_ids(text, tokenizer), np.int64)


def encode_texts_to_ids(texts: Sequence[str], tokenizer: TextConfig) -> list[Array]:
    """Encode several texts. For speed, the ids of all texts are converted to a single array, which
    is then split. Raise the errors of `encode_text_to_ids`.
    """
    rows = [_encode_ids(text, tokenizer) for text in texts]
    return split_by_sequence_lengths(np.array([*chain.from_iterable(rows)], np.int64), rows)


def split_by_sequence_lengths(ids: Array, sequences: Sequence[Sequence[object]]) -> list[Array]:
    """Convert lists of ids to arrays. The lists are concatenated for a single conversion."""
    ends = [0, *accumulate(map(len, sequences))]
    return [ids[start:end] for start, end in pairwise(ends)]


def _encode_ids(text: str, tokenizer: TextConfig) -> list[int]:
    if isinstance(tokenizer, CharTokenizer):
        ids = _encode_characters(text, tokenizer)
    elif isinstance(tokenizer, WordTokenizer):
        ids = encode_words(text, tokenizer)
    else:
        data = _encode_utf8(text)
        if isinstance(tokenizer, ByteTokenizer):
            ids = [byte + tokenizer.offset for byte in data]
        else:
            ids = tokenize_text(text, tokenizer)
    start_ids = [] if tokenizer.start_token_id is None else [tokenizer.start_token_id]
    end_ids = [] if tokenizer.end_token_id is None else [tokenizer.end_token_id]
    # do not add ids that the tokenizer has already added
    if isinstance(tokenizer, HfTokenizer) and tokenizer.adds_special_tokens:
        start_ids = [] if ids[:1] == start_ids else start_ids
        end_ids = [] if ids[-1:] == end_ids else end_ids
    return [*start_ids, *ids, *end_ids]


def _encode_utf8(text: str) -> bytes:
    """Encode a text as UTF-8. Raise an error if the text contains a lone surrogate."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        _raise_unknown(text, error.start, "is an unpaired surrogate and has no UTF-8 encoding")


def decode_text(ids: Sequence[int] | NDArray[np.integer], tokenizer: TextConfig) -> str:
    """Decode ids up to the first end token. Unknown ids become `�`. Raise E0916 if an id is outside
    the vocabulary, unless the vocabulary is a tokenizer file, which may have fewer ids than the
    model.
    """
    text_ids, _ = strip_start_and_end_tokens(ids, tokenizer)
    if isinstance(tokenizer, HfTokenizer):
        return decode_token_ids(text_ids, tokenizer)
    if isinstance(tokenizer, WordTokenizer):
        return decode_words(text_ids, tokenizer, REPLACEMENT_CHARACTER)
    if isinstance(tokenizer, ByteTokenizer):
        return _decode_bytes(text_ids, tokenizer)
    parts = [
        REPLACEMENT_CHARACTER if i == tokenizer.unknown_token_id else tokenizer.vocab[i]
        for i in text_ids
    ]
    return "".join(part for part in parts if len(part) == 1)


def _decode_bytes(ids: Sequence[int], tokenizer: ByteTokenizer) -> str:
    """Decode byte-level ids to text as UTF-8."""
    data = bytes(
        number - tokenizer.offset
        for number in ids
        if tokenizer.offset <= number < tokenizer.offset + 256
    )
    return data.decode("utf-8", errors="replace")


def strip_start_and_end_tokens(
    ids: Sequence[int] | NDArray[np.integer], tokenizer: TextConfig
) -> tuple[list[int], bool]:
    """Return the ids before the first end token, without the start token, and True if there is an
    end token. Raise E0916 if an id is outside the vocabulary.
    """
    text_ids: list[int] = []
    max_id = MAX_ID if isinstance(tokenizer, HfTokenizer) else tokenizer.vocab_size - 1
    for position, value in enumerate(ids):
        token_id = int(value)
        if not 0 <= token_id <= max_id:
            raise_error(
                "E0916",
                f"the model returned the id {token_id}, but its vocabulary has ids 0 to {max_id}",
                notes=[f"position {position} of the result"],
                helps=[
                    "check that `reading` declares the vocabulary with which the model was trained"
                ],
            )
        if token_id == tokenizer.end_token_id:
            return text_ids, True
        if token_id != tokenizer.start_token_id:
            text_ids.append(token_id)
    return text_ids, False


def get_token_label(token_id: int, tokenizer: TextConfig) -> str:
    """Return the label of a token id in plots: its text, or a dot for a token without text."""
    text = (
        decode_token(token_id, tokenizer)
        if isinstance(tokenizer, HfTokenizer)
        else decode_text([token_id], tokenizer)
    )
    return text or "·"


def pad_token_sequences(
    sequences: Sequence[Array], fill: int, *, pad_left: bool = False
) -> tuple[Array, NDArray[np.bool_]]:
    """Pad sequences to an array [batch, longest]. Return the array and the padding mask."""
    max_length = max((len(row) for row in sequences), default=0)
    dtype = np.result_type(*sequences) if sequences else np.dtype(np.int64)
    ids = np.full((len(sequences), max_length), fill, dtype)
    mask = np.zeros(ids.shape, np.bool_)
    for i, row in enumerate(sequences):
        positions = slice(max_length - len(row), max_length) if pad_left else slice(0, len(row))
        ids[i, positions], mask[i, positions] = row, True
    return ids, mask


@lru_cache(maxsize=8)
def _map_characters_to_ids(vocab: tuple[str, ...]) -> dict[str, int]:
    """Map each character of a vocabulary to its id. The mapping is cached."""
    return {token: i for i, token in enumerate(vocab) if len(token) == 1}


def _encode_characters(text: str, tokenizer: CharTokenizer) -> list[int]:
    id_by_character = _map_characters_to_ids(tuple(tokenizer.vocab))
    known_ids = [*map(id_by_character.get, text)]
    if None not in known_ids:
        return cast("list[int]", known_ids)
    ids = []
    for position, character in enumerate(text):
        number = id_by_character.get(character, tokenizer.unknown_token_id)
        if number is None:
            swapped = character.swapcase()
            hint = f"; `{swapped}` is in the vocabulary" if swapped in id_by_character else ""
            _raise_unknown(text, position, f"is not in the vocabulary of the model{hint}")
        ids.append(number)
    return ids


def _raise_unknown(text: str, position: int, reason: str) -> NoReturn:
    character = text[position]
    number = f"U+{ord(character):04X}"
    source = Source("<text>", text)
    raise_error(
        "E0908",
        f"the character `{escape_text(character)}` ({number}) {reason}",
        Span(source, position, position + 1)
        if character < "\ud800" or character > "\udfff"
        else None,
        "unknown character",
        notes=[f"character {position + 1} of the text"],
        helps=["remove it, or use characters of the vocabulary"],
    )

"""Character and byte tokenizers, and vocabulary files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.diagnostics.diagnostic import Source, SpeccError
from specc.preprocessing.preprocessing_records import ByteTokenizer, CharTokenizer
from specc.preprocessing.text_codec import decode_text, encode_text_to_ids, pad_token_sequences
from specc.preprocessing.vocabulary import format_vocabulary_line, parse_vocabulary

LETTERS = CharTokenizer(("<pad>", "<start>", "<end>", *"abc 1"), end_token_id=2, start_token_id=1)
characters = st.characters(exclude_categories=["Cs"])


def get_diagnostic(action):
    with pytest.raises(SpeccError) as caught:
        action()
    return caught.value.diagnostics[0]


def test_start_and_end_tokens():
    assert encode_text_to_ids("ab 1", LETTERS).tolist() == [1, 3, 4, 6, 7, 2]
    assert encode_text_to_ids("ab", LETTERS).dtype == np.int64
    assert encode_text_to_ids("", CharTokenizer(("a",))).shape == (0,)


def test_decoding_skips_special_tokens():
    assert decode_text([1, 3, 0, 4, 2, 5, 5], LETTERS) == "ab"


@given(st.text(alphabet="abc 1"))
def test_characters_round_trip(text):
    assert decode_text(encode_text_to_ids(text, LETTERS), LETTERS) == text


@given(st.text(characters), st.integers(0, 10))
def test_bytes_round_trip(text, offset):
    record = ByteTokenizer(
        offset, end_token_id=1 if offset >= 2 else None, start_token_id=0 if offset >= 2 else None
    )
    assert decode_text(encode_text_to_ids(text, record), record) == text


def test_byte_ids_of_byt5():
    assert encode_text_to_ids("hi", ByteTokenizer(3, end_token_id=1)).tolist() == [107, 108, 1]


def test_unknown_character_error():
    diagnostic = get_diagnostic(lambda: encode_text_to_ids("abA", LETTERS))
    assert diagnostic.code == "E0908"
    assert "`A` (U+0041)" in diagnostic.title
    assert "`a` is in the vocabulary" in diagnostic.title
    assert diagnostic.primary.span.column == 3
    assert "\x1b" not in get_diagnostic(lambda: encode_text_to_ids("\x1b[31m", LETTERS)).title


def test_unknown_token():
    record = CharTokenizer(("?!", "a"), unknown_token_id=0)
    assert encode_text_to_ids("axa", record).tolist() == [1, 0, 1]
    assert decode_text([1, 0, 1], record) == "a\ufffda"


def test_lone_surrogates():
    assert get_diagnostic(lambda: encode_text_to_ids("a\ud800", ByteTokenizer())).code == "E0908"
    assert get_diagnostic(lambda: encode_text_to_ids("a\ud800", LETTERS)).code == "E0908"


def test_ids_outside_the_vocabulary():
    assert get_diagnostic(lambda: decode_text([8], LETTERS)).code == "E0916"
    assert get_diagnostic(lambda: decode_text([-1], ByteTokenizer())).code == "E0916"


def test_invalid_utf_8():
    assert decode_text([0xC3, 0x28], ByteTokenizer()) == "\ufffd("


def test_padding_mask():
    rows = [encode_text_to_ids("a", LETTERS), encode_text_to_ids("abc", LETTERS)]
    ids, keep = pad_token_sequences(rows, 0)
    assert ids.tolist() == [[1, 3, 2, 0, 0], [1, 3, 4, 5, 2]]
    assert keep.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    ids, keep = pad_token_sequences(rows, 0, pad_left=True)
    assert ids[0].tolist() == [0, 0, 1, 3, 2]
    assert keep[0].tolist() == [False, False, True, True, True]
    assert pad_token_sequences([], 0)[0].shape == (0, 0)


def parse_tokens(text: str) -> tuple[str, ...]:
    return parse_vocabulary(Source("v.vocab", text))


def test_one_token_per_line():
    assert parse_tokens('<end>\na\n" "\n"\\n"\n"\\""\n#\n') == ("<end>", "a", " ", "\n", '"', "#")
    assert parse_tokens("a\r\nb\r\n") == ("a", "b")
    assert parse_tokens("a\nb") == ("a", "b")


@given(st.lists(st.text(characters, min_size=1, max_size=5), min_size=1, max_size=20, unique=True))
def test_vocabularies_round_trip(tokens):
    assert parse_tokens("".join(f"{format_vocabulary_line(t)}\n" for t in tokens)) == tuple(tokens)


@pytest.mark.parametrize(
    ("text", "line"),
    [("a\nb\na\n", 3), ("a\n\nb\n", 2), ("a\n \n", 2), ("a \n", 1), ("\ta\n", 1), ('"a\n', 1), ('"\n', 1),
     ('"a" b\n', 1), ('""\n', 1), ('"\\ud800"\n', 1), ("x" * 257, 1)],
)  # fmt: skip
def test_vocabulary_errors_have_a_line(text, line):
    diagnostic = get_diagnostic(lambda: parse_tokens(text))
    assert diagnostic.code == "E0909"
    assert diagnostic.primary.span.line == line


def test_empty_vocabulary():
    assert get_diagnostic(lambda: parse_tokens("")).code == "E0909"

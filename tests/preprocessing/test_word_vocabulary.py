"""Word tokenizers: splitting, lowercase, special tokens, unknown words, and the vocabulary file
next to weights."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import specc
from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.preprocessing.preprocessing_records import WordTokenizer
from specc.preprocessing.text_codec import decode_text, encode_text_to_ids, get_token_label
from specc.preprocessing.vocabulary import SPECIAL_TOKEN, encode_words, find_unreachable_tokens
from specc.weights.formats.safetensors import write_safetensors

LISTED = ("<pad>", "the", "cat", "cat's", "well-known", "sat", ".", "u.s.", "[UNK]")
WORDS = WordTokenizer(LISTED, do_lower_case=True)
known = st.sampled_from([w for w in LISTED if w[0] not in "<["])


def get_diagnostic(text: str, record: WordTokenizer) -> Diagnostic:
    with pytest.raises(SpeccError) as caught:
        encode_text_to_ids(text, record)
    return caught.value.diagnostics[0]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        (" \t\n", []),
        ("The cat sat.", [1, 2, 5, 6]),
        ("the cat's well-known u.s. cat .", [1, 3, 4, 7, 2, 6]),
        ("THE\u00a0U.S.", [1, 7]),
        ("cat..", [2, 6, 6]),
    ],
)
def test_words_are_split(text: str, ids: list[int]) -> None:
    assert encode_text_to_ids(text, WORDS).tolist() == ids


@given(st.lists(known, max_size=20))
def test_words_round_trip(words: list[str]) -> None:
    text = " ".join(words)
    assert decode_text(encode_text_to_ids(text, WORDS), WORDS) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_with_an_unknown_token(text: str) -> None:
    ids = encode_text_to_ids(text, WordTokenizer(LISTED, unknown_token_id=8))
    assert len(ids) <= len(text)
    assert set(ids.tolist()) <= {*range(1, 9)}


def test_start_end_and_unknown_tokens() -> None:
    record = WordTokenizer(LISTED, end_token_id=0, start_token_id=1, unknown_token_id=8)
    ids = encode_text_to_ids("cat Dog", record)
    assert ids.tolist() == [1, 2, 8, 0]
    assert decode_text(ids, record) == "cat \ufffd"


def test_special_tokens_in_text_are_not_special() -> None:
    """`<pad>` in a text is three words, not the padding token."""
    assert get_diagnostic("<pad>", WORDS).code == "E0959"
    assert encode_text_to_ids("<pad>", WordTokenizer(LISTED, unknown_token_id=8)).tolist() == [
        8,
        8,
        8,
    ]
    assert get_token_label(0, WORDS) == "·"


@pytest.mark.parametrize(
    ("text", "record", "help"),
    [
        ("a the", WORDS, "remove it"),
        ("the catt", WORDS, "did you mean `cat`?"),
        ("the Cat", WordTokenizer(LISTED), "write `cat`"),
        ("the \x1b[31m", WORDS, "remove it"),
    ],
)
def test_unknown_word_error(text: str, record: WordTokenizer, help: str) -> None:
    told = get_diagnostic(text, record)
    assert told.code == "E0959"
    assert told.primary is not None
    assert told.primary.span.start == (0 if text[0] == "a" else 4)
    assert help in told.helps[0]
    assert "\x1b" not in told.title


SPEC = """specc 1
model bag
dims batch, n
graph g(ids: int[batch, n], keep: keep[batch, n] = ids >= 0) -> (y: float[batch, 2]) {
  return masked_mean_pool(embedding(ids, size=3, dim=2) @ words, keep)
}
reading { ids = text(words()) }
"""


def test_vocabulary_next_to_the_weights(tmp_path: Path) -> None:
    """As `convert` writes them; with several vocabulary files or none, the model takes ids."""
    table = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    write_safetensors(tmp_path / "m.safetensors", {"words.weight": table})
    (tmp_path / "m.vocab").write_text("one\ntwo\nthree\n", "utf-8")
    out = tmp_path / "m.onnx"
    specc.compile(SPEC, out, weights=tmp_path)
    made = specc.load(out).run(ids=["three one", "two"])["y"]
    assert made.tolist() == [[3, 4], [3, 4]]

    (tmp_path / "n.vocab").write_text("four\n", "utf-8")
    with pytest.raises(SpeccError, match="E0203"):
        specc.compile(SPEC, out, weights=tmp_path)

    for name in ("m.vocab", "n.vocab"):
        (tmp_path / name).unlink()
    specc.compile(SPEC, out, weights=tmp_path)
    with pytest.raises(SpeccError, match="E0906"):
        specc.load(out).run(ids="one")


def test_unreachable_words() -> None:
    vocab = ("<end>", "cat", "Dog", "new york", "u.s.", "[UNK]", "\u00a0x", "ÉTÉ")
    assert find_unreachable_tokens(WordTokenizer(vocab)) == ["new york", "\u00a0x"]
    small = WordTokenizer(vocab, do_lower_case=True)
    assert find_unreachable_tokens(small) == ["Dog", "new york", "\u00a0x", "ÉTÉ"]
    for record in (WordTokenizer(vocab), small):
        for number, word in enumerate(vocab):
            told = (
                word in find_unreachable_tokens(record) or SPECIAL_TOKEN.fullmatch(word) is not None
            )
            try:
                read = encode_words(word, record)
            except SpeccError:
                read = []
            assert (read == [number]) == (not told), word

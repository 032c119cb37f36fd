"""Tokenizer files of every common kind: encoding, decoding, streaming and batches."""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip(
    "tokenizers", reason="requires the package tokenizers: pip install -e '.[text]'"
)
from support.tokenizer_files import KINDS, LINES, train_tokenizer

from specc.decode.detokenizer import CONTEXT, WINDOW, Detokenizer
from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.preprocessing_records import ByteTokenizer, TextOutput
from specc.preprocessing.result_formatting import format_output
from specc.preprocessing.text_codec import decode_text, encode_text_to_ids, get_token_label
from specc.preprocessing.tokenizer_files import HfTokenizer, TokenizerFile

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
every_kind = pytest.mark.parametrize("kind", KINDS)


def make_record(kind: str, **options) -> HfTokenizer:
    return HfTokenizer(file=TokenizerFile.from_text(train_tokenizer(kind)), **options)


def make_changed_record(kind: str, **parts) -> HfTokenizer:
    return HfTokenizer(
        file=TokenizerFile.from_text(json.dumps({**json.loads(train_tokenizer(kind)), **parts}))
    )


def get_error_code(action) -> str:
    with pytest.raises(SpeccError) as caught:
        action()
    return caught.value.diagnostics[0].code


def test_encode_and_decode():
    gpt = make_record("byte_bpe")
    ids = encode_text_to_ids(LINES[0], gpt)
    assert ids.dtype == np.int64
    assert len(ids) < len(LINES[0])
    assert decode_text(ids, gpt) == LINES[0]


@given(ANY_TEXT)
def test_byte_bpe_is_lossless(text):
    assert (
        decode_text(encode_text_to_ids(text, make_record("byte_bpe")), make_record("byte_bpe"))
        == text
    )


def test_without_special_tokens():
    whole = encode_text_to_ids("attention is", make_record("wordpiece")).tolist()
    assert (whole[0], whole[-1]) == (2, 3)
    assert (
        encode_text_to_ids(
            "attention is", make_record("wordpiece", adds_special_tokens=False)
        ).tolist()
        == whole[1:-1]
    )
    assert decode_text(whole, make_record("wordpiece")) == "attention is"


def test_start_and_end_are_added_once():
    inner = encode_text_to_ids(
        "attention", make_record("wordpiece", adds_special_tokens=False)
    ).tolist()
    assert encode_text_to_ids(
        "attention", make_record("wordpiece", start_token_id=2, end_token_id=3)
    ).tolist() == [2, *inner, 3]
    assert encode_text_to_ids(
        "attention",
        make_record("wordpiece", start_token_id=2, end_token_id=3, adds_special_tokens=False),
    ).tolist() == [2, *inner, 3]
    assert encode_text_to_ids(
        "attention", make_record("wordpiece", start_token_id=0, end_token_id=0)
    ).tolist() == [0, 2, *inner, 3, 0]


def test_image_token_is_repeated():
    plain = encode_text_to_ids("attention is all", make_record("wordpiece")).tolist()
    token = plain[2]
    wanted = [i for one in plain for i in [one] * (3 if one == token else 1)]
    spread = make_record("wordpiece", image_token_repetition=(token, 3))
    assert encode_text_to_ids("attention is all", spread).tolist() == wanted
    assert len(wanted) > len(plain)


def test_placeholders_are_replaced_before_tokenization():
    replaced = make_record("wordpiece", placeholder_replacement=("IMG", "is all"))
    wanted = encode_text_to_ids("attention is all and is all", make_record("wordpiece"))
    assert encode_text_to_ids("attention IMG and IMG", replaced).tolist() == wanted.tolist()


def test_decoding_stops_at_the_end():
    gpt = make_record("byte_bpe", end_token_id=0)
    ids = [*encode_text_to_ids("a fox", gpt), *encode_text_to_ids("not read", gpt)]
    assert decode_text(ids, gpt) == "a fox"


def test_unassigned_ids():
    assert decode_text([2, 5_000, 3], make_record("wordpiece")) == ""
    assert get_error_code(lambda: decode_text([-1], make_record("wordpiece"))) == "E0916"
    assert get_error_code(lambda: decode_text([2**40], make_record("wordpiece"))) == "E0916"


def test_lone_surrogates():
    assert get_error_code(lambda: encode_text_to_ids("a\ud800", make_record("byte_bpe"))) == "E0908"


def test_unknown_word_without_an_unknown_token():
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    only = make_changed_record("wordpiece", model=model, post_processor=None, added_tokens=[])
    assert get_error_code(lambda: encode_text_to_ids("b", only)) == "E0908"


def test_truncation_padding_and_dropout_are_ignored():
    whole = encode_text_to_ids(LINES[0], make_record("byte_bpe")).tolist()
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    assert (
        encode_text_to_ids(LINES[0], make_changed_record("byte_bpe", truncation=cut)).tolist()
        == whole
    )
    wide = {
        "strategy": {"Fixed": 90},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
    }
    wide |= {"pad_type_id": 0, "pad_token": "x"}
    assert (
        encode_text_to_ids(LINES[0], make_changed_record("byte_bpe", padding=wide)).tolist()
        == whole
    )
    model = {**json.loads(train_tokenizer("byte_bpe"))["model"], "dropout": 0.9}
    assert all(
        encode_text_to_ids(LINES[0], make_changed_record("byte_bpe", model=model)).tolist() == whole
        for _ in range(10)
    )


def test_token_labels():
    bert = make_record("wordpiece")
    assert get_token_label(2, bert) == "[CLS]"
    assert get_token_label(int(encode_text_to_ids("is", bert)[1]), bert) == "is"
    assert get_token_label(5_000, bert) == "·"


def test_text_output():
    bert = make_record("wordpiece")
    ids = encode_text_to_ids("attention is", bert)
    assert format_output("ids", TextOutput(bert), ids[None]).lines == ("attention is",)
    scores = np.eye(256, dtype=np.float32)[ids][None]
    assert format_output("scores", TextOutput(bert), scores).lines == ("attention is",)
    assert (
        get_error_code(lambda: format_output("scores", TextOutput(bert), scores[0, 0])) == "E0916"
    )


# --- streaming ------------------------------------------------------------------------


def decode_stream(record, ids, sizes) -> str:
    text = Detokenizer(partial(decode_text, tokenizer=record))
    pieces, rest = [], [int(i) for i in ids]
    for size in sizes:
        if not rest:
            break
        pieces.append(text.feed(*rest[:size]))
        rest = rest[size:]
    pieces += [text.feed(i) for i in rest]
    return "".join([*pieces, text.flush()])


@every_kind
@given(text=ANY_TEXT, sizes=st.lists(st.integers(1, 4), max_size=6))
@settings(max_examples=60)
def test_streamed_text_is_complete(kind, text, sizes):
    one = make_record(kind)
    assert decode_stream(one, encode_text_to_ids(text, one), sizes) == decode_text(
        encode_text_to_ids(text, one), one
    )


@every_kind
@given(
    ids=st.lists(st.integers(0, 140), max_size=30), sizes=st.lists(st.integers(1, 4), max_size=6)
)
@settings(max_examples=60)
def test_streamed_text_of_random_ids(kind, ids, sizes):
    # For invalid UTF-8 the fallback decoder replaces whole runs of bytes, including characters that
    # are already shown.
    whole = decode_text(ids, make_record(kind))
    made = decode_stream(make_record(kind), ids, sizes)
    assert made == whole or (kind == "fallback_bpe" and "\ufffd" in whole)


@every_kind
def test_long_streams_drop_old_ids(kind):
    one = make_record(kind, adds_special_tokens=False)
    text = " ".join(LINES * 12)
    ids = encode_text_to_ids(text, one)
    assert len(ids) > WINDOW + CONTEXT
    assert decode_stream(one, ids, []) == decode_text(ids, one)


@given(ANY_TEXT, st.integers(0, 5))
def test_bytes_are_streamed_by_character(text, offset):
    one = ByteTokenizer(offset)
    stream = Detokenizer(partial(decode_text, tokenizer=one))
    pieces = [stream.feed(int(i)) for i in encode_text_to_ids(text, one)]
    assert "".join([*pieces, stream.flush()]) == text


def test_incomplete_characters_are_withheld():
    stream = Detokenizer(partial(decode_text, tokenizer=ByteTokenizer()))
    assert [stream.feed(b) for b in "é!".encode()] == ["", "é", "!"]
    assert stream.feed(0xE2, 0x82) == ""
    assert stream.flush() == "\ufffd"

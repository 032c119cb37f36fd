"""Text through tokenizer files: ids, text, streams and batches, for every kind of
tokenizer that models have.
"""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="needs the package tokenizers: pip install -e '.[text]'")
from support.tokenizer_files import KINDS, LINES, train_tokenizer

from specc.decode.decode_loop import CONTEXT, WINDOW, Detokenizer
from specc.diagnostics.diagnostic import Failed
from specc.preprocessing.records import TextBytes, TextOutput
from specc.preprocessing.show_results import show_output
from specc.preprocessing.text_codec import decode_text, encode_text_ids, token_label
from specc.preprocessing.tokenizer_files import TextTokenizer, TokenizerFile

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
every_kind = pytest.mark.parametrize("kind", KINDS)


def record(kind: str, **options) -> TextTokenizer:
    return TextTokenizer(file=TokenizerFile.of(train_tokenizer(kind)), **options)


def changed(kind: str, **parts) -> TextTokenizer:
    return TextTokenizer(
        file=TokenizerFile.of(json.dumps({**json.loads(train_tokenizer(kind)), **parts}))
    )


def fault(action) -> str:
    with pytest.raises(Failed) as caught:
        action()
    return caught.value.diagnostics[0].code


def test_ids_are_those_of_the_file_and_come_back_as_text():
    gpt = record("byte_bpe")
    ids = encode_text_ids(LINES[0], gpt)
    assert ids.dtype == np.int64
    assert len(ids) < len(LINES[0])
    assert decode_text(ids, gpt) == LINES[0]


@given(ANY_TEXT)
def test_bytes_lose_nothing(text):
    assert decode_text(encode_text_ids(text, record("byte_bpe")), record("byte_bpe")) == text


def test_what_a_file_puts_around_a_text_can_be_left_out():
    whole = encode_text_ids("attention is", record("wordpiece")).tolist()
    assert (whole[0], whole[-1]) == (2, 3)
    assert (
        encode_text_ids("attention is", record("wordpiece", special=False)).tolist() == whole[1:-1]
    )
    assert decode_text(whole, record("wordpiece")) == "attention is"


def test_start_and_end_are_put_once():
    inner = encode_text_ids("attention", record("wordpiece", special=False)).tolist()
    assert encode_text_ids("attention", record("wordpiece", start=2, end=3)).tolist() == [
        2,
        *inner,
        3,
    ]
    assert encode_text_ids(
        "attention", record("wordpiece", start=2, end=3, special=False)
    ).tolist() == [2, *inner, 3]
    assert encode_text_ids("attention", record("wordpiece", start=0, end=0)).tolist() == [
        0,
        2,
        *inner,
        3,
        0,
    ]


def test_an_id_is_spread_over_the_rows_of_what_it_stands_for():
    plain = encode_text_ids("attention is all", record("wordpiece")).tolist()
    token = plain[2]
    wanted = [i for one in plain for i in [one] * (3 if one == token else 1)]
    spread = record("wordpiece", spread=(token, 3))
    assert encode_text_ids("attention is all", spread).tolist() == wanted
    assert len(wanted) > len(plain)


def test_placeholders_in_texts_are_replaced_before_they_are_tokenized():
    replaced = record("wordpiece", replace=("IMG", "is all"))
    wanted = encode_text_ids("attention is all and is all", record("wordpiece"))
    assert encode_text_ids("attention IMG and IMG", replaced).tolist() == wanted.tolist()


def test_decoding_stops_at_the_end():
    gpt = record("byte_bpe", end=0)
    ids = [*encode_text_ids("a fox", gpt), *encode_text_ids("not read", gpt)]
    assert decode_text(ids, gpt) == "a fox"


def test_ids_without_a_token_have_no_text():
    assert decode_text([2, 5_000, 3], record("wordpiece")) == ""
    assert fault(lambda: decode_text([-1], record("wordpiece"))) == "E0916"
    assert fault(lambda: decode_text([2**40], record("wordpiece"))) == "E0916"


def test_half_a_pair_has_no_ids():
    assert fault(lambda: encode_text_ids("a\ud800", record("byte_bpe"))) == "E0908"


def test_a_text_that_the_vocabulary_lacks_and_no_unknown():
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    only = changed("wordpiece", model=model, post_processor=None, added_tokens=[])
    assert fault(lambda: encode_text_ids("b", only)) == "E0908"


def test_truncation_padding_and_dropout_are_for_training():
    whole = encode_text_ids(LINES[0], record("byte_bpe")).tolist()
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    assert encode_text_ids(LINES[0], changed("byte_bpe", truncation=cut)).tolist() == whole
    wide = {
        "strategy": {"Fixed": 90},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
    }
    wide |= {"pad_type_id": 0, "pad_token": "x"}
    assert encode_text_ids(LINES[0], changed("byte_bpe", padding=wide)).tolist() == whole
    model = {**json.loads(train_tokenizer("byte_bpe"))["model"], "dropout": 0.9}
    assert all(
        encode_text_ids(LINES[0], changed("byte_bpe", model=model)).tolist() == whole
        for _ in range(10)
    )


def test_symbols_are_what_a_picture_is_labelled_with():
    bert = record("wordpiece")
    assert token_label(2, bert) == "[CLS]"
    assert token_label(int(encode_text_ids("is", bert)[1]), bert) == "is"
    assert token_label(5_000, bert) == "·"


def test_results_are_shown_as_text_even_with_more_rows_than_tokens():
    bert = record("wordpiece")
    ids = encode_text_ids("attention is", bert)
    assert show_output("ids", TextOutput(bert), ids[None]).lines == ("attention is",)
    scores = np.eye(256, dtype=np.float32)[ids][None]
    assert show_output("scores", TextOutput(bert), scores).lines == ("attention is",)
    assert fault(lambda: show_output("scores", TextOutput(bert), scores[0, 0])) == "E0916"


# Streams.


def streamed(record, ids, sizes) -> str:
    text = Detokenizer(partial(decode_text, record=record))
    pieces, rest = [], [int(i) for i in ids]
    for size in sizes:
        if not rest:
            break
        pieces.append(text.feed(*rest[:size]))
        rest = rest[size:]
    pieces += [text.feed(i) for i in rest]
    return "".join([*pieces, text.close()])


@every_kind
@given(text=ANY_TEXT, sizes=st.lists(st.integers(1, 4), max_size=6))
@settings(max_examples=60)
def test_a_stream_gives_the_whole_text(kind, text, sizes):
    one = record(kind)
    assert streamed(one, encode_text_ids(text, one), sizes) == decode_text(
        encode_text_ids(text, one), one
    )


@every_kind
@given(
    ids=st.lists(st.integers(0, 140), max_size=30), sizes=st.lists(st.integers(1, 4), max_size=6)
)
@settings(max_examples=60)
def test_a_stream_of_any_ids_gives_the_whole_text(kind, ids, sizes):
    # Of bytes that are no UTF-8, the fallback decoder gives up whole runs, those
    # already shown included.
    whole = decode_text(ids, record(kind))
    made = streamed(record(kind), ids, sizes)
    assert made == whole or (kind == "fallback_bpe" and "\ufffd" in whole)


@every_kind
def test_long_streams_let_go_of_old_ids(kind):
    one = record(kind, special=False)
    text = " ".join(LINES * 12)
    ids = encode_text_ids(text, one)
    assert len(ids) > WINDOW + CONTEXT
    assert streamed(one, ids, []) == decode_text(ids, one)


@given(ANY_TEXT, st.integers(0, 5))
def test_bytes_are_streamed_by_character(text, offset):
    one = TextBytes(offset)
    stream = Detokenizer(partial(decode_text, record=one))
    pieces = [stream.feed(int(i)) for i in encode_text_ids(text, one)]
    assert "".join([*pieces, stream.close()]) == text


def test_a_character_waits_for_its_bytes():
    stream = Detokenizer(partial(decode_text, record=TextBytes()))
    assert [stream.feed(b) for b in "é!".encode()] == ["", "é", "!"]
    assert stream.feed(0xE2, 0x82) == ""
    assert stream.close() == "\ufffd"

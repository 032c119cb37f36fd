"""Streaming detokenization: complete characters only, and an end exactly before a stop string."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.toy_models import TableDecoder, make_continuing_logits

from specc.decode.decode_loop import iterate_decode_steps
from specc.decode.detokenizer import (
    CONTEXT,
    WINDOW,
    BatchDetokenizer,
    Detokenizer,
    compute_stop_prefix_length,
    find_stop_string,
    make_stop_string_predicate,
    truncate_at_stop_string,
)
from specc.decode.generation_settings import GenerationSettings


def byte_decode(tokens: Sequence[int]) -> str:
    """Decode byte tokens."""
    return bytes(tokens).decode("utf-8", "replace")


def letter_decode(tokens: Sequence[int]) -> str:
    return "".join(".abcdefgh"[t] for t in tokens)


def stream_pieces(text: str, stops: Sequence[str] = ()) -> list[str]:
    """Return the text after each byte and at the end."""
    stream = Detokenizer(byte_decode, stops)
    return [*(stream.feed(b) for b in text.encode()), stream.flush()]


def test_characters_are_withheld_until_complete() -> None:
    assert stream_pieces("aé€😀") == ["a", "", "é", "", "", "€", "", "", "", "😀", ""]


def test_incomplete_character_becomes_a_replacement_character() -> None:
    stream = Detokenizer(byte_decode)
    assert [stream.feed(b) for b in (0x61, 0xE2, 0x82, 0x62, 0xE2)] == ["a", "", "", "\ufffdb", ""]
    assert stream.flush() == "\ufffd"


def test_invalid_bytes_are_withheld() -> None:
    stream = Detokenizer(byte_decode)
    assert [stream.feed(0xFF) for _ in range(6)] == [""] * 6
    assert stream.feed(*b"a") == "\ufffd" * 6 + "a"
    assert stream.feed(0xFF) + stream.flush() == "\ufffd"


@given(st.text(max_size=120))
def test_pieces_form_the_text(text: str) -> None:
    assert "".join(stream_pieces(text)) == byte_decode(text.encode("utf-8"))


@given(st.lists(st.integers(0, 255), max_size=150))
def test_pieces_of_random_bytes_form_the_text(tokens: list[int]) -> None:
    stream = Detokenizer(byte_decode)
    made = "".join(stream.feed(t) for t in tokens) + stream.flush()
    assert made.replace("\ufffd", "") == byte_decode(tokens).replace("\ufffd", "")


def test_only_recent_tokens_are_decoded_again() -> None:
    longest = 0

    def count_and_decode(tokens: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return byte_decode(tokens)

    stream = Detokenizer(count_and_decode)
    assert "".join(stream.feed(97) for _ in range(500)) == "a" * 500
    assert CONTEXT < longest <= WINDOW + 1


def test_stop_string_across_tokens() -> None:
    assert stream_pieces("one\nQ: two", ["\nQ:"]) == ["o", "n", "e", *[""] * 8]
    assert "".join(stream_pieces("one\nA: two", ["\nQ:"])) == "one\nA: two"
    stream = Detokenizer(byte_decode, ["END"])
    assert stream.feed(*b"ab") + stream.feed(*b"cEN") + stream.feed(*b"Dxy") == "abc"
    assert stream.stopped
    assert stream.feed(*b"more") + stream.flush() == ""


def test_stop_string_prefix_is_withheld() -> None:
    assert stream_pieces("ENEND", ["END"]) == ["", "", "EN", "", "", ""]
    assert stream_pieces("ENE", ["END"]) == ["", "", "EN", "E"]


def test_stop_string_at_the_end() -> None:
    stream = Detokenizer(byte_decode, ["\ufffd"])
    assert stream.feed(0x61, 0xE2) == "a"
    assert stream.flush() == ""
    assert stream.stopped


words = st.text("ab", min_size=1, max_size=4)


@given(st.text("ab", max_size=40), st.lists(words, max_size=3))
def test_stop_position_does_not_depend_on_tokens(text: str, stops: list[str]) -> None:
    assert "".join(stream_pieces(text, stops)) == truncate_at_stop_string(text, stops)
    stream = Detokenizer(byte_decode, stops)
    assert stream.feed(*text.encode()) + stream.flush() == truncate_at_stop_string(text, stops)


@given(st.text("ab", max_size=12), st.lists(words, max_size=3))
def test_first_complete_stop_string_wins(text: str, stops: list[str]) -> None:
    shortest = next(
        (text[:n] for n in range(len(text) + 1) if any(s in text[:n] for s in stops)), None
    )
    at = find_stop_string(text, stops)
    assert (at is None) == (shortest is None)
    if shortest is not None and at is not None:
        assert any(shortest[at:] == s for s in stops)
    assert compute_stop_prefix_length(text, stops) <= max((len(s) for s in stops), default=0)


def test_batch_elements_stop_independently() -> None:
    texts = BatchDetokenizer(letter_decode, 3, ["cd"])
    shown: list[list[str]] = []
    ended = []
    toy = TableDecoder(make_continuing_logits("abcdef", "babab", "cab"))
    for made in iterate_decode_steps(
        toy, np.array([[1], [2], [3]]), GenerationSettings(stop=(0,)), stopping_criterion=texts.feed
    ):
        shown.append(texts.pop_new_text())
        ended.append(made.has_ended.tolist())
    assert shown == [["b", "a", "a"], ["", "b", "b"], ["", "a", ""], ["", "b", ""], ["", "", ""]]
    assert ended[2] == [True, False, True]
    assert texts.flush() == ["", "", ""]


def test_withheld_text_is_shown_at_the_end() -> None:
    texts = BatchDetokenizer(letter_decode, 1, ["bcx"])
    for _ in iterate_decode_steps(
        TableDecoder(make_continuing_logits("abcdef")),
        np.array([[1]]),
        GenerationSettings(max_tokens=2),
        stopping_criterion=texts.feed,
    ):
        assert texts.pop_new_text() == [""]
    assert texts.flush() == ["bc"]


@pytest.mark.parametrize(("tokens", "held"), [((1, 2), False), ((1, 3, 4), True), ((3,), False)])
def test_stop_check_of_beam_search(tokens: tuple[int, ...], held: bool) -> None:
    assert make_stop_string_predicate(letter_decode, ["cd"])(tokens) == held

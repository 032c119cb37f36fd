"""Text as it comes: whole characters only, and an end exactly before a stop string."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.toy_models import TableStepper, make_continuing_logits

from specc.decode.decode_loop import (
    CONTEXT,
    WINDOW,
    BatchDetokenizer,
    Detokenizer,
    cut_at_stop,
    decode_steps,
    find_stop,
    make_stop_check,
    stop_prefix_length,
)
from specc.decode.generation_settings import GenerationSettings


def byte_decode(tokens: Sequence[int]) -> str:
    """A byte tokenizer."""
    return bytes(tokens).decode("utf-8", "replace")


def letter_decode(tokens: Sequence[int]) -> str:
    return "".join(".abcdefgh"[t] for t in tokens)


def pieces(text: str, stops: Sequence[str] = ()) -> list[str]:
    """What is shown after each byte of a text, and at its end."""
    stream = Detokenizer(byte_decode, stops)
    return [*(stream.feed(b) for b in text.encode()), stream.close()]


def test_a_character_is_shown_when_it_is_whole() -> None:
    assert pieces("aé€😀") == ["a", "", "é", "", "", "€", "", "", "", "😀", ""]


def test_a_character_that_stays_broken_is_shown_at_the_end_or_before_the_next() -> None:
    stream = Detokenizer(byte_decode)
    assert [stream.feed(b) for b in (0x61, 0xE2, 0x82, 0x62, 0xE2)] == ["a", "", "", "\ufffdb", ""]
    assert stream.close() == "\ufffd"


def test_broken_characters_wait_until_the_next_whole_one() -> None:
    stream = Detokenizer(byte_decode)
    assert [stream.feed(0xFF) for _ in range(6)] == [""] * 6
    assert stream.feed(*b"a") == "\ufffd" * 6 + "a"
    assert stream.feed(0xFF) + stream.close() == "\ufffd"


@given(st.text(max_size=120))
def test_the_pieces_make_the_text(text: str) -> None:
    assert "".join(pieces(text)) == byte_decode(text.encode("utf-8"))


@given(st.lists(st.integers(0, 255), max_size=150))
def test_the_pieces_of_any_bytes_make_their_text(tokens: list[int]) -> None:
    stream = Detokenizer(byte_decode)
    made = "".join(stream.feed(t) for t in tokens) + stream.close()
    assert made.replace("\ufffd", "") == byte_decode(tokens).replace("\ufffd", "")


def test_only_the_newest_tokens_are_decoded_again() -> None:
    longest = 0

    def decode(tokens: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return byte_decode(tokens)

    stream = Detokenizer(decode)
    assert "".join(stream.feed(97) for _ in range(500)) == "a" * 500
    assert CONTEXT < longest <= WINDOW + 1


def test_a_stop_string_is_cut_where_it_begins_even_across_tokens() -> None:
    assert pieces("one\nQ: two", ["\nQ:"]) == ["o", "n", "e", *[""] * 8]
    assert "".join(pieces("one\nA: two", ["\nQ:"])) == "one\nA: two"
    stream = Detokenizer(byte_decode, ["END"])
    assert stream.feed(*b"ab") + stream.feed(*b"cEN") + stream.feed(*b"Dxy") == "abc"
    assert stream.stopped
    assert stream.feed(*b"more") + stream.close() == ""


def test_what_may_begin_a_stop_string_is_held_back_until_it_does_not() -> None:
    assert pieces("ENEND", ["END"]) == ["", "", "EN", "", "", ""]
    assert pieces("ENE", ["END"]) == ["", "", "EN", "E"]


def test_a_stop_string_may_be_found_in_what_was_left() -> None:
    stream = Detokenizer(byte_decode, ["\ufffd"])
    assert stream.feed(0x61, 0xE2) == "a"
    assert stream.close() == ""
    assert stream.stopped


words = st.text("ab", min_size=1, max_size=4)


@given(st.text("ab", max_size=40), st.lists(words, max_size=3))
def test_where_a_text_is_cut_does_not_hang_on_its_tokens(text: str, stops: list[str]) -> None:
    assert "".join(pieces(text, stops)) == cut_at_stop(text, stops)
    stream = Detokenizer(byte_decode, stops)
    assert stream.feed(*text.encode()) + stream.close() == cut_at_stop(text, stops)


@given(st.text("ab", max_size=12), st.lists(words, max_size=3))
def test_the_stop_string_complete_first_counts(text: str, stops: list[str]) -> None:
    shortest = next(
        (text[:n] for n in range(len(text) + 1) if any(s in text[:n] for s in stops)), None
    )
    at = find_stop(text, stops)
    assert (at is None) == (shortest is None)
    if shortest is not None and at is not None:
        assert any(shortest[at:] == s for s in stops)
    assert stop_prefix_length(text, stops) <= max((len(s) for s in stops), default=0)


def test_a_batch_streams_its_texts_and_stops_each_by_itself() -> None:
    texts = BatchDetokenizer(letter_decode, 3, ["cd"])
    shown: list[list[str]] = []
    ended = []
    toy = TableStepper(make_continuing_logits("abcdef", "babab", "cab"))
    for made in decode_steps(
        toy, np.array([[1], [2], [3]]), GenerationSettings(stop=(0,)), watch=texts.take
    ):
        shown.append(texts.fresh())
        ended.append(made.ended.tolist())
    assert shown == [["b", "a", "a"], ["", "b", "b"], ["", "a", ""], ["", "b", ""], ["", "", ""]]
    assert ended[2] == [True, False, True]
    assert texts.close() == ["", "", ""]


def test_what_the_last_step_leaves_is_shown() -> None:
    texts = BatchDetokenizer(letter_decode, 1, ["bcx"])
    for _ in decode_steps(
        TableStepper(make_continuing_logits("abcdef")),
        np.array([[1]]),
        GenerationSettings(max_tokens=2),
        watch=texts.take,
    ):
        assert texts.fresh() == [""]
    assert texts.close() == ["bc"]


@pytest.mark.parametrize(("tokens", "held"), [((1, 2), False), ((1, 3, 4), True), ((3,), False)])
def test_a_beam_search_asks_whether_a_text_holds_a_stop_string(
    tokens: tuple[int, ...], held: bool
) -> None:
    assert make_stop_check(letter_decode, ["cd"])(tokens) == held

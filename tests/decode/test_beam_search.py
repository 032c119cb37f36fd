"""Beam search over toy models, against exhaustive search."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.toy_models import (
    TableDecoder,
    list_all_texts,
    make_continuing_logits,
    make_hashed_logits,
    sum_log_probabilities,
)

from specc.decode.beam_search import run_beam_search
from specc.decode.decode_loop import iterate_decode_steps
from specc.decode.generation_settings import GenerationSettings

BEAM = GenerationSettings(
    strategy="beam", num_beams=3, max_tokens=5, stop=(0,), num_return_sequences=3
)
WIDE = 300
"""Beams enough to keep every text of four tokens out of four."""


def search_tokens(
    table: Any, prompt: list[list[int]], said: GenerationSettings
) -> list[list[tuple[int, ...]]]:
    return [
        [h.tokens for h in row]
        for row in run_beam_search(TableDecoder(table), np.array(prompt), said)
    ]


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.6, 1.0, 2.0]))
@settings(max_examples=25, deadline=None)
def test_wide_beam_finds_the_best_sequence(seed: int, penalty: float) -> None:
    table = make_hashed_logits(seed, 4)
    said = replace(
        BEAM,
        num_beams=WIDE,
        max_tokens=4,
        length_penalty=penalty,
        early_stopping="never",
        num_return_sequences=5,
    )
    (made,) = run_beam_search(TableDecoder(table), np.array([[2, 1]]), said)
    scores = [
        sum_log_probabilities(table, (2, 1), t) / len(t) ** penalty for t in list_all_texts(4, 4, 0)
    ]
    # logits are float32, so the log of a probability near 1 is accurate to about 1e-7
    assert [h.score for h in made] == pytest.approx(
        sorted(scores, reverse=True)[:5], rel=1e-5, abs=5e-7
    )


@given(st.integers(0, 10_000), st.floats(1, 2))
@settings(deadline=None)
def test_one_beam_is_greedy(seed: int, penalty: float) -> None:
    # with one beam, eos is taken only if it is the best candidate, as in greedy decoding
    table, prompt = make_hashed_logits(seed, 6), np.array([[2, 3], [4, 1]])
    said = GenerationSettings(max_tokens=5, stop=(0,), length_penalty=penalty)
    steps = np.stack(
        [m.tokens for m in iterate_decode_steps(TableDecoder(table), prompt, said)], axis=1
    )
    beams = search_tokens(
        table, prompt.tolist(), replace(said, strategy="beam", num_beams=1, early_stopping=True)
    )
    for row, (text,) in zip(steps, beams, strict=True):
        assert row[: len(text)].tolist() == list(text)
        assert not row[len(text) :].any()


@given(st.integers(0, 10_000), st.booleans())
@settings(deadline=None)
def test_batch_elements_are_independent(seed: int, penalized: bool) -> None:
    prompt = [[1, 2], [3, 3], [5, 1]]
    said = replace(BEAM, repetition_penalty=1.4 if penalized else 1.0)
    whole = search_tokens(make_hashed_logits(seed, 6), prompt, said)
    assert whole == [search_tokens(make_hashed_logits(seed, 6), [row], said)[0] for row in prompt]


@given(st.integers(0, 10_000))
@settings(deadline=None)
def test_scores_are_sorted_and_correct(seed: int) -> None:
    table = make_hashed_logits(seed, 6)
    (made,) = run_beam_search(
        TableDecoder(table), np.array([[1]]), replace(BEAM, length_penalty=0.6, log_probs=True)
    )
    assert len(made) == 3
    assert [h.score for h in made] == sorted((h.score for h in made), reverse=True)
    for h in made:
        assert h.log_probs is not None
        total = sum_log_probabilities(table, (1,), h.tokens)
        assert sum(h.log_probs) == pytest.approx(total, abs=1e-4)
        assert h.score == pytest.approx(total / len(h.tokens) ** 0.6, abs=1e-4)
        assert h.has_ended == (h.tokens[-1] == 0)


@given(st.integers(0, 10_000))
@settings(deadline=None)
def test_ties_are_deterministic(seed: int) -> None:
    table = make_hashed_logits(seed, 5, spread=1.0, grid=2.0)
    assert search_tokens(table, [[1]], BEAM) == search_tokens(table, [[1]], BEAM)


def test_ties_prefer_the_lower_token() -> None:
    assert search_tokens(lambda text: [0.0] * 6, [[1]], replace(BEAM, stop=(), max_tokens=1)) == [
        [(0,), (1,), (2,)]
    ]
    assert search_tokens(lambda text: [0.0] * 6, [[1]], replace(BEAM, stop=(), max_tokens=2)) == [
        [(0, 0), (0, 1), (0, 2)]
    ]


def test_model_inputs() -> None:
    toy = TableDecoder(make_continuing_logits("ab", "bcdef"))
    made = run_beam_search(
        toy, np.array([[1], [2]]), replace(BEAM, num_beams=2, num_return_sequences=1, max_tokens=9)
    )
    assert [row[0].tokens for row in made] == [(2, 0), (3, 4, 5, 6, 0)]
    assert toy.input_count[:2] == [(2, 1), (4, 1)]
    assert toy.input_count[-1] == (2, 1)


def test_early_stopping() -> None:
    def table(text: tuple[int, ...]) -> list[float]:
        # after the first token eos is almost as likely as the alternative, which is certain from
        # then on
        return [0.0, 0.5, -9.0] if len(text) < 3 else [-20.0, 9.0, -20.0]

    said = replace(BEAM, num_beams=2, num_return_sequences=1, max_tokens=12, length_penalty=1.0)
    lengths = {}
    for early in (True, False, "never"):
        toy = TableDecoder(table)
        ((best,),) = run_beam_search(toy, np.array([[1]]), replace(said, early_stopping=early))  # type: ignore[arg-type]
        lengths[early] = len(best.tokens), len(toy.input_count)
    assert lengths[True][1] < lengths[False][1] <= lengths["never"][1]
    assert lengths["never"][0] == 12


def test_fewer_sequences_than_beams() -> None:
    def table(text: tuple[int, ...]) -> list[float]:
        return [0.0, -np.inf, -np.inf] if len(text) > 1 else [-np.inf, 1.0, 0.0]

    assert search_tokens(table, [[1]], replace(BEAM, num_beams=3)) == [[(1, 0), (2, 0)]]


def test_custom_stopping_criterion() -> None:
    said = replace(BEAM, num_beams=2, num_return_sequences=1, max_tokens=9)
    made = run_beam_search(
        TableDecoder(make_continuing_logits("abcdef")),
        np.array([[1]]),
        said,
        should_stop=lambda t: tuple(t[-2:]) == (3, 4),
    )
    assert (made[0][0].tokens, made[0][0].has_ended) == ((2, 3, 4), True)


def test_empty_batch_and_no_padding() -> None:
    assert (
        run_beam_search(TableDecoder(make_hashed_logits(0, 4)), np.zeros((0, 2), np.int64), BEAM)
        == []
    )
    flat = TableDecoder(lambda text: [3.0, 2.9, 2.8, 2.7])
    said = replace(
        BEAM, stop=(), max_tokens=1, num_beams=1, num_return_sequences=1, repetition_penalty=1.2
    )
    keep = np.array([[False, True]])
    assert run_beam_search(flat, np.array([[0, 1]]), said, padding_mask=keep)[0][0].tokens == (0,)


@pytest.mark.parametrize("penalty", [1e308, -1e308, 300.0])
def test_extreme_length_penalty(penalty: float) -> None:
    said = replace(BEAM, num_beams=2, num_return_sequences=1, max_tokens=30, length_penalty=penalty)
    ((best,),) = run_beam_search(TableDecoder(make_hashed_logits(0, 4)), np.array([[1]]), said)
    assert best.tokens

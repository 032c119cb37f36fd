"""Greedy decoding and sampling over toy models: what is written, when it ends, and what
it hangs on.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.toy_models import (
    TableStepper,
    make_continuing_logits,
    make_hashed_logits,
    sum_log_probabilities,
)

from specc.decode.decode_loop import decode_steps
from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_choice import Bools, Ints
from specc.diagnostics.diagnostic import Failed

VOCAB = 7
SAMPLED = GenerationSettings(
    strategy="sample", max_tokens=6, temperature=0.8, top_k=5, stop=(0,), seed=3
)


def tokens_of(
    prompt: Sequence[Sequence[int]],
    settings: GenerationSettings,
    seed: int = 0,
    spread: float = 2.0,
) -> Ints:
    """i64[rows steps]: what the toy model of this seed writes."""
    steps = decode_steps(
        TableStepper(make_hashed_logits(seed, VOCAB, spread)), np.array(prompt), settings
    )
    return np.stack([made.tokens for made in steps], axis=1)


prompts = st.integers(1, 3).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(1, VOCAB - 1), min_size=n, max_size=n), min_size=1, max_size=4
    )
)


def test_the_prompt_is_fed_once_and_the_last_token_never() -> None:
    toy = TableStepper(make_continuing_logits("abcd", "aabb"))
    steps = list(decode_steps(toy, np.array([[1, 2], [1, 1]]), GenerationSettings(stop=(0,))))
    assert [made.tokens.tolist() for made in steps] == [[3, 2], [4, 2], [0, 0]]
    assert [made.ended.tolist() for made in steps] == [[False] * 2, [False] * 2, [True] * 2]
    assert toy.input_count == [(2, 2), (2, 1), (2, 1)]


def test_behind_its_end_a_row_is_filled() -> None:
    prompt = np.array([[1], [2]])
    steps = list(
        decode_steps(
            TableStepper(make_continuing_logits("ab", "bcde")),
            prompt,
            GenerationSettings(stop=(0,), pad=5, log_probs=True),
        )
    )
    assert [made.tokens.tolist() for made in steps] == [[2, 3], [0, 4], [5, 5], [5, 0]]
    scores = [made.log_probs for made in steps]
    assert scores[2] is not None
    assert scores[2][0] == 0
    assert scores[2][1] < 0


def test_several_tokens_can_stop_a_text_and_the_first_fills() -> None:
    steps = list(
        decode_steps(
            TableStepper(make_continuing_logits("ab", "bcd")),
            np.array([[1], [2]]),
            GenerationSettings(stop=(4, 2)),
        )
    )
    assert [made.tokens.tolist() for made in steps] == [[2, 3], [4, 4]]


def test_a_text_is_never_longer_than_asked_for() -> None:
    toy = TableStepper(make_continuing_logits("abcdefgh"))
    assert len(list(decode_steps(toy, np.array([[1]]), GenerationSettings(max_tokens=3)))) == 3
    assert len(toy.input_count) == 3
    assert list(decode_steps(toy, np.zeros((0, 1), np.int64), GenerationSettings())) == []


def test_whoever_watches_can_end_a_row() -> None:
    def enough(tokens: Ints, ended: Bools) -> Bools:
        return tokens == 3

    steps = list(
        decode_steps(
            TableStepper(make_continuing_logits("abcd", "bcde")),
            np.array([[1], [2]]),
            GenerationSettings(stop=(0,)),
            watch=enough,
        )
    )
    assert [made.tokens.tolist() for made in steps] == [[2, 3], [3, 0]]


def test_log_probabilities_are_the_models_own() -> None:
    table = make_hashed_logits(4, VOCAB)
    settings = replace(SAMPLED, repetition_penalty=1.5, log_probs=True, stop=())
    steps = list(decode_steps(TableStepper(table), np.array([[3, 1]]), settings))
    text = [int(made.tokens[0]) for made in steps]
    total = sum(float(made.log_probs[0]) for made in steps if made.log_probs is not None)
    assert total == pytest.approx(sum_log_probabilities(table, (3, 1), text), abs=1e-5)


def test_a_penalty_sees_the_prompt_and_what_is_written_but_no_padding() -> None:
    def flat(text: tuple[int, ...]) -> list[float]:
        return [3.0, 2.9, 2.8, 2.7]

    def write(keep: Bools | None) -> list[int]:
        settings = GenerationSettings(repetition_penalty=1.2, max_tokens=4)
        return [
            int(m.tokens[0])
            for m in decode_steps(TableStepper(flat), np.array([[0, 1]]), settings, keep=keep)
        ]

    assert write(None) == [2, 3, 0, 0]
    assert write(np.array([[False, True]])) == [0, 2, 3, 0]


@given(prompts, st.integers(0, 50), st.integers(0, 2**64 - 1))
def test_drawing_from_the_best_one_is_greedy(prompt: list[list[int]], seed: int, key: int) -> None:
    one = replace(SAMPLED, top_k=1, seed=key)
    assert np.array_equal(
        tokens_of(prompt, one, seed), tokens_of(prompt, replace(one, strategy="greedy"), seed)
    )


@given(prompts, st.integers(0, 50))
def test_greedy_rows_do_not_influence_one_another(prompt: list[list[int]], seed: int) -> None:
    greedy = GenerationSettings(max_tokens=5, stop=(0,), repetition_penalty=1.3)
    whole = tokens_of(prompt, greedy, seed)
    for row, made in zip(prompt, whole, strict=True):
        alone = tokens_of([row], greedy, seed)[0]
        assert made[: len(alone)].tolist() == alone.tolist()
        assert not made[len(alone) :].any()


@given(prompts, st.integers(0, 50))
def test_a_drawn_row_hangs_on_its_number_not_on_the_others(
    prompt: list[list[int]], seed: int
) -> None:
    whole = tokens_of(prompt, SAMPLED, seed)
    others = [[(t % (VOCAB - 1)) + 1 for t in row] for row in prompt]
    for row in range(len(prompt)):
        mixed = tokens_of([*others[:row], prompt[row], *others[row + 1 :]], SAMPLED, seed)[row]
        shared = min(len(mixed), whole.shape[1])
        assert mixed[:shared].tolist() == whole[row][:shared].tolist()
        assert not mixed[shared:].any()
        assert not whole[row][shared:].any()


def test_a_seed_says_what_is_drawn() -> None:
    drawn = {
        seed: tokens_of([[1], [1]], replace(SAMPLED, seed=seed), spread=0.1).tolist()
        for seed in range(6)
    }
    assert drawn[2] == tokens_of([[1], [1]], replace(SAMPLED, seed=2), spread=0.1).tolist()
    assert len({str(d) for d in drawn.values()}) > 1
    assert any(rows[0] != rows[1] for rows in drawn.values()), "rows of one prompt are drawn apart"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("strategy", ["greedy", "sample"])
def test_scores_that_are_no_numbers_fail_with_e0961(wrong: float, strategy: str) -> None:
    def table(text: tuple[int, ...]) -> list[float]:
        if len(text) < 3:
            return [0.0, 0.0]
        return [wrong, wrong if wrong < 0 else 0.0]

    settings = GenerationSettings(strategy=strategy, max_tokens=9)  # type: ignore[arg-type]
    with pytest.raises(Failed) as caught:
        list(decode_steps(TableStepper(table), np.array([[1]]), settings))
    assert [d.code for d in caught.value.diagnostics] == ["E0961"]


def test_a_row_that_has_ended_may_score_anything() -> None:
    def table(text: tuple[int, ...]) -> list[float]:
        return (
            [np.nan] * 3
            if text[:2] == (1, 0)
            else [3.0, 0, 0]
            if text[0] == 1 or len(text) > 3
            else [0, 0, 3.0]
        )

    steps = list(
        decode_steps(TableStepper(table), np.array([[1], [2]]), GenerationSettings(stop=(0,)))
    )
    assert [made.tokens.tolist() for made in steps] == [[0, 2], [0, 2], [0, 2], [0, 0]][
        : len(steps)
    ]
    assert steps[-1].ended.all()

"""Greedy decoding and sampling over toy models: generated tokens, stopping, and determinism."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.toy_models import (
    TableDecoder,
    make_continuing_logits,
    make_hashed_logits,
    sum_log_probabilities,
)

from specc.decode.decode_loop import iterate_decode_steps
from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import Bools, Ints
from specc.diagnostics.diagnostic import SpeccError

VOCAB = 7
SAMPLED = GenerationSettings(
    strategy="sample", max_tokens=6, temperature=0.8, top_k=5, stop=(0,), seed=3
)


def generate_tokens(
    prompt: Sequence[Sequence[int]],
    settings: GenerationSettings,
    seed: int = 0,
    spread: float = 2.0,
) -> Ints:
    """Return i64[batch steps]: the tokens that the toy model of this seed generates."""
    steps = iterate_decode_steps(
        TableDecoder(make_hashed_logits(seed, VOCAB, spread)), np.array(prompt), settings
    )
    return np.stack([made.tokens for made in steps], axis=1)


prompts = st.integers(1, 3).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(1, VOCAB - 1), min_size=n, max_size=n), min_size=1, max_size=4
    )
)


def test_model_inputs() -> None:
    toy = TableDecoder(make_continuing_logits("abcd", "aabb"))
    steps = list(
        iterate_decode_steps(toy, np.array([[1, 2], [1, 1]]), GenerationSettings(stop=(0,)))
    )
    assert [made.tokens.tolist() for made in steps] == [[3, 2], [4, 2], [0, 0]]
    assert [made.has_ended.tolist() for made in steps] == [[False] * 2, [False] * 2, [True] * 2]
    assert toy.input_count == [(2, 2), (2, 1), (2, 1)]


def test_finished_sequences_are_padded() -> None:
    prompt = np.array([[1], [2]])
    steps = list(
        iterate_decode_steps(
            TableDecoder(make_continuing_logits("ab", "bcde")),
            prompt,
            GenerationSettings(stop=(0,), pad=5, log_probs=True),
        )
    )
    assert [made.tokens.tolist() for made in steps] == [[2, 3], [0, 4], [5, 5], [5, 0]]
    scores = [made.log_probs for made in steps]
    assert scores[2] is not None
    assert scores[2][0] == 0
    assert scores[2][1] < 0


def test_several_eos_tokens() -> None:
    steps = list(
        iterate_decode_steps(
            TableDecoder(make_continuing_logits("ab", "bcd")),
            np.array([[1], [2]]),
            GenerationSettings(stop=(4, 2)),
        )
    )
    assert [made.tokens.tolist() for made in steps] == [[2, 3], [4, 4]]


def test_max_tokens() -> None:
    toy = TableDecoder(make_continuing_logits("abcdefgh"))
    assert (
        len(list(iterate_decode_steps(toy, np.array([[1]]), GenerationSettings(max_tokens=3)))) == 3
    )
    assert len(toy.input_count) == 3
    assert list(iterate_decode_steps(toy, np.zeros((0, 1), np.int64), GenerationSettings())) == []


def test_watch_can_stop_a_sequence() -> None:
    def stop_at_token_3(tokens: Ints, ended: Bools) -> Bools:
        return tokens == 3

    steps = list(
        iterate_decode_steps(
            TableDecoder(make_continuing_logits("abcd", "bcde")),
            np.array([[1], [2]]),
            GenerationSettings(stop=(0,)),
            stopping_criterion=stop_at_token_3,
        )
    )
    assert [made.tokens.tolist() for made in steps] == [[2, 3], [3, 0]]


def test_log_probs_exclude_penalties() -> None:
    table = make_hashed_logits(4, VOCAB)
    settings = replace(SAMPLED, repetition_penalty=1.5, log_probs=True, stop=())
    steps = list(iterate_decode_steps(TableDecoder(table), np.array([[3, 1]]), settings))
    text = [int(made.tokens[0]) for made in steps]
    total = sum(float(made.log_probs[0]) for made in steps if made.log_probs is not None)
    assert total == pytest.approx(sum_log_probabilities(table, (3, 1), text), abs=1e-5)


def test_repetition_penalty_ignores_padding() -> None:
    def make_flat_logits(text: tuple[int, ...]) -> list[float]:
        return [3.0, 2.9, 2.8, 2.7]

    def generate_row(keep: Bools | None) -> list[int]:
        settings = GenerationSettings(repetition_penalty=1.2, max_tokens=4)
        return [
            int(m.tokens[0])
            for m in iterate_decode_steps(
                TableDecoder(make_flat_logits), np.array([[0, 1]]), settings, padding_mask=keep
            )
        ]

    assert generate_row(None) == [2, 3, 0, 0]
    assert generate_row(np.array([[False, True]])) == [0, 2, 3, 0]


@given(prompts, st.integers(0, 50), st.integers(0, 2**64 - 1))
def test_top_k_1_is_greedy(prompt: list[list[int]], seed: int, key: int) -> None:
    one = replace(SAMPLED, top_k=1, seed=key)
    assert np.array_equal(
        generate_tokens(prompt, one, seed),
        generate_tokens(prompt, replace(one, strategy="greedy"), seed),
    )


@given(prompts, st.integers(0, 50))
def test_greedy_batch_elements_are_independent(prompt: list[list[int]], seed: int) -> None:
    greedy = GenerationSettings(max_tokens=5, stop=(0,), repetition_penalty=1.3)
    whole = generate_tokens(prompt, greedy, seed)
    for row, made in zip(prompt, whole, strict=True):
        alone = generate_tokens([row], greedy, seed)[0]
        assert made[: len(alone)].tolist() == alone.tolist()
        assert not made[len(alone) :].any()


@given(prompts, st.integers(0, 50))
def test_sampled_batch_elements_depend_on_their_index_only(
    prompt: list[list[int]], seed: int
) -> None:
    whole = generate_tokens(prompt, SAMPLED, seed)
    others = [[(t % (VOCAB - 1)) + 1 for t in row] for row in prompt]
    for row in range(len(prompt)):
        mixed = generate_tokens([*others[:row], prompt[row], *others[row + 1 :]], SAMPLED, seed)[
            row
        ]
        shared = min(len(mixed), whole.shape[1])
        assert mixed[:shared].tolist() == whole[row][:shared].tolist()
        assert not mixed[shared:].any()
        assert not whole[row][shared:].any()


def test_seed_determines_the_samples() -> None:
    drawn = {
        seed: generate_tokens([[1], [1]], replace(SAMPLED, seed=seed), spread=0.1).tolist()
        for seed in range(6)
    }
    assert drawn[2] == generate_tokens([[1], [1]], replace(SAMPLED, seed=2), spread=0.1).tolist()
    assert len({str(d) for d in drawn.values()}) > 1
    assert any(rows[0] != rows[1] for rows in drawn.values()), "rows of one prompt are drawn apart"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("strategy", ["greedy", "sample"])
def test_nonfinite_logits(wrong: float, strategy: str) -> None:
    def table(text: tuple[int, ...]) -> list[float]:
        if len(text) < 3:
            return [0.0, 0.0]
        return [wrong, wrong if wrong < 0 else 0.0]

    settings = GenerationSettings(strategy=strategy, max_tokens=9)  # type: ignore[arg-type]
    with pytest.raises(SpeccError) as caught:
        list(iterate_decode_steps(TableDecoder(table), np.array([[1]]), settings))
    assert [d.code for d in caught.value.diagnostics] == ["E0961"]


def test_logits_of_finished_sequences_are_ignored() -> None:
    def table(text: tuple[int, ...]) -> list[float]:
        return (
            [np.nan] * 3
            if text[:2] == (1, 0)
            else [3.0, 0, 0]
            if text[0] == 1 or len(text) > 3
            else [0, 0, 3.0]
        )

    steps = list(
        iterate_decode_steps(
            TableDecoder(table), np.array([[1], [2]]), GenerationSettings(stop=(0,))
        )
    )
    assert [made.tokens.tolist() for made in steps] == [[0, 2], [0, 2], [0, 2], [0, 0]][
        : len(steps)
    ]
    assert steps[-1].has_ended.all()

"""Rules for allowed tokens, against their definitions and hand-made models."""

from dataclasses import replace

import numpy as np
import pytest

from specc.decode.beam_search import run_beam_search
from specc.decode.decode_loop import iterate_decode_steps
from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import (
    LogitsProcessorInputs,
    list_prompt_tokens,
    mask_disallowed_tokens,
)

VOCAB = 6


class ConstantDecoder:
    """A decoder session with constant logits."""

    def __init__(self, liked: list[int]) -> None:
        self.row = np.zeros(VOCAB, np.float32)
        self.row[liked] = np.arange(len(liked), 0, -1)

    def step(self, tokens: np.ndarray) -> np.ndarray:
        return np.tile(self.row, (len(tokens), 1))

    def reorder(self, rows: np.ndarray) -> None:
        """Do nothing: all batch elements are equal."""


def generate_text(settings: GenerationSettings, prompt: tuple[int, ...] = (1,)) -> list[int]:
    """Return the greedy tokens after a prompt; 2, 3 and 4 have the highest logits."""
    made = iterate_decode_steps(ConstantDecoder([2, 3, 4]), np.array([prompt]), settings)
    return [int(step.tokens[0]) for step in made]


def test_suppressed_tokens() -> None:
    assert generate_text(GenerationSettings(max_tokens=3, suppress_tokens=(2, 99))) == [3, 3, 3]
    assert generate_text(GenerationSettings(max_tokens=3, begin_suppress_tokens=(2,))) == [3, 2, 2]


def test_forced_first_tokens() -> None:
    """A forced token per position, or the best of several; `begin_suppress_tokens` applies after
    them."""
    begun = GenerationSettings(max_tokens=4, begin=((5,), (4, 3)), begin_suppress_tokens=(2,))
    assert generate_text(begun) == [5, 3, 3, 2]
    suppressed = GenerationSettings(max_tokens=3, begin=((5,), (4, 3)), suppress_tokens=(2, 3, 5))
    assert generate_text(suppressed) == [5, 3, 4]


def test_minimum_length() -> None:
    assert generate_text(GenerationSettings(max_tokens=9, stop=(2,))) == [2]
    assert generate_text(GenerationSettings(max_tokens=9, stop=(2,), min_tokens=2)) == [3, 3, 2]
    assert generate_text(GenerationSettings(max_tokens=9, stop=(2,), min_length=2)) == [3, 2]


def test_forced_eos_token() -> None:
    assert generate_text(GenerationSettings(max_tokens=3, forced_eos_token_id=0)) == [2, 2, 0]


def test_no_repeat_ngram_includes_the_prompt() -> None:
    """Size 2: after 1 2, token 2 may not follow 1, and so on."""
    assert generate_text(GenerationSettings(max_tokens=5, no_repeat_ngram_size=2), (1, 2, 1)) == [
        3,
        2,
        2,
        3,
        3,
    ]
    assert generate_text(GenerationSettings(max_tokens=4, no_repeat_ngram_size=1)) == [2, 3, 4, 0]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_repeat_ngram_definition(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(50):
        past = rng.integers(0, 3, rng.integers(1, 9)).tolist()
        place = LogitsProcessorInputs(
            step=1, prompt_lengths=np.array([len(past)]), sequences=[past]
        )
        made = mask_disallowed_tokens(
            np.zeros((1, 3), np.float32), GenerationSettings(no_repeat_ngram_size=size), place
        )
        runs = {tuple(past[n : n + size]) for n in range(len(past) - size + 1)}
        wanted = [tuple([*past, t][-size:]) in runs for t in range(3)]
        assert np.isneginf(made[0]).tolist() == wanted


def test_bad_words() -> None:
    """The prompt may contain their beginning; a single token is a bad word too."""
    assert generate_text(GenerationSettings(max_tokens=2, bad_words_ids=((1, 2),)), (1,)) == [3, 2]
    assert generate_text(GenerationSettings(max_tokens=4, bad_words_ids=((2, 2, 2), (3, 2)))) == [
        2,
        2,
        3,
        3,
    ]
    assert generate_text(
        GenerationSettings(max_tokens=2, bad_words_ids=((2,), (99,), (9, 9, 9, 1, 3)))
    ) == [3, 3]


def test_renormalized_logits() -> None:
    """After masking, the remaining probabilities sum to 1."""
    settings = GenerationSettings(strategy="beam", num_beams=2, max_tokens=1, suppress_tokens=(2,))
    plain, made = (
        run_beam_search(ConstantDecoder([2, 3, 4]), np.array([[1]]), s)[0][0].score
        for s in (settings, replace(settings, renormalize_logits=True))
    )
    chances = np.exp(ConstantDecoder([2, 3, 4]).row.astype(np.float64))
    chances /= chances.sum()
    assert abs(plain - np.log(chances[3])) < 1e-6
    assert abs(made - np.log(chances[3] / (1 - chances[2]))) < 1e-6


def test_prompt_padding_is_ignored() -> None:
    prompt, keep = np.array([[0, 0, 4, 3]]), np.array([[False, False, True, True]])
    assert list_prompt_tokens(prompt, keep) == [[4, 3]]


def test_beam_search_follows_the_rules() -> None:
    """Forced tokens have log probability 0."""
    prompt = np.array([[1], [1]])
    settings = GenerationSettings(
        strategy="beam",
        num_beams=2,
        max_tokens=3,
        begin=((5,),),
        no_repeat_ngram_size=1,
        forced_eos_token_id=0,
    )
    found = run_beam_search(ConstantDecoder([2, 3, 4]), prompt, settings)
    assert [row[0].tokens for row in found] == [(5, 2, 0), (5, 2, 0)]
    row = ConstantDecoder([2, 3, 4]).row
    share = float(row[2] - np.log(np.exp(row).sum()))
    assert abs(found[0][0].score - share / 3) < 1e-6

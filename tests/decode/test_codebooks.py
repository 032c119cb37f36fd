"""Decoding of several codebooks per step: delays, prompts, stop tokens, and random numbers, over a
model whose logits are a function of all tokens so far.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specc.decode.decode_loop import (
    apply_delay_pattern,
    check_delay_pattern,
    iterate_codebook_steps,
    revert_delay_pattern,
)
from specc.decode.generation_settings import GenerationSettings, merge_caller_settings
from specc.decode.setting_validation import find_codebook_setting_error
from specc.decode.token_selection import (
    DecodeStepOutput,
    draw_uniforms_for_steps,
    filter_candidates,
    sample_token,
)
from specc.diagnostics.diagnostic import SpeccError

CODEBOOKS, VOCAB, PAD, START = 3, 7, 8, 9
DELAYS = (0, 1, 3)


class HashedSession:
    """A decoder session whose logits [batch, codebooks, vocab] depend on all tokens so far."""

    def __init__(self) -> None:
        self.tokens = np.zeros((0, 0, CODEBOOKS), np.int64)

    def step(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        joined = [self.tokens.reshape(len(tokens), -1, CODEBOOKS), tokens]
        self.tokens = np.concatenate(joined, axis=1)
        return compute_logits(self.tokens)

    def reorder(self, indices: NDArray[np.int64]) -> None:
        self.tokens = self.tokens[indices]


def compute_logits(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return logits float32 [batch, codebooks, vocab] of tokens [batch, time, codebooks]."""
    seeds = [[*row.reshape(-1).tolist()] for row in tokens]
    drawn = [np.random.default_rng(seed).standard_normal((CODEBOOKS, VOCAB)) for seed in seeds]
    return np.array(drawn, np.float32)


def make_settings(**changes: Any) -> GenerationSettings:
    values: dict[str, Any] = {
        "max_tokens": 9, "pad": PAD, "start": (START,), "delay_pattern": DELAYS,
    }  # fmt: skip
    return GenerationSettings(**{**values, **changes})


def generate(
    settings: GenerationSettings, prompt: NDArray[np.int64]
) -> tuple[HashedSession, list[DecodeStepOutput]]:
    session = HashedSession()
    delayed = apply_delay_pattern(prompt, settings)
    return session, list(iterate_codebook_steps(session, delayed, settings))


def test_delayed_codebooks_are_filled_at_both_ends() -> None:
    settings = make_settings(delay_pattern=(0, 1, 3))
    _, steps = generate(settings, np.full((2, 1, CODEBOOKS), START))
    tokens = np.array([step.tokens for step in steps])
    assert tokens.shape == (9, 2, CODEBOOKS)
    for codebook, delay in enumerate(settings.delay_pattern):
        assert (tokens[:delay, :, codebook] == START).all()
        assert (tokens[delay : delay + 6, :, codebook] < VOCAB).all()
        assert (tokens[delay + 6 :, :, codebook] == PAD).all()
    assert not any(step.has_ended.any() for step in steps)


def test_each_codebook_follows_its_own_logits() -> None:
    session, steps = generate(make_settings(), np.full((1, 1, CODEBOOKS), START))
    for n, step in enumerate(steps):
        best = compute_logits(session.tokens[:, : n + 1]).argmax(-1)[0]
        for codebook, delay in enumerate(DELAYS):
            if delay <= n < delay + 6:
                assert step.tokens[0, codebook] == best[codebook]


def test_a_prompt_is_delayed() -> None:
    frames = np.arange(1, 7).reshape(1, 2, CODEBOOKS)
    prompt = np.concatenate([np.full((1, 1, CODEBOOKS), START), frames], axis=1)
    session, steps = generate(make_settings(), prompt)
    seen = np.concatenate([session.tokens[0], steps[-1].tokens], axis=0)
    for codebook, delay in enumerate(DELAYS):
        assert (seen[:delay, codebook] == START).all()
        assert seen[delay : delay + 3, codebook].tolist() == prompt[0, :, codebook].tolist()
    frames_after, _, _ = revert_delay_pattern(steps, 0, make_settings())
    assert frames_after.shape == (6, CODEBOOKS)
    for codebook, delay in enumerate(DELAYS):
        generated = seen[3 + delay : 9 + delay, codebook]
        assert frames_after[:, codebook].tolist() == generated.tolist()


def test_a_left_padded_prompt_is_delayed_after_its_padding() -> None:
    prompt = np.array([[[0] * 3, [START] * 3, [1, 2, 3]]])
    delayed = apply_delay_pattern(prompt, make_settings(), np.array([[False, True, True]]))
    assert delayed.tokens[0, 1:].T.tolist() == [[START, 1], [START, START], [START, START]]
    assert delayed.remaining[0, :1, 1].tolist() == [2]
    assert delayed.remaining[0, :3, 2].tolist() == [START, START, 3]


def test_a_stop_token_ends_one_codebook() -> None:
    prompt = np.random.default_rng(0).integers(0, VOCAB, (8, 1, CODEBOOKS))
    settings = make_settings(stop=(2,), log_probs=True)
    _, steps = generate(settings, prompt)
    found = set()
    for row in range(len(prompt)):
        frames, log_probs, has_ended = revert_delay_pattern(steps, row, settings)
        assert log_probs is not None
        for codebook, ended in enumerate(has_ended):
            column = frames[:, codebook].tolist()
            length = column.index(2) + 1 if ended else 6
            assert 2 not in column[: length - 1]
            assert set(column[length:]) <= {PAD}
            assert (log_probs[:length, codebook] < 0).all()
            assert (log_probs[length:, codebook] == 0).all()
            found.add((codebook, bool(ended)))
    assert found == {(k, ended) for k in range(CODEBOOKS) for ended in (False, True)}


def test_padding_equal_to_a_stop_token_ends_no_codebook() -> None:
    """Filling tokens do not count as generated stop tokens."""
    settings = make_settings(pad=VOCAB + 1, stop=(VOCAB + 1,), start=())
    _, steps = generate(settings, np.zeros((1, 1, CODEBOOKS), np.int64))
    assert not steps[-1].has_ended.any()


def test_sampling_uses_one_random_stream_per_codebook() -> None:
    settings = make_settings(strategy="sample", seed=5, delay_pattern=())
    session, steps = generate(settings, np.full((2, 1, CODEBOOKS), START))
    for n, step in enumerate(steps):
        logits = compute_logits(session.tokens[:, : n + 1]).reshape(-1, VOCAB)
        uniforms = draw_uniforms_for_steps(5, [(row, n) for row in range(2 * CODEBOOKS)])
        expected = sample_token(filter_candidates(logits, settings), uniforms)
        assert step.tokens.reshape(-1).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("settings", "codebooks", "code"),
    [
        ({"delay_pattern": [0, 1]}, 3, "E0732"),
        ({"delay_pattern": [0]}, 0, "E0732"),
        ({"strategy": {"kind": "beam"}}, 3, "E0733"),
        ({"stop_strings": ["a"]}, 3, "E0733"),
        ({"forced_eos_token_id": 0}, 3, "E0733"),
        ({"begin": [1]}, 3, "E0733"),
        ({"delay_pattern": [0, 1, 2], "strategy": "sample"}, 3, ""),
        ({"strategy": "beam", "stop_strings": ["a"]}, 0, ""),
    ],
)
def test_unsupported_settings(settings: Mapping[str, Any], codebooks: int, code: str) -> None:
    error = find_codebook_setting_error(settings, codebooks)
    assert (error.code if error else "") == code


@pytest.mark.parametrize("delays", [[-1], [2000], ["a"], 3, [0.5]])
def test_invalid_delays(delays: Any) -> None:
    with pytest.raises(SpeccError, match="E0732"):
        merge_caller_settings({}, delay_pattern=delays)


def test_delays_need_enough_steps() -> None:
    check_delay_pattern(make_settings(), 4)
    with pytest.raises(SpeccError, match="E0733"):
        check_delay_pattern(make_settings(), 3)

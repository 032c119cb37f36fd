"""Token selection: expected values on small tables, and properties for every table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import (
    Floats,
    apply_repetition_penalty,
    apply_temperature,
    compute_log_softmax_f32,
    draw_uniforms,
    filter_candidates,
    find_top_k_indices,
    make_prompt_vocab_mask,
    sample_token,
)
from specc.weights.random_stream import (
    derive_random_stream_key,
    derive_random_substream_key,
    generate_uniform_samples,
)

LOGITS = np.log(np.array([[0.05, 0.4, 0.1, 0.3, 0.15]], np.float32))


def logits_strategy(width: int = 9) -> st.SearchStrategy[Floats]:
    row = st.lists(st.integers(-6, 6), min_size=width, max_size=width)
    return st.lists(row, min_size=1, max_size=4).map(lambda x: np.array(x, np.float32) / 2)


def get_probabilities(**settings: float) -> dict[int, float]:
    """Return the probabilities of the candidates of LOGITS, normalized."""
    found = filter_candidates(LOGITS, GenerationSettings(strategy="sample", **settings))  # type: ignore[arg-type]
    total = found.probabilities.sum()
    pairs = zip(found.tokens[0], found.probabilities[0], strict=True)
    return {int(t): round(float(c / total), 4) for t, c in pairs if c}


def test_top_k_top_p_and_min_p() -> None:
    assert get_probabilities() == {1: 0.4, 3: 0.3, 4: 0.15, 2: 0.1, 0: 0.05}
    assert get_probabilities(top_k=2) == {1: round(4 / 7, 4), 3: round(3 / 7, 4)}
    assert list(get_probabilities(top_p=0.69)) == [1, 3]
    assert list(get_probabilities(top_p=0.71)) == [1, 3, 4]
    assert list(get_probabilities(top_p=0.001)) == [1]
    assert list(get_probabilities(min_p=0.37)) == [1, 3, 4]
    assert list(get_probabilities(min_p=0.38)) == [1, 3]
    assert list(get_probabilities(min_p=1.0)) == [1]


def test_top_p_after_top_k() -> None:
    assert list(get_probabilities(top_k=3, top_p=0.83)) == [1, 3, 4]  # 0.7 / 0.85 is below 0.83
    assert list(get_probabilities(top_k=2, top_p=0.83)) == [1, 3]


def test_temperature_divides_logits() -> None:
    assert get_probabilities(temperature=0.5)[1] == round(0.16 / 0.285, 4)
    assert list(get_probabilities(temperature=1e-4)) == [1]
    assert apply_temperature(LOGITS, 1.0) is LOGITS


def test_ties_prefer_the_lower_token() -> None:
    same = np.zeros((1, 4000), np.float32)
    assert find_top_k_indices(same, 3).tolist() == [[0, 1, 2]]
    assert find_top_k_indices(same, 4000)[0].tolist() == list(range(4000))


@given(logits_strategy(40), st.integers(1, 50))
def test_top_k_equals_a_stable_sort(values: Floats, k: int) -> None:
    assert np.array_equal(
        find_top_k_indices(values, k), np.argsort(-values, axis=1, kind="stable")[:, :k]
    )


def test_top_p_considers_1000_candidates() -> None:
    flat = np.zeros((1, 3000), np.float32)
    assert filter_candidates(flat, GenerationSettings(top_p=0.999)).tokens.shape == (1, 1000)
    assert filter_candidates(flat, GenerationSettings(min_p=0.5)).tokens.shape == (1, 1000)
    assert filter_candidates(flat, GenerationSettings()).tokens.shape == (1, 3000)
    assert filter_candidates(flat, GenerationSettings(top_k=2000, top_p=0.999)).tokens.shape == (
        1,
        2000,
    )


def test_inverse_cdf_sampling() -> None:
    among = filter_candidates(np.repeat(LOGITS, 5, axis=0), GenerationSettings(top_k=3))
    drawn = sample_token(among, np.array([0.0, 0.46, 0.48, 0.83, 1 - 2**-24], np.float32))
    assert drawn.tolist() == [1, 1, 3, 4, 4]


@given(
    logits_strategy(),
    st.floats(0, 1, exclude_max=True, width=32),
    st.floats(0.01, 1),
    st.floats(0, 1),
)
def test_removed_candidates_are_never_sampled(
    logits: Floats, u: float, top_p: float, min_p: float
) -> None:
    among = filter_candidates(logits, GenerationSettings(top_p=top_p, min_p=min_p))
    drawn = sample_token(among, np.full(len(logits), u, np.float32))
    for row, token in enumerate(drawn):
        assert among.probabilities[row][among.tokens[row] == token] > 0


def test_sample_frequencies() -> None:
    among = filter_candidates(np.repeat(LOGITS, 20_000, axis=0), GenerationSettings())
    drawn = sample_token(among, draw_uniforms(5, 20_000, 0))
    assert np.bincount(drawn, minlength=5) / 20_000 == pytest.approx(
        [0.05, 0.4, 0.1, 0.3, 0.15], abs=0.012
    )


def test_uniforms_depend_on_seed_batch_index_and_step() -> None:
    row, step = 3, 7
    expected = generate_uniform_samples(
        derive_random_substream_key(
            derive_random_substream_key(derive_random_stream_key(11, "sample"), row), step
        ),
        0,
        1,
    )
    assert draw_uniforms(11, 4, step)[row] == expected[0]
    assert draw_uniforms(11, 4, step).tolist() == draw_uniforms(11, 9, step)[:4].tolist()
    assert draw_uniforms(11, 4, step + 1)[row] != expected[0]


@given(logits_strategy())
def test_log_probs_sum_to_one(logits: Floats) -> None:
    assert np.exp(compute_log_softmax_f32(logits)).sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_repetition_penalty() -> None:
    logits = np.array([[2.0, -2.0, 3.0, 0.0]], np.float32)
    seen = np.array([[True, True, False, True]])
    assert apply_repetition_penalty(logits, seen, 2.0).tolist() == [[1.0, -4.0, 3.0, 0.0]]
    assert apply_repetition_penalty(logits, seen, 1.0) is logits


def test_repetition_penalty_ignores_padding() -> None:
    prompt = np.array([[0, 0, 2], [1, 3, 9]])
    keep = np.array([[False, True, True], [True, True, True]])
    assert np.argwhere(make_prompt_vocab_mask(prompt, 4, keep)).tolist() == [
        [0, 0],
        [0, 2],
        [1, 1],
        [1, 3],
    ]
    assert make_prompt_vocab_mask(prompt[:1], 4, np.array([[False, False, True]])).tolist() == [
        [False, False, True, False]
    ]

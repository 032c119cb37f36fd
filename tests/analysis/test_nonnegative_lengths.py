"""Lengths that are declared non-negative are never negative, for all tried values."""

import itertools
import random

import pytest

from specc.analysis.length_limits import is_provably_nonnegative
from specc.ir.dim import Dim, DimError, floor_divide_dims, max_dims, min_dims, mod_dims

N, M = Dim.symbol("n"), Dim.symbol("m")


def sample_length(rng: random.Random, depth: int = 0) -> Dim:
    if depth > 2 or rng.random() < 0.3:
        return rng.choice(
            [N, M, Dim.from_value(1), Dim.from_value(2), Dim.from_value(-2), Dim.from_value(3)]
        )
    a, b = sample_length(rng, depth + 1), sample_length(rng, depth + 1)
    try:
        return rng.choice(
            [
                a + b,
                a - b,
                a * b,
                min_dims(a, b),
                max_dims(a, b),
                floor_divide_dims(a, b),
                mod_dims(a, b),
            ]
        )
    except DimError:
        return a


def find_minimum(length: Dim, low: int) -> int:
    found = []
    for n, m in itertools.product(range(low, 6), range(6)):
        try:
            found.append(length.evaluate({"n": n, "m": m}))
        except DimError:  # division by 0
            continue
    return min(found, default=0)


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 600), pytest.param(1, 20_000, marks=pytest.mark.slow)]
)
def test_non_negative_lengths(seed: int, count: int) -> None:
    rng = random.Random(seed)
    trusted = 0
    for _ in range(count):
        length = sample_length(rng)
        for low in (0, 3):
            if is_provably_nonnegative(length, {"n": low}):
                trusted += 1
                assert find_minimum(length, low) >= 0, f"{length}, n >= {low}"
    assert trusted > count // 4


def test_remaining_lengths_are_non_negative() -> None:
    for length in (
        N - min_dims(N, M),
        max_dims(N - 3, Dim.from_value(0)),
        N - floor_divide_dims(N, 2),
        N + M - mod_dims(N, 4),
    ):
        assert is_provably_nonnegative(length)
    assert is_provably_nonnegative(N - 3, {"n": 3})
    for length in (
        N - 3,
        N - M,
        min_dims(N - 3, Dim.from_value(2)),
        floor_divide_dims(N, Dim.from_value(-2)),
        max_dims(N, M) - N - M,
    ):
        assert not is_provably_nonnegative(length)

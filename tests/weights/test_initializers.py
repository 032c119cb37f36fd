"""Initializers: parsing inverts printing, and values depend only on the seed and the parameter
name."""

import math

import numpy as np
import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.weights.parameter_sources import make_initial_values
from specc.weights.weight_rules_and_initializers import Initializer, parse_initializer

ALL: list[Initializer] = [
    Initializer("zeros"),
    Initializer("ones"),
    Initializer("constant", -0.5),
    Initializer("normal", 0.02),
    Initializer("uniform", 1e-3),
    Initializer("fan_in", math.sqrt(2)),
]


@pytest.mark.parametrize("initializer", ALL, ids=str)
def test_parsing_inverts_printing(initializer: Initializer) -> None:
    assert parse_initializer(str(initializer)) == initializer


@pytest.mark.parametrize(
    "text",
    ["", "zero", "zeros(1)", "normal", "normal()", "normal(x)", "normal(1e999)", "normal(-1)"],
)
def test_invalid_initializers(text: str) -> None:
    with pytest.raises(SpeccError, match="E0516"):
        parse_initializer(text)


def test_initializer_values() -> None:
    assert make_initial_values(Initializer("zeros"), 0, "a", (2, 2)).tolist() == [[0, 0], [0, 0]]
    assert make_initial_values(Initializer("ones"), 0, "a", (2,)).tolist() == [1, 1]
    assert make_initial_values(Initializer("constant", 2.5), 0, "a", ()).tolist() == 2.5
    assert (
        abs(make_initial_values(Initializer("normal", 0.02), 0, "a", (100, 100)).std() - 0.02)
        < 5e-4
    )
    bounded = make_initial_values(Initializer("uniform", 0.1), 0, "a", (1000,))
    assert -0.1 <= bounded.min() < -0.099
    assert 0.099 < bounded.max() < 0.1
    assert make_initial_values(Initializer("normal", 1.0), 0, "a", (0, 4)).shape == (0, 4)


def test_fan_in_multiplies_all_dims_but_the_first() -> None:
    assert Initializer("fan_in", 1.0).compute_uniform_bound((8, 3, 2, 2)) == math.sqrt(3 / 12)
    assert Initializer("fan_in", 2.0).compute_uniform_bound((8,)) == 2 * math.sqrt(3)
    w = make_initial_values(Initializer("fan_in", 1.0), 0, "w", (64, 300))
    assert abs(w.var() * 300 - 1) < 0.02


def test_values_depend_on_seed_and_name_only() -> None:
    one = make_initial_values(Initializer("normal", 1.0), 5, "h.0.w", (4, 4))
    assert np.array_equal(
        one, make_initial_values(Initializer("normal", 1.0), 5, "h.0.w", (16,)).reshape(4, 4)
    )
    assert not np.array_equal(
        one, make_initial_values(Initializer("normal", 1.0), 5, "h.1.w", (4, 4))
    )
    assert not np.array_equal(
        one, make_initial_values(Initializer("normal", 1.0), 6, "h.0.w", (4, 4))
    )

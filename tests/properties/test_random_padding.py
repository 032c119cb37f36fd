"""Random specs without a padding warning give equal results with other amounts, sides and values of
padding; most of the others do not.
"""

import pytest
from support.parameter_sweeps import sample_sweep
from support.random_padded_specs import HEADER, compare_with_padding, elaborate_padded_spec

from specc.analysis import (
    padding_check,
    padding_constants,
    padding_dataflow,
    padding_nonfinite,
    padding_offsets,
    padding_order_and_windows,
    padding_zeros,
)
from specc.analysis.padding_check import check_padding

SPECS, MANY, CHUNK = 120, 20_000, 1000
MIN_SHARE = 0.8
"""Minimum share of warned specs that show an effect."""

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def compare_range(start: int, stop: int) -> None:
    """Fail if a proof is contradicted, or if too few warned specs show an effect."""
    found = [compare_with_padding(seed) for seed in range(start, stop)]
    clean_specs = [f for f in found if f and not f.warned]
    warned = [f for f in found if f and f.warned]
    assert not [f for f in clean_specs if f.effect]
    assert len(clean_specs) > (stop - start) // 4
    assert sum(bool(f.effect) for f in warned) >= MIN_SHARE * len(warned)


@pytest.mark.parametrize("many", [SPECS // 8, pytest.param(SPECS, marks=pytest.mark.parity)])
def test_a_proof_is_not_contradicted(many: int) -> None:
    compare_range(0, many)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SPECS, SPECS + MANY, CHUNK))
def test_proofs_of_thousands_are_not_contradicted(start: int) -> None:
    compare_range(start, start + CHUNK)


SORTED_AND_SKIPPED = (
    HEADER.format(side="left", shape="batch, 4")
    + """
  s = sort(where(insert(keep, axis=2), x, -inf), axis=1, descending=true)
  _, h = gru(s, hidden=4, reset=before, keep=keep) @ l
  return h[:, 0]
}
"""
)


def test_a_padding_mask_does_not_skip_sorted_positions() -> None:
    """After sorting, valid positions come first; a left padding mask hides the first ones."""
    assert check_padding(elaborate_padded_spec(SORTED_AND_SKIPPED))
    assert not check_padding(
        elaborate_padded_spec(SORTED_AND_SKIPPED.replace("n] left", "n] right"))
    )


MISTAKES: dict[str, tuple[object, str, object]] = {
    "added positions stay beside those that exist": (
        padding_offsets.PaddingOffsets,
        "has_interior_padding",
        lambda self, length: False,
    ),
    "a slice loses nothing that is known": (
        padding_dataflow,
        "preserves_padding",
        lambda use: True,
    ),
    "no divisor is zero": (
        padding_nonfinite,
        "can_be_zero_at_padding",
        lambda padded_result, operand: False,
    ),
    "no value is infinite": (
        padding_zeros,
        "find_infinity_signs",
        lambda padded_result: frozenset(),
    ),
    "added positions hold the number at padded ones": (
        padding_constants,
        "_is_fill_number",
        lambda padded_result, axis, number: True,
    ),
    "valid positions stay in place when sorted": (
        padding_check,
        "is_output_order_changed",
        lambda graph, name, value, rows: False,
    ),
    "zero times NaN is zero": (padding_zeros, "can_be_nan_at_padding", lambda padded_result: False),
    "the ends of a window are zero": (
        padding_order_and_windows,
        "_is_same_at_ends",
        lambda use: True,
    ),
}


FIRST_SEEDS = {
    "added positions stay beside those that exist": 43,
    "a slice loses nothing that is known": 26,
    "no divisor is zero": 16,
    "no value is infinite": 290,
    "added positions hold the number at padded ones": 43,
    "valid positions stay in place when sorted": 54,
    "zero times NaN is zero": 16,
    "the ends of a window are zero": 6,
}
"""Seeds that detect a mistake after many that do not; they are tried first."""


@pytest.mark.parametrize("mistake", sample_sweep([*MISTAKES]))
def test_a_planted_mistake_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    seeds = (FIRST_SEEDS.get(mistake, 0), *range(1500))
    found = (compare_with_padding(seed) for seed in seeds)
    assert any(f and f.effect and not f.warned for f in found)

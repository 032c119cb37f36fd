"""Texts of unequal age in one batch go on as each would alone: for every built-in spec that
generates, and for random ones, to 1e-9 of a full pass in float64.

Which may stand beside each other is proved (`specc.driver.generation_graphs`); of those that may
none is otherwise than alone, and planted mistakes are found.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.mixed_length_batches import GenerativeModel, find_logit_difference
from support.random_generative_specs import ALPHABET, make_generative_spec
from support.small_configs import SMALL_CONFIGS, list_specs_with

from specc.driver.spec_argument import _config_literals as config_literals
from specc.driver.spec_loader import elaborate_spec, open_spec
from specc.runtime import batch_slots
from specc.runtime.batch_slots import _Joint

GENERATING = list_specs_with("generate")

NOT = {
    "luong_local_m": "one counter tells the place of all texts",
    "trocr": "its `keep` has padding on the right alone",
    "vision_encoder_decoder": "the same",
}


@cache
def shipped(name: str) -> GenerativeModel:
    sets = [f"{key}={text}" for key, text in config_literals("", SMALL_CONFIGS[name])]
    return GenerativeModel.of(elaborate_spec(open_spec(name, sets=sets)))


FEW = [
    "gpt2",  # learned positions
    "gemma2",  # rotary, windows
    "bloom",  # ALiBi
    "mamba",
    "rwkv",
    "token_shift_lm",
    "dates",  # nothing says what is padding
    "small_translator",
    "prefix_lm",  # rows before the text, of different lengths
    "universal_transformer",  # states of loops
    *NOT,
]
CASES = [
    *(
        pytest.param(name, range(1), id=name, marks=pytest.mark.parity if n % 2 else ())
        for n, name in enumerate(FEW)
    ),
    *(
        pytest.param(name, range(12), marks=pytest.mark.slow, id=f"{name}-many")
        for name in GENERATING
    ),
]


@pytest.mark.parametrize(("name", "seeds"), CASES)
def test_texts_of_unequal_age_are_as_alone(name: str, seeds: range) -> None:
    aged = shipped(name)
    assert aged.apart == (name not in NOT), name
    if aged.apart:
        assert not [f for seed in seeds if (f := find_logit_difference(aged, seed))]


def random_fault(seed: int, directory: Path) -> str | None:
    """How a random spec differs; None where it is not proved."""
    spec = make_generative_spec(seed)
    (directory / "letters.vocab").write_text("\n".join(ALPHABET[: spec.vocab]) + "\n")
    (directory / "m.specc").write_text(spec.text, encoding="utf-8")
    aged = GenerativeModel.of(elaborate_spec(open_spec(str(directory / "m.specc"))), seed)
    if not aged.apart:
        return None
    found = find_logit_difference(aged, seed)
    return f"{seed}: {found}" if found else ""


@pytest.mark.parity
def test_texts_of_random_specs_are_as_alone(tmp_path: Path) -> None:
    made = [random_fault(seed, tmp_path) for seed in range(12)]
    assert not [f for f in made if f]
    assert sum(f is not None for f in made) > 3


@pytest.mark.slow
@pytest.mark.parametrize("start", range(12, 1212, 100))
def test_texts_of_thousands_of_random_specs(start: int, tmp_path: Path) -> None:
    made = [random_fault(seed, tmp_path) for seed in range(start, start + 100)]
    assert not [f for f in made if f]


def _at_the_beginning(self: _Joint, value: Any) -> Any:
    """The oldest column first, whatever the age."""
    own = min(value.shape[1], self.columns)
    made = np.zeros((len(value), self.columns), value.dtype)
    made[:, :own] = value[:, value.shape[1] - own :]
    return made


def _first_columns(self: _Joint, state: Any, heads: Any, made: Any, buffered: bool) -> Any:
    """Columns of younger texts stand in front."""
    moved = [np.roll(rows, 1, axis=1) if rows.shape[1] > 1 else rows for rows in made]
    return _columns(self, state, heads, moved, buffered)


_columns = _Joint._columns


def _others(self: _Joint, arrays: Any, type: Any, batch: int | None) -> Any:
    """The rows that leave."""
    swapped = [a if batch is None else np.flip(a, batch) for a in arrays]
    return _stacked(self, swapped, type, batch)


_stacked = _Joint._stacked


def _everything_exists(input_signature: Any, prepared: Any, count: int) -> Any:
    return {
        n: np.pad(v, ((0, 0), (count, 0)), constant_values=v.dtype == np.bool_)
        if v.ndim == 2 and n in (input_signature.growing, "attention_mask", "target_keep")
        else v
        for n, v in prepared.items()
    }


MISTAKES = {
    "what exists is aligned at the beginning": (_Joint, "_align_states", _at_the_beginning),
    "keys are out of their columns": (_Joint, "_columns", _first_columns),
    "other rows are handed over": (_Joint, "_stacked", _others),
    "columns in front exist": (batch_slots, "prepend_spare_columns", _everything_exists),
    "a column too few is kept": (batch_slots, "_find_columns", lambda part: part.columns - 2),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(where, name, wrong)
    assert any(is_found(shipped(spec)) for spec in ("gpt2", "small_translator"))


def is_found(aged: GenerativeModel) -> bool:
    try:
        return bool(find_logit_difference(aged, 1))
    except ValueError:  # arrays that do not fit
        return True


def test_what_is_not_proved_does_differ() -> None:
    """A counter for all texts is no place of a text."""
    assert find_logit_difference(shipped("luong_local_m"), 0)

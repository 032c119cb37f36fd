"""Continuous batching: sequences of different lengths in one decode batch give the logits of each
sequence alone, to 1e-9 of a full forward pass in float64, for every built-in generative spec and
for random specs.

`specc.driver.manifest_and_generation_metadata` decides which specs support it. Sequences of these
specs must not depend on each other, and planted mistakes must be detected.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.mixed_length_batches import GenerativeModel, find_logit_difference
from support.random_generative_specs import ALPHABET, make_generative_spec
from support.small_configs import SMALL_CONFIGS, list_specs_with

from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.spec_inheritance_and_config_overrides import (
    iterate_config_literals as config_literals,
)
from specc.runtime import batch_slots
from specc.runtime.batch_slots import _MergedBatch

GENERATING = list_specs_with("generate")

NOT = {
    "luong_local_m": "one counter tells the place of all texts",
    "trocr": "its `keep` has padding on the right alone",
    "vision_encoder_decoder": "the same",
    "musicgen_decoder": "several codebooks",
    "musicgen": "several codebooks",
}


@cache
def shipped(name: str) -> GenerativeModel:
    sets = [f"{key}={text}" for key, text in config_literals("", SMALL_CONFIGS[name])]
    return GenerativeModel.with_random_weights(
        elaborate_spec(open_spec(name, config_settings=sets))
    )


FEW = [
    "gpt2",  # learned position embeddings
    "gemma2",  # RoPE, sliding windows
    "bloom",  # ALiBi
    "mamba",
    "rwkv",
    "token_shift_lm",
    "dates",  # no padding mask
    "small_translator",
    "prefix_lm",  # prefixes of different lengths
    "universal_transformer",  # loop-carried states
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
def test_sequences_of_different_lengths_equal_each_alone(name: str, seeds: range) -> None:
    aged = shipped(name)
    assert aged.can_batch == (name not in NOT), name
    if aged.can_batch:
        assert not [f for seed in seeds if (f := find_logit_difference(aged, seed))]


def find_random_difference(seed: int, directory: Path) -> str | None:
    """Return a difference of a random spec; None if it does not support continuous batching."""
    spec = make_generative_spec(seed)
    (directory / "letters.vocab").write_text("\n".join(ALPHABET[: spec.vocab]) + "\n")
    (directory / "m.specc").write_text(spec.text, encoding="utf-8")
    aged = GenerativeModel.with_random_weights(
        elaborate_spec(open_spec(str(directory / "m.specc"))), seed
    )
    if not aged.can_batch:
        return None
    found = find_logit_difference(aged, seed)
    return f"{seed}: {found}" if found else ""


@pytest.mark.parity
def test_sequences_of_random_specs_equal_each_alone(tmp_path: Path) -> None:
    made = [find_random_difference(seed, tmp_path) for seed in range(12)]
    assert not [f for f in made if f]
    assert sum(f is not None for f in made) > 3


@pytest.mark.slow
@pytest.mark.parametrize("start", range(12, 1212, 100))
def test_sequences_of_thousands_of_random_specs_equal_each_alone(
    start: int, tmp_path: Path
) -> None:
    made = [find_random_difference(seed, tmp_path) for seed in range(start, start + 100)]
    assert not [f for f in made if f]


def _take_oldest_column(self: _MergedBatch, value: Any) -> Any:
    """Mutation: takes the oldest column first, for any sequence length."""
    own = min(value.shape[1], self.padded_length)
    made = np.zeros((len(value), self.padded_length), value.dtype)
    made[:, :own] = value[:, value.shape[1] - own :]
    return made


def _prepend_columns(self: _MergedBatch, state: Any, heads: Any, made: Any, buffered: bool) -> Any:
    """Mutation: places columns of shorter sequences first."""
    moved = [np.roll(rows, 1, axis=1) if rows.shape[1] > 1 else rows for rows in made]
    return _columns(self, state, heads, moved, buffered)


_columns = _MergedBatch._stack_time_steps


def _take_leaving_elements(self: _MergedBatch, arrays: Any, type: Any, batch: int | None) -> Any:
    """Mutation: returns the batch elements that leave."""
    swapped = [a if batch is None else np.flip(a, batch) for a in arrays]
    return _stacked(self, swapped, type, batch)


_stacked = _MergedBatch._stack_elements


def _mark_all_valid(input_signature: Any, prepared: Any, count: int) -> Any:
    return {
        n: np.pad(v, ((0, 0), (count, 0)), constant_values=v.dtype == np.bool_)
        if v.ndim == 2 and n in (input_signature.sequence_input, "attention_mask", "target_keep")
        else v
        for n, v in prepared.items()
    }


MISTAKES = {
    "what exists is aligned at the beginning": (_MergedBatch, "_right_align", _take_oldest_column),
    "keys are out of their columns": (_MergedBatch, "_stack_time_steps", _prepend_columns),
    "other rows are handed over": (_MergedBatch, "_stack_elements", _take_leaving_elements),
    "columns in front exist": (batch_slots, "prepend_padding_positions", _mark_all_valid),
    "a column too few is kept": (
        batch_slots,
        "_count_positions",
        lambda part: part.padded_length - 2,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(where, name, wrong)
    assert any(is_detected(shipped(spec)) for spec in ("gpt2", "small_translator"))


def is_detected(aged: GenerativeModel) -> bool:
    try:
        return bool(find_logit_difference(aged, 1))
    except ValueError:  # arrays with wrong shapes
        return True


def test_sequences_of_excluded_specs_differ() -> None:
    """A counter that is shared by all sequences is not a position of one sequence."""
    assert find_logit_difference(shipped("luong_local_m"), 0)

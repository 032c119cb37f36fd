"""The help about a checkpoint with more layers than the model has."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from specc.weights import binding_errors
from specc.weights.binding_errors import MAX_ERRORS, _suggest_more_layers


def suggest(used: list[str], unused: list[str]) -> list[str]:
    checkpoint = SimpleNamespace(tensors=dict.fromkeys([*used, *unused]))
    return list(_suggest_more_layers(cast("Any", checkpoint), unused))


def test_last_layer_is_found_among_layers_and_other_tensors() -> None:
    used = [f"model.h.{layer}.w" for layer in range(8)]
    unused = ["a.bias", *(f"model.h.{layer}.w" for layer in range(8, 12)), "model.h.2.masked_bias"]
    (help_,) = suggest(used, unused)
    assert "`model.h.7`" in help_


def test_names_with_long_numbers_are_no_layers() -> None:
    long = f"model.h.{'9' * 5000}.w"  # Python refuses to convert more than 4300 digits
    assert suggest(["model.h.0.w"], [long]) == []
    assert suggest([long], ["model.h.3.w"]) == []


def test_search_is_linear_in_the_number_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    find = binding_errors._find_last_layer
    monkeypatch.setattr(
        binding_errors,
        "_find_last_layer",
        lambda n, others: (searched.append(n), find(n, others))[1],
    )
    unused = [f"extra{letter}.{i}.w" for letter in range(100) for i in range(50)]
    assert suggest(["model.h.0.w"], unused) == []
    assert len(searched) <= MAX_ERRORS

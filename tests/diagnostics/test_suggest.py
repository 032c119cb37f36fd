"""Suggestions are offered only for similar names."""

import pytest

from specc.diagnostics.suggest import compute_edit_distance, find_similar_name, format_name_list

OPTIONS = ("mask", "scale", "cap", "sinks", "window", "heads", "num_layers", "bias")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("haeds", "heads"), ("head", "heads"), ("masks", "mask"), ("Mask", "mask"), ("numlayers", "num_layers"),
        ("num-layers", "num_layers"),
        ("sacle", "scale"), ("sib_a", "bias"), ("temperature", None), ("x", None), ("", None),
    ],
)  # fmt: skip
def test_suggestions(word: str, meant: str | None) -> None:
    assert find_similar_name(word, OPTIONS) == meant


def test_ties_are_resolved_alphabetically() -> None:
    assert find_similar_name("caz", ("caq", "cap")) == "cap"


def test_edit_distance_counts_a_transposition_once() -> None:
    assert compute_edit_distance("heads", "haeds", 3) == 1
    assert compute_edit_distance("abc", "xyz", 2) == 3


def test_name_list_is_truncated() -> None:
    assert format_name_list(["b", "a"]) == "a, b"
    assert format_name_list(f"n{n:02}" for n in range(15)).endswith("n11 and 3 more")

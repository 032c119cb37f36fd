"""Axis patterns of `rearrange` in specs and in `load` rules."""

import pytest

from specc.ir.signature import RearrangePatternError, parse_rearrange_pattern


def test_parsed_pattern() -> None:
    pattern = parse_rearrange_pattern("b (h d) 1 -> h b () d")
    assert pattern.left == (("b",), ("h", "d"), ())
    assert pattern.right == (("h",), ("b",), (), ("d",))
    assert pattern.find_permutation() == (1, 0, 2)
    assert pattern.find_unmatched_axis_names() == []


@pytest.mark.parametrize(
    ("text", "odd"), [("a a -> a", ["a"]), ("a b -> a", ["b"]), ("a -> a c", ["c"]), ("->", [])]
)
def test_unbalanced_names(text: str, odd: list[str]) -> None:
    assert parse_rearrange_pattern(text).find_unmatched_axis_names() == odd


@pytest.mark.parametrize(
    "text", ["a b", "a -> (a", "a -> a -> a", "a? -> a?", "(a 2) -> a", "a) -> a"]
)
def test_invalid_patterns(text: str) -> None:
    with pytest.raises(RearrangePatternError):
        parse_rearrange_pattern(text)

"""Patterns of axes are read once, for `rearrange` in a spec and for that of `load`."""

import pytest

from specc.ir.signature import RearrangePatternError, parse_rearrange_pattern


def test_both_sides_are_axes_of_names() -> None:
    pattern = parse_rearrange_pattern("b (h d) 1 -> h b () d")
    assert pattern.left == (("b",), ("h", "d"), ())
    assert pattern.right == (("h",), ("b",), (), ("d",))
    assert pattern.find_permutation() == (1, 0, 2)
    assert pattern.find_unbalanced_names() == []


@pytest.mark.parametrize(
    ("text", "odd"), [("a a -> a", ["a"]), ("a b -> a", ["b"]), ("a -> a c", ["c"]), ("->", [])]
)
def test_names_that_stand_once_on_each_side_are_not_odd(text: str, odd: list[str]) -> None:
    assert parse_rearrange_pattern(text).find_unbalanced_names() == odd


@pytest.mark.parametrize(
    "text", ["a b", "a -> (a", "a -> a -> a", "a? -> a?", "(a 2) -> a", "a) -> a"]
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(RearrangePatternError):
        parse_rearrange_pattern(text)

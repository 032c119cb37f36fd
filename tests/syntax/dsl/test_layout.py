"""Layout of long lines: break points and alignment with the open bracket."""

from specc.syntax.dsl.expression_printer import SPACE_BREAK, Pieces, break_lines

CALL: Pieces = ["x = f", "(", "first,", SPACE_BREAK, "second", ")"]


def test_short_lines_are_not_broken() -> None:
    assert break_lines(CALL, 2) == ["  x = f(first, second)"]


def test_arguments_are_aligned() -> None:
    assert break_lines(CALL, 0, width=16) == ["x = f(first,", "      second)"]


def test_outer_breaks_are_preferred() -> None:
    pieces: Pieces = [
        "return ",
        "f",
        "(",
        "a,",
        SPACE_BREAK,
        "b",
        ")",
        SPACE_BREAK,
        "+ c",
        SPACE_BREAK,
        "+ d",
    ]
    assert break_lines(pieces, 0, width=18) == ["return f(a, b) + c", "    + d"]


def test_unbreakable_lines_stay_long() -> None:
    assert break_lines(["a" * 200], 4) == ["    " + "a" * 200]


def test_break_after_a_bracket_that_an_earlier_line_opens() -> None:
    assert break_lines(["}", SPACE_BREAK, "b" * 9], 2, width=10) == ["  }", "      " + "b" * 9]

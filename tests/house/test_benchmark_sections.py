"""The page of results keeps what was measured before, and says which goals are reached."""

from benchmarks.sections import Goal, goals, replaced

PAGE = "# Results\n\n<!-- a -->\n### A\n\nold\n\n<!-- b -->\n### B\n\nkept\n"


def test_a_section_takes_the_place_of_the_former_one() -> None:
    page = replaced(PAGE, {"a": "### A\n\nnew"}, ["a", "b"])
    assert page == PAGE.replace("old", "new")
    assert replaced(page, {}, ["a", "b"]) == page


def test_sections_stand_in_the_order_of_parts_and_unknown_ones_go() -> None:
    page = replaced(PAGE, {"c": "### C"}, ["c", "b"])
    assert page == "# Results\n\n<!-- c -->\n### C\n\n<!-- b -->\n### B\n\nkept\n"


def test_a_page_without_marks_is_begun_anew() -> None:
    assert replaced("# Results\n\nby hand\n", {"a": "x"}, ["a"]).count("by hand") == 0


def test_goals_are_reached_at_their_limit() -> None:
    assert Goal("faster", 2.3, 2.3).reached
    assert not Goal("faster", 2.3, 2.29).reached
    assert Goal("size", 0.27, 0.27, at_most=True).reached
    assert not Goal("size", 0.27, 0.28, at_most=True).reached
    assert list(goals([])) == []
    assert list(goals([Goal("size", 0.27, 0.3, at_most=True)]))[2:] == [
        "| size | at most 0.27 | 0.3 | not reached |",
        "",
    ]

"""The results page keeps earlier measurements and marks which goals are reached."""

import ast
from pathlib import Path

import pytest

from benchmarks.measure import Goal, format_goals, replace_sections

PAGE = "# Results\n\n<!-- a -->\n### A\n\nold\n\n<!-- b -->\n### B\n\nkept\n"

HERE = Path(__file__).parents[2] / "benchmarks"
MODULES = ("families", "generation", "loading", "lowbits", "recipes", "large_models", "local", "experts", "map", "recurrence")  # fmt: skip
"""What `benchmarks/run.py` calls."""


@pytest.mark.parametrize("name", MODULES)
def test_signature_of_benchmark_modules(name: str) -> None:
    """Parse the modules only, because their dependencies are not installed."""
    assert f'_make_section_runner("{name}")' in (HERE / "run.py").read_text(encoding="utf-8")
    module = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
    (function,) = (
        n
        for n in module.body
        if isinstance(n, ast.FunctionDef) and n.name == "iterate_report_lines"
    )
    required = len(function.args.args) - len(function.args.defaults)
    assert required <= 3 <= len(function.args.args)


def test_section_replaces_the_former_one() -> None:
    page = replace_sections(PAGE, {"a": "### A\n\nnew"}, ["a", "b"])
    assert page == PAGE.replace("old", "new")
    assert replace_sections(page, {}, ["a", "b"]) == page


def test_section_order_and_removal() -> None:
    page = replace_sections(PAGE, {"c": "### C"}, ["c", "b"])
    assert page == "# Results\n\n<!-- c -->\n### C\n\n<!-- b -->\n### B\n\nkept\n"


def test_page_without_marks_is_rewritten() -> None:
    assert replace_sections("# Results\n\nby hand\n", {"a": "x"}, ["a"]).count("by hand") == 0


def test_goal_limits() -> None:
    assert Goal("faster", 2.3, 2.3).is_reached
    assert not Goal("faster", 2.3, 2.29).is_reached
    assert Goal("size", 0.27, 0.27, at_most=True).is_reached
    assert not Goal("size", 0.27, 0.28, at_most=True).is_reached
    assert list(format_goals([])) == []
    assert list(format_goals([Goal("size", 0.27, 0.3, at_most=True)]))[2:] == [
        "| size | at most 0.27 | 0.3 | not reached |",
        "",
    ]

"""The results page keeps earlier measurements and marks which goals are reached."""

import ast
from pathlib import Path

import pytest

from benchmarks.measure import Goal, goals, replaced

PAGE = "# Results\n\n<!-- a -->\n### A\n\nold\n\n<!-- b -->\n### B\n\nkept\n"

HERE = Path(__file__).parents[2] / "benchmarks"
MODULES = ("families", "generation", "loading", "lowbits", "recipes", "large_models", "local", "experts", "map", "recurrence")  # fmt: skip
"""What `benchmarks/run.py` calls."""


@pytest.mark.parametrize("name", MODULES)
def test_signature_of_benchmark_modules(name: str) -> None:
    """Parse the modules only, because their dependencies are not installed."""
    assert f'_module("{name}")' in (HERE / "run.py").read_text(encoding="utf-8")
    module = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
    (rows,) = (n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "rows")
    asked = len(rows.args.args) - len(rows.args.defaults)
    assert asked <= 3 <= len(rows.args.args)


def test_section_replaces_the_former_one() -> None:
    page = replaced(PAGE, {"a": "### A\n\nnew"}, ["a", "b"])
    assert page == PAGE.replace("old", "new")
    assert replaced(page, {}, ["a", "b"]) == page


def test_section_order_and_removal() -> None:
    page = replaced(PAGE, {"c": "### C"}, ["c", "b"])
    assert page == "# Results\n\n<!-- c -->\n### C\n\n<!-- b -->\n### B\n\nkept\n"


def test_page_without_marks_is_rewritten() -> None:
    assert replaced("# Results\n\nby hand\n", {"a": "x"}, ["a"]).count("by hand") == 0


def test_goal_limits() -> None:
    assert Goal("faster", 2.3, 2.3).reached
    assert not Goal("faster", 2.3, 2.29).reached
    assert Goal("size", 0.27, 0.27, at_most=True).reached
    assert not Goal("size", 0.27, 0.28, at_most=True).reached
    assert list(goals([])) == []
    assert list(goals([Goal("size", 0.27, 0.3, at_most=True)]))[2:] == [
        "| size | at most 0.27 | 0.3 | not reached |",
        "",
    ]

"""docs/limits.md agrees with the sources."""

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
ROWS = re.findall(
    r"^\| .* \| ([\d ]+) \| ([E\d, ]*) ?\| `([\w.]+)\.(\w+)` \|$",
    PAGE.read_text("utf-8"),
    re.MULTILINE,
)


def test_all_rows_are_parsed() -> None:
    assert len(ROWS) == PAGE.read_text("utf-8").count("\n| ") - 1


@pytest.mark.parametrize(("number", "codes", "module", "name"), ROWS)
def test_limits_equal_the_sources(number: str, codes: str, module: str, name: str) -> None:
    assert vars(import_module(module))[name] == int(number.replace(" ", ""))
    for code in filter(None, (c.strip() for c in codes.split(","))):
        assert (PAGE.parent / "errors" / f"{code}.md").is_file()

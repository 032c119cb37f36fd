"""Golden files: what is expected stands below `----` in the file of the case; `--update` rewrites it."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

# The default suite needs no torch: without it, what compares with torch is not even imported.
collect_ignore = [] if find_spec("torch") else ["parity", "unit/torch"]


GOLDEN = Path(__file__).parent / "golden"
Check = Callable[[Callable[[str], str]], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden files")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "golden(folder): runs once per file of tests/golden/folder")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the mark `golden` runs once per file in the folder that the mark names."""
    mark = metafunc.definition.get_closest_marker("golden")
    if mark is not None:
        files = sorted((GOLDEN / mark.args[0]).rglob("*.txt"))
        assert files, f"no golden cases in {mark.args[0]}"
        metafunc.parametrize("case", files, ids=lambda p: p.stem)


@pytest.fixture
def golden(case: Path, request: pytest.FixtureRequest) -> Check:
    """Splits a case at its `----` line and compares the part below with what `run` makes of the part above."""
    source, _, expected = case.read_text(encoding="utf-8").partition("----\n")

    def compare(run: Callable[[str], str]) -> None:
        actual = run(source).rstrip("\n") + "\n"
        if request.config.getoption("--update"):
            case.write_text(f"{source}----\n{actual}", encoding="utf-8")
        else:
            assert actual == expected

    return compare

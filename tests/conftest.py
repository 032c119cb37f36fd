"""Golden files: what is expected stands below `----` in the file of the case;
`--update` rewrites it.
"""

import gc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from specc.transforms.pass_pipeline import VERIFY_AFTER_PASSES

TORCH = tuple(Path(__file__).parent / directory for directory in ("parity", "backends/torch"))
"""Folders of which every test compares with torch."""

# no deadline: a busy machine is no failure; `make fuzz` takes other examples in each run
settings.register_profile("specc", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("specc")
GOLDEN = Path(__file__).parent / "golden"
Check = Callable[[Callable[[str], str]], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden files")


def pytest_configure(config: pytest.Config) -> None:
    VERIFY_AFTER_PASSES.set(True)
    # syntax trees and graphs are many small objects without cycles: collecting garbage as often
    # as by default takes a quarter of the time
    gc.set_threshold(100_000, 20, 20)
    config.addinivalue_line("markers", "golden(folder): runs once per file of tests/golden/folder")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What compares with torch is not even imported where torch is not there or nobody
    asks for it: the import takes longer than all others together.
    """
    if any(collection_path.is_relative_to(directory) for directory in TORCH):
        unasked = "not parity" in config.option.markexpr or not find_spec("torch")
        return unasked or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What stands in these folders is all marked `parity`, or it would never run."""
    under = {
        path: any(path.is_relative_to(directory) for directory in TORCH)
        for path in {item.path for item in items}
    }
    for item in items:
        if under[item.path]:
            assert item.get_closest_marker("parity"), f"{item.nodeid}: mark it parity"


def pytest_collection_finish() -> None:
    """Leave modules and items, which live as long as the process, out of garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the mark `golden` runs once per file in the folder that the mark names."""
    mark = metafunc.definition.get_closest_marker("golden")
    if mark is not None:
        files = sorted((GOLDEN / mark.args[0]).rglob("*.txt"))
        assert files, f"no golden cases in {mark.args[0]}"
        metafunc.parametrize("case", files, ids=lambda p: p.stem)


@pytest.fixture
def golden(case: Path, request: pytest.FixtureRequest) -> Check:
    """Splits a case at its `----` line and compares the part below with what `run`
    makes of the part above.
    """
    source, _, expected = case.read_text(encoding="utf-8").partition("----\n")

    def compare(run: Callable[[str], str]) -> None:
        actual = run(source).rstrip("\n") + "\n"
        if request.config.getoption("--update"):
            case.write_text(f"{source}----\n{actual}", encoding="utf-8")
        else:
            assert actual == expected

    return compare

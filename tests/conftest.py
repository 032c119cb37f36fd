"""Golden files: the text below `----` is the expected output of the case above it; `--update`
rewrites it.
"""

import gc
import os
import sys
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.mark import MarkMatcher
from _pytest.mark.expression import Expression
from hypothesis import settings

from specc.transforms.pass_pipeline import VERIFY_AFTER_PASSES

TORCH = tuple(Path(__file__).parent / directory for directory in ("parity", "backends/torch"))
"""Directories in which every test compares with torch."""

# no deadline: a slow machine is not a failure; `make fuzz` uses other examples in each run
settings.register_profile("specc", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("specc")
GOLDEN = Path(__file__).parent / "golden"
Check = Callable[[Callable[[str], str]], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden files")


def pytest_configure(config: pytest.Config) -> None:
    # without bytecode, each of the subprocesses and each worker compiles specc again
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    VERIFY_AFTER_PASSES.set(True)
    # syntax trees and graphs are many small objects without cycles: the default frequency of
    # garbage collection takes a quarter of the time
    gc.set_threshold(100_000, 20, 20)
    config.addinivalue_line("markers", "golden(folder): runs once per file of tests/golden/folder")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip tests that compare with torch if torch is missing or `parity` is not selected: its
    import takes longer than all others together.
    """
    if any(collection_path.is_relative_to(directory) for directory in TORCH):
        unasked = "not parity" in config.option.markexpr or not find_spec("torch")
        return unasked or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Require the mark `parity` of all tests in these directories: without it they would never run."""
    under = {
        path: any(path.is_relative_to(directory) for directory in TORCH)
        for path in {item.path for item in items}
    }
    for item in items:
        if under[item.path]:
            assert item.get_closest_marker("parity"), f"{item.nodeid}: mark it parity"


def pytest_collection_finish() -> None:
    """Exclude modules and items, which live as long as the process, from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Run a test with the mark `golden` once per file in the directory that the mark names.

    Make no items of cases that `-m` deselects, two thirds of all: each worker makes all items.
    """
    mark = metafunc.definition.get_closest_marker("golden")
    if mark is not None:
        files = sorted((GOLDEN / mark.args[0]).rglob("*.txt"))
        assert files, f"no golden cases in {mark.args[0]}"
        metafunc.parametrize("case", files, ids=lambda p: p.stem)
    yield
    text = metafunc.config.option.markexpr
    calls = metafunc._calls
    if text and calls:
        expression = Expression.compile(text)
        marks = list(metafunc.definition.iter_markers())
        kept = [
            call
            for call in calls
            if expression.evaluate(MarkMatcher.from_markers([*marks, *call.marks]))
        ]
        calls[:] = kept or calls[:1]  # pytest makes an item of a test without cases


@pytest.fixture(scope="session", autouse=True)
def one_thread_per_session() -> Generator[None]:
    """Run models for which a test selects no number of threads in one thread: in tiny models, the
    others only wait for work and take a third of the CPU time.
    """
    # the controller of xdist, which runs no test, need not import ONNX Runtime
    from specc_onnx import ort_session

    real = ort_session._make_session_options
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            ort_session,
            "_make_session_options",
            lambda provider, threads, *others: real(provider, threads or 1, *others),
        )
        yield


@pytest.fixture
def golden(case: Path, request: pytest.FixtureRequest) -> Check:
    """Split a case at its `----` line and compare the part below with `run` of the part above."""
    source, _, expected = case.read_text(encoding="utf-8").partition("----\n")

    def compare(run: Callable[[str], str]) -> None:
        actual = run(source).rstrip("\n") + "\n"
        if request.config.getoption("--update"):
            case.write_text(f"{source}----\n{actual}", encoding="utf-8")
        else:
            assert actual == expected

    return compare

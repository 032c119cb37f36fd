"""If writing a package fails, the former package is intact, or a mixed package is rejected with the
name of a file.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.parameter_sweeps import sample_sweep
from support.two_graph_packages import write_pair_package

from specc.artifact.package_index_and_format_versions import INDEX_FILE
from specc.backend import ExtraFile
from specc.diagnostics.diagnostic import SpeccError
from specc.io import atomic_write as output
from specc.io import platform_and_signals
from specc.runtime.model_package import open_package

EXTRAS = [
    ExtraFile("tokenizer.json", b"[1]", is_hashed=True),
    ExtraFile("genai_config.json", b"{}"),
]


def read_directory(directory: Path) -> dict[str, bytes]:
    return (
        {p.name: p.read_bytes() for p in sorted(directory.iterdir())} if directory.exists() else {}
    )


class Stopped(BaseException):
    """The process ends here, without cleanup."""


class Faulty:
    """The os module with a failing n-th call of one kind; after a `Stopped` every call fails."""

    def __init__(self, name: str, nth: int, error: BaseException) -> None:
        self.name, self.left, self.error, self.dead = name, nth, error, False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if not callable(real) or name in ("getpid", "fspath"):
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise OSError(errno.EIO, "the process is gone")
            self.left -= name == self.name
            if name == self.name and self.left == 0:
                self.dead = isinstance(self.error, Stopped)
                raise self.error
            return real(*args, **kwargs)

        return call


def iterate_failures(
    tmp_path: Path, patch: pytest.MonkeyPatch, call: str, error: BaseException, existing: bool
) -> Iterator[tuple[Path, dict[str, bytes]]]:
    """Yield the directory after each failed attempt with its former content, until an attempt
    succeeds.
    """
    for nth in range(1, 80):
        directory = tmp_path / str(nth) / "pair"
        directory.parent.mkdir()
        if existing:
            write_pair_package(directory, seed=0, extra_files=EXTRAS[1:], verify_load=False)
        before = read_directory(directory)
        faulty = Faulty(call, nth, error)
        with patch.context() as context:
            for module in (output, platform_and_signals):
                context.setattr(module, "os", faulty)
            with contextlib.suppress(SpeccError, KeyboardInterrupt, Stopped, OSError):
                write_pair_package(directory, seed=1, extra_files=EXTRAS, verify_load=False)
        if faulty.left > 0:
            assert nth > 1, "nothing was made to fail"
            return
        yield directory, before
    raise AssertionError("it never got through")


CALLS = ("write", "fsync", "replace", "open")


@pytest.mark.parametrize(
    ("call", "existing"),
    sample_sweep(
        [
            *((call, True) for call in (*CALLS, "link")),
            *((call, False) for call in (*CALLS, "mkdir")),
        ]
    ),
    ids=lambda v: v if isinstance(v, str) else ("over a former one" if v else "new"),
)
def test_failed_call_leaves_the_former_package(
    call: str, existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    seen = 0
    for directory, before in iterate_failures(tmp_path, monkeypatch, call, full, existing):
        assert read_directory(directory) == before
        assert directory.exists() == existing
        seen += 1
    assert seen


def test_interrupt_leaves_the_former_or_the_new_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory, before in iterate_failures(
        tmp_path, monkeypatch, "replace", KeyboardInterrupt(), True
    ):
        assert read_directory(directory) == before
        open_package(directory, verify_contents=True)


@pytest.mark.parametrize("call", sample_sweep(["write", "replace", "fsync", "unlink"]))
def test_killed_process_leaves_one_package_or_an_error(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is restored or cleaned up: the directory stays as it was at that moment."""
    refused = whole = 0
    for directory, before in iterate_failures(tmp_path, monkeypatch, call, Stopped(), True):
        try:
            package = open_package(directory, verify_contents=True)
        except SpeccError as failed:
            refused += 1
            (found,) = failed.diagnostics
            assert found.code == "E0830"
            assert any(f"`{name}`" in found.title for name in before)
        else:
            whole += 1
            now = read_directory(directory)
            if now[INDEX_FILE] == before[INDEX_FILE]:
                assert all(now[name] == data for name, data in before.items())
            assert package.index.model == "pair"
    assert whole
    assert refused == {"replace": 3, "fsync": 0}.get(call, 0)


def test_package_can_be_rewritten_after_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory, _ in iterate_failures(tmp_path, monkeypatch, "replace", Stopped(), True):
        write_pair_package(directory, seed=2, extra_files=EXTRAS[1:], verify_load=False)
        assert open_package(directory, verify_contents=True).graph_names == ("encode", "score")

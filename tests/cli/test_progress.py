"""Progress of long operations: the line's text, shown only on terminals."""

import io
import sys

import pytest

from specc.cli import terminal
from specc.cli.terminal import ProgressLine, iterate_with_progress, show_write_progress
from specc.io.atomic_write import WRITE_PROGRESS


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_line_text() -> None:
    line = ProgressLine("writing weights")
    line.count = 1_200_000_000
    assert line.format_text(4.0) == "writing weights: 1.20 GB, 300 MB/s"
    line.add_expected_bytes(4_200_000_000)
    assert line.format_text(4.0) == "writing weights: 1.20 of 4.20 GB, 300 MB/s, 0:10 left"
    assert ProgressLine("x").format_text(0.0) == "x: 0.00 GB, 0 MB/s"


def test_terminal_keeps_the_last_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    monkeypatch.setattr("specc.cli.terminal.PROGRESS_DELAY", -1.0)
    with show_write_progress("writing"):
        watch = WRITE_PROGRESS.get()
        assert watch is not None
        for _ in range(100):
            watch.add_written_bytes(10_000_000)
    assert WRITE_PROGRESS.get() is None
    shown = seen.getvalue().split("\r\x1b[K")[1:]
    # one hundred chunks in a row do not print one hundred lines
    assert len(shown) < 5
    assert shown[-1].startswith("writing: 1.00 GB")
    assert shown[-1].endswith("\n")


def test_short_operation_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    with show_write_progress("writing"):
        watch = WRITE_PROGRESS.get()
        assert watch is not None
        watch.add_written_bytes(10)
    assert not seen.getvalue()


@pytest.mark.parametrize(
    ("stream", "manner"),
    [
        (io.StringIO(), terminal.OutputSettings()),
        (Terminal(), terminal.OutputSettings("json")),
        (Terminal(), terminal.OutputSettings(is_quiet=True)),
    ],
)
def test_no_progress_outside_a_terminal(
    stream: io.StringIO, manner: terminal.OutputSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    said = terminal.OUTPUT_SETTINGS.set(manner)
    try:
        with show_write_progress("writing"):
            assert WRITE_PROGRESS.get() is None
        assert list(iterate_with_progress(iter(["a", "b"]), "comparing")) == ["a", "b"]
    finally:
        terminal.OUTPUT_SETTINGS.reset(said)
    assert not stream.getvalue()


def test_rounds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    assert list(iterate_with_progress(iter(["a", "b"]), "comparing")) == ["a", "b"]
    assert [t for t in seen.getvalue().split("\r\x1b[K") if t] == [
        f"comparing, {n} done …" for n in range(3)
    ]

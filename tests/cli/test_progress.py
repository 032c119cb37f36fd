"""How far long work is: on a terminal only, and what it says."""

import io
import sys

import pytest

from specc.cli import messages
from specc.cli.progress import Line, counted, progress
from specc.files.watch import WATCH


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_line_says() -> None:
    line = Line("writing weights")
    line.count = 1_200_000_000
    assert line.text(4.0) == "writing weights: 1.20 GB, 300 MB a second"
    line.expect(4_200_000_000)
    assert (
        line.text(4.0) == "writing weights: 1.20 of 4.20 GB, 300 MB a second, 0:10 left"
    )
    assert Line("x").text(0.0) == "x: 0.00 GB, 0 MB a second"


def test_a_terminal_sees_it_and_its_last_line_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    monkeypatch.setattr("specc.cli.progress.PATIENCE", -1.0)
    with progress("writing"):
        watch = WATCH.get()
        assert watch is not None
        for _ in range(100):
            watch.wrote(10_000_000)
    assert WATCH.get() is None
    shown = seen.getvalue().split("\r\x1b[K")[1:]
    # a hundred pieces at once are no hundred lines
    assert len(shown) < 5
    assert shown[-1].startswith("writing: 1.00 GB")
    assert shown[-1].endswith("\n")


def test_short_work_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    with progress("writing"):
        watch = WATCH.get()
        assert watch is not None
        watch.wrote(10)
    assert not seen.getvalue()


@pytest.mark.parametrize(
    ("stream", "manner"),
    [
        (io.StringIO(), messages.Manner()),
        (Terminal(), messages.Manner("json")),
        (Terminal(), messages.Manner(quiet=True)),
    ],
)
def test_nobody_else_does(
    stream: io.StringIO, manner: messages.Manner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    said = messages.MANNER.set(manner)
    try:
        with progress("writing"):
            assert WATCH.get() is None
        assert list(counted(iter(["a", "b"]), "comparing")) == ["a", "b"]
    finally:
        messages.MANNER.reset(said)
    assert not stream.getvalue()


def test_rounds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    assert list(counted(iter(["a", "b"]), "comparing")) == ["a", "b"]
    assert [t for t in seen.getvalue().split("\r\x1b[K") if t] == [
        f"comparing, {n} done …" for n in range(3)
    ]

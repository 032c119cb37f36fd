"""Whoever is told to end takes away what was begun; what a killed process left is cleared."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specc.files import scratch as module
from specc.files.scratch import scratch
from specc.text.diagnostic import Failed

WAITING = """
import sys, time
from pathlib import Path
from specc.cli import main
from specc.files.scratch import scratch
from specc.files.write import OutputDirectory

def stays(given):
    # what compile, export and map do: a scratch folder, and files that are half written
    def chunks():
        yield b"half"
        print("here", flush=True)
        time.sleep(60)
    with scratch() as folder, OutputDirectory(Path("out")) as out:
        (folder / "sums").write_bytes(b"x")
        out.entry("m.onnx", chunks())

import specc.cli.list
specc.cli.list.run = stays
sys.argv = ["specc", "list"]
main.entry()
"""


@pytest.mark.parametrize(
    "name",
    [
        "SIGTERM",
        pytest.param("SIGHUP", marks=pytest.mark.parity),
        pytest.param("SIGINT", marks=pytest.mark.parity),
    ],
)
def test_a_signal_leaves_nothing(name: str, tmp_path: Path) -> None:
    number = getattr(signal, name)
    (tmp_path / "t").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "t")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    assert list((tmp_path / "t").iterdir())
    process.send_signal(number)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert b"nothing more was written" in told
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["t"]


def abandoned(room: Path, pid: int, age: float) -> Path:
    folder = room / f"specc-{pid}-abc_12"
    folder.mkdir()
    (folder / "0.npy").write_bytes(b"x")
    os.utime(folder, (time.time() - age,) * 2)
    return folder


def test_what_a_killed_process_left_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    old = abandoned(tmp_path, ended.pid, module.STALE_SECONDS + 60)
    alive = abandoned(tmp_path, os.getpid(), module.STALE_SECONDS + 60)
    other = tmp_path / "specc-notes"
    other.mkdir()
    with scratch() as folder:
        assert folder.is_dir()
        assert not old.exists()
        assert alive.is_dir()
        assert other.is_dir()
    assert not folder.exists()


def test_one_that_may_live_elsewhere_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    young = abandoned(tmp_path, 2**22 + 5, 60)
    with scratch():
        assert young.is_dir()


def test_where_there_can_be_none_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(Failed, match="E0810"), scratch():
        pass

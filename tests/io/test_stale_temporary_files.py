"""What a killed process began is cleared by the next one that writes there, at once where
it is known to be gone, and never while it may live.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specc.io import atomic_write
from specc.io.atomic_write import create_temporary_directory, write_file_atomically

BUSY = """
import sys, time
from pathlib import Path
from specc.io.atomic_write import create_temporary_directory
from specc.io.atomic_write import OutputDirectory

def chunks():
    yield b"half"
    print("here", flush=True)
    time.sleep(60)

with create_temporary_directory() as folder, OutputDirectory(Path(sys.argv[1])) as out:
    (folder / "sums").write_bytes(b"x")
    out.entry("m.onnx", chunks())
"""
LONG_AGO = atomic_write.STALE_SECONDS + 60


@pytest.fixture
def busy(tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A process in the midst of writing `m.onnx`, with a folder for itself."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def begun(directory: Path) -> set[str]:
    """Names of what is not finished."""
    return {
        path.name
        for path in directory.iterdir()
        if path.name.removeprefix(".").startswith("specc-")
    }


def write_there(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command does that writes into the folder, and needs one for itself."""
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    write_file_atomically(directory / "a.bin", [b"x"])
    with create_temporary_directory():
        pass


def test_a_killed_process_is_cleared_up_after_at_once(
    tmp_path: Path, busy: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    names = begun(tmp_path)
    assert len(names) == 2
    write_there(tmp_path, monkeypatch)
    assert begun(tmp_path) == names, "it lives"
    busy.kill()
    busy.wait()
    assert begun(tmp_path) == names
    write_there(tmp_path, monkeypatch)
    assert begun(tmp_path) == set()


def gone() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def elsewhere(place: str) -> str:
    """Another place, as if the folder were shared."""
    return "0" * 8 if place != "0" * 8 else "1" * 8


def name_of(place: str, pid: int) -> str:
    return f"specc-{place}-{pid}-0" if place else f"specc-{pid}-0"


@pytest.mark.parametrize(
    ("where", "process", "age", "goes"),
    [
        pytest.param(atomic_write.get_process_namespace, gone, 0, True, id="gone"),
        pytest.param(atomic_write.get_process_namespace, os.getpid, LONG_AGO, False, id="living"),
        pytest.param(
            lambda: elsewhere(atomic_write.get_process_namespace()),
            gone,
            60,
            False,
            id="elsewhere, young",
        ),
        pytest.param(
            lambda: elsewhere(atomic_write.get_process_namespace()),
            gone,
            LONG_AGO,
            True,
            id="elsewhere, old",
        ),
        pytest.param(str, gone, 60, False, id="of a former version, young"),
        pytest.param(str, gone, LONG_AGO, True, id="of a former version, old"),
    ],
)
def test_who_goes(
    where: Callable[[], str],
    process: Callable[[], int],
    age: float,
    goes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = name_of(where(), process())
    hidden, room = tmp_path / f".{name}", tmp_path / name
    hidden.write_bytes(b"half")
    room.mkdir()
    for path in (hidden, room):
        os.utime(path, (time.time() - age,) * 2)
    write_there(tmp_path, monkeypatch)
    assert (hidden.exists(), room.exists()) == (not goes, not goes)


def test_what_is_named_otherwise_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = gone()
    others = [".specc-notes", f".specc-{pid}", f"my.specc-{pid}-0", f".specc-{pid}-0.gz"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (0, 0))
    write_there(tmp_path, monkeypatch)
    assert [name for name in others if (tmp_path / name).exists()] == others

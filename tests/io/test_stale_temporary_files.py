"""The next writer in a directory removes temporary files of killed processes, and never those of
running processes."""

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
    out.write_named_file("m.onnx", chunks())
"""
LONG_AGO = atomic_write.STALE_SECONDS + 60


@pytest.fixture
def writing_process(tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a process that is writing `m.onnx` and has a temporary directory."""
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


def list_temporary_files(directory: Path) -> set[str]:
    """Return the names of unfinished files."""
    return {
        path.name
        for path in directory.iterdir()
        if path.name.removeprefix(".").startswith("specc-")
    }


def write_in_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a file to the directory and create a temporary directory in it."""
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    write_file_atomically(directory / "a.bin", [b"x"])
    with create_temporary_directory():
        pass


def test_files_of_a_killed_process_are_removed(
    tmp_path: Path, writing_process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list_temporary_files(tmp_path)
    assert len(names) == 2
    write_in_directory(tmp_path, monkeypatch)
    assert list_temporary_files(tmp_path) == names, "it lives"
    writing_process.kill()
    writing_process.wait()
    assert list_temporary_files(tmp_path) == names
    write_in_directory(tmp_path, monkeypatch)
    assert list_temporary_files(tmp_path) == set()


def start_exited_process() -> int:
    """Return the id of a process that has exited."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def other_machine_id(place: str) -> str:
    """Return another machine id, as in a shared directory."""
    return "0" * 8 if place != "0" * 8 else "1" * 8


def make_temporary_name(place: str, pid: int) -> str:
    return f"specc-{place}-{pid}-0" if place else f"specc-{pid}-0"


@pytest.mark.parametrize(
    ("where", "process", "age", "goes"),
    [
        pytest.param(atomic_write.get_pid_namespace_id, start_exited_process, 0, True, id="gone"),
        pytest.param(atomic_write.get_pid_namespace_id, os.getpid, LONG_AGO, False, id="living"),
        pytest.param(
            lambda: other_machine_id(atomic_write.get_pid_namespace_id()),
            start_exited_process,
            60,
            False,
            id="elsewhere, young",
        ),
        pytest.param(
            lambda: other_machine_id(atomic_write.get_pid_namespace_id()),
            start_exited_process,
            LONG_AGO,
            True,
            id="elsewhere, old",
        ),
        pytest.param(str, start_exited_process, 60, False, id="of a former version, young"),
        pytest.param(str, start_exited_process, LONG_AGO, True, id="of a former version, old"),
    ],
)
def test_which_temporary_files_are_removed(
    where: Callable[[], str],
    process: Callable[[], int],
    age: float,
    goes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = make_temporary_name(where(), process())
    hidden, room = tmp_path / f".{name}", tmp_path / name
    hidden.write_bytes(b"half")
    room.mkdir()
    for path in (hidden, room):
        os.utime(path, (time.time() - age,) * 2)
    write_in_directory(tmp_path, monkeypatch)
    assert (hidden.exists(), room.exists()) == (not goes, not goes)


def test_other_names_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start_exited_process()
    others = [".specc-notes", f".specc-{pid}", f"my.specc-{pid}-0", f".specc-{pid}-0.gz"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (0, 0))
    write_in_directory(tmp_path, monkeypatch)
    assert [name for name in others if (tmp_path / name).exists()] == others

"""Output is all or nothing: every system call in turn fails, and the former output is
still whole.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specc.diagnostics.diagnostic import Failed
from specc.io import atomic_write as output
from specc.io import platform
from specc.io.atomic_write import OutputDirectory, write_file_atomically
from specc.io.output_paths import reject_input_overwrite

CALLS = ("stat", "lstat", "listdir", "open", "write", "fsync", "close", "replace", "link")


class Faulty:
    """The os module, whose n-th call (of those that matter) fails instead."""

    def __init__(self, n: int, error: Callable[[], BaseException]) -> None:
        self.left = n
        self.error = error

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if name == "close":
                    real(*args)
                raise self.error()
            return real(*args, **kwargs)

        return call


def full_disk() -> BaseException:
    return OSError(errno.ENOSPC, "No space left on device")


def content(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(directory.iterdir())}


def code_of(failed: pytest.ExceptionInfo[Failed]) -> str:
    return failed.value.diagnostics[0].code


def write_package(directory: Path, version: bytes) -> None:
    with OutputDirectory(directory) as out:
        out.hashed("weights", ".bin", [b"weights ", version])
        out.entry("model.onnx", [b"model ", version])
        out.entry("specc.json", [b"index ", version])


def test_chunks_become_the_whole_file(tmp_path: Path) -> None:
    write_file_atomically(tmp_path / "a.bin", [b"one ", bytearray(b"two "), memoryview(b"three")])
    assert content(tmp_path) == {"a.bin": b"one two three"}


def test_the_mode_of_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    for mask, mode in ((0o022, 0o644), (0o077, 0o600)):
        old = os.umask(mask)
        try:
            write_file_atomically(tmp_path / "a.bin", [b"x"])
        finally:
            os.umask(old)
        assert (tmp_path / "a.bin").stat().st_mode & 0o777 == mode
        (tmp_path / "a.bin").unlink()


def test_parts_are_named_by_their_content(tmp_path: Path) -> None:
    write_package(tmp_path, b"1")
    first = set(content(tmp_path))
    write_package(tmp_path, b"1")
    assert set(content(tmp_path)) == first
    write_package(tmp_path, b"2")
    assert len(set(content(tmp_path)) - first) == 1


def test_superseded_parts_go_when_the_new_set_stands(tmp_path: Path) -> None:
    write_package(tmp_path, b"1")
    (old,) = tmp_path.glob("weights-*")
    with OutputDirectory(tmp_path, superseded=[old.name, "../elsewhere"]) as out:
        out.entry("specc.json", [b"new"])
    assert not old.exists()


@pytest.mark.parametrize("error", [full_disk, KeyboardInterrupt], ids=["disk full", "interrupted"])
@pytest.mark.parametrize("existing", [True, False], ids=["over an old one", "new"])
def test_a_failing_call_leaves_the_old_file_or_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], BaseException],
    existing: bool,
) -> None:
    failures = 0
    for n in range(1, 30):
        directory = tmp_path / str(n)
        directory.mkdir()
        if existing:
            (directory / "a.onnx").write_bytes(b"old")
        before = content(directory)
        faulty = Faulty(n, error)
        for module in (output, platform):
            monkeypatch.setattr(module, "os", faulty)
        complete = {"a.onnx": b"new content"}
        try:
            write_file_atomically(directory / "a.onnx", [b"new ", b"content"])
        except KeyboardInterrupt:
            failures += 1
            expected = None  # either will do: an interrupt may come behind the last rename
        except Failed as fault:
            failures += 1
            expected = complete if "is complete" in str(fault) else before
        else:
            expected = complete
        assert content(directory) in (before, complete)
        assert expected is None or content(directory) == expected
        if faulty.left > 0:
            break
    assert failures >= 6
    assert faulty.left > 0


@pytest.mark.parametrize("error", [full_disk, KeyboardInterrupt], ids=["disk full", "interrupted"])
def test_a_failing_call_leaves_the_old_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]
) -> None:
    for n in range(1, 60):
        directory = tmp_path / str(n)
        directory.mkdir()
        write_package(directory, b"1")
        before = content(directory)
        faulty = Faulty(n, error)
        with monkeypatch.context() as patch:
            for module in (output, platform):
                patch.setattr(module, "os", faulty)
            try:
                write_package(directory, b"2")
            except (Failed, KeyboardInterrupt):
                assert content(directory) == before
        if faulty.left > 0:
            break
    assert faulty.left > 0


def test_parts_stay_when_only_the_last_confirmation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry stands and refers to them."""
    count = 0

    def fsync(fd: int) -> None:
        nonlocal count
        count += 1
        if count == 4:
            # the part, the entry, the folder with the part; then the folder with the
            # entry
            raise full_disk()

    monkeypatch.setattr(output.os, "fsync", fsync)
    with (
        pytest.raises(Failed, match=r"E0815\]: .* is complete, but not confirmed"),
        OutputDirectory(tmp_path) as out,
    ):
        part = out.hashed("weights", ".bin", [b"1"])
        out.entry("m.onnx", [b"2"])
    assert content(tmp_path) == {part: b"1", "m.onnx": b"2"}


def test_a_folder_that_is_made_goes_again_if_nothing_comes_of_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), OutputDirectory(tmp_path / "new") as out:
        out.entry("a", [b"1"])
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    with OutputDirectory(tmp_path / "new") as out:
        out.entry("a", [b"12"])
    assert (out.facts["a"].bytes, content(tmp_path / "new")) == (2, {"a": b"12"})


def test_a_failure_of_whoever_makes_the_chunks_leaves_nothing(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the other half")

    with pytest.raises(RuntimeError):
        write_file_atomically(tmp_path / "a.bin", chunks())
    assert content(tmp_path) == {}


def test_a_full_device_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __getattr__(self, name: str) -> Any:
            if name == "open":
                return lambda path, flags, mode=0: os.open("/dev/full", os.O_WRONLY)
            return getattr(os, name)

    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setattr(output, "os", Full())
    with pytest.raises(Failed) as failed:
        write_file_atomically(tmp_path / "a.bin", [b"x"])
    assert code_of(failed) == "E0813"


def test_faults_of_the_place_have_codes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere").symlink_to("absent")
    for path, code in {
        "nowhere/a.onnx": "E0810",
        "nowhere": "E0811",
        "file/a.onnx": "E0811",
        "folder": "E0811",
        "a\0b": "E0815",
        "x" * 300: "E0815",
    }.items():
        with pytest.raises(Failed) as failed:
            write_file_atomically(tmp_path / path, [b"x"])
        assert code_of(failed) == code, path
    assert sorted(content_names(tmp_path)) == ["file", "folder", "nowhere"]


@pytest.mark.skipif(os.name != "posix", reason="a folder in use stays there")
def test_the_folder_that_a_command_works_in_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no files, but is none that shows what the system does."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(Failed) as failed:
        write_file_atomically("a.bin", [b"x"])
    assert code_of(failed) == "E0810"


def content_names(directory: Path) -> list[str]:
    return [p.name for p in directory.iterdir()]


def test_devices_are_not_replaced() -> None:
    with pytest.raises(Failed) as failed:
        write_file_atomically("/dev/null", [b"x"])
    assert code_of(failed) == "E0811"


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        output, "os", Faulty(4, lambda: OSError(errno.EROFS, "Read-only file system"))
    )
    with pytest.raises(Failed) as failed:
        write_file_atomically(tmp_path / "a.bin", [b"x"])
    assert code_of(failed) == "E0812"


def test_an_output_that_is_an_input(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"weights")
    (tmp_path / "link").symlink_to("w")
    with pytest.raises(Failed) as failed:
        reject_input_overwrite(tmp_path / "link", [tmp_path / "absent", tmp_path / "w"])
    assert code_of(failed) == "E0814"
    reject_input_overwrite(tmp_path / "new", [tmp_path / "w"])

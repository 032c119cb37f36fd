"""Writes are atomic: with each system call failing in turn, the previous output remains
complete."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.io import atomic_write as output
from specc.io import platform_and_signals
from specc.io.atomic_write import OutputDirectory, write_file_atomically
from specc.io.output_paths import reject_input_overwrite

CALLS = ("stat", "lstat", "listdir", "open", "write", "fsync", "close", "replace", "link")


class FailingOS:
    """The os module, where the n-th call of CALLS raises an error."""

    def __init__(self, n: int, error: Callable[[], BaseException]) -> None:
        self.left = n
        self.error = error

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def count_call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if name == "close":
                    real(*args)
                raise self.error()
            return real(*args, **kwargs)

        return count_call


def make_disk_full_error() -> BaseException:
    return OSError(errno.ENOSPC, "No space left on device")


def read_files(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(directory.iterdir())}


def get_error_code(failed: pytest.ExceptionInfo[SpeccError]) -> str:
    return failed.value.diagnostics[0].code


def write_version(directory: Path, version: bytes) -> None:
    with OutputDirectory(directory) as out:
        out.write_content_addressed_file("weights", ".bin", [b"weights ", version])
        out.write_named_file("model.onnx", [b"model ", version])
        out.write_named_file("specc.json", [b"index ", version])


def test_chunks_are_concatenated(tmp_path: Path) -> None:
    write_file_atomically(tmp_path / "a.bin", [b"one ", bytearray(b"two "), memoryview(b"three")])
    assert read_files(tmp_path) == {"a.bin": b"one two three"}


def test_the_mode_of_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    for mask, mode in ((0o022, 0o644), (0o077, 0o600)):
        old = os.umask(mask)
        try:
            write_file_atomically(tmp_path / "a.bin", [b"x"])
        finally:
            os.umask(old)
        assert (tmp_path / "a.bin").stat().st_mode & 0o777 == mode
        (tmp_path / "a.bin").unlink()


def test_hashed_file_names(tmp_path: Path) -> None:
    write_version(tmp_path, b"1")
    first = set(read_files(tmp_path))
    write_version(tmp_path, b"1")
    assert set(read_files(tmp_path)) == first
    write_version(tmp_path, b"2")
    assert len(set(read_files(tmp_path)) - first) == 1


def test_superseded_files_are_removed(tmp_path: Path) -> None:
    write_version(tmp_path, b"1")
    (old,) = tmp_path.glob("weights-*")
    with OutputDirectory(tmp_path, superseded=[old.name, "../elsewhere"]) as out:
        out.write_named_file("specc.json", [b"new"])
    assert not old.exists()


@pytest.mark.parametrize(
    "error", [make_disk_full_error, KeyboardInterrupt], ids=["disk full", "interrupted"]
)
@pytest.mark.parametrize("existing", [True, False], ids=["over an old one", "new"])
def test_failing_call_keeps_the_old_file(
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
        before = read_files(directory)
        faulty = FailingOS(n, error)
        for module in (output, platform_and_signals):
            monkeypatch.setattr(module, "os", faulty)
        complete = {"a.onnx": b"new content"}
        try:
            write_file_atomically(directory / "a.onnx", [b"new ", b"content"])
        except KeyboardInterrupt:
            failures += 1
            expected = None  # both are allowed: an interrupt may follow the last rename
        except SpeccError as fault:
            failures += 1
            expected = complete if "is complete" in str(fault) else before
        else:
            expected = complete
        assert read_files(directory) in (before, complete)
        assert expected is None or read_files(directory) == expected
        if faulty.left > 0:
            break
    assert failures >= 6
    assert faulty.left > 0


@pytest.mark.parametrize(
    "error", [make_disk_full_error, KeyboardInterrupt], ids=["disk full", "interrupted"]
)
def test_failing_call_keeps_the_old_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]
) -> None:
    for n in range(1, 60):
        directory = tmp_path / str(n)
        directory.mkdir()
        write_version(directory, b"1")
        before = read_files(directory)
        faulty = FailingOS(n, error)
        with monkeypatch.context() as patch:
            for module in (output, platform_and_signals):
                patch.setattr(module, "os", faulty)
            try:
                write_version(directory, b"2")
            except (SpeccError, KeyboardInterrupt):
                assert read_files(directory) == before
        if faulty.left > 0:
            break
    assert faulty.left > 0


def test_failing_last_fsync_keeps_hashed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry file is in place and refers to the hashed files."""
    count = 0

    def fsync(fd: int) -> None:
        nonlocal count
        count += 1
        if count == 4:
            # the hashed file, the entry, the directory with the hashed file; then the directory
            # with the entry
            raise make_disk_full_error()

    monkeypatch.setattr(output.os, "fsync", fsync)
    with (
        pytest.raises(SpeccError, match=r"E0815\]: .* is complete, but flushing"),
        OutputDirectory(tmp_path) as out,
    ):
        part = out.write_content_addressed_file("weights", ".bin", [b"1"])
        out.write_named_file("m.onnx", [b"2"])
    assert read_files(tmp_path) == {part: b"1", "m.onnx": b"2"}


def test_new_directory_is_removed_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), OutputDirectory(tmp_path / "new") as out:
        out.write_named_file("a", [b"1"])
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    with OutputDirectory(tmp_path / "new") as out:
        out.write_named_file("a", [b"12"])
    assert (out.file_digests["a"].bytes, read_files(tmp_path / "new")) == (2, {"a": b"12"})


def test_failing_chunk_iterator_leaves_no_file(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the other half")

    with pytest.raises(RuntimeError):
        write_file_atomically(tmp_path / "a.bin", chunks())
    assert read_files(tmp_path) == {}


def test_full_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDeviceOS:
        """The os module, where every file is /dev/full."""

        def __getattr__(self, name: str) -> Any:
            if name == "open":
                return lambda path, flags, mode=0: os.open("/dev/full", os.O_WRONLY)
            return getattr(os, name)

    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setattr(output, "os", FullDeviceOS())
    with pytest.raises(SpeccError) as failed:
        write_file_atomically(tmp_path / "a.bin", [b"x"])
    assert get_error_code(failed) == "E0813"


def test_path_errors_have_codes(tmp_path: Path) -> None:
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
        with pytest.raises(SpeccError) as failed:
            write_file_atomically(tmp_path / path, [b"x"])
        assert get_error_code(failed) == code, path
    assert sorted(list_names(tmp_path)) == ["file", "folder", "nowhere"]


@pytest.mark.skipif(os.name != "posix", reason="a folder in use stays there")
def test_removed_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The removed working directory accepts no files."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SpeccError) as failed:
        write_file_atomically("a.bin", [b"x"])
    assert get_error_code(failed) == "E0810"


def list_names(directory: Path) -> list[str]:
    return [p.name for p in directory.iterdir()]


def test_devices_are_not_replaced() -> None:
    with pytest.raises(SpeccError) as failed:
        write_file_atomically("/dev/null", [b"x"])
    assert get_error_code(failed) == "E0811"


def test_read_only_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        output, "os", FailingOS(4, lambda: OSError(errno.EROFS, "Read-only file system"))
    )
    with pytest.raises(SpeccError) as failed:
        write_file_atomically(tmp_path / "a.bin", [b"x"])
    assert get_error_code(failed) == "E0812"


def test_output_path_of_an_input(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"weights")
    (tmp_path / "link").symlink_to("w")
    with pytest.raises(SpeccError) as failed:
        reject_input_overwrite(tmp_path / "link", [tmp_path / "absent", tmp_path / "w"])
    assert get_error_code(failed) == "E0814"
    reject_input_overwrite(tmp_path / "new", [tmp_path / "w"])

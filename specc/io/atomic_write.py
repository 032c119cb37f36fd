"""Write files and directories atomically: if a write fails, the previous content is kept."""

import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Protocol

from specc.diagnostics.diagnostic import raise_error
from specc.io import platform_and_signals
from specc.io.output_paths import (
    check_regular_file,
    normalize_output_path,
    raise_os_error,
    resolve_output_symlink,
)
from specc.io.safe_read import describe_os_error, escape_text


class WriteProgress(Protocol):
    """A progress observer that counts expected and written bytes."""

    def add_expected_bytes(self, size: int) -> None:
        """Increase the number of bytes that are expected to be written by `size`."""

    def add_written_bytes(self, size: int) -> None:
        """Add `size` to the number of bytes that have been written."""


WRITE_PROGRESS: ContextVar[WriteProgress | None] = ContextVar("write_progress", default=None)


Chunk = bytes | bytearray | memoryview

_FILE_COUNTER = count()
"""Counter for unique temporary file names, shared by all threads."""


def write_file_atomically(path: str | Path, chunks: Iterable[Chunk]) -> None:
    """Write a file with the content `chunks`. Raise E0810 to E0815 on failure."""
    path = resolve_output_symlink(normalize_output_path(path))
    with OutputDirectory(path.parent) as out:
        out.write_named_file(path.name, chunks)


def check_free_disk_space(directory: str | Path, size: int) -> None:
    """Raise E0813 if the disk that contains a directory has fewer than `size` free bytes."""
    if (progress := WRITE_PROGRESS.get()) is not None:
        progress.add_expected_bytes(size)
    free = platform_and_signals.get_free_disk_space(directory)
    if free is not None and free < size:
        raise_error(
            "E0813",
            f"no space left for `{escape_text(directory)}`: {size / 1e9:.3g} GB needed",
            notes=[
                f"the disk has {free / 1e9:.3g} GB left",
                "nothing was written; existing files are unchanged",
            ],
            helps=["free some space, or write to another disk with -o"],
        )


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size and SHA-256 of a written file."""

    bytes: int
    sha256: str


class OutputDirectory:
    """A context manager that writes a set of files to a directory and publishes them together.

    `write_content_addressed_file` and `write_named_file` write temporary files. Leaving the context
    without an exception renames the temporary files. Files named by hash are renamed first, then
    the entries (files from `write_named_file`) in call order. An entry keeps the mode of the file
    that it replaces. `file_digests` maps the names of written files to their sizes and hashes.
    Missing directories are created, and removed again after a failure. The files named in
    `superseded` are removed at the end.
    """

    def __init__(self, path: str | Path, *, superseded: Iterable[str] = ()) -> None:
        self.path = normalize_output_path(path)
        self.file_digests: dict[str, FileDigest] = {}
        self._new_directories: list[Path] = []
        self._superseded = tuple(superseded)
        self._content_addressed_files: dict[str, Path] = {}
        self._entries: dict[str, Path] = {}
        self._temporary_files: list[Path] = []
        self._published: list[Path] = []

    def __enter__(self) -> "OutputDirectory":
        with self._discard_on_error():
            self._create_directories()
            if not stat.S_ISDIR(os.stat(self.path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory")
            _remove_stale_files(self.path)
        return self

    @contextmanager
    def _discard_on_error(self) -> Iterator[None]:
        """Return a context manager that removes the files of this run after an error, and converts
        operating system errors to E0810 to E0815.
        """
        try:
            yield
        except BaseException as error:
            self._discard_files()
            if isinstance(error, OSError | ValueError):
                raise_os_error(error, self.path)
            raise

    def _create_directories(self) -> None:
        """Create the output directory and its missing parents."""
        missing_directories, directory_path = [], self.path
        while not os.path.lexists(directory_path):
            missing_directories.append(directory_path)
            directory_path = directory_path.parent
        for directory in reversed(missing_directories):
            # the directory may exist because another thread created it, or because the path is an
            # alias of a parent
            with suppress(FileExistsError):
                os.mkdir(directory)
                self._new_directories.append(directory)

    def write_content_addressed_file(self, stem: str, suffix: str, chunks: Iterable[Chunk]) -> str:
        """Write a file and return its name: `stem-digits.suffix` with 16 digits of its SHA-256."""
        temporary, digest = self._write_temporary_file(f"{stem}{suffix}", chunks)
        name = f"{stem}-{digest.sha256[:16]}{suffix}"
        self._content_addressed_files[name] = temporary
        self.file_digests[name] = digest
        return name

    def write_named_file(self, name: str, chunks: Iterable[Chunk]) -> str:
        """Write the file `name`, and return the SHA-256 of its content."""
        target = self.path / name
        existing_mode: int | None = None
        try:
            existing_mode = os.lstat(target).st_mode
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise_os_error(error, target)
        if existing_mode is not None:
            check_regular_file(target, existing_mode)
        temporary, digest = self._write_temporary_file(name, chunks, existing_mode)
        self._entries[name] = temporary
        self.file_digests[name] = digest
        return digest.sha256

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._discard_files()
            return
        with self._discard_on_error():
            self._publish_files()

    def _write_temporary_file(
        self, name: str, chunks: Iterable[Chunk], existing_mode: int | None = None
    ) -> tuple[Path, FileDigest]:
        """Write and sync a temporary file for the file `name`. The mode is `existing_mode`, the
        mode of the file to replace, or by default the mode that the umask gives to new files.
        Return the path and the digest of the temporary file.
        """
        temporary = self._reserve_name()
        digest, size, progress = hashlib.sha256(), 0, WRITE_PROGRESS.get()
        try:
            fd = os.open(temporary, platform_and_signals.get_file_create_flags(), 0o666)
            try:
                for chunk in chunks:
                    digest.update(chunk)
                    size += memoryview(chunk).nbytes
                    _write_chunk(fd, chunk)
                    if progress is not None:
                        progress.add_written_bytes(memoryview(chunk).nbytes)
                if existing_mode is not None:
                    platform_and_signals.set_file_mode(fd, stat.S_IMODE(existing_mode) & 0o777)
                os.fsync(fd)
            except BaseException:
                with suppress(OSError):
                    os.close(fd)
                raise
            os.close(fd)
        except OSError as error:
            raise_os_error(error, self.path / name)
        return temporary, FileDigest(size, digest.hexdigest())

    def _reserve_name(self) -> Path:
        """Return the path for a new temporary file, which is already registered for removal."""
        number = next(_FILE_COUNTER)
        while os.path.lexists(path := self.path / f".{get_temporary_file_prefix()}{number}"):
            number = next(_FILE_COUNTER)
        self._temporary_files.append(path)
        return path

    def _publish_files(self) -> None:
        """Rename the files named by hash, sync the directory, and then rename the entries."""
        for name, temporary in self._content_addressed_files.items():
            target = self.path / name
            if not os.path.lexists(target):
                self._published.append(target)
            replace_file(temporary, target)
        if self._content_addressed_files:
            platform_and_signals.fsync_directory(self.path)
        self._publish_entries()
        # Keep files of the new package, and keep files outside the directory even if the old index
        # lists them.
        for name in self._superseded:
            is_file_name = name == os.path.basename(name)
            if is_file_name and name not in {*self._content_addressed_files, *self._entries}:
                _unlink_quietly(self.path / name)
        for backup in self._temporary_files:  # backups are hard links to the replaced entries
            _unlink_quietly(backup)

    def _publish_entries(self) -> None:
        """Rename the entries to their final names. If a rename fails, restore the old entries."""
        if len(self._entries) == 1:
            self._publish_single_entry(*self._entries.items())
            return
        backups: dict[Path, Path | None] = {}
        try:
            for name, temporary in self._entries.items():
                target = self.path / name
                backup = self._reserve_name() if os.path.lexists(target) else None
                if backup is not None:
                    platform_and_signals.link_or_copy_file(target, backup)
                backups[target] = backup
                replace_file(temporary, target)
            platform_and_signals.fsync_directory(self.path)
        except BaseException:
            for target, backup in backups.items():
                if backup is not None:
                    replace_file(backup, target)
                else:
                    _unlink_quietly(target)
            raise
        self._published = []

    def _publish_single_entry(self, entry: tuple[str, Path]) -> None:
        """Publish a single entry with one atomic rename, without a backup of the previous entry."""
        name, temporary = entry
        published, self._published = self._published, []
        try:
            replace_file(temporary, self.path / name)
        except OSError:
            self._published = published
            raise
        _sync_after_rename(self.path)

    def _discard_files(self) -> None:
        """Remove all files and directories created in this run."""
        for path in (*self._temporary_files, *self._published):
            _unlink_quietly(path)
        for directory in reversed(self._new_directories):
            with suppress(OSError):  # the directory contains a file of another process
                os.rmdir(directory)


REPLACE_ATTEMPTS = 5
"""Maximum number of attempts to rename a file while another program has it open."""
RETRY_SECONDS = 0.2
"""Number of seconds between two attempts to rename a file."""


def replace_file(source: Path, target: Path) -> None:
    """Rename a file. Rename a file. On Windows, retry if another program has the target open."""
    for attempt in range(REPLACE_ATTEMPTS):
        try:
            os.replace(source, target)
        except PermissionError:
            if not platform_and_signals.IS_WINDOWS or attempt == REPLACE_ATTEMPTS - 1:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return


def _write_chunk(fd: int, chunk: Chunk) -> None:
    """Write a whole chunk with repeated calls of `os.write`, each of which writes at most 2 GiB."""
    view = memoryview(chunk).cast("B")
    while view:
        written = os.write(fd, view)
        view = view[written:]


def _sync_after_rename(path: Path) -> None:
    """Sync the directory after its only entry is published. Raise E0815 on failure."""
    try:
        platform_and_signals.fsync_directory(path)
    except OSError as error:
        raise_error(
            "E0815",
            f"the output in `{escape_text(path)}` is complete, but flushing it to disk failed: "
            f"{describe_os_error(error)}",
            helps=[
                "check that the disk is writable and has free space, then run the command again"
            ],
        )


def _unlink_quietly(path: Path) -> None:
    """Remove a file. Errors of the operating system are ignored."""
    with suppress(OSError):
        os.unlink(path)


def _remove_stale_files(directory: Path) -> None:
    """Remove the temporary files of terminated processes."""
    try:
        names = os.listdir(directory)
    except OSError:
        return  # the directory may be writable but not readable
    for name in names:
        if name.startswith("."):
            with suppress(OSError):  # another process has removed the file
                if is_stale_temporary_file(name, os.lstat(directory / name).st_mtime):
                    _unlink_quietly(directory / name)


STALE_SECONDS = 3600
"""Age in seconds at which a temporary file of another host or container is considered stale."""
_TEMPORARY_NAME = re.compile(r"\.?specc-(?:([0-9a-f]{8})-)?(\d+)-\w+")
"""Pattern of temporary file names. Names by earlier versions lack the hash of the host."""


@cache
def get_pid_namespace_id() -> str:
    """Return eight hex digits that identify the boot and container where process ids are unique."""
    identifiers = [platform_and_signals.get_host_name()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):  # not every system has `/proc`
            identifiers.append(_read_file_or_link(path))
    return hashlib.sha256("\n".join(identifiers).encode()).hexdigest()[:8]


def _read_file_or_link(path: str) -> str:
    """Return the content of a system file, or the target if the path is a symbolic link."""
    if os.path.islink(path):
        return os.readlink(path)
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def get_temporary_file_prefix() -> str:
    """Return the prefix of this process's temporary file names, after the leading dot."""
    return f"specc-{get_pid_namespace_id()}-{os.getpid()}-"


def is_stale_temporary_file(name: str, mtime: float) -> bool:
    """Return True if the process of a temporary file, last modified at `mtime`, has terminated."""
    match = _TEMPORARY_NAME.fullmatch(name)
    if match is None or platform_and_signals.is_process_alive(int(match[2])):
        return False
    return match[1] == get_pid_namespace_id() or time.time() - mtime > STALE_SECONDS


@contextmanager
def create_temporary_directory() -> Iterator[Path]:
    """Remove stale temporary directories, and return a context manager for a new one. Raise E0810
    to E0815 on failure.
    """
    try:
        parent_directory = Path(tempfile.gettempdir())
        with os.scandir(parent_directory) as entries:
            for entry in entries:
                if entry.name.startswith("specc-") and _is_stale_directory(entry):
                    shutil.rmtree(entry.path, ignore_errors=True)
        temporary = tempfile.TemporaryDirectory(prefix=get_temporary_file_prefix())
    except OSError as error:
        raise_os_error(error, Path(os.environ.get("TMPDIR", "/tmp")) / "specc")
    with temporary as directory:
        yield Path(directory)


def _is_stale_directory(entry: "os.DirEntry[str]") -> bool:
    """Return True if an entry is a temporary directory of this user without a running process."""
    with suppress(OSError):  # another process has removed the directory
        status = entry.stat(follow_symlinks=False)
        # on systems without user ids, each user has a separate temporary directory
        is_own = "getuid" not in vars(os) or status.st_uid == os.getuid()
        is_stale = is_stale_temporary_file(entry.name, status.st_mtime)
        return is_own and is_stale and entry.is_dir(follow_symlinks=False)
    return False

"""Functions that hide platform differences: open flags, file modes, links, host names, signals."""

import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

IS_WINDOWS = os.name == "nt"


def _get_open_flag(name: str) -> int:
    """Return the value of an open flag such as `O_CLOEXEC`, or 0 if the platform lacks the flag."""
    return int(vars(os).get(name, 0))


def get_file_read_flags() -> int:
    """Return the open flags for reading: binary, and non-blocking in case the path is a pipe."""
    flags = os.O_RDONLY | _get_open_flag("O_CLOEXEC") | _get_open_flag("O_BINARY")
    # O_NONBLOCK has no effect on regular files
    return flags | _get_open_flag("O_NONBLOCK")


def get_file_create_flags() -> int:
    """Return the open flags for a new file: exclusive, and without following symbolic links."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return flags | _get_open_flag("O_CLOEXEC") | _get_open_flag("O_BINARY")


_SEEK_LOCK = threading.Lock()
"""A lock that makes seek and read atomic on platforms without `pread`."""


def read_at_offset(fd: int, size: int, offset: int) -> bytes:
    """Read up to `size` bytes at `offset`. `pread` does not change the file position."""
    if "pread" in vars(os):
        return os.pread(fd, size, offset)
    with _SEEK_LOCK:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)


def read_into_buffer(fd: int, view: memoryview, offset: int) -> int:
    """Read into `view` from `offset`. Return the number of bytes read, which may be smaller."""
    if "preadv" in vars(os):
        return os.preadv(fd, [view], offset)
    data = read_at_offset(fd, len(view), offset)
    view[: len(data)] = data
    return len(data)


def set_file_mode(fd: int, mode: int) -> None:
    """Set the mode of an open file on platforms that support file modes."""
    if "fchmod" in vars(os):
        with suppress(OSError):  # the file system does not support modes
            os.fchmod(fd, mode)


def link_or_copy_file(source: Path, target: Path) -> None:
    """Create a hard link, or a copy if the file system does not support hard links."""
    try:
        if os.link in os.supports_follow_symlinks:
            os.link(source, target, follow_symlinks=False)
        else:
            os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        shutil.copyfile(source, target)


def fsync_directory(path: Path) -> None:
    """Sync a directory on file systems that support syncing directories."""
    if IS_WINDOWS:
        return
    fd = os.open(path, os.O_RDONLY | _get_open_flag("O_CLOEXEC"))
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        with suppress(OSError):
            os.close(fd)


@contextmanager
def discard_native_stderr() -> Iterator[None]:
    """Return a context manager that discards the stderr output of native code. For example, a panic
    in Rust code prints a message, although it is also raised as a Python exception. If there are
    several threads, no output is discarded, because all threads share stderr.
    """
    try:
        saved_stderr = os.dup(2) if threading.active_count() == 1 else None
    except OSError:  # stderr is closed
        saved_stderr = None
    if saved_stderr is None:
        yield
        return
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 2)
    os.close(null_device)
    try:
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)


def is_process_alive(pid: int) -> bool:
    """Return True if a process may be alive. On Windows, `os.kill(pid, 0)` would kill the process,
    so the result is always True.
    """
    if IS_WINDOWS:
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def get_host_name() -> str:
    """Return the host name, or "" if the host name cannot be determined."""
    return os.uname().nodename if "uname" in vars(os) else ""


def get_free_disk_space(directory: str | Path) -> int | None:
    """Return the number of free bytes on the disk of a directory, or None if it is unknown."""
    try:
        usage = shutil.disk_usage(directory)
    except (OSError, ValueError):
        return None  # an invalid directory is reported when the file is written
    return usage.free if usage.total else None


SIGNAL_NAMES = ("SIGTERM", "SIGHUP")
"""The signals that a supervisor or a closed terminal sends to terminate a process."""


RECEIVED_SIGNALS: list[int] = []
"""The received signals, recorded because a library may replace the exception during import."""


class ProcessTerminatedError(KeyboardInterrupt):
    """Raised if a signal terminates the process, and handled like Ctrl-C."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_status(self) -> int:
        """The exit status of a process terminated by a signal: 128 plus the signal number."""
        return 128 + self.signum


def install_termination_handlers() -> None:
    """Install handlers that raise ProcessTerminatedError. Keep ignored signals ignored (nohup)."""
    for name in SIGNAL_NAMES:
        # Windows does not define SIGHUP
        signum = vars(signal).get(name)
        if signum is not None and signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, _raise_terminated)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise_interrupted)


def get_termination_exception() -> KeyboardInterrupt | None:
    """Return a ProcessTerminatedError for the last received signal, or None if there was none."""
    if not RECEIVED_SIGNALS:
        return None
    signum = RECEIVED_SIGNALS[-1]
    return KeyboardInterrupt() if signum == signal.SIGINT else ProcessTerminatedError(signum)


def _raise_terminated(signum: int, _: FrameType | None) -> None:
    RECEIVED_SIGNALS.append(signum)
    # let a second signal terminate the process immediately
    signal.signal(signum, signal.SIG_DFL)
    raise ProcessTerminatedError(signum)


def _raise_interrupted(signum: int, frame: FrameType | None) -> None:
    RECEIVED_SIGNALS.append(signum)
    signal.default_int_handler(signum, frame)

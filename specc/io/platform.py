"""Differences between operating systems: open flags, modes, replace, links, names, signals."""

import errno
import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

IS_WINDOWS = os.name == "nt"
REPLACE_ATTEMPTS = 5
"""How often renaming a file is tried while another program has it open."""
RETRY_SECONDS = 0.2
"""Seconds between two attempts."""


def _get_open_flag(name: str) -> int:
    """A flag of opening, 0 where the system has none of that name."""
    return int(vars(os).get(name, 0))


def get_read_flags() -> int:
    """Flags for reading: the bytes as they are, and no wait for a pipe that nobody writes."""
    plain = os.O_RDONLY | _get_open_flag("O_CLOEXEC") | _get_open_flag("O_BINARY")
    # has no effect on regular files
    return plain | _get_open_flag("O_NONBLOCK")


def get_create_flags() -> int:
    """Flags for a new file: never into one, or through a link, that someone else put there."""
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return new | _get_open_flag("O_CLOEXEC") | _get_open_flag("O_BINARY")


_SEEK_LOCK = threading.Lock()
"""Guards seek and read on systems without `pread`."""


def read_at_offset(fd: int, size: int, offset: int) -> bytes:
    """At most `size` bytes from `offset` on, wherever the descriptor stands."""
    if "pread" in vars(os):
        return os.pread(fd, size, offset)
    with _SEEK_LOCK:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)


def read_into_buffer(fd: int, view: memoryview, offset: int) -> int:
    """Fill `view` from `offset` on, as far as one call does; gives how far that is."""
    if "preadv" in vars(os):
        return os.preadv(fd, [view], offset)
    data = read_at_offset(fd, len(view), offset)
    view[: len(data)] = data
    return len(data)


def copy_file_mode(fd: int, mode: int) -> None:
    """Give a file the mode of another one, where there are modes."""
    if "fchmod" in vars(os):
        with suppress(OSError):  # a file system without this feature
            os.fchmod(fd, mode)


def replace_file(source: Path, target: Path) -> None:
    """Rename a file; retried on Windows while another program has the old one open."""
    for turn in range(REPLACE_ATTEMPTS):
        try:
            os.replace(source, target)
        except PermissionError:
            if not IS_WINDOWS or turn == REPLACE_ATTEMPTS - 1:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return


def link_or_copy_file(path: Path, name: Path) -> None:
    """A second name for a file; a copy where the file system has no such thing."""
    try:
        if os.link in os.supports_follow_symlinks:
            os.link(path, name, follow_symlinks=False)
        else:
            os.link(path, name)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        shutil.copyfile(path, name)


def sync_directory(path: Path) -> None:
    """Make new names last. Some file systems cannot, and say EINVAL; Windows opens no folder."""
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


def is_process_alive(pid: int) -> bool:
    """Whether a process may still be there. Windows would end it when asked, so there it is."""
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
    """The name that this machine has for others; empty where none is to be had."""
    return os.uname().nodename if "uname" in vars(os) else ""


def get_free_disk_space(folder: str | Path) -> int | None:
    """Bytes that are left on a disk; None for a file system that counts none."""
    try:
        usage = shutil.disk_usage(folder)
    except (OSError, ValueError):
        return None  # problems with the directory are reported when writing
    return usage.free if usage.total else None


SIGNAL_NAMES = ("SIGTERM", "SIGHUP")
"""Signals that terminate a process: from a supervisor, or a closed terminal."""


RECEIVED_SIGNALS: list[int] = []
"""Received signals; a library's import may replace their exception by another."""


class ProcessTerminated(KeyboardInterrupt):
    """The process was told to end, with exit `status`; handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """128 and the number of the signal, as shells count."""
        return 128 + self.number


def install_termination_handlers() -> None:
    """Raise `ProcessTerminated` on termination signals, except those ignored already (`nohup`)."""
    for name in SIGNAL_NAMES:
        # not every system has all of them
        number = vars(signal).get(name)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise_terminated)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise_interrupted)


def get_pending_termination() -> KeyboardInterrupt | None:
    """What the last signal raised, if one came, whatever became of it on its way."""
    if not RECEIVED_SIGNALS:
        return None
    number = RECEIVED_SIGNALS[-1]
    return KeyboardInterrupt() if number == signal.SIGINT else ProcessTerminated(number)


def _raise_terminated(number: int, _: FrameType | None) -> None:
    RECEIVED_SIGNALS.append(number)
    # a second interrupt ends the process at once
    signal.signal(number, signal.SIG_DFL)
    raise ProcessTerminated(number)


def _raise_interrupted(number: int, frame: FrameType | None) -> None:
    RECEIVED_SIGNALS.append(number)
    signal.default_int_handler(number, frame)

"""Temporary directories, and recognition of temporary files left behind by dead processes."""

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from specc.io import platform
from specc.io.output_paths import raise_os_error

STALE_SECONDS = 3600
"""Age after which a temporary file of another host or container is stale."""
_OWNER = re.compile(r"\.?specc-(?:([0-9a-f]{8})-)?(\d+)-\w+")
"""Names of former versions say no place."""


@cache
def get_process_namespace() -> str:
    """Return eight digits that identify the boot and container, in which process ids are unique."""
    known = [platform.get_host_name()]
    for fact in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):  # not every system tells
            known.append(_read_system_fact(fact))
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:8]


def _read_system_fact(fact: str) -> str:
    """What the system says of itself under that path: a text, or where a link goes."""
    if os.path.islink(fact):
        return os.readlink(fact)
    with open(fact, encoding="ascii", errors="replace") as file:
        return file.read()


def get_temporary_prefix() -> str:
    """How names of this process begin, after the point that hides a file."""
    return f"specc-{get_process_namespace()}-{os.getpid()}-"


def is_abandoned_name(name: str, written: float) -> bool:
    """Return whether a temporary file, last written at that time, belongs to a dead process."""
    found = _OWNER.fullmatch(name)
    if found is None or platform.is_process_alive(int(found[2])):
        return False
    return found[1] == get_process_namespace() or time.time() - written > STALE_SECONDS


@contextmanager
def create_temporary_directory() -> Iterator[Path]:
    """Create a directory, removed at the end, and remove stale ones. Raise E0810 to E0815."""
    try:
        room = Path(tempfile.gettempdir())
        _remove_stale_directories(room)
        made = tempfile.TemporaryDirectory(prefix=get_temporary_prefix())
    except OSError as error:
        raise_os_error(error, Path(os.environ.get("TMPDIR", "/tmp")) / "specc")
    with made as folder:
        yield Path(folder)


def _remove_stale_directories(room: Path) -> None:
    """Removes our folders of processes that are gone."""
    with os.scandir(room) as entries:
        for entry in entries:
            if entry.name.startswith("specc-") and _is_abandoned_directory(entry):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_abandoned_directory(entry: "os.DirEntry[str]") -> bool:
    """Whether it is a folder of this user, and of a process that is gone."""
    with suppress(OSError):  # someone else has cleared it
        facts = entry.stat(follow_symlinks=False)
        # where there are no users, each has a folder of their own for temporary files
        mine = "getuid" not in vars(os) or facts.st_uid == os.getuid()
        gone = is_abandoned_name(entry.name, facts.st_mtime)
        return mine and gone and entry.is_dir(follow_symlinks=False)
    return False

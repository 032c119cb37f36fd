"""What killed processes left behind: the names by which it is known, and when it may go.

A name says where its process lived, and which it was. Where that is here, the process can
be asked for; elsewhere, in another container or on another machine that shares the
folder, nobody sees it, and only time tells.
"""

import hashlib
import os
import re
import time
from contextlib import suppress
from functools import cache

from specc.files import system

STALE_SECONDS = 3600
"""What may be of a living process elsewhere is left alone this long after it was last
written.
"""
_OWNER = re.compile(r"\.?specc-(?:([0-9a-f]{8})-)?(\d+)-\w+")
"""Names of former versions say no place."""


@cache
def place() -> str:
    """Eight digits for the set of processes that see each other: one system since it was
    started, and in it one container.
    """
    known = [system.host()]
    for fact in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):  # not every system tells
            known.append(_told(fact))
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:8]


def _told(fact: str) -> str:
    """What the system says of itself under that path: a text, or where a link goes."""
    if os.path.islink(fact):
        return os.readlink(fact)
    with open(fact, encoding="ascii", errors="replace") as file:
        return file.read()


def owner() -> str:
    """How names of this process begin, after the point that hides a file."""
    return f"specc-{place()}-{os.getpid()}-"


def abandoned(name: str, written: float) -> bool:
    """Whether a file or folder of that name, last written at that time, is of a process
    that is gone.
    """
    found = _OWNER.fullmatch(name)
    if found is None or system.alive(int(found[2])):
        return False
    return found[1] == place() or time.time() - written > STALE_SECONDS

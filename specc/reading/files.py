"""The bytes of a file that a user named, with a limit: neither a pipe nor a device can hang us."""

import os
import stat
from typing import NoReturn

from specc.text.diagnostic import fail

MAX_TEXT_BYTES = 64 << 20
MAX_ARRAY_BYTES = 2 << 30
MAX_IMAGE_BYTES = 512 << 20


def shown(path: str) -> str:
    """A path as messages print it: control characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)


def read_bytes(path: str, most: int) -> bytes:
    """The whole file. Fails with E0802 if it cannot be read, E0904 if it holds more than `most` bytes."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            _unreadable(path, "it is a folder")
        if not stat.S_ISREG(status.st_mode):
            _unreadable(path, "it is a pipe or a device, not a file")
        if status.st_size > most:
            too_large(path, f"it holds {status.st_size:,} bytes, and at most {most:,} are read".replace(",", " "))
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the path
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        _unreadable(path, reason.lower())
    if len(data) > most:  # it grew while it was read
        too_large(path, "it grows while it is read")
    return data


def too_large(path: str, why: str) -> NoReturn:
    """Fails with E0904."""
    fail(
        "E0904",
        f"`{shown(path)}` is larger than specc reads",
        notes=[why],
        helps=["give a smaller picture or array, or split it into several runs"],
    )


def _unreadable(path: str, why: str) -> NoReturn:
    fail(
        "E0802",
        f"cannot read `{shown(path)}`: {why}",
        helps=["check the path; it is taken relative to the folder you are in"],
    )

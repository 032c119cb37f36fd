"""The bytes of a file that a user named, with a limit: neither a pipe nor a device can hang us."""

from typing import NoReturn

from specc.files.read import TooLarge, Unreadable, read_regular, shown
from specc.text.diagnostic import fail

MAX_TEXT_BYTES = 64 << 20
MAX_ARRAY_BYTES = 2 << 30
MAX_IMAGE_BYTES = 512 << 20
MAX_RANK = 16
"""Axes of an array."""


def read_bytes(path: str, most: int) -> bytes:
    """The whole file. Fails with E0802 if it cannot be read, E0904 if it holds more
    than `most` bytes.
    """
    try:
        return read_regular(path, most)
    except TooLarge as error:
        if error.size <= most:
            too_large(path, "it grows while it is read")
        holds, granted = (f"{n:,}".replace(",", " ") for n in (error.size, most))
        too_large(path, f"it holds {holds} bytes, and at most {granted} are read")
    except Unreadable as error:
        _unreadable(path, error.reason)


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

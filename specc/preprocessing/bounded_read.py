"""Read a file with a size limit."""

from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import FileTooLarge, UnreadableFile, escape_text, read_regular_file

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
        return read_regular_file(path, most)
    except FileTooLarge as error:
        if error.size <= most:
            fail_too_large(path, "it grows while it is read")
        holds, granted = (f"{n:,}".replace(",", " ") for n in (error.size, most))
        fail_too_large(path, f"it holds {holds} bytes, and at most {granted} are read")
    except UnreadableFile as error:
        _unreadable(path, error.reason)


def fail_too_large(path: str, why: str) -> NoReturn:
    """Fails with E0904."""
    raise_error(
        "E0904",
        f"`{escape_text(path)}` is larger than specc reads",
        notes=[why],
        helps=["give a smaller picture or array, or split it into several runs"],
    )


def _unreadable(path: str, why: str) -> NoReturn:
    raise_error(
        "E0802",
        f"cannot read `{escape_text(path)}`: {why}",
        helps=["check the path; it is taken relative to the folder you are in"],
    )

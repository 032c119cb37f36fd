"""Read `-`: text or a spec from standard input."""

import sys

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Source

STDIN = "-"
"""The word for it."""
MOST_SPEC = 2**20
"""Bytes of a spec, which are no more where it comes from a file."""


def read_standard_input(most: int) -> bytes:
    """All of it, at most `most` bytes. E0802 where it is closed or cannot be read, E0904
    where there is more.
    """
    stream = sys.stdin
    if stream is None or stream.closed:
        raise_error(
            "E0802", "cannot read the standard input: it is closed", helps=["give a text, or @FILE"]
        )
    try:
        data = stream.buffer.read(most + 1)
    except OSError as error:
        raise_error("E0802", f"cannot read the standard input: {str(error.strerror).lower()}")
    if len(data) > most:
        helps = ["give less at once, or split it into several runs"]
        raise_error("E0904", f"the standard input is larger than {most} bytes", helps=helps)
    return data


def read_spec_from_stdin() -> Source:
    """A spec in either syntax; what is wrong in it is shown at `<standard input>:line`."""
    data = read_standard_input(MOST_SPEC)
    try:
        return Source("<standard input>", data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise_error("E0112", "the standard input is not UTF-8 text")

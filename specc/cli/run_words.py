"""Lines of a file or of the standard input that `specc run` is given."""

from specc.cli.run_refused import absent
from specc.cli.standard_input import STDIN, standard_input
from specc.data.files import read_bytes
from specc.files.read import shown
from specc.text.diagnostic import Failed, fail

MOST_TEXT = 2**20
"""Bytes of a file of texts, or of the standard input."""


def read_lines(word: str) -> list[str]:
    """The lines of the standard input (`-`) or of a file (`@FILE`). E0802 for a file that
    is not there, E0112 for one that is not UTF-8.
    """
    if word == STDIN:
        data = standard_input(MOST_TEXT)
    else:
        try:
            data = read_bytes(word[1:], MOST_TEXT)
        except Failed as failed:
            if failed.diagnostics[0].code != "E0802":
                raise
            absent(word)
    name = "the standard input" if word == STDIN else f"`{shown(word[1:])}`"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        fail("E0112", f"{name} is not UTF-8 text")
    # A line end at the end of a file ends its last line and begins no further text.
    return [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]

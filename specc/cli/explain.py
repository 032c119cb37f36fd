"""Explain the code of a message: what is wrong, an example, and how to mend it."""

from argparse import ArgumentParser, Namespace

from specc.library.files import explanations
from specc.text.codes import CODES
from specc.text.diagnostic import fail
from specc.text.suggest import did_you_mean


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("code", metavar="CODE", help="such as E0302")


def run(given: Namespace) -> int:
    """Print the page of a code."""
    code = given.code.upper()
    if code not in CODES:
        near = did_you_mean(code, CODES)
        hint = (
            f"did you mean {near}?"
            if near
            else f"codes run from {min(CODES)} to {max(CODES)}"
        )
        fail("E0200", f"there is no code `{given.code}`", helps=[hint])
    print(explanations()[code].read_text(encoding="utf-8").rstrip())
    return 0

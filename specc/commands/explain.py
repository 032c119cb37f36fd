"""Explain the code of a message: what is wrong, an example, and how to mend it."""

from argparse import ArgumentParser, Namespace

from specc.library import explanations
from specc.text.diagnostic import fail
from specc.text.suggest import did_you_mean


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("code", metavar="CODE", help="such as E0302")


def run(given: Namespace) -> int:
    """Print the page of a code."""
    pages = explanations()
    code = given.code.upper()
    if code not in pages:
        near = did_you_mean(code, pages)
        hint = f"did you mean {near}?" if near else f"codes run from {min(pages)} to {max(pages)}"
        fail("E0200", f"there is no code `{given.code}`", helps=[hint])
    print(pages[code].read_text(encoding="utf-8").rstrip())
    return 0

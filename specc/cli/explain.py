"""Explain the code of a message: what is wrong, an example, and how to mend it."""

from argparse import ArgumentParser, Namespace

from specc.cli.messages import answer
from specc.files.read import shown
from specc.library.files import explanations
from specc.text.codes import CODES
from specc.text.diagnostic import fail
from specc.text.suggest import did_you_mean


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("code", metavar="CODE", help="such as E0302")


def run(given: Namespace) -> int:
    """Print the page of a code."""
    code = meant(given.code)
    if code not in CODES:
        near = did_you_mean(code, CODES)
        hint = (
            f"did you mean {near}?"
            if near
            else f"codes run from {min(CODES)} to {max(CODES)}"
        )
        fail("E0200", f"there is no code `{shown(given.code)[:40]}`", helps=[hint])
    page = explanations()[code].read_text(encoding="utf-8").rstrip()
    known = CODES[code]
    told = {"code": code, "title": known.line, "status": known.status, "page": page}
    if not answer("explain", told):
        print(page)
    return 0


def meant(text: str) -> str:
    """A code in its own form: `e302`, `302` and `E0302` are one, and so is `[E0302]`."""
    text = text.strip("[]: ").upper()
    letter, digits = text[:1], text[1:]
    if text.isdecimal():
        letter, digits = "E", text
    return f"{letter}{digits:0>4}" if digits.isdecimal() and digits else text

"""Diagnostics to the terminal: full, one line each, as JSON or as SARIF; in color where
that is wanted.
"""

import os
import sys
from collections.abc import Sequence

from specc.lang.read import answered
from specc.text.diagnostic import Diagnostic, folded
from specc.text.programs import as_json, as_sarif
from specc.text.render import render, short
from specc.version import __version__

PROGRAMS = ("json", "sarif")
"""Forms that programs read: they go to stdout, and nothing else does."""


def report(diagnostics: Sequence[Diagnostic], form: str, color: str) -> None:
    """Diagnostics on stderr; JSON and SARIF, which programs read, on stdout, also when
    there are none.

    Identical ones are one with a count. What to do is said in the syntax of the file.
    """
    diagnostics = answered(folded(diagnostics))
    match form:
        case "json":
            sys.stdout.write(as_json(diagnostics))
        case "sarif":
            sys.stdout.write(as_sarif(diagnostics, __version__).rstrip("\n") + "\n")
        case "short":
            sys.stderr.write("".join(f"{short(d)}\n" for d in diagnostics))
        case _:
            sys.stderr.write(render(diagnostics, color=colored(color)))


def colored(choice: str) -> bool:
    """Whether to color: `--color`, then NO_COLOR, FORCE_COLOR, then whether stderr is a
    terminal.
    """
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

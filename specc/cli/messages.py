"""What goes to the terminal: diagnostics in full, one line each, as JSON or as SARIF, in
color where that is wanted; notes; results for programs.

How it is said is the user's wish (`--format`, `--quiet`) and the same for one whole
command: `MANNER` holds it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from specc.files.json import finite
from specc.lang.read import answered
from specc.text.diagnostic import Diagnostic, folded
from specc.text.programs import as_json, as_sarif
from specc.text.render import render, short
from specc.version import __version__

PROGRAMS = ("json", "sarif")
"""Forms that programs read: they go to stdout, and nothing else does."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How things are said: `form` of messages, and whether only what was asked for is said."""

    form: str = "full"
    quiet: bool = False

    @property
    def for_programs(self) -> bool:
        """Whether stdout is read by a program."""
        return self.form in PROGRAMS


MANNER: ContextVar[Manner] = ContextVar("manner")


def manner() -> Manner:
    """How things are said in this command."""
    return MANNER.get(Manner())


def report(diagnostics: Sequence[Diagnostic], form: str, color: str) -> None:
    """Diagnostics on stderr; JSON and SARIF, which programs read, on stdout, also when
    there are none.

    Identical ones are one with a count. What to do is said in the syntax of the file.
    """
    if manner().quiet:
        diagnostics = [d for d in diagnostics if d.severity == "error"]
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


def remark(text: str) -> None:
    """A note on stderr, where it does not mix with results; nothing where it is not wanted."""
    if not manner().quiet and not manner().for_programs:
        print(f"note: {text}", file=sys.stderr)


def done(text: str, *, aside: bool = False) -> None:
    """What a command has done: for people who did not ask it to be quiet. On stderr where
    stdout has a result besides.
    """
    if not manner().quiet and not manner().for_programs:
        print(text, file=sys.stderr if aside else sys.stdout)


def answer(command: str, found: Mapping[str, object]) -> bool:
    """A result as one line of JSON, where that is wanted; gives whether it was."""
    if manner().form != "json":
        return False
    told = {"command": command, **found}
    text = json.dumps(finite(told), ensure_ascii=False, allow_nan=False)
    # halves of characters become the escapes that JSON has for them
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    return True


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

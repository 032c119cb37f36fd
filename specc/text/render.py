"""Diagnostics → text for people: full, with source lines, or one line each.

`specc.text.programs` has the forms that programs read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from specc.text.characters import escaped
from specc.text.excerpt import Paint, by_source, excerpt

if TYPE_CHECKING:
    # a diagnostic is told through this module, which reads but never makes one
    from specc.text.diagnostic import Diagnostic

SYNTAX = "E01"
"""Codes that begin so are of text that cannot be read."""


def render(diagnostics: Iterable["Diagnostic"], *, color: bool = False) -> str:
    """The full form, an empty line between two. What is to be said at several places is
    said at the first.
    """
    return "\n".join(full(d, color=color) for d in gathered(diagnostics))


def full(diagnostic: "Diagnostic", *, color: bool = False) -> str:
    """One diagnostic with its source lines, notes and helps; ends with a line break."""
    paint = Paint(color)
    mark = paint(diagnostic.severity, f"{diagnostic.severity}[{diagnostic.code}]")
    out = [f"{mark}{paint('note', ': ' + escaped(diagnostic.title))}"]
    groups = by_source(diagnostic)
    numbers = [
        label.span.source.position(label.span.end)[0]
        for labels in groups
        for label in labels
    ]
    rim = " " * len(str(max(numbers, default=0)))
    for n, labels in enumerate(groups):
        out += excerpt(labels, diagnostic.primary, rim, paint, first=n == 0)
    for word, texts in (
        ("note", (*diagnostic.notes, *_again(diagnostic))),
        ("help", diagnostic.helps),
    ):
        for text in texts:
            head, *rest = text.split("\n")
            out.append(
                f"{rim} {paint('rim', '=')} {paint(word, word)}: {escaped(head)}"
            )
            out += [f"{rim}         {escaped(line)}" for line in rest]
    return "\n".join(line.rstrip() for line in out) + "\n"


MOST_PLACES = 6
"""Places of one message that are listed."""


def _again(diagnostic: "Diagnostic") -> Iterator[str]:
    """How often, and where else, the same is to be said."""
    if diagnostic.count > 1:
        yield f"the same is to be said {diagnostic.count} times here"
    if not (others := diagnostic.elsewhere):
        return
    shown = ", ".join(str(span) for span in others[:MOST_PLACES])
    more = len(others) - MOST_PLACES
    plural = "s" if len(others) > 1 else ""
    rest = f" and {more} more" if more > 0 else ""
    yield f"the same is to be said at {len(others)} more place{plural}: {shown}{rest}"


def short(diagnostic: "Diagnostic") -> str:
    """`file:line:column: error[E0101]: title`."""
    place = f"{escaped(str(diagnostic.primary.span))}: " if diagnostic.primary else ""
    times = f" ({diagnostic.count} times)" if diagnostic.count > 1 else ""
    return f"{place}{diagnostic.severity}[{diagnostic.code}]: {escaped(diagnostic.title)}{times}"


def gathered(diagnostics: Iterable["Diagnostic"]) -> list["Diagnostic"]:
    """Messages that differ in their places alone as one, for people: the first, with the
    places of the others. Each slip of the pen is one of its own, and stays so.
    """
    firsts: dict[object, Diagnostic] = {}
    for found in diagnostics:
        label = found.primary.text if found.primary else ""
        said = (found.code, found.title, found.notes, found.helps, label)
        # without a place there is nothing to tell two of them apart
        alone = found.primary is None or found.code.startswith(SYNTAX)
        key = found if alone else (*said, found.severity)
        first = firsts.setdefault(key, found)
        if first is not found and found.primary and not alone:
            elsewhere = (*first.elsewhere, found.primary.span)
            firsts[key] = replace(first, elsewhere=elsewhere)
    return list(firsts.values())

"""Diagnostics → text for people: full, with source lines, or one line each.

`specc.text.programs` has the forms that programs read.
"""

from collections.abc import Iterable, Iterator

from specc.text.characters import escaped
from specc.text.diagnostic import Diagnostic, gathered
from specc.text.excerpt import Paint, by_source, excerpt


def render(diagnostics: Iterable[Diagnostic], *, color: bool = False) -> str:
    """The full form, an empty line between two. What is to be said at several places is
    said at the first.
    """
    return "\n".join(full(d, color=color) for d in gathered(diagnostics))


def full(diagnostic: Diagnostic, *, color: bool = False) -> str:
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


def _again(diagnostic: Diagnostic) -> Iterator[str]:
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


def short(diagnostic: Diagnostic) -> str:
    """`file:line:column: error[E0101]: title`."""
    place = f"{escaped(str(diagnostic.primary.span))}: " if diagnostic.primary else ""
    times = f" ({diagnostic.count} times)" if diagnostic.count > 1 else ""
    return f"{place}{diagnostic.severity}[{diagnostic.code}]: {escaped(diagnostic.title)}{times}"

"""The `Diagnostic` record, its labels and fixes, and the exception `Failed` that carries
diagnostics.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from specc.diagnostics.source import Span

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Label:
    """A source span and its message."""

    span: Span
    text: str = ""

    @classmethod
    def at(cls, span: Span | None, text: str) -> "Label | None":
        """Return a label at a span; None if there is no span."""
        return cls(span, text) if span else None


@dataclass(frozen=True, slots=True)
class Fix:
    """A machine-applicable fix: replace the text at `span`."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """An error or warning with its locations.

    `title` is the message. `primary` is the location; `others` are further origins. An error inside
    the standard library is reported at the user's call first, and at the library second. `notes`
    are facts, `helps` suggestions, as text to paste where possible. `count` is the number of
    identical messages, `elsewhere` their locations.
    """

    code: str
    title: str
    primary: Label | None = None
    others: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    severity: Severity = "error"
    count: int = 1
    other_locations: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        """Order labels: the user's text before the standard library."""
        if self.primary is None or self.primary.span.caller is None:
            return
        span, text = self.primary.span, self.primary.text
        called = Label(self.primary.span.caller, text or "called here")
        inner = Label(replace(span, caller=None), "in the called block")
        # the user's source may already be among the others and is shown once
        others = (o for o in self.others if o.span != called.span)
        object.__setattr__(self, "primary", called)
        object.__setattr__(self, "others", (inner, *others))


def merge_duplicate_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return each message once, in the order of the first occurrence, with its count."""
    counts: dict[Diagnostic, int] = {}
    for diagnostic in diagnostics:
        once = replace(diagnostic, count=1)
        counts[once] = counts.get(once, 0) + diagnostic.count
    return [replace(once, count=count) for once, count in counts.items()]


class Failed(Exception):
    """The exception for all errors in specs, weights, models, inputs and arguments."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__(*(f"{d.code}: {d.title}" for d in diagnostics))
        self.diagnostics = diagnostics

    def __reduce__(self) -> tuple[type["Failed"], tuple[Diagnostic, ...]]:
        """Pickle by content: sources are shared by identity."""
        return type(self), self.diagnostics

    def __str__(self) -> str:
        """Return the complete message, as the command line prints it."""
        # the renderer imports diagnostics, so it cannot be imported at module level
        from specc.diagnostics.render import render_diagnostics

        return render_diagnostics(self.diagnostics).rstrip("\n")


def raise_error(
    code: str,
    title: str,
    span: Span | None = None,
    label: str = "",
    *,
    others: Iterable[Label] = (),
    notes: Iterable[str] = (),
    helps: Iterable[str] = (),
) -> NoReturn:
    """Raise `Failed` with one error."""
    primary = Label(span, label) if span else None
    raise Failed(Diagnostic(code, title, primary, tuple(others), tuple(notes), tuple(helps)))

"""The `Diagnostic` record, its labels and fixes, and the exception `Failed` that carries
diagnostics.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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

    @classmethod
    def list_at(cls, span: Span | None, text: str) -> "tuple[Label, ...]":
        """Return a label at a span as a tuple, which is empty if there is no span."""
        return (cls(span, text),) if span else ()


@dataclass(frozen=True, slots=True)
class Fix:
    """A machine-applicable fix: replace the text at `span`."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """An error or warning with its locations.

    `title` is the message, `primary` its location; `others` are related locations. An error in
    the standard library is shown at the user's call first, then in the library. `notes` are
    facts, `helps` suggestions, if possible as code to paste. `count` is the number of identical
    diagnostics, `other_locations` are those of similar ones.
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
        """Label the user's call first, then the text of the standard library."""
        if self.primary is None or self.primary.span.caller is None:
            return
        span, text = self.primary.span, self.primary.text
        call_site = Label(self.primary.span.caller, text or "called here")
        inner = Label(replace(span, caller=None), "in the called block")
        others = (o for o in self.others if o.span != call_site.span)
        object.__setattr__(self, "primary", call_site)
        object.__setattr__(self, "others", (inner, *others))


def merge_duplicate_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Merge identical diagnostics into the first one, with their count."""
    counts: dict[Diagnostic, int] = {}
    for diagnostic in diagnostics:
        unique = replace(diagnostic, count=1)
        counts[unique] = counts.get(unique, 0) + diagnostic.count
    return [replace(unique, count=count) for unique, count in counts.items()]


@dataclass
class ErrorCollector:
    """A parser or checker that continues after an error, so that one run reports several."""

    errors: list[Diagnostic] = field(default_factory=list, init=False)

    def add(self, *errors: Diagnostic) -> None:
        """Report errors and continue."""
        self.errors.extend(errors)

    def report_error(
        self,
        code: str,
        title: str,
        span: Span,
        label: str,
        *helps: str,
        others: Iterable[Label] = (),
    ) -> None:
        """Report one error and continue."""
        self.add(Diagnostic(code, title, Label(span, label), tuple(others), helps=helps))


class Failed(Exception):
    """The exception for all errors in specs, weights, models, inputs and arguments."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__(*(f"{d.code}: {d.title}" for d in diagnostics))
        self.diagnostics = diagnostics

    def __reduce__(self) -> tuple[type["Failed"], tuple[Diagnostic, ...]]:
        """Pickle the diagnostics, not the messages in `args`."""
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

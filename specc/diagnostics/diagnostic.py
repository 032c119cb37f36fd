"""Source texts, source spans, diagnostics with labels and fixes, and the exception SpeccError."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NoReturn

from specc.diagnostics.immutable_dataclass import immutable_dataclass


@dataclass(frozen=True, eq=False)
class Source:
    """A source text. `name` is the path that the user passed, or a placeholder."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def _line_starts(self) -> list[int]:
        """The offset of the first character of each line."""
        return [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]

    def get_line_and_column(self, offset: int) -> tuple[int, int]:
        """Return the 1-based line and column of the character at an offset."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def get_line_text(self, number: int) -> str:
        """Return the text of line `number` (1-based), without its line end."""
        start = self._line_starts[number - 1]
        end = self._line_starts[number] - 1 if number < len(self._line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r")


@immutable_dataclass
class Span:
    """A range of characters in `source`, from offset `start` to offset `end` (exclusive).

    `caller` is the span of the user's call, if the diagnostic's span is in the standard library.
    `normalizer` is the name of the normalizer that was being evaluated, or "".
    """

    source: Source
    start: int
    end: int
    caller: "Span | None" = None
    normalizer: str = ""

    @property
    def text(self) -> str:
        """The source text of the span."""
        return self.source.text[self.start : self.end]

    @property
    def line(self) -> int:
        """The 1-based line of the first character."""
        return self.source.get_line_and_column(self.start)[0]

    @property
    def column(self) -> int:
        """The 1-based column of the first character."""
        return self.source.get_line_and_column(self.start)[1]

    def extend_to(self, other: "Span") -> "Span":
        """Return the span from the start of this span to the end of `other`, in the same source."""
        return replace(self, end=max(self.end, other.end))

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"


@immutable_dataclass
class Origin:
    """The source location of an IR value, with a description for messages."""

    span: Span | None
    text: str = ""


Severity = Literal["error", "warning"]


@immutable_dataclass
class Label:
    """A source span with a message."""

    span: Span
    text: str = ""

    @classmethod
    def from_span(cls, span: Span | None, text: str) -> "Label | None":
        """Return a label with `text` at a span, or None if `span` is None."""
        return cls(span, text) if span else None

    @classmethod
    def tuple_from_span(cls, span: Span | None, text: str) -> "tuple[Label, ...]":
        """Return a tuple with one label at a span, or an empty tuple if `span` is None."""
        return (cls(span, text),) if span else ()


@immutable_dataclass
class Fix:
    """A machine-applicable fix: a replacement for the text of `span`."""

    span: Span
    text: str


@immutable_dataclass
class Diagnostic:
    """An error or warning with its locations.

    `title` is the message, `primary` labels the error location, and `related_labels` label related
    locations. For an error in the standard library, the primary label is the call in the user's
    spec. `notes` state additional facts, and `helps` suggest fixes, with code where possible.
    `count` is the number of identical diagnostics that were merged into this one, and
    `related_locations` are the locations of similar merged diagnostics.
    """

    code: str
    title: str
    primary: Label | None = None
    related_labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    severity: Severity = "error"
    count: int = 1
    related_locations: tuple[Span, ...] = ()

    @property
    def labels(self) -> tuple[Label, ...]:
        """The primary label, if any, followed by the related labels."""
        return (*((self.primary,) if self.primary else ()), *self.related_labels)

    def __post_init__(self) -> None:
        """Make the label at the user's call primary, and make the label in std a related label."""
        if self.primary is None or self.primary.span.caller is None:
            return
        span, text = self.primary.span, self.primary.text
        call_site = Label(self.primary.span.caller, text or "called here")
        library_label = Label(replace(span, caller=None), "in the called block")
        other_labels = (o for o in self.related_labels if o.span != call_site.span)
        object.__setattr__(self, "primary", call_site)
        object.__setattr__(self, "related_labels", (library_label, *other_labels))


def merge_duplicate_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Merge identical diagnostics into the first one, and set its `count`."""
    counts: dict[Diagnostic, int] = {}
    for diagnostic in diagnostics:
        unique = replace(diagnostic, count=1)
        counts[unique] = counts.get(unique, 0) + diagnostic.count
    return [replace(unique, count=count) for unique, count in counts.items()]


@dataclass
class ErrorCollector:
    """Base class of parsers and checkers, which collect diagnostics in `errors`."""

    errors: list[Diagnostic] = field(default_factory=list, init=False)

    def add_errors(self, *errors: Diagnostic) -> None:
        """Add diagnostics to `errors` without raising an exception."""
        self.errors.extend(errors)

    def report_error(
        self,
        code: str,
        title: str,
        span: Span,
        label: str,
        *helps: str,
        related_labels: Iterable[Label] = (),
    ) -> None:
        """Add one error to `errors` without raising an exception."""
        self.add_errors(
            Diagnostic(code, title, Label(span, label), tuple(related_labels), helps=helps)
        )


class SpeccError(Exception):
    """An exception for errors in specs, weights, models and inputs. `diagnostics` contains the
    errors.
    """

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__(*(f"{d.code}: {d.title}" for d in diagnostics))
        self.diagnostics = diagnostics

    def __reduce__(self) -> tuple[type["SpeccError"], tuple[Diagnostic, ...]]:
        """Include the diagnostics in the pickled exception, because `args` has only messages."""
        return type(self), self.diagnostics

    def __str__(self) -> str:
        """Return the text that the command line prints for the diagnostics."""
        # import the renderer here, because the renderer imports this module
        from specc.diagnostics.render import render_diagnostics

        return render_diagnostics(self.diagnostics).rstrip("\n")


def raise_error(
    code: str,
    title: str,
    span: Span | None = None,
    label: str = "",
    *,
    related_labels: Iterable[Label] = (),
    notes: Iterable[str] = (),
    helps: Iterable[str] = (),
) -> NoReturn:
    """Raise `SpeccError` with one error."""
    primary = Label(span, label) if span else None
    raise SpeccError(
        Diagnostic(code, title, primary, tuple(related_labels), tuple(notes), tuple(helps))
    )

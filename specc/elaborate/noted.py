"""What the names of a text stand for, written down while the work goes on.

Editors show it beside the text. Nobody else asks, and then nothing is kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from specc.elaborate.values import POISON, Evaluated, describe, first
from specc.ir.dim import Dim
from specc.text.source import Span

MOST_AT_A_PLACE = 4
"""Different values of one name that are kept: a block may be called with many shapes."""


@dataclass
class Reading:
    """One elaboration: what stood at each place, in the order in which it was met.

    `whole` says that nothing was wrong with the spec.
    """

    symbolic: bool
    at: dict[Span, list[str]] = field(default_factory=dict)
    whole: bool = False

    def note(self, span: Span, value: Evaluated) -> None:
        """Keep what a name or a call stands for here."""
        said = _said(value)
        known = self.at.setdefault(span, [])
        if said not in known and len(known) < MOST_AT_A_PLACE:
            known.append(said)


def _said(value: Evaluated) -> str:
    """A value in a few words; a length by its formula."""
    one = first(value)
    return str(one) if isinstance(one, Dim) else describe(value)


@dataclass
class Notes:
    """Every elaboration of one check."""

    readings: list[Reading] = field(default_factory=list)


NOTES: ContextVar[Notes | None] = ContextVar("notes", default=None)


@contextmanager
def reading(*, symbolic: bool) -> Iterator[None]:
    """While a spec is elaborated once."""
    notes = NOTES.get()
    if notes is None:
        yield
        return
    notes.readings.append(Reading(symbolic))
    yield
    notes.readings[-1].whole = True


def note(span: Span | None, value: Evaluated) -> None:
    """Keep what stands at a place of the text, where somebody wants to know."""
    notes = NOTES.get()
    if notes is None or span is None or value is POISON:
        return
    if notes.readings:
        notes.readings[-1].note(span, value)

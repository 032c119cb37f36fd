"""Record which value each name of a text has, for hovers in editors."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from specc.diagnostics.source import Span
from specc.frontend.spec_values import POISON, EvalResult, describe_value, take_first_result
from specc.ir.dim import Dim

MAX_VALUES_PER_SPAN = 4
"""Different values of one name that are kept: a block may be called with many shapes."""


@dataclass
class ElaborationRecord:
    """One elaboration: what stood at each place, in the order in which it was met.

    `whole` says that nothing was wrong with the spec.
    """

    symbolic: bool
    at: dict[Span, list[str]] = field(default_factory=dict)
    whole: bool = False

    def note(self, span: Span, value: EvalResult) -> None:
        """Keep what a name or a call stands for here."""
        said = _summarize_value(value)
        known = self.at.setdefault(span, [])
        if said not in known and len(known) < MAX_VALUES_PER_SPAN:
            known.append(said)


def _summarize_value(value: EvalResult) -> str:
    """A value in a few words; a length by its formula."""
    one = take_first_result(value)
    return str(one) if isinstance(one, Dim) else describe_value(value)


@dataclass
class RecordedValues:
    """Every elaboration of one check."""

    readings: list[ElaborationRecord] = field(default_factory=list)


RECORDED_VALUES: ContextVar[RecordedValues | None] = ContextVar("notes", default=None)


@contextmanager
def record_elaboration(*, symbolic: bool) -> Iterator[None]:
    """While a spec is elaborated once."""
    notes = RECORDED_VALUES.get()
    if notes is None:
        yield
        return
    notes.readings.append(ElaborationRecord(symbolic))
    yield
    notes.readings[-1].whole = True


def record_value(span: Span | None, value: EvalResult) -> None:
    """Keep what stands at a place of the text, where somebody wants to know."""
    notes = RECORDED_VALUES.get()
    if notes is None or span is None or value is POISON:
        return
    if notes.readings:
        notes.readings[-1].note(span, value)

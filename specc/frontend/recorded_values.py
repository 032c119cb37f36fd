"""Record the value of each name in the source, for hovers in editors."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from specc.diagnostics.source import Span
from specc.frontend.spec_values import POISON, EvalResult, describe_value, take_first_result
from specc.ir.dim import Dim

MAX_VALUES_PER_SPAN = 4
"""How many different values of one name are kept: a block may be called with many shapes."""


@dataclass
class ElaborationRecord:
    """The values met in one elaboration, by span and in order. `whole` is true if it had no
    errors.
    """

    symbolic: bool
    at: dict[Span, list[str]] = field(default_factory=dict)
    whole: bool = False

    def note(self, span: Span, value: EvalResult) -> None:
        """Record the value of a name or a call."""
        said = _summarize_value(value)
        known = self.at.setdefault(span, [])
        if said not in known and len(known) < MAX_VALUES_PER_SPAN:
            known.append(said)


def _summarize_value(value: EvalResult) -> str:
    """Return a short description of a value; of a length its formula."""
    one = take_first_result(value)
    return str(one) if isinstance(one, Dim) else describe_value(value)


@dataclass
class RecordedValues:
    """All elaborations of one check."""

    readings: list[ElaborationRecord] = field(default_factory=list)


RECORDED_VALUES: ContextVar[RecordedValues | None] = ContextVar("notes", default=None)


@contextmanager
def record_elaboration(*, symbolic: bool) -> Iterator[None]:
    """Record one elaboration of a spec, if values are being recorded."""
    notes = RECORDED_VALUES.get()
    if notes is None:
        yield
        return
    notes.readings.append(ElaborationRecord(symbolic))
    yield
    notes.readings[-1].whole = True


def record_value(span: Span | None, value: EvalResult) -> None:
    """Record the value at a span, if values are being recorded."""
    notes = RECORDED_VALUES.get()
    if notes is None or span is None or value is POISON:
        return
    if notes.readings:
        notes.readings[-1].note(span, value)

"""State of an elaboration besides its graph: errors, symbols, resource use, weights, facts; and
the values of names that it records for hovers in editors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from specc.diagnostics.diagnostic import Diagnostic
from specc.diagnostics.source import Span
from specc.frontend.spec_values import POISON, EvalResult, Tensor, describe_value, take_first_result
from specc.frontend.step_budget import StepBudget
from specc.frontend.weight_sharing import ExpertStack, WeightSharing
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.syntax import ast


@dataclass(kw_only=True, slots=True)
class ErrorLog:
    """Diagnostics so far, and how spans are reported.

    `dropped` counts errors beyond the limit. `caller` is the user's text whose call is being
    evaluated in the standard library, `normalizer` the name of the normalizer whose weights are
    being computed; both are added to the spans of errors (`Context.at`).
    """

    diagnostics: list[Diagnostic] = field(default_factory=list)
    dropped: int = 0
    user_call: Span | None = None
    normalizer: str = ""


@dataclass(kw_only=True, slots=True)
class LengthSymbols:
    """Symbols of lengths and their origins.

    With `symbolic` config values are symbols, too; `runtime` are the symbols that only an input
    determines. `opaque` names integers computed from config symbols, such as `int(0.25 * d)`.
    `max_length` is the `--context-length` that rotary frequencies depend on, or 0.
    """

    is_symbolic: bool = False
    runtime: frozenset[str] = frozenset()
    computed_names: dict[Value, str] = field(default_factory=dict)
    max_length: int = 0


@dataclass(kw_only=True, slots=True)
class ResourceUse:
    """Counts of an elaboration, for the limits E0216 and E0223.

    `weight_sizes` are the elements of each weight of known size, `weights` their sum,
    `list_items` the items of all lists, `steps` the work done.
    """

    weight_sizes: dict[str, int] = field(default_factory=dict)
    weight_elements: int = 0
    list_items: int = 0
    steps: StepBudget = field(default_factory=StepBudget)


@dataclass(kw_only=True, slots=True)
class WeightNames:
    """Names and sharing of weights.

    `placeholders` are parsed placeholders of weight paths, `sharing` which call uses which weight,
    `expert_stacks` the experts whose block is being elaborated, the innermost last.
    """

    placeholders: dict[str, ast.Expr] = field(default_factory=dict)
    sharing: WeightSharing = field(default_factory=WeightSharing)
    expert_stacks: list[ExpertStack] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class ValueFacts:
    """Facts about values under construction.

    `constant` are values that follow from the spec alone, whatever inputs and weights are.
    `position_ids` are those made for masks, by role and the lengths of queries and keys.
    `reordered` are lengths along which positions were sorted, so that they may be ranks.
    """

    constant_values: set[Value] = field(default_factory=set)
    position_ids: dict[tuple[str, Dim | None, Dim], Tensor] = field(default_factory=dict)
    sorted_lengths: set[Dim] = field(default_factory=set)


MAX_VALUES_PER_SPAN = 4
"""Number of values cached per name: a block may be called with many shapes."""


@dataclass
class ElaborationRecord:
    """The values met in one elaboration, by span and in order. `whole` is true if it had no
    errors.
    """

    is_symbolic: bool
    values_by_span: dict[Span, list[str]] = field(default_factory=dict)
    is_complete: bool = False

    def record(self, span: Span, value: EvalResult) -> None:
        """Record the value of a name or a call."""
        said = _summarize_value(value)
        known = self.values_by_span.setdefault(span, [])
        if said not in known and len(known) < MAX_VALUES_PER_SPAN:
            known.append(said)


def _summarize_value(value: EvalResult) -> str:
    """Return a short description of a value; of a length its formula."""
    one = take_first_result(value)
    return str(one) if isinstance(one, Dim) else describe_value(value)


@dataclass
class RecordedValues:
    """All elaborations of one check."""

    elaborations: list[ElaborationRecord] = field(default_factory=list)


RECORDED_VALUES: ContextVar[RecordedValues | None] = ContextVar("notes", default=None)


@contextmanager
def record_elaboration(*, symbolic: bool) -> Iterator[None]:
    """Record one elaboration of a spec, if values are being recorded."""
    notes = RECORDED_VALUES.get()
    if notes is None:
        yield
        return
    notes.elaborations.append(ElaborationRecord(symbolic))
    yield
    notes.elaborations[-1].is_complete = True


def record_value(span: Span | None, value: EvalResult) -> None:
    """Record the value at a span, if values are being recorded."""
    notes = RECORDED_VALUES.get()
    if notes is None or span is None or value is POISON:
        return
    if notes.elaborations:
        notes.elaborations[-1].record(span, value)

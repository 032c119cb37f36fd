"""The parts of an elaboration's state, and limits on steps and recursion (E0223, E0110)."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from sys import _getframe, getrecursionlimit, setrecursionlimit
from threading import Lock

from specc.diagnostics.diagnostic import Diagnostic, Span, raise_error
from specc.frontend.spec_values import (
    ERROR_VALUE,
    EvalResult,
    Record,
    SpecValue,
    Tensor,
    describe_value,
    get_first_result,
)
from specc.frontend.weight_paths_and_sharing import ExpertWeights, WeightSharingTracker
from specc.ir.dim import Dim
from specc.ir.graph import Value
from specc.syntax import ast

BUDGET_EXCEEDED = "E0223"
MAX_STEPS = 600_000
"""The maximum number of elaboration steps of a spec (E0223). The limit applies to all symbolic
trials of one `check` together.
"""

EXPANSION_COST = 10
"""The number of steps that expanding a definition costs, excluding the steps of its body."""

OPERATION_COST = 3
"""The number of steps that an arithmetic operation costs, excluding the steps of its operands."""

MAX_CONSTANT_ELEMENTS = 1 << 26
"""The maximum number of elements of a compile-time constant tensor, such as a mask of 8192 × 8192
(E0224)."""

EXTRA_FRAMES = 8000
"""The number of Python stack frames that 64 nested blocks with 64-level expressions need."""


@dataclass
class StepBudget:
    """A counter of elaboration steps with the limit `MAX_STEPS`."""

    spent: int = 0

    def has_steps_left(self, count: int) -> bool:
        """Return True if the limit allows `count` more steps."""
        return self.spent + count <= MAX_STEPS

    def check_estimate(self, count: int, span: Span | None) -> None:
        """Raise E0223 if the estimated number of steps `count` exceeds the remaining steps."""
        if not self.has_steps_left(count):
            self.consume_steps(count, span, "this exceeds the limit")

    def consume_steps(
        self, count: int, span: Span | None, label: str = "the limit is exceeded here"
    ) -> None:
        """Count steps before they are executed. Raise E0223 if the total exceeds the limit."""
        self.spent += count
        if self.spent > MAX_STEPS:
            raise_error(
                BUDGET_EXCEEDED,
                f"this spec takes more than {MAX_STEPS} elaboration steps",
                span,
                label,
                notes=[
                    "the number of evaluations grows exponentially if each definition uses "
                    "another one twice"
                ],
                helps=[
                    "use fewer iterations of nested `repeat`, or bind repeated expressions "
                    "to a name"
                ],
            )


def count_value_items(value: SpecValue, limit: int) -> int:
    """Count the items of a list or record, including nested items, up to `limit`."""
    item_count = 0
    iterators: list[Iterator[SpecValue]] = [iter((value,))]
    while iterators and item_count <= limit:
        # count in chunks, so that counting a list of millions of items stops soon after the limit
        items = list(islice(iterators[-1], 1000))
        if not items:
            iterators.pop()
            continue
        item_count += len(items)
        for item in items:
            if isinstance(item, tuple):
                iterators.append(iter(item))
            elif isinstance(item, Record):
                iterators.append(iter(item.fields.values()))
    return item_count


class _RecursionState:
    """The number of threads that use the extended recursion limit, and the original limit."""

    lock = Lock()
    thread_count = 0
    default_limit = 0


@contextmanager
def extend_recursion_limit(span: Span | None = None) -> Iterator[None]:
    """Extend the recursion limit in a `with` block. Raise E0110 if the extended limit is
    exceeded.
    """
    with _RecursionState.lock:
        # the first thread extends the global recursion limit, and the last thread restores it
        if not _RecursionState.thread_count:
            _RecursionState.default_limit = getrecursionlimit()
        _RecursionState.thread_count += 1
        setrecursionlimit(max(getrecursionlimit(), _count_frames() + EXTRA_FRAMES))
    try:
        yield
    except RecursionError:
        raise_error("E0110", "the blocks and expressions of this spec are nested too deeply", span)
    finally:
        with _RecursionState.lock:
            _RecursionState.thread_count -= 1
            # Python rejects a limit below the current depth
            if not _RecursionState.thread_count and _count_frames() < _RecursionState.default_limit:
                setrecursionlimit(_RecursionState.default_limit)


def _count_frames() -> int:
    """Return the current depth of the Python stack."""
    count, frame = 0, _getframe().f_back
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count


@dataclass(kw_only=True, slots=True)
class ErrorLog:
    """The reported errors, and the context that is added to the spans of new errors.

    `dropped_count` is the number of errors beyond the limit. `user_call` is the span of the user's
    call that led to the std code under evaluation, and `normalizer` is the name of the normalizer
    whose weights are being computed. `ElaborationContext.add_call_site_to_span` adds `user_call`
    and `normalizer` to spans.
    """

    diagnostics: list[Diagnostic] = field(default_factory=list)
    dropped_count: int = 0
    user_call: Span | None = None
    normalizer: str = ""


@dataclass(kw_only=True, slots=True)
class SymbolicDims:
    """The symbolic dimensions of an elaboration.

    With `is_symbolic`, config values are symbols, too. `dynamic_names` are the symbols that are
    known only at run time. `computed_names` maps integers computed from config symbols, such as
    `int(0.25 * d)`, to the names of their symbols. `max_length` is the value of `--context-length`
    on which RoPE frequencies depend, or 0.
    """

    is_symbolic: bool = False
    dynamic_names: frozenset[str] = frozenset()
    computed_names: dict[Value, str] = field(default_factory=dict)
    max_length: int = 0


@dataclass(kw_only=True, slots=True)
class ResourceCounters:
    """The resources that an elaboration uses, for the limits E0216, E0223 and E0308.

    `weight_sizes` contains the element counts of the weights of known size, and
    `weight_element_count` is their sum. `list_items` is the number of items of all lists, and
    `steps` counts elaboration steps.
    """

    weight_sizes: dict[str, int] = field(default_factory=dict)
    weight_element_count: int = 0
    list_items: int = 0
    steps: StepBudget = field(default_factory=StepBudget)


@dataclass(kw_only=True, slots=True)
class WeightPathState:
    """The state that weight paths and weight sharing need.

    `placeholders` contains the parsed placeholders of weight paths, keyed by the span of the string
    and the text of the placeholder. `sharing` records which call uses which weight. `expert_stacks`
    contains the experts whose block is being elaborated, the innermost last.
    """

    placeholders: dict[tuple[Span | None, str], ast.Expr] = field(default_factory=dict)
    sharing: WeightSharingTracker = field(default_factory=WeightSharingTracker)
    expert_stacks: list[ExpertWeights] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class ValueFacts:
    """The facts about values of the graph under construction.

    `constant_values` contains values that depend neither on inputs nor on weights. `position_ids`
    contains the position ids of masks, keyed by role and by the numbers of queries and keys.
    `sorted_lengths` contains the sizes of sorted axes, whose position ids may be sort indices.
    """

    constant_values: set[Value] = field(default_factory=set)
    position_ids: dict[tuple[str, Dim | None, Dim], Tensor] = field(default_factory=dict)
    sorted_lengths: set[Dim] = field(default_factory=set)


MAX_VALUES_PER_SPAN = 4
"""The maximum number of recorded values per name. A block may be called with many shapes."""


@dataclass
class ElaborationRecord:
    """The values of names and calls by span. `is_complete` is True if there are no errors."""

    is_symbolic: bool
    values_by_span: dict[Span, list[str]] = field(default_factory=dict)
    is_complete: bool = False

    def add_value(self, span: Span, value: EvalResult) -> None:
        """Record a value of the name or call at `span`, up to `MAX_VALUES_PER_SPAN` values."""
        first_value = get_first_result(value)
        # a dimension is recorded as its symbolic expression
        text = str(first_value) if isinstance(first_value, Dim) else describe_value(value)
        texts = self.values_by_span.setdefault(span, [])
        if text not in texts and len(texts) < MAX_VALUES_PER_SPAN:
            texts.append(text)


RECORDED_VALUES: ContextVar[list[ElaborationRecord] | None] = ContextVar("records", default=None)
"""The records of all elaborations in the current check, or None if recording is disabled."""


@contextmanager
def record_elaboration(*, is_symbolic: bool) -> Iterator[None]:
    """Record the values of an elaboration in a `with` block, if recording is enabled."""
    records = RECORDED_VALUES.get()
    if records is None:
        yield
        return
    records.append(ElaborationRecord(is_symbolic))
    yield
    records[-1].is_complete = True


def record_value(span: Span | None, value: EvalResult) -> None:
    """Record `value` for the name or call at `span`, if recording is enabled."""
    records = RECORDED_VALUES.get()
    if records and span is not None and value is not ERROR_VALUE:
        records[-1].add_value(span, value)

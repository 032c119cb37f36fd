"""Limits on steps and recursion (E0223, E0110), and the errors that an elaboration reports."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from sys import _getframe, getrecursionlimit, setrecursionlimit
from threading import Lock

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError, raise_error
from specc.frontend.spec_values import AlreadyReportedError, Record, SpecValue

MAX_ERRORS = 20
BUDGET_EXCEEDED = "E0223"
MAX_STEPS = 600_000
"""The maximum number of elaboration steps of a spec (E0223). The limit applies to all symbolic
trials of one `check` together.
"""

EXPANSION_COST = 10
"""The number of steps for expanding a definition, excluding the steps of its body."""

OPERATION_COST = 3
"""The number of steps for an arithmetic operation, excluding the steps of its operands."""

MAX_CONSTANT_ELEMENTS = 1 << 26
"""The maximum number of elements of a compile-time constant tensor, such as a mask of 8192 × 8192
(E0224)."""

EXTRA_FRAMES = 8000
"""The number of Python stack frames that 64 nested blocks with expressions of depth 64 need."""


@dataclass
class StepBudget:
    """A counter of elaboration steps with the limit `MAX_STEPS`."""

    spent: int = 0

    def has_steps_left(self, count: int) -> bool:
        """Return True if the limit allows `count` more steps."""
        return self.spent + count <= MAX_STEPS

    def check_estimated_steps(self, count: int, span: Span | None) -> None:
        """Raise E0223 if the estimated number of steps `count` exceeds the remaining steps."""
        if not self.has_steps_left(count):
            self.consume_steps(count, span, "this exceeds the limit")

    def consume_steps(
        self, count: int, span: Span | None, label: str = "the limit is exceeded here"
    ) -> None:
        """Count steps before the steps are executed. Raise E0223 if the total exceeds the limit."""
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


def count_nested_items(value: SpecValue, limit: int) -> int:
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
    """Return a context manager that extends the recursion limit, and raises E0110 if the extended
    limit is exceeded.
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
    whose weights are being computed. `add_call_site_to_span` adds `user_call` and `normalizer` to
    spans.
    """

    diagnostics: list[Diagnostic] = field(default_factory=list)
    dropped_count: int = 0
    user_call: Span | None = None
    normalizer: str = ""

    @contextmanager
    def track_user_call(self, span: Span | None, *, is_standard: bool) -> Iterator[None]:
        """Return a context manager that records a call at `span`. Errors in a block of std
        (`is_standard`) are shown at the user's call that led to the block.
        """
        outer_call = self.user_call
        self.user_call = (outer_call or span) if is_standard else None
        try:
            yield
        except SpeccError as failed:
            raise SpeccError(*map(self.relocate_error_to_user_call, failed.diagnostics)) from None
        finally:
            self.user_call = outer_call

    def add_call_site_to_span(self, span: Span | None) -> Span | None:
        """If the span is in std, add the user's call to it, and add the current normalizer."""
        if span is None:
            return span
        if self.normalizer and not span.normalizer:
            span = replace(span, normalizer=self.normalizer)
        if self.user_call is None or span.source is self.user_call.source:
            return span
        return span if span.caller else replace(span, caller=self.user_call)

    def relocate_error_to_user_call(self, error: Diagnostic) -> Diagnostic:
        """Move the location of an error in std to the user's call that led to the error."""
        span = self.add_call_site_to_span(error.primary.span) if error.primary else None
        if error.primary is None or span is None or span == error.primary.span:
            return error
        return replace(error, primary=Label(span, error.primary.text))

    def report_errors(self, *errors: Diagnostic) -> None:
        """Record errors, up to a limit. Errors that recur in loop iterations are recorded once."""
        for error in map(self.relocate_error_to_user_call, errors):
            if self._is_reported(error):
                continue
            if len(self.diagnostics) >= MAX_ERRORS:
                self.dropped_count += 1
            else:
                self.diagnostics.append(error)

    def _is_reported(self, error: Diagnostic) -> bool:
        """Return True if an error with the same code and location has already been reported.
        Messages that differ only in numbers are considered equal. An exceeded step limit is
        reported only once.
        """
        if error.primary is None:
            return False
        spans = [d.primary.span for d in self.diagnostics if d.code == error.code and d.primary]
        return error.primary.span in spans or (bool(spans) and error.code == BUDGET_EXCEEDED)

    def raise_reported_errors(self) -> None:
        """Raise all recorded errors, and state the number of errors beyond the limit."""
        if self.diagnostics:
            overflow_note = Diagnostic("E0100", f"{self.dropped_count} more errors are not shown")
            raise SpeccError(*self.diagnostics, *([overflow_note] if self.dropped_count else []))

    def collect_errors(self) -> "ErrorCollectorContext":
        """Return a context manager that reports errors in its block instead of raising them."""
        return ErrorCollectorContext(self)


@dataclass
class ErrorCollectorContext:
    """A context manager that collects errors. Errors are also reported to `log`, if any."""

    log: ErrorLog | None = None
    errors: list[Diagnostic] = field(default_factory=list)
    has_reported_errors: bool = False

    def __enter__(self) -> None:
        """Start to collect the errors of a `with` block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        diagnostics = error.diagnostics if isinstance(error, SpeccError) else ()
        if self.log is not None:
            self.log.report_errors(*diagnostics)
        self.errors += diagnostics
        self.has_reported_errors |= isinstance(error, AlreadyReportedError)
        return isinstance(error, SpeccError | AlreadyReportedError)

    def raise_collected_errors(self) -> None:
        """Raise all collected errors, or AlreadyReportedError if all have already been reported."""
        if self.errors:
            raise SpeccError(*self.errors)
        if self.has_reported_errors:
            raise AlreadyReportedError

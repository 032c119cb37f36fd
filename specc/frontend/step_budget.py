"""Limit the work and the recursion depth of elaborating a spec (E0223, E0110)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from sys import _getframe, getrecursionlimit, setrecursionlimit
from threading import Lock

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Span
from specc.frontend.spec_values import Record, SpecValue

BUDGET_EXCEEDED = "E0223"
MAX_STEPS = 600_000
"""Maximum number of elaboration steps of a spec; the symbolic readings of `check` share one budget
(E0223)."""

EXPANSION_COST = 10
"""Steps for expanding a definition, in addition to its content."""

OPERATION_COST = 3
"""Steps for one arithmetic operation, in addition to its operands."""

MAX_CONSTANT_ELEMENTS = 1 << 26
"""Maximum number of elements of a compile-time constant tensor, such as a mask of 8192 × 8192
(E0224)."""

EXTRA_FRAMES = 8000
"""Python stack frames for elaboration: 64 nested blocks, each with expressions 64 levels deep."""


@dataclass
class StepBudget:
    """The number of elaboration steps, checked against a limit."""

    spent: int = 0

    def has_left(self, count: int) -> bool:
        """Return whether `count` more steps are within the limit."""
        return self.spent + count <= MAX_STEPS

    def check_estimate(self, count: int, span: Span | None) -> None:
        """Raise E0223 if the expected steps exceed the limit."""
        if not self.has_left(count):
            self.spend(count, span, "this exceeds the limit")

    def spend(
        self, count: int, span: Span | None, label: str = "the limit is exceeded here"
    ) -> None:
        """Count steps that are about to be done. E0223 past the limit."""
        self.spent += count
        if self.spent > MAX_STEPS:
            raise_error(
                BUDGET_EXCEEDED,
                f"this spec takes more than {MAX_STEPS} elaboration steps",
                span,
                label,
                notes=["if each definition uses another one twice, evaluations double per level"],
                helps=[
                    "use fewer iterations of nested `repeat`, or bind repeated expressions "
                    "to a name"
                ],
            )


def count_nested_items(value: SpecValue, limit: int) -> int:
    """Count the items of a list or record, with those of nested lists
    up to `limit`.
    """
    counted = 0
    rest: list[Iterator[SpecValue]] = [iter((value,))]
    while rest and counted <= limit:
        # in chunks: a list of millions is not traversed if thousands exceed the budget
        items = list(islice(rest[-1], 1000))
        if not items:
            rest.pop()
            continue
        counted += len(items)
        for item in items:
            if isinstance(item, tuple):
                rest.append(iter(item))
            elif isinstance(item, Record):
                rest.append(iter(item.fields.values()))
    return counted


class _RecursionState:
    """The number of threads that need the raised recursion limit, and the usual limit."""

    lock = Lock()
    thread_count = 0
    default_limit = 0


@contextmanager
def extend_recursion_limit(span: Span | None = None) -> Iterator[None]:
    """Raise the recursion limit by `EXTRA_FRAMES` frames while the block runs. E0110
    if that is not enough.
    """
    with _RecursionState.lock:
        # the recursion limit is global: the first user raises it, the last restores it
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
            # Python refuses a limit below the current depth
            if not _RecursionState.thread_count and _count_frames() < _RecursionState.default_limit:
                setrecursionlimit(_RecursionState.default_limit)


def _count_frames() -> int:
    """Return the current depth of the Python stack."""
    count, frame = 0, _getframe().f_back
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count

"""`Scan`, the only run-time loop."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.ir.types import ShapeError, Type

if TYPE_CHECKING:
    from specc.ir.graph import Graph, Node, Value

__all__ = ["Loop", "Scan"]

T = TypeVar("T")


@dataclass(frozen=True)
class Loop(Generic[T]):
    """Operands of a loop, or facts about them, by role.

    `keep` is the padding mask, `rows` are scanned, `starts` are the initial carries, `captured` is
    loop-invariant.
    """

    keep: T | None
    scanned: tuple[T, ...]
    initial_carries: tuple[T, ...]
    captured: tuple[T, ...]

    @property
    def stacked(self) -> tuple[T, ...]:
        """Operands that an iteration reads a slice of by index: none, unlike those of experts."""
        return ()

    @property
    def body_operands(self) -> tuple[T, ...]:
        """The body's operands, in the order of its inputs."""
        return *self.scanned, *self.initial_carries, *self.captured


class Scan(Op, sig="a[*s]... -> a[*t]", heavy=True):
    """A loop over one axis, with loop-carried values.

    Operands: `keep` if `masked` (bool [b, t]), the scanned tensors (the loop runs along their
    axis `axis`), the initial carries, then captured values. Inputs of the body: the current
    slice of each scanned tensor, the carries and the captures; its outputs are the next
    carries, then the collected values. Results: the final carries, then the collected values
    stacked along axis `axis`. Where `keep` is false the carries are unchanged and the collected
    values zero. `reverse` starts at the last position. If `until` is not -1, the carry with
    that index is boolean, and the loop ends as soon as all its elements are true, also before
    the first iteration; collected values of the remaining iterations are zero. The body keeps
    carries and collects zeros for elements where that carry is true, so that no result depends
    on the number of iterations. The last `lasting` collected values are computed in every
    iteration, from unchanged carries: later positions look back at them.
    """

    body: "Graph"
    scanned: int
    carries: int
    axis: int
    reverse: bool = False
    masked: bool = False
    until: int = -1
    lasting: int = 0

    @property
    def first_body_operand(self) -> int:
        """The index of the first operand of the body: `keep` stays outside."""
        return 1 if self.masked else 0

    def split_operands(self, given: Sequence[T]) -> Loop[T]:
        """Split a per-operand list by role."""
        rows_end = self.first_body_operand + self.scanned
        starts_end = rows_end + self.carries
        return Loop(
            given[0] if self.masked else None,
            tuple(given[self.first_body_operand : rows_end]),
            tuple(given[rows_end:starts_end]),
            tuple(given[starts_end:]),
        )

    def split_body_inputs(self) -> "Loop[Value]":
        """Return the inputs of the body."""
        inputs = tuple(self.body.inputs.values())
        starts_end = self.scanned + self.carries
        rows, starts = inputs[: self.scanned], inputs[self.scanned : starts_end]
        return Loop(None, rows, starts, inputs[starts_end:])

    def map_captures(self, given: Sequence[T]) -> "dict[Value, T]":
        """Map each captured input of the body to its entry in a per-operand list."""
        captured = self.split_operands(given).captured
        return dict(zip(self.split_body_inputs().captured, captured, strict=True))

    def get_next_carries(self) -> "tuple[Value, ...]":
        """Return the body's outputs for the next carries."""
        return tuple(self.body.outputs.values())[: self.carries]

    def get_collected_outputs(self) -> "tuple[Value, ...]":
        """Return the body's collected outputs."""
        return tuple(self.body.outputs.values())[self.carries :]

    def get_first_scanned(self, node: "Node") -> "Value":
        """Return the first scanned operand; the others have the same length."""
        value = node.args[self.first_body_operand]
        assert value is not None, "a scan has no optional operands"
        return value

    def infer(self, *args: Type | None) -> tuple[Type, ...]:
        types = [a for a in args if a is not None]
        assert len(types) == len(args), "a scan has no optional operands"
        given = self.split_operands(types)
        length = self._find_trip_count(given.scanned)
        inner = [v.type for v in self.body.inputs.values()]
        rows = tuple(remove_axis(r, self.axis) for r in given.scanned)
        outer = replace(given, scanned=rows).body_operands
        for n, (inside, outside) in enumerate(zip(inner, outer, strict=True)):
            if inside != outside:
                title = f"the body expects {inside}, got {outside}"
                raise ShapeError(title, (self.first_body_operand + n,))
        after = [v.type for v in self.body.outputs.values()]
        carried = inner[self.scanned : self.scanned + self.carries]
        for before, now in zip(carried, after, strict=False):
            if before != now:
                raise ShapeError(f"a carried value is {before} before a step and {now} after it")
        self._check_end_condition(carried)
        stacked = (
            Type(t.dtype, (*t.shape[: self.axis], length, *t.shape[self.axis :]))
            for t in after[self.carries :]
        )
        return (*after[: self.carries], *stacked)

    def _check_end_condition(self, carried: Sequence[Type]) -> None:
        """Check that the carry that ends the loop exists and is boolean."""
        rows = len(self.body.outputs) - self.carries
        if not 0 <= self.lasting <= (0 if self.until == -1 else rows):
            raise ShapeError(f"this loop has fewer than {self.lasting} lasting results")
        if self.until == -1:
            return
        if not 0 <= self.until < self.carries:
            raise ShapeError(f"the end condition must be a carry of the loop, not {self.until}")
        if carried[self.until].dtype != "bool":
            raise ShapeError(f"the end condition must be boolean, not {carried[self.until]}")

    def _find_trip_count(self, rows: Sequence[Type]) -> Dim:
        """Return the number of iterations, equal for all scanned operands."""
        length = rows[0].shape[self.axis]
        for n, row in enumerate(rows):
            other = row.shape[self.axis]
            if other != length:
                title = f"scanned lengths {length} and {other} differ"
                places = self.first_body_operand, self.first_body_operand + n
                raise ShapeError(title, places, (length, other))
        return length


def remove_axis(type: Type, axis: int) -> Type:
    """Return the type of one slice along `axis`."""
    return Type(type.dtype, (*type.shape[:axis], *type.shape[axis + 1 :]))

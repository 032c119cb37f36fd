"""The one run-time loop."""

from typing import TYPE_CHECKING

from specc.ir.op import Op
from specc.ir.types import ShapeError, Type

if TYPE_CHECKING:
    from specc.ir.graph import Graph

__all__ = ["Scan"]


class Scan(Op, sig="a[*s]... -> a[*t]", heavy=True):
    """A body applied to the rows of one axis in turn, with values carried from row to row.

    Operands: `keep` if `masked` (bool [b, t]), the scanned tensors (their axis `axis` is the loop's), the
    initial carries, then what the body captures from outside. The body's inputs are a row of each scanned
    tensor, the carries and the captures; its outputs the next carries, then the collected values.
    Results: the final carries, then the collected values stacked along axis `axis`. Where `keep`
    is false the carries stay as they were and the collected row is zero. `reverse` starts at the last row.
    """

    body: "Graph"
    scanned: int
    carries: int
    axis: int
    reverse: bool = False
    masked: bool = False

    def infer(self, *args: Type | None) -> tuple[Type, ...]:
        types = [a for a in args if a is not None]
        assert len(types) == len(args), "a scan has no optional operands"
        first = 1 if self.masked else 0
        rows = types[first : first + self.scanned]
        length = rows[0].shape[self.axis]
        for n, row in enumerate(rows):
            if row.shape[self.axis] != length:
                other = row.shape[self.axis]
                raise ShapeError(f"scanned lengths {length} and {other} differ", (first, first + n), (length, other))
        inner = [v.type for v in self.body.inputs.values()]
        outer = [without(r, self.axis) for r in rows] + types[first + self.scanned :]
        for n, (inside, outside) in enumerate(zip(inner, outer, strict=True)):
            if inside != outside:
                raise ShapeError(f"the body takes {inside} where {outside} is given", (first + n,))
        made = [v.type for v in self.body.outputs.values()]
        for inside, after in zip(inner[self.scanned :], made[: self.carries], strict=False):
            if inside != after:
                raise ShapeError(f"a carried value is {inside} before a step and {after} after it")
        stacked = (Type(t.dtype, (*t.shape[: self.axis], length, *t.shape[self.axis :])) for t in made[self.carries :])
        return (*made[: self.carries], *stacked)


def without(type: Type, axis: int) -> Type:
    """The type of one row of `axis`."""
    return Type(type.dtype, (*type.shape[:axis], *type.shape[axis + 1 :]))

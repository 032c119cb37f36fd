"""Named operands: `Attend.mask(node)` in place of `node.args[3]`.

An op class names those of its operands that passes ask for:

    class Share(Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
        scores, mask = Operand(0), Operand(1)

`Share.mask(node)` is the value, `Share.mask.of(facts)` what a list with one entry an
operand says of it, `Share.mask.place` its number. A test compares places and kinds with
the signature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from specc.ir.graph import Node, Value

T = TypeVar("T")


@dataclass(frozen=True)
class Operand:
    """One that every node has."""

    place: int

    def __call__(self, node: "Node") -> "Value":
        """The value."""
        value = node.args[self.place]
        assert value is not None, f"operand {self.place + 1} of {node.op.name} is given"
        return value

    def of(self, facts: Sequence[T]) -> T:
        """What a list with one entry for each operand holds for this one."""
        return facts[self.place]


@dataclass(frozen=True)
class OptionalOperand:
    """One that a node may lack: it stands as None, or behind the last that is given."""

    place: int

    def __call__(self, node: "Node") -> "Value | None":
        """The value; None where the node lacks it."""
        return self.of(node.args)

    def of(self, facts: Sequence[T | None]) -> T | None:
        """What a list with one entry for each operand holds for this one."""
        return facts[self.place] if self.place < len(facts) else None

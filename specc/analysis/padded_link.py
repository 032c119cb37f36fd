"""One link of a node along a padded axis, with what is known of the operands."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from specc.analysis.padding_facts import PaddingFacts
from specc.ir.dim import Dim
from specc.ir.graph import Node
from specc.ir.op_dependence import Dependence


@dataclass(frozen=True, kw_only=True)
class PaddedRead:
    """One dependence through which a result may read padded positions, with the facts of the
    operands and the side of the padding.

    `apart`: padding separates always-valid positions of the operand, `ends` many before and
    after it; `into_apart`: those of the result. `merged`: the axis is batch and positions in
    one.
    """

    node: Node
    link: Dependence
    given: Sequence[PaddingFacts]
    side: str
    merged: bool = False
    apart: bool = False
    ends: tuple[int | None, int | None] = (0, 0)
    into_apart: bool = False

    @property
    def read_length(self) -> Dim:
        """The length of the axis that is read."""
        operand = self.node.args[self.link.operand]
        assert operand is not None, "a link has an operand"
        return operand.type.shape[self.link.operand_axis]

    @property
    def fill(self) -> float | None:
        """The constant at padded positions and at positions added next to them, or None."""
        return self.read.fill.get(self.link.operand_axis)

    @property
    def read(self) -> PaddingFacts:
        """The facts of the operand that is read."""
        return self.given[self.link.operand]

    @property
    def after(self) -> bool:
        """True if padding comes after all valid positions."""
        return self.side == "right" and not self.apart

    @property
    def may_be_left(self) -> bool:
        """True if padding may come before valid positions."""
        return self.side != "right"

    @property
    def may_be_right(self) -> bool:
        """True if padding may come after valid positions."""
        return self.side != "left"

    @property
    def zero(self) -> bool:
        """True if the operand is zero at padded positions."""
        return self.link.operand_axis in self.read.zero

    @property
    def held(self) -> float | None:
        """The constant at padded positions, or None."""
        return self.read.at_padded(self.link.operand_axis)

    @property
    def finite(self) -> bool:
        """True if the operand is finite at padded positions."""
        if self.held is not None:
            return isfinite(self.held)
        return self.read.finite

    @property
    def shifted(self) -> bool:
        """True if left padding decides which positions a stride selects."""
        return self.link.kind == "strided" and self.link.stride > 1 and self.side != "right"

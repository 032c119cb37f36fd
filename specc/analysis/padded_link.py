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
    """One link through which a result may depend on padded rows, with what is known of
    the operands, and the side on which padding may stand. `apart`: it moves positions
    that always exist apart from others, of what is read, as many as `ends` says before
    and after it; `into_apart`, of the result.
    `merged`: the axis is that of batch and positions as one.
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
        """The number at padded positions and at those added beside them."""
        return self.read.fill.get(self.link.operand_axis)

    @property
    def read(self) -> PaddingFacts:
        """What is known of the operand that is read."""
        return self.given[self.link.operand]

    @property
    def after(self) -> bool:
        """Whether padding stands after all positions that exist."""
        return self.side == "right" and not self.apart

    @property
    def may_be_left(self) -> bool:
        """Whether padding may stand before positions that exist."""
        return self.side != "right"

    @property
    def may_be_right(self) -> bool:
        """Whether padding may stand after positions that exist."""
        return self.side != "left"

    @property
    def zero(self) -> bool:
        """Whether what is read is zero where it is padded."""
        return self.link.operand_axis in self.read.zero

    @property
    def held(self) -> float | None:
        """The number that is read wherever a row is padded, if it is one."""
        return self.read.at_padded(self.link.operand_axis)

    @property
    def finite(self) -> bool:
        """Whether what is read at padded positions is finite."""
        if self.held is not None:
            return isfinite(self.held)
        return self.read.finite

    @property
    def shifted(self) -> bool:
        """Whether padding on the left decides which rows a stride takes."""
        return self.link.kind == "strided" and self.link.stride > 1 and self.side != "right"

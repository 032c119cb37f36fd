"""One result of a node, beside what is known of its operands along a padded axis."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from specc.ir.dim import Dim
from specc.ir.graph import Node, Value
from specc.ir.link import Link
from specc.passes.prove.rows import Rows

Along: TypeAlias = Literal["zero", "low", "floor", "peaks", "repeated"]
"""A fact of `Rows` that is said axis by axis."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One result of a node, and what is known of its operands; `keeps` are its links
    along padded axes, row for row.

    `keep` says which rows exist, `lengths` are those of padded axes, `joined` those of
    axes on which `pad` or `concat` added positions beside them. `after`: padding stands
    after all that exist.
    """

    node: Node
    value: Value
    given: Sequence[Rows]
    keeps: Iterable[Link]
    keep: Value
    lengths: frozenset[Dim]
    joined: frozenset[Dim] = frozenset()
    after: bool = False

    def axes(self) -> set[int]:
        """The padded axes of the result."""
        return {k.result_axis for k in self.keeps if k.result_axis is not None}

    def padded(self) -> set[int]:
        """The axes of the result that are as long as a padded one."""
        shape = self.value.type.shape
        return {n for n, length in enumerate(shape) if length in self.lengths}

    def at(self, what: Along, axis: int) -> list[bool]:
        """The operands of which a fact is known where the result's `axis` is padded."""
        found: list[bool] = []
        for n, rows in enumerate(self.given):
            known: frozenset[int] = getattr(rows, what)
            found.append(any(k.operand_axis in known for k in self._links(n, axis)))
        return found

    def along(self, axis: int) -> list[bool]:
        """The operands that have the axis; others are repeated along it."""
        return [bool(self._links(n, axis)) for n in range(len(self.given))]

    def _links(self, operand: int, axis: int) -> list[Link]:
        return [k for k in self.keeps if k.operand == operand and k.result_axis == axis]

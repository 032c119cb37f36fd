"""How one axis of an operand is read by one result, as a value."""

from dataclasses import dataclass
from typing import Literal

from specc.ir.interval import ALL, Interval

Kind = Literal["same", "window", "strided", "band", "newest", "extent", "all"]


@dataclass(frozen=True, slots=True)
class Gate:
    """Rows are read only where `operand` is not surely false or zero.

    `query` and `key` are axes of that operand; `result_axis` is the axis of the result
    that `query` becomes.
    """

    operand: int
    query: int
    key: int
    result_axis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How axis `operand_axis` of operand `operand` is read by result `result`.

    `same`: row for row. `window`: rows `t - hi` to `t - lo` of `result_axis`.
    `strided`: rows `t · stride - hi` to `t · stride - lo`, and there are not as many in
    the result. `band`: through any one of `gates`, all of which hold; without a gate,
    every row. `newest`: the last row (`hi` > 0: those before it too), and `result_axis`
    is None. `extent`: only how many there are. `all`: every row.
    """

    operand: int
    operand_axis: int
    result: int
    result_axis: int | None
    kind: Kind
    reach: Interval = ALL
    gates: tuple[Gate, ...] = ()
    stride: int = 1

    @property
    def lo(self) -> float:
        """The lowest `t_result - t_operand`; negative where later rows are read."""
        return self.reach.lo

    @property
    def hi(self) -> float:
        """The highest `t_result - t_operand`: how far it looks back."""
        return self.reach.hi


def link_of(
    operand: int,
    axis: int,
    result: int,
    to: int | None,
    kind: Kind,
    reach: Interval = ALL,
) -> Link:
    """A link without gates."""
    return Link(
        operand=operand,
        operand_axis=axis,
        result=result,
        result_axis=to,
        kind=kind,
        reach=reach,
    )

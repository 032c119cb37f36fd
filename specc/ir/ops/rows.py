"""Operations that pick, turn and resample the rows of an axis."""

from specc.ir.dim import Dim, floor
from specc.ir.op import Op
from specc.ir.signature import Axes
from specc.ir.types import ShapeError

__all__ = ["Sort", "Stride", "TopK"]


class Sort(Op, sig="n[*a t~ *b] -> n[*a t *b], i[*a t *b]"):
    """The rows of axis `axis` in ascending order and their numbers; with `descending`
    from the greatest on. Of equals the lower number first.
    """

    axis: int
    descending: bool = False


class TopK(Op, sig="n[*a t~ *b] -> n[*a u *b], i[*a u *b]"):
    """The `k` greatest rows of axis `axis` from the greatest on, and their numbers; of
    equals the lower number first. With `largest` false, the least from the least on.
    """

    axis: int
    k: Dim
    largest: bool = True

    def solve(self, axes: Axes) -> None:
        for length in (self.k, axes.one("t") - self.k):
            if length.number is not None and length.number < 0:
                raise ShapeError(
                    f"{self.k} rows are asked for of an axis of {axes.one('t')}", (0,)
                )
        axes["u"] = (self.k,)


class Stride(Op, sig="a[*a t~ *b] -> a[*a u *b]"):
    """Every `step`-th row of axis `axis`, from row `start` on, up to, not including,
    row `stop`.
    """

    axis: int
    start: Dim
    stop: Dim
    step: Dim

    def solve(self, axes: Axes) -> None:
        length, between = axes.one("t"), self.stop - self.start
        for room in (self.start, between, length - self.stop):
            if room.number is not None and room.number < 0:
                raise ShapeError(
                    f"a slice from {self.start} up to {self.stop} of an axis of {length}",
                    (0,),
                )
        # the last step may go beyond the end
        axes["u"] = (floor(between + self.step - 1, self.step),)

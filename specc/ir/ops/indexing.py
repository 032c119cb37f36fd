"""Ops that select positions of an axis: sort, top-k, slices, index, gather."""

from specc.ir.dim import Dim, floor_divide_dims
from specc.ir.op import Op, Operand
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import ShapeError


class Sort(Op, sig="n[*a t~ *b] -> n[*a t *b], i[*a t *b]", is_selection=True):
    """Sort along axis `axis`. The results are the values in ascending or `descending` order, and
    their indices.

    Equal values are ordered by index.
    """

    axis: int
    descending: bool = False


class TopK(Op, sig="n[*a t~ *b] -> n[*a u *b], i[*a u *b]", is_selection=True):
    """The `k` largest values along axis `axis` in descending order, and their indices.

    Equal values are ordered by index. If `largest` is false, the results are the `k`
    smallest values in ascending order.
    """

    axis: int
    k: Dim
    largest: bool = True

    def infer_result_axes(self, axes: AxisBindings) -> None:
        for length in (self.k, axes["t"] - self.k):
            if length.is_negative:
                raise ShapeError(f"top-{self.k} exceeds the axis length {axes['t']}", (0,))
        axes["u"] = self.k


class StridedSlice(
    Op,
    sig="a[*a t[offset:offset:step_size:u] *b] -> a[*a u *b]",
    is_selection=True,
    spec_name="slice",
):
    """Select every `step`-th position of axis `axis`, from `start` to `stop` (exclusive)."""

    axis: int
    start: Dim
    stop: Dim
    step: Dim

    @property
    def offset(self) -> int:
        """The offset of the position that is read, relative to `t · step` and counted backward."""
        return -(self.start.number or 0)

    @property
    def step_size(self) -> int:
        """The step of the slice as an integer."""
        return self.step.number or 1

    def get_signature(self) -> Signature:
        if self.start.number is None or self.step.number is None:
            return Signature.parse("a[*a t~ *b] -> a[*a u *b]")
        return self.signature

    def infer_result_axes(self, axes: AxisBindings) -> None:
        length, slice_length = axes["t"], self.stop - self.start
        for difference in (self.start, slice_length, length - self.stop):
            if difference.is_negative:
                title = f"a slice from {self.start} to {self.stop} exceeds the axis length {length}"
                raise ShapeError(title, (0,))
        # the last step may extend past the end of the axis
        axes["u"] = floor_divide_dims(slice_length + self.step - 1, self.step)


class Slice(Op, sig="a[*a t *b] -> a[*a u *b]", is_selection=True):
    """Select the positions `start` to `stop` (exclusive) of axis `axis`."""

    axis: int
    start: Dim
    stop: Dim

    def infer_result_axes(self, axes: AxisBindings) -> None:
        length = axes["t"]
        if self.start.is_negative:
            raise ShapeError(f"a slice cannot start at {self.start}", (0,))
        if (length - self.stop).is_negative:
            raise ShapeError(f"a slice up to {self.stop} exceeds the axis length {length}", (0,))
        if (self.stop - self.start).is_negative:
            title = f"a slice from {self.start} up to {self.stop} has a negative length"
            raise ShapeError(title, (0,))
        axes["u"] = self.stop - self.start


class Index(Op, sig="a[*a t *b] -> a[*a *b]", is_selection=True):
    """Select position `index` of axis `axis` and remove the axis."""

    axis: int
    index: Dim

    @property
    def start(self) -> Dim:
        """The start of the equivalent `Slice`."""
        return self.index

    @property
    def stop(self) -> Dim:
        """The end (exclusive) of the equivalent `Slice`."""
        return self.index + 1

    def infer_result_axes(self, axes: AxisBindings) -> None:
        length = axes["t"]
        if self.index.is_negative or (length - self.index - 1).is_negative:
            title = f"index {self.index} is out of range for an axis of length {length}"
            raise ShapeError(title, (0,))


class Last(Op, sig="a[*a t$ *b] -> a[*a *b]", is_selection=True):
    """Select the last position of axis `axis` and remove the axis."""

    axis: int


class Gather(Op, sig="a[*b t~ *d], i[*b u] -> a[*b u *d]", is_selection=True):
    """Gather positions of axis `axis` by index, separately for each index of the leading axes:
    `x[b, ids[b, u]]`.
    """

    table, ids = Operand(0), Operand(1)

    axis: int

    def get_signature(self) -> Signature:
        batch_axes = " ".join(f"b{n}" for n in range(self.axis))
        return Signature.parse(f"a[{batch_axes} t~ *d], i[{batch_axes} u] -> a[{batch_axes} u *d]")

    def count_leading_axes(self) -> int | None:
        return None

"""Ops that select, reorder or resample positions of an axis (sort, top-k, strided slice, roll, pad,
resize, grid sample), and group norm.
"""

from specc.ir.dim import Dim, floor_divide_dims, mod_dims
from specc.ir.op import Op, OptionalOperand
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import ShapeError

PAD_MODES = ("constant", "reflect", "edge")
RESIZE_MODES = ("bilinear", "bicubic", "nearest", "nearest_exact")
GRID_SAMPLE_MODES = ("bilinear", "nearest")
GRID_PADDING_MODES = ("zeros", "border", "reflection")


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
        """The step as an integer."""
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


class Roll(Op, sig="a[*a t~ *b] -> a[*a t *b]", is_selection=True):
    """Rotate axis `axis` by `shift` positions, so that position t of the result is position `(t -
    shift) mod n` of the operand.
    """

    axis: int
    shift: Dim


class Pad(Op, sig="a[*a t~ *b] -> a[*a u *b]"):
    """Pad axis `axis` with `padding_before` and `padding_after` positions.

    `constant` pads with `value`, `edge` repeats the first and last position, and `reflect` mirrors
    the axis without repeating its first and last position.
    """

    axis: int
    padding_before: Dim
    padding_after: Dim
    mode: str = "constant"
    value: float | int | bool = 0

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.mode in PAD_MODES, self.mode
        length = axes["t"]
        if any(d.is_negative for d in self.list_nonnegative_lengths(length)):
            raise ShapeError(
                f"cannot pad an axis of length {length} with {self.padding_before} positions "
                f"before and {self.padding_after} after in mode {self.mode}",
                (0,),
            )
        axes["u"] = self.padding_before + length + self.padding_after

    def list_nonnegative_lengths(self, length: Dim) -> tuple[Dim, ...]:
        """Return the dimensions that must be non-negative to pad an axis of size `length`."""
        ends = self.padding_before, self.padding_after
        if self.mode == "constant" or self.padding_before == 0 == self.padding_after:
            return ends
        if self.mode == "edge":
            return *ends, length - 1
        return *ends, *(length - 1 - end for end in ends)


class Resize(Op, sig="a[*a t~ *b] -> a[*a u *b]"):
    """Resample `len(sizes)` adjacent axes, starting with `axis`, to `sizes`, like PyTorch's
    `interpolate`.

    For n input and m output pixels, `bilinear` and `bicubic` (a = -0.75) place output pixel i at
    input position `(i + 0.5) · n / m - 0.5`, or with `align_corners` at `i · (n - 1) / (m - 1)`.
    `nearest` selects input pixel `⌊i · n / m⌋`, and `nearest_exact` selects input pixel `⌊(i + 0.5)
    · n / m⌋`, computed in float32. `factors` override `m / n`. `antialias` widens the filter
    (triangle, or cubic with a = -0.5) by the downsampling factor, and does not support `factors`.
    """

    axis: int
    sizes: tuple[Dim, ...]
    mode: str
    align_corners: bool = False
    factors: tuple[float, ...] = ()
    antialias: bool = False

    def get_signature(self) -> Signature:
        indices = range(len(self.sizes))
        operand_axes = " ".join(f"t{n}~" for n in indices)
        result_axes = " ".join(f"u{n}" for n in indices)
        return Signature.parse(f"a[*a {operand_axes} *b] -> a[*a {result_axes} *b]")

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.mode in RESIZE_MODES, self.mode
        if self.is_interpolating and axes.dtypes["a"] not in ("f32", "f64", "f16", "bf16"):
            raise ShapeError(
                f"mode {self.mode} cannot interpolate {axes.dtypes['a']}; use nearest", (0,)
            )
        for n, size in enumerate(self.sizes):
            for length in (size, axes[f"t{n}"]):
                if (length - 1).is_negative:
                    raise ShapeError(f"cannot resize an axis of length {length}", (0,))
            axes[f"u{n}"] = size

    @property
    def is_interpolating(self) -> bool:
        """True if `mode` interpolates between pixels."""
        return not self.mode.startswith("nearest")


class GridSample(Op, sig="f[b c h~ w~], f[b *u xy] -> f[b c *u]"):
    """Sample a feature map at points, like PyTorch's `grid_sample`.

    Points are (x, y) from -1 to 1. If `align_corners` is True, -1 and 1 are the centers of the
    first and last pixel, otherwise their outer edges. Points beyond the border get 0 (`zeros`), the
    nearest pixel's value (`border`), or the value of the pixel mirrored at the border
    (`reflection`).
    """

    mode: str
    padding_mode: str = "zeros"
    align_corners: bool = False

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.mode in GRID_SAMPLE_MODES, self.mode
        assert self.padding_mode in GRID_PADDING_MODES, self.padding_mode
        if axes["xy"].number not in (2, None):
            raise ShapeError(f"expected 2 coordinates (x, y) per point, got {axes['xy']}", (1,))
        if 0 in (axes["h"].number, axes["w"].number):
            raise ShapeError("a feature map without pixels cannot be sampled", (0,))


class GroupNorm(Op, sig="f[b *a~ c~ *s~], f[c]?, f[c]? -> f[b *a c *s]"):
    """`(x - mean) / sqrt(var + eps) * g + b`, with mean and variance over a group of adjacent
    channels and all other axes except the first (arXiv:1803.08494, eq. 1 to 7).

    The channels are axis `axis`, and are split into `groups` groups of equal size.
    """

    axis: int
    groups: Dim
    eps: float

    weight, bias = OptionalOperand(1), OptionalOperand(2)

    def get_first_variadic_group_rank(self) -> int | None:
        return self.axis - 1

    def infer_result_axes(self, axes: AxisBindings) -> None:
        remainder = mod_dims(axes["c"], self.groups).number
        if remainder:
            raise ShapeError(
                f"{axes['c']} channels cannot be divided into {self.groups} equal groups", (0,)
            )

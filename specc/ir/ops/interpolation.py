"""Ops that resize axes, or sample a feature map at points, by interpolation."""

from specc.ir.dim import Dim
from specc.ir.op import Op
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import ShapeError

RESIZE_MODES = ("bilinear", "bicubic", "nearest", "nearest_exact")
GRID_SAMPLE_MODES = ("bilinear", "nearest")
GRID_PADDING_MODES = ("zeros", "border", "reflection")


class Resize(Op, sig="a[*a t~ *b] -> a[*a u *b]"):
    """Resample `len(sizes)` adjacent axes, starting with `axis`, to `sizes`, like PyTorch's
    `interpolate`.

    For n input and m output pixels, `bilinear` and `bicubic` (a = -0.75) place output pixel i at
    input position `(i + 0.5) · n / m - 0.5`. With `align_corners`, they place output pixel i at
    input position `i · (n - 1) / (m - 1)`. `nearest` selects input pixel `⌊i · n / m⌋`, and
    `nearest_exact` selects input pixel `⌊(i + 0.5) · n / m⌋`, computed in float32. `factors`
    replace the scale factors `m / n`. `antialias` widens the filter (triangle, or cubic with a =
    -0.5) by the downsampling factor, and does not support `factors`.
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
    first and last pixel, otherwise their outer edges. The value at a point outside the feature map
    is 0 (`zeros`), the value of the nearest pixel (`border`), or the value of the pixel mirrored at
    the border (`reflection`).
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

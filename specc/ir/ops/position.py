"""Position encodings: sinusoidal and rotary (RoPE)."""

from specc.ir.dim import Dim, divide_dims_exactly
from specc.ir.op import Op
from specc.ir.signature import AxisBindings
from specc.ir.types import ShapeError

__all__ = ["RopeAngles", "Rotate", "Sinusoid"]


class Sinusoid(Op, sig="i[*s] -> f[*s d]"):
    """Sinusoidal position encoding: sine and cosine of `position · base^(-2n/dim)`
    (arXiv:1706.03762, sec. 3.5).

    `interleaved`: sine at even, cosine at odd features, as in the paper. `halves`: all sines,
    then all cosines (Marian). `fairseq`: halves with frequencies `base^(-n / (dim/2 - 1))`.
    Angles are computed in float64 and rounded once.
    """

    dim: Dim
    layout: str
    base: float = 10000.0

    def bind_result_axes(self, axes: AxisBindings) -> None:
        assert self.layout in ("interleaved", "halves", "fairseq"), self.layout
        if self.dim.number is not None and self.dim.number % 2:
            raise ShapeError(f"sinusoidal embeddings need an even dimension, got {self.dim}")
        axes["d"] = self.dim


class RopeAngles(Op, sig="i[*s]... -> f[*s r], f[*s r]"):
    """Cosines and sines of `position · frequency` for `dim / 2` rotary pairs (arXiv:2104.09864,
    eq. 15).

    With several position axes (M-RoPE, arXiv:2409.12191, sec. 2.1.1) there is one operand per
    axis, and pair n has the position on axis `axes[n]`. `frequencies` overrides
    `theta^(-2n/dim)` for RoPE scaling; both results are multiplied by `factor` (YaRN's attention
    factor). Angles are computed in float64 and rounded once. `most`: the longest sequence for
    which the frequencies hold; 0 for any.
    """

    dim: Dim
    theta: float
    factor: float = 1.0
    frequencies: tuple[float, ...] = ()
    most: int = 0
    axes: tuple[int, ...] = ()

    def bind_result_axes(self, axes: AxisBindings) -> None:
        if self.dim.number is not None and self.dim.number % 2:
            raise ShapeError(f"rotary embedding needs an even dimension, got {self.dim}")
        pairs = divide_dims_exactly(self.dim, 2)
        if self.axes and pairs.number not in (None, len(self.axes)):
            raise ShapeError(f"{pairs} pairs of features, but {len(self.axes)} have an axis")
        axes["r"] = pairs


class Rotate(Op, sig="f[b h t d~], f[#b t r], f[#b t r] -> f[b h t d]"):
    """Rotate pairs of features by angles with the given cosines and sines (arXiv:2104.09864,
    eq. 34).

    `half` (half-split, "rotate_half"): feature n pairs with n + r. `interleaved`: 2n pairs with
    2n + 1. Features from 2r on are unchanged.
    """

    pairs: str

    def bind_result_axes(self, axes: AxisBindings) -> None:
        assert self.pairs in ("half", "interleaved"), self.pairs
        d, r = axes["d"].number, axes["r"].number
        if d is not None and r is not None and 2 * r > d:
            raise ShapeError(f"cannot rotate {2 * r} features of {d}", (0, 1))

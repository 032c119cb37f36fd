"""Color scales of attention weights, and blending over an image."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specc.drawing.attention_maps import Doubles
from specc.drawing.colormap import Bytes, apply_colormap

HIDDEN = np.array([226, 226, 232], np.uint8)
"""Paper that is a little gray: no color of the scale, so that what a mask hides is not zero."""

DECADES = 4
"""Powers of ten that a logarithmic scale shows below the greatest weight."""


@dataclass(frozen=True, slots=True)
class ColorScale:
    """What the ends of the color scale mean."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[Doubles], *, log: bool = False) -> "ColorScale":
        """From 0, or the least weight if that is negative, to the greatest; with `log`
        from a ten thousandth of that.
        """
        finite = [v[np.isfinite(v)] for v in values]
        low = min((float(v.min()) for v in finite if v.size), default=0.0)
        high = max((float(v.max()) for v in finite if v.size), default=1.0)
        if log and high > 0:
            return cls(high / 10**DECADES, high, log=True)
        low = min(0.0, low)
        return cls(low, high if high > low else low + 1.0)

    def shares(self, values: Doubles) -> Doubles:
        """Where each value lies between the ends: 0 to 1, NaN as itself."""
        shares: Doubles = (values - self.low) / (self.high - self.low)
        if self.log:
            powers = np.log(np.maximum(values, self.low) / self.low)
            shares = powers / np.log(self.high / self.low)
        return np.clip(shares, 0, 1)

    def colors(self, values: Doubles) -> Bytes:
        """`f[*s]` → `u8[*s 3]`; minus infinity is what a mask hides."""
        hidden = np.isneginf(values)
        result = apply_colormap(self.shares(np.where(hidden, 0.0, values)))
        result[hidden] = HIDDEN
        return result

    def middle(self) -> float:
        """The value of the color between both ends."""
        if self.log:
            return float(np.sqrt(self.low * self.high))
        return (self.low + self.high) / 2


def format_scale_number(value: float) -> str:
    """A number beside the scale: `0.25`."""
    return "0" if value == 0 else f"{value:.2g}"


def blend_over_image(picture: Bytes, weights: Doubles, scale: ColorScale) -> Bytes:
    """The gray picture under the colors of weights `f[rows, columns]`; the greater a
    weight, the more its color covers. Where nothing was looked at, the picture is dim.
    """
    height, width = picture.shape[:2]
    rows = np.arange(height) * weights.shape[0] // height
    columns = np.arange(width) * weights.shape[1] // width
    color = scale.colors(weights)[rows][:, columns].astype(np.float64)
    gray = picture.astype(np.float64).mean(axis=2, keepdims=True)
    finite: NDArray[np.float64] = np.nan_to_num(weights, neginf=scale.low)
    cover = (0.3 + 0.5 * np.sqrt(scale.shares(finite)))[rows][:, columns][:, :, None]
    mixed: Doubles = np.rint(color * cover + 0.8 * gray * (1 - cover))
    return mixed.astype(np.uint8)


def scale_image(picture: Bytes, least: int, most: int) -> Bytes:
    """A picture with sides from `least` to `most` pixels, by whole factors: its pixels
    stay visible.
    """
    step = -(-max(picture.shape[:2]) // most)
    picture = picture[::step, ::step]
    zoom = max(1, -(-least // max(1, min(picture.shape[:2]))))
    return picture.repeat(zoom, 0).repeat(zoom, 1)

"""Colormaps, color scales of attention weights, and blending over an image."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]

# Dark violet over blue and green to yellow: the lightness grows evenly, so that the
# order is seen in gray and by people who tell few colors apart.
COLOR_STOPS = np.array(
    [(68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140),
     (40, 174, 128), (94, 201, 98), (173, 220, 48), (253, 231, 37)],
    np.float64,
)  # fmt: skip

# steps of this share of a turn around the color wheel never come close to each other
GOLDEN_RATIO_STEP = 0.61803398875


def apply_colormap(values: NDArray[Any]) -> Bytes:
    """`f[*s]` from 0 to 1 → `u8[*s 3]`; what is no number is gray."""
    position = np.clip(np.nan_to_num(values.astype(np.float64)), 0, 1) * (len(COLOR_STOPS) - 1)
    places = np.arange(len(COLOR_STOPS))
    channels = [np.interp(position, places, COLOR_STOPS[:, c]) for c in range(3)]
    result = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    result[np.isnan(values)] = 128
    return result


def class_colors(count: int) -> Bytes:
    """`u8[count 3]`: black for class 0, as backgrounds are, and hues that differ for the others."""
    palette = np.zeros((count, 3), np.uint8)
    for i in range(1, count):
        hue = (i * GOLDEN_RATIO_STEP) % 1.0
        saturation, value = (0.75, 0.95) if i % 2 else (0.55, 0.75)
        wheel = np.clip(np.abs((hue * 6 + np.array([0.0, 4.0, 2.0])) % 6 - 3) - 1, 0, 1)
        palette[i] = np.rint(255 * value * (1 - saturation * (1 - wheel)))
    return palette


MASKED_COLOR = np.array([226, 226, 232], np.uint8)
"""Light gray, which is not in the colormap, so that masked pairs differ from zeros."""

LOG_DECADES = 4
"""Number of decades below the maximum weight on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class ColorScale:
    """What the ends of the color scale mean."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[Doubles], *, log: bool = False) -> "ColorScale":
        """Return the scale from 0, or a negative minimum, to the maximum; `log`: four decades."""
        finite = [v[np.isfinite(v)] for v in values]
        low = min((float(v.min()) for v in finite if v.size), default=0.0)
        high = max((float(v.max()) for v in finite if v.size), default=1.0)
        if log and high > 0:
            return cls(high / 10**LOG_DECADES, high, log=True)
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
        result[hidden] = MASKED_COLOR
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
    """Return the gray image under the colors of weights `f[rows, columns]`, opaque where they are
    large.
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
    """Return an image with sides from `least` to `most` pixels, scaled by integer factors."""
    step = -(-max(picture.shape[:2]) // most)
    picture = picture[::step, ::step]
    zoom = max(1, -(-least // max(1, min(picture.shape[:2]))))
    return picture.repeat(zoom, 0).repeat(zoom, 1)

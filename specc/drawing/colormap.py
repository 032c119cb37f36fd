"""Colormaps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Dark violet over blue and green to yellow: the lightness grows evenly, so that the
# order is seen in gray and by people who tell few colors apart.
ANCHORS = np.array(
    [(68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140),
     (40, 174, 128), (94, 201, 98), (173, 220, 48), (253, 231, 37)],
    np.float64,
)  # fmt: skip

# steps of this share of a turn around the color wheel never come close to each other
GOLDEN = 0.61803398875


def apply_colormap(values: NDArray[Any]) -> Bytes:
    """`f[*s]` from 0 to 1 → `u8[*s 3]`; what is no number is gray."""
    position = np.clip(np.nan_to_num(values.astype(np.float64)), 0, 1) * (len(ANCHORS) - 1)
    places = np.arange(len(ANCHORS))
    channels = [np.interp(position, places, ANCHORS[:, c]) for c in range(3)]
    result = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    result[np.isnan(values)] = 128
    return result


def class_colors(count: int) -> Bytes:
    """`u8[count 3]`: black for class 0, as backgrounds are, and hues that differ for the others."""
    palette = np.zeros((count, 3), np.uint8)
    for i in range(1, count):
        hue = (i * GOLDEN) % 1.0
        saturation, value = (0.75, 0.95) if i % 2 else (0.55, 0.75)
        wheel = np.clip(np.abs((hue * 6 + np.array([0.0, 4.0, 2.0])) % 6 - 3) - 1, 0, 1)
        palette[i] = np.rint(255 * value * (1 - saturation * (1 - wheel)))
    return palette

"""Graphical elements of a drawing (text, boxes, lines, heat maps), and the layout of panels."""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.immutable_dataclass import immutable_dataclass

Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]

# viridis is perceptually uniform, and it is readable in grayscale and for people with color vision
# deficiency
COLOR_STOPS = np.array(
    [(68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140),
     (40, 174, 128), (94, 201, 98), (173, 220, 48), (253, 231, 37)],
    np.float64,
)  # fmt: skip

# hues at multiples of the golden ratio are well separated
GOLDEN_RATIO_STEP = 0.61803398875


def apply_colormap(values: NDArray[Any]) -> Bytes:
    """Map values in [0, 1] to RGB colors, uint8 [..., 3]. NaN is mapped to gray."""
    positions = np.clip(np.nan_to_num(values.astype(np.float64)), 0, 1) * (len(COLOR_STOPS) - 1)
    stops = np.arange(len(COLOR_STOPS))
    channels = [np.interp(positions, stops, COLOR_STOPS[:, c]) for c in range(3)]
    colors = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    colors[np.isnan(values)] = 128
    return colors


def make_class_colors(count: int) -> Bytes:
    """Return one RGB color per class, uint8 [count, 3]. Class 0, the background, is black."""
    palette = np.zeros((count, 3), np.uint8)
    for i in range(1, count):
        hue = (i * GOLDEN_RATIO_STEP) % 1.0
        saturation, value = (0.75, 0.95) if i % 2 else (0.55, 0.75)
        rgb = np.clip(np.abs((hue * 6 + np.array([0.0, 4.0, 2.0])) % 6 - 3) - 1, 0, 1)
        palette[i] = np.rint(255 * value * (1 - saturation * (1 - rgb)))
    return palette


MASKED_COLOR = np.array([226, 226, 232], np.uint8)
"""The color of masked cells, a light gray that is not in the colormap."""

LOG_DECADES = 4
"""The number of decades that a logarithmic scale covers below the maximum weight."""


@immutable_dataclass
class ColorScale:
    """A color scale from `low` to `high`."""

    low: float
    high: float
    is_logarithmic: bool = False

    @classmethod
    def from_values(cls, values: Iterable[Doubles], *, log: bool = False) -> "ColorScale":
        """Return the color scale from 0 (or the minimum, if negative) to the maximum of the values.
        A logarithmic scale covers `LOG_DECADES` decades below the maximum.
        """
        finite_values = [v[np.isfinite(v)] for v in values]
        low = min((float(v.min()) for v in finite_values if v.size), default=0.0)
        high = max((float(v.max()) for v in finite_values if v.size), default=1.0)
        if log and high > 0:
            return cls(high / 10**LOG_DECADES, high, is_logarithmic=True)
        low = min(0.0, low)
        return cls(low, high if high > low else low + 1.0)

    def normalize_values(self, values: Doubles) -> Doubles:
        """Map values in [`low`, `high`] to [0, 1], and clip other values. NaN remains NaN."""
        fractions: Doubles = (values - self.low) / (self.high - self.low)
        if self.is_logarithmic:
            logarithms = np.log(np.maximum(values, self.low) / self.low)
            fractions = logarithms / np.log(self.high / self.low)
        return np.clip(fractions, 0, 1)

    def compute_colors(self, values: Doubles) -> Bytes:
        """Map values to RGB colors, uint8 [..., 3]. -inf is mapped to the masked color."""
        is_masked = np.isneginf(values)
        colors = apply_colormap(self.normalize_values(np.where(is_masked, 0.0, values)))
        colors[is_masked] = MASKED_COLOR
        return colors

    def get_middle_value(self) -> float:
        """Return the value at the middle of the color bar."""
        if self.is_logarithmic:
            return float(np.sqrt(self.low * self.high))
        return (self.low + self.high) / 2


def format_tick_label(value: float) -> str:
    """Format a number as a tick label, as in `0.25`."""
    return "0" if value == 0 else f"{value:.2g}"


def overlay_attention_weights(image: Bytes, weights: Doubles, scale: ColorScale) -> Bytes:
    """Overlay attention weights [grid height, grid width] in color on a grayscale copy of an image
    (uint8 [height, width, 3]). The opacity of an overlay increases with the attention weight.
    """
    height, width = image.shape[:2]
    rows = np.arange(height) * weights.shape[0] // height
    columns = np.arange(width) * weights.shape[1] // width
    colors = scale.compute_colors(weights)[rows][:, columns].astype(np.float64)
    gray = image.astype(np.float64).mean(axis=2, keepdims=True)
    finite: NDArray[np.float64] = np.nan_to_num(weights, neginf=scale.low)
    opacity = (0.3 + 0.5 * np.sqrt(scale.normalize_values(finite)))[rows][:, columns][:, :, None]
    blended: Doubles = np.rint(colors * opacity + 0.8 * gray * (1 - opacity))
    return blended.astype(np.uint8)


def scale_image(image: Bytes, min_side: int, max_length: int) -> Bytes:
    """Scale an image by integer factors to side lengths of `min_side` to `max_length` pixels."""
    step = -(-max(image.shape[:2]) // max_length)
    image = image[::step, ::step]
    factor = max(1, -(-min_side // max(1, min(image.shape[:2]))))
    return image.repeat(factor, 0).repeat(factor, 1)


INK, FAINT, PAPER = "#1d1d24", "#6b6b76", "#ffffff"

MAX_LABEL_LENGTH = 28
"""The maximum number of characters in a label of a drawing."""

Anchor: TypeAlias = Literal["start", "middle", "end"]


@immutable_dataclass(kw_only=True)
class TextElement:
    """One line of text anchored at (x, y) on the baseline, rotated by 90° if `is_rotated`."""

    x: float = 0
    y: float = 0
    text: str
    size: float = 11
    color: str = INK
    anchor: Anchor = "start"
    is_rotated: bool = False
    is_bold: bool = False


@immutable_dataclass(kw_only=True)
class BoxElement:
    """A rounded rectangle. `block_path` is the path of the represented block, for HTML pages."""

    x: float = 0
    y: float = 0
    width: float
    height: float
    fill: str = "none"
    stroke: str = "none"
    stroke_width: float = 1
    corner_radius: float = 0
    block_path: str = ""


@immutable_dataclass(kw_only=True)
class LineElement:
    """A polyline with rounded corners. If `has_arrow` is True, the line ends in an arrowhead."""

    points: tuple[tuple[float, float], ...]
    color: str = INK
    stroke_width: float = 1.25
    corner_radius: float = 0
    has_arrow: bool = False
    is_dashed: bool = False


@immutable_dataclass(kw_only=True)
class HeatmapElement:
    """A heat map: `colors` (uint8 [rows, columns, 3]) scaled to a box without interpolation."""

    x: float = 0
    y: float = 0
    width: float
    height: float
    colors: Bytes


DrawingElement: TypeAlias = TextElement | BoxElement | LineElement | HeatmapElement


@dataclass(kw_only=True)
class Drawing:
    """Drawing elements on a white background, in drawing order. `title` is the title for screen
    readers.
    """

    width: float
    height: float
    title: str = ""
    elements: list[DrawingElement] = field(default_factory=list)

    def add_elements(self, elements: Iterable[DrawingElement]) -> None:
        """Add elements on top of the existing elements."""
        self.elements.extend(elements)


NARROW_CHARACTERS = frozenset("iljtfrI.,:;'|!()[]{}· /-")
"""Characters that are about half as wide as other characters."""


def estimate_text_width(text: str, size: float) -> float:
    """Return an upper bound of the text width in points for an unknown sans-serif font."""
    return sum(map(_measure_width_in_ems, text)) * size


def _measure_width_in_ems(character: str) -> float:
    """Return the estimated width of a character in em, i.e. as a fraction of the font size."""
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in NARROW_CHARACTERS:
        return 0.36
    return 0.66 if character.isupper() or character in "mwMW%@…" else 0.56


OUTER_SPACES = re.compile(r"\A +| +\Z")


def make_printable_label(text: str, max_length: int = MAX_LABEL_LENGTH) -> str:
    """Truncate a label to `max_length` characters. Replace control characters and leading or
    trailing spaces with visible characters.
    """
    printable = "".join(
        "↵" if c == "\n" else c if c.isprintable() else ascii(c)[1:-1]
        for c in text[: max_length + 1]
    )
    printable = OUTER_SPACES.sub(lambda spaces: "␣" * len(spaces[0]), printable)
    return printable if len(printable) <= max_length else printable[: max(1, max_length - 1)] + "…"


MARGIN = 18.0


@dataclass(kw_only=True)
class PanelGrid:
    """A grid of panels and labels as elements, with coordinates relative to the top left corner of
    the grid. `first_column` and `first_row` contain the top left corners of the panels in the first
    column and in the first row.
    """

    width: float
    height: float
    heading_height: float = 0
    elements: list[DrawingElement] = field(default_factory=list)
    first_column: list[tuple[float, float]] = field(default_factory=list)
    first_row: list[tuple[float, float]] = field(default_factory=list)

    def move_elements(self, x: float, y: float) -> list[DrawingElement]:
        """Return the elements, moved so that the top left corner of the grid is at (x, y)."""
        return [move_element(element, x, y) for element in self.elements]


def move_element(element: DrawingElement, dx: float, dy: float) -> DrawingElement:
    """Return a copy of the element that is moved by (`dx`, `dy`)."""
    if isinstance(element, LineElement):
        return replace(element, points=tuple((a + dx, b + dy) for a, b in element.points))
    return replace(element, x=element.x + dx, y=element.y + dy)


def arrange_panels(
    panels: Sequence[Sequence[DrawingElement]],
    size: tuple[float, float],
    *,
    left: float,
    top: float,
    title_height: float,
    title: str,
) -> PanelGrid:
    """Arrange panels of equal size in rows below a title, with the margins `left` and `top`."""
    count = len(panels)
    # up to four panels form one row, and more panels form about as many rows as columns
    columns = count if count <= 4 else min(count, 6, math.ceil(math.sqrt(count * 1.4)))
    width, height = size
    row_count = math.ceil(count / columns)
    heading_height = 22.0 + top
    panel_pitch = width + MARGIN * 0.7, height + title_height + MARGIN * 0.7
    group = PanelGrid(
        width=left + columns * panel_pitch[0],
        height=heading_height + row_count * panel_pitch[1] + title_height,
        heading_height=heading_height + title_height,
    )
    name = make_printable_label(title, 80)
    group.elements.append(TextElement(y=13, text=name, size=12, is_bold=True))
    # bold text is wider than `estimate_text_width` estimates
    group.width = max(group.width, estimate_text_width(name, 12) * 1.06)
    for n, elements in enumerate(panels):
        x = (n % columns) * panel_pitch[0] + left
        y = (n // columns) * panel_pitch[1] + heading_height + title_height
        group.elements += [move_element(element, x, y) for element in elements]
        if x == left:
            group.first_column.append((x, y))
        if y == heading_height + title_height:
            group.first_row.append((x, y))
    return group

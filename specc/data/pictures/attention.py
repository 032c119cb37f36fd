"""Attention as a picture: weights as a heatmap of queries against keys, or laid over
the picture that was read.

Everything is drawn here and written as PNG, without a plotting library. The colors of
all panels of a picture share one scale, which a bar beside them shows: from 0 (or the
least weight, if that is negative) to the greatest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specc.data.pictures.canvas import FAINT, Canvas, text_height, text_width
from specc.data.pictures.colors import colors
from specc.data.pictures.font import visible
from specc.ir.array import Array

MARGIN = 16  # pixels around everything and between panels
GAP = 6  # pixels between a label and what it labels
BAR = 14  # pixels, width of the color scale
MAX_CELLS = 1024  # a side; larger maps show the greatest weight of each block of cells
MAX_LABEL = 24  # characters
MAX_PANELS = 64


@dataclass(frozen=True, slots=True)
class _Scale:
    """What the ends of the color scale mean."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Array) -> "_Scale":
        finite = values[np.isfinite(values)]
        low = min(0.0, float(finite.min())) if finite.size else 0.0
        high = float(finite.max()) if finite.size else 1.0
        return cls(low, high if high > low else low + 1.0)

    def colors(self, values: Array) -> NDArray[np.uint8]:
        return colors((values.astype(np.float64) - self.low) / (self.high - self.low))


def heatmap(
    weights: Array,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
) -> bytes:
    """A PNG of weights `f[q, k]`, or of several heads `f[h, q, k]` as a grid of panels.

    Queries go down and are labelled at the left, keys go right and are labelled on top;
    without labels both are numbered from 0. Labels that have no room are left out
    evenly. `titles` name the heads.
    """
    panels = _panels(weights)
    heads, rows, columns = panels.shape
    across = min(heads, math.ceil(math.sqrt(heads)))
    scale = _Scale.over(panels)
    panels, step = _shrink(panels)
    cell = _cell(max(panels.shape[1:]), across)
    font = 2 if cell >= 22 else 1
    left_labels = _labels(row_labels, rows, step)
    top_labels = _labels(column_labels, columns, step)
    upright = any(text_width(label, font) > cell - 2 for label in top_labels)
    top_room = (
        max((text_width(t, font) for t in top_labels), default=0)
        if upright
        else text_height(font)
    )
    left_room = max((text_width(t, font) for t in left_labels), default=0)
    names = _titles(titles, heads)
    title_room = text_height(2 if font == 2 else 1) + GAP if any(names) else 0
    height, width = panels.shape[1] * cell, panels.shape[2] * cell
    down = math.ceil(heads / across)
    top, left = MARGIN + top_room + GAP, MARGIN + left_room + GAP
    widest = max(width, *(text_width(name, font) for name in names))
    row_pitch, column_pitch = height + title_room + MARGIN, widest + MARGIN
    bar_room = MARGIN + BAR + GAP + _bar_text_width(scale)
    canvas = Canvas(
        top + title_room + down * row_pitch - title_room,
        left + across * column_pitch - MARGIN + bar_room + MARGIN,
    )
    for head in range(heads):
        y = top + title_room + (head // across) * row_pitch
        x = left + (head % across) * column_pitch
        if names[head]:
            canvas.text(
                names[head],
                y - title_room - (top_room + GAP if head < across else 0),
                x,
                font,
            )
        _draw_map(canvas, scale.colors(panels[head]), cell, y, x)
        if head % across == 0:
            _row_labels(canvas, left_labels, cell, font, y, x - GAP)
        if head < across:
            _column_labels(canvas, top_labels, cell, font, y - GAP, x, upright=upright)
    _draw_bar(
        canvas, scale, top + title_room, left + across * column_pitch, min(height, 240)
    )
    return canvas.png()


def overlay(image: Array, weights: Array, titles: Sequence[str] | None = None) -> bytes:
    """A PNG of a picture, `[rows, columns]` or `[1|3, rows, columns]`, and of the
    weights over it.

    `weights` are `f[patch rows, patch columns]`, or `f[h, …]` for several heads, each
    over a copy of the picture. Pixels are shown from the darkest to the brightest,
    unless they are bytes already. Small pictures are enlarged by a whole factor, so
    that their pixels stay visible.
    """
    maps = _panels(weights)
    # pixels a side of one panel
    target, most = (320, 1024) if len(maps) == 1 else (200, 400)
    pixels = _displayable(image, most)
    zoom = max(1, round(target / max(pixels.shape[:2])))
    pixels = np.kron(pixels, np.ones((zoom, zoom, 1), np.uint8))
    scale = _Scale.over(maps)
    names = [
        "input",
        *(_titles(titles, len(maps)) if len(maps) > 1 or titles else ["attention"]),
    ]
    height, width = pixels.shape[:2]
    across = min(len(maps) + 1, max(2, math.ceil(math.sqrt(len(maps) + 1))))
    down = math.ceil((len(maps) + 1) / across)
    title_room = text_height(2) + GAP
    row_pitch, column_pitch = height + title_room + MARGIN, width + MARGIN
    bar_room = BAR + GAP + _bar_text_width(scale) + MARGIN
    canvas = Canvas(
        MARGIN + down * row_pitch, MARGIN + across * column_pitch + bar_room
    )
    for panel, name in enumerate(names):
        y = MARGIN + title_room + (panel // across) * row_pitch
        x = MARGIN + (panel % across) * column_pitch
        canvas.text(
            visible(name, max(1, width // 12)) if name else "", y - title_room, x, 2
        )
        shown = pixels if panel == 0 else _blend(pixels, scale, maps[panel - 1])
        canvas.place(shown, y, x)
        canvas.frame(y, x, height, width)
    _draw_bar(
        canvas,
        scale,
        MARGIN + title_room,
        MARGIN + across * column_pitch,
        min(height, 240),
    )
    return canvas.png()


def _blend(
    pixels: NDArray[np.uint8], scale: _Scale, weights: Array
) -> NDArray[np.uint8]:
    """The gray picture under the colors of the weights; the greater a weight, the more
    its color covers.
    """
    height, width = pixels.shape[:2]
    rows = np.arange(height) * weights.shape[0] // height
    columns = np.arange(width) * weights.shape[1] // width
    color = scale.colors(weights)[rows][:, columns].astype(np.float64)
    gray = pixels.astype(np.float64).mean(axis=2, keepdims=True)
    share = (np.nan_to_num(weights) - scale.low) / (scale.high - scale.low)
    cover = (0.5 + 0.25 * share)[rows][:, columns][:, :, None]
    mixed: NDArray[np.uint8] = np.rint(color * cover + gray * (1 - cover)).astype(
        np.uint8
    )
    return mixed


def _draw_map(
    canvas: Canvas, block: NDArray[np.uint8], cell: int, top: int, left: int
) -> None:
    """Cells of `cell` pixels, with a line of paper between them where they are large
    enough for that.
    """
    large = np.kron(block, np.ones((cell, cell, 1), np.uint8))
    if cell >= 12:
        large[cell - 1 :: cell] = 255
        large[:, cell - 1 :: cell] = 255
    canvas.place(large, top, left)
    inner = 1 if cell >= 12 else 0
    canvas.frame(top, left, large.shape[0] - inner, large.shape[1] - inner)


def _row_labels(
    canvas: Canvas, labels: Sequence[str], cell: int, font: int, top: int, right: int
) -> None:
    every = math.ceil(9 * font / cell)
    for i in range(0, len(labels), every):
        y = (
            top
            + i * cell
            + (min(cell * every, cell + 4) - text_height(font)) // 2
            - font
        )
        canvas.text(labels[i], y, right - text_width(labels[i], font), font)


def _column_labels(
    canvas: Canvas,
    labels: Sequence[str],
    cell: int,
    font: int,
    bottom: int,
    left: int,
    *,
    upright: bool,
) -> None:
    widest = max((text_width(label, font) for label in labels), default=0)
    every = (
        math.ceil(9 * font / cell)
        if upright
        else max(1, math.ceil((widest + 3) / cell))
    )
    for i in range(0, len(labels), every):
        width = text_width(labels[i], font)
        if upright:
            x = left + i * cell + (cell - text_height(font)) // 2 - font
            canvas.text(labels[i], bottom - width, x, font, upright=True)
        else:
            canvas.text(
                labels[i],
                bottom - text_height(font) + 2 * font,
                left + i * cell + (cell - width) // 2,
                font,
            )


def _draw_bar(canvas: Canvas, scale: _Scale, top: int, left: int, height: int) -> None:
    """The color scale, greatest weight on top."""
    height = max(height, 3 * text_height())
    height = min(height, canvas.pixels.shape[0] - top - 2)
    ramp = np.linspace(scale.high, scale.low, height)[:, None]
    canvas.place(np.repeat(scale.colors(ramp), BAR, axis=1), top, left)
    canvas.frame(top, left, height, BAR)
    x = left + BAR + GAP
    canvas.text(_short(scale.high), top - 3, x)
    if height >= 5 * text_height():
        canvas.text(
            _short((scale.high + scale.low) / 2), top + height // 2 - 6, x, color=FAINT
        )
    canvas.text(_short(scale.low), top + height - 9, x)


def _bar_text_width(scale: _Scale) -> int:
    ends = (scale.low, scale.high, (scale.low + scale.high) / 2)
    return max(text_width(_short(value)) for value in ends)


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"


def _cell(cells: int, across: int) -> int:
    """Pixels a cell is wide, so that a panel has a good size."""
    goal = 640 if across == 1 else 320 if across == 2 else 220
    return max(1, min(32, goal // max(1, cells)))


def _labels(labels: Sequence[str] | None, count: int, step: int) -> list[str]:
    every = (
        [str(i) for i in range(count)]
        if labels is None
        else [visible(label, MAX_LABEL) for label in labels]
    )
    assert len(every) == count, f"{len(every)} labels for {count} rows or columns"
    return every[::step]


def _titles(titles: Sequence[str] | None, heads: int) -> list[str]:
    if titles is not None:
        return [visible(title, MAX_LABEL) for title in titles[:heads]] + [""] * (
            heads - len(titles)
        )
    return [f"head {i}" for i in range(heads)] if heads > 1 else [""]


def _panels(weights: Array) -> NDArray[np.float64]:
    """`f[h, rows, columns]` from that or one head of it. An empty map becomes one empty cell."""
    assert weights.ndim in (2, 3), "weights are [q, k] or [h, q, k]"
    if not weights.size:
        return np.full((1, 1, 1), np.nan)
    return np.asarray(weights, np.float64).reshape((-1, *weights.shape[-2:]))[
        :MAX_PANELS
    ]


def _shrink(panels: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Large maps in blocks of `step` by `step` cells, each as its greatest weight: no
    peak is lost.
    """
    step = math.ceil(max(panels.shape[1:]) / MAX_CELLS)
    if step == 1:
        return panels, 1
    heads, rows, columns = panels.shape
    full = np.full(
        (heads, -(-rows // step) * step, -(-columns // step) * step), -np.inf
    )
    full[:, :rows, :columns] = panels
    blocks = full.reshape(
        heads, full.shape[1] // step, step, full.shape[2] // step, step
    )
    return blocks.max(axis=(2, 4)), step


def _displayable(image: Array, most: int) -> NDArray[np.uint8]:
    """`u8[rows, columns, 3]`, at most `most` pixels a side."""
    channels = image[None] if image.ndim == 2 else image
    assert channels.ndim == 3, "a picture is [rows, columns] or [1|3, rows, columns]"
    assert channels.shape[0] in (1, 3), "a picture has 1 or 3 channels"
    step = math.ceil(max(channels.shape[1:]) / most)
    channels = channels[:, ::step, ::step]
    if channels.dtype != np.uint8:
        values = np.nan_to_num(channels.astype(np.float64))
        low, high = float(values.min()), float(values.max())
        channels = np.rint((values - low) / ((high - low) or 1.0) * 255).astype(
            np.uint8
        )
    pixels = channels.transpose(1, 2, 0)
    return np.ascontiguousarray(
        np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    )

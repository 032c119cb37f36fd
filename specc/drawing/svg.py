"""Drawings as SVG."""

from base64 import b64encode
from collections.abc import Iterator
from functools import singledispatch
from html import escape

import numpy as np

from specc.drawing.colormap import Bytes
from specc.drawing.drawing_marks import PAPER, BoxMark, CellsMark, Drawing, LineMark, Mark, TextMark
from specc.drawing.png import encode_png

GENERATOR_MARK = "<!-- specc -->"
"""Text by which `specc.io.file_signatures` recognizes drawings and pages that specc wrote."""

FONT_FAMILY = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Noto Sans', sans-serif"

MAX_PATHS = 40_000
"""Maximum number of cells of a table that are drawn as paths; larger tables are embedded images."""


def render_svg(drawing: Drawing) -> str:
    """The whole file: characters of an SVG document with a title for those who listen."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(drawing.width)}" '
        f'height="{_n(drawing.height)}" {_inside(drawing)}\n'
    )


def render_inline_svg(drawing: Drawing, kind: str) -> str:
    """The same as an element of a page, of the class `kind`, without white paper under it."""
    width, height = _n(drawing.width), _n(drawing.height)
    size = f'class="{escape(kind)}" width="{width}" height="{height}"'
    return f"<svg {size} {_inside(drawing, paper=False)}"


def _inside(drawing: Drawing, *, paper: bool = True) -> str:
    width, height = _n(drawing.width), _n(drawing.height)
    title = escape(drawing.title)
    parts = [
        f'viewBox="0 0 {width} {height}" role="img" font-family="{escape(FONT_FAMILY)}">',
        GENERATOR_MARK if paper else "",
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>' if paper else "",
        *(_mark(mark) for mark in drawing.marks),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


@singledispatch
def _mark(mark: Mark) -> str:
    raise AssertionError(f"no rule draws {mark}")


@_mark.register
def _(mark: TextMark) -> str:
    turn = f' transform="rotate(-90 {_n(mark.x)} {_n(mark.y)})"' if mark.upright else ""
    bold = ' font-weight="600"' if mark.bold else ""
    anchor = f' text-anchor="{mark.anchor}"' if mark.anchor != "start" else ""
    return (
        f'<text x="{_n(mark.x)}" y="{_n(mark.y)}" font-size="{_n(mark.size)}" '
        f'fill="{mark.color}"{anchor}{bold}{turn}>{escape(mark.text)}</text>'
    )


@_mark.register
def _(mark: BoxMark) -> str:
    round_ = f' rx="{_n(mark.radius)}"' if mark.radius else ""
    line = f' stroke-width="{_n(mark.weight)}"' if mark.stroke != "none" else ""
    part = f' data-part="{escape(mark.part)}"' if mark.part else ""
    return (
        f'<rect x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" '
        f'height="{_n(mark.height)}" fill="{mark.fill}" '
        f'stroke="{mark.stroke}"{line}{round_}{part}/>'
    )


@_mark.register
def _(mark: LineMark) -> str:
    dashes = ' stroke-dasharray="5 4"' if mark.dashed else ""
    body = (
        f'<path d="{_path(mark)}" fill="none" stroke="{mark.color}" '
        f'stroke-width="{_n(mark.weight)}" stroke-linejoin="round"{dashes}/>'
    )
    return body + (_arrow(mark) if mark.arrow else "")


def _path(mark: LineMark) -> str:
    """The points as a path; a corner is a curve that begins and ends `radius` away from it."""
    points = mark.points
    commands = [f"M{_xy(points[0])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        if not mark.radius:
            commands.append(f"L{_xy(corner)}")
            continue
        into, out = (_towards(corner, end, mark.radius) for end in (before, after))
        commands.append(f"L{_xy(into)}Q{_xy(corner)} {_xy(out)}")
    return "".join([*commands, f"L{_xy(points[-1])}"])


def _towards(
    start: tuple[float, float], end: tuple[float, float], by: float
) -> tuple[float, float]:
    """The point `by` from `start` on the way to `end`, or half that way where it is short."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    share = min(by, length / 2) / length if length else 0.0
    return start[0] + dx * share, start[1] + dy * share


def _arrow(mark: LineMark) -> str:
    """A head at the last point, in the direction of the last piece."""
    (x, y), before = mark.points[-1], mark.points[-2]
    back = _towards((x, y), before, 6)
    dx, dy = (x - back[0]) / 2, (y - back[1]) / 2
    left, right = (back[0] - dy, back[1] + dx), (back[0] + dy, back[1] - dx)
    return f'<path d="M{_xy((x, y))}L{_xy(left)}L{_xy(right)}Z" fill="{mark.color}"/>'


@_mark.register
def _(mark: CellsMark) -> str:
    rows, columns = mark.colors.shape[:2]
    if rows * columns > MAX_PATHS:
        data = b64encode(encode_png(mark.colors)).decode("ascii")
        return (
            f'<image x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" '
            f'height="{_n(mark.height)}" preserveAspectRatio="none" '
            f'image-rendering="pixelated" href="data:image/png;base64,{data}"/>'
        )
    across, down = mark.width / columns, mark.height / rows
    place = f"translate({_n(mark.x)} {_n(mark.y)}) scale({across:.6g} {down:.6g})"
    paths = "".join(f'<path fill="{color}" d="{path}"/>' for color, path in _by_color(mark.colors))
    return f'<g transform="{place}" shape-rendering="crispEdges">{paths}</g>'


def _by_color(colors: Bytes) -> Iterator[tuple[str, str]]:
    """Every color with a path over its cells, neighbors in a row as one piece."""
    codes = colors.astype(np.int64) @ np.array([65536, 256, 1])
    found: dict[int, list[str]] = {}
    for y, row in enumerate(codes):
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        ends = np.append(starts[1:], len(row))
        for start, end in zip(starts, ends, strict=True):
            pieces = found.setdefault(int(row[start]), [])
            pieces.append(f"M{start} {y}h{end - start}v1H{start}z")
    for code, pieces in found.items():
        yield f"#{code:06x}", "".join(pieces)


def _xy(point: tuple[float, float]) -> str:
    return f"{_n(point[0])} {_n(point[1])}"


def _n(value: float) -> str:
    """A length with at most two places behind the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")

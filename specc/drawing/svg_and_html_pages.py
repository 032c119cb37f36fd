"""Render drawings as SVG and as self-contained HTML pages."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import singledispatch
from html import escape
from pathlib import Path

import numpy as np

from specc.drawing.drawing_elements import (
    PAPER,
    BoxElement,
    Bytes,
    Drawing,
    DrawingElement,
    HeatmapElement,
    LineElement,
    TextElement,
)
from specc.drawing.png import encode_png
from specc.io.json_io import Json

GENERATOR_MARK = "<!-- specc -->"
"""The comment that marks files as written by specc (see `specc.io.file_type_detection`)."""

FONT_FAMILY = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Noto Sans', sans-serif"

MAX_PATHS = 40_000
"""The maximum number of cells drawn as paths. Larger heat maps are embedded as PNG images."""


def render_svg(drawing: Drawing) -> str:
    """Render a drawing as an SVG file with a title for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_format_number(drawing.width)}" '
        f'height="{_format_number(drawing.height)}" {_render_drawing(drawing)}\n'
    )


def render_inline_svg(drawing: Drawing) -> str:
    """Render a drawing as an SVG element without a background, for use in an HTML page."""
    size = f'width="{_format_number(drawing.width)}" height="{_format_number(drawing.height)}"'
    return f'<svg class="drawing" {size} {_render_drawing(drawing, has_background=False)}'


def _render_drawing(drawing: Drawing, *, has_background: bool = True) -> str:
    width, height = _format_number(drawing.width), _format_number(drawing.height)
    title = escape(drawing.title)
    elements = [
        f'viewBox="0 0 {width} {height}" role="img" font-family="{escape(FONT_FAMILY)}">',
        GENERATOR_MARK if has_background else "",
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>' if has_background else "",
        *(_render_element(element) for element in drawing.elements),
        "</svg>",
    ]
    return "\n".join(element for element in elements if element)


@singledispatch
def _render_element(element: DrawingElement) -> str:
    raise AssertionError(f"no renderer for {element}")


@_render_element.register
def _(element: TextElement) -> str:
    x, y = _format_number(element.x), _format_number(element.y)
    attributes = _format_attributes(
        x=element.x,
        y=element.y,
        font_size=element.size,
        fill=element.color,
        text_anchor=element.anchor if element.anchor != "start" else "",
        font_weight="600" if element.is_bold else "",
        transform=f"rotate(-90 {x} {y})" if element.is_rotated else "",
    )
    return f"<text {attributes}>{escape(element.text)}</text>"


@_render_element.register
def _(element: BoxElement) -> str:
    attributes = _format_attributes(
        x=element.x,
        y=element.y,
        width=element.width,
        height=element.height,
        fill=element.fill,
        stroke=element.stroke,
        stroke_width=element.stroke_width if element.stroke != "none" else "",
        rx=element.corner_radius or "",
        data_part=element.block_path,
    )
    return f"<rect {attributes}/>"


@_render_element.register
def _(element: LineElement) -> str:
    attributes = _format_attributes(
        d=_render_path(element),
        fill="none",
        stroke=element.color,
        stroke_width=element.stroke_width,
        stroke_linejoin="round",
        stroke_dasharray="5 4" if element.is_dashed else "",
    )
    return f"<path {attributes}/>" + (_draw_arrow(element) if element.has_arrow else "")


def _format_attributes(**values: float | str) -> str:
    """Format SVG attributes. Underscores in attribute names are replaced with hyphens, and empty
    attributes are omitted.
    """
    return " ".join(
        f'{name.replace("_", "-")}="{escape(v) if isinstance(v, str) else _format_number(v)}"'
        for name, v in values.items()
        if v != ""
    )


def _render_path(element: LineElement) -> str:
    """Render a line as an SVG path with rounded corners."""
    points = element.points
    commands = [f"M{_format_point(points[0])}"]
    for previous_point, corner, next_point in zip(points, points[1:], points[2:], strict=False):
        if not element.corner_radius:
            commands.append(f"L{_format_point(corner)}")
            continue
        curve_start, curve_end = (
            _find_point_towards(corner, end, element.corner_radius)
            for end in (previous_point, next_point)
        )
        commands.append(
            f"L{_format_point(curve_start)}Q{_format_point(corner)} {_format_point(curve_end)}"
        )
    return "".join([*commands, f"L{_format_point(points[-1])}"])


def _find_point_towards(
    start: tuple[float, float], end: tuple[float, float], distance: float
) -> tuple[float, float]:
    """Return the point at `distance` from `start` towards `end`, but not beyond the midpoint."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    fraction = min(distance, length / 2) / length if length else 0.0
    return start[0] + dx * fraction, start[1] + dy * fraction


def _draw_arrow(element: LineElement) -> str:
    """Draw an arrowhead at the last point of a line, in the direction of the last segment."""
    (x, y), previous_point = element.points[-1], element.points[-2]
    base = _find_point_towards((x, y), previous_point, 6)
    dx, dy = (x - base[0]) / 2, (y - base[1]) / 2
    left, right = (base[0] - dy, base[1] + dx), (base[0] + dy, base[1] - dx)
    corners = "L".join(map(_format_point, ((x, y), left, right)))
    return f'<path d="M{corners}Z" fill="{element.color}"/>'


@_render_element.register
def _(element: HeatmapElement) -> str:
    rows, columns = element.colors.shape[:2]
    if rows * columns > MAX_PATHS:
        data = b64encode(encode_png(element.colors)).decode("ascii")
        attributes = _format_attributes(
            x=element.x,
            y=element.y,
            width=element.width,
            height=element.height,
            preserveAspectRatio="none",
            image_rendering="pixelated",
            href=f"data:image/png;base64,{data}",
        )
        return f"<image {attributes}/>"
    origin = _format_point((element.x, element.y))
    scale = f"{element.width / columns:.6g} {element.height / rows:.6g}"
    paths = "".join(
        f'<path fill="{color}" d="{path}"/>'
        for color, path in _group_cells_by_color(element.colors)
    )
    transform = f"translate({origin}) scale({scale})"
    return f'<g transform="{transform}" shape-rendering="crispEdges">{paths}</g>'


def _group_cells_by_color(colors: Bytes) -> Iterator[tuple[str, str]]:
    """Yield each color and the SVG path of its cells. Adjacent cells in a row are merged."""
    color_codes = colors.astype(np.int64) @ np.array([65536, 256, 1])
    paths_by_color: dict[int, list[str]] = {}
    for y, row in enumerate(color_codes):
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        ends = np.append(starts[1:], len(row))
        for start, end in zip(starts, ends, strict=True):
            paths = paths_by_color.setdefault(int(row[start]), [])
            paths.append(f"M{start} {y}h{end - start}v1H{start}z")
    for color_code, paths in paths_by_color.items():
        yield f"#{color_code:06x}", "".join(paths)


def _format_point(point: tuple[float, float]) -> str:
    return f"{_format_number(point[0])} {_format_number(point[1])}"


def _format_number(value: float) -> str:
    """Format an SVG coordinate or size, rounded to two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


RESOURCE_DIRECTORY = Path(__file__).parent


def read_page_resource(name: str) -> str:
    """Return the text of a style sheet or script in the `drawing` directory."""
    return (RESOURCE_DIRECTORY / name).read_text(encoding="utf-8")


def render_html_page(
    title: str, body: str, *, styles: Sequence[str], scripts: Sequence[str], data: Json
) -> str:
    """Render a self-contained HTML page with the style sheets `styles` and the scripts `scripts`.
    `body` is HTML markup in which text is already escaped. The page element with the id `data`
    contains the argument `data` as JSON.
    """
    style_sheet, script = "\n".join(styles), "\n".join(scripts)
    return "\n".join(
        [
            "<!doctype html>",
            GENERATOR_MARK,
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" '
            f'content="{build_content_security_policy(style_sheet, script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{style_sheet}</style>",
            "</head>",
            "<body>",
            body,
            f'<script type="application/json" id="data">{encode_html_safe_json(data)}</script>',
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def build_content_security_policy(style: str, script: str) -> str:
    """Build the Content-Security-Policy for a page with the given style sheet and script."""
    return (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash_source(text: str) -> str:
    """Return the hash of a style sheet or script in the format of a Content-Security-Policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{b64encode(digest).decode('ascii')}'"


def encode_html_safe_json(data: Json) -> str:
    """Encode data as JSON that is safe inside a script element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    # `<` is written as a JSON escape, because `</script>` in a string would end the element
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

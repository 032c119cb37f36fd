"""Self-contained HTML pages, and attention maps as an interactive page."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import singledispatch
from html import escape
from pathlib import Path

import numpy as np

from specc.drawing.attention_maps import AttentionMap, AttentionMaps, MapAxis, max_pool_map
from specc.drawing.drawing_marks import (
    COLOR_STOPS,
    LOG_DECADES,
    PAPER,
    BoxMark,
    Bytes,
    CellsMark,
    Doubles,
    Drawing,
    LineMark,
    Mark,
    TextMark,
    printable_label,
    scale_image,
)
from specc.drawing.png import encode_png
from specc.io.json_io import Json

GENERATOR_MARK = "<!-- specc -->"
"""Text by which `specc.io.file_signatures` recognizes drawings and pages that specc wrote."""

FONT_FAMILY = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Noto Sans', sans-serif"

MAX_PATHS = 40_000
"""Maximum number of cells of a table that are drawn as paths; larger tables are embedded images."""


def render_svg(drawing: Drawing) -> str:
    """Render an SVG file with a title for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(drawing.width)}" '
        f'height="{_n(drawing.height)}" {_render_drawing(drawing)}\n'
    )


def render_inline_svg(drawing: Drawing, kind: str) -> str:
    """Render an SVG element of the class `kind` for a page, without background."""
    width, height = _n(drawing.width), _n(drawing.height)
    size = f'class="{escape(kind)}" width="{width}" height="{height}"'
    return f"<svg {size} {_render_drawing(drawing, paper=False)}"


def _render_drawing(drawing: Drawing, *, paper: bool = True) -> str:
    width, height = _n(drawing.width), _n(drawing.height)
    title = escape(drawing.title)
    parts = [
        f'viewBox="0 0 {width} {height}" role="img" font-family="{escape(FONT_FAMILY)}">',
        GENERATOR_MARK if paper else "",
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>' if paper else "",
        *(_render_mark(mark) for mark in drawing.marks),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


@singledispatch
def _render_mark(mark: Mark) -> str:
    raise AssertionError(f"no rule draws {mark}")


@_render_mark.register
def _(mark: TextMark) -> str:
    turn = f' transform="rotate(-90 {_n(mark.x)} {_n(mark.y)})"' if mark.upright else ""
    bold = ' font-weight="600"' if mark.bold else ""
    anchor = f' text-anchor="{mark.anchor}"' if mark.anchor != "start" else ""
    return (
        f'<text x="{_n(mark.x)}" y="{_n(mark.y)}" font-size="{_n(mark.size)}" '
        f'fill="{mark.color}"{anchor}{bold}{turn}>{escape(mark.text)}</text>'
    )


@_render_mark.register
def _(mark: BoxMark) -> str:
    round_ = f' rx="{_n(mark.radius)}"' if mark.radius else ""
    line = f' stroke-width="{_n(mark.weight)}"' if mark.stroke != "none" else ""
    part = f' data-part="{escape(mark.part)}"' if mark.part else ""
    return (
        f'<rect x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" '
        f'height="{_n(mark.height)}" fill="{mark.fill}" '
        f'stroke="{mark.stroke}"{line}{round_}{part}/>'
    )


@_render_mark.register
def _(mark: LineMark) -> str:
    dashes = ' stroke-dasharray="5 4"' if mark.dashed else ""
    body = (
        f'<path d="{_render_path(mark)}" fill="none" stroke="{mark.color}" '
        f'stroke-width="{_n(mark.weight)}" stroke-linejoin="round"{dashes}/>'
    )
    return body + (_draw_arrow(mark) if mark.arrow else "")


def _render_path(mark: LineMark) -> str:
    """Render points as an SVG path with rounded corners of the given radius."""
    points = mark.points
    commands = [f"M{_xy(points[0])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        if not mark.radius:
            commands.append(f"L{_xy(corner)}")
            continue
        into, out = (_point_towards(corner, end, mark.radius) for end in (before, after))
        commands.append(f"L{_xy(into)}Q{_xy(corner)} {_xy(out)}")
    return "".join([*commands, f"L{_xy(points[-1])}"])


def _point_towards(
    start: tuple[float, float], end: tuple[float, float], by: float
) -> tuple[float, float]:
    """Return the point at distance `by` from `start` towards `end`, at most half the way."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    share = min(by, length / 2) / length if length else 0.0
    return start[0] + dx * share, start[1] + dy * share


def _draw_arrow(mark: LineMark) -> str:
    """Draw an arrowhead at the last point, in the direction of the last segment."""
    (x, y), before = mark.points[-1], mark.points[-2]
    back = _point_towards((x, y), before, 6)
    dx, dy = (x - back[0]) / 2, (y - back[1]) / 2
    left, right = (back[0] - dy, back[1] + dx), (back[0] + dy, back[1] - dx)
    return f'<path d="M{_xy((x, y))}L{_xy(left)}L{_xy(right)}Z" fill="{mark.color}"/>'


@_render_mark.register
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
    """Return a path per color over its cells, with adjacent cells of a row merged."""
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
    """Format a length with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


TEMPLATE_DIRECTORY = Path(__file__).parent


def read_page_resource(name: str) -> str:
    """Return a style sheet or script next to this module."""
    return (TEMPLATE_DIRECTORY / name).read_text(encoding="utf-8")


def render_page(
    title: str, body: str, *, styles: Sequence[str], programs: Sequence[str], data: Json
) -> str:
    """Return an HTML file. `body` is escaped markup, `data` becomes JSON in the element `data`."""
    style, program = "\n".join(styles), "\n".join(programs)
    return "\n".join(
        [
            "<!doctype html>",
            GENERATOR_MARK,
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" '
            f'content="{content_security_policy(style, program)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            body,
            f'<script type="application/json" id="data">{escape_json(data)}</script>',
            f"<script>{program}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def content_security_policy(style: str, program: str) -> str:
    """Return the Content-Security-Policy of a page with this style and script."""
    return (
        f"default-src 'none'; script-src {_hash_source(program)}; style-src {_hash_source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{b64encode(digest).decode('ascii')}'"


def escape_json(data: Json) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    # `</script>` in a token would end the element; JSON reads the escapes as the same text
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


MAX_CELLS = 1 << 20
"""Maximum number of cells of a page (4 MiB of weights); larger maps are pooled."""

MAX_LABEL_LENGTH = 120
"""Maximum number of characters of a label on a page."""

MAX_PIXELS = 512


def render_attention_html(looks: AttentionMaps, *, log: bool = False) -> str:
    """Render the HTML page; it shows the last attention first."""
    step = _get_step(looks.maps)
    axes: list[MapAxis] = []
    maps: list[Json] = [_render_map(m, axes, step) for m in looks.maps]
    data: Json = {
        "maps": maps,
        "axes": [_add_axis(axis) for axis in axes],
        "step": step,
        "log": log,
        "decades": LOG_DECADES,
        "colors": [[int(c) for c in row] for row in COLOR_STOPS],
        "picture": _render_image(looks),
    }
    said = f"Attention: {printable_label(looks.model, 80)}"
    return render_page(
        said,
        _render_body(looks, step),
        styles=[read_page_resource("page.css"), read_page_resource("attention.css")],
        programs=[read_page_resource("page.js"), read_page_resource("attention.js")],
        data=data,
    )


def _get_step(maps: Sequence[AttentionMap]) -> int:
    """Return the number of map cells per displayed cell and side, so that the map fits."""
    # counted over all maps: a page of many small maps is as large as one of a single large map
    step = 1
    while sum(_render_cells(m, step) for m in maps) > MAX_CELLS:
        step += 1
    return step


def _render_cells(attention: AttentionMap, step: int) -> int:
    rows, columns = len(attention.queries.labels), len(attention.keys.labels)
    return len(attention.heads) * -(-rows // step) * -(-columns // step)


def _render_map(attention: AttentionMap, axes: list[MapAxis], step: int) -> Json:
    """Render one attention; its axes are added to the shared ones."""
    places = []
    for axis in (attention.queries, attention.keys):
        # layers share their axes, whose labels are written once
        if axis not in axes:
            axes.append(axis)
        places.append(axes.index(axis))
    # each cell of the page covers `step` cells of the map per side
    sides = max(attention.weights.shape[1:])
    cells, _ = max_pool_map(attention.marked(), -(-sides // step))
    return {
        "scope": printable_label(attention.scope, MAX_LABEL_LENGTH),
        "heads": list(attention.heads),
        "queries": places[0],
        "keys": places[1],
        "rows": cells.shape[1],
        "columns": cells.shape[2],
        "weights": encode_weights_base64(cells),
    }


def encode_weights_base64(weights: Doubles) -> str:
    """Encode weights as base64 of little-endian float32; minus infinity marks hidden ones."""
    return b64encode(weights.astype("<f4").tobytes()).decode("ascii")


def _add_axis(axis: MapAxis) -> Json:
    grid = axis.grid
    return {
        "role": axis.role,
        "caption": axis.caption,
        "labels": [printable_label(label, MAX_LABEL_LENGTH) for label in axis.labels],
        "grid": [grid.rows, grid.columns, grid.lead] if grid else None,
    }


def _render_image(looks: AttentionMaps) -> Json:
    """Return the image as RGB bytes, row by row."""
    if looks.image is None:
        return None
    pixels = scale_image(looks.image, 1, MAX_PIXELS)
    return {
        "rows": pixels.shape[0],
        "columns": pixels.shape[1],
        "pixels": b64encode(np.ascontiguousarray(pixels).tobytes()).decode("ascii"),
    }


def _render_body(looks: AttentionMaps, step: int) -> str:
    pooled_note = (
        f"<p class=note>Downsampled: a cell is the maximum weight of {step} × {step}. "
        "Select fewer layers or heads (--layers, --heads) for full resolution.</p>"
        if step > 1
        else ""
    )
    return read_page_resource("attention.html").format(
        model=escape(printable_label(looks.model, 80)),
        given=escape(printable_label(looks.given, 2000)),
        note=pooled_note,
    )

"""Self-contained HTML pages, and attention maps as an interactive page."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from specc.drawing.attention_maps import AttentionMap, AttentionMaps, MapAxis, max_pool_map
from specc.drawing.colormap import COLOR_STOPS, LOG_DECADES, Doubles, scale_image
from specc.drawing.drawing_marks import printable_label
from specc.drawing.svg import GENERATOR_MARK
from specc.io.json_io import Json

TEMPLATE_DIRECTORY = Path(__file__).parent


def read_page_resource(name: str) -> str:
    """A style or a program that lies beside this module."""
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
    """The content-security-policy of a page with this style and this program."""
    return (
        f"default-src 'none'; script-src {_hash(program)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{b64encode(digest).decode('ascii')}'"


def escape_json(data: Json) -> str:
    """JSON that stands in a script element and cannot end it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    # `</script>` in a token would end the element; JSON reads the escapes as the same
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


MAX_CELLS = 1 << 20
"""Maximum number of cells of a page (4 MiB of weights); larger maps are pooled."""

MAX_LABEL_LENGTH = 120
"""Maximum number of characters of a label on a page."""

MAX_PIXELS = 512


def render_attention_html(looks: AttentionMaps, *, log: bool = False) -> str:
    """The page. The last attention is shown first."""
    step = _step(looks.maps)
    axes: list[MapAxis] = []
    maps: list[Json] = [_map(m, axes, step) for m in looks.maps]
    data: Json = {
        "maps": maps,
        "axes": [_axis(axis) for axis in axes],
        "step": step,
        "log": log,
        "decades": LOG_DECADES,
        "colors": [[int(c) for c in row] for row in COLOR_STOPS],
        "picture": _picture(looks),
    }
    said = f"Attention: {printable_label(looks.model, 80)}"
    return render_page(
        said,
        _body(looks, step),
        styles=[read_page_resource("page.css"), read_page_resource("attention.css")],
        programs=[read_page_resource("page.js"), read_page_resource("attention.js")],
        data=data,
    )


def _step(maps: Sequence[AttentionMap]) -> int:
    """Cells of a map along a side of one cell of the page, so that all have room."""
    # counted for all maps together: a page of many small ones is as large as of one
    step = 1
    while sum(_cells(m, step) for m in maps) > MAX_CELLS:
        step += 1
    return step


def _cells(attention: AttentionMap, step: int) -> int:
    rows, columns = len(attention.queries.labels), len(attention.keys.labels)
    return len(attention.heads) * -(-rows // step) * -(-columns // step)


def _map(attention: AttentionMap, axes: list[MapAxis], step: int) -> Json:
    """One attention; its axes are put among those there are."""
    places = []
    for axis in (attention.queries, attention.keys):
        # layers share their axes, whose labels are written once
        if axis not in axes:
            axes.append(axis)
        places.append(axes.index(axis))
    # so many cells a side that one of the page has `step` of the map's
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
    """Weights as 32-bit floats, the lowest byte first; minus infinity is hidden."""
    return b64encode(weights.astype("<f4").tobytes()).decode("ascii")


def _axis(axis: MapAxis) -> Json:
    grid = axis.grid
    return {
        "role": axis.role,
        "caption": axis.caption,
        "labels": [printable_label(label, MAX_LABEL_LENGTH) for label in axis.labels],
        "grid": [grid.rows, grid.columns, grid.lead] if grid else None,
    }


def _picture(looks: AttentionMaps) -> Json:
    """The picture as bytes red, green, blue, row by row."""
    if looks.picture is None:
        return None
    pixels = scale_image(looks.picture, 1, MAX_PIXELS)
    return {
        "rows": pixels.shape[0],
        "columns": pixels.shape[1],
        "pixels": b64encode(np.ascontiguousarray(pixels).tobytes()).decode("ascii"),
    }


def _body(looks: AttentionMaps, step: int) -> str:
    pooled_note = (
        f"<p class=note>The maps are large: a cell is the greatest weight of {step} × {step}. "
        "Fewer layers or heads (--layers, --heads) are shown cell by cell.</p>"
        if step > 1
        else ""
    )
    return read_page_resource("attention.html").format(
        model=escape(printable_label(looks.model, 80)),
        given=escape(printable_label(looks.given, 2000)),
        note=pooled_note,
    )

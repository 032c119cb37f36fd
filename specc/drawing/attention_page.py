"""Attention maps as an interactive HTML page."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

import numpy as np

from specc.drawing.attention_maps import AttentionMap, AttentionMaps, MapAxis, max_pool_map
from specc.drawing.drawing_marks import COLOR_STOPS, LOG_DECADES, make_printable_label, scale_image
from specc.drawing.svg_and_html_page import read_page_resource, render_page
from specc.io.json_io import Json

MAX_CELLS = 1 << 20
"""Maximum number of cells of a page (4 MiB of weights); larger maps are pooled."""

MAX_LABEL_LENGTH = 120
"""Maximum number of characters of a label on a page."""

MAX_PIXELS = 512


def render_attention_html(plot: AttentionMaps, *, log: bool = False) -> str:
    """Render attention maps as an interactive HTML page, which opens at the last map."""
    step = _get_step(plot.maps)
    axes: list[MapAxis] = []
    maps: list[Json] = [_map_to_json(m, axes, step) for m in plot.maps]
    data: Json = {
        "maps": maps,
        "axes": [_axis_to_json(axis) for axis in axes],
        "step": step,
        "log": log,
        "decades": LOG_DECADES,
        "colors": [[int(c) for c in row] for row in COLOR_STOPS],
        "picture": _image_to_json(plot),
    }
    title = f"Attention: {make_printable_label(plot.model_name, 80)}"
    return render_page(
        title,
        _render_body(plot, step),
        styles=[read_page_resource("page.css"), read_page_resource("attention.css")],
        programs=[read_page_resource("page.js"), read_page_resource("attention.js")],
        data=data,
    )


def _get_step(maps: Sequence[AttentionMap]) -> int:
    """Return the block size of max-pooling with which all maps together have at most MAX_CELLS
    cells.
    """
    step = 1
    while sum(_count_cells(m, step) for m in maps) > MAX_CELLS:
        step += 1
    return step


def _count_cells(attention: AttentionMap, step: int) -> int:
    rows, columns = len(attention.query_axis.labels), len(attention.key_axis.labels)
    return len(attention.heads) * -(-rows // step) * -(-columns // step)


def _map_to_json(attention: AttentionMap, axes: list[MapAxis], step: int) -> Json:
    """Convert a map to JSON. Append its axes to `axes` unless the list already contains them."""
    axis_indices = []
    for axis in (attention.query_axis, attention.key_axis):
        if axis not in axes:
            axes.append(axis)
        axis_indices.append(axes.index(axis))
    longest_side = max(attention.weights.shape[1:])
    cells, _ = max_pool_map(attention.get_masked_weights(), -(-longest_side // step))
    return {
        "scope": make_printable_label(attention.scope, MAX_LABEL_LENGTH),
        "heads": list(attention.heads),
        "queries": axis_indices[0],
        "keys": axis_indices[1],
        "rows": cells.shape[1],
        "columns": cells.shape[2],
        # little-endian float32; -inf marks masked pairs
        "weights": b64encode(cells.astype("<f4").tobytes()).decode("ascii"),
    }


def _axis_to_json(axis: MapAxis) -> Json:
    grid = axis.grid
    return {
        "role": axis.role,
        "caption": axis.caption,
        "labels": [make_printable_label(label, MAX_LABEL_LENGTH) for label in axis.labels],
        "grid": [grid.rows, grid.columns, grid.prefix_tokens] if grid else None,
    }


def _image_to_json(plot: AttentionMaps) -> Json:
    """Convert the image to JSON with base64 RGB bytes, or return None if there is no image."""
    if plot.image is None:
        return None
    pixels = scale_image(plot.image, 1, MAX_PIXELS)
    return {
        "rows": pixels.shape[0],
        "columns": pixels.shape[1],
        "pixels": b64encode(np.ascontiguousarray(pixels).tobytes()).decode("ascii"),
    }


def _render_body(plot: AttentionMaps, step: int) -> str:
    pooled_note = (
        f"<p class=note>Downsampled: a cell is the maximum weight of {step} × {step}. "
        "Select fewer layers or heads (--layers, --heads) for full resolution.</p>"
        if step > 1
        else ""
    )
    return read_page_resource("attention.html").format(
        model=escape(make_printable_label(plot.model_name, 80)),
        given=escape(make_printable_label(plot.input_text, 2000)),
        note=pooled_note,
    )

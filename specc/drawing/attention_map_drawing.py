"""Draw attention maps, either with one panel per head or as overlays on the input image."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.drawing.attention_maps import (
    AttentionMap,
    AttentionMapAxis,
    AttentionMaps,
    PatchGrid,
    max_pool_attention,
)
from specc.drawing.drawing_elements import (
    FAINT,
    MARGIN,
    MASKED_COLOR,
    BoxElement,
    Bytes,
    ColorScale,
    Doubles,
    Drawing,
    DrawingElement,
    HeatmapElement,
    PanelGrid,
    TextElement,
    arrange_panels,
    estimate_text_width,
    format_tick_label,
    make_printable_label,
    overlay_attention_weights,
    scale_image,
)

PANEL_GAP = 6
COLORBAR_WIDTH = 12
MAX_CELLS = 1024  # maximum number of cells per side (larger maps are max-pooled)
MIN_LABEL_HEIGHT = 9.0  # minimum row height in points for a readable label
MAX_LABELED_ROWS = 48  # maximum number of rows for which row height equals label height
LABEL_SIZE = 10.5


def draw_attention_maps(plot: AttentionMaps, *, log: bool = False) -> Drawing:
    """Draw all attention maps with one color scale. The scale is logarithmic if `log` is True."""
    scale = ColorScale.from_values(
        (w for m in plot.maps for w in _collect_visible_weights(m, plot)), log=log
    )
    max_heads = max((len(m.heads) for m in plot.maps), default=1)
    panel_groups = [_draw_attention_layer(m, plot, scale, max_heads) for m in plot.maps]
    heading = _draw_heading(plot)
    elements: list[DrawingElement] = [*heading]
    top = MARGIN + 44.0
    right_edge = max(
        element.x + estimate_text_width(element.text, element.size) for element in heading
    )
    right_edge = max(right_edge, *(MARGIN + group.width for group in panel_groups), 200)
    first_top = top + (panel_groups[0].heading_height if panel_groups else 0)
    for group in panel_groups:
        elements += group.move_elements(MARGIN, top)
        top += group.height + MARGIN
    # the color bar next to the first layer may be taller than the heat maps
    height = max(top, first_top + 150)
    has_masked = any(m.is_masked.any() for m in plot.maps)
    elements += _draw_color_bar(scale, right_edge + MARGIN, first_top, has_masked=has_masked)
    drawing = Drawing(width=right_edge + MARGIN + 64, height=height, title=_describe_plot(plot))
    drawing.add_elements(elements)
    return drawing


def _draw_heading(plot: AttentionMaps) -> list[TextElement]:
    """Draw the heading of a plot: the name of the model and the input."""
    model, text = (
        make_printable_label(plot.model_name, 60),
        make_printable_label(plot.input_text, 90),
    )
    return [
        TextElement(x=MARGIN, y=MARGIN + 12, text=model, size=14, is_bold=True),
        TextElement(x=MARGIN, y=MARGIN + 27, text=text, size=10, color=FAINT),
    ]


def _describe_plot(plot: AttentionMaps) -> str:
    """Return a plot's alternative text, which lists the scopes and the sizes of the first maps."""
    maps = [f"{m.scope}, {m.query_axis.caption} by {m.key_axis.caption}" for m in plot.maps[:8]]
    return make_printable_label(
        f"{make_printable_label(plot.model_name, 60)}: {'; '.join(maps)}", 500
    )


def _collect_visible_weights(attention: AttentionMap, plot: AttentionMaps) -> list[Doubles]:
    """Return the attention weights for the color scale, with -inf at masked positions."""
    if plot.image is not None and attention.key_axis.grid is not None:
        return [weights for _, weights in iterate_attention_panels(attention)]
    return [attention.get_masked_weights()]


def _draw_attention_layer(
    attention: AttentionMap, plot: AttentionMaps, scale: ColorScale, max_heads: int
) -> PanelGrid:
    """Draw a layer as overlays on the image if the keys are patches, otherwise as heat maps."""
    if plot.image is not None and attention.key_axis.grid is not None:
        return draw_overlay_panels(attention, plot.image, scale)
    return _draw_heat_maps(attention, scale, max_heads)


@immutable_dataclass(kw_only=True)
class _AxisLayout:
    """The layout of a heat map axis: the `cell_size` in points, and the labels that fit."""

    axis: AttentionMapAxis
    cell_size: float
    step: int
    """The number of positions per cell of the heat map."""

    @property
    def size(self) -> float:
        """Return the font size of the axis labels in points."""
        return min(LABEL_SIZE, max(7.5, self.cell_size * 0.82))

    @property
    def label_interval(self) -> int:
        """Return the number of cells from one axis label to the next."""
        return max(1, math.ceil(self.size * 1.08 / self.cell_size))

    def list_labels(self) -> list[tuple[int, str]]:
        """Return the axis labels to draw, each with the index of the cell that it labels."""
        cell_labels = self.axis.labels[:: self.step]
        return [
            (n, make_printable_label(cell_labels[n]))
            for n in range(0, len(cell_labels), self.label_interval)
        ]

    def format_caption(self, axis_name: str) -> str:
        """Format the axis caption, which includes the interval between labels if it is not 1."""
        n = self.label_interval * self.step
        note = f"; every {n}{_get_ordinal_suffix(n)} is labeled" if n > 1 else ""
        return f"{axis_name}: {self.axis.caption}{note}"

    def measure_widest_label(self) -> float:
        """Return the width of the widest label in points."""
        return max((estimate_text_width(t, self.size) for _, t in self.list_labels()), default=0.0)


def _get_ordinal_suffix(number: int) -> str:
    """Return the ordinal suffix of a number: `st`, `nd`, `rd` or `th`."""
    if 10 <= number % 100 <= 20:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _draw_heat_maps(attention: AttentionMap, scale: ColorScale, max_heads: int) -> PanelGrid:
    """Draw one heat map per head with labeled axes. The cell size depends on `max_heads`."""
    cells, step = max_pool_attention(attention.get_masked_weights(), MAX_CELLS)
    cell_size = _get_cell_size(max(cells.shape[1:]), max_heads)
    query_layout = _AxisLayout(axis=attention.query_axis, cell_size=cell_size, step=step)
    key_layout = _AxisLayout(axis=attention.key_axis, cell_size=cell_size, step=step)
    # key labels are horizontal only if the widest label fits above its cells
    is_rotated = key_layout.measure_widest_label() > cell_size * key_layout.label_interval - 2
    label_height = (
        key_layout.measure_widest_label() if is_rotated else key_layout.size
    ) + PANEL_GAP
    label_width = 16 + query_layout.measure_widest_label() + PANEL_GAP
    height, width = (length * cell_size for length in cells.shape[1:])
    # the title is omitted if head 0 is the only head
    has_head_titles = len(attention.heads) > 1 or attention.heads[0] != 0
    panels: list[list[DrawingElement]] = [
        [
            *_draw_framed_heatmap(scale.compute_colors(weights), width, height),
            *(_draw_head_title(name) if has_head_titles else ()),
        ]
        for weights, name in zip(cells, attention.heads, strict=True)
    ]
    group = arrange_panels(
        panels,
        (max(width, 40.0), height),
        left=label_width,
        top=label_height + 14,
        title_height=16 if has_head_titles else 0,
        title=attention.scope,
    )
    _draw_query_axis(group, query_layout, height)
    head_title_height = 18 if has_head_titles else 0
    for x, y in group.first_row:
        group.elements += _draw_key_labels(
            key_layout, x, y - head_title_height, is_rotated=is_rotated
        )
    x, y = group.first_row[0]
    caption = key_layout.format_caption("key")
    caption += f"; a cell is the maximum of {step} × {step}" if step > 1 else ""
    baseline = y - head_title_height - label_height - 3
    group.elements.append(TextElement(x=x, y=baseline, text=caption, size=9.5, color=FAINT))
    group.width = max(group.width, x + estimate_text_width(caption, 9.5))
    return group


def _draw_head_title(head: int) -> list[DrawingElement]:
    """Draw the index of an attention head above its heat map."""
    return [TextElement(y=-PANEL_GAP, text=f"head {head}", size=10, color=FAINT)]


def _draw_query_axis(group: PanelGrid, query_layout: _AxisLayout, height: float) -> None:
    """Draw the query labels of each row of panels, and the axis caption of the first row."""
    for x, y in group.first_column:
        group.elements += _draw_query_labels(query_layout, x, y, height)
    x, y = group.first_column[0]
    caption = query_layout.format_caption("query")
    # a caption that is longer than the heat map continues below the heat map
    bottom = y + max(height, estimate_text_width(caption, 9.5))
    left = x - PANEL_GAP - query_layout.measure_widest_label() - 8
    group.elements.append(
        TextElement(x=left, y=bottom, text=caption, size=9.5, color=FAINT, is_rotated=True)
    )
    group.height = max(group.height, bottom)


def _draw_framed_heatmap(colors: Bytes, width: float, height: float) -> Iterator[DrawingElement]:
    """Draw a heat map or an image with a border."""
    yield HeatmapElement(width=width, height=height, colors=colors)
    yield BoxElement(width=width, height=height, stroke="#b9b9c2", stroke_width=0.5)


def _draw_query_labels(
    layout: _AxisLayout, x: float, y: float, height: float
) -> Iterator[DrawingElement]:
    """Draw the labels of the query axis to the left of a panel."""
    for n, label in layout.list_labels():
        # the label of a cell that covers several positions is centered
        cell_position = n + layout.label_interval / 2
        center_y = y + cell_position * layout.cell_size
        baseline = min(center_y, y + height) + layout.size * 0.35
        yield TextElement(x=x - PANEL_GAP, y=baseline, text=label, size=layout.size, anchor="end")


def _draw_key_labels(
    layout: _AxisLayout, x: float, y: float, *, is_rotated: bool
) -> Iterator[DrawingElement]:
    """Draw the labels of the key axis above a panel."""
    for n, label in layout.list_labels():
        center_x = x + (n + 0.5) * layout.cell_size
        baseline_x = center_x + layout.size * 0.35 if is_rotated else center_x
        yield TextElement(
            x=baseline_x,
            y=y - PANEL_GAP,
            text=label,
            size=layout.size,
            anchor="start" if is_rotated else "middle",
            is_rotated=is_rotated,
        )


def _get_cell_size(cells: int, heads: int) -> float:
    """Return the cell size in points of a heat map with `cells` cells per side. The size is such
    that `heads` panels with readable labels fit on the page.
    """
    # the panel width in points decreases with the number of heads
    target_width = 460 if heads == 1 else 300 if heads <= 4 else 220 if heads <= 9 else 150
    preferred = min(28.0, target_width / max(1, cells))
    return max(preferred, MIN_LABEL_HEIGHT if cells <= MAX_LABELED_ROWS else 0.5)


def _draw_color_bar(
    scale: ColorScale, x: float, y: float, *, has_masked: bool
) -> Sequence[DrawingElement]:
    """Draw the color bar, with the maximum at the top, and a box in the color of masked cells."""
    height = 120.0
    fractions = np.linspace(1, 0, 128)[:, None]
    if scale.is_logarithmic:
        values = scale.low * (scale.high / scale.low) ** fractions
    else:
        values = scale.low + (scale.high - scale.low) * fractions
    elements: list[DrawingElement] = [
        HeatmapElement(
            x=x, y=y, width=COLORBAR_WIDTH, height=height, colors=scale.compute_colors(values)
        )
    ]
    # the lowest color of a logarithmic scale also represents all smaller weights
    low = ("≤ " if scale.is_logarithmic else "") + format_tick_label(scale.low)
    high, middle = map(format_tick_label, (scale.high, scale.get_middle_value()))
    labels = [(4.0, high), (4 + height / 2, middle), (4 + height, low)]
    if has_masked:
        size, gray = COLORBAR_WIDTH, MASKED_COLOR[None, None]
        elements.append(
            HeatmapElement(x=x, y=y + height + 12, width=size, height=size, colors=gray)
        )
        labels.append((height + 22, "masked"))
    left = x + COLORBAR_WIDTH + 4
    return [
        *elements,
        *(TextElement(x=left, y=y + base, text=text, size=9) for base, text in labels),
    ]


LARGE_PANEL, SMALL_PANEL = 210.0, 150.0
MAX_PIXELS = 384


def draw_overlay_panels(attention: AttentionMap, image: Bytes, scale: ColorScale) -> PanelGrid:
    """Draw the image with attention weights overlaid. For the class token or the mean of all
    patches, draw one panel per head. For generated tokens, draw one panel per token. It shows the
    mean of all heads.
    """
    maps = list(iterate_attention_panels(attention))
    target_width = LARGE_PANEL if len(maps) <= 3 else SMALL_PANEL
    scaled_image = scale_image(image, 64, MAX_PIXELS)
    scale_factor = target_width / max(scaled_image.shape[:2])
    width, height = scaled_image.shape[1] * scale_factor, scaled_image.shape[0] * scale_factor
    # the first panel shows the image without an overlay, because overlaid colors hide image content
    panels = [_draw_panel(scaled_image, "input", width, height)]
    for title, weights in maps:
        panels.append(
            _draw_panel(
                overlay_attention_weights(scaled_image, weights, scale), title, width, height
            )
        )
    return arrange_panels(
        panels, (width, height), left=0, top=0, title_height=16, title=_describe_overlay(attention)
    )


def _describe_overlay(attention: AttentionMap) -> str:
    """Describe an overlaid layer, as in `encoder.layer.3: [CLS] attends to 4 × 4 patches`."""
    grid = attention.key_axis.grid
    assert grid is not None, "keys are patches"
    patches = f"{grid.rows} × {grid.columns} patches"
    if attention.query_axis.role != "image":
        subject = f"each token {attention.query_axis.role}"
    elif attention.query_axis.grid is not None and attention.query_axis.grid.prefix_tokens:
        subject = attention.query_axis.labels[0]
    else:
        subject = "the average patch"
    return f"{attention.scope}: {subject} attends to {patches}"


def _draw_panel(pixels: Bytes, title: str, width: float, height: float) -> list[DrawingElement]:
    return [
        *_draw_framed_heatmap(pixels, width, height),
        TextElement(y=-5, text=make_printable_label(title), size=10, color=FAINT),
    ]


def iterate_attention_panels(attention: AttentionMap) -> Iterator[tuple[str, Doubles]]:
    """Yield the title and the attention weights [grid height, grid width] of each overlay panel."""
    grid = attention.key_axis.grid
    assert grid is not None, "keys are patches"
    weights = attention.get_masked_weights()
    if attention.query_axis.role != "image":
        # panels for each combination of head and token would make the page too large
        for label, row in zip(attention.query_axis.labels, weights.mean(0), strict=True):
            yield label, reshape_to_patch_grid(row, grid)
        return
    # for classifiers, the class token is shown if there is one, otherwise the mean of all patches
    query_grid = attention.query_axis.grid
    rows = weights[:, 0] if query_grid and query_grid.prefix_tokens else weights.mean(1)
    if len(rows) > 1:
        yield "mean of heads", reshape_to_patch_grid(rows.mean(0), grid)
    for head, row in zip(attention.heads, rows, strict=True):
        yield f"head {head}", reshape_to_patch_grid(row, grid)


def reshape_to_patch_grid(weights: Doubles, grid: PatchGrid) -> Doubles:
    """Reshape the attention weights of a token sequence [prefix_tokens + grid height · grid width]
    to the patch grid [grid height, grid width], without the prefix tokens.
    """
    return np.asarray(weights[grid.prefix_tokens :]).reshape(grid.rows, grid.columns)

"""Attention laid over the input image."""

from collections.abc import Iterator

import numpy as np

from specc.drawing.attention_maps import AttentionMap, Doubles, PatchGrid
from specc.drawing.color_scale import ColorScale, blend_over_image, scale_image
from specc.drawing.colormap import Bytes
from specc.drawing.drawing_marks import FAINT, BoxMark, CellsMark, Mark, TextMark, printable_label
from specc.drawing.panel_layout import PanelBlock, arrange_panels

LARGE, SMALL = 210.0, 150.0
MOST_PIXELS = 384


def overlay_panels(attention: AttentionMap, picture: Bytes, scale: ColorScale) -> PanelBlock:
    """The picture, and over it where the model looked: of a model of pictures its first
    token or all patches on the average, a panel a head; of one that writes each token, the
    mean of its heads.
    """
    named = list(attention_panels(attention))
    goal = LARGE if len(named) <= 3 else SMALL
    shown = scale_image(picture, 64, MOST_PIXELS)
    share = goal / max(shown.shape[:2])
    width, height = shown.shape[1] * share, shown.shape[0] * share
    # the picture alone comes first, since colors over it hide what it shows
    panels = [_panel(shown, "what it saw", width, height)]
    for title, weights in named:
        panels.append(_panel(blend_over_image(shown, weights, scale), title, width, height))
    return arrange_panels(
        panels, (width, height), left=0, top=0, title_room=16, title=_title(attention)
    )


def _title(attention: AttentionMap) -> str:
    """What looks at what: `vit.encoder.layer.3.attention: [CLS] looks at 4 × 4 patches`."""
    grid = attention.keys.grid
    assert grid is not None, "keys are patches"
    patches = f"{grid.rows} × {grid.columns} patches"
    if attention.queries.role != "seen":
        who = f"each token {attention.queries.role}"
    elif attention.queries.grid is not None and attention.queries.grid.lead:
        who = attention.queries.labels[0]
    else:
        who = "the average patch"
    return f"{attention.scope}: {who} looks at {patches}"


def _panel(pixels: Bytes, title: str, width: float, height: float) -> list[Mark]:
    return [
        CellsMark(x=0, y=0, width=width, height=height, colors=pixels),
        BoxMark(x=0, y=0, width=width, height=height, stroke="#b9b9c2", weight=0.5),
        TextMark(x=0, y=-5, text=printable_label(title), size=10, color=FAINT),
    ]


def attention_panels(attention: AttentionMap) -> Iterator[tuple[str, Doubles]]:
    """Every panel with its title and its weights f[rows, columns]."""
    grid = attention.keys.grid
    assert grid is not None, "keys are patches"
    weights = attention.marked()
    if attention.queries.role != "seen":
        # a panel a word: heads beside words would be more than a page holds
        for label, row in zip(attention.queries.labels, weights.mean(0), strict=True):
            yield label, reshape_to_grid(row, grid)
        return
    # a token in front gathers what classes are told by; without one, patches do
    of_query = attention.queries.grid
    rows = weights[:, 0] if of_query and of_query.lead else weights.mean(1)
    if len(rows) > 1:
        yield "mean of heads", reshape_to_grid(rows.mean(0), grid)
    for head, row in zip(attention.heads, rows, strict=True):
        yield f"head {head}", reshape_to_grid(row, grid)


def reshape_to_grid(row: Doubles, grid: PatchGrid) -> Doubles:
    """The weights of patches `f[lead + rows·columns]` in image layout."""
    return np.asarray(row[grid.lead :]).reshape(grid.rows, grid.columns)

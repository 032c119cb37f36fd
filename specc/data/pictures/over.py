"""Attention over the picture that a model saw: a panel a head, or a token that was
written, beside the picture itself.
"""

from collections.abc import Iterator

import numpy as np

from specc.data.pictures.colors import Bytes
from specc.data.pictures.drawing import FAINT, Box, Cells, Mark, Text, visible
from specc.data.pictures.maps import AttentionMap, Doubles, Grid
from specc.data.pictures.panels import Block, arranged
from specc.data.pictures.scale import Scale, of_size, over_picture

LARGE, SMALL = 210.0, 150.0
MOST_PIXELS = 384


def over_panels(attention: AttentionMap, picture: Bytes, scale: Scale) -> Block:
    """The picture, and over it where the model looked: of a model of pictures its first
    token or all patches on the average, a panel a head; of one that writes each token, the
    mean of its heads.
    """
    named = list(panels_over(attention))
    goal = LARGE if len(named) <= 3 else SMALL
    shown = of_size(picture, 64, MOST_PIXELS)
    share = goal / max(shown.shape[:2])
    width, height = shown.shape[1] * share, shown.shape[0] * share
    # the picture alone comes first, since colors over it hide what it shows
    panels = [_panel(shown, "what it saw", width, height)]
    for title, weights in named:
        panels.append(_panel(over_picture(shown, weights, scale), title, width, height))
    return arranged(
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
        Cells(x=0, y=0, width=width, height=height, colors=pixels),
        Box(x=0, y=0, width=width, height=height, stroke="#b9b9c2", weight=0.5),
        Text(x=0, y=-5, text=visible(title), size=10, color=FAINT),
    ]


def panels_over(attention: AttentionMap) -> Iterator[tuple[str, Doubles]]:
    """Every panel with its title and its weights f[rows, columns]."""
    grid = attention.keys.grid
    assert grid is not None, "keys are patches"
    weights = attention.marked()
    if attention.queries.role != "seen":
        # a panel a word: heads beside words would be more than a page holds
        for label, row in zip(attention.queries.labels, weights.mean(0), strict=True):
            yield label, on_grid(row, grid)
        return
    # a token in front gathers what classes are told by; without one, patches do
    of_query = attention.queries.grid
    rows = weights[:, 0] if of_query and of_query.lead else weights.mean(1)
    if len(rows) > 1:
        yield "mean of heads", on_grid(rows.mean(0), grid)
    for head, row in zip(attention.heads, rows, strict=True):
        yield f"head {head}", on_grid(row, grid)


def on_grid(row: Doubles, grid: Grid) -> Doubles:
    """The weights of patches `f[lead + rows·columns]` as they lie in the picture."""
    return np.asarray(row[grid.lead :]).reshape(grid.rows, grid.columns)

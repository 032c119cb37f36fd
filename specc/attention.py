"""`run --attention`: the weights of a model's attentions as one picture.

Over an image, where the summary token or the average patch looked; over text, a heat map of symbols.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specc.reading.batch import TEXT
from specc.reading.image import restore
from specc.reading.picture import heatmap, overlay
from specc.reading.record import Image, TextOf, TextReading
from specc.reading.text import symbol
from specc.running import Loaded
from specc.text.diagnostic import fail

Array = Any
MOST_HEADS = 8
ALIGNMENT = "alignment"
"""A result of this name, [batch, target, source], is drawn instead: attention inside a loop has no other way out."""


def picture_of(
    model: Loaded, inputs: Mapping[str, Array], weights: Mapping[str, Array], written: Array | None = None
) -> bytes:
    """A PNG of the last attention of the model, its heads side by side. E0931 where there is none to see.

    `written` i64[batch, target] are the tokens that the rows chose, where the model wrote them itself.
    """
    if not weights:
        fail("E0931", "this model has no attention whose weights can be read")
    scope, chosen = list(weights.items())[-1]
    maps = np.asarray(chosen)[0]
    images = [(n, r) for n, r in model.manifest.reading.inputs if isinstance(r, Image)]
    if images:
        name, record = images[0]
        pixels = np.moveaxis(restore(np.asarray(model.prepared(inputs)[name])[0], record), -1, 0)
        if (grid := patch_grid(maps.shape[-1], record.size)) is not None:
            over = _looked(maps, grid)
            titles = ["mean of heads", *(f"head {n}" for n in range(len(over) - 1))]
            return overlay(pixels, over, titles)
    rows, columns = maps.shape[-2:]
    labels = _labels(model, inputs)
    down = labels.get(rows)
    if written is not None and written.shape[1] == rows != columns:
        down = _chosen(model, written) or down
    titles = [f"{scope} head {n}" if n == 0 else f"head {n}" for n in range(min(len(maps), MOST_HEADS))]
    return heatmap(maps[:MOST_HEADS], down, labels.get(columns), titles)


def alignment_of(model: Loaded, inputs: Mapping[str, Array], weights: Array, written: Array | None = None) -> bytes:
    """A PNG of the first row of a batch of alignments, [batch, target, source] or with heads before the target.

    `written` i64[batch, target] are the tokens that the rows chose, where the model wrote them itself.
    """
    maps = np.asarray(weights)[0]
    if maps.ndim not in (2, 3) or not maps.size:
        notes = [f"its shape is {list(weights.shape)}"]
        fail("E0931", f"the result `{ALIGNMENT}` holds no weights to draw", notes=notes)
    rows, columns = maps.shape[-2:]
    labels = _labels(model, inputs)
    down = labels.get(rows)
    if written is not None:
        down = _chosen(model, written) or down
    return heatmap(maps if maps.ndim == 2 else maps[:MOST_HEADS], down, labels.get(columns))


def patch_grid(keys: int, size: tuple[int, int]) -> tuple[int, int, int] | None:
    """Rows, columns and leading tokens of patches that `keys` keys can be, for a picture of `size`."""
    for lead in (1, 0, 2):
        patches = keys - lead
        if patches < 1:
            continue
        side = math.sqrt(size[0] * size[1] / patches)
        rows, columns = size[0] / side, size[1] / side
        if rows.is_integer() and columns.is_integer():
            return int(rows), int(columns), lead
    return None


def _looked(maps: Array, grid: tuple[int, int, int]) -> Array:
    """[1 + heads, rows, columns]: what the first token looked at, or patches on the average."""
    rows, columns, lead = grid
    row = maps[:MOST_HEADS, 0] if lead else maps[:MOST_HEADS].mean(1)
    seen = row[:, lead:].reshape(-1, rows, columns)
    return np.concatenate([seen.mean(0, keepdims=True), seen])


def _labels(model: Loaded, inputs: Mapping[str, Array]) -> dict[int, list[str]]:
    """Symbols of text inputs, by how many there are."""
    found: dict[int, list[str]] = {}
    for name, array in inputs.items():
        record = model.manifest.reading.of_input(name)
        if isinstance(record, TEXT) and np.ndim(array) == 2:
            ids = np.asarray(array)[0]
            found[len(ids)] = _symbols(ids, record)
    return found


def _chosen(model: Loaded, written: Array) -> list[str] | None:
    """Symbols of the tokens that the first row wrote, where the model shows them as text."""
    texts = [r.vocabulary for _, r in model.manifest.reading.shows if isinstance(r, TextOf)]
    return _symbols(written[0], texts[0]) if texts else None


def _symbols(ids: Array, record: TextReading) -> list[str]:
    """A label an id; specials, which have no text, are dots."""
    return [symbol(int(i), record) for i in ids]

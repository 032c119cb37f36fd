"""`run --attention`: the weights of a model's attentions as one picture.

Over an image, where the summary token or the average patch looked; over text, a heat
map of symbols.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from specc.data.batch import TEXT
from specc.data.image import restore
from specc.data.pictures.attention import heatmap, overlay
from specc.data.record import Image, TextOf, TextReading
from specc.data.text import symbol
from specc.files.read import shown
from specc.ir.array import Array
from specc.ir.dim import Dim
from specc.run.attention_weights import TURN, attentions
from specc.run.generation import Result, Writing
from specc.run.loaded import Loaded
from specc.text.diagnostic import fail

MOST_HEADS = 8
ALIGNMENT = "alignment"
"""A result of this name, [batch, target, source], is drawn instead: attention inside a
loop has no other way out.
"""


@dataclass(frozen=True)
class Look:
    """Where a model looked: a PNG, with the `results` of the same run, and what the
    picture leaves out.
    """

    png: bytes
    results: dict[str, Array]
    left_out: str = ""


def look(
    model: Loaded,
    inputs: Mapping[str, object],
    *,
    scope: str = "",
    written: Array | None = None,
) -> Look:
    """Runs a model and draws its attention, the one whose scope fits `scope`; its own
    alignment, if it gives one and nothing else is asked for.

    `written` i64[batch, target] are the tokens that the rows chose, where the model
    wrote them itself. E0931 where there is nothing to see.
    """
    if ALIGNMENT in model.manifest.graph.outputs and not scope:
        results = model.run(**inputs)
        return Look(alignment_of(model, inputs, results[ALIGNMENT], written), results)
    results, weights = model.attention(**inputs)
    png = picture_of(model, inputs, weights, written, scope)
    return Look(png, results, left_out(weights, scope))


def look_back(model: Loaded, writing: Writing, best: Result, scope: str) -> Look:
    """Where a model looked while it wrote: the whole graph once more, on all that the
    first row read and wrote. The last token was never fed, so nothing looked from it.
    """
    entrance = writing.writer.entrance
    growing, inputs = entrance.growing, entrance.graph.inputs
    batch, length = inputs[growing].type.shape
    tokens = np.array([best.tokens], np.int64)
    # what has an axis of the text itself is computed anew, for the longer text
    fixed = [
        name
        for name in writing.prepared
        if length not in model.manifest.graph.inputs[name].type.shape
    ]
    first: dict[str, object] = {
        name: writing.prepared[name][:1]
        if inputs[name].type.shape[:1] == (batch,)
        else writing.prepared[name]
        for name in fixed
    }
    first[growing] = np.concatenate([writing.prompt[:1], tokens[:, :-1]], axis=1)
    return look(model, first, scope=scope, written=tokens)


def picture_of(
    model: Loaded,
    inputs: Mapping[str, object],
    weights: Mapping[str, Array],
    written: Array | None = None,
    asked: str = "",
) -> bytes:
    """A PNG of an attention of the model, its heads side by side. E0931 where there is
    none to see.

    It is the last one whose scope `asked` fits, of all where nothing is asked for.
    `written` i64[batch, target] are the tokens that the rows chose, where the model
    wrote them itself.
    """
    if not weights:
        fail("E0931", "this model has no attention whose weights can be read")
    scope, chosen = drawn(weights, asked)
    maps = np.asarray(chosen)[0]
    if maps.ndim != 3 or not maps.size:
        fail(
            "E0931",
            f"the attention `{shown(scope)}` has weights that are no picture",
            notes=[f"{list(chosen.shape)}"],
        )
    if (picture := _over_picture(model, inputs, maps)) is not None:
        return picture
    queries, keys = _axes(model, scope)
    down = _labels(model, inputs, queries, maps.shape[-2])
    # Queries of another axis than the keys are what was written, where that is told.
    if written is not None and written.shape[1] == maps.shape[-2] and queries != keys:
        down = _chosen(model, written) or down
    heads = maps[:MOST_HEADS]
    titles = [f"head {n}" for n in range(len(heads))]
    titles[0] = f"{scope} {titles[0]}"
    return heatmap(heads, down, _labels(model, inputs, keys, maps.shape[-1]), titles)


def _over_picture(
    model: Loaded, inputs: Mapping[str, object], maps: Array
) -> bytes | None:
    """Maps [heads, query, key] over the first picture that the model reads; None where
    it reads none, or its keys are no grid of patches.
    """
    images = [(n, r) for n, r in model.manifest.reading.inputs if isinstance(r, Image)]
    if not images:
        return None
    name, record = images[0]
    grid = patch_grid(maps.shape[-1], record.size)
    if grid is None:
        return None
    channels_last = restore(np.asarray(model.prepared(inputs)[name])[0], record)
    over = _looked(maps, grid)
    titles = ["mean of heads", *(f"head {n}" for n in range(len(over) - 1))]
    return overlay(np.moveaxis(channels_last, -1, 0), over, titles)


def drawn(weights: Mapping[str, Array], asked: str) -> tuple[str, Array]:
    """The attention that is drawn. E0931 where none is called so."""
    fits = [scope for scope in weights if not asked or fnmatchcase(scope, asked)]
    if not fits:
        helps = [f"there are {shown(', '.join(list(weights)[:12]))}"]
        fail(
            "E0931", f"the model has no attention called `{shown(asked)}`", helps=helps
        )
    return fits[-1], weights[fits[-1]]


def left_out(weights: Mapping[str, Array], asked: str) -> str:
    """What the picture does not show of what the model has; nothing where it shows all."""
    scope, chosen = drawn(weights, asked)
    heads = np.shape(chosen)[1]
    said = (
        [f"drawn is `{shown(scope)}`"] if len(weights) > 1 or heads > MOST_HEADS else []
    )
    if heads > MOST_HEADS:
        said.append(f"the first {MOST_HEADS} of its {heads} heads, for want of room")
    if np.shape(chosen)[0] > 1:
        said = [
            *(said or [f"drawn is `{shown(scope)}`"]),
            "for the first row of the batch",
        ]
    if len(weights) > 1:
        others = [s for s in weights if s != scope]
        more = f" and {len(others) - 12} more" if len(others) > 12 else ""
        said.append(f"--scope draws another: {shown(', '.join(others[:12]))}{more}")
    return "; ".join(said)


def alignment_of(
    model: Loaded,
    inputs: Mapping[str, object],
    weights: Array,
    written: Array | None = None,
) -> bytes:
    """A PNG of the first row of a batch of alignments, [batch, target, source] or with
    heads before the target.

    `written` i64[batch, target] are the tokens that the rows chose, where the model
    wrote them itself.
    """
    maps = np.asarray(weights)[0]
    if maps.ndim not in (2, 3) or not maps.size:
        notes = [f"its shape is {list(weights.shape)}"]
        fail("E0931", f"the result `{ALIGNMENT}` holds no weights to draw", notes=notes)
    shape = model.manifest.graph.outputs[ALIGNMENT].type.shape
    down = _labels(model, inputs, shape[-2], maps.shape[-2])
    if written is not None:
        down = _chosen(model, written) or down
    across = _labels(model, inputs, shape[-1], maps.shape[-1])
    return heatmap(maps if maps.ndim == 2 else maps[:MOST_HEADS], down, across)


def patch_grid(keys: int, size: tuple[int, int]) -> tuple[int, int, int] | None:
    """Rows, columns and leading tokens of patches that `keys` keys can be, for a
    picture of `size`.
    """
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


def _axes(model: Loaded, scope: str) -> tuple[Dim | None, Dim | None]:
    """The lengths of queries and keys of the attention at `scope`, as formulas."""
    place = attentions(model.manifest.graph).get(scope.partition(TURN)[0])
    return (place.queries, place.keys) if place else (None, None)


def _labels(
    model: Loaded, inputs: Mapping[str, object], length: Dim | None, count: int
) -> list[str] | None:
    """The `count` symbols of the text input that is `length` long."""
    for name, array in inputs.items():
        record = model.manifest.reading.of_input(name)
        ids = np.asarray(array)
        if not isinstance(record, TEXT) or ids.ndim != 2 or ids.shape[1] != count:
            continue
        if model.manifest.graph.inputs[name].type.shape[1] == length:
            return _symbols(ids[0], record)
    return None


def _chosen(model: Loaded, written: Array) -> list[str] | None:
    """Symbols of the tokens that the first row wrote, where the model shows them as text."""
    texts = [
        r.vocabulary for _, r in model.manifest.reading.shows if isinstance(r, TextOf)
    ]
    return _symbols(written[0], texts[0]) if texts else None


def _symbols(ids: Array, record: TextReading) -> list[str]:
    """A label an id; specials, which have no text, are dots."""
    return [symbol(int(i), record) for i in ids]

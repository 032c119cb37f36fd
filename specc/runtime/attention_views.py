"""Attention weights of a run as labeled maps: select them, export to HTML, SVG or PNG."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.drawing.attention_maps import AttentionMap, AttentionMaps
from specc.drawing.attention_sheet import draw_attention_maps
from specc.drawing.html_page import render_attention_html, render_svg
from specc.drawing.png import find_missing_glyphs, render_png
from specc.io.safe_read import escape_text
from specc.ir.array import Array, Arrays
from specc.runtime.attention_axes import AttendedInputs
from specc.runtime.attention_weights import (
    ITERATION_SEPARATOR,
    find_attentions,
    find_masked_positions,
)
from specc.runtime.generation import GenerationResult, GenerationStream
from specc.runtime.loaded_model import LoadedModel
from specc.weights.parameter_names import NamePattern

MAX_NUMBER = 9999
"""Upper bound of layer and head numbers."""


@dataclass(frozen=True, kw_only=True)
class AttentionSelection:
    """A scope pattern and indices of layers and heads; an empty field selects all."""

    scope: str = ""
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Return whether any field restricts the selection."""
        return bool(self.scope or self.layers or self.heads)


def parse_number_list(text: str, option: str) -> tuple[int, ...]:
    """Parse `0,2-5` into sorted unique indices. E0954 for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        ends = [first, last if dash else first]
        if not all(map(_is_number, ends)) or int(ends[0]) > int(ends[1]):
            raise_error(
                "E0954",
                f"`{option} {escape_text(text)[:60]}` is not a list of numbers",
                helps=[f"write `{option} 0`, `{option} 0,3` or `{option} 2-5`"],
            )
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:9]) <= MAX_NUMBER


def select_scopes(scopes: Sequence[str], pattern: str) -> list[str]:
    """Return the scopes that match a pattern. E0931 if none does."""
    fits = [scope for scope in scopes if not pattern or NamePattern(pattern).matches(scope)]
    if not fits:
        helps = [f"its scopes are {escape_text(', '.join(scopes[:12]))}"]
        title = f"the model has no attention called `{escape_text(pattern)}`"
        raise_error("E0931", title, helps=helps)
    return fits


def select_maps(
    maps: Sequence[AttentionMap], choice: AttentionSelection
) -> tuple[AttentionMap, ...]:
    """Return the maps and heads that `choice` picks. Raise E0931 or E0954 if there are none."""
    fits = select_scopes([m.scope for m in maps], choice.scope)
    picked = [m for m in maps if m.scope in fits]
    if choice.layers:
        _check_known("layer", choice.layers, picked, {m.layer for m in picked} - {None})
        picked = [m for m in picked if m.layer in choice.layers]
    if choice.heads:
        _check_known("head", choice.heads, picked, {n for m in picked for n in m.heads})
        picked = [_select_heads(m, choice.heads) for m in picked]
    return tuple(m for m in picked if m.heads)


def _select_heads(attention: AttentionMap, heads: Sequence[int]) -> AttentionMap:
    """Return the attention with only these heads."""
    rows = [n for n, head in enumerate(attention.heads) if head in heads]
    return attention.with_heads(
        attention.weights[rows], attention.masked[rows], tuple(attention.heads[n] for n in rows)
    )


def _check_known(
    what: str, selected: Sequence[int], maps: Sequence[AttentionMap], known: Set[int | None]
) -> None:
    """Raise E0954 for an index that no map has."""
    indices = {n for n in known if n is not None}
    strange = [n for n in selected if n not in indices]
    if not strange:
        return
    names = escape_text(", ".join(m.scope for m in maps[:6]))
    more = f" and {len(maps) - 6} more" if len(maps) > 6 else ""
    has = f"no scope has a {what}: leave it out"
    if indices:
        has = f"the {what}s are {_format_number_list(indices)}"
    raise_error(
        "E0954",
        f"`--{what}s` selects {what} {strange[0]}, which does not exist",
        notes=[f"searched in {names}{more}"],
        helps=[has],
    )


def _format_number_list(indices: set[int]) -> str:
    """Format indices as `0 to 5`, or as a list if some are missing."""
    every = sorted(indices)
    if every == list(range(every[0], every[-1] + 1)) and len(every) > 2:
        return f"{every[0]} to {every[-1]}"
    return ", ".join(map(str, every[:24]))


ALIGNMENT_OUTPUT = "alignment"
"""An output of this name, [batch, target, source], is plotted by default."""

MAX_PANELS = 256
"""Maximum number of maps in one drawing; a page has no limit."""


@dataclass(frozen=True)
class AttentionRun:
    """Attention maps and `results` of one run on `rows` batch elements; the first is plotted."""

    looks: AttentionMaps
    results: dict[str, Array]
    rows: int = 1

    def select_maps(self, choice: AttentionSelection, *, every: bool) -> tuple[AttentionMaps, str]:
        """Return the maps to plot and a note on those left out. With `every`, all that `choice`
        selects; otherwise the last attention if `choice` is empty.
        """
        maps = select_maps(self.looks.maps, choice)
        if not every:
            maps = maps if choice.layers or "*" in choice.scope else maps[-1:]
            maps = _select_first(maps)
        return replace(self.looks, maps=maps), self._left_out(maps)

    def _left_out(self, maps: tuple[AttentionMap, ...]) -> str:
        """Describe the attentions and heads that a plot leaves out."""
        every = {m.scope: m for m in self.looks.maps}
        some = len(maps) < len(every)
        is_, its = ("is", "its") if len(maps) == 1 else ("are", "their")
        parts = []
        if some:
            names = escape_text(", ".join(m.scope for m in maps[:12]))
            parts.append(f"plotted {is_} `{names}`")
        heads = sum(len(every[m.scope].heads) for m in maps)
        if (drawn := sum(len(m.heads) for m in maps)) < heads:
            parts.append(f"{drawn} of {its} {heads} heads")
        if self.rows > 1:
            verb = "" if some else "plotted is "
            parts.append(f"{verb}the first of {self.rows} batch elements")
        if some:
            plotted = {m.scope for m in maps}
            left = [scope for scope in every if scope not in plotted]
            more = f" and {len(left) - 12} more" if len(left) > 12 else ""
            names = escape_text(", ".join(left[:12]))
            parts.append(f"--scope and --layers plot others: {names}{more}")
        return "; ".join(parts)


def _select_first(maps: tuple[AttentionMap, ...]) -> tuple[AttentionMap, ...]:
    """Return the maps that fit in one plot, at least one."""
    room, kept = MAX_PANELS, []
    for each in maps:
        if room <= 0:
            break
        heads = len(each.heads)
        fits = each.with_heads(each.weights[:room], each.masked[:room], each.heads[:room])
        kept.append(fits)
        room -= heads
    return tuple(kept)


def run_with_attention(
    model: LoadedModel,
    inputs: Mapping[str, object],
    *,
    scope: str = "",
    written: Array | None = None,
) -> AttentionRun:
    """Run a model and keep every attention, one of which must match `scope`; or the model's own
    `alignment` output, if it has one and no `scope` is given.

    `written` i64[batch, target] are the generated tokens of a generative model. E0931 if there are
    no attention weights.
    """
    given = AttendedInputs(model=model, arrays=model.prepared(inputs), written=written)
    if ALIGNMENT_OUTPUT in model.manifest.graph.outputs and not scope:
        results = model.run(**inputs)
        maps = [_read_alignment(given, results[ALIGNMENT_OUTPUT])]
        rows = len(results[ALIGNMENT_OUTPUT])
    else:
        results, weights = model.attention(**inputs)
        if not weights:
            raise_error("E0931", "this model has no readable attention weights")
        maps, rows = _make_maps(given, weights, scope), len(next(iter(weights.values())))
    answer = given.answer()
    text = f"{given.describe_inputs()} → {answer}" if answer else given.describe_inputs()
    looks = AttentionMaps(
        model=model.manifest.name, input_text=text, maps=tuple(maps), image=given.image()
    )
    return AttentionRun(looks, results, rows)


def attention_of_generation(
    model: LoadedModel, writing: GenerationStream, best: GenerationResult, scope: str = ""
) -> AttentionRun:
    """Return attention maps of a generation: one full forward over the prompt and the generated
    tokens of the first sequence. The last token was never fed, so it has no query.
    """
    signature = writing.writer.input_signature
    growing, inputs = signature.growing, signature.graph.inputs
    tokens = np.array([best.tokens], np.int64)
    # values along the sequence are recomputed for the longer sequence
    fixed = [
        name
        for name in writing.prepared
        if signature.length not in model.manifest.graph.inputs[name].type.shape
    ]
    first: dict[str, object] = {
        name: writing.prepared[name][:1]
        if inputs[name].type.shape[:1] == (signature.batch,)
        else writing.prepared[name]
        for name in fixed
    }
    first[growing] = np.concatenate([writing.prompt[:1], tokens[:, :-1]], axis=1)
    return run_with_attention(model, first, scope=scope, written=tokens)


def _make_maps(given: AttendedInputs, weights: Arrays, scope: str) -> list[AttentionMap]:
    """Return every attention of the first batch element as a map. E0931 if none matches `scope`, or
    its weights are not [batch, heads, query, key].
    """
    graph, model = given.model.manifest.graph, given.model
    selected = select_scopes(list(weights), scope)
    all_shapes = {n: np.shape(w) for n, w in weights.items()}
    # four axes can be plotted, none of them empty
    shapes = {n: shape for n, shape in all_shapes.items() if len(shape) == 4 and all(shape)}
    if not shapes.keys() & {*selected}:
        title = f"the attention `{escape_text(selected[-1])}` has weights that cannot be plotted"
        raise_error("E0931", title, notes=[f"{list(np.shape(weights[selected[-1]]))}"])
    hidden = find_masked_positions(graph, given.arrays, shapes, model.weights)
    places = find_attentions(graph)
    maps = []
    for name, shape in shapes.items():
        place = places.get(name.partition(ITERATION_SEPARATOR)[0])
        lengths = (place.queries, place.keys) if place else (None, None)
        queries, keys = given.axes(lengths, shape)
        values = np.asarray(weights[name][0], np.float64)
        behind = hidden[name][0] if name in hidden else np.zeros(values.shape, np.bool_)
        maps.append(
            AttentionMap(
                scope=name,
                weights=values,
                masked=behind,
                heads=tuple(range(len(values))),
                queries=queries,
                keys=keys,
            )
        )
    return maps


def _read_alignment(given: AttendedInputs, weights: Array) -> AttentionMap:
    """Return the model's own alignment [batch, target, source] as a map; heads may precede
    target.
    """
    maps = np.asarray(weights, np.float64)
    if maps.ndim not in (3, 4) or not maps.size:
        notes = [f"its shape is {list(weights.shape)}"]
        raise_error("E0931", f"the output `{ALIGNMENT_OUTPUT}` has no weights to plot", notes=notes)
    shape = given.model.manifest.graph.outputs[ALIGNMENT_OUTPUT].type.shape
    queries, keys = given.axes((shape[-2], shape[-1]), maps.shape)
    first = maps[0].reshape((-1, *maps.shape[-2:]))
    return AttentionMap(
        scope=ALIGNMENT_OUTPUT,
        weights=first,
        masked=np.zeros(first.shape, np.bool_),
        heads=tuple(range(len(first))),
        queries=queries,
        keys=keys,
    )


@dataclass(frozen=True)
class AttentionImage:
    """The bytes of an image file, and remarks to print about it."""

    content: bytes
    remarks: tuple[str, ...] = ()


def render_attention(
    seen: AttentionRun, form: str, choice: AttentionSelection | None = None, *, log: bool = False
) -> AttentionImage:
    """Render what `choice` selects as `.html`, `.svg` or `.png`: HTML shows everything, an image
    the last attention if nothing is selected.

    E0931 and E0954 if there is no such attention, E0902 and E0953 if the PNG cannot be rendered.
    """
    looks, left_out = seen.select_maps(choice or AttentionSelection(), every=form == ".html")
    remarks = (left_out,) if left_out else ()
    if form == ".html":
        return AttentionImage(render_attention_html(looks, log=log).encode("utf-8"), remarks)
    drawing = draw_attention_maps(looks, log=log)
    if form == ".svg":
        return AttentionImage(render_svg(drawing).encode("utf-8"), remarks)
    content = render_png(drawing)
    if strange := find_missing_glyphs(drawing.marks):
        remarks = (
            *remarks,
            f"no installed font has {escape_text(strange[:20])}: the PNG shows code points; "
            ".svg and .html show them",
        )
    return AttentionImage(content, remarks)

"""Plot the attention maps of a run: capture the maps, and render them as HTML, SVG or PNG."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.drawing.attention_map_drawing import draw_attention_maps
from specc.drawing.attention_maps import (
    AttentionMap,
    AttentionMapAxis,
    AttentionMaps,
    AttentionSelection,
    render_attention_html,
    select_maps,
    select_matching_scopes,
)
from specc.drawing.png import find_missing_glyphs, render_png
from specc.drawing.svg_and_html_pages import render_svg
from specc.io.safe_read import escape_text
from specc.ir.array import Array, Arrays
from specc.runtime.attention_axis_labels import AttentionAxisLabeler
from specc.runtime.attention_weights import (
    ITERATION_SEPARATOR,
    compute_masked_positions,
    find_attention_nodes,
)
from specc.runtime.generation_stream_and_results import GenerationResult, GenerationStream
from specc.runtime.single_model_file import LoadedModel

ALIGNMENT_OUTPUT = "alignment"
"""Name of the output [batch, target, source] that is plotted in place of attention weights."""

MAX_PANELS = 256
"""Maximum number of attention maps in one image. HTML pages have no limit."""


@immutable_dataclass()
class AttentionCapture:
    """The results and batch size of a run, and the attention maps of the first batch element."""

    attention_maps: AttentionMaps
    results: dict[str, Array]
    batch_size: int = 1

    def select_maps(
        self, selection: AttentionSelection, *, select_all: bool
    ) -> tuple[AttentionMaps, str]:
        """Return the attention maps to plot, and a note on omitted maps. Unless `select_all` is
        set, an empty selection plots only the last attention layer.
        """
        maps = select_maps(self.attention_maps.maps, selection)
        if not select_all:
            maps = maps if selection.layers or "*" in selection.scope else maps[-1:]
            maps = _select_first(maps)
        return replace(self.attention_maps, maps=maps), self._describe_omitted(maps)

    def _describe_omitted(self, maps: tuple[AttentionMap, ...]) -> str:
        """Return a note on the attention layers and heads that are not plotted."""
        maps_by_scope = {m.scope: m for m in self.attention_maps.maps}
        plotted = [m.scope for m in maps]
        omitted = [scope for scope in maps_by_scope if scope not in plotted]
        parts = [f"plotted: `{escape_text(', '.join(plotted[:12]))}`"] if omitted else []
        heads = sum(len(maps_by_scope[scope].heads) for scope in plotted)
        if (plotted_heads := sum(len(m.heads) for m in maps)) < heads:
            parts.append(f"{plotted_heads} of {heads} heads")
        if self.batch_size > 1:
            verb = "" if omitted else "plotted: "
            parts.append(f"{verb}the first of {self.batch_size} batch elements")
        if omitted:
            more = f" and {len(omitted) - 12} more" if len(omitted) > 12 else ""
            names = escape_text(", ".join(omitted[:12]))
            parts.append(f"not plotted (select with --scope or --layers): {names}{more}")
        return "; ".join(parts)


def _select_first(maps: tuple[AttentionMap, ...]) -> tuple[AttentionMap, ...]:
    """Return the first attention maps, with at most MAX_PANELS heads in total."""
    remaining, selected = MAX_PANELS, []
    for attention_map in maps:
        if remaining <= 0:
            break
        selected.append(attention_map.select_heads(attention_map.heads[:remaining]))
        remaining -= len(attention_map.heads)
    return tuple(selected)


def capture_attention(
    model: LoadedModel,
    inputs: Mapping[str, object],
    *,
    scope: str = "",
    generated_tokens: Array | None = None,
) -> AttentionCapture:
    """Run a model and return the attention maps of all layers. If `scope` is "" and the model has
    an output `alignment`, return only the map of this output.

    `generated_tokens` (int64 [batch, target]) are the tokens of a generative model. Raise E0931 if
    the model has no attention weights, or if no layer matches `scope`.
    """
    labeler = AttentionAxisLabeler(
        model=model, arrays=model.prepare_inputs(inputs), generated_tokens=generated_tokens
    )
    if ALIGNMENT_OUTPUT in model.manifest.graph.outputs and not scope:
        results = model.run(**inputs)
        maps = [_read_alignment(labeler, results[ALIGNMENT_OUTPUT])]
        batch_size = len(results[ALIGNMENT_OUTPUT])
    else:
        results, weights = model.attention(**inputs)
        if not weights:
            raise_error("E0931", "this model does not expose attention weights")
        maps = _make_attention_maps(labeler, weights, scope)
        batch_size = len(next(iter(weights.values())))
    input_text = labeler.describe_inputs()
    if generated_text := labeler.decode_generated_text():
        input_text += f" → {generated_text}"
    attention_maps = AttentionMaps(
        model_name=model.manifest.name,
        input_text=input_text,
        maps=tuple(maps),
        image=labeler.get_input_image(),
    )
    return AttentionCapture(attention_maps, results, batch_size)


def capture_generation_attention(
    model: LoadedModel, stream: GenerationStream, result: GenerationResult, scope: str = ""
) -> AttentionCapture:
    """Run a full forward pass on the first sequence (prompt and generated tokens), and return the
    attention maps. The last generated token is not a query, because generation does not run the
    model on it.
    """
    signature = stream.model.input_signature
    sequence_input, inputs = signature.sequence_input, signature.graph.inputs
    tokens = np.array([result.tokens], np.int64)
    if result.num_codebooks:
        # the graph expects tokens [batch, time, codebooks] with each codebook shifted by its delay
        tokens = np.array([[step.tokens[0] for step in stream.logged_steps]], np.int64)
    # pass only inputs without a time axis, because all other inputs are recomputed for the whole
    # sequence
    inputs_of_first: dict[str, object] = {
        name: value[:1] if inputs[name].shape[:1] == (signature.batch_size,) else value
        for name, value in stream.prepared_inputs.items()
        if signature.sequence_length not in model.manifest.graph.inputs[name].shape
    }
    inputs_of_first[sequence_input] = np.concatenate([stream.input_ids[:1], tokens[:, :-1]], axis=1)
    return capture_attention(model, inputs_of_first, scope=scope, generated_tokens=tokens)


def _make_attention_maps(
    labeler: AttentionAxisLabeler, weights: Arrays, scope: str
) -> list[AttentionMap]:
    """Create the attention maps of the first batch element. Raise E0931 if no layer matches
    `scope`, or if the weights are not [batch, heads, query, key].
    """
    graph, model = labeler.model.manifest.graph, labeler.model
    selected = select_matching_scopes(list(weights), scope)
    # only attention weights with four non-empty axes can be plotted
    shapes = {n: np.shape(w) for n, w in weights.items() if np.ndim(w) == 4 and np.size(w)}
    if not shapes.keys() & {*selected}:
        title = f"attention `{escape_text(selected[-1])}` has weights that cannot be plotted"
        raise_error("E0931", title, notes=[f"{list(np.shape(weights[selected[-1]]))}"])
    masked_positions = compute_masked_positions(graph, labeler.arrays, shapes, model.weights)
    locations = find_attention_nodes(graph)
    maps = []
    for name, shape in shapes.items():
        location = locations.get(name.partition(ITERATION_SEPARATOR)[0])
        lengths = (location.query_dim, location.key_dim) if location else (None, None)
        values = np.asarray(weights[name][0], np.float64)
        attention_map = _make_attention_map(name, values, labeler.label_axes(lengths, shape))
        if name in masked_positions:
            attention_map = replace(attention_map, is_masked=masked_positions[name][0])
        maps.append(attention_map)
    return maps


def _make_attention_map(
    scope: str, weights: Array, axes: tuple[AttentionMapAxis, AttentionMapAxis]
) -> AttentionMap:
    """Create an attention map from attention weights, float64 [heads, query, key]. Exclude masked
    positions.
    """
    return AttentionMap(
        scope=scope,
        weights=weights,
        is_masked=np.zeros(weights.shape, np.bool_),
        heads=tuple(range(len(weights))),
        query_axis=axes[0],
        key_axis=axes[1],
    )


def _read_alignment(labeler: AttentionAxisLabeler, weights: Array) -> AttentionMap:
    """Return the map of the output `alignment` [batch, target, source], with or without a head
    axis.
    """
    maps = np.asarray(weights, np.float64)
    if maps.ndim not in (3, 4) or not maps.size:
        notes = [
            f"expected [batch, query, key] or [batch, heads, query, key], got {list(weights.shape)}"
        ]
        raise_error("E0931", f"the output `{ALIGNMENT_OUTPUT}` has no weights to plot", notes=notes)
    shape = labeler.model.manifest.graph.outputs[ALIGNMENT_OUTPUT].shape
    axes = labeler.label_axes((shape[-2], shape[-1]), maps.shape)
    return _make_attention_map(ALIGNMENT_OUTPUT, maps[0].reshape((-1, *maps.shape[-2:])), axes)


@immutable_dataclass()
class RenderedAttention:
    """The content of a rendered file, and remarks to print, e.g. about omitted attention maps."""

    content: bytes
    remarks: tuple[str, ...] = ()


def render_attention(
    capture: AttentionCapture,
    suffix: str,
    selection: AttentionSelection | None = None,
    *,
    log_scale: bool = False,
) -> RenderedAttention:
    """Render the selected attention maps as `.html`, `.svg` or `.png`. If `selection` is empty,
    HTML contains all maps, and images contain only the last layer.

    Raise E0931 or E0954 if no map is selected, and E0902 or E0953 if the PNG cannot be rendered.
    """
    attention_maps, omitted = capture.select_maps(
        selection or AttentionSelection(), select_all=suffix == ".html"
    )
    remarks = (omitted,) if omitted else ()
    if suffix == ".html":
        page = render_attention_html(attention_maps, log=log_scale)
        return RenderedAttention(page.encode("utf-8"), remarks)
    drawing = draw_attention_maps(attention_maps, log=log_scale)
    if suffix == ".svg":
        return RenderedAttention(render_svg(drawing).encode("utf-8"), remarks)
    content = render_png(drawing)
    if missing_glyphs := find_missing_glyphs(drawing.elements):
        remarks = (
            *remarks,
            f"no installed font has {escape_text(missing_glyphs[:20])}: the PNG shows code points; "
            ".svg and .html show them",
        )
    return RenderedAttention(content, remarks)

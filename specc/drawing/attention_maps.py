"""Attention maps contain attention weights with labeled axes. Layers and heads can be selected, and
an interactive HTML page shows the maps.
"""

from base64 import b64encode
from collections.abc import Sequence, Set
from dataclasses import replace
from html import escape
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_thousands
from specc.drawing.drawing_elements import (
    COLOR_STOPS,
    LOG_DECADES,
    Bytes,
    Doubles,
    make_printable_label,
    scale_image,
)
from specc.drawing.svg_and_html_pages import read_page_resource, render_html_page
from specc.io.json_io import Json
from specc.io.safe_read import escape_text
from specc.weights.parameter_name_patterns import NamePattern

Role: TypeAlias = Literal["generated", "input", "audio", "image", "unnamed"]
"""The kind of a position: generated token, input token, audio frame, patch, or unknown."""

UNITS_BY_ROLE: dict[Role, str] = {
    "generated": "tokens",
    "input": "tokens",
    "audio": "steps",
    "image": "patches",
    "unnamed": "positions",
}


@immutable_dataclass(kw_only=True)
class PatchGrid:
    """The grid of image patches in a token sequence, after `prefix_tokens` other tokens such as a
    class token.
    """

    rows: int
    columns: int
    prefix_tokens: int = 0


@immutable_dataclass(kw_only=True)
class AttentionMapAxis:
    """The query or key axis of an attention map. It has a label per position, and may have the
    duration in seconds of an audio input or the patch grid of an image.
    """

    role: Role
    labels: tuple[str, ...]
    duration_seconds: float | None = None
    grid: PatchGrid | None = None

    @property
    def caption(self) -> str:
        """Format the axis caption, as in `generated, 14 tokens`."""
        # tokens before the patches, such as a class token, do not belong to a patch
        count = len(self.labels) - (self.grid.prefix_tokens if self.grid else 0)
        name = "" if self.role == "unnamed" else f"{self.role}, "
        unit = UNITS_BY_ROLE[self.role]
        singular_unit = unit.removesuffix("es" if unit == "patches" else "s")
        seconds = f", {self.duration_seconds:.3g} s" if self.duration_seconds is not None else ""
        return f"{name}{format_thousands(count)} {singular_unit if count == 1 else unit}{seconds}"


@immutable_dataclass(kw_only=True)
class AttentionMap:
    """The attention weights [heads, query, key] of one attention layer and one batch element.
    `is_masked` is a bool array of the same shape as the weights, and `heads` contains the indices
    of the heads.
    """

    scope: str
    weights: Doubles
    is_masked: NDArray[np.bool_]
    heads: tuple[int, ...]
    query_axis: AttentionMapAxis
    key_axis: AttentionMapAxis

    @property
    def layer(self) -> int | None:
        """Return the layer index, i.e. the first number in the scope, or None if there is none."""
        numbers = [part for part in self.scope.split(".") if part.isdecimal()]
        return int(numbers[0]) if numbers else None

    def get_masked_weights(self) -> Doubles:
        """Return the attention weights with -inf instead of zero at masked positions."""
        # a nonzero weight is shown even if the position is masked
        return np.where(self.is_masked & (self.weights == 0), -np.inf, self.weights)

    def select_heads(self, heads: Sequence[int]) -> "AttentionMap":
        """Return a copy of the map that contains only the heads with the indices `heads`."""
        positions = [n for n, head in enumerate(self.heads) if head in heads]
        return replace(
            self,
            weights=self.weights[positions],
            is_masked=self.is_masked[positions],
            heads=tuple(self.heads[n] for n in positions),
        )


@immutable_dataclass(kw_only=True)
class AttentionMaps:
    """The attention maps of one input, and the input image (uint8 [height, width, 3]) or None."""

    model_name: str
    input_text: str
    maps: tuple[AttentionMap, ...]
    image: Bytes | None = None


MAX_INDEX = 9999
"""The maximum layer or head index that `parse_number_list` accepts."""


@immutable_dataclass(kw_only=True)
class AttentionSelection:
    """A selection of attention maps by scope pattern, layers and heads. An empty field does not
    restrict the selection.
    """

    scope: str = ""
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Return True if any field restricts the selection."""
        return bool(self.scope or self.layers or self.heads)


def parse_number_list(text: str, option: str) -> tuple[int, ...]:
    """Parse a list of indices and ranges such as `0,2-5` into sorted unique indices. Raise E0954 if
    the text is invalid. `option` is the option name in the message.
    """
    indices: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        ends = [first, last if dash else first]
        if not all(map(_is_index, ends)) or int(ends[0]) > int(ends[1]):
            raise_error(
                "E0954",
                f"`{option} {escape_text(text)[:60]}` is not a list of numbers",
                helps=[f"write `{option} 0`, `{option} 0,3` or `{option} 2-5`"],
            )
        indices.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(indices))


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:9]) <= MAX_INDEX


def select_matching_scopes(scopes: Sequence[str], pattern: str) -> list[str]:
    """Return the scopes that match `pattern` ("" matches all). Raise E0931 if no scope matches."""
    matches = [scope for scope in scopes if not pattern or NamePattern(pattern).matches(scope)]
    if not matches:
        helps = [f"scopes with attention: {escape_text(', '.join(scopes[:12]))}"]
        title = f"no attention matches `{escape_text(pattern)}`"
        raise_error("E0931", title, helps=helps)
    return matches


def select_maps(
    maps: Sequence[AttentionMap], selection: AttentionSelection
) -> tuple[AttentionMap, ...]:
    """Return the selected maps and heads. Raise E0931 or E0954 if no map matches."""
    scopes = select_matching_scopes([m.scope for m in maps], selection.scope)
    selected = [m for m in maps if m.scope in scopes]
    if selection.layers:
        _check_indices_exist("layer", selection.layers, selected, {m.layer for m in selected})
        selected = [m for m in selected if m.layer in selection.layers]
    if selection.heads:
        _check_indices_exist(
            "head", selection.heads, selected, {n for m in selected for n in m.heads}
        )
        selected = [m.select_heads(selection.heads) for m in selected]
    return tuple(m for m in selected if m.heads)


def _check_indices_exist(
    noun: str, selected: Sequence[int], maps: Sequence[AttentionMap], known_indices: Set[int | None]
) -> None:
    """Raise E0954 if a selected index does not exist in any attention map."""
    indices = {n for n in known_indices if n is not None}
    unknown = [n for n in selected if n not in indices]
    if not unknown:
        return
    names = escape_text(", ".join(m.scope for m in maps[:6]))
    more = f" and {len(maps) - 6} more" if len(maps) > 6 else ""
    title = f"{noun} {unknown[0]} of `--{noun}s` does not exist"
    hint = f"no attention layer has a {noun} index: remove the option"
    if indices:
        hint = f"the {noun}s are {_format_number_list(indices)}"
    raise_error("E0954", title, notes=[f"searched in {names}{more}"], helps=[hint])


def _format_number_list(indices: set[int]) -> str:
    """Format indices as a range (`0 to 5`) if they are consecutive, otherwise as a list."""
    ordered = sorted(indices)
    if len(ordered) - 1 == ordered[-1] - ordered[0] > 1:
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(map(str, ordered[:24]))


def max_pool_attention(values: Doubles, max_side: int) -> tuple[Doubles, int]:
    """Max-pool weights [heads, query, key] to at most `max_side` cells per side. Return the pooled
    weights and the pooling size.
    """
    step = max(1, -(-max(values.shape[1:]) // max_side))
    if step == 1:
        return values, 1
    heads, rows, columns = values.shape
    row_blocks, column_blocks = -(-rows // step), -(-columns // step)
    # -inf is less than all weights, so padding does not change the maxima of the last, incomplete
    # block
    padded = np.full((heads, row_blocks * step, column_blocks * step), -np.inf)
    padded[:, :rows, :columns] = values
    return padded.reshape(heads, row_blocks, step, column_blocks, step).max((2, 4)), step


MAX_CELLS = 1 << 20
"""Maximum number of cells on a page (4 MiB of attention weights). Larger maps are max-pooled."""

MAX_LABEL_LENGTH = 120
"""The maximum number of characters in a label on a page."""

MAX_PIXELS = 512


def render_attention_html(plot: AttentionMaps, *, log: bool = False) -> str:
    """Render attention maps as an interactive HTML page, which initially shows the last map."""
    step = _get_step(plot.maps)
    axes: list[AttentionMapAxis] = []
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
    return render_html_page(
        title,
        _render_body(plot, step),
        styles=[read_page_resource("page.css"), read_page_resource("attention.css")],
        scripts=[read_page_resource("page.js"), read_page_resource("attention.js")],
        data=data,
    )


def _get_step(maps: Sequence[AttentionMap]) -> int:
    """Return the smallest pooling size at which all maps together have at most MAX_CELLS cells."""
    step = 1
    while sum(_count_cells(m, step) for m in maps) > MAX_CELLS:
        step += 1
    return step


def _count_cells(attention: AttentionMap, step: int) -> int:
    """Return the number of cells of a map after max-pooling with the pooling size `step`."""
    rows, columns = len(attention.query_axis.labels), len(attention.key_axis.labels)
    return len(attention.heads) * -(-rows // step) * -(-columns // step)


def _map_to_json(attention: AttentionMap, axes: list[AttentionMapAxis], step: int) -> Json:
    """Convert a map to a JSON object, and append its axes to `axes` if they are new."""
    axis_indices = []
    for axis in (attention.query_axis, attention.key_axis):
        if axis not in axes:
            axes.append(axis)
        axis_indices.append(axes.index(axis))
    longest_side = max(attention.weights.shape[1:])
    cells, _ = max_pool_attention(attention.get_masked_weights(), -(-longest_side // step))
    return {
        "scope": make_printable_label(attention.scope, MAX_LABEL_LENGTH),
        "heads": list(attention.heads),
        "queries": axis_indices[0],
        "keys": axis_indices[1],
        "rows": cells.shape[1],
        "columns": cells.shape[2],
        # weights are little-endian float32, and -inf marks masked positions
        "weights": b64encode(cells.astype("<f4").tobytes()).decode("ascii"),
    }


def _axis_to_json(axis: AttentionMapAxis) -> Json:
    grid = axis.grid
    return {
        "role": axis.role,
        "caption": axis.caption,
        "labels": [make_printable_label(label, MAX_LABEL_LENGTH) for label in axis.labels],
        "grid": [grid.rows, grid.columns, grid.prefix_tokens] if grid else None,
    }


def _image_to_json(plot: AttentionMaps) -> Json:
    """Convert the input image to JSON with base64 RGB bytes. Return None if there is no image."""
    if plot.image is None:
        return None
    pixels = scale_image(plot.image, 1, MAX_PIXELS)
    return {
        "rows": pixels.shape[0],
        "columns": pixels.shape[1],
        "pixels": b64encode(np.ascontiguousarray(pixels).tobytes()).decode("ascii"),
    }


def _render_body(plot: AttentionMaps, step: int) -> str:
    note = (
        f"<p class=note>Downsampled: a cell is the maximum weight of {step} × {step}. "
        "Select fewer layers or heads (--layers, --heads) for full resolution.</p>"
        if step > 1
        else ""
    )
    return read_page_resource("attention.html").format(
        model=escape(make_printable_label(plot.model_name, 80)),
        given=escape(make_printable_label(plot.input_text, 2000)),
        note=note,
    )

"""Attention maps with given weights, for tests of attention plots."""

import numpy as np

from specc.drawing.attention_maps import AttentionMap, AttentionMapAxis, AttentionMaps, PatchGrid

HOSTILE_LABELS = (
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "<!--",
    "]]>",
    "&amp;",
    "\x00\x1b[31m",
    "\u202eevil",
    "\ud800",
    "a\nb",
    " ",
    "漢字",
    "עברית",
    "'\" onload=",
    "\u2028",
)
"""Tokens that a vocabulary may contain."""


def make_axis(labels, role="input", **more) -> AttentionMapAxis:
    """Return an axis with these labels, or with the labels 0, 1, … of a given count."""
    if isinstance(labels, int):
        labels = [str(n) for n in range(labels)]
    return AttentionMapAxis(role=role, labels=tuple(labels), **more)


def make_attention_map(
    weights, queries=None, keys=None, scope="layers.0.attn", hidden=None
) -> AttentionMap:
    """Return the map of weights [heads, query, key]."""
    weights = np.asarray(weights, np.float64)
    heads, rows, columns = weights.shape
    return AttentionMap(
        scope=scope,
        weights=weights,
        is_masked=np.zeros(weights.shape, np.bool_) if hidden is None else hidden,
        heads=tuple(range(heads)),
        query_axis=queries or make_axis(rows, "generated"),
        key_axis=keys or make_axis(columns),
    )


def make_attention_maps(*maps: AttentionMap, image=None, model="m", text="a text") -> AttentionMaps:
    """Return the attention maps of one run of a model."""
    return AttentionMaps(model_name=model, input_text=text, maps=maps, image=image)


def make_image_attention(
    size: int = 8, side: int = 4, prefix: int = 1, heads: int = 2
) -> AttentionMaps:
    """Return attention maps of an image model: `side`² patches after `lead` prefix tokens."""
    count = prefix + side * side
    names = ["[CLS]"][:prefix] + [f"{n}" for n in range(side * side)]
    axis = make_axis(names, "image", grid=PatchGrid(rows=side, columns=side, prefix_tokens=prefix))
    weights = np.random.default_rng(0).dirichlet(np.ones(count), (heads, count))
    pixels = np.random.default_rng(1).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return make_attention_maps(make_attention_map(weights, axis, axis), image=pixels)

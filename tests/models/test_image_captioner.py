"""`image_captioner` agrees with the papers' equations in NumPy: ViT patches as a prefix that all
tokens attend to.
"""

import numpy as np
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    decoder_layers,
    layer_norm,
    linear,
    make_prefix_mask,
    sample_sentences,
)
from support.small_configs import SMALL_CONFIGS


def embed_image(w: Arrays, pixels: Array) -> Array:
    """arXiv:2010.11929, eq. 1 to 4, without class token: patches from left to right, row by row."""
    size = 2
    places = [
        pixels[:, y : y + size, x : x + size]
        for y in range(0, pixels.shape[1], size)
        for x in range(0, pixels.shape[2], size)
    ]
    weight = w["vision.patches.weight"]
    x = np.stack([np.tensordot(weight, p, 3) for p in places])
    x = x + w["vision.patches.bias"] + w["vision.position_embed"][0]
    x = decoder_layers(w, "vision.layers.", x, 2, np.ones((len(x), len(x)), bool))
    return layer_norm(w, "vision.norm", x)


def model(w: Arrays, pixel_values: Array, ids: Array, keep: Array) -> Arrays:
    head = linear(w, "projection", embed_image(w, pixel_values))
    words = w["embed.weight"][ids[keep]]
    words = words + w["position_embed.weight"][: len(words)]
    x = np.concatenate([layer_norm(w, "projection_norm", head), words])
    x = decoder_layers(w, "layers.", x, 2, make_prefix_mask(len(head), len(words)))
    return {"logits": linear(w, "output", layer_norm(w, "norm", x[len(head) :]))}


def test_the_spec_agrees_with_the_equations() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"pixel_values": rng.normal(size=(2, 4, 4)), "ids": ids, "keep": np.ones(len(ids), bool)}
        for ids in sample_sentences(rng, 17, (5, 1, 4))
    ]
    padded = {"ids": (0,), "keep": (0,)}
    assert_matches_equations(
        "image_captioner", model, rows, padded, **SMALL_CONFIGS["image_captioner"]
    )

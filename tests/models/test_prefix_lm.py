"""`prefix_lm` agrees with the papers' equations in NumPy: bidirectional attention in the prompt,
causal attention after it.
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


def model(w: Arrays, prompt: Array, prompt_keep: Array, ids: Array, keep: Array) -> Arrays:
    x = w["embed.weight"][np.concatenate([prompt[prompt_keep], ids[keep]])]
    x = x + w["position_embed.weight"][: len(x)]
    head, rows = int(prompt_keep.sum()), int(keep.sum())
    x = decoder_layers(w, "layers.", x, 2, make_prefix_mask(head, rows))
    return {"logits": linear(w, "output", layer_norm(w, "norm", x[head - 1 :]))}


def test_the_spec_agrees_with_the_equations_for_padded_inputs() -> None:
    rng = np.random.default_rng(0)
    texts, prompts = sample_sentences(rng, 17, (5, 1, 4)), sample_sentences(rng, 17, (2, 6, 1))
    rows = [
        {
            "prompt": prompt,
            "prompt_keep": np.ones(len(prompt), bool),
            "ids": ids,
            "keep": np.ones(len(ids), bool),
        }
        for prompt, ids in zip(prompts, texts, strict=True)
    ]
    padded = {"prompt": (0,), "prompt_keep": (0,), "ids": (0,), "keep": (0,)}
    left = ("prompt", "prompt_keep")
    assert_matches_equations(
        "prefix_lm", model, rows, padded, left=left, **SMALL_CONFIGS["prefix_lm"]
    )

"""`prefix_lm` matches the papers' equations in NumPy: bidirectional attention in the prompt,
causal attention after it.
"""

import numpy as np
from support.decoder_layers import layers, prefix_mask
from support.equations import Array, Arrays, affine, assert_follows, layer_norm, sentences
from support.small import SMALL


def model(w: Arrays, prompt: Array, prompt_keep: Array, ids: Array, keep: Array) -> Arrays:
    x = w["embed.weight"][np.concatenate([prompt[prompt_keep], ids[keep]])]
    x = x + w["position_embed.weight"][: len(x)]
    head, rows = int(prompt_keep.sum()), int(keep.sum())
    x = layers(w, "layers.", x, 2, prefix_mask(head, rows))
    return {"logits": affine(w, "output", layer_norm(w, "norm", x[head - 1 :]))}


def test_it_follows_the_equations_with_padded_prompts_and_texts() -> None:
    rng = np.random.default_rng(0)
    texts, prompts = sentences(rng, 17, (5, 1, 4)), sentences(rng, 17, (2, 6, 1))
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
    assert_follows("prefix_lm", model, rows, padded, left=left, **SMALL["prefix_lm"])

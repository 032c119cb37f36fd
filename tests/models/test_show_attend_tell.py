"""`show_attend_tell` is the equations of the paper's sec. 3.1 and 4 in NumPy, soft and hard."""

from functools import partial

import numpy as np
import pytest
from support.equations import (
    Array,
    Arrays,
    affine,
    assert_follows,
    lstm_step,
    sentences,
    sigmoid,
    softmax,
)


def caption(
    hard: bool, gated: bool, w: Arrays, image: Array, words_so_far: Array
) -> Arrays:
    whole = image.mean(0)
    h, c = np.tanh(affine(w, "init_h", whole)), np.tanh(affine(w, "init_c", whole))
    logits, looked = [], []
    for word in w["embedding.weight"][words_so_far]:
        e = (
            np.tanh(affine(w, "attention.U", image) + affine(w, "attention.W", h))
            @ w["attention.v.weight"][0]
        )
        a = np.eye(len(image))[e.argmax()] if hard else softmax(e)
        z = a @ image
        z = sigmoid(affine(w, "beta", h)) * z if gated else z
        h, c = lstm_step(w, "decoder", "", np.concatenate([word, z]), h, c)
        logits.append(
            affine(w, "L_o", word + affine(w, "L_h", h) + affine(w, "L_z", z))
        )
        looked.append(a)
    return {"logits": np.stack(logits), "looked": np.stack(looked)}


@pytest.mark.parametrize(
    ("normalize", "gated"), [("softmax", True), ("softmax", False), ("hard", True)]
)
def test_it_follows_the_equations(normalize: str, gated: bool) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"image": rng.standard_normal((4, 5)).astype(np.float32), "words_so_far": ids}
        for ids in sentences(rng, 11, (5, 1, 3))
    ]
    size = {"vocab": 11, "regions": 4, "features": 5, "words": 6, "hidden": 7, "att": 8}
    equations = partial(caption, normalize == "hard", gated)
    padded = {"words_so_far": (0,)}
    assert_follows(
        "show_attend_tell",
        equations,
        rows,
        padded,
        **size,
        normalize=normalize,
        gated=gated,
    )

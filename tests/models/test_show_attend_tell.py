"""`show_attend_tell` agrees with the equations of the paper's sec. 3.1 and 4 in NumPy: soft, hard
and sampled attention.
"""

from functools import partial

import numpy as np
import pytest
from support.elaborated_specs import elaborate_with_config, run_reference, sample_spec_weights
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    linear,
    lstm_step,
    sample_sentences,
    sigmoid,
    softmax,
)

SIZE = {"vocab": 11, "regions": 4, "features": 5, "embed_dim": 6, "hidden": 7, "attention_dim": 8}


def caption(
    hard: bool, gated: bool, w: Arrays, image: Array, ids: Array, chance: Array | None = None
) -> Arrays:
    """Return one caption. With `chance` each step attends to one region, sampled with the weights
    of soft attention by the Gumbel-max trick (arXiv:1611.01144, eq. 1).
    """
    whole = image.mean(0)
    h, c = np.tanh(linear(w, "init_h", whole)), np.tanh(linear(w, "init_c", whole))
    logits, looked = [], []
    for t, word in enumerate(w["embedding.weight"][ids]):
        e = (
            np.tanh(linear(w, "attention.U", image) + linear(w, "attention.W", h))
            @ w["attention.v.weight"][0]
        )
        e = e if chance is None else e - np.log(-np.log(chance[t]))
        a = np.eye(len(image))[e.argmax()] if hard else softmax(e)
        z = a @ image
        z = sigmoid(linear(w, "beta", h)) * z if gated else z
        h, c = lstm_step(w, "decoder", "", np.concatenate([word, z]), h, c)
        logits.append(linear(w, "L_o", word + linear(w, "L_h", h) + linear(w, "L_z", z)))
        looked.append(a)
    return {"logits": np.stack(logits), "attention_weights": np.stack(looked)}


@pytest.mark.parametrize(
    ("normalize", "gated"), [("softmax", True), ("softmax", False), ("hard", True)]
)
def test_the_spec_agrees_with_the_equations(normalize: str, gated: bool) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"image": rng.standard_normal((4, 5)).astype(np.float32), "ids": ids}
        for ids in sample_sentences(rng, 11, (5, 1, 3))
    ]
    equations = partial(caption, normalize == "hard", gated)
    padded = {"ids": (0,)}
    assert_matches_equations(
        "show_attend_tell",
        equations,
        rows,
        padded,
        **SIZE,
        normalize=normalize,
        gated_context=gated,
    )


def test_sampled_attention_uses_the_given_noise() -> None:
    rng = np.random.default_rng(1)
    rows = [
        {
            "image": rng.standard_normal((4, 5)).astype(np.float32),
            "ids": ids,
            "chance": rng.uniform(0.01, 0.99, (len(ids), 4)).astype(np.float32),
        }
        for ids in sample_sentences(rng, 11, (5, 1, 3))
    ]
    equations = partial(caption, True, True)
    assert_matches_equations(
        "show_attend_tell", equations, rows, {"ids": (0,), "chance": (0,)}, graph="sampled", **SIZE
    )


def test_regions_are_sampled_with_the_weights_of_soft_attention() -> None:
    """In 4000 first steps each region has its share, within three standard deviations."""
    soft = elaborate_with_config("show_attend_tell", **SIZE)
    drawn = elaborate_with_config("show_attend_tell", graph="sampled", **SIZE)
    weights = sample_spec_weights(soft)
    rng = np.random.default_rng(2)
    image = rng.standard_normal((1, 4, 5))
    share = run_reference(soft, weights, {"image": image, "ids": [[1]]})
    p = share["attention_weights"][0, 0]
    many = 4000
    given = {
        "image": np.repeat(image, many, axis=0),
        "ids": np.ones((many, 1), np.int64),
        "chance": rng.random((many, 1, 4)),
    }
    looked = run_reference(drawn, weights, given)["attention_weights"][:, 0]
    assert (looked.sum(1) == 1).all()
    assert (abs(looked.mean(0) - p) < 3 * np.sqrt(p * (1 - p) / many)).all()

"""`universal_transformer` agrees with the paper's eq. 3 to 7 in NumPy, each position iterated until
it halts.
"""

from typing import Any

import numpy as np
import pytest
from support.elaborated_specs import elaborate_with_config, run_reference, sample_spec_weights
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    layer_norm,
    linear,
    relu,
    sample_sentences,
    sigmoid,
    softmax,
)

SIZES = {"vocab": 17, "d": 8, "heads": 2, "hidden": 12, "max_steps": 5}


HALTING = {"halting.weight": 6.0, "embed.weight": 20.0}
"""With random weights alone, all probabilities would be near one half and all positions would be
alike.
"""


def encode_coordinates(at: Array) -> Array:
    """Return sines at even features and cosines at odd ones (eq. 6 and 7), of position or time."""
    d = SIZES["d"]
    angles = np.outer(at, 10000.0 ** (-np.arange(0, d, 2) / d))
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(at), d)


def attend(w: Arrays, x: Array, at: int) -> Array:
    """Eq. 3 and 4 for one position, with causal attention."""
    q, k, v = (
        np.split(linear(w, f"attention.{part}_proj", x), SIZES["heads"], axis=1) for part in "qkv"
    )
    heads = [
        softmax(q[h][at] @ k[h][: at + 1].T / np.sqrt(k[h].shape[1])) @ v[h][: at + 1]
        for h in range(SIZES["heads"])
    ]
    return linear(w, "attention.out_proj", np.concatenate(heads))


def apply_transition(w: Arrays, x: Array, at: int) -> Array:
    """Eq. 5 for one position."""
    a = layer_norm(w, "norm1", x[at] + attend(w, x, at), 1e-6)
    h = linear(w, "transition.2", relu(linear(w, "transition.0", a)))
    return layer_norm(w, "norm2", a + h, 1e-6)


def model(w: Arrays, ids: Array, threshold: float = 0.99) -> Arrays:
    h = w["embed.weight"][ids]
    place = encode_coordinates(np.arange(len(ids)))
    mixed, total, turns = np.zeros_like(h), np.zeros(len(ids)), np.zeros(len(ids), int)
    running = np.ones(len(ids), bool)
    for step in range(SIZES["max_steps"]):
        x = h + place + encode_coordinates(np.array([step + 1]))
        before = running.copy()
        for at in np.flatnonzero(before):
            p = float(sigmoid(linear(w, "halting", x[at]))[0])
            last = total[at] + p > threshold
            share = 1 - total[at] if last else p
            h[at] = apply_transition(w, x, at)
            mixed[at] = share * h[at] + (1 - share) * mixed[at]
            total[at], running[at] = total[at] + share, not last
            turns[at] += 1
    return {"logits": linear(w, "output", mixed), "num_steps": turns}


@pytest.mark.parametrize("threshold", [0.99, 0.6])
def test_the_spec_agrees_with_the_equations(threshold: float) -> None:
    texts = sample_sentences(np.random.default_rng(0), 17, (7, 1, 4))
    rows = [{"ids": ids, "keep": np.ones(len(ids), bool)} for ids in texts]

    def equations(w: Arrays, ids: Array, keep: Array) -> Arrays:
        return model(w, ids, threshold)

    padded = {"ids": (0,), "keep": (0,)}
    sizes: dict[str, Any] = {**SIZES, "threshold": threshold}
    assert_matches_equations(
        "universal_transformer", equations, rows, padded, scales=HALTING, **sizes
    )


def test_positions_halt_at_different_iterations() -> None:
    """Otherwise the comparison above would test little. Left padding never iterates."""
    found = elaborate_with_config("universal_transformer", **SIZES)
    ids = np.random.default_rng(1).integers(1, 17, (3, 6))
    keep = np.ones((3, 6), bool)
    keep[0, :2] = False
    weights = {n: w * HALTING.get(n, 1) for n, w in sample_spec_weights(found).items()}
    made = run_reference(found, weights, {"ids": ids, "keep": keep})
    assert len(set(made["num_steps"][keep])) > 2, made["num_steps"]
    assert not made["num_steps"][~keep].any()

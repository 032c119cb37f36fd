"""`transformer_xl` agrees with the paper's sec. 3.3 in NumPy, pair by pair; a segment with memory
equals the full sequence.
"""

import numpy as np
from support.elaborated_specs import elaborate_with_config, run_reference, sample_spec_weights
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    layer_norm,
    linear,
    relu,
    sample_sentences,
    softmax,
)
from support.small_configs import SMALL_CONFIGS

D, HEADS, LAYERS = 16, 2, 2


def encode_distance(distance: int) -> tuple[Array, Array]:
    """The sinusoidal encoding R of a distance, arXiv:1706.03762, sec. 3.5."""
    angles = distance / 10000.0 ** (np.arange(0, D, 2) / D)
    return np.sin(angles), np.cos(angles)


def compute_score(w: Arrays, at: str, head: int, q: Array, k: Array, distance: int) -> float:
    """A(i, j) of sec. 3.3, before division by the square root of the head width."""
    sin, cos = encode_distance(distance)
    far = w[f"{at}.r_sin"][head] @ sin + w[f"{at}.r_cos"][head] @ cos
    return float((q + w[f"{at}.u"][head]) @ k + (q + w[f"{at}.v"][head]) @ far)


def attention(w: Arrays, at: str, x: Array, memory: Array) -> Array:
    h = np.concatenate([memory, x])
    q = np.split(linear(w, f"{at}.q_proj", x), HEADS, axis=1)
    k = np.split(linear(w, f"{at}.k_proj", h), HEADS, axis=1)
    v = np.split(linear(w, f"{at}.v_proj", h), HEADS, axis=1)
    made = np.zeros((len(x), D))
    width = D // HEADS
    for head in range(HEADS):
        for i in range(len(x)):
            last = len(memory) + i
            scores = [
                compute_score(w, at, head, q[head][i], k[head][j], last - j)
                for j in range(last + 1)
            ]
            weights = softmax(np.array(scores) / np.sqrt(width))
            made[i, head * width : (head + 1) * width] = weights @ v[head][: last + 1]
    return linear(w, f"{at}.o_proj", made)


def model(w: Arrays, memory: Array, memory_keep: Array, ids: Array, keep: Array) -> Arrays:
    x, hidden = w["embed.weight"][ids[keep]], []
    for n in range(LAYERS):
        at = f"layers.{n}"
        hidden.append(x)
        a = attention(w, f"{at}.attention", x, memory[n][memory_keep])
        x = layer_norm(w, f"{at}.norm1", x + a)
        inner = relu(linear(w, f"{at}.mlp.fc1", x))
        x = layer_norm(w, f"{at}.norm2", x + linear(w, f"{at}.mlp.fc2", inner))
    return {"logits": linear(w, "output", x), "hidden": np.stack(hidden)}


def test_the_spec_agrees_with_the_equations() -> None:
    rng = np.random.default_rng(0)
    texts = sample_sentences(rng, 17, (5, 1, 4))
    rows = [
        {
            "memory": rng.normal(size=(LAYERS, m, D)),
            "memory_keep": np.ones(m, bool),
            "ids": ids,
            "keep": np.ones(len(ids), bool),
        }
        for m, ids in zip((3, 1, 5), texts, strict=True)
    ]
    padded = {"memory": (1,), "memory_keep": (0,), "ids": (0,), "keep": (0,)}
    assert_matches_equations(
        "transformer_xl", model, rows, padded, **SMALL_CONFIGS["transformer_xl"]
    )


def test_a_segment_with_memory_equals_the_full_sequence() -> None:
    """With the whole previous segment in memory it equals one long segment."""
    found = elaborate_with_config("transformer_xl", **SMALL_CONFIGS["transformer_xl"])
    weights = sample_spec_weights(found)
    rng = np.random.default_rng(1)
    ids = rng.integers(3, 17, (2, 9))
    start = rng.normal(size=(2, LAYERS, 2, D))

    def run(memory: Array, ids: Array) -> Arrays:
        given = {
            "memory": memory,
            "memory_keep": np.ones((2, memory.shape[2]), bool),
            "ids": ids,
            "keep": np.ones(ids.shape, bool),
        }
        return run_reference(found, weights, given)

    whole, first = run(start, ids), run(start, ids[:, :4])
    then = run(np.concatenate([start, first["hidden"]], axis=2), ids[:, 4:])
    np.testing.assert_allclose(then["logits"], whole["logits"][:, 4:], rtol=1e-9)

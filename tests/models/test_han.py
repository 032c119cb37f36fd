"""`han` agrees with the paper's equations in NumPy, for documents with different numbers and
lengths of sentences.
"""

import numpy as np
from support.elaborated_specs import elaborate_with_config, run_reference, sample_spec_weights
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    linear,
    sigmoid,
    softmax,
)

SIZES = {"vocab": 13, "embed_dim": 5, "hidden": 3, "attention_dim": 4, "classes": 5}


def run_gru(w: Arrays, name: str, x: Array) -> Array:
    """Eq. 1 to 4 in one direction: reset, update, candidate."""
    h, rows = np.zeros(SIZES["hidden"]), []
    for row in x:
        from_x = w[name.format("weight_ih")] @ row + w[name.format("bias_ih")]
        from_h = w[name.format("weight_hh")] @ h + w[name.format("bias_hh")]
        (rx, zx, nx), (rh, zh, nh) = np.split(from_x, 3), np.split(from_h, 3)
        r, z = sigmoid(rx + rh), sigmoid(zx + zh)
        h = (1 - z) * h + z * np.tanh(nx + r * nh)
        rows.append(h)
    return np.stack(rows)


def pool_attention(w: Arrays, name: str, x: Array) -> tuple[Array, Array]:
    """Eq. 5 to 7, and 8 to 10."""
    ahead = run_gru(w, f"{name}.gru.{{}}_l0", x)
    back = run_gru(w, f"{name}.gru.{{}}_l0_reverse", x[::-1])[::-1]
    h = np.concatenate([ahead, back], axis=1)
    told = np.tanh(linear(w, f"{name}.attention", h))
    looked = softmax(told @ w[f"{name}.context"][0])
    return looked @ h, looked


def classify(w: Arrays, document: list[Array]) -> Arrays:
    """Classify a document whose sentences have their own lengths."""
    said = [pool_attention(w, "word", w["embedding.weight"][ids]) for ids in document]
    whole, looked = pool_attention(w, "sentence", np.stack([s for s, _ in said]))
    grid = np.zeros((len(document), max(map(len, document))))
    for row, (_, weights) in zip(grid, said, strict=True):
        row[: len(weights)] = weights
    return {
        "logits": linear(w, "output", whole),
        "word_attention": grid,
        "sentence_attention": looked,
    }


def pad_documents(document: list[Array], fill: int = 0) -> Array:
    """Return token ids as the model takes them, with `fill` as padding."""
    ids = np.full((len(document), max(map(len, document))), fill)
    for row, sentence in zip(ids, document, strict=True):
        row[: len(sentence)] = sentence
    return ids


def test_the_spec_agrees_with_the_equations() -> None:
    rng = np.random.default_rng(0)
    documents = [[rng.integers(1, 13, n) for n in lengths] for lengths in ((4, 1, 5), (2,), (3, 6))]
    as_documents = {pad_documents(d).tobytes(): d for d in documents}

    def equations(w: Arrays, ids: Array, keep: Array) -> Arrays:
        return classify(w, as_documents[ids.tobytes()])

    rows = [{"ids": pad_documents(d), "keep": pad_documents(d) != 0} for d in documents]
    padded = {"ids": (0, 1), "keep": (0, 1)}
    assert_matches_equations("han", equations, rows, padded, **SIZES)


def test_padding_values_have_no_effect() -> None:
    """Padded sentences, and padding after the end of a sentence."""
    found = elaborate_with_config("han", **SIZES)
    weights = sample_spec_weights(found)
    rng = np.random.default_rng(1)
    keep = np.zeros((2, 3, 4), bool)
    keep[0, 0, :2] = keep[0, 1, :4] = keep[1, 0, :1] = True
    ids = rng.integers(1, 13, keep.shape)
    other = np.where(keep, ids, rng.integers(1, 13, keep.shape))
    first, second = (
        run_reference(found, weights, {"ids": each, "keep": keep}) for each in (ids, other)
    )
    for name, value in first.items():
        assert np.array_equal(value, second[name]), name
    assert not first["word_attention"][~keep].any()
    assert not first["sentence_attention"][0, 2:].any()

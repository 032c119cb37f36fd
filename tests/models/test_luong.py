"""`translate_pair` agrees with the paper's equations in NumPy: every score function, global, local-m and
local-p, with and without input feeding.
"""

from functools import partial

import numpy as np
import pytest
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

LAYERS, REACH = 2, 2
SIZE = {"source_vocab": 11, "vocab": 13, "embed_dim": 5, "hidden": 6, "layers": LAYERS}


def compute_scores(w: Arrays, score: str, h: Array, memory: Array) -> Array:
    """The score functions of sec. 3.1 and eq. 8."""
    match score:
        case "dot":
            return memory @ h
        case "general":
            return linear(w, "attention.W", memory) @ h
        case "concat":
            both = np.concatenate([w["attention.W.weight"], w["attention.U.weight"]], axis=1)
            pairs = np.stack([np.concatenate([h, m]) for m in memory])
            return np.tanh(pairs @ both.T) @ w["attention.v.weight"][0]
        case _:
            return (w["attention.W.weight"] @ h)[: len(memory)]


def translate_pair(
    w: Arrays,
    score: str,
    place: str,
    feeding: bool,
    source: Array,
    source_keep: Array,
    target: Array,
) -> Arrays:
    """Sec. 3 for one pair of sentences."""
    memory = w["encoder.embed.weight"][source]
    hs, cs = np.zeros((LAYERS, 6)), np.zeros((LAYERS, 6))
    for k in range(LAYERS):
        rows = []
        for x in memory:
            hs[k], cs[k] = lstm_step(w, "encoder.rnn", f"_l{k}", x, hs[k], cs[k])
            rows.append(hs[k].copy())
        memory = np.stack(rows)
    fed, logits, alignments = np.zeros(6), [], []
    s = np.arange(len(source))
    for t, x in enumerate(w["decoder.embed.weight"][target]):
        x = np.concatenate([x, fed]) if feeding else x
        for k in range(LAYERS):
            hs[k], cs[k] = lstm_step(w, "decoder.rnn", f"_l{k}", x, hs[k], cs[k])
            x = hs[k].copy()
        p = t
        if place == "local_p":
            p = (
                len(source)
                * sigmoid(w["attention.v_p.weight"] @ np.tanh(w["attention.W_p.weight"] @ x))[0]
            )
        seen = abs(s - p) <= REACH if place != "global" else s >= 0
        a = np.zeros(len(source))
        if seen.any():
            a[seen] = softmax(compute_scores(w, score, x, memory)[seen])
        if place == "local_p":
            a = a * np.exp(-((s - p) ** 2) / (2 * (REACH / 2) ** 2))
        fed = np.tanh(w["attention.W_c.weight"] @ np.concatenate([a @ memory, x]))
        logits.append(w["output.weight"] @ fed)
        alignments.append(a)
    return {"logits": np.stack(logits), "alignment": np.stack(alignments)}


def pairs() -> list[Arrays]:
    rng = np.random.default_rng(0)
    sources, targets = sample_sentences(rng, 11, (6, 1, 4)), sample_sentences(rng, 13, (3, 9, 1))
    return [
        {"source": s, "source_keep": np.ones(len(s), bool), "target": t}
        for s, t in zip(sources, targets, strict=True)
    ]


PADDED = {"source": (0,), "source_keep": (0,), "target": (0,)}


@pytest.mark.parametrize(
    ("spec", "score", "place", "more"),
    [
        ("luong_dot", "dot", "global", {}),
        ("luong_general", "general", "global", {}),
        ("luong_concat", "concat", "global", {"score": "additive(7)"}),
        ("luong_location", "location", "global", {"score": "location(9)"}),
        ("luong_local_m", "general", "local_m", {}),
        ("luong_local_p", "general", "local_p", {}),
        ("luong", "dot", "local_p", {"score": "dot", "attention_type": "local_p"}),
    ],
)
def test_each_instance_agrees_with_the_equations(
    spec: str, score: str, place: str, more: dict[str, object]
) -> None:
    near = {} if place == "global" else {"reach": REACH}
    assert_matches_equations(
        spec, partial(_one, score, place, True), pairs(), PADDED, **SIZE, **near, **more
    )


def test_without_input_feeding_it_agrees_with_the_equations() -> None:
    assert_matches_equations(
        "luong",
        partial(_one, "general", "global", False),
        pairs(),
        PADDED,
        **SIZE,
        input_feeding=False,
    )


def _one(score: str, place: str, feeding: bool, w: Arrays, **sample: Array) -> Arrays:
    return translate_pair(w, score, place, feeding, **sample)

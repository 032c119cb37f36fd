"""`rnn_encdec` agrees with the equations of the paper's appendix A in NumPy."""

import numpy as np
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    sample_sentences,
    sigmoid,
)


def rnn_encdec(w: Arrays, source: Array, source_keep: Array, target: Array) -> Arrays:
    """App. A.1.1 and A.1.2, with both products of a gate."""
    w_r, w_z, w_n = np.split(w["encoder.rnn.weight_ih_l0"], 3)
    u_r, u_z, u_n = np.split(w["encoder.rnn.weight_hh_l0"], 3)
    h = np.zeros(6)
    for e in w["encoder.embed.weight"][source]:
        r, z = sigmoid(w_r @ e + u_r @ h), sigmoid(w_z @ e + u_z @ h)
        h = z * h + (1 - z) * np.tanh(w_n @ e + u_n @ (r * h))
    c = np.tanh(w["V.weight"] @ h)
    h = np.tanh(w["decoder.V.weight"] @ c)
    d = {
        name: w[f"decoder.{name}.weight"]
        for name in ("W", "U", "C", "W_r", "U_r", "C_r", "W_z", "U_z", "C_z")
    }
    logits = []
    for e in w["decoder.embed.weight"][target]:
        r = sigmoid(d["W_r"] @ e + d["U_r"] @ h + d["C_r"] @ c)
        z = sigmoid(d["W_z"] @ e + d["U_z"] @ h + d["C_z"] @ c)
        h = z * h + (1 - z) * np.tanh(d["W"] @ e + r * (d["U"] @ h + d["C"] @ c))
        s = w["O_h.weight"] @ h + w["O_y.weight"] @ e + w["O_c.weight"] @ c
        logits.append(
            w["G.weight"] @ np.array([max(s[2 * i], s[2 * i + 1]) for i in range(len(s) // 2)])
        )
    return {"logits": np.stack(logits), "phrase": c}


def test_the_spec_agrees_with_the_equations() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"source": s, "source_keep": np.ones(len(s), bool), "target": t}
        for s, t in zip(
            sample_sentences(rng, 11, (6, 1, 4)), sample_sentences(rng, 13, (3, 5, 1)), strict=True
        )
    ]
    padded = {"source": (0,), "source_keep": (0,), "target": (0,)}
    size = {"source_vocab": 11, "vocab": 13, "embed_dim": 5, "hidden": 6, "maxout": 4}
    assert_matches_equations("rnn_encdec", rnn_encdec, rows, padded, **size)

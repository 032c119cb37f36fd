"""`coverage_pointer` agrees with the paper's equations in NumPy, for sources of different lengths
with out-of-vocabulary tokens.
"""

import numpy as np
import pytest
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    linear,
    lstm_step,
    relu,
    sigmoid,
    softmax,
)

SIZE = {"vocab": 11, "extra": 4, "embed_dim": 5, "hidden": 3}
UNK = 1


def lstm(w: Arrays, suffix: str, x: Array) -> tuple[Array, Array, Array]:
    h, c, rows = np.zeros(SIZE["hidden"]), np.zeros(SIZE["hidden"]), []
    for row in x:
        h, c = lstm_step(w, "encoder", suffix, row, h, c)
        rows.append(h)
    return np.stack(rows), h, c


def known(w: Arrays, ids: Array) -> Array:
    made: Array = w["embedding.weight"][np.where(ids < SIZE["vocab"], ids, UNK)]
    return made


def summarize(w: Arrays, source: Array, target: Array, coverage: bool) -> Arrays:
    """Equations 1 to 4, 8, 9, 11 and 12, token by token."""
    x = known(w, source)
    ahead, h1, c1 = lstm(w, "_l0", x)
    back, h2, c2 = lstm(w, "_l0_reverse", x[::-1])
    h = np.concatenate([ahead, back[::-1]], axis=1)
    s = relu(linear(w, "reduce_h", np.concatenate([h1, h2])))
    c = relu(linear(w, "reduce_c", np.concatenate([c1, c2])))
    context, covered = np.zeros(2 * SIZE["hidden"]), np.zeros(len(source))
    logits, looks, agains = [], [], []
    for word in known(w, target):
        x_t = linear(w, "input", np.concatenate([word, context]))
        s, c = lstm_step(w, "decoder", "", x_t, s, c)
        name = "attention"
        if coverage:
            felt = h @ w[f"{name}.W_h.weight"].T + linear(w, f"{name}.W_s", s)
            felt = felt + np.outer(covered, w[f"{name}.w_c.weight"][:, 0])
        else:
            felt = h @ w[f"{name}.U.weight"].T + w[f"{name}.W.weight"] @ s
        a = softmax(np.tanh(felt) @ w[f"{name}.v.weight"][0])
        context = a @ h
        made = softmax(linear(w, "vocabulary", linear(w, "out", np.concatenate([s, context]))))
        p = sigmoid(linear(w, "p_gen", np.concatenate([context, s, x_t])))
        shares = np.concatenate([p * made, np.zeros(SIZE["extra"])])
        for i, word_id in enumerate(
            source
        ):  # eq. 9: a token that occurs twice is copied from both positions
            shares[word_id] += (1 - p[0]) * a[i]
        logits.append(np.log(np.maximum(shares, 1e-30)))
        looks.append(a)
        agains.append(np.minimum(a, covered).sum())
        covered = covered + a
    return {
        "logits": np.stack(logits),
        "alignment": np.stack(looks),
        "coverage_overlap": np.array(agains),
    }


@pytest.mark.parametrize("coverage", [True, False])
def test_the_spec_agrees_with_the_equations(coverage: bool) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for n, m in ((6, 3), (1, 1), (4, 5)):
        source = rng.integers(3, SIZE["vocab"] + SIZE["extra"], n)
        source[-1] = source[0]
        target = rng.integers(2, SIZE["vocab"] + SIZE["extra"], m)
        rows.append({"source": source, "source_keep": np.ones(n, bool), "target": target})

    def model(w: Arrays, source: Array, source_keep: Array, target: Array) -> Arrays:
        return summarize(w, source, target, coverage)

    padded = {"source": (0,), "source_keep": (0,), "target": (0,)}
    assert_matches_equations("coverage_pointer", model, rows, padded, coverage=coverage, **SIZE)

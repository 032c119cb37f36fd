"""Recurrent layers of the NumPy reference compared with the equations of the papers, and invariance
to padding and direction.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.op_examples import EXAMPLES, OpExample, build_example_graph

import specc_numpy
from specc.ir import ops

Array = NDArray[Any]
RNG = np.random.default_rng(5)
LAYERS = [e for e in EXAMPLES if isinstance(e.op, ops.Rnn | ops.Gru | ops.Lstm)]
KEPT = [e for e in LAYERS if len(e.operands) > 5 and e.operands[5]]


def compute_logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def test_gru_with_reset_before_matches_the_paper() -> None:
    """Cho et al. 2014 (arXiv:1406.1078, eq. 5 to 8): `h~ = tanh(W x + U (r ⊙ h))`,
    `h' = z h + (1 - z) h~`.
    """
    x, h = RNG.normal(size=(2, 5, 3)), RNG.normal(size=(2, 4))
    w_r, w_z, w = RNG.normal(size=(3, 4, 3))
    u_r, u_z, u = RNG.normal(size=(3, 4, 4))
    stacked = np.concatenate([w_r, w_z, w]), np.concatenate([u_r, u_z, u])
    op = ops.Gru("before")
    out, last = specc_numpy.evaluate[op](op, {}, x, *stacked, *[None] * 3, h)
    for t in range(5):
        r = compute_logistic(x[:, t] @ w_r.T + h @ u_r.T)
        z = compute_logistic(x[:, t] @ w_z.T + h @ u_z.T)
        h = z * h + (1 - z) * np.tanh(x[:, t] @ w.T + (r * h) @ u.T)
        np.testing.assert_allclose(out[:, t], h, rtol=1e-12)
    np.testing.assert_allclose(last, h, rtol=1e-12)


def test_update_new_equals_update_old_with_negated_weights() -> None:
    """`h' = (1 - z) h + z h~` (arXiv:1409.0473, app. A.1.1); σ(-a) = 1 - σ(a)."""
    x, w, u, b = (
        RNG.normal(size=(2, 5, 3)),
        RNG.normal(size=(12, 3)),
        RNG.normal(size=(12, 4)),
        RNG.normal(size=12),
    )
    sign = np.repeat([1.0, -1.0, 1.0], 4)
    for reset in ("before", "after"):
        new, old = ops.Gru(reset, "new"), ops.Gru(reset, "old")  # type: ignore[arg-type]
        found, _ = specc_numpy.evaluate[new](new, {}, x, w, u, b, b)
        turned = w * sign[:, None], u * sign[:, None], b * sign, b * sign
        np.testing.assert_allclose(
            found, specc_numpy.evaluate[old](old, {}, x, *turned)[0], rtol=1e-12
        )


def test_peepholes_match_the_paper() -> None:
    """Gers and Schmidhuber, 2000: input and forget gates read the previous cell state, the output
    gate reads the new one.
    """
    x, w, u, p = (
        RNG.normal(size=(1, 6, 3)),
        RNG.normal(size=(16, 3)),
        RNG.normal(size=(16, 4)),
        RNG.normal(size=12),
    )
    out, _, cell = specc_numpy.evaluate[ops.Lstm()](ops.Lstm(), {}, x, w, u, *[None] * 5, p)
    h = c = np.zeros(4)
    for t in range(6):
        i, f, g, o = np.split(w @ x[0, t] + u @ h, 4)
        before, c = (
            c,
            compute_logistic(f + p[4:8] * c) * c + compute_logistic(i + p[:4] * c) * np.tanh(g),
        )
        assert (before != c).all()
        h = compute_logistic(o + p[8:] * c) * np.tanh(c)
        np.testing.assert_allclose(out[0, t], h, rtol=1e-12)
    np.testing.assert_allclose(cell[0], c, rtol=1e-12)


@pytest.mark.parametrize("example", KEPT, ids=str)
def test_padding_anywhere_does_not_change_results(example: OpExample) -> None:
    graph, _ = build_example_graph(example)
    given = {f"x{n}": x for n, x in enumerate(example.sample_operands(RNG)) if x is not None}
    for kept in ([2, 3, 4], [0, 1, 2], [1, 3], [0, 1, 2, 3, 4], []):
        keep = np.isin(np.arange(5), kept)
        found = specc_numpy.evaluate_graph(graph, {**given, "x5": np.tile(keep, (2, 1))}, {})
        without = {**given, "x0": given["x0"][:, kept], "x5": np.ones((2, len(kept)), bool)}
        alone = specc_numpy.evaluate[example.op](
            example.op, {}, *(without.get(f"x{n}") for n in range(len(example.operands)))
        )
        assert not found["y0"][:, ~keep].any()
        np.testing.assert_allclose(found["y0"][:, kept], alone[0], rtol=1e-12)
        for n, state in enumerate(alone[1:], start=1):
            np.testing.assert_allclose(found[f"y{n}"], state, rtol=1e-12)


@pytest.mark.parametrize("example", LAYERS, ids=str)
def test_reverse_layer_equals_a_layer_over_the_reversed_sequence(example: OpExample) -> None:
    drawn = example.sample_operands(RNG)
    attributes = example.op.get_attributes()
    other = type(example.op)(**{**attributes, "reverse": not attributes["reverse"]})
    turned = [None if x is None else x[:, ::-1] if n in (0, 5) else x for n, x in enumerate(drawn)]
    found = specc_numpy.evaluate[example.op](example.op, {}, *drawn)
    mirrored = specc_numpy.evaluate[other](other, {}, *turned)
    np.testing.assert_allclose(found[0], mirrored[0][:, ::-1], rtol=1e-12)
    for a, b in zip(found[1:], mirrored[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)

"""Masked keys have weight 0, however low the scores of visible keys are.

A fully masked row, or a row of -inf only, is zero in every attention, and NaN only in a plain
softmax. The oracle is plain Python; the fused kernel, its decomposition, and other score functions
are compared.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.onnx_sessions import open_silent_session

import specc_numpy
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc_onnx import build_model, get_target

LOW = (0.0, 1.5, -2.0, 80.0, -1e29, -1e30, -3e30, -1e38, -math.inf)
MASKS = (
    (True, True, False),
    (False, True, True),
    (True, False, False),
    (True, True, True),
    (False, False, False),
)
SPEC = """specc 1
model m
dims n
bias low(z) = z[i, j]
mask seen(m) = m[i, j]
graph g(z: float[n, 1, 3], m: bool[n, 1, 3], q: float[n, 1, 2], k: float[n, 3, 2], v: float[n, 3, 3])
    -> (y: float[n, 1, 3]) {{
  return {value}
}}
"""
ONE = "axis=1"
VALUES = {
    "softmax": "softmax(z, axis=-1)",
    "masked_softmax": "squeeze(masked_softmax(insert(z, axis=1), insert(m, axis=1)), axis=1)",
    "attend": "squeeze(attend(insert(q, axis=1), insert(k, axis=1), insert(v, axis=1), mask=seen(m), add=low(z)), "
    "axis=1)",
    "attend_by": "attend_by(scaled_dot, q, k, v, mask=seen(m), add=low(z))",
    "attend to all": "squeeze(attend(insert(q, axis=1), insert(k, axis=1), insert(v, axis=1), mask=all, add=low(z)), "
    "axis=1)",
    "attend to all by": "attend_by(scaled_dot, q, k, v, mask=all, add=low(z))",
    "weights by, of all": "weights_by(softmax, z, mask=all)",
}
HIDING = """specc 1
model m
dims n, q, k
mask seen(m) = m[i, j]
bias given(z) = z[i, j]
score drawn(z) = z[i, j]
normalizer sharp(s) = softmax(2.0 * s, axis=-1)
graph g(z: float[n, q, k], m: bool[n, q, k], x: float[n, q, 2], y: float[n, k, 2])
    -> (masked: float[n, q, k], added: float[n, q, k], by: float[n, q, k], scored: float[n, q, k]) {{
  low = where(m, z, -inf)
  _, masked = attend_by(drawn(z), x, y, y, mask=seen(m), normalize={how})
  _, added = attend_by(drawn(z), x, y, y, mask=all, add=given(where(m, 0.0, -inf)), normalize={how})
  _, by = attend_by(drawn(low), x, y, y, mask=all, normalize={how})
  return masked, added, by, weights_by({how}, low, mask=all)
}}
"""
NORMALIZERS = (
    *("softmax", "queries", "hard", "kernel", "uniform"),
    *("sparsemax", "entmax15", "topk(2)", "sharp"),
)


def compute_weights(scores: Sequence[float], seen: Sequence[bool], nothing: float) -> list[float]:
    """Return the weights of one row; `nothing` if there are no weights."""
    top = max((s for s, m in zip(scores, seen, strict=True) if m), default=-math.inf)
    if top == -math.inf:
        return [nothing] * len(scores)
    powers = [math.exp(s - top) if m else 0.0 for s, m in zip(scores, seen, strict=True)]
    return [p / sum(powers) for p in powers]


@pytest.mark.parametrize("case", VALUES)
def test_masked_keys_have_no_weight_next_to_low_scores(case: str, tmp_path: Path) -> None:
    """Queries and keys are zero and values are one-hot, so that only the added scores have an
    effect.
    """
    (tmp_path / "m.specc").write_text(SPEC.format(value=VALUES[case]))
    graph = elaborate_spec(open_spec(str(tmp_path / "m.specc"))).graph
    rows = [
        ((a, b, c), m) for a in LOW for b in LOW for c in (0.0, -1e30, -math.inf) for m in MASKS
    ]
    z = np.array([s for s, _ in rows], np.float32)[:, None]
    m = np.array([s for _, s in rows])[:, None]
    zeros = np.zeros((len(rows), 3, 2), np.float32)
    given = {
        "z": z,
        "m": m,
        "q": zeros[:, :1],
        "k": zeros,
        "v": np.tile(np.eye(3, dtype=np.float32), (len(rows), 1, 1)),
    }
    hides = "all" not in case and case != "softmax"
    nothing = math.nan if case == "softmax" else 0.0
    want = [
        compute_weights(scores, seen if hides else (True,) * 3, nothing)
        for scores, seen in zip(z[:, 0].tolist(), m[:, 0].tolist(), strict=True)
    ]
    with np.errstate(all="ignore"):
        results = {"the reference": specc_numpy.evaluate_graph(graph, given, {})["y"]}
    for name, opset in (("onnx", 23), ("ort-cpu", 23), ("onnx", 17)):
        session = open_silent_session(build_model(graph, get_target(name), opset=opset).model)
        read = {i.name for i in session.get_inputs()}
        (results[f"{name} {opset}"],) = session.run(
            None, {n: a for n, a in given.items() if n in read}
        )
    for name, made in results.items():
        wrong = np.flatnonzero(~np.isclose(made[:, 0], want, atol=1e-6, equal_nan=True).all(axis=1))
        shown = [f"{z[n, 0]} seen {m[n, 0]}: {made[n, 0]}, not {want[n]}" for n in wrong[:3]]
        assert not shown, f"{name}: {shown}"


@pytest.mark.parametrize("how", NORMALIZERS)
def test_minus_infinity_is_equivalent_to_a_mask(how: str, tmp_path: Path) -> None:
    """A mask, a bias and a score of -inf are equivalent for every normalizer: for some keys of a
    row, all keys, or all queries of a key.
    """
    (tmp_path / "m.specc").write_text(HIDING.format(how=how))
    graph = elaborate_spec(open_spec(str(tmp_path / "m.specc"))).graph
    rng = np.random.default_rng(5)
    m = rng.random((6, 4, 5)) < 0.6
    m[0], m[1, 2], m[2, :, 3] = False, False, False
    given = {
        "z": rng.normal(size=m.shape).astype(np.float32),
        "m": m,
        "x": np.zeros((6, 4, 2), np.float32),
        "y": np.zeros((6, 5, 2), np.float32),
    }
    with np.errstate(all="ignore"):
        results = {"the reference": specc_numpy.evaluate_graph(graph, given, {})}
    for name, opset in (("onnx", 23), ("ort-cpu", 17)):
        session = open_silent_session(build_model(graph, get_target(name), opset=opset).model)
        read = [i.name for i in session.get_inputs()]
        made = session.run(None, {n: given[n] for n in read})
        results[f"{name} {opset}"] = dict(zip(graph.outputs, made, strict=True))
    want = results["the reference"]["masked"]
    assert not want[~m].any(), "what is hidden weighs nothing"
    along = want.sum(axis=1 if how == "queries" else 2)
    some = m.any(axis=1 if how == "queries" else 2)
    if how != "kernel":  # rows may be negative
        assert np.allclose(along, some), "what is seen weighs one"
    for where, outputs in results.items():
        for form, made in outputs.items():
            if (how, form) == ("uniform", "by"):
                continue  # `attend_by` rejects unused scores
            assert np.allclose(made, want, atol=1e-6), f"{where}: {form}"

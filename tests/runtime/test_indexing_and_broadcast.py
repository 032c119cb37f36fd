"""`x[:, none]`, `x[:, t]`, `scan … along` an expression, and operands of batch size 1 in blocks:
the compiled model agrees with NumPy.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specc
from specc.diagnostics.diagnostic import SpeccError

Array = NDArray[Any]
X = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
SCALE = np.array([1.0, -2.0, 0.5], np.float32)

SPEC = """specc 1
model m
config {{ layers: int = 4 }}
dims batch, n >= 2

block plus(x: float[b, q, d], p: float[b, k, d]) -> float[b, q, d] {{
  return x + mean(p, axis=1)[:, none]
}}

block over(p: float[batch, k, d], x: float[batch, n, d]) -> float[batch, k, d] {{
  y, _ = attend(p, x, x, mask=all)
  return y
}}

graph g(x: float[batch, n, 4], scale: float[batch], t: int[]) -> (y: float[...]) {{
  {body}
}}
"""
SCAN = (
    "h = x[:, 0]\n  scan row in {over} along {length} carry h {{ h = tanh(h + row) }}\n  return h"
)


def fold_rows(start: Array, rows: Array) -> Array:
    """Return tanh(h + row), applied row by row."""
    for row in rows.swapaxes(0, 1):
        start = np.tanh(start + row)
    return start


def attend(p: Array, x: Array) -> Array:
    """Return attention of p over x (arXiv:1706.03762, eq. 1)."""
    scores = p @ x.swapaxes(1, 2) / 2.0
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    made: Array = (weights / weights.sum(-1, keepdims=True)) @ x
    return made


FORMS: dict[str, tuple[str, Callable[[int], Array]]] = {
    "none at the end": ("return scale[:, none]", lambda t: SCALE[:, None]),
    "none in front": ("return x[none]", lambda t: X[None]),
    "none twice": ("return x * scale[:, none, none]", lambda t: X * SCALE[:, None, None]),
    "none beside a slice": ("return x[:, none, 1:, 0]", lambda t: X[:, None, 1:, 0]),
    "none after ...": ("return x[..., none]", lambda t: X[..., None]),
    "a computed position": ("return x[:, t]", lambda t: X[:, t]),
    "of the first axis": ("return x[t]", lambda t: X[t]),
    "of the last axis": ("return x[..., t]", lambda t: X[..., t]),
    "an expression": ("return x[:, min(t + 1, 4), none]", lambda t: X[:, min(t + 1, 4), None]),
    "along n - 1": (
        SCAN.format(over="x[:, 1:]", length="n - 1"),
        lambda t: fold_rows(X[:, 0], X[:, 1:]),
    ),
    "along a sum": (
        SCAN.format(over="concat([x, x], axis=1)", length="n + n"),
        lambda t: fold_rows(X[:, 0], np.concatenate([X, X], axis=1)),
    ),
    "along a number": (
        SCAN.format(over='parameter(shape=[1, 3, 4], init="ones") @ p', length="3"),
        lambda t: fold_rows(X[:, 0], np.ones((3, 3, 4), np.float32)),
    ),
    "along a config value": (
        SCAN.format(over="x[:, 0:1] * ones(shape=[layers - 1, 1])", length="layers - 1"),
        lambda t: fold_rows(X[:, 0], X[:, :1].repeat(3, axis=1)),
    ),
    "batch 1 second": ("return plus(x, ones(shape=[1, 2, 4]))", lambda t: X + 1.0),
    "batch 1 first": (
        "return plus(ones(shape=[1, 2, 4]), x)",
        lambda t: 1.0 + np.zeros((3, 2, 1), np.float32) + X.mean(axis=1)[:, None],
    ),
    "batch 1 beside a dynamic batch": (
        "return over(ones(shape=[1, 2, 4]), x)",
        lambda t: attend(np.ones((3, 2, 4), np.float32), X),
    ),
    "batch 1 of both": (
        "return plus(ones(shape=[1, 2, 4]), ones(shape=[1, 3, 4]))",
        lambda t: np.full((1, 2, 4), 2.0, np.float32),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_compiled_form_agrees_with_numpy(name: str, tmp_path: Path) -> None:
    body, expected = FORMS[name]
    path = tmp_path / "m.specc"
    path.write_text(SPEC.format(body=body), encoding="utf-8")
    specc.compile(path, tmp_path / "m.onnx", init=0)
    model = specc.load(tmp_path / "m.onnx")
    taken = {i for i in ("x", "scale", "t") if f" {i}" in repr(model)}
    for t in (0, 2):
        given = {"x": X, "scale": SCALE, "t": np.array(t)}
        found = model.run(**{n: v for n, v in given.items() if n in taken})["y"]
        want = expected(t)
        assert found.shape == want.shape
        assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("t", [-1, 5])
def test_a_position_that_does_not_exist_is_refused(t: int, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(SPEC.format(body="return x[:, t]"), encoding="utf-8")
    specc.compile(path, tmp_path / "m.onnx", init=0)
    with pytest.raises(SpeccError, match="check that computed indices are at least 0"):
        specc.load(tmp_path / "m.onnx").run(x=X, t=np.array(t), scale=np.ones(len(X)))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return plus(x, x[0:2])", "E0302"),
        ("return plus(x, concat([x[0:1], x[0:1]], axis=0))", "E0302"),
        ("return x[:, t > 0]", "E0208"),
        ("return x[:, scale]", "E0208"),
        (SCAN.format(over="x", length="4"), "E0302"),
        (SCAN.format(over="x", length="scale"), "E0304"),
        (SCAN.format(over="x", length="n + 1"), "E0304"),
        (SCAN.format(over="matmul(transpose(x), x)", length="4"), "E0304"),
    ],
)
def test_invalid_forms_are_refused(body: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text(SPEC.format(body=body), encoding="utf-8")
    with pytest.raises(SpeccError) as failed:
        specc.compile(path, tmp_path / "m.onnx", init=0)
    assert {d.code for d in failed.value.diagnostics} == {code}

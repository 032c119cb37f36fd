"""A whole number given where a fraction is declared is a fraction from there on."""

from pathlib import Path

import numpy as np
import pytest

import specc

SPEC = """specc 1
model m
config { w: int = 3 }
dims batch, n
block half(x: float[batch, n, 2], k: float) -> float[batch, n, 2] {
  t: float = k
  return x * (k / 2) + (t + 1) / 2
}
bias slope(k: float) = cast(i - j, to=float) * (k / 4)
graph g(x: float[batch, n, 2]) -> (y: float[batch, n, 2], z: float[batch, n, 2], a: float[batch, n, 2]) {
  a, _ = attend(x, x, x, mask=all, add=slope(length(x, axis=1)))
  return half(x, length(x, axis=1)), half(x, w), a
}
"""


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_length_is_halved_with_its_fraction(n: int, tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(SPEC)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx")
    x = np.random.default_rng(n).normal(size=(2, n, 2)).astype(np.float32)
    found = specc.load(tmp_path / "m.onnx").run(x=x)
    np.testing.assert_allclose(found["y"], x * (n / 2) + (n + 1) / 2, rtol=1e-6)
    np.testing.assert_allclose(found["z"], x * 1.5 + 2.0, rtol=1e-6)
    rows = np.arange(n)
    scores = x.astype(float) @ x.astype(float).transpose(0, 2, 1) / 2**0.5
    weights = np.exp(scores + (rows[:, None] - rows) * (n / 4))
    wanted = weights / weights.sum(-1, keepdims=True) @ x
    np.testing.assert_allclose(found["a"], wanted, rtol=1e-5, atol=1e-6)

"""Powers and logarithms of small sigmoids, which ONNX Runtime computes as 0 below -18."""

from pathlib import Path

import numpy as np
import pytest

import specc

X = np.array([[-100.0, -40.0, -18.5, -17.0, -5.0, -1e-3, 0.0, 3.0, 40.0]], "f4")
WIDE = X.astype(np.float64)
LOG = -np.logaddexp(0, -WIDE)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("log(sigmoid(x))", LOG),
        ("sigmoid(x) ** 0.0625", np.exp(0.0625 * LOG)),
        ("sigmoid(x) ** y", np.exp(np.abs(WIDE) / 200 * LOG)),
    ],
)
def test_small_sigmoids_are_accurate(value: str, want: np.ndarray, tmp_path: Path) -> None:
    text = f"""specc 1
model m
dims batch
graph g(x: float[batch, 9], y: float[batch, 9]) -> (z: float[batch, 9]) {{
  return {value} + 0.0 * y
}}
"""
    (tmp_path / "m.specc").write_text(text)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx")
    found = specc.load(tmp_path / "m.onnx").run(x=X, y=np.abs(X) / 200)["z"]
    np.testing.assert_allclose(found, want, rtol=2e-6)

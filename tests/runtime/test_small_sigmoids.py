"""Small sigmoids: the kernel of ONNX Runtime has an absolute error of 1e-7, and is 0 below -18."""

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
def test_powers_of_small_sigmoids_are_accurate(
    value: str, want: np.ndarray, tmp_path: Path
) -> None:
    assert_accurate(f"{value} + 0.0 * y", want, tmp_path)


SIGMOID = np.exp(LOG)
SILU = WIDE * SIGMOID


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("sigmoid(x)", SIGMOID),
        ("silu(x) * y", SILU * np.abs(WIDE) / 200),
        ("quick_gelu(x / 1.702)", SILU / 1.702),
        ("sigmoid(x) / insert(sum(sigmoid(x), axis=1), axis=1)", SIGMOID / SIGMOID.sum()),
        ("rms_norm(silu(x), eps=0.0, scale=false)", SILU / np.sqrt((SILU**2).mean())),
        ("merge(split(silu(x), into=[3, 3]) / 7.0, axis=1)", SILU / 7),
        (
            "sigmoid(x[:, 3:4]) * rms_norm(y, eps=0.0, scale=false) + 0.0 * y",
            SIGMOID[:, 3:4] * np.abs(WIDE) / np.sqrt((WIDE**2).mean()),
        ),
    ],
)
def test_small_gates_are_accurate(value: str, want: np.ndarray, tmp_path: Path) -> None:
    """Normalized, returned, or multiplied by a value of any size."""
    assert_accurate(value, want, tmp_path)


def assert_accurate(value: str, want: np.ndarray, tmp_path: Path) -> None:
    """Compile an expression of `X` and `y = |X| / 200`, and compare each element."""
    text = f"""specc 1
model m
dims batch
graph g(x: float[batch, 9], y: float[batch, 9]) -> (z: float[batch, 9]) {{
  return {value}
}}
"""
    (tmp_path / "m.specc").write_text(text)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx")
    found = specc.load(tmp_path / "m.onnx").run(x=X, y=np.abs(X) / 200)["z"]
    np.testing.assert_allclose(found, want, rtol=2e-6, atol=1e-37)  # denormal values may be 0

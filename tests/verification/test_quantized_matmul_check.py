"""`verify` detects a CPU with other integer matrix multiplication."""

import numpy as np
import pytest

from specc.backend import QuantizedMatMul
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.array import Array
from specc.verification.quantized_matmul_check import compare_quantized_matmuls

RNG = np.random.default_rng(0)
NAMES = {"x": "x", "w": "w", "y": "y"}


def test_saturating_int16_products() -> None:
    """`pmaddubsw` saturates sums of two products at 32767."""
    x = RNG.integers(0, 256, (3, 8)).astype(np.uint8)
    x[0], w = 255, np.full((8, 2), 127, np.int8)
    right = (x.astype(np.int32) - 128) @ w.astype(np.int32)
    product = QuantizedMatMul("MatMulInteger", NAMES, {})
    assert compare_quantized_matmuls([product], {"x": x, "w": w, "y": right}, "") == 0
    pairs = x.astype(np.int32).reshape(3, 4, 2) * 127
    wrong = np.minimum(pairs.sum(-1), 32767).sum(-1) - 128 * 8 * 127
    with pytest.raises(SpeccError, match="E0855"):
        compare_quantized_matmuls([product], {"x": x, "w": w, "y": np.stack([wrong, wrong], 1)}, "")


def test_rounding_away_from_even() -> None:
    x = np.array([[0.5, 1.5, -2.5, 126.9]], np.float32)
    product = QuantizedMatMul("QuantizeLinear", {"x": "x", "y": "y"}, {})
    even = np.array([[128, 130, 126, 255]], np.uint8)
    assert compare_quantized_matmuls([product], {"x": x, "y": even}, "") == 0
    away = np.array([[129, 130, 125, 255]], np.uint8)
    with pytest.raises(SpeccError, match="E0855"):
        compare_quantized_matmuls([product], {"x": x, "y": away}, "")


GROUPED = {"x": "x", "w": "w", "scales": "scales", "y": "y"}
NUMBERS = {"K": 40, "bits": 8, "block_size": 128, "accuracy_level": 4}


def make_grouped_product(x: Array, w: Array) -> dict[str, Array]:
    """Return the operands of a group-wise quantized product with K = 40, and its result in float32
    sums of 16."""
    stored = np.full((len(w), 1, 128), 128, np.uint8)
    stored[:, 0, :40] = w + 128
    most = np.abs(x).max(-1, keepdims=True)
    q = np.rint(x * (np.float32(127) / most))
    y = np.zeros((len(x), len(w)), np.float32)
    for start in range(0, 40, 16):
        lane = slice(start, start + 16)
        y += ((q[:, lane] @ w[:, lane].T) * (most / np.float32(127))).astype("f4")
    scales = np.ones((len(w), 1), np.float32)
    return {"x": x, "w": stored, "scales": scales, "y": y}


def test_error_of_a_cancelling_sum() -> None:
    """A result much smaller than its terms has a relative error above 1e-5."""
    worst = 0.0
    product = QuantizedMatMul("MatMulNBits", GROUPED, NUMBERS)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x, w = rng.normal(size=(1, 40)).astype("f4"), rng.integers(-128, 128, (1, 40))
        most = np.abs(x).max()
        q = np.rint(x * (np.float32(127) / most))
        # the last weight and activation cancel almost the whole sum
        q[0, 39] = 1
        w[0, 39] = 0
        w[0, 38] = -round(float((q @ w.T - q[:, 38] * w[0, 38])[0, 0] / (q[0, 38] or 1)))
        w[0, 38] = np.clip(w[0, 38], -128, 127)
        given = make_grouped_product(x, w)
        assert compare_quantized_matmuls([product], given, "") <= 1e-5
        exact = (q.astype("f8") @ w.T) * float(most / np.float32(127))
        worst = max(worst, abs(float((given["y"] - exact)[0, 0])) / (abs(exact).max() or 1))
    assert worst > 1e-6


@pytest.mark.parametrize("place", [0, 17, 39])
def test_wrong_weight_is_found(place: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 40)).astype("f4")
    given = make_grouped_product(x, rng.integers(-128, 127, (5, 40)))
    product = QuantizedMatMul("MatMulNBits", GROUPED, NUMBERS)
    assert compare_quantized_matmuls([product], given, "") <= 1e-5
    given["w"][2, 0, place] += 1
    with pytest.raises(SpeccError, match="E0855"):
        compare_quantized_matmuls([product], given, "")


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-38, 3e-37])
def test_denormal_activations(size: float) -> None:
    """The factor 127 / max overflows float32."""
    x = np.full((2, 40), size, np.float32)
    x[1] = 1
    given = make_grouped_product(np.ones((2, 40), np.float32), np.full((3, 40), 2))
    given |= {"x": x, "y": np.array([[0] * 3, [80] * 3], np.float32)}
    assert (
        compare_quantized_matmuls([QuantizedMatMul("MatMulNBits", GROUPED, NUMBERS)], given, "")
        == 0
    )

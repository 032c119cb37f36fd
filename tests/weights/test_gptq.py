"""GPTQ against another implementation of the paper: optimal brain quantization (Frantar and
Alistarh, 2022, https://arxiv.org/abs/2208.11580, eq. 2 to 4) with columns in order, from the
inverse itself instead of its factors."""

import numpy as np
import pytest

from specc.ir.array import Array
from specc.weights import int_quantization


def quantize_row_by_inverse(row: Array, inputs: Array, block: int) -> tuple[Array, Array]:
    """Return the codes and scales of one row, column by column, in float64."""
    hessian = inputs.T @ inputs
    diagonal = np.diag(hessian).copy()
    diagonal[diagonal == 0] = 1.0
    np.fill_diagonal(hessian, diagonal + int_quantization.DAMPING_FRACTION * diagonal.mean())
    inverse = np.linalg.inv(hessian)
    left = row.astype(np.float64)
    numbers = np.zeros(len(row), np.int64)
    scales = []
    for j in range(len(row)):
        if j % block == 0:
            here = left[j : j + block].astype(np.float32)
            far = here[np.abs(here).argmax()]
            scales.append(np.float32(far / np.float32(-8)) if far else np.float32(1))
        scale = float(scales[-1])
        numbers[j] = min(max(round(left[j] / scale), -8), 7)
        lost = (left[j] - numbers[j] * scale) / inverse[j, j]
        left = left - lost * inverse[:, j]
        # remove the column from the inverse
        inverse = inverse - np.outer(inverse[:, j], inverse[j]) / inverse[j, j]
        inverse[j, j] = 1.0
    return numbers, np.array(scales, np.float32)


@pytest.mark.parametrize(("wide", "block"), [(32, 16), (40, 16), (5, 16), (1, 16)])
def test_equals_optimal_brain_quantization(wide: int, block: int) -> None:
    rng = np.random.default_rng(wide)
    inputs = rng.normal(size=(64, wide)) @ rng.normal(size=(wide, wide))
    rows = rng.normal(size=(7, wide)).astype(np.float32)
    numbers, scales = int_quantization.quantize_weight_gptq(
        rows, int_quantization.compute_inverse_cholesky_factor(inputs.T @ inputs), block
    )
    for n, row in enumerate(rows):
        wanted, units = quantize_row_by_inverse(row, inputs, block)
        assert np.array_equal(numbers[n].reshape(-1)[:wide], wanted)
        assert np.allclose(scales[n], units, rtol=1e-6)
    assert not numbers.reshape(7, -1)[:, wide:].any()


def test_blocked_cholesky_factor() -> None:
    """Compare with NumPy's inverse of the whole matrix."""
    inputs = np.random.default_rng(5).normal(size=(900, 601))
    products = inputs.T @ inputs
    factor = int_quantization.compute_inverse_cholesky_factor(products.copy())
    damped = products + int_quantization.DAMPING_FRACTION * np.diag(products).mean() * np.eye(601)
    assert np.allclose(factor.T @ factor, np.linalg.inv(damped), rtol=1e-8, atol=1e-12)
    assert not np.tril(factor, -1).any()


@pytest.mark.parametrize("seed", range(4))
def test_error_is_below_round_to_nearest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(200, 64)) @ rng.normal(size=(64, 64))
    rows = rng.normal(size=(16, 64)).astype(np.float32)
    numbers, scales = int_quantization.quantize_weight_gptq(
        rows, int_quantization.compute_inverse_cholesky_factor(inputs.T @ inputs), 32
    )
    blocks = int_quantization.split_weight_groups(rows, 32)
    units = int_quantization.compute_group_scales(blocks, 4)
    near = int_quantization.round_to_integers(blocks, units, 4) * units[..., None]
    made = numbers * scales[..., None]
    wanted = inputs @ rows.T
    lost, usual = (np.linalg.norm(inputs @ w.reshape(16, -1).T - wanted) for w in (made, near))
    assert lost < 0.9 * usual


def test_zero_activations() -> None:
    """Columns with zero activations are rounded to nearest, as is every column without calibration
    data."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(50, 32))
    inputs[:, 3] = 0
    rows = rng.normal(size=(4, 32)).astype(np.float32)
    for seen in (inputs, 0 * inputs):
        numbers, scales = int_quantization.quantize_weight_gptq(
            rows, int_quantization.compute_inverse_cholesky_factor(seen.T @ seen), 32
        )
        assert (numbers[:, 0, 3] == np.rint(rows[:, 3] / scales[:, 0]).clip(-8, 7)).all()
    blocks = int_quantization.split_weight_groups(rows, 32)
    assert (
        numbers
        == int_quantization.round_to_integers(
            blocks, int_quantization.compute_group_scales(blocks, 4), 4
        )
    ).all()


def test_zero_rows() -> None:
    inputs = np.random.default_rng(1).normal(size=(40, 16))
    numbers, scales = int_quantization.quantize_weight_gptq(
        np.zeros((2, 16), np.float32),
        int_quantization.compute_inverse_cholesky_factor(inputs.T @ inputs),
        16,
    )
    assert not numbers.any()
    assert np.isfinite(scales).all()

"""A processor that multiplies whole numbers in another way is found by `verify`."""

import numpy as np
import pytest

from specc.backend import Product
from specc.run.products import compare_products
from specc.text.diagnostic import Failed

RNG = np.random.default_rng(0)
NAMES = {"x": "x", "w": "w", "y": "y"}


def test_a_product_that_stops_at_sixteen_bits() -> None:
    """What `pmaddubsw` does: sums of two products do not go beyond 32767."""
    x = RNG.integers(0, 256, (3, 8)).astype(np.uint8)
    x[0], w = 255, np.full((8, 2), 127, np.int8)
    right = (x.astype(np.int32) - 128) @ w.astype(np.int32)
    product = Product("MatMulInteger", NAMES, {})
    assert compare_products([product], {"x": x, "w": w, "y": right}, "") == 0
    pairs = x.astype(np.int32).reshape(3, 4, 2) * 127
    wrong = np.minimum(pairs.sum(-1), 32767).sum(-1) - 128 * 8 * 127
    with pytest.raises(Failed, match="E0855"):
        compare_products(
            [product], {"x": x, "w": w, "y": np.stack([wrong, wrong], 1)}, ""
        )


def test_rows_that_are_rounded_the_other_way() -> None:
    x = np.array([[0.5, 1.5, -2.5, 126.9]], np.float32)
    product = Product("QuantizeLinear", {"x": "x", "y": "y"}, {})
    even = np.array([[128, 130, 126, 255]], np.uint8)
    assert compare_products([product], {"x": x, "y": even}, "") == 0
    away = np.array([[129, 130, 125, 255]], np.uint8)
    with pytest.raises(Failed, match="E0855"):
        compare_products([product], {"x": x, "y": away}, "")

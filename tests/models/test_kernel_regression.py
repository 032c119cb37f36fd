"""`kernel_regression` is the Nadaraya-Watson estimator in NumPy, of four kernels."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from equations import Array, Arrays, assert_follows

KERNELS: dict[str, Callable[[Array, float], float]] = {
    "gaussian": lambda u, w: float(np.exp(-0.5 * (w * np.linalg.norm(u)) ** 2)),
    "box(1.5)": lambda u, w: float(np.linalg.norm(u) <= 1.5),
    "triangle(1.5)": lambda u, w: max(0.0, 1 - float(np.linalg.norm(u)) / 1.5),
    "epanechnikov(1.5)": lambda u, w: max(0.0, 1 - float(u @ u) / 1.5**2),
}


def regress(kernel: str, w: Arrays, x: Array, known: Array, values: Array) -> Arrays:
    width = float(w["kernel.w"][0]) if "kernel.w" in w else 0.0
    k = np.array([[KERNELS[kernel](a.astype(float) - b, width) for b in known] for a in x])
    total = k.sum(1, keepdims=True)
    weights = np.divide(k, total, out=np.zeros_like(k), where=total != 0)
    return {"y": weights @ values, "weights": weights}


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_follows_the_equation(kernel: str) -> None:
    """One question is far from every point: no kernel but the Gaussian reaches it, and its answer is zero."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(3):
        x, known = rng.standard_normal((4, 2)), rng.standard_normal((6, 2))
        x[3] += 3.0
        made = {"x": x, "known": known, "values": rng.standard_normal((6, 3))}
        rows.append({name: value.astype(np.float32) for name, value in made.items()})
    how = "softmax" if kernel == "gaussian" else "kernel"
    sets = {"inputs": 2, "outputs": 3, "kernel": kernel, "normalize": how}
    assert_follows("kernel_regression", partial(regress, kernel), rows, {}, **sets)

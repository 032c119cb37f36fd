"""`kernel_regression` agrees with the Nadaraya-Watson estimator in NumPy, for five kernels and any
bandwidth.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from support.elaborated_specs import elaborate_with_config, run_reference
from support.paper_equations import Array, Arrays, assert_matches_equations

from specc.diagnostics.diagnostic import SpeccError

KERNELS: dict[str, Callable[[Array, float], float]] = {
    "gaussian": lambda u, w: float(np.exp(-0.5 * (w * np.linalg.norm(u)) ** 2)),
    "box(1.5)": lambda u, w: float(np.linalg.norm(u) <= 1.5),
    "triangle(1.5)": lambda u, w: max(0.0, 1 - float(np.linalg.norm(u)) / 1.5),
    "epanechnikov(1.5)": lambda u, w: max(0.0, 1 - float(u @ u) / 1.5**2),
    "constant": lambda u, w: 1.0,
}


def regress(kernel: str, h: float, w: Arrays, x: Array, known: Array, values: Array) -> Arrays:
    learned = float(w["kernel.w"][0]) if "kernel.w" in w else 0.0
    k = np.array([[KERNELS[kernel]((a.astype(float) - b) / h, learned) for b in known] for a in x])
    total = k.sum(1, keepdims=True)
    weights = np.divide(k, total, out=np.zeros_like(k), where=total != 0)
    return {"y": weights @ values, "weights": weights}


@pytest.mark.parametrize(
    ("kernel", "width"), [*((k, 1.0) for k in KERNELS), ("gaussian", 0.4), ("box(1.5)", 2.0)]
)
def test_the_spec_agrees_with_the_estimator(kernel: str, width: float) -> None:
    """One query is far from all points: only the Gaussian and the constant kernel reach it; others
    give zero.
    """
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(3):
        x, known = rng.standard_normal((4, 2)), rng.standard_normal((6, 2))
        x[3] += 3.0
        made = {"x": x, "known": known, "values": rng.standard_normal((6, 3))}
        rows.append({name: value.astype(np.float32) for name, value in made.items()})
    assert_matches_equations(
        "kernel_regression",
        partial(regress, kernel, width),
        rows,
        {},
        inputs=2,
        outputs=3,
        kernel=kernel,
        width=width,
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_other_settings_agree_with_their_definition(kernel: str) -> None:
    """A logarithm is used as declared; that of the Gaussian cannot be used as a kernel."""
    if kernel == "gaussian":
        with pytest.raises(SpeccError, match="E0404"):
            elaborate_with_config("kernel_regression", kernel=kernel, exponent=False)
        return
    given = {
        "x": np.array([[[0.5], [3.0]]]),
        "known": np.array([[[0.0], [1.0]]]),
        "values": np.array([[[1.0], [5.0]]]),
    }
    spec = elaborate_with_config("kernel_regression", kernel=kernel, exponent=True)
    k = np.array(
        [[np.exp(KERNELS[kernel](x - p, 0.0)) for p in given["known"][0]] for x in given["x"][0]]
    )
    wanted = (k / k.sum(1, keepdims=True)) @ given["values"][0]
    assert np.allclose(run_reference(spec, {}, given)["y"][0], wanted, rtol=1e-12, atol=0)

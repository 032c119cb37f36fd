"""`jordan` agrees with the paper's equations in NumPy."""

import numpy as np
import pytest
from support.elaborated_specs import (
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)


def logistic(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("decay", [0.0, 0.6])
def test_the_state_accumulates_outputs(decay: float) -> None:
    """Jordan 1986: `s' = m s + y`, `h = f(W x + U s + b)`, `y = g(V h + c)`."""
    spec = elaborate_with_config("jordan", inputs=4, hidden=6, outputs=3, decay=decay)
    w = sample_spec_weights(spec)
    x = np.random.default_rng(0).standard_normal((2, 5, 4))
    state, wanted = np.zeros((2, 3)), np.zeros((2, 5, 3))
    for t in range(5):
        h = logistic(
            x[:, t] @ w["input.weight"].T + state @ w["context.weight"].T + w["input.bias"]
        )
        wanted[:, t] = logistic(h @ w["output.weight"].T + w["output.bias"])
        state = decay * state + wanted[:, t]
    assert_arrays_close(run_reference(spec, w, {"x": x})["y"], wanted, "reference", 1e-9)
    assert_arrays_close(OrtModel(spec, w).run({"x": x})["y"], wanted, "in ONNX Runtime")


def test_elman_with_logistic_units() -> None:
    """Elman 1990 uses logistic units, which torch's nn.RNN lacks (tanh and relu only)."""
    spec = elaborate_with_config("elman", inputs=4, hidden=6, outputs=3)
    w = sample_spec_weights(spec)
    x = np.random.default_rng(0).standard_normal((2, 5, 4))
    h, wanted = np.zeros((2, 6)), np.zeros((2, 5, 3))
    for t in range(5):
        h = logistic(
            x[:, t] @ w["rnn.weight_ih_l0"].T
            + w["rnn.bias_ih_l0"]
            + h @ w["rnn.weight_hh_l0"].T
            + w["rnn.bias_hh_l0"]
        )
        wanted[:, t] = h @ w["output.weight"].T + w["output.bias"]
    found = run_reference(spec, w, {"x": x})
    assert_arrays_close(found["y"], wanted, "reference", 1e-9)
    assert_arrays_close(found["last"][:, 0], h, "final state", 1e-9)
    assert_arrays_close(OrtModel(spec, w).run({"x": x})["y"], wanted, "in ONNX Runtime")

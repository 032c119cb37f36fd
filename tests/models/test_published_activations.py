"""Every activation name in config files of transformers is supported, or rejected by name."""

import json
from pathlib import Path

import numpy as np
import pytest

import specc
from specc.diagnostics.diagnostic import SpeccError
from specc.frontend.hf_config import KNOWN_ACTIVATIONS

SPEC = """specc 1
model m

config { act: activation from "hidden_act" = gelu }

dims batch

graph g(x: float[batch, 8]) -> (y: float[batch, 8]) {
  return act(x)
}
"""
X = np.linspace(-12, 12, 64).reshape(8, 8)


def applied(name: str, directory: Path) -> np.ndarray:
    (directory / "config.json").write_text(json.dumps({"hidden_act": name}))
    (directory / "m.specc").write_text(SPEC)
    file = directory / "m.onnx"
    specc.compile(directory / "m.specc", file, config=directory, init=0)
    return specc.load(file, threads=1).run(x=X.astype(np.float32))["y"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mish", X * np.tanh(np.logaddexp(0, X))),
        ("leaky_relu", np.where(X > 0, X, 0.01 * X)),
        ("hardswish", X * np.clip(X + 3, 0, 6) / 6),
    ],
)
def test_an_activation_agrees_with_its_equation(
    name: str, wanted: np.ndarray, tmp_path: Path
) -> None:
    np.testing.assert_allclose(applied(name, tmp_path), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parity
def test_every_activation_of_transformers_is_supported_or_refused(tmp_path: Path) -> None:
    """Compared with transformers' own functions; two have weights."""
    import torch
    from transformers.activations import ACT2CLS, ACT2FN

    assert set(ACT2CLS) - {"prelu", "xielu"} <= KNOWN_ACTIVATIONS
    for name in sorted(set(ACT2CLS) & KNOWN_ACTIVATIONS):
        wanted = ACT2FN[name](torch.tensor(X)).numpy()
        found = applied(name, tmp_path)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["xielu", "d", "x", "", "\x1b[31m", "linear(8)"])
def test_an_unknown_activation_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match=r"E0403|E0203"):
        applied(name, tmp_path)

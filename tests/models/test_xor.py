"""`xor` computes exclusive or exactly, with the weights that lie beside it."""

from pathlib import Path

import numpy as np
from support.spec_models import Arrays, InOnnx, Opened, by_reference, opened

from specc.compiler import weights as loading
from specc.compiler.rules import wanted_of
from specc.library.files import shipped
from specc.weights.values import array_of

TABLE = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
ANSWERS = np.array([[0], [1], [1], [0]], np.float32)


def hand_set(spec: Opened) -> Arrays:
    """The weights of the file beside the spec, matched strictly in both directions."""
    file = shipped()["xor"].parent / "xor.safetensors"
    values = loading.bound(wanted_of(spec.model.graph), spec.rules, str(file))
    return {name: array_of(values, name) for name in values.wanted}


def test_exclusive_or() -> None:
    spec = opened("xor")
    weights = hand_set(spec)
    assert (by_reference(spec, weights, {"x": TABLE})["y"] == ANSWERS).all()
    assert (InOnnx(spec, weights).run({"x": TABLE})["y"] == ANSWERS).all()


def test_no_single_layer_would_do() -> None:
    """The best plane through the four points is flat: 1/2 everywhere."""
    plane, *_ = np.linalg.lstsq(np.c_[TABLE, np.ones(4)], ANSWERS, rcond=None)
    assert np.allclose(np.c_[TABLE, np.ones(4)] @ plane, 0.5)


def test_the_file_is_small() -> None:
    assert Path(shipped()["xor"].parent / "xor.safetensors").stat().st_size < 1000

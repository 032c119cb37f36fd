"""`xor` computes exclusive or exactly, with the weights next to it."""

from pathlib import Path

import numpy as np
from support.elaborated_specs import (
    Arrays,
    ElaboratedSpec,
    OrtModel,
    elaborate_with_config,
    run_reference,
)

from specc.driver import weight_sources as loading
from specc.driver.weights_section_and_load_transforms import list_model_parameters
from specc.library.spec_file_lookup import find_builtin_specs
from specc.weights.parameter_sources import read_parameter

TABLE = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
ANSWERS = np.array([[0], [1], [1], [0]], np.float32)


def hand_set(spec: ElaboratedSpec) -> Arrays:
    """Return the weights of the file next to the spec, matched strictly in both directions."""
    file = find_builtin_specs()["xor"].parent / "xor.safetensors"
    values = loading.bind_checkpoint(list_model_parameters(spec.model.graph), spec.rules, str(file))
    return {name: read_parameter(values, name) for name in values.parameters}


def test_exclusive_or() -> None:
    spec = elaborate_with_config("xor")
    weights = hand_set(spec)
    assert (run_reference(spec, weights, {"x": TABLE})["y"] == ANSWERS).all()
    assert (OrtModel(spec, weights).run({"x": TABLE})["y"] == ANSWERS).all()


def test_a_single_layer_cannot_compute_xor() -> None:
    """The best plane through the four points is constant: 1/2."""
    plane, *_ = np.linalg.lstsq(np.c_[TABLE, np.ones(4)], ANSWERS, rcond=None)
    assert np.allclose(np.c_[TABLE, np.ones(4)] @ plane, 0.5)


def test_the_weights_file_is_small() -> None:
    assert Path(find_builtin_specs()["xor"].parent / "xor.safetensors").stat().st_size < 1000

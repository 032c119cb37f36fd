"""Measure scales of int8 KV caches."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from specc.calibration.gram_matrices import Sample
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.runtime.open_model import open_compiled
from specc.runtime.steppers import KVCacheStepper

ABOVE = 1.25
"""So many times as far as anything went is still held; what goes farther is cut off."""
MOST = 127
LEAST = np.finfo(np.float32).tiny
"""The least scale, where all was zero."""


def measure_cache_scales(package: Path, samples: Iterable[Sample]) -> dict[str, Array]:
    """The scales f32[heads 1 width] of each state of a package that is a buffer, by its
    name; none where none is. E0859 where one is not finite on the samples.
    """
    greatest: dict[str, Array] = {}
    writer = open_compiled(str(package)).writer
    assert writer is not None, "only a package that writes is given"
    for sample in samples:
        stepper = writer.stepper(sample)
        assert isinstance(stepper, KVCacheStepper), "the package has a step"
        stepper.step(sample[writer.entrance.growing])
        for state in stepper.buffers:
            rows = stepper.states[state.name].numpy()[:, :, : stepper.past]
            here = np.abs(rows).max((0, 2), initial=0.0)
            _check_finite(here, state.name)
            greatest[state.name] = np.maximum(greatest.get(state.name, 0.0), here)
    return {name: _scales(most) for name, most in greatest.items()}


def _scales(most: Array) -> Array:
    made = np.maximum(most * np.float32(ABOVE / MOST), LEAST)
    return made.astype(np.float32)[:, None, :]


def _check_finite(most: Array, name: str) -> None:
    if not np.isfinite(most).all():
        raise_error(
            "E0859",
            f"the state `{escape_text(name)}` is not finite on the samples",
            notes=["it is to be kept in 8 bits, by scales of what it holds there"],
            helps=["give other inputs: `--calibration-data FILE`", "or leave out `--kv-cache`"],
        )

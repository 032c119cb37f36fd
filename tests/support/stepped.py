"""How far the steps of a package are from full passes over everything written so far."""

from pathlib import Path

import numpy as np

import specc
from specc.runtime.generator import standalone_generator_of
from specc.runtime.steppers import FullForwardStepper, KVCacheStepper

TURNS = (([0, 1, 2], 0), ([2, 0, 0], 1), ([1, 1, 0, 2], 3), ([3], 1))
"""Batches in another order, and how many new rows each is given."""


def steps_apart(directory: Path, prompts: list[list[int]]) -> float:
    """The greatest difference of any logits, as a share of the largest of its step, of a
    model that reads `ids` and a `memory` of width 8. Prompts of different length are
    padded on the left.
    """
    model = specc.load(directory, threads=1)
    rng = np.random.default_rng(0)
    memory = rng.normal(size=(3, 4, 8)).astype("f")
    prepared = dict(model.generate(ids=prompts, memory=memory).prepared)
    whole = standalone_generator_of(model.whole)
    assert model.writer
    assert whole
    steps, full = model.writer.stepper(prepared), whole.stepper(prepared)
    assert isinstance(steps, KVCacheStepper)
    assert isinstance(full, FullForwardStepper)
    tokens, apart = prepared["ids"], 0.0
    for order, more in TURNS:
        if more:
            steps.reorder(np.array(order))
            full.reorder(np.array(order))
            tokens = rng.integers(3, 11, (len(order), more))
        got, want = steps.step(tokens), full.step(tokens)
        apart = max(apart, float(np.abs(got - want).max() / np.abs(want).max()))
    return apart

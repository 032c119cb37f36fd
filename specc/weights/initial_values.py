"""The initial values of a parameter for an initializer and a seed."""

import math
from collections.abc import Iterator

import numpy as np

from specc.weights.initializers import Initializer
from specc.weights.random_stream import (
    BLOCK_WORDS,
    Floats,
    fill_array,
    normal_chunks,
    uniform_chunks,
)


def initial_value_chunks(
    initializer: Initializer, seed: int, name: str, shape: tuple[int, ...]
) -> Iterator[Floats]:
    """Yield the elements of a parameter in C order, f32, in blocks."""
    count = math.prod(shape)
    match initializer.kind:
        case "zeros" | "ones" | "constant":
            return _same(1.0 if initializer.kind == "ones" else initializer.number, count)
        case "normal":
            return normal_chunks(seed, name, count, initializer.number)
    bound = initializer.bound(shape)
    return uniform_chunks(seed, name, count, -bound, bound)


def initial_values(
    initializer: Initializer, seed: int, name: str, shape: tuple[int, ...]
) -> Floats:
    """Return the initial f32[*shape] of a parameter; depends only on seed and name."""
    return fill_array(shape, initial_value_chunks(initializer, seed, name, shape))


def _same(value: float, count: int) -> Iterator[Floats]:
    for start in range(0, count, BLOCK_WORDS):
        yield np.full(min(BLOCK_WORDS, count - start), value, np.float32)

"""The values that an initializer gives a parameter for a seed."""

import math
from collections.abc import Iterator

import numpy as np

from specc.weights.initializers import (
    ConstantInit,
    FanInInit,
    Initializer,
    NormalInit,
    OnesInit,
    UniformInit,
    ZerosInit,
)
from specc.weights.random_stream import BLOCK, Floats, normal_chunks, uniform_chunks


def initial_value_chunks(
    initializer: Initializer, seed: int, name: str, shape: tuple[int, ...]
) -> Iterator[Floats]:
    """The elements of a parameter in C order, f32, a block at a time."""
    count = math.prod(shape)
    match initializer:
        case ZerosInit():
            return _same(0.0, count)
        case OnesInit():
            return _same(1.0, count)
        case ConstantInit(value):
            return _same(value, count)
        case NormalInit(std):
            return normal_chunks(seed, name, count, std)
        case UniformInit(bound):
            return uniform_chunks(seed, name, count, -bound, bound)
        case FanInInit():
            bound = initializer.bound(shape)
            return uniform_chunks(seed, name, count, -bound, bound)


def initial_values(
    initializer: Initializer, seed: int, name: str, shape: tuple[int, ...]
) -> Floats:
    """f32[*shape]: a parameter as it starts. The same for a seed and a name whatever
    else the model holds.
    """
    flat = np.empty(math.prod(shape), np.float32)
    at = 0
    for chunk in initial_value_chunks(initializer, seed, name, shape):
        flat[at : at + chunk.size] = chunk
        at += chunk.size
    return flat.reshape(shape)


def _same(value: float, count: int) -> Iterator[Floats]:
    for start in range(0, count, BLOCK):
        yield np.full(min(BLOCK, count - start), value, np.float32)

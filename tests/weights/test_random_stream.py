"""The random number generator: values never change, elements are independent of the array length,
and distributions are correct."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from specc.weights import random_stream
from specc.weights.random_stream import (
    BLOCK_WORDS,
    Floats,
    assemble_array,
    derive_random_stream_key,
    derive_random_substream_key,
    generate_uint64,
    hash_fnv1a,
    iterate_normal_samples,
    iterate_uniform_samples,
    mix_bits,
)


def uniform_array(seed: int, name: str, shape: tuple[int, ...], low: float, high: float) -> Floats:
    return assemble_array(shape, iterate_uniform_samples(seed, name, math.prod(shape), low, high))


def normal_array(seed: int, name: str, shape: tuple[int, ...], std: float) -> Floats:
    return assemble_array(shape, iterate_normal_samples(seed, name, math.prod(shape), std))


def test_splitmix64() -> None:
    # the published first outputs of SplitMix64 for the seed 1234567
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [generate_uint64(1234567, n) for n in range(4)] == known


def test_fnv1a() -> None:
    assert hash_fnv1a(b"") == 0xCBF29CE484222325
    assert hash_fnv1a(b"foobar") == 0x85944171F73967E8


def test_golden_values() -> None:
    assert derive_random_stream_key(0, "wte.weight") == GOLDEN_KEY
    assert uniform_array(7, "a", (3,), -1.0, 1.0).tolist() == GOLDEN_UNIFORM
    assert normal_array(7, "a", (3,), 1.0).tolist() == GOLDEN_NORMAL


@pytest.mark.parametrize(
    "make", [random_stream.generate_uniform_samples, random_stream.generate_normal_samples]
)
def test_elements_depend_on_their_index_only(make: Callable[[int, int, int], Floats]) -> None:
    whole = make(99, 0, 100)
    assert np.array_equal(whole[37:41], make(99, 37, 4))
    assert np.array_equal(whole[37:38], make(99, 37, 1))


def test_arrays_of_several_blocks() -> None:
    count = 2 * BLOCK_WORDS + 5
    key = derive_random_stream_key(3, "w")
    assert np.array_equal(
        normal_array(3, "w", (count,), 1.0), random_stream.generate_normal_samples(key, 0, count)
    )
    assert np.array_equal(
        uniform_array(3, "w", (count,), 0, 1), random_stream.generate_uniform_samples(key, 0, count)
    )


def test_formula_in_python_integers() -> None:
    key = derive_random_stream_key(11, "x")
    total = sum(generate_uint64(key, 12 * 5 + k) >> 40 for k in range(12)) - (6 << 24)
    assert normal_array(11, "x", (6,), 1.0)[5] == np.float32(total) * np.float32(2**-24)
    assert uniform_array(11, "x", (6,), 0.0, 1.0)[5] == (generate_uint64(key, 5) >> 40) / 2**24


def test_keys_are_distinct() -> None:
    keys = {derive_random_stream_key(s, n) for s in range(50) for n in ("a", "b", "a.b", "")}
    keys |= {derive_random_substream_key(derive_random_stream_key(0, "a"), n) for n in range(50)}
    assert len(keys) == 250
    assert mix_bits(0) == 0


def test_distributions() -> None:
    u = uniform_array(1, "u", (200_000,), 0.0, 1.0).astype(np.float64)
    assert abs(u.mean() - 0.5) < 0.003
    assert abs(u.var() - 1 / 12) < 0.001
    assert u.min() >= 0
    assert u.max() < 1
    z = normal_array(1, "z", (200_000,), 2.0).astype(np.float64)
    assert abs(z.mean()) < 0.02
    assert abs(z.std() - 2) < 0.01
    assert abs((z**3).mean()) < 0.2
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(z, normal_array(2, "z", z.shape, 1.0))[0, 1]) < 0.01


GOLDEN_KEY = 16834231487202948182
GOLDEN_UNIFORM = [0.4620574712753296, 0.5101771354675293, -0.1499314308166504]
GOLDEN_NORMAL = [1.8374464511871338, 0.24584895372390747, -0.0553014874458313]

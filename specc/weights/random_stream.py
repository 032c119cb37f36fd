"""Generate random numbers with a counter-based generator (SplitMix64). Each random number depends
only on the seed, the parameter name and the index of the number.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

SPLITMIX_GAMMA = 0x9E3779B97F4A7C15
SPLITMIX_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
SPLITMIX_MULTIPLIER_2 = 0x94D049BB133111EB
UINT64_MASK = (1 << 64) - 1
UNIFORMS_PER_NORMAL = 12
BLOCK_WORDS = 1 << 14
"""Number of words generated at a time. The generated words fit in the L2 cache."""

Words = NDArray[np.uint64]
Floats = NDArray[np.float32]


def mix_bits(z: int) -> int:
    """Apply the SplitMix64 finalizer, a bijection of 64-bit words that mixes all bits."""
    z = (z ^ z >> 30) * SPLITMIX_MULTIPLIER_1 & UINT64_MASK
    z = (z ^ z >> 27) * SPLITMIX_MULTIPLIER_2 & UINT64_MASK
    return z ^ z >> 31


def hash_fnv1a(data: bytes) -> int:
    """Return the 64-bit FNV-1a hash, which, unlike Python's `hash`, is the same in every run."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & UINT64_MASK
    return value


def generate_uint64(key: int, index: int) -> int:
    """Return the 64-bit word with index `index` in the random stream `key`."""
    return mix_bits(key + (index + 1) * SPLITMIX_GAMMA & UINT64_MASK)


def derive_random_substream_key(key: int, index: int) -> int:
    """Return the key of sub-stream `index` of the random stream `key`. Nested calls derive a key
    from several integers, such as the sequence and the step.
    """
    return mix_bits(generate_uint64(key, index))


def derive_random_stream_key(seed: int, name: str) -> int:
    """Return the key of a parameter's random stream, derived from the seed and the name."""
    assert 0 <= seed <= UINT64_MASK, f"seed {seed} is not a 64-bit number"
    return derive_random_substream_key(
        mix_bits(seed), hash_fnv1a(name.encode("utf-8", "surrogatepass"))
    )


def generate_uniform_samples(key: int, start: int, count: int) -> Floats:
    """Return the uniform random numbers `start` to `start + count` of the stream `key`: float32 in
    [0, 1), multiples of 2**-24.
    """
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    z *= np.uint64(SPLITMIX_GAMMA)
    z += np.uint64(key)
    _mix_bits_in_place(z, np.empty_like(z))
    z >>= np.uint64(40)  # the omitted step `z ^ z >> 31` does not change the 24 highest bits
    return z.astype(np.float32) * np.float32(2**-24)


def generate_normal_samples(key: int, start: int, count: int) -> Floats:
    """Return the normal random numbers `start` to `start + count` of the stream `key`, in float32.
    Each number is a sum of `UNIFORMS_PER_NORMAL` uniform numbers, with mean 0 and variance 1.
    """
    base = np.arange(start, start + count, dtype=np.uint64)
    base *= np.uint64(UNIFORMS_PER_NORMAL * SPLITMIX_GAMMA & UINT64_MASK)
    base += np.uint64(key)
    total, z, scratch = np.zeros_like(base), np.empty_like(base), np.empty_like(base)
    for k in range(1, UNIFORMS_PER_NORMAL + 1):
        np.add(base, np.uint64(k * SPLITMIX_GAMMA & UINT64_MASK), out=z)
        _mix_bits_in_place(z, scratch)
        z >>= np.uint64(40)
        total += z
    centered = total.astype(np.int64) - np.int64(6 << 24)
    return centered.astype(np.float32) * np.float32(2**-24)


def iterate_uniform_samples(
    seed: int, name: str, count: int, low: float, high: float
) -> Iterator[Floats]:
    """Yield `count` uniform random numbers `low + u * (high - low)` in blocks. The result of each
    operation is rounded to float32.
    """
    for block in _iterate_blocks(generate_uniform_samples, seed, name, count):
        block *= np.float32(high - low)
        block += np.float32(low)
        yield block


def iterate_normal_samples(seed: int, name: str, count: int, std: float) -> Iterator[Floats]:
    """Yield `count` normal random numbers `z * std` with mean 0 in blocks, rounded to float32."""
    for block in _iterate_blocks(generate_normal_samples, seed, name, count):
        block *= np.float32(std)
        yield block


def _iterate_blocks(
    generate: Callable[[int, int, int], Floats], seed: int, name: str, count: int
) -> Iterator[Floats]:
    """Yield the first `count` numbers of a parameter's random stream in blocks."""
    key = derive_random_stream_key(seed, name)
    for start in range(0, count, BLOCK_WORDS):
        yield generate(key, start, min(BLOCK_WORDS, count - start))


def _mix_bits_in_place(z: Words, scratch: Words) -> None:
    """Apply `mix_bits` in place, without its last step."""
    np.right_shift(z, np.uint64(30), out=scratch)
    np.bitwise_xor(z, scratch, out=z)
    np.multiply(z, np.uint64(SPLITMIX_MULTIPLIER_1), out=z)
    np.right_shift(z, np.uint64(27), out=scratch)
    np.bitwise_xor(z, scratch, out=z)
    np.multiply(z, np.uint64(SPLITMIX_MULTIPLIER_2), out=z)


def assemble_array(shape: tuple[int, ...], chunks: Iterator[Floats]) -> Floats:
    """Return a float32 array with the shape `shape`, filled from chunks in C order."""
    # copy chunks into the result one by one, to avoid a second copy of all values in memory
    flat = np.empty(math.prod(shape), np.float32)
    position = 0
    for chunk in chunks:
        flat[position : position + chunk.size] = chunk
        position += chunk.size
    return flat.reshape(shape)

"""Define `ParameterSource`, an interface for streaming parameter values, and its implementations
for random initialization and overridden parameters. The module also contains functions that read
whole parameters, or rows of weights.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.weights.formats.safetensors_header import NUMPY_DTYPES
from specc.weights.random_stream import (
    BLOCK_WORDS,
    Floats,
    assemble_array,
    iterate_normal_samples,
    iterate_uniform_samples,
)
from specc.weights.weight_expressions import Shape
from specc.weights.weight_rules_and_initializers import Initializer, ParameterMap, parse_initializer
from specc.weights.weight_value_checks import convert_dtype, to_little_endian_bytes


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The byte range of a parameter in a file. `offset` is relative to the start of the file."""

    path: Path
    offset: int
    nbytes: int


class ParameterSource(Protocol):
    """A source that streams parameter values. A tied parameter has the values of the parameter that
    it is tied to.
    """

    @property
    def parameters(self) -> ParameterMap:
        """All parameters, keyed by name."""
        ...

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied source of a tied parameter, or None for an untied parameter."""
        ...

    def get_stored_dtype(self, name: str) -> str:
        """Return the stored dtype of a parameter."""
        ...

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return a parameter's byte range in a file, or None if its values must be converted."""
        ...

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield values as little-endian bytes in C order. A chunk is valid until the next chunk is
        requested.
        """
        ...

    def validate_and_hash_files(self, names: Iterable[str]) -> dict[Path, str]:
        """Check values that remain in checkpoint files. Return the SHA-256 of each file."""
        ...


def read_parameter(weights: ParameterSource, name: str, dtype: str | None = None) -> Array:
    """Read a whole parameter in `dtype`, by default in its stored dtype."""
    stored_dtype = dtype or weights.get_stored_dtype(name)
    shape = weights.parameters[name].shape
    raw = np.empty(math.prod(shape) * NUMPY_DTYPES[stored_dtype].itemsize, np.uint8)
    position = 0
    for chunk in weights.iterate_chunks(name, stored_dtype):
        raw[position : position + len(chunk)] = chunk
        position += len(chunk)
    assert position == raw.size, f"{name}: got {position} bytes, expected {raw.size}"
    return raw.view(NUMPY_DTYPES[stored_dtype]).reshape(shape)


def find_tied_parameters(weights: ParameterSource) -> dict[str, str]:
    """Map each tied parameter to the parameter that it is tied to."""
    tied = {name: weights.get_tied_source(name) for name in weights.parameters}
    return {name: source for name, source in tied.items() if source is not None}


@dataclass(frozen=True)
class ParameterOverrides:
    """The parameters of `base`, with the values of some parameters replaced. The class implements
    `ParameterSource`.
    """

    base: ParameterSource

    @property
    def parameters(self) -> ParameterMap:
        """All parameters, keyed by name."""
        return self.base.parameters

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied source of a tied parameter, or None for an untied parameter."""
        return self.base.get_tied_source(name)

    def get_stored_dtype(self, name: str) -> str:
        """Return the stored dtype of a parameter in `base`."""
        return self.base.get_stored_dtype(name)

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return a parameter's byte range in a file, or None if the parameter is overridden."""
        return None if self.is_overridden(name) else self.base.find_byte_range(name)

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the values of a parameter as bytes. Raise the errors of the base source."""
        if self.is_overridden(name):
            return self.iterate_replacement_chunks(name, dtype)
        return self.base.iterate_chunks(name, dtype)

    def is_overridden(self, name: str) -> bool:
        """Return True if the values of a parameter differ from those in `base`."""
        return False

    def iterate_replacement_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the values of an overridden parameter as bytes."""
        return self.base.iterate_chunks(name, dtype)

    def validate_and_hash_files(self, names: Iterable[str]) -> dict[Path, str]:
        """Return the SHA-256 of each checkpoint file with parameters that are not overridden."""
        return self.base.validate_and_hash_files(names)


HALF_PRECISION_TYPES = ("f16", "bf16")
"""Dtypes whose values are exact in float32."""


def iterate_transposed_rows(
    weights: ParameterSource, name: str, out_channels: int, chunk_rows: int
) -> Iterator[Array]:
    """Yield float32 rows `[chunk, in]` of a weight that is stored as `[in, out]`, `chunk_rows` at a
    time. The whole weight is read into memory.
    """
    transposed = read_parameter(weights, name, "f32")
    for matrix in transposed.reshape(-1, transposed.shape[-2], out_channels):
        for start in range(0, out_channels, chunk_rows):
            yield np.ascontiguousarray(matrix[:, start : start + chunk_rows].T)


def iterate_weight_row_chunks(
    weights: ParameterSource, name: str, out_channels: int, chunk_rows: int
) -> Iterator[Array]:
    """Yield the rows `[chunk, in]` of a weight stored as `[out, in]`, `chunk_rows` at a time. Each
    chunk is a copy, because file buffers are reused.
    """
    *stack, _, in_channels = weights.parameters[name].shape
    total = math.prod(stack) * out_channels * in_channels
    stored = weights.get_stored_dtype(name)
    # convert narrower dtypes during the copy, because every chunk is copied
    dtype = stored if stored in HALF_PRECISION_TYPES else "f32"
    buffer, filled, total_read = np.empty(0, np.float32), 0, 0
    for chunk in weights.iterate_chunks(name, dtype):
        elements = np.frombuffer(chunk, NUMPY_DTYPES[dtype])
        # a chunk may end within a row and may contain several pieces of the buffer
        while elements.size:
            if filled == buffer.size:
                remaining_rows = out_channels - total_read // in_channels % out_channels
                size = min(chunk_rows, remaining_rows) * in_channels
                buffer, filled = np.empty(size, np.float32), 0
            part = elements[: buffer.size - filled]
            buffer[filled : filled + part.size] = part
            filled, total_read = filled + part.size, total_read + part.size
            elements = elements[part.size :]
            if filled == buffer.size:
                yield buffer.reshape(-1, in_channels)
    assert total_read == total, f"{name} ends within a row"


def iterate_initial_values(
    initializer: Initializer, seed: int, name: str, shape: Shape
) -> Iterator[Floats]:
    """Yield the float32 initial values of a parameter in blocks, in C order."""
    count = math.prod(shape)
    match initializer.kind:
        case "zeros" | "ones" | "constant":
            value = 1.0 if initializer.kind == "ones" else initializer.value
            return _iterate_constant(value, count)
        case "normal":
            return iterate_normal_samples(seed, name, count, initializer.value)
    bound = initializer.compute_uniform_bound(shape)
    return iterate_uniform_samples(seed, name, count, -bound, bound)


def make_initial_values(initializer: Initializer, seed: int, name: str, shape: Shape) -> Floats:
    """Return a parameter's float32 initial values. The values depend only on `seed` and `name`."""
    return assemble_array(shape, iterate_initial_values(initializer, seed, name, shape))


def _iterate_constant(value: float, count: int) -> Iterator[Floats]:
    for start in range(0, count, BLOCK_WORDS):
        yield np.full(min(BLOCK_WORDS, count - start), value, np.float32)


@dataclass(frozen=True)
class RandomInitWeights:
    """Randomly initialized parameters. The values depend on a seed and the parameter name. The
    class implements `ParameterSource`.

    `initializers` maps each name to the text of its initializer. `ties` maps tied parameters to the
    parameters that they are tied to.
    """

    seed: int
    parameters: ParameterMap
    initializers: Mapping[str, str]
    ties: Mapping[str, str] = field(default_factory=dict)

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied source of a tied parameter, or None for an untied parameter."""
        root = name
        while root in self.ties:
            root = self.ties[root]
        return None if root == name else root

    def get_stored_dtype(self, name: str) -> str:
        """Return the dtype of a parameter. Values are generated in float32 and then rounded."""
        return self.parameters[name].dtype

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return None, because no file stores the values."""
        return None

    def validate_and_hash_files(self, names: Iterable[str]) -> dict[Path, str]:
        """Return {}, because there are no files to check."""
        return {}

    def close(self) -> None:
        """Do nothing, because there are no files to close."""

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the initial values, converted to `dtype`. Raise E0516 or E0517 on failure."""
        parameter = self.parameters[self.get_tied_source(name) or name]
        initializer = parse_initializer(self.initializers[parameter.name], parameter.span)
        location = f"`{escape_text(parameter.name)}`, started as {initializer}"
        root, shape = parameter.name, parameter.shape
        for block in iterate_initial_values(initializer, self.seed, root, shape):
            yield to_little_endian_bytes(convert_dtype(block, dtype, location))

"""Stored bytes of a quantized weight against a simple implementation: one group after the other,
one byte after the other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.quantized_linear import pack_int4

from specc.ir.array import Array
from specc.ir.ops.quantized import QuantizationFormat
from specc.weights import int_quantization
from specc.weights.parameter_sources import ByteRange
from specc.weights.quantized_weights import QuantizedWeights
from specc.weights.weight_rules_and_initializers import ModelParameter
from specc.weights.weight_value_checks import convert_dtype

RNG = np.random.default_rng(7)
OUT, WIDE = 23, 45
KINDS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f64": np.float64}


@dataclass(frozen=True)
class StoredWeight:
    """A weight `w` in a file, streamed in chunks of `step` values. Implements `Values`."""

    weight: Array
    dtype: str
    step: int = 101

    @property
    def parameters(self) -> Mapping[str, ModelParameter]:
        return {"w": ModelParameter(name="w", shape=self.weight.shape)}

    def get_tied_source(self, name: str) -> str | None:
        return None

    def get_stored_dtype(self, name: str) -> str:
        return self.dtype

    def find_byte_range(self, name: str) -> ByteRange | None:
        return None

    def validate_and_hash_files(self, names: object) -> dict[Path, str]:
        return {}

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield chunks in one buffer, which the next chunk overwrites."""
        flat = self.weight.reshape(-1)
        for start in range(0, flat.size, self.step):
            block = convert_dtype(flat[start : start + self.step], dtype, "w")
            buffer = bytearray(block.tobytes())
            yield memoryview(buffer)
            buffer[:] = bytes(len(buffer))


def sample_weight() -> Array:
    """Return rows of many magnitudes, of zeros, and of one magnitude with both signs."""
    made = RNG.normal(size=(OUT, WIDE)) * np.exp(RNG.normal(0, 2, (OUT, 1)))
    made[0], made[1], made[2] = 0, np.where(np.arange(WIDE) % 2, 1, -1), 3
    return made


def quantize_simply(rows: Array, bits: int, block: int) -> tuple[bytes, bytes]:
    """Return the codes and scales of rows in groups, one value at a time."""
    packed, scales = bytearray(), []
    for row in rows.astype(np.float32):
        for start in range(0, len(row), block):
            here = [np.float32(x) for x in row[start : start + block]]
            most = max(here, key=abs)  # the first of several maxima
            scale = abs(most) / np.float32(127) if bits == 8 else most / np.float32(-8)
            scale = scale if abs(scale) >= int_quantization.MIN_SCALE else np.float32(0)
            low, high = (-127, 127) if bits == 8 else (-8, 7)
            whole = [min(max(round(float(x / scale)), low), high) if scale else 0 for x in here]
            whole += [0] * (block - len(here))
            moved = [n + int_quantization.CODE_OFFSETS[bits] for n in whole]
            packed += bytes(moved) if bits == 8 else pack_int4(np.array(moved))
            scales.append(scale)
    return bytes(packed), np.array(scales, np.float32).tobytes()


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("many", [1, 200, 1 << 20])
def test_bytes_equal_the_simple_implementation(
    dtype: str, bits: int, block: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specc.weights.quantized_weights.CHUNK_VALUES", 10 * many)
    monkeypatch.setattr("specc.weights.quantized_weights.CACHED_VALUES", many)
    rows = sample_weight().astype(KINDS[dtype])
    form = QuantizationFormat(bits=bits, group_size=block, layout="rows", rounding="none")
    values = QuantizedWeights(StoredWeight(rows, dtype), {"w": form})
    numbers = b"".join(
        map(bytes, values.iterate_chunks(form.format_tensor_name("w", "codes"), "u8"))
    )
    scales = b"".join(
        map(bytes, values.iterate_chunks(form.format_tensor_name("w", "scales"), "f32"))
    )
    assert (numbers, scales) == quantize_simply(rows, bits, block)
    narrow = rows.astype(np.float32)
    assert values.states["w"].error.squared_norm == pytest.approx(np.vdot(narrow, narrow))


def test_shared_buffers_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug that does not copy values out of a chunk."""
    rows = sample_weight().astype(np.float32)
    form = QuantizationFormat(bits=4, group_size=16, layout="rows", rounding="none")
    values = QuantizedWeights(StoredWeight(rows, "f32", WIDE), {"w": form})

    def yield_shared_chunks(self: QuantizedWeights, name: str) -> Iterator[Array]:
        yield from [
            np.frombuffer(chunk, np.float32).reshape(-1, WIDE)
            for chunk in self.base.iterate_chunks(name, "f32")
        ]

    monkeypatch.setattr(QuantizedWeights, "_iterate_rows", yield_shared_chunks)
    numbers = b"".join(map(bytes, values.iterate_chunks("w:int4", "u8")))
    assert numbers != quantize_simply(rows, 4, 16)[0]

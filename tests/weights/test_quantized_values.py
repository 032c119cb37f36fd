"""What is written of a rounded weight, byte by byte, beside the same done in the plainest
way: one block after the other, one byte after the other.
"""

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
from specc.weights.parameter_values import ByteRange
from specc.weights.quantized_values import QuantizedValues
from specc.weights.value_checks import convert_dtype
from specc.weights.weight_rules import RequiredParameter

RNG = np.random.default_rng(7)
OUT, WIDE = 23, 45
KINDS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f64": np.float64}


@dataclass(frozen=True)
class Lying:
    """One weight `w` in a file, of which so many numbers are given at a time. Implements
    `Values`.
    """

    weight: Array
    dtype: str
    step: int = 101

    @property
    def parameters(self) -> Mapping[str, RequiredParameter]:
        return {"w": RequiredParameter(name="w", shape=self.weight.shape)}

    def get_tied_source(self, name: str) -> str | None:
        return None

    def get_stored_dtype(self, name: str) -> str:
        return self.dtype

    def find_byte_range(self, name: str) -> ByteRange | None:
        return None

    def hash_checked_files(self, names: object) -> dict[Path, str]:
        return {}

    def chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Each in one buffer, which the next chunk is written over."""
        flat = self.weight.reshape(-1)
        for start in range(0, flat.size, self.step):
            block = convert_dtype(flat[start : start + self.step], dtype, "w")
            buffer = bytearray(block.tobytes())
            yield memoryview(buffer)
            buffer[:] = bytes(len(buffer))


def weight() -> Array:
    """Rows of many sizes; of zeros; with numbers of one size on both sides."""
    made = RNG.normal(size=(OUT, WIDE)) * np.exp(RNG.normal(0, 2, (OUT, 1)))
    made[0], made[1], made[2] = 0, np.where(np.arange(WIDE) % 2, 1, -1), 3
    return made


def plain(rows: Array, bits: int, block: int) -> tuple[bytes, bytes]:
    """The numbers and scales of rows, in blocks; one number at a time."""
    packed, scales = bytearray(), []
    for row in rows.astype(np.float32):
        for start in range(0, len(row), block):
            here = [np.float32(x) for x in row[start : start + block]]
            most = max(here, key=abs)  # the first of several
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
def test_every_byte_is_that_of_the_plain_way(
    dtype: str, bits: int, block: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specc.weights.quantized_values.CHUNK_VALUES", 10 * many)
    monkeypatch.setattr("specc.weights.quantized_values.CACHED_VALUES", many)
    rows = weight().astype(KINDS[dtype])
    form = QuantizationFormat(bits=bits, group_size=block, layout="rows", rounding="none")
    values = QuantizedValues(Lying(rows, dtype), {"w": form})
    numbers = b"".join(map(bytes, values.chunks(form.format_codes_name("w"), "u8")))
    scales = b"".join(map(bytes, values.chunks(form.format_scales_name("w"), "f32")))
    assert (numbers, scales) == plain(rows, bits, block)
    narrow = rows.astype(np.float32)
    assert values.streams["w"].error.squared_norm == pytest.approx(np.vdot(narrow, narrow))


def test_pieces_that_share_a_buffer_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that the test is for: numbers that are not copied out of a chunk."""
    rows = weight().astype(np.float32)
    form = QuantizationFormat(bits=4, group_size=16, layout="rows", rounding="none")
    values = QuantizedValues(Lying(rows, "f32", WIDE), {"w": form})

    def shared(self: QuantizedValues, name: str) -> Iterator[Array]:
        yield from [
            np.frombuffer(chunk, np.float32).reshape(-1, WIDE)
            for chunk in self.base.chunks(name, "f32")
        ]

    monkeypatch.setattr(QuantizedValues, "_iterate_rows", shared)
    numbers = b"".join(map(bytes, values.chunks("w:int4", "u8")))
    assert numbers != plain(rows, 4, 16)[0]

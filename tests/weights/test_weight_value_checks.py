"""NaN and infinity checks by bit patterns agree with NumPy, and a checkpoint is read once."""

import hashlib
import time
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import specc
from specc.artifact import package_index_and_format_versions
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.array import Array
from specc.weights.formats import safetensors
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.formats.safetensors_header import FLOAT_DTYPES, NUMPY_DTYPES
from specc.weights.weight_value_checks import check_finite

KINDS = sorted(name for name in FLOAT_DTYPES if name in NUMPY_DTYPES)


def list_bit_patterns(dtype: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    """Return all 8-bit patterns; for wider types, patterns around every power of two."""
    bits = 8 * NUMPY_DTYPES[dtype].itemsize
    if bits == 8:
        return np.arange(256, dtype=np.uint8).view(NUMPY_DTYPES[dtype])
    words = {(1 << n) + d for n in range(bits + 1) for d in range(-3, 4)}
    words |= {word ^ (1 << bits - 1) for word in words}
    words |= {(0x7C00 << 1 >> 1) + d for d in range(-3, 4)} if bits == 16 else set()
    words |= {base + s + d for base in (0x7C00, 0x7F80) for s in (0, 1 << 15) for d in range(-3, 4)}
    inside = sorted(word for word in words if 0 <= word < 1 << bits)
    return np.array(inside, f"u{bits // 8}").view(NUMPY_DTYPES[dtype])


@pytest.mark.parametrize("dtype", KINDS)
def test_finite_check_equals_numpy(dtype: str) -> None:
    with np.errstate(invalid="ignore"):
        for value in list_bit_patterns(dtype).reshape(-1, 1):
            finite = bool(np.isfinite(value).all())
            # next to ordinary values of either sign, which must not hide it
            block = (
                np.concatenate([np.array([1, -1, 0], NUMPY_DTYPES[dtype]), value])
                if dtype != "f8_e8m0"
                else value
            )
            if finite:
                check_finite(block, "w")
            else:
                with pytest.raises(SpeccError, match="E0507"):
                    check_finite(block, "w")


def test_nonfinite_values_are_counted() -> None:
    block = np.ones(1000, ml_dtypes.bfloat16)
    block[[3, 999]] = np.nan, -np.inf
    with pytest.raises(SpeccError) as failed:
        check_finite(block, "w")
    assert "2 of the first 1000" in failed.value.diagnostics[0].notes[0]


def test_finite_check_is_faster_than_hashing() -> None:
    """A slower check would dominate the time for 16-bit checkpoints; it once took ten times as long
    as the hash."""
    block = np.ones(1 << 23, ml_dtypes.bfloat16)
    took = {}
    for name, work in (
        ("look", lambda: check_finite(block, "w")),
        ("hash", lambda: hashlib.sha256(block.view(np.uint8))),
    ):
        times = []
        for _ in range(3):
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
        took[name] = min(times)
    assert took["look"] < took["hash"]


SPEC = """\
specc 1
model m
dims batch, n
config { tied: bool = true }
graph g(ids: int[batch, n]) -> (logits: float[batch, n, 600]) {
  x = embedding(ids, size=600, dim=512) @ table
  x = linear(x, out=512) @ layer
  return linear(x, out=600, bias=false) @ head
}
weights { tie head.weight = table.weight when tied }
generate text of ids from logits { start = 1 stop = 2 max_tokens = 4 }
"""


@pytest.mark.parametrize("place", ["m.onnx", "elsewhere/m.onnx", "package"])
def test_checkpoint_is_read_once(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hash, check and copy in one pass, for linked and copied weights of one graph or of a
    package."""
    (tmp_path / "m.specc").write_text(SPEC, encoding="utf-8")
    rng = np.random.default_rng(0)
    shapes = {"table.weight": (600, 512), "layer.weight": (512, 512), "layer.bias": (512,)}
    drawn = {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()}
    weights = tmp_path / "w.safetensors"
    write_safetensors(weights, drawn)
    read = []
    usual = safetensors.TensorFile._fill_buffer

    def count_read(self: safetensors.TensorFile, offset: int, view: memoryview) -> None:
        read.append(len(view))
        usual(self, offset, view)

    monkeypatch.setattr(safetensors.TensorFile, "_fill_buffer", count_read)
    parts = "all" if place == "package" else ()
    specc.compile(tmp_path / "m.specc", tmp_path / place, weights=weights, graphs=parts)
    assert sum(read) <= weights.stat().st_size


def test_checkpoint_hash(tmp_path: Path) -> None:
    """The hash computed during the check is that of the whole file."""
    (tmp_path / "m.specc").write_text(SPEC, encoding="utf-8")
    rng = np.random.default_rng(0)
    shapes = {"table.weight": (600, 512), "layer.weight": (512, 512), "layer.bias": (512,)}
    weights = tmp_path / "w.safetensors"
    write_safetensors(weights, {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()})
    out = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", out, weights=weights, weights_as="link")
    recorded = package_index_and_format_versions.parse_weight_file_metadata(
        specc.load(out).manifest.weights["beside"]
    )
    assert recorded is not None
    whole = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert recorded["w.safetensors"].sha256 == whole


QUANTIZED = """specc 1
model m
dims batch
graph g(x: float[batch, 64]) -> (y: float[batch, 8]) { return linear(x, out=8, bias=false) @ w }
"""


METHODS = ("int8", "int8-weights", "int4")


def compile_quantized(size: float, method: str, directory: Path) -> Array:
    """Compile a linear layer with weights of a size, and return the weight."""
    rng = np.random.default_rng(0)
    w = (rng.uniform(-1, 1, (8, 64)) * size).astype("f4")
    weights = directory / "w.safetensors"
    write_safetensors(weights, {"w.weight": w})
    (directory / "m.specc").write_text(QUANTIZED)
    specc.compile(directory / "m.specc", directory / "m.onnx", weights=weights, quantize=method)
    return w


@pytest.mark.parametrize(
    ("size", "method"), [*product((1e-44, 1e-37), METHODS), (1e37, "int8"), (3e38, "int8")]
)
def test_weights_out_of_range_are_not_quantized(size: float, method: str, tmp_path: Path) -> None:
    """Values that would become 0, or whose integer products would overflow."""
    with pytest.raises(SpeccError, match="E0517"):
        compile_quantized(size, method, tmp_path)
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    ("size", "method"), [*product((1e-30, 1e30), METHODS), *product((1e37, 3e38), METHODS[1:])]
)
def test_extreme_weights_are_quantized(size: float, method: str, tmp_path: Path) -> None:
    w = compile_quantized(size, method, tmp_path)
    x = np.random.default_rng(1).normal(size=(3, 64)).astype("f4") * np.float32(1e-3)
    y = specc.load(tmp_path / "m.onnx").run(x=x)["y"]
    expected = x.astype("f8") @ w.T.astype("f8")
    assert np.abs(y - expected).max() < 0.05 * np.abs(expected).max()

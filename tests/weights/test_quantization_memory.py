"""Weights are quantized while they are streamed, so a checkpoint may be far larger than memory. The
checkpoint is a sparse file of zeros, which uses no disk space and is quantized like any other."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.resource_limits import PEAK_MEMORY_PROGRAM

WIDE, LAYERS = 4096, 14
LARGEST = 4 * WIDE * WIDE
"""Bytes of a weight."""
ROOM = 300 << 20
"""What else may be taken, in bytes."""
SPEC = """\
specc 1
model m
dims batch

graph g(x: float[batch, {wide}]) -> (y: float[batch, {wide}]) {{
  repeat i in {layers} under "layers.{{i}}" {{
    x = linear(x, out={wide}, bias=false) @ map
  }}
  return x
}}

weights {{
{loads}}}
"""
TURNED = '  load "layers.{i}.map.weight" = transpose("layers.{i}.map.weight")\n'


def write_sparse_checkpoint(path: Path) -> None:
    """Write only the header of a checkpoint of zeros."""
    size = LARGEST
    header = {
        f"layers.{n}.map.weight": {
            "dtype": "F32",
            "shape": [WIDE, WIDE],
            "data_offsets": [n * size, (n + 1) * size],
        }
        for n in range(LAYERS)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + LAYERS * size)


KINDS = pytest.mark.parametrize("kind", ["int8", "int4"])


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
@KINDS
@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
def test_peak_memory_is_one_weight(target: str, kind: str, turned: bool, tmp_path: Path) -> None:
    used = measure_peak_memory(tmp_path, target, kind, TURNED if turned else "")
    assert used <= LARGEST + ROOM, f"{used >> 20} MB"


@pytest.mark.slow
@KINDS
def test_leaked_chunks_are_detected(kind: str, tmp_path: Path) -> None:
    """Plant a bug that keeps references to the chunks."""
    assert measure_peak_memory(tmp_path, "ort-cpu", kind, "", MISTAKE) > LARGEST + ROOM


def measure_peak_memory(
    directory: Path, target: str, kind: str, loads: str, mistake: str = ""
) -> int:
    """Return the peak memory in bytes of a compilation of the sparse checkpoint."""
    write_sparse_checkpoint(directory / "m.safetensors")
    text = SPEC.format(wide=WIDE, layers=LAYERS, loads=loads)
    (directory / "m.specc").write_text(text)
    command = [
        sys.executable,
        "-c",
        mistake + PEAK_MEMORY_PROGRAM,
        "compile",
        "m.specc",
        "--no-load",
    ]
    command += ["--weights", "m.safetensors", "--quantize", kind, "--target", target]
    command += ["--calibration-samples", "0"] if kind == "int4" else []
    done = subprocess.run(
        [*command, "-o", "m.onnx"], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert LAYERS * LARGEST > 2 * (LARGEST + ROOM)
    return int(done.stderr.splitlines()[-1]) * 1024


MISTAKE = """
from specc.weights.quantized_weights import QuantizedWeights
rows, kept = QuantizedWeights._rows, []

def holding(self, name):
    for piece in rows(self, name):
        kept.append(piece.copy())
        yield piece

QuantizedWeights._rows = holding
"""
"""Planted before the command runs."""

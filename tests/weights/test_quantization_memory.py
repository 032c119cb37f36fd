"""Weights are rounded on their way: a checkpoint far larger than the memory that it takes
becomes one of few bits.

The checkpoint is a file with holes, so that it takes no room on the disk; its numbers
are zeros, which are read and rounded like any others.
"""

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


def with_holes(path: Path) -> None:
    """A checkpoint of zeros of which only the header is written."""
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
def test_no_more_than_a_weight_is_in_memory(
    target: str, kind: str, turned: bool, tmp_path: Path
) -> None:
    used = peak(tmp_path, target, kind, TURNED if turned else "")
    assert used <= LARGEST + ROOM, f"{used >> 20} MB"


@pytest.mark.slow
@KINDS
def test_a_writer_that_keeps_what_it_read_is_seen(kind: str, tmp_path: Path) -> None:
    """The law sees what it is for: rows that somebody holds on to."""
    assert peak(tmp_path, "ort-cpu", kind, "", MISTAKE) > LARGEST + ROOM


def peak(directory: Path, target: str, kind: str, loads: str, mistake: str = "") -> int:
    """The most bytes of memory that a compile of a checkpoint far larger takes."""
    with_holes(directory / "m.safetensors")
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
from specc.weights.quantized_values import QuantizedValues
rows, kept = QuantizedValues._rows, []

def holding(self, name):
    for piece in rows(self, name):
        kept.append(piece.copy())
        yield piece

QuantizedValues._rows = holding
"""
"""Planted before the command runs."""

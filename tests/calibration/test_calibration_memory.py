"""Calibration memory does not depend on the depth of the model, because it runs in stages."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.resource_limits import PEAK_MEMORY_PROGRAM

WIDE, LAYERS = 1024, 20
MAP = 4 * WIDE**2
"""Bytes of the weight of a layer."""
SPEC = f"""\
specc 1
model m
dims batch

graph g(x: float[batch, {WIDE}]) -> (y: float[batch, {WIDE}]) {{
  repeat i in {LAYERS} under "layers.{{i}}" {{
    x = relu(linear(x, out={WIDE}, bias=false) @ map)
  }}
  return x
}}
"""
LIMITS = """
from specc.calibration import calibration_stages_and_gram_matrices as stages
stages.STAGE_WEIGHT_BYTES = stages.STAGE_GRAM_BYTES = {limit} << 20
"""
"""Planted before the command runs: how much a stage may hold, in MB."""
ROOM = 60 << 20
"""What the runtime and libraries take beside."""


def write_checkpoint(directory: Path) -> None:
    """Write a checkpoint of small random values, and inputs."""
    rng = np.random.default_rng(0)
    header = {
        f"layers.{n}.map.weight": {
            "dtype": "F32",
            "shape": [WIDE, WIDE],
            "data_offsets": [n * MAP, (n + 1) * MAP],
        }
        for n in range(LAYERS)
    }
    text = json.dumps(header).encode()
    with (directory / "m.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        one = rng.normal(0, (2 / WIDE) ** 0.5, (WIDE, WIDE)).astype(np.float32)
        for n in range(LAYERS):
            file.write(np.roll(one, n, 1).tobytes())
    np.savez(directory / "x.npz", x=rng.normal(size=(32, WIDE)).astype(np.float32))
    (directory / "m.specc").write_text(SPEC)


def measure_peak_memory(directory: Path, mistake: str, *given: str) -> int:
    """Return the peak memory in bytes of a compilation."""
    command = [
        sys.executable,
        "-c",
        mistake + PEAK_MEMORY_PROGRAM,
        "compile",
        "m.specc",
        "--no-load",
    ]
    command += ["--weights", "m.safetensors", "--quantize", "int4", "--quantize-all"]
    done = subprocess.run(
        [*command, *given, "--force", "-o", "m.onnx"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.splitlines()[-1]) * 1024


@pytest.mark.slow
def test_peak_memory_is_one_stage(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    plain = measure_peak_memory(tmp_path, "", "--calibration-samples", "0")
    limit = 16 << 20
    given = "--calibration-data", "x.npz"
    used = measure_peak_memory(tmp_path, LIMITS.format(limit=16), *given)
    # weights twice while they are loaded, Gram matrices, one weight again, and temporaries of its
    # factorization
    most = plain + 3 * limit + 2 * (2 * MAP) + ROOM
    assert used <= most, f"{used >> 20} MB, {plain >> 20} MB without inputs"
    # planted bug: all stages in one
    assert measure_peak_memory(tmp_path, LIMITS.format(limit=1 << 20), *given) > most

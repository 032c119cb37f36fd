"""Quantized checkpoints: memory of a compilation, 4-bit codes stored unchanged, adapters."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.resource_limits import PEAK_MEMORY_PROGRAM
from support.verification_lines import list_model_lines

import specc
from specc.ir.array import Array
from specc.weights.formats.safetensors import write_safetensors

ROOM = 300 << 20
"""Bytes that a compile may take."""
SPEC = """\
specc 1
model m

config {
  width: int from "hidden_size" = 8
  layers: int from "num_hidden_layers" = 2
}

dims batch

graph g(x: float[batch, width]) -> (y: float[batch, width]) {
  repeat i in layers under "layers.{i}" {
    x = linear(x, out=width, bias=false) @ map
  }
  return x
}
"""


def write_gptq(
    directory: Path, width: int, layers: int, group: int = 32, zero: int = 7
) -> dict[str, Array]:
    """Write a spec and a GPTQ checkpoint of random codes. Return the weights in float64."""
    draw, tensors, values = np.random.default_rng(0), {}, {}
    for layer in range(layers):
        words = draw.integers(0, 2**32, (width // 8, width), np.uint32)
        scales = draw.uniform(0.01, 0.02, (width // group, width)).astype(np.float16)
        name = f"layers.{layer}.map"
        tensors[f"{name}.qweight"] = words.view(np.int32)
        tensors[f"{name}.scales"] = scales
        stored = np.full((width // group, width // 8), zero * 0x11111111, np.uint32)
        tensors[f"{name}.qzeros"] = stored.view(np.int32)
        if width < 1000:
            codes = np.stack([(words >> (4 * k)) & 15 for k in range(8)], 1).reshape(width, width)
            spread = np.repeat(scales.astype(np.float64), group, 0)
            values[name] = ((codes.astype(np.float64) - (zero + 1)) * spread).T
    write_safetensors(directory / "model.safetensors", tensors)
    config = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": group},
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "m.specc").write_text(SPEC)
    return values


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [[], ["--quantize", "none"], ["--quantize", "int8"]])
def test_peak_memory(quantize: list[str], tmp_path: Path) -> None:
    write_gptq(tmp_path, 4096, 14)
    command = [
        sys.executable,
        "-c",
        PEAK_MEMORY_PROGRAM,
        "compile",
        "m.specc",
        "--no-load",
        *quantize,
    ]
    done = subprocess.run(
        [*command, "--weights", ".", "-o", "m.onnx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    used = int(done.stderr.splitlines()[-1]) * 1024
    assert used <= ROOM < 14 * 4 * 4096**2, f"{used >> 20} MB"


@pytest.mark.parametrize(("group", "kernel"), [(32, 32), (48, 16), (8, 0)])
def test_symmetric_4_bit_codes_are_kept(group: int, kernel: int, tmp_path: Path) -> None:
    values = write_gptq(tmp_path, 96, 2, group)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", weights=tmp_path)
    nodes = [n for n in onnx.load(tmp_path / "m.onnx").graph.node if n.op_type == "MatMulNBits"]
    sizes = [a.i for n in nodes for a in n.attribute if a.name == "block_size"]
    assert sizes == ([kernel] * 2 if kernel else [])
    check_product(tmp_path / "m.onnx", values)


@pytest.mark.parametrize("zero", [0, 5, 14])
@pytest.mark.parametrize("group", [32, 48])
def test_4_bit_codes_with_zero_points_are_kept(group: int, zero: int, tmp_path: Path) -> None:
    values = write_gptq(tmp_path, 96, 2, group, zero)
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", path, weights=tmp_path)
    nodes = [n for n in onnx.load(path).graph.node if n.op_type == "MatMulNBits"]
    assert [len(n.input) for n in nodes] == [4, 4]
    check_product(path, values)
    assert any(
        "2 quantized products agree" in x
        for x in list_model_lines(specc.load(path).selected_model, rounds=2)
    )


@pytest.mark.parametrize(
    ("quantize", "target"), [("none", "ort-cpu"), ("none", "onnx"), ("", "onnx")]
)
@pytest.mark.parametrize("zero", [5, 7])
def test_other_codes_are_dequantized(zero: int, quantize: str, target: str, tmp_path: Path) -> None:
    values = write_gptq(tmp_path, 96, 2, zero=zero)
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "m.specc", path, weights=tmp_path, quantize=quantize, target=target)
    kinds = {n.op_type for n in onnx.load(path).graph.node}
    assert not kinds & {"MatMulNBits", "DequantizeLinear"}
    check_product(path, values)


def check_product(path: Path, values: dict[str, Array]) -> None:
    """The model multiplies its input by the weights in turn."""
    x = np.random.default_rng(1).standard_normal((3, 96)).astype(np.float32)
    wanted = x.astype(np.float64)
    for value in values.values():
        wanted = wanted @ value.T
    found = specc.load(path, threads=1).run(x=x)["y"]
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()

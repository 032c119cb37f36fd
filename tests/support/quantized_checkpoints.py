"""Quantize the linear layers of a saved checkpoint, independently of the code that reads it.

Each packer returns the tensors of one weight by suffix, and the float64 values that they represent,
from the formulas in the documentation of the format.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

Wide = NDArray[np.float64]
Packed = tuple[dict[str, torch.Tensor], Wide]
Packer = Callable[[Wide, np.random.Generator], Packed]


def pack_words(codes: NDArray[Any], bits: int) -> torch.Tensor:
    """Pack rows of codes into rows of 32-bit words, the first code in the lowest bits."""
    rows = []
    for row in codes.tolist():
        number = sum(int(code) << (bits * place) for place, code in enumerate(row))
        count = -(-len(row) * bits // 32)
        rows.append([(number >> (32 * word)) & 0xFFFFFFFF for word in range(count)])
    return torch.from_numpy(np.array(rows, np.uint32).view(np.int32))


def scale_groups(
    weight: Wide, index: NDArray[np.int64], bits: int, *, symmetric: bool
) -> tuple[Wide, Wide, Wide]:
    """Return codes, float16 scales and zero points of `[out, in]`, with one group index per column."""
    top, groups = 2**bits - 1, int(index.max()) + 1
    scales, zeros = np.empty((len(weight), groups)), np.empty((len(weight), groups))
    for group in range(groups):
        part = weight[:, index == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, group] = 2 * np.maximum(-low, high) / top
            zeros[:, group] = 2 ** (bits - 1)
        else:
            scales[:, group] = (high - low) / top
            zeros[:, group] = np.clip(np.rint(-low / scales[:, group]), 1, top)
    scales = scales.astype(np.float16).astype(np.float64)
    codes = np.clip(np.rint(weight / scales[:, index]) + zeros[:, index], 0, top)
    return codes, scales, zeros


def make_gptq_packer(
    bits: int = 4, *, symmetric: bool = True, act_order: bool = False, added: int = 1
) -> Packer:
    """Return a packer for GPTQ with group size 16; files of version 1 store zero points minus 1."""

    def pack(weight: Wide, draw: np.random.Generator) -> Packed:
        index = np.arange(weight.shape[1]) // 16
        index = draw.permutation(index) if act_order else index
        codes, scales, zeros = scale_groups(weight, index, bits, symmetric=symmetric)
        tensors = {
            ".qweight": pack_words(codes, bits).T,
            ".qzeros": pack_words(zeros.T - added, bits),
            ".scales": torch.from_numpy(scales.T).half(),
            ".g_idx": torch.from_numpy(index).int(),
        }
        return tensors, (codes - zeros[:, index]) * scales[:, index]

    return pack


def pack_awq(weight: Wide, _: np.random.Generator) -> Packed:
    """Pack AWQ, GEMM version, group size 16: outputs 0, 2, 4, 6, 1, 3, 5, 7 of every eight."""
    index = np.arange(weight.shape[1]) // 16
    codes, scales, zeros = scale_groups(weight, index, 4, symmetric=False)
    order = np.concatenate(
        [np.array([0, 2, 4, 6, 1, 3, 5, 7]) + 8 * k for k in range(len(weight) // 8)]
    )
    tensors = {
        ".qweight": pack_words(codes.T[:, order], 4),
        ".qzeros": pack_words(zeros.T[:, order], 4),
        ".scales": torch.from_numpy(scales.T).half(),
    }
    return tensors, (codes - zeros[:, index]) * scales[:, index]


def make_compressed_packer(*, symmetric: bool = True) -> Packer:
    """Return a packer for compressed-tensors, pack-quantized, group size 16."""

    def pack(weight: Wide, _: np.random.Generator) -> Packed:
        index = np.arange(weight.shape[1]) // 16
        codes, scales, zeros = scale_groups(weight, index, 4, symmetric=symmetric)
        tensors = {
            ".weight_packed": pack_words(codes, 4),
            ".weight_scale": torch.from_numpy(scales).half(),
            ".weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors[".weight_zero_point"] = pack_words(zeros.T, 4).T
        return tensors, (codes - zeros[:, index]) * scales[:, index]

    return pack


def make_int8_packer(suffix: str, divisor: float) -> Packer:
    """Return a packer for int8 with per-channel scales, of bitsandbytes or compressed-tensors."""

    def pack(weight: Wide, _: np.random.Generator) -> Packed:
        largest = np.abs(weight).max(1).astype(np.float32).astype(np.float64)
        codes = np.rint(weight / largest[:, None] * 127)
        stored = (largest * divisor / 127).astype(np.float32)
        scale = torch.from_numpy(stored if suffix == ".SCB" else stored[:, None])
        tensors = {".weight": torch.from_numpy(codes.astype(np.int8)), suffix: scale}
        return tensors, codes * (stored.astype(np.float64) / divisor)[:, None]

    return pack


def pack_fp8_blocks(weight: Wide, _: np.random.Generator) -> Packed:
    """Pack FP8 with blocks of 12 by 20, smaller at the edges."""
    rows, columns = np.arange(weight.shape[0]) // 12, np.arange(weight.shape[1]) // 20
    grid = np.zeros((rows[-1] + 1, columns[-1] + 1))
    np.maximum.at(grid, (rows[:, None], columns[None]), np.abs(weight))
    stored = torch.from_numpy(grid / 448).float()
    spread = stored.double()[rows][:, columns]
    codes = (torch.from_numpy(weight) / spread).to(torch.float8_e4m3fn)
    return {".weight": codes, ".weight_scale_inv": stored}, (codes.double() * spread).numpy()


FOUR_BITS = {"bits": 4, "group_size": 16}
PACKERS: Mapping[str, tuple[Packer, dict[str, Any]]] = {
    "gptq": (make_gptq_packer(), {"quant_method": "gptq", **FOUR_BITS}),
    "gptq, asymmetric, act-order": (
        make_gptq_packer(symmetric=False, act_order=True),
        {"quant_method": "gptq", "desc_act": True, **FOUR_BITS},
    ),
    "gptq_v2": (
        make_gptq_packer(symmetric=False, added=0),
        {"quant_method": "gptq", "checkpoint_format": "gptq_v2", **FOUR_BITS},
    ),
    "gptq, 8 bits": (make_gptq_packer(8), {"quant_method": "gptq", "bits": 8, "group_size": 16}),
    "awq": (pack_awq, {"quant_method": "awq", "version": "gemm", **FOUR_BITS}),
    "compressed": (
        make_compressed_packer(),
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    ),
    "compressed, asymmetric": (
        make_compressed_packer(symmetric=False),
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    ),
    "compressed, int8": (
        make_int8_packer(".weight_scale", 1.0),
        {"quant_method": "compressed-tensors", "format": "int-quantized"},
    ),
    "bitsandbytes, 8 bits": (
        make_int8_packer(".SCB", 127.0),
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
    ),
    "fp8": (pack_fp8_blocks, {"quant_method": "fp8", "weight_block_size": [12, 20]}),
}


def quantize_checkpoint(directory: Path, name: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Quantize every `*_proj.weight` of a directory and return their values in float64."""
    packer, config = PACKERS[name]
    file, draw = directory / "model.safetensors", np.random.default_rng(seed)
    stored, values = load_file(file), {}
    for weight in [n for n in stored if n.endswith("_proj.weight")]:
        wide = stored.pop(weight).double().numpy()
        tensors, values[weight] = packer(wide, draw)
        stem = weight.removesuffix(".weight")
        stored |= {f"{stem}{suffix}": t.contiguous() for suffix, t in tensors.items()}
    save_file(stored, file, {"format": "pt"})
    settings = json.loads((directory / "config.json").read_text())
    settings["quantization_config"] = config
    (directory / "config.json").write_text(json.dumps(settings))
    return {weight: torch.from_numpy(value) for weight, value in values.items()}

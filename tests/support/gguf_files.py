"""Write GGUF files, independently of the code that reads them."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specc.ir.array import Array

F32, F16, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K = 0, 1, 2, 8, 12, 13, 14
BLOCK_SIZES = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34)} | {
    Q4_K: (256, 144), Q5_K: (256, 176), Q6_K: (256, 210)
}  # fmt: skip
"""Number of values and bytes of a block."""
GGUFTensor = tuple[int, tuple[int, ...], bytes]
"""Type, shape (outermost axis first) and bytes of a tensor."""


def encode_string(value: str) -> bytes:
    """Return a string with its length."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def encode_value(given: Any) -> bytes:
    """Return a metadata value with its type: integers are uint32, floats float32."""
    if isinstance(given, bool):
        return struct.pack("<I?", 7, given)
    if isinstance(given, int):
        return struct.pack("<II", 4, given)
    if isinstance(given, float):
        return struct.pack("<If", 6, given)
    if isinstance(given, str):
        return struct.pack("<I", 8) + encode_string(given)
    items = [encode_value(item) for item in given]
    kind = items[0][:4] if items else struct.pack("<I", 4)
    return (
        struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(i[4:] for i in items)
    )


def make_float_tensor(array: Array) -> GGUFTensor:
    """Return a tensor of float32 or float16."""
    kind = F16 if array.dtype == np.float16 else F32
    return kind, array.shape, array.astype(array.dtype.newbyteorder("<")).tobytes()


def sample_blocks(kind: int, shape: tuple[int, ...], draw: np.random.Generator) -> GGUFTensor:
    """Return a quantized tensor with random codes, and scales that keep its values small."""
    values, nbytes = BLOCK_SIZES[kind]
    blocks = draw.integers(0, 256, (*shape[:-1], shape[-1] // values, nbytes), np.uint8)
    largest = {Q4_0: 0.03, Q8_0: 0.002, Q4_K: 4e-4, Q5_K: 2e-4, Q6_K: 6e-5}[kind]
    places = {Q4_K: (0, 2), Q5_K: (0, 2), Q6_K: (208,)}.get(kind, (0,))
    for place in places:
        scales = draw.uniform(largest / 2, largest, blocks.shape[:-1]).astype("<f2")
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    return kind, shape, blocks.tobytes()


def encode_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, GGUFTensor]) -> bytes:
    """Return the bytes of a file of version 3 with alignment 32."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(encode_string(key) + encode_value(given) for key, given in metadata.items())
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        head += encode_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, GGUFTensor]) -> Path:
    """Write a file and return its path."""
    path.write_bytes(encode_gguf(metadata, tensors))
    return path


def interleave_heads(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return the rows of each head in the order of llama.cpp: rotated pairs are adjacent."""
    size = len(rows) // heads
    order = [h * size + n // 2 + (size // 2) * (n % 2) for h in range(heads) for n in range(size)]
    return rows[order]


LLAMA_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    **{f"model.layers.{{}}.self_attn.{n}_proj": f"blk.{{}}.attn_{n}" for n in "qkv"},
    "model.layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    **{f"model.layers.{{}}.mlp.{n}_proj": f"blk.{{}}.ffn_{n}" for n in ("gate", "up", "down")},
}
"""Parameter names in a Llama checkpoint to those in a GGUF file."""


def make_llama_metadata(**more: Any) -> dict[str, Any]:
    """Return the metadata of a small Llama: width 64, 4 heads, 2 key-value heads, 2 layers."""
    sizes = {
        "context_length": 64,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 16,
    }
    found = {"general.architecture": "llama", **{f"llama.{k}": v for k, v in sizes.items()}}
    return {**found, **more}


def list_llama_shapes(vocab: int = 31) -> dict[str, tuple[int, ...]]:
    """Return the shapes of its tensors by name in the GGUF file."""
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, 64),
        "output_norm.weight": (64,),
        "output.weight": (vocab, 64),
    }
    for layer in range(2):
        for name, shape in {
            "attn_norm": (64,), "ffn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64),
            "attn_v": (32, 64), "attn_output": (64, 64), "ffn_gate": (96, 64), "ffn_up": (96, 64),
            "ffn_down": (64, 96),
        }.items():  # fmt: skip
            found[f"blk.{layer}.{name}.weight"] = shape
    return found

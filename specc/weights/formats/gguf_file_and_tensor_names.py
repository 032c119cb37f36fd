"""Open GGUF files (llama.cpp) and rename their tensors to the names in Hugging Face checkpoints."""

import mmap
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.io.platform_and_signals import read_at_offset
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.weights.formats.gguf_header_and_blocks import (
    MAGIC,
    GGUFHeader,
    GGUFTensor,
    Metadata,
    raise_invalid_gguf_error,
    read_gguf_header,
)
from specc.weights.formats.safetensors import (
    FileIdentity,
    TensorFile,
    check_file_signature,
    get_file_identity,
    open_weights_file,
)
from specc.weights.formats.safetensors_header import NUMPY_DTYPES, TensorEntry

TensorChange: TypeAlias = Literal["heads", "kv_heads", "offset"]
"""A change that llama.cpp makes to the values of a tensor. `heads` and `kv_heads` interleave the
RoPE rows of each query or key head. `offset` adds 1 to norm weights.
"""

_OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EXPERT_NAMES = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_MIXTRAL_NAMES = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_GEMMA2_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3_NAMES = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_ROPE_CHANGES: Mapping[str, TensorChange] = {"attn_q": "heads", "attn_k": "kv_heads"}
ROPE_TENSORS = ("rope_factors_short.weight", "rope_factors_long.weight", "rope_freqs.weight")
"""Names of tensors with RoPE frequency divisors. Hugging Face stores the divisors in
config.json."""


@dataclass(frozen=True, kw_only=True)
class GGUFArchitecture:
    """A llama.cpp architecture. `model_type` is the architecture's name in Hugging Face configs.
    `layer_names` maps the tensor names in a layer to Hugging Face names. `{}` is the placeholder of
    the expert index. `tensor_changes` lists the tensors that llama.cpp changed. If
    `has_offset_norms` is True, llama.cpp added 1 to norm weights.
    """

    model_type: str
    layer_names: Mapping[str, str] = field(default_factory=dict)
    tensor_changes: Mapping[str, TensorChange] = field(default_factory=dict)
    has_offset_norms: bool = False


_LLAMA = GGUFArchitecture(model_type="llama", tensor_changes=_ROPE_CHANGES)
_MIXTRAL = GGUFArchitecture(
    model_type="mixtral", layer_names=_MIXTRAL_NAMES, tensor_changes=_ROPE_CHANGES
)
ARCHITECTURES = {
    "llama": _LLAMA,
    "qwen2": GGUFArchitecture(model_type="qwen2"),
    "qwen3": GGUFArchitecture(model_type="qwen3"),
    "qwen3moe": GGUFArchitecture(model_type="qwen3_moe", layer_names=_EXPERT_NAMES),
    "gemma": GGUFArchitecture(model_type="gemma", has_offset_norms=True),
    "gemma2": GGUFArchitecture(
        model_type="gemma2", layer_names=_GEMMA2_NAMES, has_offset_norms=True
    ),
    "gemma3": GGUFArchitecture(
        model_type="gemma3_text", layer_names=_GEMMA2_NAMES, has_offset_norms=True
    ),
    "phi3": GGUFArchitecture(model_type="phi3", layer_names=_PHI3_NAMES),
}
"""Supported architectures, keyed by the value of `general.architecture`."""


def select_gguf_architecture(header: GGUFHeader, path: str) -> GGUFArchitecture:
    """Return the architecture of a GGUF file. Raise E0419 if no spec supports it."""
    name = header.metadata.get("general.architecture")
    if name == "llama" and header.metadata.get("llama.expert_count"):
        return _MIXTRAL
    if isinstance(name, str) and name in ARCHITECTURES:
        return ARCHITECTURES[name]
    raise_error(
        "E0419",
        f"unsupported GGUF architecture `{escape_text(name)[:60]}`",
        notes=[
            f"`{escape_text(path)}` has this architecture; supported: {', '.join(ARCHITECTURES)}"
        ],
        helps=["compile the original checkpoint directory (config.json, safetensors) instead"],
    )


class GGUFFile(TensorFile):
    """An open GGUF file. A quantized tensor appears as a byte tensor of its blocks, named
    `tensor:type`. `get_array` and `read_tensor` undo the changes by llama.cpp (`changes`).
    """

    def __init__(self, path: Path, fd: int, header: GGUFHeader) -> None:
        self.header = header
        self.changes: dict[str, TensorChange] = {}
        architecture = select_gguf_architecture(header, str(path))
        count = header.metadata.get("split.count", 1)
        if isinstance(count, int) and count > 1:
            command = "llama-gguf-split --merge FIRST_PART MERGED.gguf"
            raise_error(
                "E0518",
                f"`{escape_text(path)}` is one of {count} parts of a model",
                helps=[f"merge them with llama.cpp: {command}"],
            )
        stored = [t for t in header.tensors if t.name not in ROPE_TENSORS]
        entries = {e.name: e for t in stored for e in self._iterate_entries(t, architecture)}
        super().__init__(path, fd, entries, {}, header.data)
        self.transformed_tensors = frozenset(self.changes)
        self._heads = {kind: _count_heads(header.metadata, kind) for kind in ("heads", "kv_heads")}

    def _iterate_entries(
        self, tensor: GGUFTensor, architecture: GGUFArchitecture
    ) -> Iterator[TensorEntry]:
        """Yield a tensor's header entry, or one entry per expert, with Hugging Face names."""
        layer, part, ending = _split_name(tensor.name)
        has_offset = architecture.has_offset_norms and tensor.name.endswith("norm.weight")
        change = "offset" if has_offset else architecture.tensor_changes.get(part)
        names = {**_LAYER_NAMES, **architecture.layer_names} if layer else _OUTER_NAMES
        stem = f"{layer}{names.get(part, part)}.{ending}"
        for entry in map(_make_entry, _split_experts(tensor, stem)):
            if change is not None:
                self.changes[entry.name] = change
            yield entry

    def read_rope_factors(self, name: str) -> list[float]:
        """Return the values of one of `ROPE_TENSORS`, or [] if the file lacks the tensor."""
        stored = [t for t in self.header.tensors if t.name == name and t.block_type.block_size == 1]
        for entry in (_make_entry(tensor) for tensor in stored):
            raw = bytearray(entry.nbytes)
            self._fill_buffer(entry.offset, memoryview(raw))
            values: list[float] = np.frombuffer(raw, NUMPY_DTYPES[entry.dtype]).tolist()
            return values
        return []

    def get_array(self, name: str) -> Array:
        """Return a tensor as a view of the file, or as a copy if llama.cpp changed its values."""
        return self._restore_tensor(name, super().get_array(name))

    def read_tensor(self, name: str) -> Array:
        """Return a copy of a tensor."""
        return self._restore_tensor(name, super().read_tensor(name))

    def _restore_tensor(self, name: str, stored: Array) -> Array:
        """Undo llama.cpp's changes to a tensor: the norm offset, or the order of RoPE rows."""
        change = self.changes.get(name)
        if change is None:
            return stored
        if change == "offset":
            return np.asarray(stored - stored.dtype.type(1))
        heads = self._heads[change]
        if len(stored) % (2 * heads):
            reason = f"has {len(stored)} rows, which do not match {heads} heads"
            raise_invalid_gguf_error(self.path, f"`{escape_text(name)}` {reason}")
        pairs = stored.reshape(heads, -1, 2, *stored.shape[1:])
        return pairs.swapaxes(1, 2).reshape(stored.shape)


def _split_name(name: str) -> tuple[str, str, str]:
    """Split a tensor name into the layer prefix (`model.layers.N.` or ""), the name within the
    layer, and the suffix.
    """
    match = re.fullmatch(r"blk\.(\d+)\.(.+)\.(\w+)", name)
    if match:
        return f"model.layers.{match[1]}.", match[2], match[3]
    part, _, ending = name.rpartition(".")
    return "", part, ending


def _split_experts(tensor: GGUFTensor, stem: str) -> Iterator[GGUFTensor]:
    """Split a stacked tensor into one tensor per expert, named `stem` with the expert index in
    place of `{}`. If `stem` has no `{}`, yield the whole tensor, named `stem`.
    """
    if "{}" not in stem:
        yield replace(tensor, name=stem)
        return
    experts, *shape = tensor.shape
    for expert in range(experts):
        offset = tensor.offset + expert * (tensor.nbytes // experts)
        yield replace(tensor, name=stem.format(expert), shape=tuple(shape), offset=offset)


def _make_entry(tensor: GGUFTensor) -> TensorEntry:
    """Return a tensor's header entry. A quantized tensor becomes a byte tensor of its blocks."""
    kind, shape = tensor.block_type, tensor.shape
    if kind.block_size == 1:
        return TensorEntry(tensor.name, kind.name, shape, tensor.offset, tensor.nbytes)
    stored = (*shape[:-1], tensor.row_bytes)
    return TensorEntry(f"{tensor.name}:{kind.name}", "u8", stored, tensor.offset, tensor.nbytes)


def _count_heads(metadata: Metadata, kind: str) -> int:
    """Return the number of query or key heads, or 1 if the metadata has no valid number."""
    prefix = f"{metadata.get('general.architecture')}.attention.head_count"
    count = metadata.get(prefix)
    if kind == "kv_heads":
        count = metadata.get(f"{prefix}_kv", count)
    return count if isinstance(count, int) and count > 0 else 1


def open_gguf(path: str | Path) -> GGUFFile:
    """Open and check a GGUF file. Raise E0419, E0502, E0506, E0508, E0518 or E0802 on failure."""
    path = Path(path)
    fd = open_weights_file(path)
    try:
        if read_at_offset(fd, len(MAGIC), 0) != MAGIC:
            check_file_signature(path, read_at_offset(fd, 64, 0), "a GGUF file")
            raise_invalid_gguf_error(path, f"it does not begin with {MAGIC.decode()}")
        return GGUFFile(path, fd, _read_header(path, get_file_identity(os.fstat(fd))))
    except BaseException:
        os.close(fd)
        raise


@lru_cache(maxsize=1)
def _read_header(path: Path, _: FileIdentity) -> GGUFHeader:
    """Return the header of a GGUF file, cached for the config, tokenizer and weights readers."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return read_gguf_header(data, str(path))

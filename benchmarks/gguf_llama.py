"""Write the Llama checkpoint of `generation.py` as GGUF for llama.cpp and OpenVINO GenAI."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

TENSOR_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""The GGUF names of the tensors of a layer."""
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7}
"""The GGUF file type codes of weight types. OpenVINO GenAI requires the correct code."""


def write_gguf(checkpoint: Path, out: Path, kind: str) -> None:
    """Write the weights with the type `kind`: F32, F16, Q8_0 or Q4_0. The tied embedding of a Q4_0
    file is Q8_0, and norm weights are float32.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "llama")
    _write_config(writer, config, kind)
    _write_tokens(writer, config["vocab_size"])
    for name, value in load_file(checkpoint / "model.safetensors").items():
        tensor, stored = _translate_tensor_name(name), kind
        if value.ndim == 1:
            stored = "F32"
        elif "embed_tokens" in name and kind == "Q4_0":
            stored = "Q8_0"
        if tensor.endswith(("attn_q.weight", "attn_k.weight")):
            value = _interleave(value, config["num_attention_heads"])
        quantized = gguf.GGMLQuantizationType[stored]
        data = gguf.quants.quantize(np.ascontiguousarray(value, np.float32), quantized)
        writer.add_tensor(tensor, data, raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_config(writer: gguf.GGUFWriter, config: dict[str, int], kind: str) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(FILE_TYPES[kind])


def _write_tokens(writer: gguf.GGUFWriter, count: int) -> None:
    """Write a tokenizer, which GGUF requires, although the benchmarks pass token ids."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{n}" for n in range(count)])
    writer.add_token_types([gguf.TokenType.NORMAL] * (count - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["t 0", "t 1"])
    writer.add_bos_token_id(count - 1)
    writer.add_eos_token_id(count - 1)


def _translate_tensor_name(name: str) -> str:
    """Return the GGUF name of a checkpoint tensor."""
    if "layers." not in name:
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]  # fmt: skip
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{TENSOR_NAMES[rest.removesuffix('.weight')]}.weight"


def _interleave(value: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the output features of each head from half-split to interleaved RoPE."""
    pairs = value.reshape(heads, 2, value.shape[0] // heads // 2, value.shape[1])
    return pairs.swapaxes(1, 2).reshape(value.shape)

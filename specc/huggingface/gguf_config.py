"""The metadata of GGUF files as the config.json of Hugging Face checkpoints."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from specc.diagnostics.source import Source
from specc.frontend.config_json import parse_config_json
from specc.frontend.json_nodes import JsonObject
from specc.io.safe_read import escape_text
from specc.weights.formats.gguf import ROPE_TENSORS, GGUFFile, open_gguf, select_architecture
from specc.weights.formats.gguf_header import Metadata

Fields: TypeAlias = dict[str, object]

_COMMON_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_HEAD_KEYS = {"attention.key_length": "head_dim"}
_EXPERT_KEYS = {"expert_used_count": "num_experts_per_tok"}
_GEMMA2_KEYS = {
    **_HEAD_KEYS,
    "attention.sliding_window": "sliding_window",
    "final_logit_softcapping": "final_logit_softcapping",
}
MODEL_KEYS: Mapping[str, Mapping[str, str]] = {
    "llama": {"rope.dimension_count": "head_dim", **_HEAD_KEYS},
    "mixtral": {
        "rope.dimension_count": "head_dim",
        **_HEAD_KEYS,
        **_EXPERT_KEYS,
        "expert_count": "num_local_experts",
    },
    "qwen2": {},
    "qwen3": _HEAD_KEYS,
    "qwen3_moe": {
        **_HEAD_KEYS,
        **_EXPERT_KEYS,
        "expert_count": "num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    "gemma": _HEAD_KEYS,
    "gemma2": {**_GEMMA2_KEYS, "attn_logit_softcapping": "attn_logit_softcapping"},
    "gemma3_text": {**_GEMMA2_KEYS, "rope.freq_base_swa": "rope_local_base_freq"},
    "phi3": {"attention.sliding_window": "sliding_window"},
}
"""Keys of the config by those of the metadata, which begin with the architecture; later ones take
precedence."""
FIXED_VALUES: Mapping[str, Fields] = {"qwen3_moe": {"norm_topk_prob": True}}
"""Values that llama.cpp takes for granted."""
LARGEST_GEMMA = {"gemma2": 46, "gemma3_text": 62}
"""Layers of the models whose queries are scaled by their width per head, not by `head_dim`."""
STOP_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
DEFAULT_THETA = 10000.0


def read_gguf_config(path: str | Path) -> JsonObject:
    """Return the metadata of a GGUF file as a config.json. Raise the errors of `open_gguf`."""
    with open_gguf(path) as file:
        fields = _build_config(file, select_architecture(file.header, str(path)).model_type)
    shown = f"metadata of {escape_text(str(path))}"
    return parse_config_json(Source(shown, json.dumps(fields, indent=2)))


def _build_config(file: GGUFFile, model_type: str) -> Fields:
    metadata = file.header.metadata
    values = _select_prefix(metadata, f"{metadata['general.architecture']}.")
    keys = {**_COMMON_KEYS, **MODEL_KEYS[model_type]}
    found: Fields = {"model_type": model_type, **FIXED_VALUES.get(model_type, {})}
    found |= {ours: values[key] for key, ours in keys.items() if key in values}
    found |= _tensor_fields(file, model_type)
    if stops := sorted({*_list_stop_tokens(metadata)}):
        found["eos_token_id"] = stops
    if model_type in LARGEST_GEMMA:
        found["query_pre_attn_scalar"] = _query_scale(found, LARGEST_GEMMA[model_type])
    return found | _rope_fields(file, model_type, found, _select_prefix(values, "rope."))


def _select_prefix(values: Metadata, prefix: str) -> Metadata:
    """Return the values whose keys begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _tensor_fields(file: GGUFFile, model_type: str) -> Fields:
    """Return the fields that only the tensors tell."""
    tensors = {tensor.name: tensor for tensor in file.header.tensors}
    found: Fields = {"tie_word_embeddings": "output.weight" not in tensors}
    if (embedding := tensors.get("token_embd.weight")) is not None:
        found["vocab_size"] = embedding.shape[0]
    if model_type == "llama":
        found["attention_bias"] = "blk.0.attn_output.bias" in tensors
        found["mlp_bias"] = "blk.0.ffn_down.bias" in tensors
    return found


def _list_stop_tokens(metadata: Metadata) -> Iterator[int]:
    for name in STOP_TOKENS:
        value = metadata.get(f"tokenizer.ggml.{name}")
        if isinstance(value, int):
            yield value


def _query_scale(found: Fields, largest: int) -> object:
    """Return the width per head that scales the queries, as llama.cpp decides."""
    width = _head_width(found)
    return width if found.get("num_hidden_layers") == largest else found.get("head_dim", width)


def _head_width(found: Fields) -> int | None:
    width, heads = found.get("hidden_size"), found.get("num_attention_heads")
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None


def _rope_fields(file: GGUFFile, model_type: str, found: Fields, rope: Metadata) -> Fields:
    fields: Fields = {"rope_theta": rope.get("freq_base", DEFAULT_THETA)}
    if scaling := _rope_scaling(file, found, rope):
        fields["rope_scaling"] = scaling
    rotated, width = rope.get("dimension_count"), _head_width(found)
    if model_type == "phi3" and isinstance(rotated, int) and width and rotated != width:
        fields["partial_rotary_factor"] = rotated / width
    return fields


def _rope_scaling(file: GGUFFile, found: Fields, rope: Metadata) -> Fields | None:
    """Return `rope_scaling`. Divisors of frequencies are stored as tensors."""
    length = rope.get("scaling.original_context_length", found.get("max_position_embeddings"))
    original: Fields = {"original_max_position_embeddings": length}
    short, long, both = (file.rope_factors(name) for name in ROPE_TENSORS)
    if both:  # Llama 3.1: one list of factors for all lengths
        divisors: Fields = {"factor": 1.0, "attention_factor": 1.0}
        return (
            {"rope_type": "longrope", "short_factor": both, "long_factor": both}
            | divisors
            | original
        )
    if short and long:
        return {"rope_type": "longrope", "short_factor": short, "long_factor": long} | original
    kind, factor = rope.get("scaling.type"), rope.get("scaling.factor", rope.get("scale_linear"))
    if kind == "none" or factor is None:
        return None
    return {"rope_type": kind or "linear", "factor": factor} | _yarn_fields(
        rope, kind, factor, original
    )


def _yarn_fields(rope: Metadata, kind: object, factor: object, original: Fields) -> Fields:
    """Return the further fields of YaRN; llama.cpp multiplies the usual factor of cos and sin."""
    times = rope.get("scaling.attn_factor", 1.0)
    if kind != "yarn" or not isinstance(factor, float) or not isinstance(times, float):
        return {}
    usual = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return {**original, "attention_factor": usual * times}

"""Convert GGUF metadata to config.json, tokenizer.json and tokenizer_config.json."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from specc.diagnostics.diagnostic import Source
from specc.frontend.json_parser_with_spans import JsonObject, parse_config_json
from specc.huggingface.audio_and_ctc_processor_files import get_list_or_empty
from specc.huggingface.tokenizer_config import ADDED_TOKEN_KEYS, apply_tokenizer_settings
from specc.io.safe_read import escape_text
from specc.weights.formats.gguf_file_and_tensor_names import (
    ROPE_TENSORS,
    GGUFFile,
    open_gguf,
    select_gguf_architecture,
)
from specc.weights.formats.gguf_header_and_blocks import GGUFHeader, Metadata

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
"""Map GGUF keys, without the architecture prefix, to keys of config.json. Later entries take
precedence.
"""
FIXED_VALUES: Mapping[str, Fields] = {"qwen3_moe": {"norm_topk_prob": True}}
"""Config values by model type that are hard-coded in llama.cpp."""
LARGEST_GEMMA = {"gemma2": 46, "gemma3_text": 62}
"""Number of layers in the largest model of each type. Only the largest model scales queries by
`hidden_size / num_attention_heads` instead of `head_dim`.
"""
STOP_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
DEFAULT_THETA = 10000.0


def read_gguf_config(path: str | Path) -> JsonObject:
    """Read the metadata of a GGUF file as a config.json. Raise the same errors as `open_gguf`."""
    with open_gguf(path) as file:
        fields = _build_config(file, select_gguf_architecture(file.header, str(path)).model_type)
    source_name = f"metadata of {escape_text(path)}"
    return parse_config_json(Source(source_name, json.dumps(fields, indent=2)))


def _build_config(file: GGUFFile, model_type: str) -> Fields:
    metadata = file.header.metadata
    values = _select_prefix(metadata, f"{metadata['general.architecture']}.")
    keys = {**_COMMON_KEYS, **MODEL_KEYS[model_type]}
    fields: Fields = {"model_type": model_type, **FIXED_VALUES.get(model_type, {})}
    fields |= {name: values[key] for key, name in keys.items() if key in values}
    fields |= _build_tensor_fields(file, model_type)
    stop_ids = {metadata.get(f"tokenizer.ggml.{name}") for name in STOP_TOKEN_KEYS}
    if sorted_ids := sorted(number for number in stop_ids if isinstance(number, int)):
        fields["eos_token_id"] = sorted_ids
    if model_type in LARGEST_GEMMA:
        fields["query_pre_attn_scalar"] = _compute_query_scale(fields, LARGEST_GEMMA[model_type])
    return fields | _build_rope_fields(file, model_type, fields, _select_prefix(values, "rope."))


def _select_prefix(values: Metadata, prefix: str) -> Metadata:
    """Return the values whose keys begin with `prefix`, and remove the prefix from the keys."""
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _build_tensor_fields(file: GGUFFile, model_type: str) -> Fields:
    """Return the config fields that follow from tensor shapes and names."""
    tensors = {tensor.name: tensor for tensor in file.header.tensors}
    fields: Fields = {"tie_word_embeddings": "output.weight" not in tensors}
    if (embedding := tensors.get("token_embd.weight")) is not None:
        fields["vocab_size"] = embedding.shape[0]
    if model_type == "llama":
        fields["attention_bias"] = "blk.0.attn_output.bias" in tensors
        fields["mlp_bias"] = "blk.0.ffn_down.bias" in tensors
    return fields


def _compute_query_scale(fields: Fields, num_layers_of_largest: int) -> object:
    """Return the head dimension that determines the query scale, as in llama.cpp."""
    width = _compute_head_width(fields)
    return (
        width
        if fields.get("num_hidden_layers") == num_layers_of_largest
        else fields.get("head_dim", width)
    )


def _compute_head_width(fields: Fields) -> int | None:
    width, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None


def _build_rope_fields(file: GGUFFile, model_type: str, config: Fields, rope: Metadata) -> Fields:
    fields: Fields = {"rope_theta": rope.get("freq_base", DEFAULT_THETA)}
    if scaling := _build_rope_scaling(file, config, rope):
        fields["rope_scaling"] = scaling
    rotated_width, width = rope.get("dimension_count"), _compute_head_width(config)
    if model_type == "phi3" and isinstance(rotated_width, int) and width and rotated_width != width:
        fields["partial_rotary_factor"] = rotated_width / width
    return fields


def _build_rope_scaling(file: GGUFFile, fields: Fields, rope: Metadata) -> Fields | None:
    """Build `rope_scaling`. Return None if the model does not scale RoPE. GGUF files store RoPE
    factors in tensors.
    """
    length = rope.get("scaling.original_context_length", fields.get("max_position_embeddings"))
    original: Fields = {"original_max_position_embeddings": length}
    short, long, factors = (file.read_rope_factors(name) for name in ROPE_TENSORS)
    if factors:  # Llama 3.1 uses the same list of factors for all sequence lengths
        divisors: Fields = {"factor": 1.0, "attention_factor": 1.0}
        longrope: Fields = {"rope_type": "longrope", "short_factor": factors}
        return longrope | {"long_factor": factors} | divisors | original
    if short and long:
        return {"rope_type": "longrope", "short_factor": short, "long_factor": long} | original
    scaling_type, factor = (
        rope.get("scaling.type"),
        rope.get("scaling.factor", rope.get("scale_linear")),
    )
    if scaling_type == "none" or factor is None:
        return None
    return {"rope_type": scaling_type or "linear", "factor": factor} | _build_yarn_fields(
        rope, scaling_type, factor, original
    )


def _build_yarn_fields(
    rope: Metadata, scaling_type: object, factor: object, original: Fields
) -> Fields:
    """Build the YaRN fields of `rope_scaling` except the type and factor. Return {} if the scaling
    type is not YaRN. llama.cpp multiplies the standard factor of cos and sin by
    `scaling.attn_factor`.
    """
    multiplier = rope.get("scaling.attn_factor", 1.0)
    if scaling_type != "yarn" or not isinstance(factor, float) or not isinstance(multiplier, float):
        return {}
    default = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return {**original, "attention_factor": default * multiplier}


CONTROL, USER_DEFINED = 3, 4
"""Token types whose tokens are matched in the text as a whole, before BPE."""
MAX_TOKEN = 512
"""Maximum length in characters of a token that a merge creates."""
SPACE = "▁"
SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDINGS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True)
class _ByteLevelSplit:
    """A byte-level pre-tokenizer. `regex` is the regular expression that splits text into words; ""
    selects GPT-2's expression. If `splits_digits` is True, digits are split first. If
    `ignores_merges` is True, words in the vocabulary are not split. If `normalizes_nfc` is True,
    text is normalized to NFC.
    """

    regex: str = ""
    splits_digits: bool = False
    ignores_merges: bool = False
    normalizes_nfc: bool = False


_GPT2 = _ByteLevelSplit()
_LLAMA3 = _ByteLevelSplit(
    regex=rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_ENDINGS}", ignores_merges=True
)
_QWEN2 = _ByteLevelSplit(
    regex=rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_ENDINGS}", normalizes_nfc=True
)
PRE_TOKENIZERS: Mapping[str, _ByteLevelSplit] = {
    "gpt-2": _GPT2,
    "smollm": _ByteLevelSplit(splits_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _ByteLevelSplit(regex=_TEKKEN, ignores_merges=True),
}
"""Byte-level pre-tokenizers by the value of `tokenizer.ggml.pre`."""


@dataclass(frozen=True)
class GGUFTokenizer:
    """The tokenizer of a GGUF file as a tokenizer.json and fields of tokenizer_config.json."""

    tokenizer_json: str
    tokenizer_config: Mapping[str, object]


def read_gguf_tokenizer(path: str | Path) -> GGUFTokenizer | None:
    """Read the tokenizer of a GGUF file. Return None for a missing or unknown tokenizer type."""
    with open_gguf(path) as file:
        return _convert_tokenizer(file.header)


@lru_cache(maxsize=1)
def _convert_tokenizer(header: GGUFHeader) -> GGUFTokenizer | None:
    metadata = header.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return None
    content = _build_tokenizer(metadata, tokens)
    if content is None:
        return None
    settings = _read_settings(metadata, tokens)
    text = json.dumps(content, ensure_ascii=False)
    return GGUFTokenizer(apply_tokenizer_settings(text, settings).tokenizer_json, settings)


def _build_tokenizer(metadata: Metadata, tokens: list[str]) -> dict[str, Any] | None:
    """Build the tokenizer.json of a byte-level or SentencePiece BPE tokenizer (otherwise None)."""
    model, pre = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if model == "gpt2" and pre in PRE_TOKENIZERS:
        parts = _build_byte_level(metadata, tokens, PRE_TOKENIZERS[str(pre)])
    elif model == "llama":
        parts = _build_sentencepiece(metadata, tokens)
    else:
        return None
    added = _list_added_tokens(tokens, get_list_or_empty(metadata, "tokenizer.ggml.token_type"))
    return {"version": "1.0", "added_tokens": added, "post_processor": None, **parts}


def _list_added_tokens(tokens: Sequence[str], types: Sequence[object]) -> list[dict[str, Any]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": number, "content": token, **flags, "special": token_type == CONTROL}
        for number, (token, token_type) in enumerate(zip(tokens, types, strict=False))
        if token_type in (CONTROL, USER_DEFINED)
    ]


def _read_settings(metadata: Metadata, tokens: list[str]) -> dict[str, object]:
    """Read special tokens, the flags that add special tokens to texts, and the chat template."""
    settings: dict[str, object] = {}
    for name, key in SPECIAL_TOKENS.items():
        if (token := _get_token(tokens, metadata.get(f"tokenizer.ggml.{key}"))) is not None:
            settings[name] = token
    # as in llama.cpp, SentencePiece adds BOS unless BOS is disabled in the file
    default = {"add_bos_token": metadata.get("tokenizer.ggml.model") == "llama"}
    for key in ADDED_TOKEN_KEYS:
        settings[key] = metadata.get(f"tokenizer.ggml.{key}", default.get(key, False))
    template = metadata.get("tokenizer.chat_template")
    return {**settings, "chat_template": template} if template is not None else settings


def _get_token(tokens: list[str], number: object) -> str | None:
    """Return the token with id `number`, or None if the id is out of range."""
    return tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else None


def _build_byte_level(
    metadata: Metadata, tokens: list[str], pre_tokenizer: _ByteLevelSplit
) -> dict[str, Any]:
    """Build the tokenizer.json of a byte-level BPE tokenizer."""
    merges = [
        str(merge).split(" ", 1) for merge in get_list_or_empty(metadata, "tokenizer.ggml.merges")
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps: list[dict[str, Any]] = [{**byte_level, "use_regex": not pre_tokenizer.regex}]
    if pre_tokenizer.regex:
        pattern = {"Regex": pre_tokenizer.regex}
        split_step = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        steps.insert(0, split_step)
    if pre_tokenizer.splits_digits:
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    return {
        "normalizer": {"type": "NFC"} if pre_tokenizer.normalizes_nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {**byte_level, "use_regex": True},
        "model": _make_bpe(tokens, merges, ignore_merges=pre_tokenizer.ignores_merges),
    }


def _make_bpe(tokens: list[str], merges: list[list[str]], **options: object) -> dict[str, Any]:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {"type": "BPE", "vocab": vocabulary, "merges": merges, **options}


def _build_sentencepiece(metadata: Metadata, tokens: list[str]) -> dict[str, Any]:
    """Build the tokenizer.json of SentencePiece BPE, with merges derived from token scores."""
    is_gemma = str(metadata.get("general.architecture")).startswith("gemma")
    if is_gemma:  # preserve repeated spaces
        tokens = [SPACE * len(t) if " " in t and not t.strip() else t for t in tokens]
    scores = [] if is_gemma else get_list_or_empty(metadata, "tokenizer.ggml.scores")
    numbers = [float(score) for score in scores if isinstance(score, int | float)]
    merges = _derive_merges(tokens, numbers)
    adds_prefix = not is_gemma and metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}] if adds_prefix else []
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = _get_token(tokens, metadata.get("tokenizer.ggml.unknown_token_id", 0))
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*steps, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _make_bpe(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }


def _derive_merges(tokens: list[str], scores: list[float]) -> list[list[str]]:
    """Derive the merges: all pairs of tokens whose concatenation is a token. Merges are sorted by
    descending score of the merged token or, without scores, by its id.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    ranks = [-score for score in scores] if len(scores) == len(tokens) else range(len(tokens))
    ranked_merges = []
    for rank, token in zip(ranks, tokens, strict=True):
        for position in range(1, min(len(token), MAX_TOKEN)):
            left, right = token[:position], token[position:]
            if left in ids and right in ids:
                ranked_merges.append((rank, ids[token], ids[left], ids[right], [left, right]))
    return [merge for *_, merge in sorted(ranked_merges, key=lambda m: m[:4])]

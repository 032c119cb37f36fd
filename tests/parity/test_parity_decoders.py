"""Decoder families similar to Llama: directories saved by transformers give the published logits,
padded on either side, and the published generated tokens.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from support.decoder_cases import (
    LINEAR_ROPE,
    SLIDING_LAYERS,
    check_decoder_head,
    check_sequence_classification,
    make_decoder_case,
)
from support.hf_cases import ModelCase, check_generation, check_model_outputs

pytestmark = pytest.mark.parity

CASES = {
    "qwen2": make_decoder_case("Qwen2"),
    "qwen2, windows": make_decoder_case(
        "Qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    "qwen2, tied": make_decoder_case("Qwen2", tie_word_embeddings=True, rope_parameters=LINEAR_ROPE),
    "mistral": make_decoder_case("Mistral", sliding_window=3),
    "qwen3": make_decoder_case("Qwen3", head_dim=12),
    "qwen3, biases": make_decoder_case(
        "Qwen3", attention_bias=True, layer_types=SLIDING_LAYERS[::-1], sliding_window=3,
        use_sliding_window=True,
    ),
    "gemma": make_decoder_case("Gemma", head_dim=16),
    "gemma, untied": make_decoder_case("Gemma", head_dim=8, tie_word_embeddings=False),
    "gemma, as the first files say it": make_decoder_case("Gemma", head_dim=8, hidden_act="gelu"),
    "gemma, another activation": make_decoder_case("Gemma", head_dim=8, hidden_act="relu"),
    "gemma2": make_decoder_case("Gemma2", eager=True, head_dim=16, sliding_window=3),
    "gemma2, no caps": make_decoder_case(
        "Gemma2", eager=True, head_dim=8, sliding_window=2, query_pre_attn_scalar=100,
        attn_logit_softcapping=None, final_logit_softcapping=None,
        layer_types=SLIDING_LAYERS[::-1],
    ),
    "granite": make_decoder_case(
        "Granite", embedding_multiplier=3.0, residual_multiplier=0.3,
        attention_multiplier=0.2, logits_scaling=4.0,
    ),
    "smollm3": make_decoder_case("SmolLM3"),
    "smollm3, turns": make_decoder_case(
        "SmolLM3", no_rope_layers=[0, 1], tie_word_embeddings=False, mlp_bias=True
    ),
    "olmo2": make_decoder_case("Olmo2"),
    "olmo2, biases": make_decoder_case("Olmo2", attention_bias=True, num_key_value_heads=4),
    "gpt_neox": make_decoder_case("GPTNeoX"),
    "gpt_neox, in turn": make_decoder_case(
        "GPTNeoX", use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True,
        rope_parameters=LINEAR_ROPE | {"partial_rotary_factor": 0.5},
    ),
    "gptj": ModelCase(
        config="GPTJConfig", model="GPTJForCausalLM", sides=("left", "right"), position_ids=True,
        tiny={
            "vocab_size": 31, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4,
            "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2,
        },
    ),
    "opt": make_decoder_case("OPT", ffn_dim=40),
    "opt, norms behind": make_decoder_case("OPT", ffn_dim=40, do_layer_norm_before=False, word_embed_proj_dim=16),
    "opt, no biases": make_decoder_case("OPT", ffn_dim=40, enable_bias=False, tie_word_embeddings=False),
    "phi": make_decoder_case("Phi"),
    "phi, norms of queries and keys": make_decoder_case("Phi", qk_layernorm=True),
    "phi3": make_decoder_case("Phi3"),
    "phi3, window": make_decoder_case("Phi3", sliding_window=3, tie_word_embeddings=True),
    "starcoder2": make_decoder_case("Starcoder2"),
    "starcoder2, window": make_decoder_case("Starcoder2", sliding_window=3, use_bias=False, tie_word_embeddings=False),
    "nemotron": make_decoder_case("Nemotron", head_dim=12),
    "nemotron, biases": make_decoder_case("Nemotron", head_dim=8, attention_bias=True, mlp_bias=True),
    "stablelm": make_decoder_case("StableLm"),
    "stablelm, beside": make_decoder_case("StableLm", use_parallel_residual=True, use_qkv_bias=True),
    "stablelm, norms": make_decoder_case("StableLm", qk_layernorm=True),
    "cohere": make_decoder_case("Cohere"),
    "cohere, biases": make_decoder_case("Cohere", attention_bias=True, logit_scale=0.5, tie_word_embeddings=False),
    "cohere, norms": make_decoder_case("Cohere", use_qk_norm=True),
}  # fmt: skip


# transformers 5 makes the mask by `is_causal`, and only a sequence without padding by the other
BOTH_WAYS = {"use_bidirectional_attention": True, "is_causal": False, "head_dim": 8}
BIDIRECTIONAL = {
    "gemma": make_decoder_case("Gemma", **BOTH_WAYS),
    "gemma2": make_decoder_case("Gemma2", eager=True, sliding_window=3, **BOTH_WAYS),
    "gemma2, wide window": make_decoder_case("Gemma2", eager=True, sliding_window=30, **BOTH_WAYS),
}


@pytest.mark.parametrize("case", BIDIRECTIONAL.values(), ids=BIDIRECTIONAL)
def test_bidirectional_scores(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_scores(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


FAMILIES = {case.config.removesuffix("Config"): case for case in CASES.values()}


@pytest.mark.parametrize("family", FAMILIES)
def test_generation(family: str, tmp_path: Path) -> None:
    check_generation(replace(FAMILIES[family], weight_scale=1.5, seed=1), tmp_path)


TOKENS = (
    *("Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "GPTNeoX", "Phi", "Phi3", "Starcoder2"),
    *("Nemotron", "StableLm"),
)
HEADS = [*((f, "ForTokenClassification") for f in TOKENS), *((f, "Model") for f in FAMILIES)]


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_heads(family: str, head: str, tmp_path: Path) -> None:
    check_decoder_head(FAMILIES[family], head, tmp_path)


CLASSIFIERS = (
    *("Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "SmolLM3", "Olmo2", "GPTNeoX", "GPTJ"),
    *("OPT", "Phi", "Phi3", "Starcoder2", "Nemotron", "StableLm"),
)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_sequence_classification(family: str, tmp_path: Path) -> None:
    check_sequence_classification(FAMILIES[family], tmp_path)

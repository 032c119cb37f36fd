"""Families of decoders that are near to Llama: each folder that transformers saves is
compiled by itself, scores as published, padded on either side, and writes as published.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from support.decoders import LINEAR, SLIDING, check_classes, check_head, decoder
from support.families import Case, check_scores, check_writing

pytestmark = pytest.mark.parity

CASES = {
    "qwen2": decoder("Qwen2"),
    "qwen2, windows": decoder(
        "Qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    "qwen2, tied": decoder("Qwen2", tie_word_embeddings=True, rope_parameters=LINEAR),
    "mistral": decoder("Mistral", sliding_window=3),
    "qwen3": decoder("Qwen3", head_dim=12),
    "qwen3, biases": decoder(
        "Qwen3", attention_bias=True, layer_types=SLIDING[::-1], sliding_window=3,
        use_sliding_window=True,
    ),
    "gemma": decoder("Gemma", head_dim=16),
    "gemma, untied": decoder("Gemma", head_dim=8, tie_word_embeddings=False),
    "gemma, as the first files say it": decoder("Gemma", head_dim=8, hidden_act="gelu"),
    "gemma, another activation": decoder("Gemma", head_dim=8, hidden_act="relu"),
    "gemma2": decoder("Gemma2", eager=True, head_dim=16, sliding_window=3),
    "gemma2, no caps": decoder(
        "Gemma2", eager=True, head_dim=8, sliding_window=2, query_pre_attn_scalar=100,
        attn_logit_softcapping=None, final_logit_softcapping=None,
        layer_types=SLIDING[::-1],
    ),
    "granite": decoder(
        "Granite", embedding_multiplier=3.0, residual_multiplier=0.3,
        attention_multiplier=0.2, logits_scaling=4.0,
    ),
    "smollm3": decoder("SmolLM3"),
    "smollm3, turns": decoder(
        "SmolLM3", no_rope_layers=[0, 1], tie_word_embeddings=False, mlp_bias=True
    ),
    "olmo2": decoder("Olmo2"),
    "olmo2, biases": decoder("Olmo2", attention_bias=True, num_key_value_heads=4),
    "gpt_neox": decoder("GPTNeoX"),
    "gpt_neox, in turn": decoder(
        "GPTNeoX", use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True,
        rope_parameters=LINEAR | {"partial_rotary_factor": 0.5},
    ),
    "gptj": Case(
        config="GPTJConfig", model="GPTJForCausalLM", sides=("left", "right"), places=True,
        tiny={
            "vocab_size": 31, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4,
            "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2,
        },
    ),
    "opt": decoder("OPT", ffn_dim=40),
    "opt, norms behind": decoder("OPT", ffn_dim=40, do_layer_norm_before=False, word_embed_proj_dim=16),
    "opt, no biases": decoder("OPT", ffn_dim=40, enable_bias=False, tie_word_embeddings=False),
    "phi": decoder("Phi"),
    "phi, norms of queries and keys": decoder("Phi", qk_layernorm=True),
    "phi3": decoder("Phi3"),
    "phi3, window": decoder("Phi3", sliding_window=3, tie_word_embeddings=True),
    "starcoder2": decoder("Starcoder2"),
    "starcoder2, window": decoder("Starcoder2", sliding_window=3, use_bias=False, tie_word_embeddings=False),
    "nemotron": decoder("Nemotron", head_dim=12),
    "nemotron, biases": decoder("Nemotron", head_dim=8, attention_bias=True, mlp_bias=True),
    "stablelm": decoder("StableLm"),
    "stablelm, beside": decoder("StableLm", use_parallel_residual=True, use_qkv_bias=True),
    "stablelm, norms": decoder("StableLm", qk_layernorm=True),
    "cohere": decoder("Cohere"),
    "cohere, biases": decoder("Cohere", attention_bias=True, logit_scale=0.5, tie_word_embeddings=False),
    "cohere, norms": decoder("Cohere", use_qk_norm=True),
}  # fmt: skip


# transformers 5 makes the mask by `is_causal`, and only a sequence without padding by the other
BOTH_WAYS = {"use_bidirectional_attention": True, "is_causal": False, "head_dim": 8}
BIDIRECTIONAL = {
    "gemma": decoder("Gemma", **BOTH_WAYS),
    "gemma2": decoder("Gemma2", eager=True, sliding_window=3, **BOTH_WAYS),
    "gemma2, wide window": decoder("Gemma2", eager=True, sliding_window=30, **BOTH_WAYS),
}


@pytest.mark.parametrize("case", BIDIRECTIONAL.values(), ids=BIDIRECTIONAL)
def test_bidirectional_scores(case: Case, tmp_path: Path) -> None:
    check_scores(case, tmp_path)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_scores(case: Case, tmp_path: Path) -> None:
    check_scores(case, tmp_path)


FAMILIES = {case.config.removesuffix("Config"): case for case in CASES.values()}


@pytest.mark.parametrize("family", FAMILIES)
def test_writing(family: str, tmp_path: Path) -> None:
    check_writing(replace(FAMILIES[family], louder=1.5, seed=1), tmp_path)


TOKENS = (
    *("Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "GPTNeoX", "Phi", "Phi3", "Starcoder2"),
    *("Nemotron", "StableLm"),
)
HEADS = [*((f, "ForTokenClassification") for f in TOKENS), *((f, "Model") for f in FAMILIES)]


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_heads(family: str, head: str, tmp_path: Path) -> None:
    check_head(FAMILIES[family], head, tmp_path)


CLASSIFIERS = (
    *("Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "SmolLM3", "Olmo2", "GPTNeoX", "GPTJ"),
    *("OPT", "Phi", "Phi3", "Starcoder2", "Nemotron", "StableLm"),
)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_classes(family: str, tmp_path: Path) -> None:
    check_classes(FAMILIES[family], tmp_path)

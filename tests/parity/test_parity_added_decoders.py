"""Falcon Mamba, VaultGemma, Solar Open, GLM-4.7-Flash, Mistral 4, EXAONE, nanochat, Persimmon,
GPT-NeoX-Japanese, MiniCPM3, AFMoE, CTRL, Cohere 2 MoE and Granite MoE SWA match transformers: logits, generation and heads.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.decoder_cases import (
    LINEAR_ROPE,
    SLIDING_LAYERS,
    SMALL_DECODER,
    check_decoder_head,
    check_sequence_classification,
    make_decoder_case,
)
from support.hf_cases import ModelCase, check_generation, check_model_outputs

pytestmark = pytest.mark.parity

FALCON_MAMBA: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 20, "state_size": 4, "num_hidden_layers": 2, "conv_kernel": 3,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    **SMALL_DECODER, "moe_intermediate_size": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
    "n_group": 4, "topk_group": 2,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **EXPERTS, "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "v_head_dim": 6,
}  # fmt: skip
MISTRAL4_ROPE: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, "original_max_position_embeddings": 4, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.3,
}  # fmt: skip
PLAIN: dict[str, Any] = {
    key: value for key, value in SMALL_DECODER.items() if key != "num_key_value_heads"
}
MINICPM: dict[str, Any] = {
    **SMALL_DECODER, "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8, "scale_emb": 3, "scale_depth": 1.2, "dim_model_base": 8,
}  # fmt: skip
AFMOE: dict[str, Any] = {
    **SMALL_DECODER, "head_dim": 8, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    "num_dense_layers": 1, "num_shared_experts": 2, "route_scale": 1.3, "sliding_window": 3, "global_attn_every_n_layers": 2,
}  # fmt: skip
CTRL: dict[str, Any] = {
    "vocab_size": 31, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 40, "n_positions": 64, "pad_token_id": 30,
    "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
COHERE: dict[str, Any] = {
    **SMALL_DECODER, "num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_shared_experts": 1,
    "first_k_dense_replace": 1, "sliding_window": 3, "sliding_window_pattern": 2,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    **SMALL_DECODER,
    "num_local_experts": 4,
    "sliding_window": 3,
    "attention_multiplier": 0.3,
}
JETMOE: dict[str, Any] = {"num_key_value_heads": 2, "kv_channels": 6, "num_local_experts": 4}
LONG: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 50.0, "short_factor": [1.0, 1.1, 1.2, 1.4], "long_factor": [1.0, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": 64, "factor": 2.0,
}  # fmt: skip


def of_class(case: ModelCase, config: str, model: str = "LlamaForCausalLM") -> ModelCase:
    """Return the case of a config class that another family's model class implements."""
    return replace(case, config=config, model=model)


FIRST = {
    "falcon_mamba": ModelCase(
        config="FalconMambaConfig", model="FalconMambaForCausalLM", tiny=FALCON_MAMBA, sides=("left", "right"), float32_only=True,
    ),
    "vaultgemma": make_decoder_case("VaultGemma", eager=True, head_dim=8, query_pre_attn_scalar=5, sliding_window=3),
    "solar_open": replace(make_decoder_case("SolarOpen", **EXPERTS, head_dim=8, routed_scaling_factor=1.7), float32_only=True),
    "glm4_moe_lite": replace(make_decoder_case("Glm4MoeLite", **LATENT), float32_only=True),
    "mistral4": make_decoder_case("Mistral4", **LATENT, rope_parameters=MISTRAL4_ROPE),
    "exaone": of_class(make_decoder_case("Llama"), "ExaoneConfig"),
    "nanochat": make_decoder_case("NanoChat"),
    "persimmon": replace(make_decoder_case("Persimmon"), tiny=PLAIN),
    "gpt_neox_japanese": replace(make_decoder_case("GPTNeoXJapanese"), tiny=PLAIN),
    "minicpm3": make_decoder_case("MiniCPM3", **MINICPM),
    "jetmoe": make_decoder_case("JetMoe", **JETMOE),
    "afmoe": replace(make_decoder_case("Afmoe", **AFMOE), float32_only=True),
    "ctrl": replace(make_decoder_case("CTRL"), model="CTRLLMHeadModel", tiny=CTRL),
    "cohere2_moe": replace(make_decoder_case("Cohere2Moe", **COHERE), float32_only=True),
    "granitemoe_swa": make_decoder_case("GraniteMoeSWA", eager=True, **GRANITE),
}  # fmt: skip
OTHERS = {
    # a bias of in_proj makes padding of the published model nonzero for its convolution
    "falcon_mamba, biases": replace(
        FIRST["falcon_mamba"], tiny={**FALCON_MAMBA, "use_bias": True, "use_conv_bias": False, "time_step_rank": 5,
                                     "mixer_rms_eps": 0.1, "tie_word_embeddings": False, "intermediate_size": 50}, sides=("right",),
    ),
    "vaultgemma, no soft-capping, biases": make_decoder_case(
        "VaultGemma", eager=True, head_dim=8, attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True,
        sliding_window=3, layer_types=SLIDING_LAYERS[::-1],
    ),
    "solar_open, biases, raw scores": replace(
        make_decoder_case("SolarOpen", **EXPERTS, head_dim=8, norm_topk_prob=False, attention_bias=True,
                          rope_parameters=LINEAR_ROPE, tie_word_embeddings=True), float32_only=True,
    ),
    "glm4_moe_lite, layers, halves": replace(
        make_decoder_case(
            "Glm4MoeLite", **{**LATENT, "num_hidden_layers": 3, "q_lora_rank": None},
            mlp_layer_types=["sparse", "dense", "sparse"], rope_interleave=False, attention_bias=True, norm_topk_prob=False,
        ),
        float32_only=True,
    ),
    "mistral4, dense layer, halves": make_decoder_case(
        "Mistral4", **{**LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1}, first_k_dense_replace=1,
        rope_interleave=False, norm_topk_prob=False, routed_scaling_factor=1.7, attention_bias=True,
        rope_parameters={k: v for k, v in MISTRAL4_ROPE.items() if "mscale" not in k},
    ),
    "mistral4, its own RoPE": make_decoder_case("Mistral4", **LATENT),
    "exaone, biases": of_class(
        make_decoder_case("Llama", attention_bias=True, mlp_bias=True, rope_parameters=LINEAR_ROPE, head_dim=6,
                          tie_word_embeddings=True), "ExaoneConfig",
    ),
    "nanochat, biases": make_decoder_case(
        "NanoChat", attention_bias=True, final_logit_softcapping=None, rope_parameters=LINEAR_ROPE, tie_word_embeddings=True,
        hidden_act="gelu", num_key_value_heads=4,
    ),
    "persimmon, no norms of queries": replace(
        make_decoder_case("Persimmon"),
        tiny={**PLAIN, "qk_layernorm": False, "tie_word_embeddings": True, "hidden_act": "gelu",
              "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.25}},
    ),
    "gpt_neox_japanese, part of a head": replace(
        make_decoder_case("GPTNeoXJapanese"),
        tiny={**PLAIN, "intermediate_multiple_size": 2, "tie_word_embeddings": False,
              "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}},
    ),
    "minicpm3, unscaled": make_decoder_case(
        "MiniCPM3", **{**MINICPM, "q_lora_rank": None, "scale_depth": None, "dim_model_base": None}, attention_bias=True,
        mlp_bias=True, tie_word_embeddings=False, rope_parameters=LINEAR_ROPE,
    ),
    "jetmoe, one expert": make_decoder_case(
        "JetMoe", **{**JETMOE, "num_experts_per_tok": 1}, tie_word_embeddings=False, activation_function="gelu",
        rms_norm_eps=0.1,
    ),
    "jetmoe, three experts": make_decoder_case("JetMoe", **{**JETMOE, "num_experts_per_tok": 3}, rope_parameters=LINEAR_ROPE),
    "minicpm3, longrope": make_decoder_case("MiniCPM3", **MINICPM, rope_parameters=LONG),
    "afmoe, muP, biases": replace(
        make_decoder_case(
            "Afmoe", **{**AFMOE, "num_hidden_layers": 3, "num_dense_layers": 2, "layer_types": ["full_attention", *SLIDING_LAYERS]}, mup_enabled=True,
            attention_bias=True, tie_word_embeddings=True,
        ),
        float32_only=True,
    ),
    "ctrl, untied": replace(
        make_decoder_case("CTRL"), model="CTRLLMHeadModel", tiny={**CTRL, "tie_word_embeddings": False, "layer_norm_epsilon": 0.1},
    ),
    "cohere2_moe, sigmoid, RMSNorm": replace(
        make_decoder_case(
            "Cohere2Moe", **{**COHERE, "num_hidden_layers": 4}, expert_selection_fn="sigmoid", rms_norm_eps=1e-5,
            shared_expert_combination_strategy="sum", prefix_dense_intermediate_size=20, prefix_dense_sliding_window_pattern=2,
            attention_bias=True, tie_word_embeddings=False, logit_scale=0.3,
        ),
        float32_only=True,
    ),
    "cohere2_moe, raw scores, no dense layer": replace(
        make_decoder_case(
            "Cohere2Moe", **{**COHERE, "first_k_dense_replace": 0, "num_shared_experts": 0}, expert_selection_fn="sigmoid",
            norm_topk_prob=False,
        ),
        float32_only=True,
    ),
    "granitemoe_swa, bases, shared expert": make_decoder_case(
        "GraniteMoeSWA", eager=True, **{**GRANITE, "num_hidden_layers": 3}, layer_rope_theta=[50.0, 0, 1e4],
        shared_intermediate_size=12, attention_bias=True, tie_word_embeddings=True, embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=2.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "granitemoe_swa, scaled RoPE": make_decoder_case(
        "GraniteMoeSWA", eager=True, **GRANITE, layer_rope_theta=[1e4, 0.0], rope_parameters=LINEAR_ROPE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_scores(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_scores_of_further_configurations(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_generation(case: ModelCase, tmp_path: Path) -> None:
    scale = 1.0 if case.config == "FalconMambaConfig" else 1.5
    case = replace(case, weight_scale=scale, seed=1)
    check_generation(case, tmp_path, double=not case.float32_only)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FIRST.keys() - {"exaone"}))
def test_base_model(family: str, tmp_path: Path) -> None:
    """All but EXAONE, whose base model transformers saves under names of neither class."""
    check_decoder_head(FIRST[family], "Model", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral4", "persimmon"])
def test_token_classification(family: str, tmp_path: Path) -> None:
    check_decoder_head(FIRST[family], "ForTokenClassification", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral4", "persimmon", "minicpm3", "ctrl", "jetmoe"])
def test_sequence_classification(family: str, tmp_path: Path) -> None:
    check_sequence_classification(FIRST[family], tmp_path)

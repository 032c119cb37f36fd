"""Decoders with mixtures of experts: directories saved by transformers give the published logits,
padded on either side, and the published generated tokens; weights of experts are separate or
stacked.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.elaborated_specs import assert_arrays_close
from support.hf_cases import ModelCase, check_generation, check_model_outputs
from support.published_models import open_weighted_spec

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2,
    "num_experts_per_tok": 2, "num_local_experts": 5, "head_dim": 8,
}  # fmt: skip
LATENT: dict[str, Any] = {**SMALL,
    "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 6, "n_group": 4, "topk_group": 2, "num_hidden_layers": 3
}  # fmt: skip
for key in ("num_local_experts", "head_dim"):
    del LATENT[key]
QWEN2 = {**SMALL, "num_experts": 5}
WITHOUT_HEAD_DIM = {key: value for key, value in SMALL.items() if key != "head_dim"}
SLIDING = ["full_attention", "sliding_attention"]
YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 4,
    "beta_fast": 8.0, "beta_slow": 0.5,
}  # fmt: skip
SHARP = {"mscale": 0.7, "mscale_all_dim": 0.4}
DBRX: dict[str, Any] = {
    "vocab_size": 31, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "pad_token_id": 30, "bos_token_id": 0,
    "eos_token_id": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "attn_config": {"kv_n_heads": 2, "rope_theta": 500.0, "clip_qkv": 8}, "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 5, "moe_top_k": 2},
}  # fmt: skip


def case(family: str, tiny: dict[str, Any], *, eager: bool = False, **more: Any) -> ModelCase:
    """Return the causal LM class of one configuration."""
    return ModelCase(
        eager=eager,
        config=f"{family}Config",
        model=f"{family}ForCausalLM",
        tiny={**tiny, **more},
        sides=("left", "right"),
        position_ids=True,
    )


FIRST = {
    "Mixtral": case("Mixtral", SMALL),
    "Qwen3Moe": case("Qwen3Moe", SMALL, moe_intermediate_size=24),
    "GptOss": case("GptOss", SMALL, eager=True, sliding_window=3, swiglu_limit=0.9),
    "DeepseekV2": case("DeepseekV2", LATENT),
    "DeepseekV3": case("DeepseekV3", LATENT),
    "Qwen2Moe": case(
        "Qwen2Moe", QWEN2, moe_intermediate_size=24, shared_expert_intermediate_size=20
    ),
    "Olmoe": case("Olmoe", WITHOUT_HEAD_DIM),
    "FlexOlmo": case("FlexOlmo", WITHOUT_HEAD_DIM),
    "MiniMaxM2": case("MiniMaxM2", SMALL),
    "GraniteMoe": case(
        "GraniteMoe",
        WITHOUT_HEAD_DIM,
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
        residual_multiplier=0.4,
        logits_scaling=2.0,
    ),
    "Glm4Moe": case("Glm4Moe", LATENT | {"num_key_value_heads": 2, "head_dim": 16}),
    "Dbrx": case("Dbrx", DBRX),
}
"""The smallest configuration of each family."""
OTHERS = {
    "qwen2_moe, some layers dense": case(
        "Qwen2Moe", QWEN2, moe_intermediate_size=24, shared_expert_intermediate_size=20, norm_topk_prob=True,
        mlp_only_layers=[0], qkv_bias=False, use_sliding_window=True, sliding_window=3, layer_types=SLIDING,
    ),
    "flex_olmo, normalized": case("FlexOlmo", WITHOUT_HEAD_DIM, norm_topk_prob=True, attention_bias=True),
    "minimax_m2, part of each head rotates": case(
        "MiniMaxM2", SMALL, rope_parameters={"rope_theta": 50.0, "rope_type": "default", "partial_rotary_factor": 0.5},
        num_key_value_heads=4, tie_word_embeddings=True,
    ),
    "olmoe, clipped": case(
        "Olmoe", WITHOUT_HEAD_DIM, clip_qkv=0.5, norm_topk_prob=True, attention_bias=True, tie_word_embeddings=True,
    ),
    "granitemoeshared": case(
        "GraniteMoeShared", WITHOUT_HEAD_DIM, shared_intermediate_size=20, attention_bias=True, residual_multiplier=0.4,
    ),
    "glm4_moe, qk norm": case(
        "Glm4Moe", LATENT | {"num_key_value_heads": 4, "head_dim": 8}, use_qk_norm=True, attention_bias=True,
        norm_topk_prob=False, routed_scaling_factor=1.7, rope_parameters={"rope_theta": 50.0, "rope_type": "default",
        "partial_rotary_factor": 0.75},
    ),
    "DeepseekV2, norm_topk_prob": case("DeepseekV2", {**LATENT, "norm_topk_prob": True}),
    "mixtral, window": case("Mixtral", SMALL, sliding_window=3, tie_word_embeddings=True, num_experts_per_tok=1),
    "qwen3_moe, renormed, some layers plain": case(
        "Qwen3Moe", SMALL, moe_intermediate_size=24, norm_topk_prob=True, mlp_only_layers=[0], attention_bias=True,
    ),
    "qwen3_moe, every second, window": case(
        "Qwen3Moe", SMALL, moe_intermediate_size=24, decoder_sparse_step=2, use_sliding_window=True, sliding_window=3,
        tie_word_embeddings=True, num_hidden_layers=3,
    ),
    "gpt_oss, no biases, other windows": case(
        "GptOss", SMALL, eager=True, sliding_window=2, attention_bias=False, layer_types=SLIDING, swiglu_alpha=1.1,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 50.0},
    ),
    "gpt_oss, yarn": case("GptOss", SMALL, eager=True, sliding_window=3, rope_parameters=YARN),
    "gpt_oss, yarn, not truncated": case(
        "GptOss", SMALL, eager=True, sliding_window=3, rope_parameters=YARN | {"truncate": False},
    ),
    "deepseek_v2, lite": case("DeepseekV2", LATENT, q_lora_rank=None, n_group=None, topk_group=None),
    "deepseek_v2, groups, biases": case(
        "DeepseekV2", LATENT, topk_method="group_limited_greedy", routed_scaling_factor=2.0, attention_bias=True,
        mlp_bias=True, tie_word_embeddings=True,
    ),
    "deepseek_v2, few groups open": case(
        "DeepseekV2", LATENT, topk_method="group_limited_greedy", topk_group=1, first_k_dense_replace=0,
    ),
    "deepseek_v2, yarn": case("DeepseekV2", LATENT, rope_parameters=YARN | SHARP),
    "deepseek_v3, halves": case("DeepseekV3", LATENT, rope_interleave=False, q_lora_rank=None, attention_bias=True),
    "deepseek_v3, raw shares": case(
        "DeepseekV3", LATENT, norm_topk_prob=False, tie_word_embeddings=True, first_k_dense_replace=0,
    ),
    "deepseek_v3, yarn": case("DeepseekV3", LATENT, rope_parameters=YARN | SHARP),
    "deepseek_v3, yarn as released": case(
        "DeepseekV3", LATENT, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "dbrx, clamped": case(
        "Dbrx", DBRX, attn_config={"kv_n_heads": 4, "rope_theta": 500.0, "clip_qkv": 0.4},
        ffn_config={"ffn_hidden_size": 20, "moe_num_experts": 4, "moe_top_k": 3, "moe_normalize_expert_weights": 2.0, "ffn_act_fn": {"name": "gelu"}},
    ),
    "dbrx, weights of experts as they are": case(
        "Dbrx", DBRX, attn_config={"rope_theta": 500.0, "clip_qkv": 2}, ffn_config={"ffn_hidden_size": 20, "moe_top_k": 2, "moe_normalize_expert_weights": None},
    ),
    "deepseek_v3, plain layers alone": case("DeepseekV3", LATENT, first_k_dense_replace=3),
}  # fmt: skip


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_scores(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_other_configurations(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


LAYOUTS = {
    "Mixtral": "model.layers.1.{}.experts.4.w2.weight",
    "Qwen3Moe": "model.layers.1.{}.experts.4.down_proj.weight",
    "DeepseekV2": "model.layers.1.{}.experts.4.down_proj.weight",
    "DeepseekV3": "model.layers.1.{}.experts.4.down_proj.weight",
    "Qwen2Moe": "model.layers.1.{}.experts.4.down_proj.weight",
    "FlexOlmo": "model.layers.1.{}.experts.4.down_proj.weight",
    "MiniMaxM2": "model.layers.1.{}.experts.4.w2.weight",
    "Olmoe": "model.layers.1.{}.experts.4.down_proj.weight",
    "Glm4Moe": "model.layers.1.{}.experts.4.down_proj.weight",
}
"""A tensor of one expert, as these classes save it and as it was released."""


@pytest.mark.parametrize("family", LAYOUTS)
def test_stacked_experts(family: str, tmp_path: Path) -> None:
    """As current classes hold them, and save them on request."""
    usual, stacked = tmp_path / "usual", tmp_path / "stacked"
    FIRST[family].save_checkpoint(usual)
    scope = "block_sparse_moe" if family in ("Mixtral", "MiniMaxM2") else "mlp"
    assert LAYOUTS[family].format(scope) in _names(usual)
    case = replace(FIRST[family], save_options={"save_original_format": False})
    check_model_outputs(case, stacked)
    assert "model.layers.1.mlp.experts.gate_up_proj" in _names(stacked)


def _names(directory: Path) -> set[str]:
    """Return the tensor names of a directory."""
    with safe_open(directory / "model.safetensors", "numpy") as file:
        return set(file.keys())


@pytest.mark.parametrize("family", FIRST)
def test_generation(family: str, tmp_path: Path) -> None:
    check_generation(replace(FIRST[family], weight_scale=1.5, seed=1), tmp_path)


ASKED = ("Mixtral", "Qwen3Moe", "Qwen2Moe")
CLASSIFIERS = [
    f for f in FIRST if f not in ("Olmoe", "GraniteMoe", "Glm4Moe", "FlexOlmo", "MiniMaxM2", "Dbrx")
]
HEADS = [
    *((f, "Model") for f in FIRST),
    *((f, "ForTokenClassification") for f in CLASSIFIERS if f != "DeepseekV2"),
    *((f, "ForQuestionAnswering") for f in ASKED),
]
RESULTS = {
    "Model": ("last_hidden_state",),
    "ForTokenClassification": ("logits",),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
}


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_heads(family: str, head: str, tmp_path: Path) -> None:
    base = FIRST[family]
    case = replace(base, model=f"{family}{head}", results=dict.fromkeys(RESULTS[head], "seq"))
    check_model_outputs(replace(case, tiny={**case.tiny, "num_labels": 3}), tmp_path)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_sequence_classification(family: str, tmp_path: Path) -> None:
    """The published class looks for its padding token, so the padding has that id."""
    base = FIRST[family]
    case = replace(base, model=f"{family}ForSequenceClassification", results={})
    theirs = replace(case, tiny={**case.tiny, "num_labels": 3}).save_checkpoint(tmp_path)
    ours = open_weighted_spec(str(tmp_path), tmp_path)
    rng = np.random.default_rng(0)
    keep = np.arange(7) < np.array([[7], [1], [4]])
    ids = np.where(keep, rng.integers(0, 30, (3, 7)), 30)
    x = {"input_ids": ids, "attention_mask": keep}
    with torch.no_grad():
        wanted = theirs(**{n: torch.tensor(v).long() for n, v in x.items()}).logits
    assert_arrays_close(ours.compiled.run(**x)["logits"], wanted.numpy(), "logits", 1e-5)


LLAMA4 = replace(
    case(
        "Llama4", SMALL, intermediate_size_mlp=24, attention_chunk_size=4, no_rope_layer_interval=2,
        interleave_moe_layer_step=2, floor_scale=3, num_experts_per_tok=1,
    ),
    config="Llama4TextConfig",
)  # fmt: skip
FORMS = {
    # the published class counts padding at the left where it scales queries
    "scaled queries": replace(LLAMA4, sides=("right",)),
    "two experts a token, full attention": replace(
        LLAMA4,
        tiny={
            **LLAMA4.tiny, "num_experts_per_tok": 2, "attn_temperature_tuning": False, "use_qk_norm": False,
            "attention_chunk_size": None, "interleave_moe_layer_step": 1, "attention_bias": True, "no_rope_layers": [0, 1],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMS.values(), ids=FORMS)
def test_scores_of_llama4(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


def test_generation_of_llama4(tmp_path: Path) -> None:
    check_generation(replace(LLAMA4, weight_scale=1.5, seed=1, eager=True), tmp_path)

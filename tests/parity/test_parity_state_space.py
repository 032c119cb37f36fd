"""Mamba-2, hybrids of state space layers and attention (Bamba, Granite 4, Falcon-H1, Jamba,
Nemotron-H), Griffin (RecurrentGemma), Gated DeltaNet (Qwen3-Next, Qwen3.5) and LFM2: scores, generation and heads as transformers computes them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.decoder_cases import (
    LINEAR_ROPE,
    SMALL_DECODER,
    check_decoder_head,
    check_sequence_classification,
)
from support.hf_cases import ModelCase, check_generation, check_model_outputs

pytestmark = pytest.mark.parity

MAMBA2: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8, "state_size": 5,
    "n_groups": 2, "expand": 2, "chunk_size": 4, "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
MIXER: dict[str, Any] = {
    **SMALL_DECODER, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_expand": 2,
    "mamba_chunk_size": 4,
}  # fmt: skip
TYPES = ["linear_attention", "full_attention"]
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 20}
DELTA: dict[str, Any] = {
    **SMALL_DECODER, "head_dim": 16, "linear_key_head_dim": 5, "linear_value_head_dim": 6, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20, "num_experts": 4,
    "num_experts_per_tok": 2, "layer_types": TYPES,
}  # fmt: skip
DENSE = {key: value for key, value in DELTA.items() if "expert" not in key and "moe" not in key}
NEMOTRON: dict[str, Any] = {
    **{key: value for key, value in SMALL_DECODER.items() if key != "num_hidden_layers"}, "head_dim": 8, "ssm_state_size": 5,
    "mamba_num_heads": 4, "mamba_head_dim": 6, "n_groups": 2, "chunk_size": 4, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 12, "moe_shared_expert_intermediate_size": 10,
    "routed_scaling_factor": 1.7, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
}  # fmt: skip
MULTIPLIERS = {
    "lm_head_multiplier": 0.5, "embedding_multiplier": 3.0, "key_multiplier": 0.7, "attention_out_multiplier": 1.3,
    "attention_in_multiplier": 0.6, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.8, "mlp_multipliers": [0.9, 1.4],
    "ssm_multipliers": [0.8, 1.1, 0.9, 1.2, 0.7],
}  # fmt: skip


def case(family: str, tiny: dict[str, Any], *, position_ids: bool = True, **more: Any) -> ModelCase:
    """Return the case of a causal LM; the scans of transformers compute in float32."""
    return ModelCase(
        config=f"{family}Config",
        model=f"{family}ForCausalLM",
        tiny={**tiny, **more},
        sides=("left", "right"),
        position_ids=position_ids,
        float32_only=True,
    )


FIRST = {
    "Mamba2": case("Mamba2", MAMBA2, position_ids=False),
    "Bamba": case("Bamba", MIXER, attn_layer_indices=[1]),
    "GraniteMoeHybrid": case("GraniteMoeHybrid", MIXER, **EXPERTS, layer_types=TYPES),
    "FalconH1": case("FalconH1", MIXER, mamba_d_ssm=64, **MULTIPLIERS),
    "Jamba": case(
        "Jamba", SMALL_DECODER, position_ids=False, num_experts=4, mamba_d_state=5, mamba_dt_rank=3, attn_layer_period=2,
        attn_layer_offset=1, num_hidden_layers=4, use_mamba_kernels=False,
    ),
    "Qwen3Next": case("Qwen3Next", DELTA),
    "Lfm2": case("Lfm2", SMALL_DECODER, layer_types=["conv", "full_attention"], block_multiple_of=8),
    "NemotronH": case("NemotronH", NEMOTRON, position_ids=False),
    # the published recurrence reads padding at the left
    "RecurrentGemma": replace(
        case("RecurrentGemma", SMALL_DECODER, num_hidden_layers=4, attention_window_size=3, logits_soft_cap=5.0),
        sides=("right",),
    ),
}  # fmt: skip
TEXT_PARTS = {
    "Qwen3_5": replace(case("Qwen3_5", DENSE), config="Qwen3_5TextConfig"),
    "Qwen3_5Moe": replace(case("Qwen3_5Moe", DELTA), config="Qwen3_5MoeTextConfig"),
}
"""Text models of multimodal families: the class called `Model` has images too."""
OTHERS = {
    "mamba2, one group, untied": case(
        "Mamba2", MAMBA2, position_ids=False, n_groups=1, use_conv_bias=False, hidden_act="gelu", conv_kernel=3,
        tie_word_embeddings=True, time_step_limit=(0.3, 0.9),
    ),
    "bamba, biases": case(
        "Bamba", MIXER, attn_layer_indices=[0], attention_bias=True, mlp_bias=True, mamba_conv_bias=False,
        rope_parameters=LINEAR_ROPE | {"partial_rotary_factor": 0.75}, mamba_n_groups=1,
    ),
    "granitemoehybrid, dense, with RoPE": case(
        "GraniteMoeHybrid", MIXER, num_local_experts=0, shared_intermediate_size=20, layer_types=TYPES[::-1],
        position_embedding_type="rope", residual_multiplier=0.5, logits_scaling=2.0, attention_multiplier=0.2,
    ),
    "falcon_h1, gated norm": case("FalconH1", MIXER, mamba_d_ssm=64, mamba_rms_norm=True, projectors_bias=True),
    "falcon_h1, norm after the gate": case(
        "FalconH1", MIXER, mamba_d_ssm=64, mamba_rms_norm=True, mamba_norm_before_gate=False, attention_bias=True,
    ),
    "jamba, dense": case(
        "Jamba", SMALL_DECODER, position_ids=False, num_experts=1, mamba_d_state=5, mamba_dt_rank=3, attn_layer_period=2,
        attn_layer_offset=0, use_mamba_kernels=False, tie_word_embeddings=True,
    ),
    # a bias of in_proj makes padding of the published model nonzero for its convolution
    "qwen3_next, one value head per key head": case(
        "Qwen3Next", DELTA, linear_num_value_heads=2, norm_topk_prob=False, mlp_only_layers=[0], attention_bias=True,
        layer_types=TYPES[::-1], linear_conv_kernel_dim=3,
    ),
    "qwen3_5_text, biases": replace(
        case(
            "Qwen3_5", DENSE, linear_num_value_heads=2, attention_bias=True, layer_types=TYPES[::-1],
            linear_conv_kernel_dim=3, tie_word_embeddings=True,
            rope_parameters=LINEAR_ROPE | {"partial_rotary_factor": 0.5},
        ),
        config="Qwen3_5TextConfig",
    ),
    "nemotron_h, latent experts in groups": case(
        "NemotronH", NEMOTRON, position_ids=False, moe_latent_size=7, n_group=3, topk_group=2, mlp_bias=True,
        norm_topk_prob=False, use_conv_bias=False, time_step_min=0.4, tie_word_embeddings=True,
    ),
    "recurrent_gemma, biases": replace(
        case(
            "RecurrentGemma", SMALL_DECODER, block_types=["attention", "recurrent"], attention_bias=True, conv1d_width=3,
            attention_window_size=4, rope_parameters={"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 1.0},
        ),
        sides=("right",),
    ),
    "lfm2, sizes as they are": replace(
        case(
            "Lfm2", SMALL_DECODER, full_attn_idxs=[0], block_auto_adjust_ff_dim=False, conv_bias=True, conv_L_cache=4,
            tie_word_embeddings=False,
        ),
        sides=("right",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", (FIRST | TEXT_PARTS).values(), ids=FIRST | TEXT_PARTS)
def test_scores(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_scores_of_further_configurations(case: ModelCase, tmp_path: Path) -> None:
    check_model_outputs(case, tmp_path)


@pytest.mark.parametrize("case", (FIRST | TEXT_PARTS).values(), ids=FIRST | TEXT_PARTS)
def test_generation(case: ModelCase, tmp_path: Path) -> None:
    griffin = case.model == "RecurrentGemmaForCausalLM"
    # its recurrence reads padding, and beam search leaves its states in the order of the last step
    case = replace(case, eager=griffin, seed=2 if case.model == "NemotronHForCausalLM" else 1)
    check_generation(replace(case, weight_scale=1.5), tmp_path, (1,) if griffin else (1, 4))


@pytest.mark.parametrize("family", FIRST)
def test_base_model(family: str, tmp_path: Path) -> None:
    check_decoder_head(FIRST[family], "Model", tmp_path)


@pytest.mark.parametrize("family", ["Jamba", "Qwen3Next"])
def test_classification(family: str, tmp_path: Path) -> None:
    check_sequence_classification(FIRST[family], tmp_path)


@pytest.mark.parametrize("head", ["ForTokenClassification", "ForQuestionAnswering"])
def test_heads(head: str, tmp_path: Path) -> None:
    check_decoder_head(FIRST["Qwen3Next"], head, tmp_path)

"""Phi-3.5-MoE, Gemma 3n and Gemma 4 (text): scores, generation and heads as transformers
computes them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.decoders import SLIDING, SMALL, check_classes, check_head, decoder
from support.families import Case, check_scores, check_writing

pytestmark = pytest.mark.parity

EXPERTS: dict[str, Any] = {**SMALL, "num_local_experts": 5, "num_experts_per_tok": 2}
LONG = {
    "rope_type": "longrope", "rope_theta": 50.0, "short_factor": [1.0, 1.1, 1.2, 1.4], "long_factor": [1.0, 2.0, 3.0, 4.0],
    "short_mscale": 1.3, "long_mscale": 1.3, "original_max_position_embeddings": 32,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    **SMALL, "head_dim": 8, "vocab_size_per_layer_input": 31, "hidden_size_per_layer_input": 6, "sliding_window": 3,
}  # fmt: skip
GEMMA3N: dict[str, Any] = {
    **GEMMA, "num_hidden_layers": 3, "num_kv_shared_layers": 1, "layer_types": [*SLIDING, "sliding_attention"],
    "laurel_rank": 5, "altup_num_inputs": 3, "activation_sparsity_pattern": [0.95, 0.6, 0.0],
}  # fmt: skip
GEMMA4: dict[str, Any] = {**GEMMA, "global_head_dim": 16, "layer_types": SLIDING}
ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 33.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.5,
        "rope_theta": 77.0,
    },
}
FIRST = {
    "phimoe": decoder("Phimoe", **EXPERTS, router_jitter_noise=0.3),
    "gemma3n_text": decoder("Gemma3nText", **GEMMA3N),
    "gemma4_text": decoder(
        "Gemma4Text", **{**GEMMA4, "num_hidden_layers": 4, "layer_types": SLIDING * 2}, num_kv_shared_layers=2,
        use_double_wide_mlp=True,
    ),
}  # fmt: skip
OTHERS = {
    "phimoe, biases, longrope": decoder(
        "Phimoe", **EXPERTS, attention_bias=True, lm_head_bias=True, sliding_window=3, rope_parameters=LONG, head_dim=8,
    ),
    "gemma3n_text, widths of each layer": decoder(
        "Gemma3nText", **{**GEMMA3N, "intermediate_size": [40, 30, 20], "num_kv_shared_layers": 0}, altup_active_idx=1,
        altup_correct_scale=False, attention_bias=True, final_logit_softcapping=3.0,
    ),
    "gemma4_text, experts, keys as values": decoder(
        "Gemma4Text", **GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=5,
        top_k_experts=2, moe_intermediate_size=12,
    ),
    "gemma4_text, no layer inputs": decoder(
        "Gemma4Text", **{**GEMMA4, "hidden_size_per_layer_input": 0}, final_logit_softcapping=3.0, attention_bias=True,
        rope_parameters=ROPES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_scores(case: Case, tmp_path: Path) -> None:
    check_scores(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_scores_of_further_configurations(case: Case, tmp_path: Path) -> None:
    check_scores(case, tmp_path)


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_generation(case: Case, tmp_path: Path) -> None:
    check_writing(replace(case, louder=1.5, seed=1), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", FIRST)
def test_base_model(family: str, tmp_path: Path) -> None:
    check_head(FIRST[family], "Model", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["phimoe"])
def test_classification(family: str, tmp_path: Path) -> None:
    check_classes(FIRST[family], tmp_path)

"""Each field of the config classes of the families that were added last is followed by the spec or
refused, never ignored; see `test_parity_config_fields`.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.config_fields import (
    DECODER_SIZES,
    IDS,
    ROTARY,
    SIZES,
    YARN,
    FieldCase,
    check_every_field,
    make_text_inputs,
    run_decoder,
)
from support.published_models import Arrays

pytestmark = [pytest.mark.parity, pytest.mark.slow]

EXPERTS: dict[str, Any] = {
    **DECODER_SIZES, "num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 24, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **{k: v for k, v in EXPERTS.items() if k != "head_dim"}, "num_key_value_heads": 4, "kv_lora_rank": 12,
    "q_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 6,
}  # fmt: skip
SPARSE: Mapping[str, tuple[Any, ...]] = ROTARY | {
    "num_experts_per_tok": (1, 3), "first_k_dense_replace": (0, 1, 2), "q_lora_rank": (None,), "topk_group": (1, 4),
    "n_group": (2, None), "n_shared_experts": (2,), "mlp_layer_types": (["sparse", "sparse"], ["sparse"]),
}  # fmt: skip

SCALED_QUERIES = tuple(
    {**YARN, "llama_4_scaling_beta": 0.3, **more}
    for more in (
        {}, {"mscale": 0.7}, {"mscale": 0.7, "mscale_all_dim": 0.4}, {"mscale_all_dim": 1.0}, {"truncate": False},
        {"attention_factor": 1.3}, {"factor": 1.0}, {"rope_theta": 3.0}, {"original_max_position_embeddings": 3},
        {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25}, {"llama_4_scaling_beta": 0.0},
        {"type": "linear"}, {"rope_type": "linear"}, {"rope_type": "default"},
    )
)  # fmt: skip
"""The class needs `llama_4_scaling_beta` in every form of its RoPE settings."""


def of_decoder(
    spec: str,
    family: str,
    tiny: Mapping[str, Any],
    more: Mapping[str, tuple[Any, ...]],
    model: str = "",
) -> FieldCase:
    """Return the fields of a causal LM class."""
    return FieldCase(
        spec,
        f"{family}Config",
        model or f"{family}ForCausalLM",
        tiny,
        make_text_inputs,
        run_decoder,
        more,
    )


def of_seq2seq(spec: str, family: str, **more: Any) -> FieldCase:
    """Return the fields of an encoder-decoder class of the BART family."""
    sizes = {
        "vocab_size": 31, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
        **more,
    }  # fmt: skip
    target = IDS[:, :7] % 31
    given = {"source": IDS, "target": target}
    masks = {"source_keep": np.ones(IDS.shape, bool), "target_keep": np.ones(target.shape, bool)}

    def run(model: Any, x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        made = model(input_ids=x["source"], decoder_input_ids=x["target"], use_cache=False)
        return {"logits": made.logits}

    return FieldCase(
        spec,
        f"{family}Config",
        f"{family}ForConditionalGeneration",
        sizes,
        lambda _: {**given, **masks},
        run,
    )


XLM: dict[str, Any] = {
    "pad_token_id": 4,
    "vocab_size": 31,
    "emb_dim": 24,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 20,
}
ENCODER: dict[str, Any] = {
    **SIZES,
    "vocab_size": 31,
    "hidden_size": 24,
    "max_position_embeddings": 20,
}


def of_encoder(
    spec: str,
    family: str,
    tiny: Mapping[str, Any],
    more: Mapping[str, tuple[Any, ...]],
    head: str = "ForMaskedLM",
    results: tuple[str, ...] = ("logits",),
    further: tuple[str, ...] = (),
    absent: tuple[str, ...] = (),
) -> FieldCase:
    """Return the fields of an encoder class; `further` inputs of ours are zeros, `absent` ones -1."""

    def inputs(config: Mapping[str, Any]) -> Arrays:
        types = dict.fromkeys(("token_type_ids", *further), 0 * IDS - bool(absent))
        return {**make_text_inputs(config), **types, **dict.fromkeys(absent, 0 * IDS - 1)}

    def run(model: Any, x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        outputs = model(input_ids=x["input_ids"], return_dict=True)
        return {name: outputs[name] for name in results}

    # without a mask XLM finds padding by its id; here the mask is given
    excluded = ("pad_token_id",) if absent else ()
    return FieldCase(spec, f"{family}Config", f"{family}{head}", tiny, inputs, run, more, excluded)


FAMILIES = {
    "falcon_mamba": of_decoder(
        "mamba", "FalconMamba",
        {"vocab_size": 31, "hidden_size": 20, "state_size": 4, "num_hidden_layers": 2, "conv_kernel": 3, "time_step_rank": 3},
        {"time_step_rank": (5,), "expand": (1, 3), "conv_kernel": (4,), "state_size": (7,)},
    ),
    "vaultgemma": of_decoder(
        "gemma2", "VaultGemma", {**DECODER_SIZES, "num_key_value_heads": 2, "head_dim": 8}, {**ROTARY, "sliding_window": (3,)},
    ),
    "solar_open": of_decoder("glm4_moe", "SolarOpen", EXPERTS, SPARSE),
    "glm4_moe_lite": of_decoder("deepseek_v3", "Glm4MoeLite", LATENT, SPARSE),
    "mistral4": of_decoder("mistral4", "Mistral4", LATENT, {**SPARSE, "rope_parameters": SCALED_QUERIES, "rope_scaling": ()}),
    "exaone": of_decoder("exaone", "Exaone", {**DECODER_SIZES, "num_key_value_heads": 2}, ROTARY, "LlamaForCausalLM"),
    "nanochat": of_decoder("nanochat", "NanoChat", {**DECODER_SIZES, "num_key_value_heads": 2}, ROTARY),
    "persimmon": of_decoder("persimmon", "Persimmon", DECODER_SIZES, ROTARY),
    "gpt_neox_japanese": of_decoder(
        "gpt_neox_japanese", "GPTNeoXJapanese", {k: v for k, v in DECODER_SIZES.items() if k != "intermediate_size"},
        {**ROTARY, "rotary_pct": (0.5,), "rotary_emb_base": (77,), "intermediate_multiple_size": (2,)},
    ),
    "minicpm3": of_decoder(
        "minicpm3", "MiniCPM3",
        {**DECODER_SIZES, "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 6,
         "qk_rope_head_dim": 8, "scale_emb": 3, "scale_depth": 1.2, "dim_model_base": 8},
        {**SPARSE, "scale_depth": (None, 2.0), "dim_model_base": (None, 16), "v_head_dim": (5,)},
    ),
    "afmoe": of_decoder(
        "afmoe", "Afmoe",
        {**DECODER_SIZES, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 5, "num_experts_per_tok": 2,
         "moe_intermediate_size": 12, "num_dense_layers": 1, "sliding_window": 4, "global_attn_every_n_layers": 2},
        {**ROTARY, "num_dense_layers": (0, 2), "sliding_window": (3, None), "global_attn_every_n_layers": (1, 3)},
    ),
    "nemotron_h": of_decoder(
        "nemotron_h", "NemotronH",
        {**{k: v for k, v in DECODER_SIZES.items() if k != "num_hidden_layers"}, "num_key_value_heads": 2, "head_dim": 8,
         "ssm_state_size": 3, "mamba_num_heads": 4, "mamba_head_dim": 4, "n_groups": 2, "chunk_size": 4, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "moe_intermediate_size": 6, "moe_shared_expert_intermediate_size": 5,
         "hybrid_override_pattern": "M-*"},
        {**SPARSE, "hybrid_override_pattern": ("MEM*E-", "**", "-M"), "layers_block_type": (["mlp", "full_attention"], ["moe"]),
         "num_key_value_heads": (None, 1), "mlp_hidden_act": ("silu",)},
    ),
    "plbart": of_seq2seq("bart", "PLBart"),
    "blenderbot_small": of_seq2seq("bart", "BlenderbotSmall"),
    # the class recognizes padding by its id, and runs only experts 0 and 1 (see test_parity_nllb_moe)
    "nllb_moe": replace(
        of_seq2seq("nllb_moe", "NllbMoe", pad_token_id=0, encoder_sparse_step=0, decoder_sparse_step=0),
        excluded_fields=("encoder_sparse_step", "decoder_sparse_step", "pad_token_id"),
    ),
    "mvp": of_seq2seq("mvp", "Mvp"),
    "bigbird_pegasus": of_seq2seq("bigbird_pegasus", "BigBirdPegasus"),
    "pegasus_x": of_seq2seq("pegasus_x", "PegasusX", block_size=4),
    "imagegpt": of_decoder(
        "imagegpt", "ImageGPT", {"vocab_size": 31, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4},
        {"n_inner": (40,)}, "ImageGPTForCausalImageModeling",
    ),
    "ctrl": of_decoder(
        "ctrl", "CTRL", {"vocab_size": 31, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 40}, {}, "CTRLLMHeadModel"
    ),
    "cohere2_moe": of_decoder(
        "cohere2_moe", "Cohere2Moe",
        {**DECODER_SIZES, "num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4,
         "num_shared_experts": 1, "first_k_dense_replace": 1, "sliding_window": 4, "sliding_window_pattern": 2},
        {**SPARSE, "expert_selection_fn": ("sigmoid",), "shared_expert_combination_strategy": ("sum",),
         "rms_norm_eps": (1e-3,), "prefix_dense_intermediate_size": (20,), "num_shared_experts": (0, 2),
         "prefix_dense_sliding_window_pattern": (2,)},
    ),
    "granitemoe_swa": of_decoder(
        "granitemoe_swa", "GraniteMoeSWA",
        {**DECODER_SIZES, "num_key_value_heads": 2, "num_local_experts": 4, "sliding_window": 4, "attention_multiplier": 0.3},
        {**ROTARY, "layer_rope_theta": ([50.0, 0], [0, 0], [1e4, 50.0]), "shared_intermediate_size": (12,)},
    ),
    "deberta": of_encoder(
        "deberta_v2", "Deberta", {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        {"pos_att_type": ("c2p|p2c", "p2c", ["c2p"], []), "max_relative_positions": (4,), "type_vocab_size": (2,),
         "embedding_size": (12,), "talking_head": (True,), "position_buckets": (4,), "conv_kernel_size": (3,)},
    ),
    "mobilebert": of_encoder(
        "mobilebert", "MobileBert",
        {**ENCODER, "embedding_size": 10, "intra_bottleneck_size": 12, "num_feedforward_networks": 2},
        {"normalization_type": ("layer_norm",), "num_feedforward_networks": (1, 3)}, "ForPreTraining",
        ("prediction_logits", "seq_relationship_logits"),
    ),
    "nystromformer": of_encoder(
        "nystromformer", "Nystromformer", {**ENCODER, "conv_kernel_size": 3}, {"conv_kernel_size": (5,)},
    ),
    "roc_bert": of_encoder(
        "roc_bert", "RoCBert",
        {**ENCODER, "pronunciation_embed_dim": 6, "pronunciation_vocab_size": 9, "shape_embed_dim": 5, "shape_vocab_size": 7},
        {}, further=("input_shape_ids", "input_pronunciation_ids"),
    ),
    "xlm": of_encoder(
        "xlm", "XLM", XLM, {"n_langs": (3,), "asm": (True,), "is_encoder": (False,)}, "WithLMHeadModel", absent=("langs",),
    ),
    "flaubert": of_encoder("xlm", "Flaubert", XLM, {"n_langs": (3,)}, "WithLMHeadModel", absent=("langs",)),
    "xlnet": of_encoder(
        "xlnet", "XLNet", {"vocab_size": 31, "d_model": 24, "n_layer": 2, "n_head": 4, "d_inner": 40},
        {"attn_type": ("uni",), "clamp_len": (3, -1), "d_head": (8,)}, "LMHeadModel",
    ),
    "splinter": of_encoder("splinter", "Splinter", ENCODER, {}, "ForQuestionAnswering", ("start_logits", "end_logits")),
    "jina_embeddings_v3": of_encoder("jina_embeddings_v3", "JinaEmbeddingsV3", ENCODER, ROTARY),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_fields_that_change_results_are_followed_or_refused(
    family: FieldCase, tmp_path: Path
) -> None:
    check_every_field(family, tmp_path)

"""Each field of a published config class that changes results is followed by the spec or refused,
never ignored.

The fields come from transformers' config class. Each is set to other values in the config.json of a
tiny model. If results or weights of the published model change, the spec must give the same results
from the same file or refuse it with an error code.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.config_fields import (
    DECODER_SIZES,
    IDS,
    OUTCOMES,
    ROTARY,
    SHORT_IDS,
    SIZES,
    FieldCase,
    check_every_field,
    iterate_field_changes,
    make_text_inputs,
    run_decoder,
    run_published,
    try_field_value,
)
from support.published_models import Arrays

pytestmark = pytest.mark.parity


def run_bert(model: Any, x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return the results of both heads."""
    made = model(input_ids=x["input_ids"], token_type_ids=x["token_type_ids"], return_dict=True)
    return {n: made[n] for n in ("prediction_logits", "seq_relationship_logits")}


def run_t5(model: Any, x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return the logits of each next token."""
    made = model(
        input_ids=x["source"], decoder_input_ids=x["target"], use_cache=False, return_dict=True
    )
    return {"logits": made.logits}


def pixels(config: Mapping[str, Any]) -> Arrays:
    """Return an image of the configured size."""
    size = config["image_size"]
    drawn = np.random.default_rng(1).standard_normal((1, config["num_channels"], size, size))
    return {"pixel_values": drawn.astype(np.float32).astype(np.float64)}


def noisy_pixels(config: Mapping[str, Any]) -> Arrays:
    """Return an image, and the noise that selects visible patches."""
    count = (config["image_size"] // config["patch_size"]) ** 2
    return {**pixels(config), "noise": np.random.default_rng(2).permutation(count)[None] / count}


FAMILIES = [
    FieldCase(
        "bert", "BertConfig", "BertForPreTraining", {**DECODER_SIZES, "type_vocab_size": 3},
        lambda c: {**make_text_inputs(c), "token_type_ids": SHORT_IDS.repeat(2, 1)[:, :12] % 2}, run_bert,
        {"position_embedding_type": ("relative_key", "relative_key_query")},
    ),
    FieldCase("gpt2", "GPT2Config", "GPT2LMHeadModel",
           {"vocab_size": 31, "n_positions": 20, "n_embd": 32, "n_layer": 3, "n_head": 4}, make_text_inputs, run_decoder),
    FieldCase("llama", "LlamaConfig", "LlamaForCausalLM", DECODER_SIZES, make_text_inputs, run_decoder, ROTARY),
    FieldCase("mistral", "MistralConfig", "MistralForCausalLM", {**DECODER_SIZES, "num_key_value_heads": 2, "head_dim": 8},
           make_text_inputs, run_decoder, {**ROTARY, "sliding_window": (3, None)}),
    FieldCase("mixtral", "MixtralConfig", "MixtralForCausalLM",
           {**DECODER_SIZES, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4}, make_text_inputs, run_decoder,
           {**ROTARY, "sliding_window": (3, None), "num_experts_per_tok": (1, 3)}),
    FieldCase("bloom", "BloomConfig", "BloomForCausalLM",
           {"vocab_size": 31, "hidden_size": 24, "n_layer": 2, "n_head": 6}, make_text_inputs, run_decoder),
    FieldCase(
        "t5", "T5Config", "T5ForConditionalGeneration",
        {"vocab_size": 31, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3,
         "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12},
        lambda c: {"source": IDS, "source_keep": np.ones(IDS.shape, bool), "target": SHORT_IDS,
                   "target_keep": np.ones(SHORT_IDS.shape, bool)},
        run_t5, {"feed_forward_proj": ("gated-gelu", "gated-silu", "gelu", "gated-relu")},
    ),
    FieldCase("vit", "ViTConfig", "ViTForImageClassification",
           {**SIZES, "image_size": 12, "patch_size": 3, "num_channels": 2, "id2label": {"0": "a", "1": "b"}}, pixels,
           lambda m, x: {"logits": m(x["pixel_values"], return_dict=True).logits}, {"id2label": (None,)}),
    FieldCase(
        "vit_mae", "ViTMAEConfig", "ViTMAEForPreTraining",
        {**SIZES, "image_size": 12, "patch_size": 3, "num_channels": 2, "decoder_hidden_size": 16,
         "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 24},
        noisy_pixels, lambda m, x: {"patches": m(x["pixel_values"], noise=x["noise"], return_dict=True).logits},
    ),
    FieldCase("mamba", "MambaConfig", "MambaForCausalLM",
           {"vocab_size": 31, "hidden_size": 20, "state_size": 4, "num_hidden_layers": 2, "conv_kernel": 3,
            "time_step_rank": 3}, make_text_inputs, run_decoder,
           {"time_step_rank": (5,), "expand": (1, 3), "conv_kernel": (4,), "state_size": (7,)}),
    FieldCase("swin", "SwinConfig", "SwinForImageClassification",
           {"image_size": 16, "patch_size": 2, "num_channels": 2, "embed_dim": 8, "depths": [2, 2],
            "num_heads": [2, 4], "window_size": 3, "id2label": {"0": "a", "1": "b"}}, pixels,
           lambda m, x: {"logits": m(x["pixel_values"], return_dict=True).logits},
           {"id2label": (None,), "depths": ([1, 3],), "num_heads": ([4, 1],), "window_size": (2, 4, 8)}),
    FieldCase("convnext", "ConvNextConfig", "ConvNextForImageClassification",
           {"image_size": 16, "patch_size": 2, "num_channels": 2, "hidden_sizes": [6, 8], "depths": [2, 1],
            "num_stages": 2, "id2label": {"0": "a", "1": "b"}}, pixels,
           lambda m, x: {"logits": m(x["pixel_values"], return_dict=True).logits},
           {"id2label": (None,), "depths": ([1, 3],), "hidden_sizes": ([8, 4],), "layer_scale_init_value": (0.0, 0.5)}),
    FieldCase("rwkv", "RwkvConfig", "RwkvForCausalLM",
           {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 40,
            "attention_hidden_size": 24, "context_length": 16},
           make_text_inputs, run_decoder, {"rescale_every": (1, 2, 0, -2), "num_hidden_layers": (7,)}),
]  # fmt: skip
EXPERTS = {
    **DECODER_SIZES,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
OLMOE = {key: value for key, value in EXPERTS.items() if key != "head_dim"}
LATENT = {
    **DECODER_SIZES, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 6, "n_group": 4, "topk_group": 2, "num_key_value_heads": 4,
}  # fmt: skip
SPARSE: Mapping[str, tuple[Any, ...]] = ROTARY | {
    "num_experts_per_tok": (1, 3), "first_k_dense_replace": (0, 2), "q_lora_rank": (None,), "topk_group": (1, 4),
    "topk_method": ("group_limited_greedy",), "n_group": (2, None), "sliding_window": (3, None),
    "head_dim": (6, 7, 16), "attention_multiplier": (None,), "mlp_only_layers": ([1], None), "decoder_sparse_step": (2,), "n_shared_experts": (2,),
}  # fmt: skip
FAMILIES_OF_EXPERTS = [
    FieldCase("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", {**EXPERTS, "moe_intermediate_size": 24},
           make_text_inputs, run_decoder, SPARSE),
    FieldCase("qwen2_moe", "Qwen2MoeConfig", "Qwen2MoeForCausalLM",
           {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20}, make_text_inputs, run_decoder, SPARSE),
    FieldCase("olmoe", "OlmoeConfig", "OlmoeForCausalLM", OLMOE, make_text_inputs, run_decoder, SPARSE),
    FieldCase("granitemoe", "GraniteMoeConfig", "GraniteMoeForCausalLM", OLMOE, make_text_inputs, run_decoder, SPARSE),
    FieldCase("glm4_moe", "Glm4MoeConfig", "Glm4MoeForCausalLM", LATENT | {"head_dim": 8}, make_text_inputs, run_decoder, SPARSE),
    FieldCase("gpt_oss", "GptOssConfig", "GptOssForCausalLM", EXPERTS, make_text_inputs, run_decoder, SPARSE),
    FieldCase("deepseek_v2", "DeepseekV2Config", "DeepseekV2ForCausalLM", LATENT, make_text_inputs, run_decoder, SPARSE),
    FieldCase("deepseek_v3", "DeepseekV3Config", "DeepseekV3ForCausalLM", LATENT, make_text_inputs, run_decoder, SPARSE),
]  # fmt: skip
EVERY = [*FAMILIES, *(pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES_OF_EXPERTS)]


def named(value: object) -> str:
    """Name a test case after its spec."""
    return value.spec if isinstance(value, FieldCase) else ""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Use one thread, since the models are tiny, and no progress bars or messages."""
    threads, level = torch.get_num_threads(), transformers.logging.get_verbosity()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(level)
    transformers.logging.enable_progress_bar()


@pytest.mark.parametrize("family", EVERY, ids=named)
def test_fields_that_change_results_are_followed_or_refused(
    family: FieldCase, tmp_path: Path
) -> None:
    check_every_field(family, tmp_path)


PAIRS = 25


@pytest.mark.parametrize("family", EVERY, ids=named)
def test_two_fields_at_once_are_followed_or_refused(family: FieldCase, tmp_path: Path) -> None:
    """Two fields with other values than their defaults, of the fields that matter alone."""
    model_type = getattr(transformers, family.config).model_type
    base = {"model_type": model_type, **family.tiny}
    usual = run_published(family, base, tmp_path)
    several = [
        (n, v)
        for n, v in iterate_field_changes(family)
        if n not in family.tiny or n in family.other_values
    ]
    rng, found = random.Random(0), Counter[str]()
    while found.total() < PAIRS:
        (a, x), (b, y) = rng.choice(several), rng.choice(several)
        if a == b:
            continue
        settings = {**base, a: x, b: y}
        outcome = try_field_value(family, settings, usual, tmp_path)
        found[outcome or f"{a}: {x}, {b}: {y}"] += 1
    assert not sorted(found.keys() - OUTCOMES)

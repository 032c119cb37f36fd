"""Smallest configurations of transformers' encoders and causal LMs, for
`support.hf_output_recorder`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from support.decoder_cases import make_decoder_case, make_head_case
from support.hf_cases import TEXT_SAMPLES, VOCAB, ModelCase
from support.padded_batches import (
    Arrays,
    BoundingBoxes,
    FixedValues,
    PaddingMask,
    Samples,
    TokenIds,
    make_samples,
)


@dataclass(frozen=True, kw_only=True)
class RecordedCase:
    """A case, config values besides its config.json, and computed tensors.

    `computed` lists parts of the names of tensors that no parameter of the spec reads, such as
    sinusoidal tables; they keep the values of the class.
    """

    case: ModelCase
    sets: Mapping[str, Any] = field(default_factory=dict)
    computed: str = ""


ENCODER_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 20,
    "num_labels": 3,
}
SEGMENT_SAMPLES = make_samples(
    {
        "input_ids": TokenIds("seq", VOCAB),
        "attention_mask": PaddingMask("seq"),
        "token_type_ids": TokenIds("seq", 2),
    },
    {"seq": (7, 1, 4)},
)
LAYOUT_SAMPLES = make_samples(
    {**SEGMENT_SAMPLES.fields, "bbox": BoundingBoxes("seq", 50)}, {"seq": (7, 1, 4)}
)
TOKEN_LOGITS = {"logits": "seq"}
CLASS_LOGITS = {"logits": ""}
SPAN_LOGITS = {"start_logits": "seq", "end_logits": "seq"}


def make_encoder_case(
    model: str, config: str, results: Mapping[str, str], **more: Any
) -> RecordedCase:
    """Return the case of a text encoder, padded on the right."""
    typed = more.pop("typed", True)
    if results is SPAN_LOGITS:  # a span has a start and an end
        more["num_labels"] = 2
    case = ModelCase(
        config=f"{config}Config",
        model=model,
        tiny={**ENCODER_SIZES, **more},
        results=results,
        samples=SEGMENT_SAMPLES if typed else TEXT_SAMPLES,
    )
    return RecordedCase(case=case)


class GlobalAttentionCase(ModelCase):
    """A class whose global attention mask contains integers instead of booleans."""

    def run_published(
        self, hf_model: Any, x: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        outputs = hf_model(**{name: value.long() for name, value in x.items()})
        return {name: outputs[name] for name in self.results}


class MultipleChoiceCase(ModelCase):
    """A class that selects one of several sequences by their last positions."""

    def run_published(
        self, hf_model: Any, x: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        outputs = hf_model(input_ids=x["input_ids"], mc_token_ids=x["mc_token_ids"])
        return {"lm_logits": outputs.logits, "mc_logits": outputs.mc_logits}


def sample_choices() -> Samples:
    """Return three questions with two sequences of five tokens each."""
    rng = np.random.default_rng(0)
    rows: list[Arrays] = [
        {
            "input_ids": rng.integers(0, VOCAB, (2, 5)),
            "attention_mask": np.ones((2, 5), bool),
            "mc_token_ids": rng.integers(0, 5, 2),
        }
        for _ in range(3)
    ]
    fields = {name: FixedValues(array.shape) for name, array in rows[0].items()}
    return Samples(fields, tuple(rows), ({}, {}, {}), seed=0)


def sample_equal_lengths() -> Samples:
    """Return three sequences of seven tokens, for a class without a padding mask."""
    rng = np.random.default_rng(0)
    rows: list[Arrays] = [
        {"input_ids": rng.integers(0, VOCAB, 7), "token_type_ids": rng.integers(0, 2, 7)}
        for _ in range(3)
    ]
    fields = {name: FixedValues(array.shape) for name, array in rows[0].items()}
    return Samples(fields, tuple(rows), ({}, {}, {}), seed=0)


ENCODERS = {
    "bert": make_encoder_case("BertForMaskedLM", "Bert", TOKEN_LOGITS),
    "bert, classes": make_encoder_case("BertForSequenceClassification", "Bert", CLASS_LOGITS),
    "roberta": make_encoder_case("RobertaForSequenceClassification", "Roberta", CLASS_LOGITS),
    "xlm_roberta": make_encoder_case(
        "XLMRobertaForTokenClassification", "XLMRoberta", TOKEN_LOGITS
    ),
    "camembert": make_encoder_case("CamembertForMaskedLM", "Camembert", TOKEN_LOGITS),
    "roformer": make_encoder_case("RoFormerForMaskedLM", "RoFormer", TOKEN_LOGITS),
    "longformer": RecordedCase(
        case=GlobalAttentionCase(
            config="LongformerConfig",
            model="LongformerModel",
            tiny={
                **ENCODER_SIZES,
                "attention_window": [4, 8],
                "pad_token_id": VOCAB - 1,
                "sep_token_id": 2,
                "max_position_embeddings": 60,
            },
            samples=make_samples(
                {
                    "input_ids": TokenIds("seq", VOCAB - 1),
                    "attention_mask": PaddingMask("seq"),
                    "global_attention_mask": TokenIds("seq", 2),
                    "token_type_ids": TokenIds("seq", 2),
                },
                {"seq": (9, 1, 6)},
            ),
            results={"last_hidden_state": "seq", "pooler_output": ""},
        )
    ),
    "esm": make_encoder_case(
        "EsmForMaskedLM",
        "Esm",
        TOKEN_LOGITS,
        typed=False,
        position_embedding_type="rotary",
        token_dropout=True,
        mask_token_id=15,
        pad_token_id=1,
    ),
    "eurobert": make_encoder_case(
        "EuroBertForMaskedLM", "EuroBert", TOKEN_LOGITS, typed=False, pad_token_id=1
    ),
    "megatron-bert": make_encoder_case("MegatronBertForMaskedLM", "MegatronBert", TOKEN_LOGITS),
    "data2vec-text": make_encoder_case("Data2VecTextForMaskedLM", "Data2VecText", TOKEN_LOGITS),
    "roberta-prelayernorm": make_encoder_case(
        "RobertaPreLayerNormForMaskedLM", "RobertaPreLayerNorm", TOKEN_LOGITS
    ),
    "xlm-roberta-xl": make_encoder_case(
        "XLMRobertaXLForMaskedLM", "XLMRobertaXL", TOKEN_LOGITS, type_vocab_size=2
    ),
    "squeezebert": make_encoder_case(
        "SqueezeBertForMaskedLM",
        "SqueezeBert",
        TOKEN_LOGITS,
        embedding_size=16,
        q_groups=2,
        output_groups=2,
    ),
    "convbert": make_encoder_case(
        "ConvBertForMaskedLM", "ConvBert", TOKEN_LOGITS, embedding_size=12, conv_kernel_size=3
    ),
    "rembert": make_encoder_case(
        "RemBertForMaskedLM",
        "RemBert",
        TOKEN_LOGITS,
        input_embedding_size=6,
        output_embedding_size=10,
    ),
    "fnet": RecordedCase(
        case=ModelCase(
            config="FNetConfig",
            model="FNetForMaskedLM",
            tiny=ENCODER_SIZES,
            samples=sample_equal_lengths(),
            results=CLASS_LOGITS,
        )
    ),
    "bert-generation": make_encoder_case(
        "BertGenerationDecoder", "BertGeneration", TOKEN_LOGITS, typed=False, is_decoder=True
    ),
    "dpr": make_encoder_case("DPRContextEncoder", "DPR", {"pooler_output": ""}, projection_dim=5),
    "nomic_bert": make_encoder_case("NomicBertForMaskedLM", "NomicBert", TOKEN_LOGITS),
    "gte": make_encoder_case("GteForMaskedLM", "Gte", TOKEN_LOGITS, type_vocab_size=2),
    "ernie": RecordedCase(
        case=ModelCase(
            config="ErnieConfig",
            model="ErnieForTokenClassification",
            tiny={**ENCODER_SIZES, "use_task_id": True},
            samples=make_samples(
                {**SEGMENT_SAMPLES.fields, "task_type_ids": TokenIds("seq", 3)}, {"seq": (7, 1, 4)}
            ),
        )
    ),
    "layoutlm": RecordedCase(
        case=ModelCase(
            config="LayoutLMConfig",
            model="LayoutLMForTokenClassification",
            tiny={**ENCODER_SIZES, "max_2d_position_embeddings": 50},
            samples=LAYOUT_SAMPLES,
        )
    ),
    "layoutlmv3": RecordedCase(
        case=ModelCase(
            config="LayoutLMv3Config",
            model="LayoutLMv3ForTokenClassification",
            tiny={
                **ENCODER_SIZES,
                "coordinate_size": 2,
                "shape_size": 4,
                "input_size": 8,
                "patch_size": 4,
                "num_channels": 1,
            },
            samples=make_samples(
                {**LAYOUT_SAMPLES.fields, "pixel_values": FixedValues((1, 8, 8))},
                {"seq": (7, 1, 4)},
            ),
        )
    ),
    "lilt": RecordedCase(
        case=ModelCase(
            config="LiltConfig",
            model="LiltForTokenClassification",
            tiny={
                **ENCODER_SIZES,
                "num_hidden_layers": 1,
                "channel_shrink_ratio": 2,
                "hidden_size": 24,
                "max_2d_position_embeddings": 50,
            },
            samples=LAYOUT_SAMPLES,
        )
    ),
    "nystromformer": make_encoder_case(
        "NystromformerForMaskedLM", "Nystromformer", TOKEN_LOGITS, conv_kernel_size=5
    ),
    "big_bird": make_encoder_case(
        "BigBirdForSequenceClassification", "BigBird", CLASS_LOGITS, sep_token_id=30
    ),
    "electra": make_encoder_case(
        "ElectraForPreTraining", "Electra", TOKEN_LOGITS, embedding_size=12
    ),
    "albert": make_encoder_case(
        "AlbertForQuestionAnswering", "Albert", SPAN_LOGITS, embedding_size=12
    ),
    "mpnet": make_encoder_case("MPNetForMaskedLM", "MPNet", TOKEN_LOGITS, typed=False),
    "distilbert": make_encoder_case(
        "DistilBertForTokenClassification",
        "DistilBert",
        TOKEN_LOGITS,
        typed=False,
        dim=16,
        n_layers=2,
        n_heads=2,
        hidden_dim=20,
    ),
    "modernbert": make_encoder_case(
        "ModernBertForMaskedLM",
        "ModernBert",
        TOKEN_LOGITS,
        typed=False,
        local_attention=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    "xlnet": RecordedCase(
        case=ModelCase(
            config="XLNetConfig",
            model="XLNetForTokenClassification",
            samples=SEGMENT_SAMPLES,
            sides=("left", "right"),
            tiny={
                "vocab_size": VOCAB,
                "d_model": 16,
                "n_layer": 2,
                "n_head": 2,
                "d_inner": 20,
                "num_labels": 3,
            },
        )
    ),
    "deberta": make_encoder_case(
        "DebertaForMaskedLM",
        "Deberta",
        TOKEN_LOGITS,
        relative_attention=True,
        pos_att_type="p2c|c2p",
        type_vocab_size=2,
    ),
    "mobilebert": make_encoder_case(
        "MobileBertForQuestionAnswering",
        "MobileBert",
        SPAN_LOGITS,
        embedding_size=6,
        intra_bottleneck_size=8,
        num_feedforward_networks=2,
    ),
    "jina_embeddings_v3": make_encoder_case(
        "JinaEmbeddingsV3ForMaskedLM", "JinaEmbeddingsV3", TOKEN_LOGITS, type_vocab_size=2
    ),
    "roc_bert": RecordedCase(
        case=ModelCase(
            config="RoCBertConfig",
            model="RoCBertForTokenClassification",
            tiny={
                **ENCODER_SIZES,
                "pronunciation_embed_dim": 6,
                "pronunciation_vocab_size": 9,
                "shape_embed_dim": 5,
                "shape_vocab_size": 7,
            },
            samples=make_samples(
                {
                    **SEGMENT_SAMPLES.fields,
                    "input_shape_ids": TokenIds("seq", 7),
                    "input_pronunciation_ids": TokenIds("seq", 9),
                },
                {"seq": (7, 1, 4)},
            ),
        )
    ),
    "deberta_v2": make_encoder_case(
        "DebertaV2ForSequenceClassification",
        "DebertaV2",
        CLASS_LOGITS,
        relative_attention=True,
        pos_att_type="p2c|c2p",
        position_buckets=4,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        type_vocab_size=0,
        conv_kernel_size=3,
    ),
}
DECODER_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
EXPERT_SIZES: dict[str, Any] = {**DECODER_SIZES, "num_experts_per_tok": 2}
MLA_SIZES: dict[str, Any] = {
    **EXPERT_SIZES,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 12,
    "kv_lora_rank": 8,
    "q_lora_rank": 6,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_group": 2,
    "topk_group": 1,
}


def make_causal_lm_case(family: str, **more: Any) -> RecordedCase:
    """Return the case of a causal LM, padded on either side."""
    return RecordedCase(case=make_decoder_case(family, **{**DECODER_SIZES, **more}))


def make_recorded_case(case: ModelCase) -> RecordedCase:
    """Return a recorded case without further config values."""
    return RecordedCase(case=case)


MAMBA_SIZES = {
    **DECODER_SIZES, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 3, "mamba_expand": 2,
    "mamba_chunk_size": 4,
}  # fmt: skip


def make_hybrid_case(
    family: str, tiny: dict[str, Any], *, position_ids: bool = True, **more: Any
) -> RecordedCase:
    """Return the case of a causal LM with state space layers, whose scan transformers computes in
    float32.
    """
    case = make_decoder_case(family, **{**tiny, **more})
    return RecordedCase(case=replace(case, float32_only=True, position_ids=position_ids))


def replace_config_class(case: RecordedCase, config: str) -> RecordedCase:
    """Return the case of the text model of a multimodal family, whose config class has another
    name.
    """
    return replace(case, case=replace(case.case, config=config))


def pad_right_only(case: RecordedCase) -> RecordedCase:
    """Return a case that is padded on the right only: the recurrence of transformers reads left
    padding.
    """
    return replace(case, case=replace(case.case, sides=("right",)))


GPT_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20,
}  # fmt: skip
DECODERS = {
    "llama": make_causal_lm_case("Llama"),
    "llama, classes": make_recorded_case(
        make_head_case(make_decoder_case("Llama", **DECODER_SIZES), "ForTokenClassification", TOKEN_LOGITS)
    ),
    "mistral": make_causal_lm_case("Mistral", sliding_window=3),
    "qwen2": make_causal_lm_case("Qwen2"),
    "qwen3": make_causal_lm_case("Qwen3", head_dim=12),
    "gemma": make_causal_lm_case("Gemma", head_dim=8),
    "gemma2": make_causal_lm_case("Gemma2", eager=True, head_dim=8, sliding_window=3),
    "gemma3_text": make_causal_lm_case("Gemma3Text", head_dim=8, sliding_window=3),
    "granite": make_causal_lm_case("Granite", embedding_multiplier=3.0, residual_multiplier=0.3),
    "smollm3": make_causal_lm_case("SmolLM3", no_rope_layers=[0, 1]),
    "olmo": make_causal_lm_case("Olmo"),
    "olmo2": make_causal_lm_case("Olmo2"),
    "gpt_neox": make_causal_lm_case("GPTNeoX"),
    "opt": make_causal_lm_case("OPT", ffn_dim=20),
    "phi": make_causal_lm_case("Phi"),
    "phi3": make_causal_lm_case("Phi3"),
    "starcoder2": make_causal_lm_case("Starcoder2"),
    "nemotron": make_causal_lm_case("Nemotron", head_dim=8),
    "stablelm": make_causal_lm_case("StableLm"),
    "stablelm, norms": make_causal_lm_case("StableLm", qk_layernorm=True),
    "cohere": make_causal_lm_case("Cohere"),
    "cohere, norms": make_causal_lm_case("Cohere", use_qk_norm=True),
    "cohere2": make_causal_lm_case("Cohere2", sliding_window=3),
    "glm4": make_causal_lm_case("Glm4", head_dim=8),
    "glm": make_causal_lm_case("Glm", head_dim=8),
    "arcee": make_causal_lm_case("Arcee"),
    "seed_oss": make_causal_lm_case("SeedOss", head_dim=8),
    "helium": make_causal_lm_case("Helium", head_dim=8),
    "olmo3": make_causal_lm_case("Olmo3", sliding_window=3),
    "exaone4": make_causal_lm_case("Exaone4", sliding_window=3),
    "ministral": make_causal_lm_case("Ministral", sliding_window=3, head_dim=8),
    "ministral3": make_causal_lm_case("Ministral3", head_dim=8),
    "cwm": make_causal_lm_case("Cwm", sliding_window=3, head_dim=8),
    "hyperclovax": make_causal_lm_case("HyperCLOVAX", residual_multiplier=0.4),
    "jais2": make_causal_lm_case("Jais2", head_dim=8),
    "flex_olmo": make_causal_lm_case("FlexOlmo", **{**EXPERT_SIZES, "num_experts": 4}),
    "minimax_m2": make_causal_lm_case("MiniMaxM2", **{**EXPERT_SIZES, "num_local_experts": 4, "head_dim": 8}),
    "ernie4_5": make_causal_lm_case("Ernie4_5", head_dim=8),
    "gptj": make_recorded_case(
        ModelCase(
            config="GPTJConfig",
            model="GPTJForCausalLM",
            sides=("left", "right"),
            position_ids=True,
            tiny={"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4},
        )
    ),
    "codegen": make_recorded_case(
        ModelCase(
            config="CodeGenConfig",
            model="CodeGenForCausalLM",
            sides=("left", "right"),
            position_ids=True,
            tiny={**GPT_SIZES, "n_head": 4, "rotary_dim": 4},
        )
    ),
    "imagegpt": make_recorded_case(
        ModelCase(
            config="ImageGPTConfig",
            model="ImageGPTForCausalImageModeling",
            sides=("left", "right"),
            position_ids=True,
            tiny={"vocab_size": VOCAB, "n_positions": 40, "n_embd": 16, "n_layer": 2, "n_head": 2},
        )
    ),
    "openai-gpt": make_recorded_case(
        ModelCase(
            config="OpenAIGPTConfig",
            model="OpenAIGPTLMHeadModel",
            sides=("left", "right"),
            position_ids=True,
            tiny=GPT_SIZES,
        )
    ),
    "gpt2, choices": make_recorded_case(
        MultipleChoiceCase(
            config="GPT2Config",
            model="GPT2DoubleHeadsModel",
            tiny=GPT_SIZES,
            samples=sample_choices(),
            results={"lm_logits": "", "mc_logits": ""},
        )
    ),
    "gpt2": make_recorded_case(
        ModelCase(
            config="GPT2Config",
            model="GPT2LMHeadModel",
            sides=("left", "right"),
            position_ids=True,
            tiny=GPT_SIZES,
        )
    ),
    "gpt_neo": make_recorded_case(
        ModelCase(
            config="GPTNeoConfig",
            model="GPTNeoForCausalLM",
            sides=("left", "right"),
            position_ids=True,
            tiny={
                "vocab_size": VOCAB,
                "hidden_size": 16,
                "num_layers": 2,
                "num_heads": 2,
                "max_position_embeddings": 20,
                "attention_types": [[["global", "local"], 1]],
                "window_size": 3,
            },
        )
    ),
    "bloom": make_recorded_case(
        ModelCase(
            config="BloomConfig",
            model="BloomForCausalLM",
            sides=("left", "right"),
            tiny={"vocab_size": VOCAB, "hidden_size": 18, "n_layer": 2, "n_head": 3},
        )
    ),
    "falcon": make_recorded_case(
        ModelCase(
            config="FalconConfig",
            model="FalconForCausalLM",
            sides=("left", "right"),
            position_ids=True,
            tiny={**ENCODER_SIZES, "new_decoder_architecture": True, "num_kv_heads": 1},
        )
    ),
    "mpt": make_recorded_case(
        ModelCase(
            config="MptConfig",
            model="MptForCausalLM",
            sides=("left", "right"),
            eager=True,
            tiny={"vocab_size": VOCAB, "d_model": 16, "n_layers": 2, "n_heads": 2},
        )
    ),
    "mixtral": make_causal_lm_case("Mixtral", **{**EXPERT_SIZES, "num_local_experts": 4}),
    "qwen3_moe": make_causal_lm_case(
        "Qwen3Moe",
        **{**EXPERT_SIZES, "num_experts": 4, "moe_intermediate_size": 12, "head_dim": 8},
    ),
    "gpt_oss": make_causal_lm_case(
        "GptOss",
        eager=True,
        **{**EXPERT_SIZES, "num_local_experts": 4, "head_dim": 8, "sliding_window": 3},
    ),
    "qwen2_moe": make_causal_lm_case(
        "Qwen2Moe",
        **{**EXPERT_SIZES, "num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10},
    ),
    "olmoe": make_causal_lm_case("Olmoe", **{**EXPERT_SIZES, "num_experts": 4}),
    "granitemoe": make_causal_lm_case("GraniteMoe", **{**EXPERT_SIZES, "num_local_experts": 4}),
    "dbrx": RecordedCase(
        case=ModelCase(
            config="DbrxConfig", model="DbrxForCausalLM", sides=("left", "right"), position_ids=True,
            tiny={
                "vocab_size": VOCAB, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 64, "eos_token_id": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                "attn_config": {"kv_n_heads": 1, "rope_theta": 500.0, "clip_qkv": 2},
                "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 4, "moe_top_k": 2},
            },
        )
    ),
    "glm4_moe": make_causal_lm_case("Glm4Moe", **{**MLA_SIZES, "head_dim": 8}),
    "deepseek_v2": make_causal_lm_case("DeepseekV2", **{**MLA_SIZES, "topk_method": "group_limited_greedy"}),
    "deepseek_v3": make_causal_lm_case("DeepseekV3", **MLA_SIZES),
    "mistral4": make_causal_lm_case("Mistral4", **{**MLA_SIZES, "first_k_dense_replace": 0}),
    "glm4_moe_lite": make_hybrid_case("Glm4MoeLite", MLA_SIZES),
    "exaone": replace_config_class(make_causal_lm_case("Llama"), "ExaoneConfig"),
    "nanochat": make_causal_lm_case("NanoChat"),
    "jetmoe": make_causal_lm_case("JetMoe", **{**EXPERT_SIZES, "kv_channels": 4, "num_local_experts": 4}),
    "minicpm3": make_causal_lm_case("MiniCPM3", **{**MLA_SIZES, "dim_model_base": 8}),
    "afmoe": make_hybrid_case(
        "Afmoe", EXPERT_SIZES, head_dim=8, num_experts=4, moe_intermediate_size=6, num_shared_experts=1, sliding_window=3,
        global_attn_every_n_layers=2,
    ),
    "granitemoe_swa": make_causal_lm_case(
        "GraniteMoeSWA", eager=True, **{**EXPERT_SIZES, "num_local_experts": 4, "sliding_window": 3, "layer_rope_theta": [50.0, 0]},
    ),
    "cohere2_moe": make_hybrid_case(
        "Cohere2Moe", EXPERT_SIZES, head_dim=8, num_experts=4, num_shared_experts=1, first_k_dense_replace=1, sliding_window=3,
        sliding_window_pattern=2,
    ),
    "mamba2": make_hybrid_case(
        "Mamba2", {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 4,
                   "state_size": 3, "n_groups": 2, "expand": 2, "chunk_size": 4}, position_ids=False,
    ),
    "bamba": make_hybrid_case("Bamba", MAMBA_SIZES, attn_layer_indices=[1]),
    "granitemoehybrid": make_hybrid_case(
        "GraniteMoeHybrid", MAMBA_SIZES, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=10,
        layer_types=["linear_attention", "full_attention"],
    ),
    "falcon_h1": make_hybrid_case("FalconH1", MAMBA_SIZES, mamba_d_ssm=32, ssm_multipliers=[0.8, 1.1, 0.9, 1.2, 0.7]),
    "jamba": make_hybrid_case(
        "Jamba", DECODER_SIZES, position_ids=False, num_experts=4, mamba_d_state=3, mamba_dt_rank=2, attn_layer_period=2,
        attn_layer_offset=1, use_mamba_kernels=False,
    ),
    "qwen3_next": make_hybrid_case(
        "Qwen3Next", DECODER_SIZES, head_dim=8, linear_key_head_dim=3, linear_value_head_dim=4, linear_num_key_heads=1,
        linear_num_value_heads=2, moe_intermediate_size=6, shared_expert_intermediate_size=5, num_experts=4,
        num_experts_per_tok=2, layer_types=["linear_attention", "full_attention"],
    ),
    "qwen3_5_text": replace_config_class(make_hybrid_case(
        "Qwen3_5", DECODER_SIZES, head_dim=8, linear_key_head_dim=3, linear_value_head_dim=4, linear_num_key_heads=1,
        linear_num_value_heads=2, layer_types=["linear_attention", "full_attention"],
    ), "Qwen3_5TextConfig"),
    "llama4_text": replace_config_class(make_hybrid_case(
        "Llama4", DECODER_SIZES, head_dim=8, intermediate_size_mlp=12, attention_chunk_size=4, no_rope_layer_interval=2,
        num_local_experts=4, floor_scale=3, attn_temperature_tuning=False,
    ), "Llama4TextConfig"),
    "nemotron_h": make_hybrid_case(
        "NemotronH", {k: v for k, v in DECODER_SIZES.items() if k != "num_hidden_layers"}, position_ids=False, head_dim=8,
        ssm_state_size=3, mamba_num_heads=2, mamba_head_dim=4, n_groups=1, chunk_size=4, n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=6, moe_shared_expert_intermediate_size=5,
    ),
    "recurrent_gemma": pad_right_only(make_hybrid_case("RecurrentGemma", DECODER_SIZES, num_hidden_layers=3, attention_window_size=3)),
    "phimoe": make_causal_lm_case("Phimoe", **{**EXPERT_SIZES, "num_local_experts": 4, "router_jitter_noise": 0.3}),
    "gemma3n_text": make_causal_lm_case(
        "Gemma3nText", head_dim=8, num_hidden_layers=3, num_kv_shared_layers=1, sliding_window=3, laurel_rank=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=4, altup_num_inputs=2, activation_sparsity_pattern=[0.8, 0.0, 0.0],
    ),
    "gemma4_text": make_causal_lm_case(
        "Gemma4Text", head_dim=8, global_head_dim=12, sliding_window=3, vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=4, layer_types=["sliding_attention", "full_attention"],
    ),
    "bitnet": make_causal_lm_case("BitNet"),
    "apertus": make_causal_lm_case("Apertus"),
    "diffllama": make_causal_lm_case("DiffLlama", num_attention_heads=4, num_key_value_heads=2),
    "hunyuan_v1_moe": make_causal_lm_case("HunYuanMoEV1", head_dim=8, num_experts=3, moe_topk=2),
    "hunyuan_v1_dense": make_causal_lm_case("HunYuanDenseV1", head_dim=8),
    "dots1": make_causal_lm_case("Dots1", **{**MLA_SIZES, "head_dim": 8}),
    "modernbert_decoder": make_causal_lm_case("ModernBertDecoder", local_attention=6),
    "gpt_bigcode": make_recorded_case(
        ModelCase(
            config="GPTBigCodeConfig",
            model="GPTBigCodeForCausalLM",
            sides=("left", "right"),
            position_ids=True,
            tiny=GPT_SIZES,
        )
    ),
    "xglm": make_recorded_case(
        ModelCase(
            config="XGLMConfig",
            model="XGLMForCausalLM",
            sides=("left", "right"),
            position_ids=True,
            float32_only=True,
            tiny={"vocab_size": VOCAB, "d_model": 16, "num_layers": 2, "attention_heads": 2, "ffn_dim": 20},
        )
    ),
    "minimax": replace(
        make_causal_lm_case("MiniMax", **{**EXPERT_SIZES, "num_local_experts": 4, "block_size": 4}), computed="slope_rate _decay"
    ),
    "lfm2_moe": make_hybrid_case(
        "Lfm2Moe", EXPERT_SIZES, layer_types=["conv", "full_attention"], num_experts=4, num_dense_layers=1,
        moe_intermediate_size=6,
    ),
    "ernie4_5_moe": make_hybrid_case(
        "Ernie4_5_Moe", DECODER_SIZES, moe_num_experts=4, moe_k=2, moe_intermediate_size=6, moe_num_shared_experts=1,
    ),
    "zamba2": make_hybrid_case(
        "Zamba2", {k: v for k, v in DECODER_SIZES.items() if k != "num_hidden_layers"}, mamba_d_state=3, n_mamba_heads=2,
        chunk_size=16, adapter_rank=3, layers_block_type=["linear_attention", "hybrid"],
    ),
    "biogpt": make_recorded_case(
        ModelCase(
            config="BioGptConfig",
            model="BioGptForCausalLM",
            sides=("left", "right"),
            position_ids=True,
            tiny=ENCODER_SIZES,
        )
    ),
    "lfm2": make_hybrid_case("Lfm2", DECODER_SIZES, layer_types=["conv", "full_attention"], block_multiple_of=8),
    "mamba": make_recorded_case(
        ModelCase(
            config="MambaConfig",
            model="MambaForCausalLM",
            sides=("left", "right"),
            tiny={"vocab_size": VOCAB, "hidden_size": 12, "state_size": 4, "num_hidden_layers": 2, "use_cache": False},
        )
    ),
    "rwkv": make_recorded_case(
        ModelCase(
            config="RwkvConfig",
            model="RwkvForCausalLM",
            sides=("left", "right"),
            tiny={"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "rescale_every": 0, "use_cache": False},
        )
    ),
}  # fmt: skip

"""What is asked of classes that read or write texts, for `support.keep_answers`: the
smallest checkpoint of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from support.decoders import decoder, headed
from support.families import TEXTS, VOCAB, Case
from support.padded import Arrays, Boxes, Ids, Keep, Numbers, Samples, samples


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A case, what is told beside its config, and the tensors of its file that no weight
    of the spec is made of, by parts of their names: tables of sines, as they come out of the class.
    """

    case: Case
    sets: Mapping[str, Any] = field(default_factory=dict)
    computed: str = ""


SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 20,
    "num_labels": 3,
}
TYPED = samples(
    {
        "input_ids": Ids("seq", VOCAB),
        "attention_mask": Keep("seq"),
        "token_type_ids": Ids("seq", 2),
    },
    {"seq": (7, 1, 4)},
)
LAID_OUT = samples({**TYPED.fields, "bbox": Boxes("seq", 50)}, {"seq": (7, 1, 4)})
WORDS = {"logits": "seq"}
CLASSES = {"logits": ""}
SPANS = {"start_logits": "seq", "end_logits": "seq"}
STATES = {"last_hidden_state": "seq"}


def encoder(model: str, config: str, results: Mapping[str, str], **more: Any) -> Asked:
    """An encoder of texts, padded on the right."""
    typed = more.pop("typed", True)
    if results is SPANS:  # which have two ends
        more["num_labels"] = 2
    case = Case(
        config=f"{config}Config",
        model=model,
        tiny={**SMALL, **more},
        results=results,
        given=TYPED if typed else TEXTS,
    )
    return Asked(case=case)


class Global(Case):
    """A class that is told which rows see all others by numbers, not by yes and no."""

    def published(self, theirs: Any, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = theirs(**{name: value.long() for name, value in x.items()})
        return {name: made[name] for name in self.results}


class Choices(Case):
    """A class that chooses one of several texts by their last rows."""

    def published(self, theirs: Any, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = theirs(input_ids=x["input_ids"], mc_token_ids=x["mc_token_ids"])
        return {"lm_logits": made.logits, "mc_logits": made.mc_logits}


def choices() -> Samples:
    """Three questions, each of two texts of five words."""
    rng = np.random.default_rng(0)
    rows: list[Arrays] = [
        {
            "input_ids": rng.integers(0, VOCAB, (2, 5)),
            "attention_mask": np.ones((2, 5), bool),
            "mc_token_ids": rng.integers(0, 5, 2),
        }
        for _ in range(3)
    ]
    fields = {name: Numbers(array.shape) for name, array in rows[0].items()}
    return Samples(fields, tuple(rows), ({}, {}, {}), seed=0)


def of_one_length() -> Samples:
    """Three sequences of seven tokens, for a class without a padding mask."""
    rng = np.random.default_rng(0)
    rows: list[Arrays] = [
        {"input_ids": rng.integers(0, VOCAB, 7), "token_type_ids": rng.integers(0, 2, 7)}
        for _ in range(3)
    ]
    fields = {name: Numbers(array.shape) for name, array in rows[0].items()}
    return Samples(fields, tuple(rows), ({}, {}, {}), seed=0)


ENCODERS = {
    "bert": encoder("BertForMaskedLM", "Bert", WORDS),
    "bert, classes": encoder("BertForSequenceClassification", "Bert", CLASSES),
    "roberta": encoder("RobertaForSequenceClassification", "Roberta", CLASSES),
    "xlm_roberta": encoder("XLMRobertaForTokenClassification", "XLMRoberta", WORDS),
    "camembert": encoder("CamembertForMaskedLM", "Camembert", WORDS),
    "roformer": encoder("RoFormerForMaskedLM", "RoFormer", WORDS),
    "longformer": Asked(
        case=Global(
            config="LongformerConfig",
            model="LongformerModel",
            tiny={
                **SMALL,
                "attention_window": [4, 8],
                "pad_token_id": VOCAB - 1,
                "sep_token_id": 2,
                "max_position_embeddings": 60,
            },
            given=samples(
                {
                    "input_ids": Ids("seq", VOCAB - 1),
                    "attention_mask": Keep("seq"),
                    "global_attention_mask": Ids("seq", 2),
                    "token_type_ids": Ids("seq", 2),
                },
                {"seq": (9, 1, 6)},
            ),
            results={"last_hidden_state": "seq", "pooler_output": ""},
        )
    ),
    "esm": encoder(
        "EsmForMaskedLM",
        "Esm",
        WORDS,
        typed=False,
        position_embedding_type="rotary",
        token_dropout=True,
        mask_token_id=15,
        pad_token_id=1,
    ),
    "eurobert": encoder("EuroBertForMaskedLM", "EuroBert", WORDS, typed=False, pad_token_id=1),
    "megatron-bert": encoder("MegatronBertForMaskedLM", "MegatronBert", WORDS),
    "data2vec-text": encoder("Data2VecTextForMaskedLM", "Data2VecText", WORDS),
    "roberta-prelayernorm": encoder("RobertaPreLayerNormForMaskedLM", "RobertaPreLayerNorm", WORDS),
    "xlm-roberta-xl": encoder("XLMRobertaXLForMaskedLM", "XLMRobertaXL", WORDS, type_vocab_size=2),
    "squeezebert": encoder(
        "SqueezeBertForMaskedLM",
        "SqueezeBert",
        WORDS,
        embedding_size=16,
        q_groups=2,
        output_groups=2,
    ),
    "convbert": encoder(
        "ConvBertForMaskedLM", "ConvBert", WORDS, embedding_size=12, conv_kernel_size=3
    ),
    "rembert": encoder(
        "RemBertForMaskedLM", "RemBert", WORDS, input_embedding_size=6, output_embedding_size=10
    ),
    "fnet": Asked(
        case=Case(
            config="FNetConfig",
            model="FNetForMaskedLM",
            tiny=SMALL,
            given=of_one_length(),
            results=CLASSES,
        )
    ),
    "bert-generation": encoder(
        "BertGenerationDecoder", "BertGeneration", WORDS, typed=False, is_decoder=True
    ),
    "dpr": encoder("DPRContextEncoder", "DPR", {"pooler_output": ""}, projection_dim=5),
    "nomic_bert": encoder("NomicBertForMaskedLM", "NomicBert", WORDS),
    "gte": encoder("GteForMaskedLM", "Gte", WORDS, type_vocab_size=2),
    "ernie": Asked(
        case=Case(
            config="ErnieConfig",
            model="ErnieForTokenClassification",
            tiny={**SMALL, "use_task_id": True},
            given=samples({**TYPED.fields, "task_type_ids": Ids("seq", 3)}, {"seq": (7, 1, 4)}),
        )
    ),
    "layoutlm": Asked(
        case=Case(
            config="LayoutLMConfig",
            model="LayoutLMForTokenClassification",
            tiny={**SMALL, "max_2d_position_embeddings": 50},
            given=LAID_OUT,
        )
    ),
    "layoutlmv3": Asked(
        case=Case(
            config="LayoutLMv3Config",
            model="LayoutLMv3ForTokenClassification",
            tiny={
                **SMALL,
                "coordinate_size": 2,
                "shape_size": 4,
                "input_size": 8,
                "patch_size": 4,
                "num_channels": 1,
            },
            given=samples(
                {**LAID_OUT.fields, "pixel_values": Numbers((1, 8, 8))}, {"seq": (7, 1, 4)}
            ),
        )
    ),
    "lilt": Asked(
        case=Case(
            config="LiltConfig",
            model="LiltForTokenClassification",
            tiny={
                **SMALL,
                "num_hidden_layers": 1,
                "channel_shrink_ratio": 2,
                "hidden_size": 24,
                "max_2d_position_embeddings": 50,
            },
            given=LAID_OUT,
        )
    ),
    "big_bird": encoder("BigBirdForSequenceClassification", "BigBird", CLASSES, sep_token_id=30),
    "electra": encoder("ElectraForPreTraining", "Electra", WORDS, embedding_size=12),
    "albert": encoder("AlbertForQuestionAnswering", "Albert", SPANS, embedding_size=12),
    "mpnet": encoder("MPNetForMaskedLM", "MPNet", WORDS, typed=False),
    "distilbert": encoder(
        "DistilBertForTokenClassification",
        "DistilBert",
        WORDS,
        typed=False,
        dim=16,
        n_layers=2,
        n_heads=2,
        hidden_dim=20,
    ),
    "modernbert": encoder(
        "ModernBertForMaskedLM",
        "ModernBert",
        WORDS,
        typed=False,
        local_attention=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    "deberta_v2": encoder(
        "DebertaV2ForSequenceClassification",
        "DebertaV2",
        CLASSES,
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
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
EXPERTS: dict[str, Any] = {**SIZES, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {
    **EXPERTS,
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


def writer(family: str, **more: Any) -> Asked:
    """A class that writes, padded on either side."""
    return Asked(case=decoder(family, **{**SIZES, **more}))


def wider(case: Case) -> Asked:
    return Asked(case=case)


MIXER = {
    **SIZES, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 3, "mamba_expand": 2,
    "mamba_chunk_size": 4,
}  # fmt: skip


def hybrid(family: str, tiny: dict[str, Any], *, position_ids: bool = True, **more: Any) -> Asked:
    """A causal LM with state space layers, whose scan transformers computes in float32."""
    case = decoder(family, **{**tiny, **more})
    return Asked(case=replace(case, single=True, places=position_ids))


def renamed(one: Asked, config: str) -> Asked:
    """The text model of a multimodal family, whose config class has another name."""
    return replace(one, case=replace(one.case, config=config))


def on_right(one: Asked) -> Asked:
    """Padded on the right alone: the published recurrence reads padding at the left."""
    return replace(one, case=replace(one.case, sides=("right",)))


GPT: dict[str, Any] = {
    "vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20,
}  # fmt: skip
DECODERS = {
    "llama": writer("Llama"),
    "llama, classes": wider(
        headed(decoder("Llama", **SIZES), "ForTokenClassification", WORDS)
    ),
    "mistral": writer("Mistral", sliding_window=3),
    "qwen2": writer("Qwen2"),
    "qwen3": writer("Qwen3", head_dim=12),
    "gemma": writer("Gemma", head_dim=8),
    "gemma2": writer("Gemma2", eager=True, head_dim=8, sliding_window=3),
    "gemma3_text": writer("Gemma3Text", head_dim=8, sliding_window=3),
    "granite": writer("Granite", embedding_multiplier=3.0, residual_multiplier=0.3),
    "smollm3": writer("SmolLM3", no_rope_layers=[0, 1]),
    "olmo": writer("Olmo"),
    "olmo2": writer("Olmo2"),
    "gpt_neox": writer("GPTNeoX"),
    "opt": writer("OPT", ffn_dim=20),
    "phi": writer("Phi"),
    "phi3": writer("Phi3"),
    "starcoder2": writer("Starcoder2"),
    "nemotron": writer("Nemotron", head_dim=8),
    "stablelm": writer("StableLm"),
    "stablelm, norms": writer("StableLm", qk_layernorm=True),
    "cohere": writer("Cohere"),
    "cohere, norms": writer("Cohere", use_qk_norm=True),
    "cohere2": writer("Cohere2", sliding_window=3),
    "glm4": writer("Glm4", head_dim=8),
    "glm": writer("Glm", head_dim=8),
    "arcee": writer("Arcee"),
    "seed_oss": writer("SeedOss", head_dim=8),
    "helium": writer("Helium", head_dim=8),
    "olmo3": writer("Olmo3", sliding_window=3),
    "exaone4": writer("Exaone4", sliding_window=3),
    "ministral": writer("Ministral", sliding_window=3, head_dim=8),
    "ministral3": writer("Ministral3", head_dim=8),
    "cwm": writer("Cwm", sliding_window=3, head_dim=8),
    "hyperclovax": writer("HyperCLOVAX", residual_multiplier=0.4),
    "jais2": writer("Jais2", head_dim=8),
    "flex_olmo": writer("FlexOlmo", **{**EXPERTS, "num_experts": 4}),
    "minimax_m2": writer("MiniMaxM2", **{**EXPERTS, "num_local_experts": 4, "head_dim": 8}),
    "ernie4_5": writer("Ernie4_5", head_dim=8),
    "gptj": wider(
        Case(
            config="GPTJConfig",
            model="GPTJForCausalLM",
            sides=("left", "right"),
            places=True,
            tiny={"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4},
        )
    ),
    "codegen": wider(
        Case(
            config="CodeGenConfig",
            model="CodeGenForCausalLM",
            sides=("left", "right"),
            places=True,
            tiny={**GPT, "n_head": 4, "rotary_dim": 4},
        )
    ),
    "openai-gpt": wider(
        Case(
            config="OpenAIGPTConfig",
            model="OpenAIGPTLMHeadModel",
            sides=("left", "right"),
            places=True,
            tiny=GPT,
        )
    ),
    "gpt2, choices": wider(
        Choices(
            config="GPT2Config",
            model="GPT2DoubleHeadsModel",
            tiny=GPT,
            given=choices(),
            results={"lm_logits": "", "mc_logits": ""},
        )
    ),
    "gpt2": wider(
        Case(
            config="GPT2Config",
            model="GPT2LMHeadModel",
            sides=("left", "right"),
            places=True,
            tiny=GPT,
        )
    ),
    "gpt_neo": wider(
        Case(
            config="GPTNeoConfig",
            model="GPTNeoForCausalLM",
            sides=("left", "right"),
            places=True,
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
    "bloom": wider(
        Case(
            config="BloomConfig",
            model="BloomForCausalLM",
            sides=("left", "right"),
            tiny={"vocab_size": VOCAB, "hidden_size": 18, "n_layer": 2, "n_head": 3},
        )
    ),
    "falcon": wider(
        Case(
            config="FalconConfig",
            model="FalconForCausalLM",
            sides=("left", "right"),
            places=True,
            tiny={**SMALL, "new_decoder_architecture": True, "num_kv_heads": 1},
        )
    ),
    "mpt": wider(
        Case(
            config="MptConfig",
            model="MptForCausalLM",
            sides=("left", "right"),
            eager=True,
            tiny={"vocab_size": VOCAB, "d_model": 16, "n_layers": 2, "n_heads": 2},
        )
    ),
    "mixtral": writer("Mixtral", **{**EXPERTS, "num_local_experts": 4}),
    "qwen3_moe": writer(
        "Qwen3Moe",
        **{**EXPERTS, "num_experts": 4, "moe_intermediate_size": 12, "head_dim": 8},
    ),
    "gpt_oss": writer(
        "GptOss",
        eager=True,
        **{**EXPERTS, "num_local_experts": 4, "head_dim": 8, "sliding_window": 3},
    ),
    "qwen2_moe": writer(
        "Qwen2Moe",
        **{**EXPERTS, "num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10},
    ),
    "olmoe": writer("Olmoe", **{**EXPERTS, "num_experts": 4}),
    "granitemoe": writer("GraniteMoe", **{**EXPERTS, "num_local_experts": 4}),
    "glm4_moe": writer("Glm4Moe", **{**LATENT, "head_dim": 8}),
    "deepseek_v2": writer("DeepseekV2", **{**LATENT, "topk_method": "group_limited_greedy"}),
    "deepseek_v3": writer("DeepseekV3", **LATENT),
    "mamba2": hybrid(
        "Mamba2", {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 4,
                   "state_size": 3, "n_groups": 2, "expand": 2, "chunk_size": 4}, position_ids=False,
    ),
    "bamba": hybrid("Bamba", MIXER, attn_layer_indices=[1]),
    "granitemoehybrid": hybrid(
        "GraniteMoeHybrid", MIXER, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=10,
        layer_types=["linear_attention", "full_attention"],
    ),
    "falcon_h1": hybrid("FalconH1", MIXER, mamba_d_ssm=32, ssm_multipliers=[0.8, 1.1, 0.9, 1.2, 0.7]),
    "jamba": hybrid(
        "Jamba", SIZES, position_ids=False, num_experts=4, mamba_d_state=3, mamba_dt_rank=2, attn_layer_period=2,
        attn_layer_offset=1, use_mamba_kernels=False,
    ),
    "qwen3_next": hybrid(
        "Qwen3Next", SIZES, head_dim=8, linear_key_head_dim=3, linear_value_head_dim=4, linear_num_key_heads=1,
        linear_num_value_heads=2, moe_intermediate_size=6, shared_expert_intermediate_size=5, num_experts=4,
        num_experts_per_tok=2, layer_types=["linear_attention", "full_attention"],
    ),
    "qwen3_5_text": renamed(hybrid(
        "Qwen3_5", SIZES, head_dim=8, linear_key_head_dim=3, linear_value_head_dim=4, linear_num_key_heads=1,
        linear_num_value_heads=2, layer_types=["linear_attention", "full_attention"],
    ), "Qwen3_5TextConfig"),
    "llama4_text": renamed(hybrid(
        "Llama4", SIZES, head_dim=8, intermediate_size_mlp=12, attention_chunk_size=4, no_rope_layer_interval=2,
        num_local_experts=4, floor_scale=3, attn_temperature_tuning=False,
    ), "Llama4TextConfig"),
    "nemotron_h": hybrid(
        "NemotronH", {k: v for k, v in SIZES.items() if k != "num_hidden_layers"}, position_ids=False, head_dim=8,
        ssm_state_size=3, mamba_num_heads=2, mamba_head_dim=4, n_groups=1, chunk_size=4, n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=6, moe_shared_expert_intermediate_size=5,
    ),
    "recurrent_gemma": on_right(hybrid("RecurrentGemma", SIZES, num_hidden_layers=3, attention_window_size=3)),
    "phimoe": writer("Phimoe", **{**EXPERTS, "num_local_experts": 4, "router_jitter_noise": 0.3}),
    "gemma3n_text": writer(
        "Gemma3nText", head_dim=8, num_hidden_layers=3, num_kv_shared_layers=1, sliding_window=3, laurel_rank=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=4, altup_num_inputs=2, activation_sparsity_pattern=[0.8, 0.0, 0.0],
    ),
    "gemma4_text": writer(
        "Gemma4Text", head_dim=8, global_head_dim=12, sliding_window=3, vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=4, layer_types=["sliding_attention", "full_attention"],
    ),
    "bitnet": writer("BitNet"),
    "apertus": writer("Apertus"),
    "diffllama": writer("DiffLlama", num_attention_heads=4, num_key_value_heads=2),
    "hunyuan_v1_moe": writer("HunYuanMoEV1", head_dim=8, num_experts=3, moe_topk=2),
    "hunyuan_v1_dense": writer("HunYuanDenseV1", head_dim=8),
    "dots1": writer("Dots1", **{**LATENT, "head_dim": 8}),
    "modernbert_decoder": writer("ModernBertDecoder", local_attention=6),
    "gpt_bigcode": wider(
        Case(
            config="GPTBigCodeConfig",
            model="GPTBigCodeForCausalLM",
            sides=("left", "right"),
            places=True,
            tiny=GPT,
        )
    ),
    "xglm": wider(
        Case(
            config="XGLMConfig",
            model="XGLMForCausalLM",
            sides=("left", "right"),
            places=True,
            single=True,
            tiny={"vocab_size": VOCAB, "d_model": 16, "num_layers": 2, "attention_heads": 2, "ffn_dim": 20},
        )
    ),
    "minimax": replace(
        writer("MiniMax", **{**EXPERTS, "num_local_experts": 4, "block_size": 4}), computed="slope_rate _decay"
    ),
    "lfm2_moe": hybrid(
        "Lfm2Moe", EXPERTS, layer_types=["conv", "full_attention"], num_experts=4, num_dense_layers=1,
        moe_intermediate_size=6,
    ),
    "ernie4_5_moe": hybrid(
        "Ernie4_5_Moe", SIZES, moe_num_experts=4, moe_k=2, moe_intermediate_size=6, moe_num_shared_experts=1,
    ),
    "zamba2": hybrid(
        "Zamba2", {k: v for k, v in SIZES.items() if k != "num_hidden_layers"}, mamba_d_state=3, n_mamba_heads=2,
        chunk_size=16, adapter_rank=3, layers_block_type=["linear_attention", "hybrid"],
    ),
    "biogpt": wider(
        Case(
            config="BioGptConfig",
            model="BioGptForCausalLM",
            sides=("left", "right"),
            places=True,
            tiny=SMALL,
        )
    ),
    "lfm2": hybrid("Lfm2", SIZES, layer_types=["conv", "full_attention"], block_multiple_of=8),
    "mamba": wider(
        Case(
            config="MambaConfig",
            model="MambaForCausalLM",
            sides=("left", "right"),
            tiny={"vocab_size": VOCAB, "hidden_size": 12, "state_size": 4, "num_hidden_layers": 2, "use_cache": False},
        )
    ),
    "rwkv": wider(
        Case(
            config="RwkvConfig",
            model="RwkvForCausalLM",
            sides=("left", "right"),
            tiny={"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "rescale_every": 0, "use_cache": False},
        )
    ),
}  # fmt: skip

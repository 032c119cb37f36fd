"""Asks transformers, and keeps what it answers: `make answers` writes
`tests/kept/answers.npz`, a tiny checkpoint a family.

`tests/parity` compares many configurations of each head; these are the smallest.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open

from specc.weights.formats.safetensors import write_safetensors
from support.answers import Answer, weight, write_answers
from support.decoders import decoder, headed
from support.families import TEXTS, VOCAB, Case
from support.padded import Arrays, Ids, Keep, Numbers, Samples, Sound, samples


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A case, what is told beside its config, and the tensors of its file that no weight
    of the spec is made of: tables of sines, as they come out of the class.
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


ENCODERS = {
    "bert": encoder("BertForMaskedLM", "Bert", WORDS),
    "bert, classes": encoder("BertForSequenceClassification", "Bert", CLASSES),
    "roberta": encoder("RobertaForSequenceClassification", "Roberta", CLASSES),
    "xlm_roberta": encoder("XLMRobertaForTokenClassification", "XLMRoberta", WORDS),
    "camembert": encoder("CamembertForMaskedLM", "Camembert", WORDS),
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
    "cohere": writer("Cohere"),
    "cohere2": writer("Cohere2", sliding_window=3),
    "glm4": writer("Glm4", head_dim=8),
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
    "gpt2": wider(
        Case(
            config="GPT2Config",
            model="GPT2LMHeadModel",
            sides=("left", "right"),
            places=True,
            tiny={"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20},
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
    "deepseek_v2": writer("DeepseekV2", **{**LATENT, "topk_method": "group_limited_greedy"}),
    "deepseek_v3": writer("DeepseekV3", **LATENT),
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
TOLD = samples(
    {
        "source": Ids("src", 29),
        "source_keep": Keep("src"),
        "target": Ids("tgt", 29),
        "target_keep": Keep("tgt"),
    },
    {"src": (7, 1, 4), "tgt": (6, 2, 3)},
)
BOTH_SIDES: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 12, "max_position_embeddings": 40,
    "pad_token_id": 30, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 29,
    "src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 16, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "pad_token_id": 30,
    "decoder_start_token_id": 30,
}  # fmt: skip


def translator(
    family: str, head: str = "ForConditionalGeneration", **more: Any
) -> Asked:
    """An encoder with a decoder."""
    case = Case(
        config=f"{family}Config",
        model=f"{family}{head}",
        tiny=more or BOTH_SIDES,
        results={"logits": "tgt"},
        given=TOLD,
        renamed={
            "source": "input_ids",
            "source_keep": "attention_mask",
            "target": "decoder_input_ids",
            "target_keep": "decoder_attention_mask",
        },
        softer={"Attention.q.weight": T5["d_kv"] ** -0.5},
        single=family == "FSMT",
    )
    return Asked(case=case)


TRANSLATORS = {
    "bart": translator("Bart"),
    "mbart": translator("MBart"),
    "marian": replace(translator("Marian", "MTModel"), computed="embed_positions"),
    "pegasus": translator("Pegasus"),
    "blenderbot": translator("Blenderbot"),
    "m2m_100": translator("M2M100"),
    "fsmt": replace(
        translator("FSMT", **BOTH_SIDES, use_cache=False, num_beams=1),
        computed="embed_positions",
    ),
    "t5": translator("T5", **T5),
    "mt5": translator("MT5", **T5, feed_forward_proj="gated-gelu"),
}
SEEN: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20, "image_size": 8,
    "patch_size": 4, "num_labels": 3,
}  # fmt: skip
STAGES: dict[str, Any] = {
    "num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 12], "sr_ratios": [2, 1], "patch_sizes": [7, 3],
    "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 10, "num_labels": 3,
}  # fmt: skip


def seeing(
    family: str,
    head: str = "ForImageClassification",
    *,
    size: int = 8,
    boxes: bool = False,
    **more: Any,
) -> Asked:
    """A class that sees pictures."""
    case = Case(
        config=f"{family}Config",
        model=f"{family}{head}",
        tiny=more,
        results={"logits": "", "pred_boxes": ""} if boxes else {"logits": ""},
        given=samples({"pixel_values": Numbers((3, size, size))}, {}),
    )
    return Asked(case=case)


VISION = {
    "vit": seeing("ViT", **SEEN),
    "deit": seeing("DeiT", **SEEN),
    "beit": seeing("Beit", use_relative_position_bias=True, **SEEN),
    "dinov2": seeing("Dinov2", **SEEN, mlp_ratio=2),
    "yolos": seeing(
        "Yolos", "ForObjectDetection", boxes=True, **{**SEEN, "image_size": [8, 8], "num_detection_tokens": 2}
    ),
    "segformer": replace(
        seeing("Segformer", "ForSemanticSegmentation", size=32, **STAGES), sets={"image": 32}
    ),
    "swin": seeing(
        "Swin", size=16, image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4],
        window_size=4, num_labels=3,
    ),
    "convnext": seeing(
        "ConvNext", size=16, image_size=16, patch_size=2, hidden_sizes=[6, 8], depths=[1, 1],
        num_stages=2, num_labels=3,
    ),
}  # fmt: skip
SIDE: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
CLIP: dict[str, Any] = {
    "text_config": {**SIDE, "vocab_size": VOCAB, "max_position_embeddings": 12, "eos_token_id": 30, "bos_token_id": 0,
                    "pad_token_id": 1},
    "vision_config": {**SIDE, "image_size": 8, "patch_size": 4},
    "projection_dim": 12,
}  # fmt: skip


def with_ends(given: Samples, end: int) -> Samples:
    """Texts that end in `end`, which stands nowhere else in them."""
    for row in given.rows:
        row["input_ids"][-1] = end
    return given


PICTURED = with_ends(
    samples(
        {
            "input_ids": Ids("seq", 30),
            "attention_mask": Keep("seq"),
            "pixel_values": Numbers((3, 8, 8)),
        },
        {"seq": (7, 2, 4)},
    ),
    30,
)
HEARD: dict[str, Any] = {
    "vocab_size": 13, **SIDE, "conv_dim": [6, 7], "conv_kernel": [5, 3], "conv_stride": [3, 2],
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "conv_bias": True,
}  # fmt: skip
SOUNDS = (61, 41, 50)


def frames(length: int) -> int:
    """How many rows come of a recording."""
    for kernel, stride in zip(HEARD["conv_kernel"], HEARD["conv_stride"], strict=True):
        length = (length - kernel) // stride + 1
    return length


RECORDINGS = samples(
    {"input_values": Sound("samples"), "attention_mask": Keep("samples")},
    {"samples": SOUNDS, "frames": tuple(map(frames, SOUNDS))},
)
WHISPER: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "num_mel_bins": 6,
    "max_source_positions": 8, "max_target_positions": 20, "pad_token_id": 30, "bos_token_id": 30, "eos_token_id": 30,
    "decoder_start_token_id": 29,
}  # fmt: skip
DICTATED = samples(
    {
        "input_features": Numbers((6, 16)),
        "decoder_input_ids": Ids("tgt", 30),
        "decoder_attention_mask": Keep("tgt"),
    },
    {"tgt": (5, 1, 3)},
)
OTHERS = {
    "clip": Asked(
        case=Case(
            config="CLIPConfig",
            model="CLIPModel",
            tiny=CLIP,
            given=PICTURED,
            results={"text_embeds": "", "image_embeds": ""},
        )
    ),
    "wav2vec2": Asked(
        case=Case(
            config="Wav2Vec2Config",
            model="Wav2Vec2ForCTC",
            tiny=HEARD,
            given=RECORDINGS,
            results={"logits": "frames"},
        )
    ),
    "hubert": Asked(
        case=Case(
            config="HubertConfig",
            model="HubertModel",
            tiny=HEARD,
            given=RECORDINGS,
            results={"last_hidden_state": "frames"},
        )
    ),
    "whisper": Asked(
        case=Case(
            config="WhisperConfig",
            model="WhisperForConditionalGeneration",
            tiny=WHISPER,
            given=DICTATED,
            results={"logits": "tgt"},
        )
    ),
    "ast": Asked(
        case=Case(
            config="ASTConfig",
            model="ASTForAudioClassification",
            tiny={
                **SIDE,
                "patch_size": 4,
                "frequency_stride": 3,
                "time_stride": 2,
                "max_length": 9,
                "num_mel_bins": 7,
            },
            given=samples({"input_values": Numbers((9, 7))}, {}),
            results={"logits": ""},
        )
    ),
}
CASES = ENCODERS | DECODERS | TRANSLATORS | VISION | OTHERS


def asked(one: Asked, folder: Path) -> Answer:
    """What the published model answers to each sample alone, in float64."""
    case = one.case
    config = getattr(transformers, case.config)(**case.tiny)
    kind = getattr(transformers, case.model)
    made = kind(config)
    made.save_pretrained(folder)
    # names of the file, not of the module
    with safe_open(folder / "model.safetensors", "np") as file:
        shapes = {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    if one.computed:
        shapes = {n: shape for n, shape in shapes.items() if one.computed not in n}
    write_safetensors(
        folder / "model.safetensors",
        {n: weight(n, s) for n, s in shapes.items()},
        force=True,
    )
    how = {"attn_implementation": "eager"} if case.eager else {}
    theirs = kind.from_pretrained(folder, experts_implementation="eager", **how).eval()
    if not case.single:
        theirs.double()
    return Answer(
        config=json.loads((folder / "config.json").read_text()),
        tensors=shapes,
        given=case.given,
        results=case.results,
        sides=case.sides if _padded(case.given) else ("right",),
        sets=one.sets,
        told=tuple(_alone(case, theirs, n) for n in range(len(case.given.rows))),
    )


def _padded(given: Samples) -> bool:
    return any(isinstance(field, Keep) for field in given.fields.values())


def _alone(case: Case, theirs: Any, row: int) -> Arrays:
    """What is given for one sample, in the precision that files keep."""
    given = {}
    for name, array in case.given.alone(row).items():
        tensor = torch.tensor(array)
        whole = not tensor.is_floating_point()
        given[name] = tensor if whole or case.single else tensor.double()
    with torch.no_grad():
        made = case.published(theirs, given)
    return {name: x[0].numpy().astype(np.float32) for name, x in made.items()}


def main() -> None:
    answers = {}
    for name, one in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            answers[name] = asked(one, Path(folder))
    write_answers(answers)


if __name__ == "__main__":
    main()

"""GGUF files written by the `gguf` package give the logits and token ids of transformers.

transformers 5.24 ignores some metadata (RoPE scaling, `key_length` of qwen3, the query scale of
Gemma), so those models are compared with the model that was written, or have the class defaults.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.gguf_files import make_llama_metadata, sample_blocks, write_gguf
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import (
    assert_matches_float32,
    open_weighted_spec,
    randomize_weights,
    run_one_by_one,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from specc.huggingface.gguf_metadata import read_gguf_tokenizer

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.parity

Type = gguf.GGMLQuantizationType
GIVEN = make_samples(
    {"input_ids": TokenIds("seq", 31), "attention_mask": PaddingMask("seq")}, {"seq": (7, 1, 4)}
)
SIZES: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def write(path: Path, model: PreTrainedModel, kind: Any, more: Mapping[str, Any]) -> None:
    """Write a model as llama.cpp's converter does, with matrices in one type."""
    config = model.config
    arch = (
        "llama"
        if config.model_type == "mixtral"
        else config.model_type.removesuffix("_text").replace("_", "")
    )
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters.get("rope_theta", 10000.0))
    writer.add_key_length(getattr(config, "head_dim", None) or 16)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{n}" for n in range(31)])
    writer.add_pad_token_id(0)
    for key, value in more.items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(f"{key}.weight", value)
        else:
            getattr(writer, f"add_{key}")(value)
    for name, array in tensors(model, arch).items():
        fits = array.ndim > 1 and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        chosen = kind if fits else Type.F32
        if chosen in (Type.Q4_K, Type.Q6_K):
            raw = sample_blocks(int(chosen), array.shape, np.random.default_rng(len(name)))[2]
            width = (
                array.shape[-1] // gguf.GGML_QUANT_SIZES[kind][0] * gguf.GGML_QUANT_SIZES[kind][1]
            )
            stored = np.frombuffer(raw, np.uint8).reshape(*array.shape[:-1], width)
        else:
            stored = gguf.quantize(array, chosen)
        writer.add_tensor(name, stored, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(model: PreTrainedModel, arch: str) -> dict[str, Any]:
    """Return the float32 tensors by their names in the file, converted as by llama.cpp."""
    config = model.config
    number = next(n for n, named in gguf.MODEL_ARCH_NAMES.items() if named == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    found = {}
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = value.float().numpy()
        if "experts.gate_up_proj" in key:
            layer, (gate, up) = key.split(".")[2], np.split(array, 2, axis=1)
            found[f"blk.{layer}.ffn_gate_exps.weight"] = np.ascontiguousarray(gate)
            found[f"blk.{layer}.ffn_up_exps.weight"] = np.ascontiguousarray(up)
            continue
        if "experts.down_proj" in key:
            found[f"blk.{key.split('.')[2]}.ffn_down_exps.weight"] = array
            continue
        if arch == "llama" and ("q_proj" in key or "k_proj" in key):
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            halves = array.reshape(heads, 2, -1, array.shape[-1])
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        if arch.startswith("gemma") and key.endswith("norm.weight"):
            array = array + 1
        found[names.get_name(key, try_suffixes=(".weight", ".bias"))] = array
    return found


def check_logits(spec: str, path: Path, theirs: PreTrainedModel) -> None:
    """Check that the file compiles to a model with these logits."""
    theirs = theirs.eval().double()

    def published(x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"logits": run_one_by_one(x, lambda ids: theirs(ids).logits)}

    assert_matches_float32(
        open_weighted_spec(spec, path), GIVEN, published, {"logits": "seq"}, ("left", "right")
    )


WIDE = {"hidden_size": 256, "intermediate_size": 256}
"""Sizes for blocks of 256 values."""
GEMMA = {"head_dim": 256, "sliding_window": 3}
CASES: dict[str, tuple[Any, Any, Any, dict[str, Any], dict[str, Any]]] = {
    "bf16": (LlamaConfig, LlamaForCausalLM, Type.BF16, {}, {"rope_dimension_count": 16}),
    "q4_k": (LlamaConfig, LlamaForCausalLM, Type.Q4_K, WIDE, {"rope_dimension_count": 64}),
    "q6_k": (LlamaConfig, LlamaForCausalLM, Type.Q6_K, WIDE, {"rope_dimension_count": 64}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, Type.Q8_0, {}, {}),
    "qwen3": (
        Qwen3Config, Qwen3ForCausalLM, Type.Q4_0, {"head_dim": 128, "tie_word_embeddings": True}, {}
    ),
    "gemma2": (
        Gemma2Config, Gemma2ForCausalLM, Type.Q8_0, GEMMA,
        {"sliding_window": 3, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, Type.Q8_0, GEMMA, {"sliding_window": 3}),
    "phi3": (
        Phi3Config, Phi3ForCausalLM, Type.Q8_0, {"pad_token_id": 0}, {"rope_dimension_count": 16}
    ),
}  # fmt: skip
"""Config, class, type, fields of the config and further metadata."""


@pytest.mark.parametrize("name", CASES)
def test_logits_of_transformers(name: str, tmp_path: Path) -> None:
    config, made, kind, fields, more = CASES[name]
    path = tmp_path / "m.gguf"
    model = randomize_weights(made(config(**{**SIZES, **fields})))
    write(path, model, kind, more)
    theirs = made.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32, attn_implementation="eager"
    )
    check_logits(model.config.model_type, path, theirs)


def test_experts(tmp_path: Path) -> None:
    for config, made, fields in (
        (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 4}),
        (
            Qwen3MoeConfig, Qwen3MoeForCausalLM,
            {"num_experts": 4, "moe_intermediate_size": 64, "head_dim": 32, "norm_topk_prob": True},
        ),
    ):  # fmt: skip
        path = tmp_path / "m.gguf"
        model = randomize_weights(made(config(**SIZES, num_experts_per_tok=2, **fields)))
        write(
            path,
            model,
            Type.F32,
            {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64},
        )
        model.set_experts_implementation("eager")  # the other way has no float64
        check_logits(model.config.model_type, path, model)


def test_rope_scaling(tmp_path: Path) -> None:
    """Llama 3.1's frequency factors are a tensor, computed as by llama.cpp's converter."""
    scaling = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
    model = randomize_weights(LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=scaling)))
    divisors = []
    for n in range(8):
        wave = 2 * np.pi * 10000 ** (n / 8)
        smooth = (32 / wave - 1) / 3
        between = 1 / ((1 - smooth) / 8 + smooth)
        divisors.append(1.0 if wave < 8 else 8.0 if wave > 32 else between)
    path = tmp_path / "m.gguf"
    more = {"rope_freqs": np.array(divisors, np.float32)}
    write(path, model, Type.F32, more)
    check_logits("llama", path, model)
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    model = randomize_weights(Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_parameters=yarn)))
    more = {"rope_scaling_type": gguf.RopeScalingType.YARN, "rope_scaling_factor": 4.0,
            "rope_scaling_orig_ctx_len": 16}  # fmt: skip
    write(path, model, Type.F32, more)
    check_logits("qwen2", path, model)


TEXTS = (
    "The quick brown fox, 12345 times!",
    "  two spaces, a\ttab\n\nand lines  ",
    "I'LL say: it's naïve — 日本語 😀 é",
    "x<|end|>y it's",
    "",
)
CORPUS = [
    "the quick brown fox it's what they'll say",
    "times and spaces 123 12 1",
    "I'LL SAY naïve tabs",
] * 5


def write_tokenizer(directory: Path, metadata: Mapping[str, Any], arch: str) -> None:
    """Write a GGUF file with a tokenizer and the metadata of a small model."""
    sizes = make_llama_metadata(
        **{f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    )
    renamed = {key.replace("llama.", f"{arch}."): value for key, value in sizes.items()}
    write_gguf(directory / "m.gguf", {**renamed, "general.architecture": arch}, {})


def assert_same_ids(directory: Path) -> None:
    """Check that encoding and decoding agree with transformers."""
    theirs = AutoTokenizer.from_pretrained(directory, gguf_file="m.gguf")
    made = read_gguf_tokenizer(directory / "m.gguf")
    assert made is not None
    ours = Tokenizer.from_str(made.tokenizer_json)
    for text in TEXTS:
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("split", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_tokenizers(split: str, tmp_path: Path) -> None:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet)
    )
    model = json.loads(trained.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].__getitem__), "<|end|>"]
    write_tokenizer(
        tmp_path,
        {
            "model": "gpt2",
            "pre": split,
            "tokens": tokens,
            "token_type": [1] * (len(tokens) - 1) + [3],
            "merges": [" ".join(merge) for merge in model["merges"]],
            "eos_token_id": len(tokens) - 1,
            "bos_token_id": len(tokens) - 1,
            "add_bos_token": split == "llama-bpe",
        },
        "qwen2",
    )
    assert_same_ids(tmp_path)


@pytest.mark.parametrize("arch", ["phi3", "gemma2"])
def test_sentencepiece_tokenizers(arch: str, tmp_path: Path) -> None:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=120))
    vocab = trained.get_vocab()
    pieces = sorted(vocab, key=vocab.__getitem__)
    pieces += [piece for piece in ("\u2581\u2581",) if piece not in vocab]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*first, *pieces, "<|end|>"]
    scores = [0.0] * len(first) + [-float(n) for n in range(len(pieces))] + [0.0]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [3]
    write_tokenizer(
        tmp_path,
        {
            "model": "llama", "tokens": tokens, "scores": scores, "token_type": kinds,
            "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
            "add_bos_token": True, "add_space_prefix": arch == "phi3",
        },
        arch,
    )  # fmt: skip
    assert_same_ids(tmp_path)

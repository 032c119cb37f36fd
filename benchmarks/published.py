"""Create checkpoints of published architectures at full size with random weights."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import byte_lm
import numpy as np
import torch
import transformers


@dataclass(frozen=True)
class PublishedModel:
    """A transformers model with its config, the built-in spec, and the input shapes to time."""

    spec: str
    model: Any
    config: Any
    shapes: tuple[tuple[int, ...], ...]
    output: str

    def make_inputs(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return random inputs of the given shape by the input names of the spec."""
        rng = np.random.default_rng(0)
        if self.spec == "vit":
            return {"pixel_values": rng.normal(size=(shape[0], 3, 224, 224)).astype(np.float32)}
        ids = rng.integers(5, 1000, shape)
        given = {"input_ids": ids, "attention_mask": np.ones(shape, bool)}
        return given | (
            {"token_type_ids": np.zeros(shape, np.int64)} if self.spec == "bert" else {}
        )


MODELS = {
    "bert": PublishedModel(
        "bert",
        transformers.BertForPreTraining,
        transformers.BertConfig(),
        ((1, 128), (8, 128)),
        "prediction_logits",
    ),
    "vit": PublishedModel(
        "vit",
        transformers.ViTForImageClassification,
        transformers.ViTConfig(num_labels=1000),
        ((1,), (8,)),
        "logits",
    ),
    "gpt2": PublishedModel(
        "gpt2",
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(use_cache=False),
        ((1, 128),),
        "logits",
    ),
}
"""BERT-base with its pre-training heads, ViT-base (224 × 224 pixels), and GPT-2 small."""


def save_model(name: str, directory: Path) -> None:
    """Save a checkpoint directory of a model."""
    torch.manual_seed(0)
    made = MODELS[name].model(MODELS[name].config)
    made.eval().save_pretrained(directory, safe_serialization=True)


def load_published_model(name: str, directory: Path) -> Any:
    """Load a checkpoint with the fused attention of PyTorch, as exporters expect."""
    found = MODELS[name].model.from_pretrained(directory, attn_implementation="sdpa")
    return LogitsOnly(name, found).eval()


class LogitsOnly(torch.nn.Module):
    """A model as a function from tensors to one tensor, which an exporter can trace."""

    def __init__(self, name: str, model: Any) -> None:
        super().__init__()
        self.name, self.model = name, model

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """Return the logits that are compared."""
        if self.name == "vit":
            return self.model(pixel_values=given[0]).logits
        if self.name == "gpt2":
            return self.model(input_ids=given[0], attention_mask=given[1]).logits
        found = self.model(input_ids=given[0], attention_mask=given[1], token_type_ids=given[2])
        return found.prediction_logits


def make_tensors(name: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Return the inputs of `PublishedModel.make_inputs` as PyTorch tensors."""
    given = MODELS[name].make_inputs(shape)
    return tuple(
        torch.from_numpy(v.astype(np.int64) if v.dtype == bool else v) for v in given.values()
    )


TINY_VOCAB = 1000


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A transformers model with its config at full size and at small size, its task in Optimum, and
    its kind: `encoder`, `decoder` or `seq2seq` (encoder-decoder).
    """

    model: Any
    config: Callable[..., Any]
    small: Mapping[str, object]
    size: Mapping[str, object]
    task: str
    kind: str


FAMILIES = {
    "BERT-base": ModelFamily(
        model=transformers.BertModel,
        config=transformers.BertConfig,
        size={},
        small={"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": TINY_VOCAB},
        task="feature-extraction",
        kind="encoder",
    ),
    "ViT-base": ModelFamily(
        model=transformers.ViTForImageClassification,
        config=transformers.ViTConfig,
        size={"num_labels": 1000},
        small={"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
        task="image-classification",
        kind="encoder",
    ),
    "GPT-2": ModelFamily(
        model=transformers.GPT2LMHeadModel,
        config=transformers.GPT2Config,
        size={},
        small={"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": TINY_VOCAB, "bos_token_id": 0, "eos_token_id": 0},
        task="text-generation-with-past",
        kind="decoder",
    ),
    "Qwen2 0.5B": ModelFamily(
        model=transformers.Qwen2ForCausalLM,
        config=transformers.Qwen2Config,
        size={"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True, "max_position_embeddings": 4096, "bos_token_id": 151643, "eos_token_id": 151643},
        small={"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "tie_word_embeddings": True, "vocab_size": TINY_VOCAB, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 0},
        task="text-generation-with-past",
        kind="decoder",
    ),
    "T5-small": ModelFamily(
        model=transformers.T5ForConditionalGeneration,
        config=transformers.T5Config,
        size={"decoder_start_token_id": 0},
        small={"d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 2, "vocab_size": TINY_VOCAB, "decoder_start_token_id": 0},
        task="text2text-generation-with-past",
        kind="seq2seq",
    ),
    "whisper-tiny": ModelFamily(
        model=transformers.WhisperForConditionalGeneration,
        config=transformers.WhisperConfig,
        size={"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536},
        small={"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
        task="automatic-speech-recognition-with-past",
        kind="seq2seq",
    ),
}  # fmt: skip


def save_family(name: str, directory: Path, quick: bool) -> Path:
    """Save a checkpoint directory with a tokenizer, which model builders require."""
    family = FAMILIES[name]
    torch.manual_seed(0)
    config = family.config(**(family.small if quick else family.size))
    made = family.model(config).eval()
    made.save_pretrained(directory, safe_serialization=True)
    sides = {
        "tokenizer.json": byte_lm.make_tokenizer_json(),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for file, content in sides.items():
        (directory / file).write_text(json.dumps(content), encoding="utf-8")
    if name == "whisper-tiny":
        transformers.WhisperFeatureExtractor().save_pretrained(directory)
    if name == "ViT-base":
        transformers.ViTImageProcessor().save_pretrained(directory)
    return directory


def make_family_inputs(name: str, length: int, batch: int) -> dict[str, np.ndarray]:
    """Return inputs by the names of transformers: tokens, an image, or a spectrogram."""
    rng = np.random.default_rng(0)
    if name == "ViT-base":
        pixels = rng.normal(size=(batch, 3, 224, 224))
        return {"pixel_values": pixels.astype(np.float32)}
    if name == "whisper-tiny":
        sound = rng.normal(size=(batch, 80, 3000))
        return {"input_features": sound.astype(np.float32)}
    ids = rng.integers(5, TINY_VOCAB, (batch, length))
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if name == "BERT-base":
        given["token_type_ids"] = np.zeros_like(ids)
    return given
